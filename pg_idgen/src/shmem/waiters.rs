//! Processes that sleep until something in shared memory has changed.

use pgrx::pg_sys;
use std::cell::UnsafeCell;

/// A condition variable of Postgres.
#[derive(Default)]
pub struct Waiters(UnsafeCell<pg_sys::ConditionVariable>);

impl Waiters {
    /// # Safety
    /// `memory` must be a `Waiters` in shared memory, unseen by anybody else.
    pub(super) unsafe fn initialise(memory: *mut Self) {
        // SAFETY: by the caller's promise.
        unsafe { pg_sys::ConditionVariableInit((*memory).0.get()) };
    }

    /// Register for the next [`Self::wake`]; look again at what is waited for before sleeping.
    pub fn prepare(&self) {
        // SAFETY: initialised when shared memory was made.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.0.get()) };
    }

    /// Sleep until woken or `ms` are over; serves interrupts.
    pub fn wait(&self, ms: u64) {
        let timeout = i64::try_from(ms).unwrap_or(i64::MAX);
        // SAFETY: initialised when shared memory was made.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0.get(), timeout, pg_sys::PG_WAIT_EXTENSION);
        }
    }

    /// End what [`Self::prepare`] has begun.
    pub fn stop(&self) {
        // SAFETY: no precondition.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }

    pub fn wake(&self) {
        // SAFETY: initialised when shared memory was made.
        unsafe { pg_sys::ConditionVariableBroadcast(self.0.get()) };
    }
}
