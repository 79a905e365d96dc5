//! What concerns tags: drawing from them, changing them, and sequences in their place.

use super::{Error, Report, report};

impl Error {
    pub(super) fn tag_report(self) -> Report {
        match self {
            Self::UnknownTag { tag } => report(
                "IG005",
                format!("segment tag \"{tag}\" does not exist"),
                "",
                "Create it with SELECT idgen_create_segment('tag').",
            ),
            Self::TagExhausted { tag, limit_id } => report(
                "IG006",
                format!("segment tag \"{tag}\" is exhausted"),
                format!("Every id up to its limit {limit_id} has been granted."),
                "Widen the column, then raise the limit: SELECT idgen_alter_segment('tag', limit_id => ...).",
            ),
            Self::TooFewLeft { tag, n, limit_id } => report(
                "IG006",
                format!("segment tag \"{tag}\" does not have {n} ids left"),
                format!("Its limit is {limit_id}; a range of ids is granted as a whole or not at all."),
                "Ask for fewer, or raise the limit: SELECT idgen_alter_segment('tag', limit_id => ...).",
            ),
            Self::NoRightOnTag { tag } => report(
                "IG013",
                format!("permission denied for segment tag \"{tag}\""),
                "Only its owner and roles with a grant may use it.",
                "The owner can give the right: SELECT idgen.grant_segment('tag', 'role').",
            ),
            Self::NotOwnerOfTag { tag, owner } => report(
                "IG013",
                format!("permission denied for segment tag \"{tag}\""),
                format!("Its owner is \"{owner}\"."),
                "Its owner, members of that role and those with idgen.grant_admin() may change it and give rights on it.",
            ),
            Self::SegmentTableFull { segments_max, idle_s } => report(
                "IG017",
                "too many segment tags in use",
                format!(
                    "All {segments_max} places in shared memory are taken, and no tag has been idle for {idle_s} s."
                ),
                "Raise idgen.max_segments and restart the server, or lower idgen.segment_idle_time.",
            ),
            other => other.tag_wait_report(),
        }
    }

    /// No range has come.
    fn tag_wait_report(self) -> Report {
        match self {
            Self::RefillTimedOut {
                tag,
                waited_ms,
                cause,
            } => report(
                "IG007",
                format!("no new range for segment tag \"{tag}\" in {waited_ms} ms"),
                cause,
                "The call can be repeated; idgen.segment_wait_ms says how long it waits.",
            ),
            Self::RateLimited {
                tag,
                limit,
                retry_in_ms,
            } => report(
                "IG008",
                format!("segment tag \"{tag}\" is rate limited"),
                format!(
                    "Its fetch_limit is {limit} ranges a minute; the next one is allowed in {} s.",
                    retry_in_ms.div_ceil(1_000)
                ),
                "Call it again then. Larger ranges need fewer fetches: idgen_alter_segment('tag', max_step => ...). fetch_limit => 0 takes the limit away.",
            ),
            Self::NoAuthority {
                tag,
                waited_ms,
                cause,
            } => report(
                "IG030",
                format!("this server has no authority to grant ids of segment tag \"{tag}\""),
                format!("{cause} Waited {waited_ms} ms."),
                "idgen.authority is leased: view idgen.health and \"idgenctl status\" say who holds the lease of this space.",
            ),
            other => other.tag_change_report(),
        }
    }

    fn tag_change_report(self) -> Report {
        match self {
            Self::TagExists { tag } => report(
                "IG016",
                format!("segment tag \"{tag}\" already exists"),
                "",
                "Choose another tag, or use the one that is there.",
            ),
            Self::ChangedHere { tag } => report(
                "IG024",
                format!("segment tag \"{tag}\" was changed by this transaction"),
                "A change can be taken back until it is committed, an id that was drawn cannot.",
                "Commit first, then draw.",
            ),
            Self::RequestKeyTaken { n } => report(
                "IG025",
                "the request key was used for another number of ids",
                format!(
                    "The request with this key was for {n} ids, and is answered with the same ones whenever it is repeated."
                ),
                "Use another key for another request.",
            ),
            Self::NumberLine {
                message,
                detail,
                hint,
            } => report("IG026", message, detail, hint),
            Self::SequenceNotAdoptable {
                sequence,
                detail,
                hint,
            } => report(
                "IG027",
                format!("sequence {sequence} cannot be adopted"),
                detail,
                hint,
            ),
            Self::NotReleasable { tag, detail, hint } => report(
                "IG028",
                format!("segment tag \"{tag}\" cannot give a sequence back"),
                detail,
                hint,
            ),
            other => Self::unlisted(&other),
        }
    }
}
