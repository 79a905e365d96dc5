//! Why a refill brought nothing: what the worker leaves in shared memory for those who wait.

/// Outcome of the last refill of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    None,
    /// Another transaction holds the tag's row.
    RowLocked,
    /// The tag is not in the table (any more), or the space it was found in is gone.
    Gone,
    /// Nothing is left below its limit.
    Exhausted,
    /// The worker met an error; the server log has it.
    Error,
    /// No background worker could be started.
    NoWorker,
    /// Authority is leased, and no lease is open here.
    NoAuthority,
    /// Authority is leased, and everything up to the tag's ceiling is granted.
    NoCeiling,
    /// The same history in another place: a copy, until somebody adopts it.
    Copy,
    /// The safety burn would pass the limit of the tag.
    BurnTooLarge,
    /// A table of schema idgen is locked.
    TableLocked,
    /// The fetch limit of the tag is reached.
    RateLimited,
    /// The tag and its space are not cut in the same stripes.
    NotCut,
    /// Another history, and the daemon has not told yet what others know of the old one.
    Unwitnessed,
}

/// Who holds the lock that a refill has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its process; 0: none, or not known.
    pub pid: u32,
    /// Its transaction, if that is a prepared one; else 0.
    pub prepared_xid: u32,
}

impl Failure {
    const ALL: [Self; 14] = [
        Self::None,
        Self::RowLocked,
        Self::Gone,
        Self::Exhausted,
        Self::Error,
        Self::NoWorker,
        Self::NoAuthority,
        Self::NoCeiling,
        Self::Copy,
        Self::BurnTooLarge,
        Self::TableLocked,
        Self::RateLimited,
        Self::NotCut,
        Self::Unwitnessed,
    ];

    /// As a word in shared memory.
    pub fn code(self) -> u32 {
        Self::ALL.iter().position(|known| *known == self).unwrap_or(0) as u32
    }

    /// A word that nobody has written means that something is wrong.
    pub fn from_code(code: u32) -> Self {
        Self::ALL.get(code as usize).copied().unwrap_or(Self::Error)
    }

    /// What holds a tag's refill up, as `idgen.segments` calls it.
    pub fn name(self, holder: Holder) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::RowLocked if holder.prepared_xid != 0 => Some("prepared transaction"),
            Self::RowLocked => Some("row lock"),
            Self::TableLocked => Some("table lock"),
            Self::RateLimited => Some("fetch limit"),
            Self::Gone => Some("dropped"),
            Self::Exhausted => Some("exhausted"),
            Self::Error => Some("error"),
            Self::NoWorker => Some("no worker"),
            Self::NoAuthority => Some("no lease"),
            Self::NoCeiling => Some("ceiling"),
            Self::Copy => Some("copy"),
            Self::BurnTooLarge => Some("safety burn"),
            Self::NotCut => Some("not cut"),
            Self::Unwitnessed => Some("witness"),
        }
    }
}
