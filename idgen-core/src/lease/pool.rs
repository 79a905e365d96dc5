//! Which identities to ask for.
//!
//! The pool is cut in two halves by the parity of the epoch, so holders of an old epoch that are still
//! running can never meet those of the new one. Within the half only *cooled* identities are taken:
//! nobody holds them, and all that was ever granted of them lies behind the wall clock. So a new window
//! begins at the clock, and a lost answer, a crashed server or an orphaned backend costs a wait of
//! nobody but the identity itself.

use super::ledger::{GrantPlan, PlannedGrant, Row, Snapshot};
use super::timing::Timing;
use super::token::{BootId, Epoch, Mark, WorkerId};
use super::window::{FloorAhead, Leased, Window};
use crate::clock::UnixMs;
use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;

/// Worker identities of a cell: ids carry 10 bits of them.
pub const POOL_SIZE: u16 = 1_024;

/// The half of the pool that may be leased in this epoch.
#[must_use]
pub fn half(epoch: Epoch) -> Range<u16> {
    const MIDDLE: u16 = POOL_SIZE / 2;
    if epoch.0.is_multiple_of(2) {
        0..MIDDLE
    } else {
        MIDDLE..POOL_SIZE
    }
}

/// What this daemon remembers of identities it has had, whatever the store says: a store that lost its
/// last commits would otherwise hand out the same window again.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    known: BTreeMap<WorkerId, Remembered>,
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
    pub fn note_ceiling(&mut self, worker: WorkerId, ceiling: UnixMs) {
        let entry = self
            .known
            .entry(worker)
            .or_insert(Remembered { ceiling, lost: false });
        entry.ceiling = entry.ceiling.max(ceiling);
    }

    /// It went without a clean release: others are preferred even when it has cooled.
    pub fn note_lost(&mut self, worker: WorkerId) {
        if let Some(entry) = self.known.get_mut(&worker) {
            entry.lost = true;
        }
    }

    /// It was released with its exact high water, so it can be taken again at once.
    pub fn note_released(&mut self, mark: Mark) {
        self.known.insert(
            mark.claim.worker,
            Remembered {
                ceiling: mark.last,
                lost: false,
            },
        );
    }

    fn ceiling(&self, worker: WorkerId) -> Option<UnixMs> {
        self.known.get(&worker).map(|entry| entry.ceiling)
    }

    fn is_lost(&self, worker: WorkerId) -> bool {
        self.known.get(&worker).is_some_and(|entry| entry.lost)
    }
}

/// Why no grant can be asked for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Too few identities of the half are free and cooled.
    Exhausted {
        /// Identities asked for.
        wanted: usize,
        /// Free and cooled.
        free: usize,
        /// Held by somebody.
        held: usize,
        /// Held by nobody, but granted up to a time that has not come yet.
        cooling: usize,
    },
    /// The cell forbids windows that begin now.
    FloorAhead(FloorAhead),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted {
                wanted,
                free,
                held,
                cooling,
            } => write!(
                f,
                "the worker pool is exhausted: {wanted} wanted, {free} free, {held} held, {cooling} cooling"
            ),
            Self::FloorAhead(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanError {}

impl From<FloorAhead> for PlanError {
    fn from(error: FloorAhead) -> Self {
        Self::FloorAhead(error)
    }
}

/// For whom a plan is made, and what it may count on.
#[derive(Clone, Copy, Debug)]
pub struct PlanFor {
    /// The shared memory the identities are for.
    pub boot_id: BootId,
    /// The server's wall clock, found good.
    pub wall: UnixMs,
    /// Identities wanted.
    pub count: usize,
    /// Shuffles identities that are equally good, so that daemons starting together do not collide.
    pub random: u64,
}

/// Chooses `count` identities and their windows: never used ones and the longest cooled first, those
/// just lost last.
pub fn plan_grant(
    snapshot: &Snapshot,
    memory: &Memory,
    timing: &Timing,
    wanted: PlanFor,
) -> Result<GrantPlan, PlanError> {
    let cell = &snapshot.cell;
    let grants = pick(snapshot, memory, wanted)?
        .into_iter()
        .map(|candidate| {
            let window = Window::grant(
                candidate.high_water,
                cell.min_floor,
                wanted.wall,
                timing.window_ms(),
            )?;
            Ok(PlannedGrant {
                leased: Leased {
                    worker: candidate.worker,
                    window,
                },
                generation: candidate.row.map_or(0, |row| row.generation) + 1,
                seen: candidate.row.map(|row| row.revision),
            })
        })
        .collect::<Result<Vec<_>, FloorAhead>>()?;
    Ok(GrantPlan {
        epoch: cell.epoch,
        epoch_nonce: cell.epoch_nonce,
        boot_id: wanted.boot_id,
        grants,
    })
}

struct Candidate<'a> {
    worker: WorkerId,
    row: Option<&'a Row>,
    high_water: Option<UnixMs>,
}

