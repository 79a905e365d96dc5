//! ACCESS EXCLUSIVE on the tables and the sequence, without ever waiting for one while holding another.
//!
//! The strongest lock at once, because ALTER TABLE and ALTER SEQUENCE need it in the end, and raising a weaker one
//! later would deadlock with a session that has read the table and is about to write it. And never a wait
//! while something is held, because some sessions draw from the sequence first and insert then, others insert first
//! and draw by the default: in either order one of them would be the victim of a deadlock.

use pgrx::pg_sys;

const MODE: pg_sys::LOCKMODE = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;

/// Locks that the transaction holds until its end, unless they are released.
pub struct Locks {
    held: Vec<pg_sys::Oid>,
}

impl Locks {
    pub fn none() -> Self {
        Self { held: Vec::new() }
    }

    pub fn are_on(&self, relations: &[pg_sys::Oid]) -> bool {
        relations.iter().all(|relation| self.held.contains(relation))
    }

    /// All of `relations` instead of what is held. Each wait is bounded by `lock_timeout` and can be cancelled.
    pub fn move_to(&mut self, relations: &[pg_sys::Oid]) {
        let mut awaited = 0;
        loop {
            self.release();
            let Some(first) = relations.get(awaited) else {
                return;
            };
            // SAFETY: inside a transaction, which gives the lock back at its end, after an error too.
            unsafe { pg_sys::LockRelationOid(*first, MODE) };
            self.held.push(*first);
            match relations.iter().position(|relation| !self.try_one(*relation)) {
                None => return,
                Some(busy) => awaited = busy,
            }
        }
    }

    fn try_one(&mut self, relation: pg_sys::Oid) -> bool {
        if self.held.contains(&relation) {
            return true;
        }
        // SAFETY: as above.
        let locked = unsafe { pg_sys::ConditionalLockRelationOid(relation, MODE) };
        if locked {
            self.held.push(relation);
        }
        locked
    }

    fn release(&mut self) {
        for relation in self.held.drain(..) {
            // SAFETY: locked by this, once.
            unsafe { pg_sys::UnlockRelationOid(relation, MODE) };
        }
    }
}
