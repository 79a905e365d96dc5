//! What may happen in a run of the model, how much of it, and which rule is broken on purpose.

use idgen_core::lease::Class;

use crate::world::{NODES, Tick};

/// A rule of the protocol that is not kept. Each must lead to a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The next window begins at the clock, whatever was granted before.
    NoCeiling,
    /// It begins in the last tick of the old one instead of above it.
    FloorOnCeiling,
    /// A server is told of a ceiling before the store has it.
    CeilingBeforeCommit,
    /// The store is told of a release before minting has ended.
    ReleaseBeforeFence,
    /// The store renews an identity for somebody who does not hold it.
    RenewUnguarded,
    /// The rows of a lease are checked one by one, not all or nothing.
    RenewPartly,
    /// Ids go back with the wall clock.
    RewindReissues,
    /// A restored store goes on as if nothing had happened.
    RestoreNotSealed,
    /// A sealed store still renews.
    RenewWhileSealed,
    /// A renewal is not checked against the epoch.
    RenewSkipsEpoch,
    /// The first floor of a new epoch is the clock, without a margin.
    AdvanceWithoutMargin,
    /// The margin covers the window and the clocks, but not that a floor may lie ahead.
    LeadNotInMargin,
    /// Nobody looks at how far a floor lies ahead of the clock.
    LeadUnlimited,
    /// A grant takes no notice of the floor of its epoch.
    MinFloorIgnored,
    /// A new epoch is one above that of the store, whatever was seen before the restore.
    EpochFromStoreOnly,
    /// Epochs follow each other without a window between, so that a half comes back too early.
    AdvancesCloseTogether,
    /// Workers are leased from the whole pool in every epoch.
    OnePoolForAllEpochs,
    /// New shared memory goes on with the lease of the old one.
    LeaseIntoNewMemory,
    /// The daemon releases with the high water that it saw last, while orphans mint on.
    ReleaseWithoutFence,
    /// A promoted standby serves leases as if it were the primary, though it may lack commits.
    PromotedNotSealed,
    /// A commit whose wait for the standby was cancelled counts as done.
    CancelledWaitIsDone,
    /// What a read shows is believed before the standby has it.
    ReadNotReplicated,
    /// A lease is taken though nobody has had the time to say that the store was restored.
    NoGrace,
    /// An epoch begins though not everybody has had the time to tell which epochs there were.
    AdvanceUntold,
}

/// What becomes of a primary when its standby is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPrimary {
    Dead,
    /// It runs on, and its daemons use it: two stores with one history.
    Alive,
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub class: Class,
    /// The pool. All other identities are somebody else's for ever.
    pub identities: &'static [u16],
    /// How many each server wants. Two of a pool of two are the whole pool.
    pub wanted: [usize; NODES],
    /// Ticks that a ceiling lies beyond the clock.
    pub window: Tick,
    /// How often real time goes on, and by how many ticks.
    pub ticks: Tick,
    pub stride: Tick,
    /// How far the clock of the second server may be wrong, and that of the first.
    pub skew: i8,
    pub skew_of_first: i8,
    /// Grants in each epoch.
    pub grants: u8,
    pub restores: u8,
    /// Restores show the old identity: only who remembers more can tell. Daemons are alive and within reach, and no
    /// backup is younger than what is a moment ago.
    pub unnoticed: bool,
    /// Epoch advances.
    pub advances: u8,
    /// What the operator's clock is wrong by at the first advance, and at later ones: another host, perhaps.
    pub operator_clock: [i8; 2],
    pub promotion: Option<OldPrimary>,
    /// The promoted standby serves at once, in the same epoch. (Ours is sealed.)
    pub promoted_serves: bool,
    /// Commits wait for the standby.
    pub synchronous: bool,
    pub orphans: bool,
    pub broken: Option<Broken>,
}

impl Scenario {
    /// One shard, two servers, one of them with a wrong clock; leases end at any moment.
    pub const ONE_SHARD: Self = Self {
        class: Class::Shard,
        identities: &[0],
        wanted: [1, 1],
        window: 1,
        ticks: 2,
        stride: 1,
        skew: 1,
        skew_of_first: 0,
        grants: 2,
        restores: 0,
        unnoticed: false,
        advances: 0,
        operator_clock: [0; 2],
        promotion: None,
        promoted_serves: false,
        synchronous: false,
        orphans: false,
        broken: None,
    };

    /// Two workers of one half of the pool.
    pub const TWO_WORKERS: Self = Self {
        class: Class::Worker,
        identities: &[0, 1],
        ticks: 2,
        skew: 1,
        ..Self::ONE_SHARD
    };

    /// A worker of each half.
    pub const BOTH_HALVES: Self = Self {
        class: Class::Worker,
        identities: &[0, 512],
        ticks: 2,
        ..Self::ONE_SHARD
    };

    #[must_use]
    pub fn without(self, broken: Broken) -> Self {
        Self {
            broken: Some(broken),
            ..self
        }
    }

    pub fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Kinds of steps that must have happened, else the scenario is smaller than it says.
    pub fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![
            "Grant", "Mint", "Renew", "Commit", "Lost", "Answer", "Settle", "Release", "Crash", "Expire",
        ];
        kinds.extend((self.ticks > 0).then_some("Tick"));
        kinds.extend((self.skew > 0).then_some("SetClock"));
        if self.restores > 0 {
            kinds.extend(["Backup", "Restore"]);
        }
        if self.unnoticed {
            kinds.extend(["Look", "Grace"]);
        }
        if self.advances > 0 {
            kinds.push("Advance");
        }
        if self.promotion.is_some() {
            kinds.extend(["Promote", "Move"]);
            kinds.push(if self.synchronous {
                "CommitUnsynced"
            } else {
                "Replicate"
            });
        }
        if self.orphans {
            kinds.extend(["Orphan", "MintOrphan", "OrphanEnds"]);
        }
        kinds
    }
}
