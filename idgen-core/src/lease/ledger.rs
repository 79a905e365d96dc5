//! The lease store's rows as plain data, and what may be concluded from them.
//!
//! An answer that got lost is never guessed: the store is read again, and only what the rows say counts.
//! A row that names this daemon's instance id was written by this daemon, since the id is random and
//! new at every start; that is what makes the conclusions below sound.

use super::drain::Drain;
use super::order::Orders;
use super::token::{
    BootId, CellId, Claim, Epoch, EpochNonce, Identity, InstanceId, Revision, StoreIdentity, Token,
};
use super::window::{Leased, Tenancy, Window};
use crate::clock::{ClockReading, UnixMs};
use std::collections::BTreeMap;

/// The one row that names the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Snowflakes are unique within one cell and one format.
    pub cell_id: CellId,
    /// The plan of the formats that workers mint (see [`crate::format::plan`]): a text, compared by value, that
    /// only the server and whoever switches it need to understand.
    pub worker_format: String,
    /// Its parity names the half of the pool that may be leased.
    pub epoch: Epoch,
    /// Random name of the epoch.
    pub epoch_nonce: EpochNonce,
    /// When the epoch began, by the store's clock.
    pub epoch_since: UnixMs,
    /// The store that may serve the cell; who reads has compared it with the store itself.
    pub identity: StoreIdentity,
    /// No window of the class that asks begins below this.
    pub min_floor: UnixMs,
}

impl Cell {
    /// Is this the epoch that a token or plan belongs to?
    #[must_use]
    pub fn is_epoch(&self, epoch: Epoch, nonce: EpochNonce) -> bool {
        (self.epoch, self.epoch_nonce) == (epoch, nonce)
    }

    /// A new one.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            cell_id: CellId(1),
            worker_format: "classic".to_owned(),
            epoch: Epoch(0),
            epoch_nonce: EpochNonce(1),
            epoch_since: UnixMs(0),
            identity: StoreIdentity::new("test/1").unwrap(),
            min_floor: UnixMs(0),
        }
    }
}

/// Who holds an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The daemon's instance id.
    pub instance: InstanceId,
    /// Its name, for people.
    pub name: String,
    /// Fencing token of the grant.
    pub token: Token,
    /// The shared memory it was granted for.
    pub boot_id: BootId,
    /// By the store's clock. Only availability depends on it.
    pub expired: bool,
}

/// One identity that was ever leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The identity.
    pub identity: Identity,
    /// Counts its grants.
    pub generation: u64,
    /// Highest timestamp that was ever granted.
    pub ceiling: UnixMs,
    /// Store revision of the last change of this row.
    pub revision: Revision,
    /// `None`: nobody.
    pub holder: Option<Holder>,
}

/// The store as one class sees it, read at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The cell.
    pub cell: Cell,
    /// The store's revision.
    pub revision: Revision,
    /// All identities of one class that were ever leased, at most once each, in their order.
    rows: Vec<Row>,
    /// What operators have ordered of holders of the class.
    orders: Orders,
    /// What was said last of the server of whoever looks.
    drain: Option<Drain>,
}

impl Snapshot {
    /// The cell and the rows of one class, in any order.
    #[must_use]
    pub fn new(cell: Cell, revision: Revision, mut rows: Vec<Row>) -> Self {
        rows.sort_by_key(|row| row.identity);
        Self {
            cell,
            revision,
            rows,
            orders: Orders::new(),
            drain: None,
        }
    }

    /// With what operators have ordered.
    #[must_use]
    pub fn with_orders(self, orders: Orders) -> Self {
        Self { orders, ..self }
    }

    /// With what was said last of the server of whoever looks.
    #[must_use]
    pub fn with_drain(self, drain: Option<Drain>) -> Self {
        Self { drain, ..self }
    }

    /// Somebody has drained the server of whoever looks, and nobody has resumed it: it is to take nothing.
    #[must_use]
    pub fn drained(&self) -> Option<&Drain> {
        self.drain.as_ref().filter(|drain| drain.drained)
    }

    /// What operators have ordered.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The row of an identity; `None` when it was never leased.
    #[must_use]
    pub fn row(&self, identity: Identity) -> Option<&Row> {
        let found = self.rows.binary_search_by_key(&identity, |row| row.identity);
        found.ok().map(|index| &self.rows[index])
    }

    /// All rows, in the order of their identities.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// One identity to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedGrant {
    /// The identity and its window.
    pub leased: Leased,
    /// The generation this grant will be.
    pub generation: u64,
    /// Revision of the row this was planned on (`None`: there was none); any other refuses the grant.
    pub seen: Option<Revision>,
    /// The identity is held by this very daemon, under this token, and nobody mints from it any more:
    /// the grant takes its place. `None`: it must be free.
    pub replaces: Option<Token>,
}

