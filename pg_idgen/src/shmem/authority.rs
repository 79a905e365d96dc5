//! The leases of databases' spaces: who may grant ranges here, up to when, and up to which id of each tag.
//!
//! Every word here, and the stretch in the place of a tag, is written and read under the `segments` lock: a grant
//! takes milliseconds, and so they need no order of their own.

use super::{Locked, SegmentKey, SegmentSlot, Shared, load_id, store_id};
use idgen_core::clock::BootMs;
use idgen_core::lease::{Epoch, Revision, Token};
use idgen_core::segment::authority::{Admission, Stretch, admit};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// Databases of one server that can have a leased authority at a time; 64 bytes each.
pub const AUTHORITIES: usize = 256;

/// The lease of one database's space.
#[derive(Default)]
#[repr(C)]
pub struct Authority {
    /// Oid; 0: free.
    database: AtomicU32,
    stripe: AtomicU32,
    space_id: [AtomicU64; 2],
    epoch: AtomicU64,
    revision: AtomicU64,
    deadline_boot_ms: AtomicU64,
    /// Counts the tokens of this server; 0: fenced. A stretch belongs to the generation that it was raised in.
    generation: AtomicU64,
}

/// The stretch of a tag, in its place.
#[derive(Default)]
pub struct StretchWords {
    generation: AtomicU64,
    floor: AtomicI64,
    ceiling: AtomicI64,
}

impl StretchWords {
    /// Of no generation.
    pub(super) fn forget(&self) {
        self.generation.store(0, Relaxed);
    }
}

/// A lease by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorityName {
    pub database: u32,
    pub space_id: [u8; 16],
    pub stripe: u32,
}

/// What shared memory has of a database's lease.
#[derive(Clone, Copy, Debug)]
pub struct AuthorityView {
    pub name: AuthorityName,
    pub token: Token,
    pub deadline: BootMs,
    /// 0: fenced.
    generation: u64,
}

impl AuthorityView {
    pub fn is_fenced(self) -> bool {
        self.generation == 0
    }

    pub fn is_open(self, now: BootMs) -> bool {
        !self.is_fenced() && now < self.deadline
    }
}

/// What one grant under a lease may do.
#[derive(Clone, Copy, Debug)]
pub struct LeasedPermit {
    pub token: Token,
    pub stretch: Stretch,
    generation: u64,
}

/// Why an install changed nothing.
#[derive(Clone, Copy, Debug)]
pub enum NotInstalled {
    NotNewer {
        latest: Token,
    },
    /// Every place has an open lease.
    Full,
}

impl Authority {
    fn view(&self) -> AuthorityView {
        AuthorityView {
            name: AuthorityName {
                database: self.database.load(Relaxed),
                space_id: load_id(&self.space_id),
                stripe: self.stripe.load(Relaxed),
            },
            token: Token {
                epoch: Epoch(self.epoch.load(Relaxed)),
                revision: Revision(self.revision.load(Relaxed)),
            },
            deadline: BootMs(self.deadline_boot_ms.load(Relaxed)),
            generation: self.generation.load(Relaxed),
        }
    }

    fn open(&self, name: AuthorityName, token: Token, deadline: BootMs, generation: u64) {
        store_id(&self.space_id, name.space_id);
        self.stripe.store(name.stripe, Relaxed);
        self.epoch.store(token.epoch.0, Relaxed);
        self.revision.store(token.revision.0, Relaxed);
        self.deadline_boot_ms.store(deadline.0, Relaxed);
        self.generation.store(generation, Relaxed);
        self.database.store(name.database, Relaxed);
    }
}

impl Shared {
    fn authority(&self, database: u32) -> Option<&Authority> {
        self.authorities
            .iter()
            .find(|entry| entry.database.load(Relaxed) == database)
    }

    /// A place for a database that has none: a free one, else that of a lease that has ended.
    fn room_for_authority(&self, now: BootMs) -> Option<&Authority> {
        let free = self.authority(0);
        free.or_else(|| self.authorities.iter().find(|entry| !entry.view().is_open(now)))
    }

    /// What this database has; also one that was fenced, or whose deadline has passed.
    pub fn authority_of(&self, database: u32) -> Option<AuthorityView> {
        let _locked = self.lock_segments();
        self.authority(database).map(Authority::view)
    }

