//! Everything that can happen next, one function for each kind of step.
//!
//! Windows, renewals, pool halves and what may be concluded from a read are the core's own rules. The store's guards
//! are written down here once more, in the words of `store_postgres.rs` and `store_etcd/`; the conformance suite of
//! the daemon tries those on real servers.

use idgen_core::lease::ledger::{Standing, settle_renewal};
use idgen_core::lease::{Anchor, Tenancy, Window};

use crate::histories;
use crate::scenario::{Broken, OldPrimary, Scenario};
use crate::unnoticed;
use crate::world::{
    BOOT, Held, Holder, IDENTITIES, Lease, NODES, Node, Renewal, Row, START, State, Store, Tick, Token, cell,
    first_tick, instance, last_tick, ms, revision,
};

/// What happened, for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    SetClock {
        node: usize,
        skew: i8,
    },
    Grant {
        node: usize,
        windows: [Option<(Tick, Tick)>; IDENTITIES],
    },
    Mint {
        node: usize,
        identity: u16,
        tick: Tick,
    },
    Renew {
        node: usize,
        ceilings: [Option<Tick>; IDENTITIES],
    },
    Commit {
        node: u8,
        done: bool,
    },
    CommitUnsynced {
        node: u8,
    },
    Lost,
    Answer {
        node: u8,
    },
    Settle {
        node: usize,
        mine: bool,
    },
    Release {
        node: usize,
    },
    Crash {
        node: usize,
    },
    Orphan,
    MintOrphan {
        identity: u16,
        tick: Tick,
    },
    OrphanEnds,
    Expire {
        store: usize,
        identity: u16,
    },
    Backup,
    Restore,
    Look {
        node: usize,
        seals: bool,
    },
    Grace,
    Advance {
        store: usize,
        epoch: u8,
        min_floor: Tick,
    },
    Replicate,
    Promote,
    Move {
        node: usize,
        store: u8,
    },
}

impl Step {
    /// The name of the kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Tick => "Tick",
            Self::SetClock { .. } => "SetClock",
            Self::Grant { .. } => "Grant",
            Self::Mint { .. } => "Mint",
            Self::Renew { .. } => "Renew",
            Self::Commit { .. } => "Commit",
            Self::CommitUnsynced { .. } => "CommitUnsynced",
            Self::Lost => "Lost",
            Self::Answer { .. } => "Answer",
            Self::Settle { .. } => "Settle",
            Self::Release { .. } => "Release",
            Self::Crash { .. } => "Crash",
            Self::Orphan => "Orphan",
            Self::MintOrphan { .. } => "MintOrphan",
            Self::OrphanEnds => "OrphanEnds",
            Self::Expire { .. } => "Expire",
            Self::Backup => "Backup",
            Self::Restore => "Restore",
            Self::Look { .. } => "Look",
            Self::Grace => "Grace",
            Self::Advance { .. } => "Advance",
            Self::Replicate => "Replicate",
            Self::Promote => "Promote",
            Self::Move { .. } => "Move",
        }
    }
}

/// A state, or the rule that was broken.
pub type Outcome = Result<State, &'static str>;
pub type Steps = Vec<(Step, Outcome)>;

pub fn steps(scenario: &Scenario, state: &State) -> Steps {
    let mut out = Steps::new();
    clocks(scenario, state, &mut out);
    for node in 0..NODES {
        grants(scenario, state, node, &mut out);
        let Some(lease) = state.nodes[node].lease else {
            continue;
        };
        mints(scenario, state, node, &lease, &mut out);
        renew(scenario, state, node, &lease, &mut out);
        settle(scenario, state, node, &lease, &mut out);
        release(scenario, state, node, &lease, &mut out);
        crash(scenario, state, node, &lease, &mut out);
    }
    orphans_mint(scenario, state, &mut out);
    renewal_on_its_way(scenario, state, &mut out);
    expiries(scenario, state, &mut out);
    histories::backups(scenario, state, &mut out);
    unnoticed::steps(scenario, state, &mut out);
    histories::advances(scenario, state, &mut out);
    histories::promotion(scenario, state, &mut out);
    out
}