/// What a grant asks for: all of it, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPlan {
    /// The epoch it was planned in; another one refuses the grant.
    pub epoch: Epoch,
    /// The epoch's name, compared as well.
    pub epoch_nonce: EpochNonce,
    /// The cell's plan of formats; another one refuses the grant, because its windows may reach beyond a switch
    /// that the daemon does not know of.
    pub formats: String,
    /// The shared memory it is for.
    pub boot_id: BootId,
    /// The identities.
    pub grants: Vec<PlannedGrant>,
}

/// A grant that was sent: what is needed to find out later whether it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What was asked for.
    pub plan: GrantPlan,
    /// The clock reading made before it was sent.
    pub reading: ClockReading,
}

/// A grant that the store has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The shared memory it was made for.
    pub boot_id: BootId,
    /// The fencing token, one for all identities of the grant.
    pub token: Token,
    /// Revision of the rows: guards the next renewal.
    pub guard: Revision,
    /// TTL that the store says it granted.
    pub ttl_ms: u64,
    /// The clock reading made before the request was sent.
    pub reading: ClockReading,
    /// The identities and their committed windows.
    pub leased: Vec<Leased>,
}

/// Was this attempt committed? `Some` only when every row of it shows exactly what it would have
/// written. `ttl_ms` is the TTL that was asked for (a store never grants less).
#[must_use]
pub fn settle_grant(
    snapshot: &Snapshot,
    attempt: &Attempt,
    instance: InstanceId,
    ttl_ms: u64,
) -> Option<Grant> {
    if !snapshot
        .cell
        .is_epoch(attempt.plan.epoch, attempt.plan.epoch_nonce)
    {
        return None;
    }
    let mut made: Option<(Token, Revision)> = None;
    for planned in &attempt.plan.grants {
        let row = snapshot.row(planned.leased.identity)?;
        let holder = row.holder.as_ref().filter(|holder| !holder.expired)?;
        let mine = holder.instance == instance
            && holder.boot_id == attempt.plan.boot_id
            && row.generation == planned.generation
            && row.ceiling == planned.leased.window.ceiling;
        let same_grant = made.is_none_or(|made| made == (holder.token, row.revision));
        if !mine || !same_grant {
            return None;
        }
        made = Some((holder.token, row.revision));
    }
    let (token, guard) = made?;
    Some(Grant {
        boot_id: attempt.plan.boot_id,
        token,
        guard,
        ttl_ms,
        reading: attempt.reading,
        leased: attempt.plan.grants.iter().map(|planned| planned.leased).collect(),
    })
}

/// What a fresh look at the store says about a lease that this daemon believes it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Every identity is held under its token. An earlier renewal whose answer was lost may have been
    /// committed: here are the guards and the windows as they are now. Says nothing about the deadline.
    Mine {
        /// As committed.
        leased: Vec<Tenancy>,
    },
    /// At least one identity is not.
    Lost,
    /// An operator has ordered that the lease ends.
    Ordered,
}

/// Looks a held lease up. One that has expired by the store's clock is still ours: whoever takes it changes the row.
/// (The store's clock may have been set; the deadline, by the holder's own, decides.) All identities of a lease are
/// renewed together, so rows that have changed one without the other cannot be the work of this daemon alone: that
/// counts as lost.
#[must_use]
pub fn settle_renewal(
    snapshot: &Snapshot,
    instance: InstanceId,
    boot_id: BootId,
    leased: &[Tenancy],
) -> Standing {
    if leased.iter().any(|held| held.token.epoch != snapshot.cell.epoch) {
        return Standing::Lost;
    }
    if snapshot.orders.against(leased).is_some() {
        return Standing::Ordered;
    }
    let mut committed = Vec::with_capacity(leased.len());
    for held in leased {
        let Some(row) = snapshot.row(held.identity) else {
            return Standing::Lost;
        };
        let mine = row.holder.as_ref().is_some_and(|holder| {
            holder.instance == instance && holder.token == held.token && holder.boot_id == boot_id
        });
        if !mine || row.ceiling < held.window.ceiling {
            return Standing::Lost;
        }
        let window = Window {
            floor: held.window.floor,
            ceiling: row.ceiling,
        };
        committed.push(Tenancy {
            window,
            guard: row.revision,
            ..*held
        });
    }
    if !committed.is_empty() && changed_together(leased, &committed) {
        Standing::Mine { leased: committed }
    } else {
        Standing::Lost
    }
}