    /// Open the lease of a database's space, or move its deadline: never back. `false`: this token was open.
    pub fn install_authority(
        &self,
        name: AuthorityName,
        token: Token,
        deadline: BootMs,
        now: BootMs,
    ) -> Result<bool, NotInstalled> {
        let _locked = self.lock_segments();
        let entry = self.authority(name.database);
        // Another space or stripe is another lease, with tokens of its own.
        let known = entry
            .map(Authority::view)
            .filter(|view| view.name == name)
            .map(|view| (view.token, !view.is_fenced()));
        match admit(known, token) {
            Admission::NotNewer => Err(NotInstalled::NotNewer {
                latest: known.map(|(token, _)| token).unwrap_or_default(),
            }),
            Admission::Extends => {
                if let Some(entry) = entry {
                    entry.deadline_boot_ms.fetch_max(deadline.0, Relaxed);
                }
                Ok(false)
            }
            Admission::Opens => {
                let entry = entry.or_else(|| self.room_for_authority(now));
                let entry = entry.ok_or(NotInstalled::Full)?;
                let generation = self.authority_generations.fetch_add(1, Relaxed) + 1;
                entry.open(name, token, deadline, generation);
                Ok(true)
            }
        }
    }

    /// Close the lease: after this no range is published under it. `false`: there is none, or another one.
    pub fn fence_authority(&self, name: AuthorityName) -> bool {
        let _locked = self.lock_segments();
        let entry = self.authority(name.database);
        let Some(entry) = entry.filter(|entry| entry.view().name == name) else {
            return false;
        };
        entry.generation.store(0, Relaxed);
        true
    }

    /// Let this token grant ids of the tag in (floor, ceiling]; a later raise moves the ceiling up only. `false`:
    /// that token is not the open one.
    pub fn raise_ceiling(
        &self,
        name: AuthorityName,
        token: Token,
        (slot, key): (&SegmentSlot, &SegmentKey),
        stretch: Stretch,
    ) -> bool {
        let _locked = self.lock_segments();
        let entry = self.authority(name.database).map(Authority::view);
        let Some(view) = entry.filter(|view| view.name == name && view.token == token && !view.is_fenced())
        else {
            return false;
        };
        // Nobody is told that it was raised where another tag has the place by now.
        if slot.key() != *key {
            return false;
        }
        let raised = match slot.stretch_of(view.generation, &_locked) {
            Some(known) => known.raised(stretch.ceiling),
            None => stretch,
        };
        slot.stretch.generation.store(view.generation, Relaxed);
        slot.stretch.floor.store(raised.floor, Relaxed);
        slot.stretch.ceiling.store(raised.ceiling, Relaxed);
        true
    }

    /// What a grant of this tag may do now. `None`: no lease of its space and stripe is open here.
    pub fn permit(&self, slot: &SegmentSlot, now: BootMs) -> Option<LeasedPermit> {
        let key = slot.key();
        let locked = self.lock_segments();
        let view = self.authority(key.database).map(Authority::view)?;
        let is_of = (view.name.space_id, view.name.stripe) == (key.space_id, key.stripes.index());
        if !is_of || !view.is_open(now) {
            return None;
        }
        Some(LeasedPermit {
            token: view.token,
            stretch: slot.stretch_of(view.generation, &locked).unwrap_or_default(),
            generation: view.generation,
        })
    }

    /// The lease that a grant was made under is open still. The caller holds the lock, and publishes under it.
    pub fn still_permits(&self, database: u32, permit: &LeasedPermit, now: BootMs, _locked: &Locked) -> bool {
        self.authority(database)
            .map(Authority::view)
            .is_some_and(|view| view.generation == permit.generation && view.is_open(now))
    }
}

impl SegmentSlot {
    /// `None`: nothing was raised for this tag in that generation.
    fn stretch_of(&self, generation: u64, _locked: &Locked) -> Option<Stretch> {
        (self.stretch.generation.load(Relaxed) == generation).then(|| Stretch {
            floor: self.stretch.floor.load(Relaxed),
            ceiling: self.stretch.ceiling.load(Relaxed),
        })
    }
}