/// Real time goes on; the wall clocks are set, within what is believed of them.
fn clocks(scenario: &Scenario, state: &State, out: &mut Steps) {
    if state.now < START + scenario.ticks * scenario.stride {
        let mut next = *state;
        next.now += scenario.stride;
        out.push((Step::Tick, Ok(next)));
    }
    for (node, bound) in [scenario.skew_of_first, scenario.skew].into_iter().enumerate() {
        for skew in (-bound..=bound).filter(|skew| *skew != state.nodes[node].skew) {
            let mut next = *state;
            next.nodes[node].skew = skew;
            out.push((Step::SetClock { node, skew }, Ok(next)));
        }
    }
}

/// Is there a store to ask? That of a dead primary is gone.
pub fn reachable(scenario: &Scenario, state: &State, store: usize) -> bool {
    !(state.promoted && store == 0 && scenario.promotion == Some(OldPrimary::Dead))
}

/// A synchronous primary whose standby has become another primary waits for ever.
fn can_commit(scenario: &Scenario, state: &State, store: usize) -> bool {
    reachable(scenario, state, store) && !(scenario.synchronous && state.promoted && store == 0)
}

/// Commits what `change` makes of the store; with synchronous replication the standby has it before the answer.
fn commit(scenario: &Scenario, state: &mut State, store: usize, change: impl FnOnce(&mut Store)) {
    change(&mut state.stores[store]);
    state.stores[store].revision += 1;
    if scenario.synchronous && !state.promoted {
        state.stores[1] = state.stores[0];
    }
}

/// A daemon without a lease takes what it wants, if all of it is free: the answer is installed at once, because an
/// answer that comes late, or never, is a crash right after the grant. Real daemons are pickier: they take workers
/// only when the old window lies behind the clock.
fn grants(scenario: &Scenario, state: &State, node: usize, out: &mut Steps) {
    let Node { store, lease, .. } = state.nodes[node];
    let store = usize::from(store);
    let from = &state.stores[store];
    if lease.is_some() || from.sealed || from.grants == scenario.grants || !can_commit(scenario, state, store)
    {
        return;
    }
    if scenario.unnoticed && !unnoticed::may_lease(scenario, state, node) {
        return;
    }
    let leasable = |index: &usize| {
        let number = scenario.identities[*index];
        scenario.breaks(Broken::OnePoolForAllEpochs) || from.leases(scenario.class, number)
    };
    let pool: Vec<usize> = (0..scenario.identities.len()).filter(leasable).collect();
    for chosen in pool.chunks_exact(scenario.wanted[node]) {
        let window = |index: &usize| granted(scenario, state, node, &from.rows[*index], from.min_floor);
        let windows: Option<Vec<Window>> = chosen.iter().map(window).collect();
        if let Some(windows) = windows {
            let mut held = [None; IDENTITIES];
            for (index, window) in chosen.iter().zip(windows) {
                let (floor, ceiling) = (first_tick(window.floor), last_tick(window.ceiling));
                let last = floor - 1;
                held[*index] = Some(Held { floor, ceiling, last });
            }
            out.push(install(scenario, state, node, held));
        }
    }
}

/// The window of a grant; `None` if somebody holds the row, or the floor would lie too far ahead.
fn granted(scenario: &Scenario, state: &State, node: usize, row: &Row, min_floor: Tick) -> Option<Window> {
    if !row.is_free() {
        return None;
    }
    let high_water = match scenario.broken {
        Some(Broken::NoCeiling) => None,
        Some(Broken::FloorOnCeiling) => row.ceiling.map(|tick| tick - 1),
        _ => row.ceiling,
    };
    let min_floor = match scenario.broken {
        Some(Broken::MinFloorIgnored) => 0,
        _ => min_floor,
    };
    let (wall, window) = (ms(state.wall(node)), ms(scenario.window).0);
    match Window::grant(high_water.map(ms), ms(min_floor), wall, window) {
        Ok(window) => Some(window),
        Err(ahead) if scenario.breaks(Broken::LeadUnlimited) => Some(Window {
            floor: ahead.floor,
            ceiling: ahead.floor.saturating_add(window),
        }),
        Err(_) => None,
    }
}