fn pick<'a>(
    snapshot: &'a Snapshot,
    memory: &Memory,
    wanted: PlanFor,
) -> Result<Vec<Candidate<'a>>, PlanError> {
    let rows: BTreeMap<WorkerId, &Row> = snapshot.rows.iter().map(|row| (row.worker, row)).collect();
    let (mut held, mut cooling) = (0, 0);
    let mut free = Vec::new();
    for worker in half(snapshot.cell.epoch).map(WorkerId) {
        let row = rows.get(&worker).copied();
        let high_water = row.map(|row| row.ceiling).max(memory.ceiling(worker));
        if row
            .and_then(|row| row.holder.as_ref())
            .is_some_and(|holder| !holder.expired)
        {
            held += 1;
        } else if high_water.is_some_and(|ms| ms >= wanted.wall) {
            cooling += 1;
        } else {
            free.push(Candidate {
                worker,
                row,
                high_water,
            });
        }
    }
    if free.len() < wanted.count {
        return Err(PlanError::Exhausted {
            wanted: wanted.count,
            free: free.len(),
            held,
            cooling,
        });
    }
    free.sort_by_key(|candidate| {
        let shuffled = mix(wanted.random ^ u64::from(candidate.worker.0));
        (memory.is_lost(candidate.worker), candidate.high_water, shuffled)
    });
    free.truncate(wanted.count);
    // In identity order, so that two transactions lock the rows in the same order.
    free.sort_by_key(|candidate| candidate.worker);
    Ok(free)
}

