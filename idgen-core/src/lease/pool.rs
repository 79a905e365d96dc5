//! Which identities to ask for: a choice from the pool of workers. (Shards are [`super::listed`].)
//!
//! The pool is cut in two halves by the parity of the epoch, so holders of an old epoch that are still
//! running can never meet those of the new one. Within the half only *cooled* identities are taken:
//! nobody holds them, and all that was ever granted of them lies behind the wall clock. So a new window
//! begins at the clock, and a lost answer, a crashed server or an orphaned backend costs a wait of
//! nobody but the identity itself.
//!
//! Those that have cooled longer come first, by powers of two, and are shuffled among equals: an order by
//! the millisecond would send daemons that start together to the same identities, again and again.

use super::class::Class;
use super::ledger::{GrantPlan, PlannedGrant, Row, Snapshot};
use super::listed::{self, NotFree};
use super::occupancy::{Availability, Exhausted, Occupancy};
use super::timing::Timing;
use super::token::{BootId, Epoch, Identity, InstanceId, Mark, Token};
use super::window::{FloorAhead, Leased, Window};
use crate::clock::UnixMs;
use crate::mix::mix;
use core::cmp::Reverse;
use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

/// The half of the pool that may be leased in this epoch.
#[must_use]
pub fn half(epoch: Epoch) -> Range<u16> {
    const MIDDLE: u16 = Class::Worker.size() / 2;
    if epoch.0.is_multiple_of(2) {
        0..MIDDLE
    } else {
        MIDDLE..Class::Worker.size()
    }
}

/// What this daemon remembers of identities it has had, whatever the store says: a store that lost its
/// last commits would otherwise hand out the same window again.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    known: BTreeMap<Identity, Remembered>,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    ceiling: UnixMs,
    lost: bool,
}

impl Memory {
    /// Remembers nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A window up to `ceiling` was granted, or may have been. Never lowers what is remembered.
    pub fn note_ceiling(&mut self, identity: Identity, ceiling: UnixMs) {
        let entry = self
            .known
            .entry(identity)
            .or_insert(Remembered { ceiling, lost: false });
        entry.ceiling = entry.ceiling.max(ceiling);
    }

    /// It went without a clean release: others are preferred even when it has cooled.
    pub fn note_lost(&mut self, identity: Identity) {
        if let Some(entry) = self.known.get_mut(&identity) {
            entry.lost = true;
        }
    }

    /// It was released with its exact high water, so it can be taken again at once.
    pub fn note_released(&mut self, mark: Mark) {
        self.known.insert(
            mark.claim.identity,
            Remembered {
                ceiling: mark.last,
                lost: false,
            },
        );
    }

    /// Highest timestamp that it was or may have been granted.
    pub(super) fn ceiling(&self, identity: Identity) -> Option<UnixMs> {
        self.known.get(&identity).map(|entry| entry.ceiling)
    }

    fn is_lost(&self, identity: Identity) -> bool {
        self.known.get(&identity).is_some_and(|entry| entry.lost)
    }
}

/// Why no grant can be asked for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Too few workers of the half are free and cooled.
    Exhausted(Exhausted),
    /// The cell forbids windows that begin now.
    FloorAhead(FloorAhead),
    /// None of the listed identities can be taken.
    NotFree(Vec<NotFree>),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::FloorAhead(error) => error.fmt(f),
            Self::NotFree(taken) => listed::describe(taken, f),
        }
    }
}

impl core::error::Error for PlanError {}

impl From<FloorAhead> for PlanError {
    fn from(error: FloorAhead) -> Self {
        Self::FloorAhead(error)
    }
}

/// What a server wants to mint from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// As many of the pool.
    Any(usize),
    /// Exactly these, in rising order, as soon as each is free.
    Listed(Vec<Identity>),
}

impl Wanted {
    /// Those that are named.
    #[must_use]
    pub fn listed(&self) -> &[Identity] {
        match self {
            Self::Any(_) => &[],
            Self::Listed(identities) => identities,
        }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Any(count) => *count,
            Self::Listed(identities) => identities.len(),
        }
    }
}

/// For whom a plan is made, and what it may count on.
#[derive(Clone, Copy, Debug)]
pub struct PlanFor<'a> {
    /// The daemon that asks. Of what is wanted it holds nothing that anybody mints from.
    pub instance: InstanceId,
    /// The shared memory the identities are for.
    pub boot_id: BootId,
    /// The server's wall clock, found good.
    pub wall: UnixMs,
    /// What is wanted.
    pub wanted: &'a Wanted,
    /// Shuffles identities that are equally good, so that daemons starting together do not collide.
    pub random: u64,
}