/// Those that were left at one revision are renewed in one step: all of them have changed or none has, and what has
/// changed has done so at one revision.
fn changed_together(left: &[Tenancy], now: &[Tenancy]) -> bool {
    let mut renewed: Option<Revision> = None;
    let mut groups: BTreeMap<Revision, bool> = BTreeMap::new();
    left.iter().zip(now).all(|(left, now)| {
        let changed = now.guard != left.guard;
        let at_once = !changed || *renewed.get_or_insert(now.guard) == now.guard;
        at_once && *groups.entry(left.guard).or_insert(changed) == changed
    })
}

/// Does the store still show this claim, made for this shared memory? Only then may an exact high water
/// be written over its ceiling. Whose instance made it does not matter: a daemon that was restarted
/// releases what the one before it left behind.
#[must_use]
pub fn shows_claim(snapshot: &Snapshot, claim: Claim, boot_id: BootId) -> bool {
    snapshot
        .row(claim.identity)
        .and_then(|row| row.holder.as_ref())
        .is_some_and(|holder| holder.token == claim.token && holder.boot_id == boot_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::BootMs;

    /// What is wrong with a row, and the change that makes it so.
    type Case = (&'static str, fn(&mut Row));

    const ME: InstanceId = InstanceId(7);
    const BOOT: BootId = BootId(1);
    const TOKEN: Token = Token {
        epoch: Epoch(0),
        revision: Revision(5),
    };

    fn window(ceiling: u64) -> Window {
        Window {
            floor: UnixMs(100),
            ceiling: UnixMs(ceiling),
        }
    }

    fn leased(identity: u16) -> Leased {
        Leased {
            identity: Identity(identity),
            window: window(200),
        }
    }

    fn tenancy(identity: u16) -> Tenancy {
        Tenancy::new(leased(identity), TOKEN, Revision(5))
    }

    fn row(identity: u16) -> Row {
        let holder = Holder {
            instance: ME,
            name: "a".to_owned(),
            token: TOKEN,
            boot_id: BOOT,
            expired: false,
        };
        Row {
            identity: Identity(identity),
            generation: 3,
            ceiling: UnixMs(200),
            revision: Revision(5),
            holder: Some(holder),
        }
    }

    fn snapshot(rows: Vec<Row>) -> Snapshot {
        Snapshot::new(Cell::example(), Revision(9), rows)
    }

    fn attempt() -> Attempt {
        let grants = [1, 2]
            .map(|identity| PlannedGrant {
                leased: leased(identity),
                generation: 3,
                seen: None,
                replaces: None,
            })
            .to_vec();
        let plan = GrantPlan {
            epoch: Epoch(0),
            epoch_nonce: EpochNonce(1),
            formats: "classic".to_owned(),
            boot_id: BOOT,
            grants,
        };
        Attempt {
            plan,
            reading: ClockReading {
                wall: UnixMs(100),
                boot: BootMs(10),
            },
        }
    }

    #[test]
    fn a_lost_grant_is_found_with_the_reading_it_was_sent_after() {
        let grant = settle_grant(&snapshot(vec![row(1), row(2)]), &attempt(), ME, 9).unwrap();
        assert_eq!((grant.token, grant.guard, grant.ttl_ms), (TOKEN, Revision(5), 9));
        assert_eq!(grant.reading.boot, BootMs(10));
    }

    #[test]
    fn a_grant_that_differs_in_anything_is_not_mine() {
        let cases: [Case; 7] = [
            ("another generation", |row| row.generation = 4),
            ("another ceiling", |row| row.ceiling = UnixMs(201)),
            ("another revision than its sibling", |row| {
                row.revision = Revision(6)
            }),
            ("nobody", |row| row.holder = None),
            ("another instance", |row| holder(row).instance = InstanceId(8)),
            ("another boot id", |row| holder(row).boot_id = BootId(2)),
            ("expired", |row| holder(row).expired = true),
        ];
        for (what, change) in cases {
            let mut other = row(2);
            change(&mut other);
            assert_eq!(
                settle_grant(&snapshot(vec![row(1), other]), &attempt(), ME, 9),
                None,
                "{what}"
            );
        }
        assert_eq!(
            settle_grant(&snapshot(vec![row(1)]), &attempt(), ME, 9),
            None,
            "a row is missing"
        );
    }

    #[test]
    fn nothing_of_an_older_epoch_is_mine() {
        let mut snapshot = snapshot(vec![row(1), row(2)]);
        snapshot.cell.epoch = Epoch(1);
        assert_eq!(settle_grant(&snapshot, &attempt(), ME, 9), None);
        assert_eq!(settle_renewal(&snapshot, ME, BOOT, &[tenancy(1)]), Standing::Lost);
    }

    fn holder(row: &mut Row) -> &mut Holder {
        row.holder.as_mut().unwrap()
    }

    #[test]
    fn a_lost_renewal_shows_the_committed_ceiling() {
        let mut rows = vec![row(1), row(2)];
        for row in &mut rows {
            row.ceiling = UnixMs(300);
            row.revision = Revision(9);
        }
        let standing = settle_renewal(&snapshot(rows), ME, BOOT, &[tenancy(1), tenancy(2)]);
        let Standing::Mine { leased } = standing else {
            panic!("{standing:?}")
        };
        assert_eq!((leased[1].guard, leased[1].window), (Revision(9), window(300)));
    }

    #[test]
    fn identities_of_two_grants_are_one_lease_until_and_after_they_are_renewed_together() {
        let later = Token {
            revision: Revision(7),
            ..TOKEN
        };
        let mut came = row(2);
        came.revision = Revision(7);
        holder(&mut came).token = later;
        let held = [tenancy(1), Tenancy::new(leased(2), later, Revision(7))];
        let as_granted = settle_renewal(&snapshot(vec![row(1), came.clone()]), ME, BOOT, &held);
        assert_eq!(
            as_granted,
            Standing::Mine {
                leased: held.to_vec()
            }
        );
        let mut rows = vec![row(1), came];
        for row in &mut rows {
            row.revision = Revision(8);
        }
        let Standing::Mine { leased } = settle_renewal(&snapshot(rows.clone()), ME, BOOT, &held) else {
            panic!("a renewal whose answer was lost")
        };
        assert!(leased.iter().all(|tenancy| tenancy.guard == Revision(8)));
        // The first was renewed, whose answer was lost, before the other came.
        rows[1].revision = Revision(7);
        let Standing::Mine { leased } = settle_renewal(&snapshot(rows.clone()), ME, BOOT, &held) else {
            panic!("a renewal before the second grant")
        };
        assert_eq!((leased[0].guard, leased[1].guard), (Revision(8), Revision(7)));
        rows[1].revision = Revision(9);
        let apart = settle_renewal(&snapshot(rows), ME, BOOT, &held);
        assert_eq!(apart, Standing::Lost, "each was changed without the other");
    }

    #[test]
    fn a_lease_that_has_expired_is_still_mine_while_nobody_has_taken_it() {
        let mut expired = row(1);
        holder(&mut expired).expired = true;
        let standing = settle_renewal(&snapshot(vec![expired]), ME, BOOT, &[tenancy(1)]);
        assert!(matches!(standing, Standing::Mine { .. }), "{standing:?}");
    }

    #[test]
    fn a_lease_is_lost_when_one_identity_of_it_is() {
        let cases: [Case; 6] = [
            ("another instance", |row| holder(row).instance = InstanceId(8)),
            ("another boot id", |row| holder(row).boot_id = BootId(2)),
            ("another token", |row| holder(row).token.revision = Revision(6)),
            ("nobody", |row| row.holder = None),
            ("rows that did not change together", |row| {
                row.revision = Revision(6)
            }),
            ("a ceiling that fell", |row| row.ceiling = UnixMs(199)),
        ];
        for (what, change) in cases {
            let mut other = row(2);
            change(&mut other);
            let snapshot = snapshot(vec![row(1), other]);
            let standing = settle_renewal(&snapshot, ME, BOOT, &[tenancy(1), tenancy(2)]);
            assert_eq!(standing, Standing::Lost, "{what}");
        }
    }

    #[test]
    fn a_lease_that_an_operator_has_ended_is_not_mine_though_the_rows_show_it() {
        let ordered = |token| {
            let orders = [(Identity(2), token)].into_iter().collect();
            let snapshot = snapshot(vec![row(1), row(2)]).with_orders(orders);
            settle_renewal(&snapshot, ME, BOOT, &[tenancy(1), tenancy(2)])
        };
        assert_eq!(ordered(TOKEN), Standing::Ordered);
        let of_the_last = Token {
            revision: Revision(4),
            ..TOKEN
        };
        assert!(matches!(ordered(of_the_last), Standing::Mine { .. }));
    }

    #[test]
    fn only_the_very_token_of_the_very_memory_may_be_released() {
        let snapshot = snapshot(vec![row(1)]);
        let claim = Claim {
            identity: Identity(1),
            token: TOKEN,
        };
        assert!(shows_claim(&snapshot, claim, BOOT));
        assert!(!shows_claim(&snapshot, claim, BootId(2)));
        let other = Token {
            epoch: Epoch(1),
            ..TOKEN
        };
        assert!(!shows_claim(
            &snapshot,
            Claim {
                token: other,
                ..claim
            },
            BOOT
        ));
        assert!(!shows_claim(
            &snapshot,
            Claim {
                identity: Identity(2),
                ..claim
            },
            BOOT
        ));
    }
}
