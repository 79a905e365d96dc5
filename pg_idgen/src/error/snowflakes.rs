//! What concerns snowflakes: no lease, or none that can be minted from now.

use super::{Error, Report, START_DAEMON, report};

impl Error {
    pub(super) fn snowflake_report(self) -> Report {
        match self {
            Self::NoLease { waited_ms } => report(
                "IG001",
                "no snowflake lease on this server",
                format!("No worker identity is open in shared memory; waited {waited_ms} ms."),
                START_DAEMON,
            ),
            Self::Drained { why } => report(
                "IG050",
                "this server is drained",
                format!("{why}."),
                "Use another server until somebody resumes this one: idgenctl server resume SERVER.",
            ),
            Self::WindowUsedUp => report(
                "IG002",
                "the granted window of every snowflake lease is used up",
                "The wall clock is above the ceiling that the daemon has been granted.",
                "Check the clock of this server (chronyc tracking) and that idgend is renewing: idgenctl status.",
            ),
            Self::ClockBehind { behind_ms, limit_ms } => report(
                "IG003",
                "the wall clock went back too far",
                format!(
                    "It is {behind_ms} ms behind; {limit_ms} ms are allowed (idgen.clock_policy, idgen.max_clock_rewind_ms)."
                ),
                "Minting goes on by itself when the clock has caught up; find out who stepped it.",
            ),
            Self::DeadlinePassed { waited_ms } => report(
                "IG004",
                "the snowflake lease of this server has passed its deadline",
                format!("The daemon has not renewed in time; waited {waited_ms} ms."),
                START_DAEMON,
            ),
            Self::EndOfEpoch { format } => report(
                "IG010",
                format!("format \"{format}\" has reached the end of its epoch"),
                "Its timestamp bits are used up; ids are never wrapped.",
                "Switch the cell to another format (idgenctl format switch), or move the column to one.",
            ),
            Self::FormatStays => report(
                "IG019",
                "a registered format is never changed or removed",
                "Ids in it may be anywhere.",
                "Register another one and leave this one unused.",
            ),
            Self::FormatExists { name } => report(
                "IG023",
                format!("format \"{name}\" is registered already, with another layout"),
                "A format is registered once and never changed: ids of it may exist.",
                "Choose another name.",
            ),
            Self::MillisecondWait { waited_ms } => report(
                "IG015",
                "waited too long for the next millisecond",
                format!("For {waited_ms} ms no millisecond came that had room."),
                "Check the clock of this server; if it is right, its workers are used up: raise [workers] count.",
            ),
            other => other.shard_report(),
        }
    }

    fn shard_report(self) -> Report {
        match self {
            Self::ShardNotLeased { shard, waited_ms } => report(
                "IG014",
                format!("logical shard {shard} is not leased to this server"),
                format!("It is not open in shared memory; waited {waited_ms} ms."),
                "View idgen.slots shows the shards of this server; the daemon leases those of its configuration ([shards] ids).",
            ),
            Self::NoShardNamed => report(
                "22004",
                "no shard is named",
                "The argument is null and idgen.shard is not set.",
                "Name the shard, or set idgen.shard for the session, the role, the database or the function.",
            ),
            other => Self::unlisted(&other),
        }
    }
}
