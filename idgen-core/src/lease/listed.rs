//! Identities that a server is to have: exactly these, as many of them as are free.
//!
//! A shard stands for rows that are somewhere, so no other shard will do. Each must be free, and its next
//! window must not begin further ahead of the clock than [`FLOOR_LEAD_MS`] allows; until then the server
//! waits for it, with what it has got, and says for whom. So a shard that was given back clean, with its exact high water, is taken
//! at once, and one whose holder vanished after the TTL and the rest of its window.
//!
//! What the daemon holds itself when it asks is dead: shared memory was made anew, or an installation was
//! refused. It need not wait for itself to expire, only for the window.

use super::ledger::{PlannedGrant, Snapshot};
use super::pool::{Candidate, Memory, PlanError, PlanFor, Wanted};
use super::timing::Timing;
use super::token::{Identity, Token};
use super::window::FLOOR_LEAD_MS;
use crate::clock::UnixMs;
use core::fmt;

/// An identity that cannot be taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFree {
    /// Which.
    pub identity: Identity,
    /// Why.
    pub why: Occupied,
}

/// Why an identity cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Somebody else holds it.
    Held {
        /// The name of that daemon.
        by: String,
    },
    /// Nobody does, but it was granted up to a time that has not come yet.
    Cooling {
        /// When it can be taken.
        until: UnixMs,
    },
}

impl fmt::Display for NotFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Occupied::Held { by } => write!(f, "{} is held by {by}", self.identity),
            Occupied::Cooling { until } => {
                write!(f, "{} is cooling until Unix ms {}", self.identity, until.0)
            }
        }
    }
}

/// So many are named; a list of thousands helps nobody.
const NAMED_MAX: usize = 8;

/// For people.
pub(super) fn describe(taken: &[NotFree], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{} of this server's shards cannot be leased: ", taken.len())?;
    for (n, not_free) in taken.iter().take(NAMED_MAX).enumerate() {
        if n > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{not_free}")?;
    }
    match taken.len().checked_sub(NAMED_MAX) {
        Some(more @ 1..) => write!(f, " and {more} more"),
        _ => Ok(()),
    }
}

/// Plans a grant of those that are free. An error: none is.
pub(super) fn plan(
    snapshot: &Snapshot,
    memory: &Memory,
    timing: &Timing,
    asked: PlanFor<'_>,
    identities: &[Identity],
) -> Result<Vec<PlannedGrant>, PlanError> {
    let (grants, taken) = divide(snapshot, memory, timing, asked, identities);
    if grants.is_empty() {
        Err(PlanError::NotFree(taken))
    } else {
        Ok(grants)
    }
}

/// Which of the listed identities a plan has to leave out, and why.
#[must_use]
pub fn not_free(snapshot: &Snapshot, memory: &Memory, timing: &Timing, asked: PlanFor<'_>) -> Vec<NotFree> {
    match asked.wanted {
        Wanted::Any(_) => Vec::new(),
        Wanted::Listed(identities) => divide(snapshot, memory, timing, asked, identities).1,
    }
}

fn divide(
    snapshot: &Snapshot,
    memory: &Memory,
    timing: &Timing,
    asked: PlanFor<'_>,
    identities: &[Identity],
) -> (Vec<PlannedGrant>, Vec<NotFree>) {
    let mut taken = Vec::new();
    let mut grants = Vec::with_capacity(identities.len());
    for identity in identities {
        let candidate = Candidate::new(snapshot, memory, *identity);
        match plan_one(&candidate, snapshot.cell.min_floor, timing, asked) {
            Ok(planned) => grants.push(planned),
            Err(why) => taken.push(NotFree {
                identity: *identity,
                why,
            }),
        }
    }
    (grants, taken)
}

fn plan_one(
    candidate: &Candidate<'_>,
    min_floor: UnixMs,
    timing: &Timing,
    asked: PlanFor<'_>,
) -> Result<PlannedGrant, Occupied> {
    let replaces = own_remains(candidate, asked)?;
    let window = candidate
        .window(min_floor, asked.wall, timing)
        .map_err(|ahead| Occupied::Cooling {
            until: ahead.floor.saturating_sub(FLOOR_LEAD_MS),
        })?;
    Ok(candidate.planned(window, replaces))
}

