//! Whether the archive has all of a day.

use super::digest::IdDigest;

/// What is known of one day and one source of events.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DayEvidence {
    /// The first thing that is wrong with the chain or a file.
    pub broken: Option<String>,
    /// What the files have, each event once.
    pub archived: IdDigest,
    /// What the table has.
    pub table: IdDigest,
    /// Events of the table that the archive has not; known where the digests differ.
    pub missing: u64,
    /// Events of the archive that the table has not.
    pub extra: u64,
}

/// What a day is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DayVerdict {
    /// Every file is as it was written, and the archive has exactly the events of the table.
    Verified,
    /// Something was changed or lost, or the archive has what the table has not.
    Mismatch(String),
    /// The archive has not everything yet.
    Incomplete(String),
}

impl DayVerdict {
    /// As `idgen.archive_day.state` has it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Mismatch(_) => "mismatch",
            Self::Incomplete(_) => "incomplete",
        }
    }

    /// Why it is not verified.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Verified => None,
            Self::Mismatch(why) | Self::Incomplete(why) => Some(why),
        }
    }
}

/// Judges a day. What is broken outweighs what is missing.
#[must_use]
pub fn judge(evidence: &DayEvidence) -> DayVerdict {
    if let Some(broken) = &evidence.broken {
        return DayVerdict::Mismatch(broken.clone());
    }
    if evidence.extra > 0 {
        return DayVerdict::Mismatch(format!(
            "{} events are in the archive and not in the table",
            evidence.extra
        ));
    }
    if evidence.archived == evidence.table {
        return DayVerdict::Verified;
    }
    if evidence.missing == 0 {
        return DayVerdict::Mismatch(format!(
            "the archive has {} events and the table {}, and their digests differ",
            evidence.archived.rows, evidence.table.rows
        ));
    }
    DayVerdict::Incomplete(format!(
        "{} of {} events are not in the archive",
        evidence.missing, evidence.table.rows
    ))
}