/// Plans a grant of what is wanted, and its windows.
pub fn plan_grant(
    snapshot: &Snapshot,
    memory: &Memory,
    timing: &Timing,
    asked: PlanFor<'_>,
) -> Result<GrantPlan, PlanError> {
    let cell = &snapshot.cell;
    let grants = match asked.wanted {
        Wanted::Any(count) => pick(snapshot, memory, timing, asked, *count)?
            .into_iter()
            .map(|candidate| {
                Ok(candidate.planned(candidate.window(cell.min_floor, asked.wall, timing)?, None))
            })
            .collect::<Result<Vec<_>, FloorAhead>>()?,
        Wanted::Listed(identities) => listed::plan(snapshot, memory, timing, asked, identities)?,
    };
    Ok(GrantPlan {
        epoch: cell.epoch,
        epoch_nonce: cell.epoch_nonce,
        formats: cell.worker_format.clone(),
        boot_id: asked.boot_id,
        grants,
    })
}

/// An identity, and what is known of it.
pub(super) struct Candidate<'a> {
    pub(super) identity: Identity,
    pub(super) row: Option<&'a Row>,
    pub(super) high_water: Option<UnixMs>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, memory: &Memory, identity: Identity) -> Self {
        let row = snapshot.row(identity);
        let high_water = row.map(|row| row.ceiling).max(memory.ceiling(identity));
        Self {
            identity,
            row,
            high_water,
        }
    }

    /// The window it would get.
    pub(super) fn window(
        &self,
        min_floor: UnixMs,
        wall: UnixMs,
        timing: &Timing,
    ) -> Result<Window, FloorAhead> {
        Window::grant(self.high_water, min_floor, wall, timing.window_ms())
    }

    pub(super) fn planned(&self, window: Window, replaces: Option<Token>) -> PlannedGrant {
        PlannedGrant {
            leased: Leased {
                identity: self.identity,
                window,
            },
            generation: self.row.map_or(0, |row| row.generation) + 1,
            seen: self.row.map(|row| row.revision),
            replaces,
        }
    }
}

/// Cooled for 2^10 TTLs (a week by default) is as good as never used.
const RESTED_MAX: u32 = 10;

/// For how many TTLs an identity has cooled, as a power of two. Those of one power are equals: a crash-restart
/// of a whole site leaves none behind that is better than all others, and everybody's first choice.
fn rested(high_water: Option<UnixMs>, wall: UnixMs, ttl_ms: u64) -> u32 {
    let Some(high_water) = high_water else {
        return RESTED_MAX;
    };
    let ttls = wall.since(high_water) / ttl_ms.max(1);
    ttls.checked_ilog2().map_or(0, |power| power + 1).min(RESTED_MAX)
}