/// The token that this daemon still holds the identity under; `None`: it is free.
fn own_remains(candidate: &Candidate<'_>, asked: PlanFor<'_>) -> Result<Option<Token>, Occupied> {
    let holder = candidate.row.and_then(|row| row.holder.as_ref());
    match holder.filter(|holder| !holder.expired) {
        None => Ok(None),
        Some(holder) if holder.instance == asked.instance => Ok(Some(holder.token)),
        Some(holder) => Err(Occupied::Held {
            by: holder.name.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Cell, GrantPlan, Holder, Row};
    use super::super::pool::plan_grant;
    use super::super::timing::TimingSpec;
    use super::super::token::{BootId, Epoch, InstanceId, Revision};
    use super::*;
    use proptest::prelude::*;

    const WALL: u64 = 1_000_000;
    const ME: InstanceId = InstanceId(1);
    const OTHER: InstanceId = InstanceId(2);
    const TOKEN: Token = Token {
        epoch: Epoch(0),
        revision: Revision(5),
    };

    fn row(shard: u16, ceiling: u64, holder: Option<(InstanceId, bool)>) -> Row {
        Row {
            identity: Identity(shard),
            generation: 4,
            ceiling: UnixMs(ceiling),
            revision: Revision(8),
            holder: holder.map(|(instance, expired)| Holder {
                instance,
                name: format!("server-{}", instance.0),
                token: TOKEN,
                boot_id: BootId(9),
                expired,
            }),
        }
    }

    fn snapshot(rows: Vec<Row>) -> Snapshot {
        let cell = Cell {
            epoch: Epoch(1),
            ..Cell::example()
        };
        Snapshot::new(cell, Revision(0), rows)
    }

    /// The plan, and what it leaves out.
    fn divided(
        rows: Vec<Row>,
        memory: &Memory,
        shards: &[u16],
    ) -> (Result<GrantPlan, PlanError>, Vec<NotFree>) {
        let wanted = Wanted::Listed(shards.iter().copied().map(Identity).collect());
        let asked = PlanFor {
            instance: ME,
            boot_id: BootId(1),
            wall: UnixMs(WALL),
            wanted: &wanted,
            random: 7,
        };
        let timing = Timing::new(TimingSpec::of_ttl(10_000)).unwrap();
        let snapshot = snapshot(rows);
        let plan = plan_grant(&snapshot, memory, &timing, asked);
        (plan, not_free(&snapshot, memory, &timing, asked))
    }

    fn ask(rows: Vec<Row>, memory: &Memory, shards: &[u16]) -> Result<GrantPlan, PlanError> {
        divided(rows, memory, shards).0
    }

    #[test]
    fn exactly_the_listed_ones_are_planned_whatever_the_epoch() {
        let plan = ask(vec![row(9, 10, None)], &Memory::new(), &[0, 9, 8_191]).unwrap();
        let planned: Vec<_> = plan
            .grants
            .iter()
            .map(|planned| (planned.leased.identity.0, planned.generation, planned.seen))
            .collect();
        assert_eq!(
            planned,
            [(0, 1, None), (9, 5, Some(Revision(8))), (8_191, 1, None)]
        );
        assert_eq!(
            plan.grants[1].leased.window.floor,
            UnixMs(11),
            "above the old ceiling"
        );
    }

    #[test]
    fn one_that_somebody_holds_is_left_out_with_the_name_of_the_holder() {
        let rows = vec![
            row(3, 10, Some((OTHER, false))),
            row(4, 10, Some((OTHER, true))),
            row(5, WALL + 60_000, None),
        ];
        let (plan, taken) = divided(rows, &Memory::new(), &[2, 3, 4, 5]);
        let planned = plan.unwrap().grants;
        let planned: Vec<u16> = planned.iter().map(|planned| planned.leased.identity.0).collect();
        assert_eq!(planned, [2, 4], "nobody waits for a shard of somebody else");
        assert_eq!(
            PlanError::NotFree(taken).to_string(),
            "2 of this server's shards cannot be leased: 3 is held by server-2, 5 is cooling until Unix ms 1059001"
        );
    }

    #[test]
    fn a_long_list_is_cut_short() {
        let rows = (0..20)
            .map(|shard| row(shard, 10, Some((OTHER, false))))
            .collect();
        let shards: Vec<u16> = (0..20).collect();
        let text = ask(rows, &Memory::new(), &shards).unwrap_err().to_string();
        assert!(text.ends_with("7 is held by server-2 and 12 more"), "{text}");
    }

    #[test]
    fn a_window_may_begin_as_far_ahead_as_the_lead_and_not_one_ms_more() {
        let plan = ask(vec![row(1, WALL + FLOOR_LEAD_MS - 1, None)], &Memory::new(), &[1]).unwrap();
        assert_eq!(plan.grants[0].leased.window.floor, UnixMs(WALL + FLOOR_LEAD_MS));
        let error = ask(vec![row(1, WALL + FLOOR_LEAD_MS, None)], &Memory::new(), &[1]).unwrap_err();
        let until = UnixMs(WALL + 1);
        assert_eq!(
            error,
            PlanError::NotFree(vec![NotFree {
                identity: Identity(1),
                why: Occupied::Cooling { until }
            }])
        );
    }

    #[test]
    fn the_daemons_own_memory_counts_beside_the_store() {
        let mut memory = Memory::new();
        memory.note_ceiling(Identity(1), UnixMs(WALL + 9_000));
        assert!(
            ask(vec![row(1, 10, None)], &memory, &[1]).is_err(),
            "the store forgot a grant"
        );
    }

    #[test]
    fn what_the_daemon_itself_left_behind_is_replaced_once_it_has_cooled() {
        let mine = |ceiling| vec![row(1, ceiling, Some((ME, false)))];
        let plan = ask(mine(WALL - 1), &Memory::new(), &[1]).unwrap();
        assert_eq!(plan.grants[0].replaces, Some(TOKEN));
        assert!(ask(mine(WALL + 5_000), &Memory::new(), &[1]).is_err());
        let plan = ask(vec![row(1, 10, Some((ME, true)))], &Memory::new(), &[1]).unwrap();
        assert_eq!(
            plan.grants[0].replaces, None,
            "it has expired: there is nothing to replace"
        );
    }

    proptest! {
        #[test]
        fn a_plan_takes_all_that_is_free_and_nothing_of_others(
            rows in prop::collection::btree_map(0u16..40, (WALL - 5..WALL + 2_000, any::<Option<(bool, bool)>>()), 0..40),
            known in prop::collection::btree_map(0u16..40, WALL - 5..WALL + 2_000, 0..10),
            shards in prop::collection::btree_set(0u16..40, 1..40),
        ) {
            let holder = |(mine, expired)| (if mine { ME } else { OTHER }, expired);
            let rows: Vec<Row> =
                rows.iter().map(|(shard, (ceiling, held))| row(*shard, *ceiling, held.map(holder))).collect();
            let mut memory = Memory::new();
            for (shard, ceiling) in &known {
                memory.note_ceiling(Identity(*shard), UnixMs(*ceiling));
            }
            let shards: Vec<u16> = shards.into_iter().collect();
            let snapshot = snapshot(rows.clone());
            let (plan, taken) = divided(rows, &memory, &shards);
            match plan {
                Ok(plan) => {
                    let mut all: Vec<u16> = plan.grants.iter().map(|planned| planned.leased.identity.0).collect();
                    all.extend(taken.iter().map(|not_free| not_free.identity.0));
                    all.sort_unstable();
                    prop_assert_eq!(all, shards);
                    for planned in &plan.grants {
                        let (identity, floor) = (planned.leased.identity, planned.leased.window.floor);
                        prop_assert!(floor.0 <= WALL + FLOOR_LEAD_MS);
                        prop_assert!(memory.ceiling(identity).is_none_or(|ceiling| floor > ceiling));
                        if let Some(row) = snapshot.row(identity) {
                            prop_assert!(floor > row.ceiling);
                            let free = row.holder.as_ref().is_none_or(|holder| holder.expired || holder.instance == ME);
                            prop_assert!(free);
                        }
                    }
                }
                Err(PlanError::NotFree(all)) => prop_assert_eq!((all.len(), all), (shards.len(), taken)),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
