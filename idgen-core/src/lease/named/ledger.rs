//! The store's rows of named leases as plain data, and what may be concluded from them.
//!
//! An answer that got lost is never guessed: the store is read again. A holder that names this daemon's instance id and
//! boot id was written by this run of this daemon, for that shared memory.

use super::super::ledger::{Cell, Holder};
use super::super::token::{BootId, Epoch, EpochNonce, InstanceId, Revision, Token};
use super::LeaseName;

/// Who asks: a run of a daemon, for one life of a server's shared memory. Whoever serves nothing of the kind names
/// itself by any number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The run of the daemon.
    pub instance: InstanceId,
    /// What the lease is for: its token is never used for another.
    pub boot_id: BootId,
}

/// Who holds a named lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Who, and under which token.
    pub holder: Holder,
    /// Store revision of the last grant or renewal: guards the next one.
    pub guard: Revision,
}

/// A name that was ever leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRow {
    /// The name.
    pub name: LeaseName,
    /// Counts its grants.
    pub generation: u64,
    /// Store revision of the last change of this row: guards a grant.
    pub revision: Revision,
    /// `None`: nobody.
    pub occupant: Option<Occupant>,
}

/// The store at one moment, as far as one name goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLook {
    /// The cell.
    pub cell: Cell,
    /// The store's revision.
    pub revision: Revision,
    /// `None`: the name was never leased.
    pub row: Option<NamedRow>,
}

/// A grant to be made: the name is free, and its row as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquisition {
    /// The name.
    pub name: LeaseName,
    /// The epoch it was planned in; another one refuses it.
    pub epoch: Epoch,
    /// Its name, compared as well.
    pub epoch_nonce: EpochNonce,
    /// What it is for.
    pub boot_id: BootId,
    /// The generation this grant will be.
    pub generation: u64,
    /// Revision of the row that this was planned on (`None`: there was none); any other refuses it.
    pub seen: Option<Revision>,
}

/// A lease that is held, as the store must be asked to renew it or to raise its ceilings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name.
    pub name: LeaseName,
    /// What it is for.
    pub boot_id: BootId,
    /// Its token.
    pub token: Token,
    /// Name of the token's epoch.
    pub epoch_nonce: EpochNonce,
    /// Revision that its holder's row must have at a renewal.
    pub guard: Revision,
}

/// How a name stands to who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be had by this grant.
    Free(Acquisition),
    /// It is held by this run of the daemon, or for this shared memory by an earlier run: who asks may give it up.
    Ours(Occupant),
    /// Somebody else holds it.
    Taken(Occupant),
}

impl NamedLook {
    /// How `name` stands to `who`.
    #[must_use]
    pub fn standing(&self, name: &LeaseName, who: Who) -> Standing {
        let row = self.row.as_ref();
        let occupant = row.and_then(|row| row.occupant.as_ref());
        match occupant.filter(|occupant| !occupant.holder.expired) {
            None => Standing::Free(Acquisition {
                name: name.clone(),
                epoch: self.cell.epoch,
                epoch_nonce: self.cell.epoch_nonce,
                boot_id: who.boot_id,
                generation: row.map_or(1, |row| row.generation + 1),
                seen: row.map(|row| row.revision),
            }),
            Some(occupant) => {
                let Holder {
                    instance, boot_id, ..
                } = occupant.holder;
                if instance == who.instance || boot_id == who.boot_id {
                    Standing::Ours(occupant.clone())
                } else {
                    Standing::Taken(occupant.clone())
                }
            }
        }
    }

    /// Was the grant made, whose answer got lost? What it made, if so.
    #[must_use]
    pub fn settle(&self, asked: &Acquisition, who: Who) -> Option<Held> {
        let row = self.row.as_ref()?;
        let Occupant { holder, guard } = row.occupant.as_ref()?;
        let ours = (holder.instance, holder.boot_id) == (who.instance, asked.boot_id);
        let this_one = row.generation == asked.generation
            && self.cell.is_epoch(asked.epoch, asked.epoch_nonce)
            && holder.token.epoch == asked.epoch;
        (ours && this_one && !holder.expired).then(|| Held {
            name: asked.name.clone(),
            boot_id: asked.boot_id,
            token: holder.token,
            epoch_nonce: asked.epoch_nonce,
            guard: *guard,
        })
    }

