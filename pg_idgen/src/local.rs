//! State of one backend process.
//!
//! A Postgres process has one thread, so what `thread_local!` gives is not needed, and in a shared library it
//! costs a call per access, on the path of every id.

use std::cell::UnsafeCell;

/// A value of this process.
pub struct Local<T>(UnsafeCell<T>);

// SAFETY: Postgres processes have one thread, and so has every process that this library is loaded into.
unsafe impl<T> Sync for Local<T> {}

impl<T> Local<T> {
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Work on the value. `work` must not get to this very value by another way (call no function that uses it,
    /// nor Postgres, which may call back).
    #[inline(always)]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: one thread (see above), and no second reference while `work` runs, which each caller sees to:
        // the closures are short and call nothing of this library that takes the same value.
        work(unsafe { &mut *self.0.get() })
    }
}

impl<T: Copy> Local<T> {
    #[inline(always)]
    pub fn get(&self) -> T {
        self.with(|value| *value)
    }

    #[inline(always)]
    pub fn set(&self, new: T) {
        self.with(|value| *value = new);
    }
}
