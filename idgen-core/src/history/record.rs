//! What was recorded.

use crate::clock::{BootMs, UnixMs};
use crate::format::{CLASSIC, Format, SHARDED};
use crate::lease::{BootId, Class, Epoch, Identity, InstanceId, Revision, Token};
use core::ops::Range;

/// Microseconds of `CLOCK_BOOTTIME` of the one host that everything runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// The millisecond it lies in.
    #[must_use]
    pub fn boot_ms(self) -> BootMs {
        BootMs(self.0 / 1_000)
    }

    /// So much later.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000)))
    }

    /// Milliseconds since an earlier moment.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }
}

/// Ids `start`, `start + 1`, …: so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub start: u64,
    /// How many.
    pub len: u64,
}

/// One statement of one session, and when it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// One connection; ids rise within it.
    pub session: u32,
    /// Which server.
    pub server: u8,
    /// Its shared memory.
    pub boot_id: BootId,
    /// What it minted of.
    pub class: Class,
    /// Before it was sent.
    pub invoked: Moment,
    /// After the last of its answer, or its error.
    pub returned: Moment,
    /// It ended well. Ids that had arrived before an error were given out all the same.
    pub succeeded: bool,
    /// Its ids, in [`History::pieces`].
    pub pieces: Range<usize>,
}

/// A run of ids of one identity and one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first id.
    pub start: u64,
    /// How many.
    pub len: u32,
    /// Index of its statement.
    pub statement: u32,
}

impl Piece {
    /// The last id.
    #[must_use]
    pub fn last(self) -> u64 {
        self.start + u64::from(self.len.saturating_sub(1))
    }
}

/// Who holds an identity, as the store shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// The daemon's run.
    pub instance: InstanceId,
    /// Token of the grant.
    pub token: Token,
    /// The shared memory it was made for.
    pub boot_id: BootId,
    /// When it ends by the store's own clock, in Unix ms; `None`: the store does not say (etcd).
    pub expires_at: Option<UnixMs>,
}

/// One identity in the store after a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowState {
    /// Counts grants.
    pub generation: u64,
    /// Highest time granted, or exact high water.
    pub ceiling: UnixMs,
    /// The ceiling is the high water of a clean release.
    pub exact: bool,
    /// Counts changes without a gap, where the store does so (etcd's version of a key).
    pub version: Option<u64>,
    /// Nobody: `None`.
    pub holder: Option<HeldBy>,
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An identity looks like this from now on.
    Row(Class, Identity, RowState),
    /// The cell is in this epoch from now on.
    Epoch(Epoch),
    /// The store was replaced by an older state of itself: a restore, a promoted standby (the first commit of its
    /// branch). What identities look like in it follows in `Found`.
    Restored,
    /// Read, not committed: this is what an identity looks like, at the start of a record or after a restore.
    Found(Class, Identity, RowState),
    /// Read, not committed: what the commits before must add up to.
    Shown(Class, Identity, RowState),
}

/// One of the histories that a store goes on in: a standby that was promoted has another one than its old primary,
/// and while both live both commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Branch(pub u32);

/// One commit of the store, in the order of its branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Where it was committed.
    pub branch: Branch,
    /// The store's revision.
    pub revision: Revision,
    /// It was not there yet at this moment.
    pub after: Moment,
    /// It was there at this moment.
    pub seen: Moment,
    /// By the store's own clock, in Unix ms, where it has one.
    pub store_time: Option<UnixMs>,
    /// What it did.
    pub change: Change,
}

/// A daemon is about to publish a deadline; logged before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When it was logged.
    pub at: Moment,
    /// Class of the token.
    pub class: Class,
    /// Under which token.
    pub token: Token,
    /// On the host's boot clock.
    pub deadline: BootMs,
}

/// A server has taken a token; logged after it said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install {
    /// When it was logged.
    pub at: Moment,
    /// Into which shared memory.
    pub boot_id: BootId,
    /// Class of the identity.
    pub class: Class,
    /// The identity.
    pub identity: Identity,
    /// The token.
    pub token: Token,
    /// Lowest time it may mint.
    pub floor: UnixMs,
}

/// A server has closed a token; logged after it said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// When it was logged.
    pub at: Moment,
    /// In which shared memory.
    pub boot_id: BootId,
    /// Class of the identity.
    pub class: Class,
    /// The identity.
    pub identity: Identity,
    /// The token.
    pub token: Token,
    /// Nothing above this was minted under it.
    pub last: UnixMs,
}

/// Something was broken for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub name: String,
    /// From
    pub begun: Moment,
    /// to.
    pub ended: Moment,
    /// How long after it the machine itself was not there for anybody: it is allowed for.
    pub late_ms: u64,
}

/// Times that the daemons were configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Times {
    /// TTL of the workers' leases.
    pub ttl_ms: u64,
    /// Time between their renewals.
    pub period_ms: u64,
    /// TTL of the shards' leases.
    pub shard_ttl_ms: u64,
}

/// Everything that was recorded of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// How many servers took part.
    pub servers: u8,
    /// What leases were asked for.
    pub times: Times,
    /// Within a session in the order in which they were made.
    pub statements: Vec<Statement>,
    /// Ids of all statements.
    pub pieces: Vec<Piece>,
    /// The store's commits, those of each branch in its order.
    pub trail: Vec<Commit>,
    /// Deadlines, in the order of each daemon's log.
    pub deadlines: Vec<Deadline>,
    /// Installs, in the order of each daemon's log.
    pub installs: Vec<Install>,
    /// Fences.
    pub fences: Vec<Fence>,
    /// What was done to them.
    pub faults: Vec<Fault>,
}

/// The format that a class mints in such a history.
#[must_use]
pub fn format_of(class: Class) -> &'static Format {
    match class {
        Class::Worker => &CLASSIC,
        Class::Shard => &SHARDED,
    }
}

/// The millisecond and the identity that an id carries.
#[must_use]
pub fn fields(class: Class, id: u64) -> (UnixMs, Identity) {
    let format = format_of(class);
    let node = (id >> format.seq_bits) & ((1 << format.node_bits) - 1);
    let tick = id >> (format.seq_bits + format.node_bits);
    // A node has at most 13 bits.
    (format.epoch.saturating_add(tick), Identity(node as u16))
}

impl History {
    /// Adds a statement with its ids, in the order in which they were given out.
    pub fn add(&mut self, statement: Statement, runs: impl IntoIterator<Item = Run>) {
        let number = u32::try_from(self.statements.len()).unwrap_or(u32::MAX);
        let room = 1u64 << format_of(statement.class).seq_bits;
        let from = self.pieces.len();
        for Run { mut start, mut len } in runs {
            // The sequence of one identity ends where that of the next begins.
            while len > 0 {
                let here = len.min(room - start % room);
                self.pieces.push(Piece {
                    start,
                    len: here as u32,
                    statement: number,
                });
                start += here;
                len -= here;
            }
        }
        let pieces = from..self.pieces.len();
        self.statements.push(Statement { pieces, ..statement });
    }

    /// The statement of a piece.
    #[must_use]
    pub fn statement(&self, piece: Piece) -> &Statement {
        &self.statements[piece.statement as usize]
    }

    /// How many ids were given out.
    #[must_use]
    pub fn id_count(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.len)).sum()
    }
}
