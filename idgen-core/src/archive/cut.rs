//! When what is buffered becomes a commit. The cut is free: the chain makes each offset count once wherever it falls.

/// Why a commit was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The time of messages has passed a boundary.
    Time,
    /// No message came, and the boundary is past for a while.
    Idle,
    /// So much is buffered.
    Bytes,
    /// The archiver ends.
    Shutdown,
    /// Offsets are gone, and that is written down at once.
    Gap,
    /// Events that were missing come from the database.
    Backfill,
}

impl Cut {
    /// As commits have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Idle => "idle",
            Self::Bytes => "bytes",
            Self::Shutdown => "shutdown",
            Self::Gap => "gap",
            Self::Backfill => "backfill",
        }
    }
}

/// What is cut by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutRule {
    /// Boundaries lie this far apart, from 1970 on: the same for every writer, and for every time zone.
    pub every_ms: u64,
    /// So long after a boundary nothing more is waited for.
    pub grace_ms: u64,
    /// More is never buffered, but for one message.
    pub bytes_max: u64,
}

impl Default for CutRule {
    fn default() -> Self {
        Self {
            every_ms: 300_000,
            grace_ms: 30_000,
            bytes_max: 64 << 20,
        }
    }
}

/// What is buffered, as far as cuts go.
#[derive(Clone, Copy, Debug)]
pub struct Cutter {
    rule: CutRule,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Which stretch of time the first message is of.
    window: u64,
    bytes: u64,
    /// When the first one was buffered, by a clock that only goes forward.
    since_ms: u64,
}

impl Cutter {
    /// Nothing is buffered.
    #[must_use]
    pub const fn new(rule: CutRule) -> Self {
        Self { rule, open: None }
    }

    /// Bytes that are buffered.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.open.map_or(0, |open| open.bytes)
    }

    /// Must be cut before a message of this time is added? One that is late goes along.
    #[must_use]
    pub fn before(&self, broker_ms: u64) -> Option<Cut> {
        let open = self.open?;
        (broker_ms / self.rule.every_ms > open.window).then_some(Cut::Time)
    }

    /// A message of this time and size is buffered. Must be cut now?
    pub fn add(&mut self, broker_ms: u64, bytes: u64, steady_ms: u64) -> Option<Cut> {
        let window = broker_ms / self.rule.every_ms;
        let open = self.open.get_or_insert(Open {
            window,
            bytes: 0,
            since_ms: steady_ms,
        });
        open.bytes = open.bytes.saturating_add(bytes);
        (open.bytes >= self.rule.bytes_max).then_some(Cut::Bytes)
    }

    /// Nothing came. `wall_ms` may be wrong; then there is [`Self::overdue`].
    #[must_use]
    pub fn idle(&self, wall_ms: u64, steady_ms: u64) -> Option<Cut> {
        let open = self.open?;
        let past = (open.window + 1).saturating_mul(self.rule.every_ms);
        let is_past = wall_ms >= past.saturating_add(self.rule.grace_ms);
        is_past.then_some(Cut::Idle).or_else(|| self.overdue(steady_ms))
    }

    /// Whatever comes, and whatever time it is of: by the steady clock nothing waits longer than one boundary and the grace.
    /// While old messages are read their boundaries are all past, and it is not cut at each look for that.
    #[must_use]
    pub fn overdue(&self, steady_ms: u64) -> Option<Cut> {
        let waited = steady_ms.saturating_sub(self.open?.since_ms);
        (waited >= self.rule.every_ms + self.rule.grace_ms).then_some(Cut::Idle)
    }

    /// It was cut, or thrown away.
    pub fn clear(&mut self) {
        self.open = None;
    }
}