/// A finalizer of MurmurHash3: spreads neighbouring numbers.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Cell, Holder};
    use super::super::timing::TimingSpec;
    use super::super::token::{CellId, Claim, EpochNonce, InstanceId, Revision, Token};
    use super::*;
    use proptest::prelude::*;

    const WALL: u64 = 1_000_000;

    fn timing() -> Timing {
        Timing::new(TimingSpec {
            ttl_ms: 10_000,
            window_ms: None,
            period_ms: None,
            margin_ms: None,
        })
        .unwrap()
    }

    fn snapshot(epoch: u64, rows: Vec<Row>) -> Snapshot {
        let cell = Cell {
            cell_id: CellId(1),
            worker_format: "classic".to_owned(),
            epoch: Epoch(epoch),
            epoch_nonce: EpochNonce(1),
            min_floor: UnixMs(0),
        };
        Snapshot { cell, rows }
    }

    fn row(worker: u16, ceiling: u64, holder: Option<bool>) -> Row {
        let holder = holder.map(|expired| Holder {
            instance: InstanceId(9),
            name: "other".to_owned(),
            token: Token::default(),
            boot_id: BootId(9),
            expired,
        });
        let worker = WorkerId(worker);
        Row {
            worker,
            generation: 4,
            ceiling: UnixMs(ceiling),
            revision: Revision(8),
            holder,
        }
    }

    fn wanted(count: usize, random: u64) -> PlanFor {
        PlanFor {
            boot_id: BootId(1),
            wall: UnixMs(WALL),
            count,
            random,
        }
    }

    fn workers(plan: &GrantPlan) -> Vec<u16> {
        plan.grants.iter().map(|grant| grant.leased.worker.0).collect()
    }

    /// The even half with every row used, so that the order of choice is fixed.
    fn used(ceiling: impl Fn(u16) -> u64) -> Vec<Row> {
        half(Epoch(0))
            .map(|worker| row(worker, ceiling(worker), None))
            .collect()
    }

    #[test]
    fn the_parity_of_the_epoch_names_the_half() {
        assert_eq!(
            (half(Epoch(0)), half(Epoch(1)), half(Epoch(2))),
            (0..512, 512..1_024, 0..512)
        );
        let plan = plan_grant(&snapshot(7, vec![]), &Memory::new(), &timing(), wanted(64, 3)).unwrap();
        assert!(workers(&plan).iter().all(|worker| (512..1_024).contains(worker)));
    }

    #[test]
    fn held_and_uncooled_identities_are_left_alone() {
        let mut rows = used(|_| WALL);
        rows[3] = row(3, WALL - 1, None);
        rows[4] = row(4, WALL - 1, Some(false));
        rows[5] = row(5, WALL - 1, Some(true));
        let snapshot = snapshot(0, rows);
        let plan = plan_grant(&snapshot, &Memory::new(), &timing(), wanted(2, 0)).unwrap();
        assert_eq!(workers(&plan), [3, 5], "an expired holder is no holder");
        let error = plan_grant(&snapshot, &Memory::new(), &timing(), wanted(3, 0)).unwrap_err();
        assert_eq!(
            error,
            PlanError::Exhausted {
                wanted: 3,
                free: 2,
                held: 1,
                cooling: 509
            }
        );
    }

    #[test]
    fn the_longest_cooled_come_first_and_never_used_ones_before_them() {
        let mut rows = used(|worker| 1_000 + u64::from(worker));
        let plan = plan_grant(
            &snapshot(0, rows.clone()),
            &Memory::new(),
            &timing(),
            wanted(2, 77),
        )
        .unwrap();
        assert_eq!(workers(&plan), [0, 1]);
        assert_eq!(plan.grants[0].generation, 5);
        assert_eq!(plan.grants[0].seen, Some(Revision(8)));
        rows.remove(400);
        let plan = plan_grant(&snapshot(0, rows), &Memory::new(), &timing(), wanted(2, 77)).unwrap();
        assert_eq!(workers(&plan), [0, 400]);
        assert_eq!((plan.grants[1].generation, plan.grants[1].seen), (1, None));
    }

    #[test]
    fn the_daemons_own_memory_counts_beside_the_store() {
        let mut memory = Memory::new();
        memory.note_ceiling(WorkerId(0), UnixMs(WALL));
        let rows = used(u64::from);
        let plan = plan_grant(&snapshot(0, rows.clone()), &memory, &timing(), wanted(1, 0)).unwrap();
        assert_eq!(workers(&plan), [1], "the store forgot a grant of worker 0");
        let claim = Claim {
            worker: WorkerId(0),
            token: Token::default(),
        };
        memory.note_released(Mark {
            claim,
            last: UnixMs(0),
        });
        let plan = plan_grant(&snapshot(0, rows), &memory, &timing(), wanted(1, 0)).unwrap();
        assert_eq!(workers(&plan), [0], "a clean release makes it free at once");
    }

    #[test]
    fn an_identity_just_lost_comes_last() {
        let mut memory = Memory::new();
        memory.note_ceiling(WorkerId(0), UnixMs(0));
        memory.note_lost(WorkerId(0));
        let snapshot = snapshot(0, used(u64::from));
        let plan = plan_grant(&snapshot, &memory, &timing(), wanted(1, 0)).unwrap();
        assert_eq!(workers(&plan), [1]);
        let plan = plan_grant(&snapshot, &memory, &timing(), wanted(512, 0)).unwrap();
        assert!(
            workers(&plan).contains(&0),
            "but cooled it is better than nothing"
        );
    }

    #[test]
    fn daemons_that_start_together_choose_differently() {
        let empty = snapshot(0, vec![]);
        let chosen =
            |random| workers(&plan_grant(&empty, &Memory::new(), &timing(), wanted(2, random)).unwrap());
        assert_ne!(chosen(1), chosen(2));
        assert_eq!(chosen(1), chosen(1));
    }

    #[test]
    fn a_cell_floor_far_ahead_is_waited_for() {
        let mut snapshot = snapshot(0, vec![]);
        snapshot.cell.min_floor = UnixMs(WALL + 5_000);
        let error = plan_grant(&snapshot, &Memory::new(), &timing(), wanted(1, 0)).unwrap_err();
        assert!(matches!(error, PlanError::FloorAhead(_)), "{error:?}");
    }

    proptest! {
        #[test]
        fn a_plan_takes_only_what_is_free_and_above_all_that_was_granted(
            rows in prop::collection::btree_map(0u16..1_024, (WALL - 5..WALL + 5, any::<Option<bool>>()), 0..600),
            known in prop::collection::btree_map(0u16..1_024, WALL - 5..WALL + 5, 0..100),
            epoch in 0u64..4, count in 1usize..=64, random: u64,
        ) {
            let rows = rows.iter().map(|(worker, (ceiling, holder))| row(*worker, *ceiling, *holder)).collect();
            let snapshot = snapshot(epoch, rows);
            let mut memory = Memory::new();
            for (worker, ceiling) in &known {
                memory.note_ceiling(WorkerId(*worker), UnixMs(*ceiling));
            }
            if let Ok(plan) = plan_grant(&snapshot, &memory, &timing(), wanted(count, random)) {
                let ids = workers(&plan);
                prop_assert_eq!(ids.len(), count);
                prop_assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "distinct and in order");
                for planned in &plan.grants {
                    let worker = planned.leased.worker;
                    prop_assert!(half(Epoch(epoch)).contains(&worker.0));
                    let floor = planned.leased.window.floor;
                    prop_assert!(memory.ceiling(worker).is_none_or(|ceiling| floor > ceiling));
                    if let Some(row) = snapshot.row(worker) {
                        prop_assert!(row.holder.as_ref().is_none_or(|holder| holder.expired));
                        prop_assert!(floor > row.ceiling);
                    }
                }
            }
        }
    }
}