fn install(
    scenario: &Scenario,
    state: &State,
    node: usize,
    held: [Option<Held>; IDENTITIES],
) -> (Step, Outcome) {
    let mut next = *state;
    let store = usize::from(state.nodes[node].store);
    let from = state.stores[store];
    let revision = from.revision + 1;
    let token = Token {
        epoch: from.epoch,
        revision,
    };
    let holder = Some(Holder {
        node: node as u8,
        token,
        expired: false,
    });
    commit(scenario, &mut next, store, |store| {
        store.grants += 1;
        for (row, held) in store.rows.iter_mut().zip(held) {
            if let Some(held) = held {
                let ceiling = Some(held.ceiling);
                *row = Row {
                    ceiling,
                    revision,
                    holder,
                };
            }
        }
    });
    let lease = Lease {
        token,
        nonce: from.nonce,
        guard: revision,
        held,
    };
    next.nodes[node].lease = Some(lease);
    unnoticed::remember(scenario, &mut next, node, &lease, true);
    let windows = held.map(|held| held.map(|held| (held.floor, held.ceiling)));
    (Step::Grant { node, windows }, Ok(next))
}

/// The tick that would be minted next, if there is one.
fn next_tick(scenario: &Scenario, held: Held, wall: Tick) -> Option<Tick> {
    let above = if scenario.breaks(Broken::RewindReissues) {
        held.floor
    } else {
        held.last + 1
    };
    let tick = above.max(held.floor).max(wall);
    (tick <= held.ceiling).then_some(tick)
}

/// Marks the tick as minted.
fn mint(state: &mut State, index: usize, tick: Tick) -> Result<(), &'static str> {
    let bit = 1 << tick;
    if state.minted[index] & bit != 0 {
        return Err("one id twice");
    }
    state.minted[index] |= bit;
    Ok(())
}

fn mints(scenario: &Scenario, state: &State, node: usize, lease: &Lease, out: &mut Steps) {
    for (index, held) in lease.identities() {
        let Some(tick) = next_tick(scenario, held, state.wall(node)) else {
            continue;
        };
        let mut next = *state;
        let outcome = mint(&mut next, index, tick);
        next.nodes[node].lease = Some(minted(*lease, index, tick));
        let identity = scenario.identities[index];
        out.push((Step::Mint { node, identity, tick }, outcome.map(|()| next)));
    }
}

fn minted(mut lease: Lease, index: usize, tick: Tick) -> Lease {
    lease.held[index] = lease.held[index].map(|held| Held { last: tick, ..held });
    lease
}

/// Sends a renewal, if it raises anything: what it does to the TTL is nothing here, since a lease may end at any
/// moment.
fn renew(scenario: &Scenario, state: &State, node: usize, lease: &Lease, out: &mut Steps) {
    let store = state.nodes[node].store;
    if state.renewal.is_some() || !reachable(scenario, state, usize::from(store)) {
        return;
    }
    let (wall, window) = (ms(state.wall(node)), ms(scenario.window).0);
    let raised = |held: Held| Held {
        ceiling: last_tick(held.window().renewed(Some(wall), window).ceiling),
        ..held
    };
    let held = lease.held.map(|held| held.map(raised));
    if held == lease.held {
        return;
    }
    let mut next = *state;
    let ceilings = held.map(|held| held.map(|held| held.ceiling));
    next.renewal = Some(Renewal {
        node: node as u8,
        store,
        token: lease.token,
        nonce: lease.nonce,
        guard: lease.guard,
        ceilings,
        recent: scenario.unnoticed,
        committed: None,
    });
    if scenario.breaks(Broken::CeilingBeforeCommit) {
        next.nodes[node].lease = Some(Lease { held, ..*lease });
    }
    out.push((Step::Renew { node, ceilings }, Ok(next)));
}