/// Chooses `count` identities: the longest cooled first, those just lost last.
fn pick<'a>(
    snapshot: &'a Snapshot,
    memory: &Memory,
    timing: &Timing,
    asked: PlanFor<'_>,
    count: usize,
) -> Result<Vec<Candidate<'a>>, PlanError> {
    let mut free = Vec::new();
    for identity in half(snapshot.cell.epoch).map(Identity) {
        let candidate = Candidate::new(snapshot, memory, identity);
        if Availability::of(&candidate, asked.wall) == Availability::Free {
            free.push(candidate);
        }
    }
    if free.len() < count {
        let occupancy = Occupancy::of(snapshot, memory, asked.wall);
        let exhausted = Exhausted::new(snapshot, memory, asked.wall, count, occupancy);
        return Err(PlanError::Exhausted(exhausted));
    }
    free.sort_by_key(|candidate| {
        let shuffled = mix(asked.random ^ u64::from(candidate.identity.0));
        let rested = rested(candidate.high_water, asked.wall, timing.ttl_ms());
        (memory.is_lost(candidate.identity), Reverse(rested), shuffled)
    });
    free.truncate(count);
    // In identity order, so that two transactions lock the rows in the same order.
    free.sort_by_key(|candidate| candidate.identity);
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Cell, Holder};
    use super::super::timing::TimingSpec;
    use super::super::token::{Claim, Revision};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const WALL: u64 = 1_000_000;

    fn timing() -> Timing {
        Timing::new(TimingSpec::of_ttl(10_000)).unwrap()
    }

    fn snapshot(epoch: u64, rows: Vec<Row>) -> Snapshot {
        let cell = Cell {
            epoch: Epoch(epoch),
            ..Cell::example()
        };
        Snapshot::new(cell, Revision(0), rows)
    }

    fn row(identity: u16, ceiling: u64, holder: Option<bool>) -> Row {
        let holder = holder.map(|expired| Holder {
            instance: InstanceId(9),
            name: "other".to_owned(),
            token: Token::default(),
            boot_id: BootId(9),
            expired,
        });
        let identity = Identity(identity);
        Row {
            identity,
            generation: 4,
            ceiling: UnixMs(ceiling),
            revision: Revision(8),
            holder,
        }
    }

    fn plan(snapshot: &Snapshot, memory: &Memory, count: usize, random: u64) -> Result<GrantPlan, PlanError> {
        let asked = PlanFor {
            instance: InstanceId(1),
            boot_id: BootId(1),
            wall: UnixMs(WALL),
            wanted: &Wanted::Any(count),
            random,
        };
        plan_grant(snapshot, memory, &timing(), asked)
    }

    fn workers(plan: &GrantPlan) -> Vec<u16> {
        plan.grants.iter().map(|grant| grant.leased.identity.0).collect()
    }

    /// The even half with every row used, so that the order of choice is fixed.
    fn used(ceiling: impl Fn(u16) -> u64) -> Vec<Row> {
        half(Epoch(0))
            .map(|identity| row(identity, ceiling(identity), None))
            .collect()
    }

    #[test]
    fn the_parity_of_the_epoch_names_the_half() {
        assert_eq!(
            (half(Epoch(0)), half(Epoch(1)), half(Epoch(2))),
            (0..512, 512..1_024, 0..512)
        );
        let chosen = plan(&snapshot(7, vec![]), &Memory::new(), 64, 3).unwrap();
        assert!(
            workers(&chosen)
                .iter()
                .all(|identity| (512..1_024).contains(identity))
        );
    }

    #[test]
    fn held_and_uncooled_identities_are_left_alone() {
        let mut rows = used(|_| WALL);
        rows[3] = row(3, WALL - 1, None);
        rows[4] = row(4, WALL - 1, Some(false));
        rows[5] = row(5, WALL - 1, Some(true));
        let snapshot = snapshot(0, rows);
        let chosen = plan(&snapshot, &Memory::new(), 2, 0).unwrap();
        assert_eq!(workers(&chosen), [3, 5], "an expired holder is no holder");
        let PlanError::Exhausted(exhausted) = plan(&snapshot, &Memory::new(), 3, 0).unwrap_err() else {
            panic!("another error");
        };
        let Occupancy { size, held, cooling } = exhausted.occupancy;
        assert_eq!((exhausted.wanted, size, held, cooling), (3, 512, 1, 509));
    }

    #[test]
    fn the_longest_cooled_come_first_by_powers_of_two_of_the_ttl() {
        // Half of a TTL, one, two and four of them; from 1,024 on all are like those that were never used.
        let ages = [5_000, 10_000, 20_000, 40_000];
        let rows = |oldest: usize| used(move |n| WALL - ages[usize::from(n) % 128 * oldest / 128]);
        for oldest in 1..=4 {
            for random in 0..20 {
                let chosen = plan(&snapshot(0, rows(oldest)), &Memory::new(), 8, random).unwrap();
                for planned in &chosen.grants {
                    let age = ages[usize::from(planned.leased.identity.0) % 128 * oldest / 128];
                    assert_eq!(age, ages[oldest - 1], "{planned:?}");
                }
            }
        }
        assert_eq!(rested(None, UnixMs(WALL), 10_000), RESTED_MAX);
        let wall = UnixMs(10_000 * (1 << 20));
        assert_eq!(rested(Some(UnixMs(0)), wall, 10_000), RESTED_MAX);
        let chosen = plan(&snapshot(0, rows(1)), &Memory::new(), 1, 3).unwrap();
        assert_eq!(
            (chosen.grants[0].generation, chosen.grants[0].seen),
            (5, Some(Revision(8)))
        );
        let chosen = plan(&snapshot(0, vec![]), &Memory::new(), 1, 3).unwrap();
        assert_eq!((chosen.grants[0].generation, chosen.grants[0].seen), (1, None));
    }

    /// All servers of a site come back at once: every identity was used a little while ago, each until another
    /// millisecond.
    #[test]
    fn a_site_that_comes_back_does_not_rush_to_the_same_identities() {
        let snapshot = snapshot(0, used(|n| WALL - 20_000 - 10 * u64::from(n)));
        let first = |random| workers(&plan(&snapshot, &Memory::new(), 1, random).unwrap())[0];
        let chosen: BTreeSet<u16> = (0..200).map(first).collect();
        // Of 512, 200 random ones are 166 different ones on average.
        assert!(chosen.len() > 140, "{} different ones", chosen.len());
    }

    #[test]
    fn the_daemons_own_memory_counts_beside_the_store() {
        let mut memory = Memory::new();
        memory.note_ceiling(Identity(0), UnixMs(WALL));
        let rows = used(|identity| if identity < 2 { 0 } else { WALL - 1 });
        let chosen = plan(&snapshot(0, rows.clone()), &memory, 1, 0).unwrap();
        assert_eq!(workers(&chosen), [1], "the store forgot a grant of worker 0");
        let claim = Claim {
            identity: Identity(0),
            token: Token::default(),
        };
        memory.note_released(Mark {
            claim,
            last: UnixMs(0),
        });
        let chosen = plan(&snapshot(0, rows), &memory, 2, 0).unwrap();
        assert_eq!(workers(&chosen), [0, 1], "a clean release makes it free at once");
    }

    #[test]
    fn an_identity_just_lost_comes_last() {
        let mut memory = Memory::new();
        memory.note_ceiling(Identity(0), UnixMs(0));
        memory.note_lost(Identity(0));
        let snapshot = snapshot(0, used(|identity| if identity == 0 { 0 } else { WALL - 1 }));
        for random in 0..20 {
            let chosen = plan(&snapshot, &memory, 511, random).unwrap();
            assert!(!workers(&chosen).contains(&0), "though it has cooled longest");
        }
        let chosen = plan(&snapshot, &memory, 512, 0).unwrap();
        assert!(
            workers(&chosen).contains(&0),
            "but cooled it is better than nothing"
        );
    }

    #[test]
    fn daemons_that_start_together_choose_differently() {
        let empty = snapshot(0, vec![]);
        let chosen = |random| workers(&plan(&empty, &Memory::new(), 2, random).unwrap());
        assert_ne!(chosen(1), chosen(2));
        assert_eq!(chosen(1), chosen(1));
    }

    #[test]
    fn a_cell_floor_far_ahead_is_waited_for() {
        let mut snapshot = snapshot(0, vec![]);
        snapshot.cell.min_floor = UnixMs(WALL + 5_000);
        let error = plan(&snapshot, &Memory::new(), 1, 0).unwrap_err();
        assert!(matches!(error, PlanError::FloorAhead(_)), "{error:?}");
    }

    proptest! {
        #[test]
        fn a_plan_takes_only_what_is_free_and_above_all_that_was_granted(
            rows in prop::collection::btree_map(0u16..1_024, (WALL - 5..WALL + 5, any::<Option<bool>>()), 0..600),
            known in prop::collection::btree_map(0u16..1_024, WALL - 5..WALL + 5, 0..100),
            epoch in 0u64..4, count in 1usize..=64, random: u64,
        ) {
            let rows = rows.iter().map(|(identity, (ceiling, holder))| row(*identity, *ceiling, *holder)).collect();
            let snapshot = snapshot(epoch, rows);
            let mut memory = Memory::new();
            for (identity, ceiling) in &known {
                memory.note_ceiling(Identity(*identity), UnixMs(*ceiling));
            }
            if let Ok(plan) = plan(&snapshot, &memory, count, random) {
                let ids = workers(&plan);
                prop_assert_eq!(ids.len(), count);
                prop_assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "distinct and in order");
                for planned in &plan.grants {
                    let identity = planned.leased.identity;
                    prop_assert!(half(Epoch(epoch)).contains(&identity.0));
                    let floor = planned.leased.window.floor;
                    prop_assert!(memory.ceiling(identity).is_none_or(|ceiling| floor > ceiling));
                    if let Some(row) = snapshot.row(identity) {
                        prop_assert!(row.holder.as_ref().is_none_or(|holder| holder.expired));
                        prop_assert!(floor > row.ceiling);
                    }
                }
            }
        }
    }
}