    /// The guard of the next renewal of `held`; `None`: the store does not show it any more.
    #[must_use]
    pub fn guard_of(&self, held: &Held, who: Who) -> Option<Revision> {
        let Occupant { holder, guard } = self.row.as_ref()?.occupant.as_ref()?;
        let same = (holder.instance, holder.boot_id, holder.token)
            == (who.instance, held.boot_id, held.token)
            && self.cell.is_epoch(held.token.epoch, held.epoch_nonce);
        same.then_some(*guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Who = Who {
        instance: InstanceId(5),
        boot_id: BootId(6),
    };

    fn name() -> LeaseName {
        "lock/a".parse().unwrap()
    }

    fn look(occupant: Option<(InstanceId, BootId, bool)>) -> NamedLook {
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(7),
        };
        let occupant = occupant.map(|(instance, boot_id, expired)| Occupant {
            holder: Holder {
                instance,
                name: String::new(),
                token,
                boot_id,
                expired,
            },
            guard: Revision(9),
        });
        NamedLook {
            cell: Cell::example(),
            revision: Revision(20),
            row: Some(NamedRow {
                name: name(),
                generation: 3,
                revision: Revision(8),
                occupant,
            }),
        }
    }

    fn acquisition(look: &NamedLook) -> Acquisition {
        match look.standing(&name(), WHO) {
            Standing::Free(acquisition) => acquisition,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_is_free_when_nobody_has_it_or_its_holder_has_expired() {
        let fresh = NamedLook {
            row: None,
            ..look(None)
        };
        let first = acquisition(&fresh);
        assert_eq!((first.generation, first.seen), (1, None));
        for free in [look(None), look(Some((InstanceId(1), BootId(2), true)))] {
            let next = acquisition(&free);
            assert_eq!((next.generation, next.seen), (4, Some(Revision(8))));
        }
    }

    #[test]
    fn what_this_run_or_this_memory_holds_is_ours() {
        let standing = |instance, boot_id| {
            look(Some((InstanceId(instance), BootId(boot_id), false))).standing(&name(), WHO)
        };
        assert!(matches!(standing(5, 6), Standing::Ours(_)));
        assert!(
            matches!(standing(5, 1), Standing::Ours(_)),
            "shared memory is new"
        );
        assert!(matches!(standing(1, 6), Standing::Ours(_)), "the daemon is new");
        assert!(matches!(standing(1, 2), Standing::Taken(_)));
    }

    #[test]
    fn a_lost_grant_is_settled_by_instance_memory_generation_and_epoch() {
        let asked = Acquisition {
            generation: 3,
            ..acquisition(&look(None))
        };
        let made = look(Some((InstanceId(5), BootId(6), false)));
        let held = made.settle(&asked, WHO).expect("made");
        assert_eq!((held.token.revision, held.guard), (Revision(7), Revision(9)));
        assert_eq!(made.guard_of(&held, WHO), Some(Revision(9)));
        let older = Acquisition {
            generation: 2,
            ..asked.clone()
        };
        assert_eq!(made.settle(&older, WHO), None);
        let other_epoch = Acquisition {
            epoch_nonce: EpochNonce(99),
            ..asked.clone()
        };
        assert_eq!(made.settle(&other_epoch, WHO), None);
        for not_ours in [
            look(None),
            look(Some((InstanceId(5), BootId(1), false))),
            look(Some((InstanceId(1), BootId(6), false))),
            look(Some((InstanceId(5), BootId(6), true))),
        ] {
            assert_eq!(not_ours.settle(&asked, WHO), None, "{not_ours:?}");
        }
    }

    #[test]
    fn a_lease_of_an_older_epoch_or_another_token_is_not_renewed() {
        let look = look(Some((InstanceId(5), BootId(6), false)));
        let held = Held {
            name: name(),
            boot_id: BootId(6),
            token: Token {
                epoch: Epoch(0),
                revision: Revision(7),
            },
            epoch_nonce: EpochNonce(1),
            guard: Revision(1),
        };
        assert_eq!(look.guard_of(&held, WHO), Some(Revision(9)));
        let mut older = held.clone();
        older.token.revision = Revision(6);
        assert_eq!(look.guard_of(&older, WHO), None);
        let renamed = Held {
            epoch_nonce: EpochNonce(2),
            ..held
        };
        assert_eq!(look.guard_of(&renamed, WHO), None);
    }
}