/// The daemon reads the store, and goes by what the rows say: they show its lease, or it ends.
fn settle(scenario: &Scenario, state: &State, node: usize, lease: &Lease, out: &mut Steps) {
    let at = usize::from(state.nodes[node].store);
    let store = &state.stores[at];
    // A read locks the cell's row, so it is a commit too, and waits for the standby as any other.
    let replicated = scenario.synchronous && !scenario.breaks(Broken::ReadNotReplicated);
    if store.sealed || !reachable(scenario, state, at) || replicated && !can_commit(scenario, state, at) {
        return;
    }
    if scenario.unnoticed && unnoticed::departs(scenario, state, node) {
        return;
    }
    let seen = Anchor::of(&cell(lease.token.epoch, lease.nonce), revision(lease.guard));
    if seen.admits(&store.cell(), revision(store.revision)).is_err() {
        return;
    }
    let snapshot = store.snapshot(scenario.identities);
    let (token, guard) = (lease.token.core(), revision(lease.guard));
    let leased = lease.leased(scenario.identities).into_iter();
    let held: Vec<Tenancy> = leased.map(|leased| Tenancy::new(leased, token, guard)).collect();
    let standing = settle_renewal(&snapshot, instance(node as u8), BOOT, &held);
    let mut next = *state;
    if replicated && !state.promoted {
        next.stores[1] = next.stores[0];
    }
    let mine = match standing {
        Standing::Lost | Standing::Ordered => {
            next.nodes[node].lease = None;
            false
        }
        Standing::Mine { leased } => {
            let mut settled = *lease;
            settled.guard = u8::try_from(leased[0].guard.0).unwrap();
            let held = settled.held.iter_mut().flatten();
            for (held, leased) in held.zip(leased) {
                held.ceiling = last_tick(leased.window.ceiling);
            }
            next.nodes[node].lease = Some(settled);
            true
        }
    };
    out.push((Step::Settle { node, mine }, Ok(next)));
}

/// Minting ends, and every row that still shows the lease gets the exact high water.
fn release(scenario: &Scenario, state: &State, node: usize, lease: &Lease, out: &mut Steps) {
    let store = usize::from(state.nodes[node].store);
    if state.stores[store].sealed || !can_commit(scenario, state, store) {
        return;
    }
    let mut next = *state;
    give_back(scenario, &mut next, node, lease);
    if !scenario.breaks(Broken::ReleaseBeforeFence) {
        next.nodes[node].lease = None;
    }
    out.push((Step::Release { node }, Ok(next)));
}

fn give_back(scenario: &Scenario, state: &mut State, node: usize, lease: &Lease) {
    let store = usize::from(state.nodes[node].store);
    commit(scenario, state, store, |store| {
        let revision = store.revision + 1;
        for (index, held) in lease.identities() {
            let row = &mut store.rows[index];
            if row.is_held_by(node as u8, lease.token) && row.ceiling >= Some(held.last) {
                let ceiling = Some(held.last);
                *row = Row {
                    ceiling,
                    revision,
                    holder: None,
                };
            }
        }
    });
}

/// Shared memory is gone. The backends of the first server may live on, as when only its postmaster was killed.
fn crash(scenario: &Scenario, state: &State, node: usize, lease: &Lease, out: &mut Steps) {
    let mut next = *state;
    next.nodes[node].lease = None;
    out.push((Step::Crash { node }, Ok(next)));
    if !scenario.orphans || node != 0 || state.orphan.is_some() {
        return;
    }
    next.orphan = Some(*lease);
    if scenario.breaks(Broken::LeaseIntoNewMemory) {
        let fresh = |held: Held| Held {
            last: held.floor - 1,
            ..held
        };
        let held = lease.held.map(|held| held.map(fresh));
        next.nodes[node].lease = Some(Lease { held, ..*lease });
    }
    if scenario.breaks(Broken::ReleaseWithoutFence) && can_commit(scenario, state, 0) {
        give_back(scenario, &mut next, node, lease);
    }
    out.push((Step::Orphan, Ok(next)));
}

fn orphans_mint(scenario: &Scenario, state: &State, out: &mut Steps) {
    let Some(orphan) = state.orphan else { return };
    for (index, held) in orphan.identities() {
        let Some(tick) = next_tick(scenario, held, state.wall(0)) else {
            continue;
        };
        let mut next = *state;
        let outcome = mint(&mut next, index, tick);
        next.orphan = Some(minted(orphan, index, tick));
        let identity = scenario.identities[index];
        out.push((Step::MintOrphan { identity, tick }, outcome.map(|()| next)));
    }
    let mut next = *state;
    next.orphan = None;
    out.push((Step::OrphanEnds, Ok(next)));
}

fn renewal_on_its_way(scenario: &Scenario, state: &State, out: &mut Steps) {
    let Some(renewal) = state.renewal else { return };
    let mut lost = *state;
    lost.renewal = None;
    out.push((Step::Lost, Ok(lost)));
    match renewal.committed {
        None => renewal_reaches_store(scenario, state, &renewal, out),
        Some(revision) => out.push(answered(scenario, state, &renewal, revision)),
    }
}

/// Which rows a renewal may change.
fn renewable(scenario: &Scenario, store: &Store, renewal: &Renewal) -> [bool; IDENTITIES] {
    let same_epoch = (store.epoch, store.nonce) == (renewal.token.epoch, renewal.nonce);
    let cell = (!store.sealed || scenario.breaks(Broken::RenewWhileSealed))
        && (same_epoch || scenario.breaks(Broken::RenewSkipsEpoch));
    let mut renewable = [false; IDENTITIES];
    for (index, row) in store.rows.iter().enumerate() {
        let guarded = row.is_held_by(renewal.node, renewal.token) && row.revision == renewal.guard;
        let unguarded = scenario.breaks(Broken::RenewUnguarded) && row.holder.is_some();
        renewable[index] = cell && renewal.ceilings[index].is_some() && (guarded || unguarded);
    }
    renewable
}

fn renewal_reaches_store(scenario: &Scenario, state: &State, renewal: &Renewal, out: &mut Steps) {
    let at = usize::from(renewal.store);
    let store = &state.stores[at];
    let rows = renewable(scenario, store, renewal);
    let asked = renewal.ceilings.map(|ceiling| ceiling.is_some());
    let done = rows == asked || scenario.breaks(Broken::RenewPartly) && rows.contains(&true);
    let change = |store: &mut Store| {
        let revision = store.revision + 1;
        for index in (0..IDENTITIES).filter(|index| rows[*index]) {
            let row = &mut store.rows[index];
            row.revision = revision;
            row.ceiling = renewal.ceilings[index];
            row.holder = row.holder.map(|holder| Holder {
                expired: false,
                ..holder
            });
        }
    };
    let committed = Some(Renewal {
        committed: Some(store.revision + 1),
        ..*renewal
    });
    let node = renewal.node;
    if can_commit(scenario, state, at) {
        let mut next = *state;
        next.renewal = committed.filter(|_| done);
        if done {
            commit(scenario, &mut next, at, change);
        }
        out.push((Step::Commit { node, done }, Ok(next)));
    }
    // The wait for the standby is cancelled: the primary has it, the standby does not, and nobody can tell.
    if scenario.synchronous && at == 0 && done {
        let mut next = *state;
        change(&mut next.stores[0]);
        next.stores[0].revision += 1;
        next.renewal = committed.filter(|_| scenario.breaks(Broken::CancelledWaitIsDone));
        out.push((Step::CommitUnsynced { node }, Ok(next)));
    }
}

/// Ceilings are published; an answer for another token is dropped.
fn answered(scenario: &Scenario, state: &State, renewal: &Renewal, revision: u8) -> (Step, Outcome) {
    let mut next = *state;
    next.renewal = None;
    let lease = &mut next.nodes[usize::from(renewal.node)].lease;
    if let Some(lease) = lease
        .as_mut()
        .filter(|lease| (lease.token, lease.nonce) == (renewal.token, renewal.nonce))
    {
        lease.guard = revision;
        for (held, ceiling) in lease.held.iter_mut().zip(renewal.ceilings) {
            if let (Some(held), Some(ceiling)) = (held, ceiling) {
                held.ceiling = held.ceiling.max(ceiling);
            }
        }
    }
    let node = renewal.node;
    if let Some(lease) = next.nodes[usize::from(node)]
        .lease
        .filter(|lease| lease.guard == revision)
    {
        unnoticed::remember(scenario, &mut next, usize::from(node), &lease, renewal.recent);
    }
    (Step::Answer { node }, Ok(next))
}

/// At any moment: whatever a store believes of clocks and TTLs is not what uniqueness rests on, but where restores go
/// unnoticed.
fn expiries(scenario: &Scenario, state: &State, out: &mut Steps) {
    let stores = if state.promoted { 2 } else { 1 };
    for store in (0..stores).filter(|store| reachable(scenario, state, *store)) {
        for (index, row) in state.stores[store].rows.iter().enumerate() {
            let Some(holder) = row.holder.filter(|holder| !holder.expired) else {
                continue;
            };
            if scenario.unnoticed && unnoticed::still_mints(state, holder) {
                continue;
            }
            let mut next = *state;
            next.stores[store].rows[index].holder = Some(Holder {
                expired: true,
                ..holder
            });
            if scenario.synchronous && !state.promoted {
                next.stores[1] = next.stores[0];
            }
            let identity = scenario.identities[index];
            out.push((Step::Expire { store, identity }, Ok(next)));
        }
    }
}
