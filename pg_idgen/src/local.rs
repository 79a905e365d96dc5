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

    /// Work on the value in place: for what is too large to copy.
    ///
    /// # Safety
    /// While `work` runs nothing else may get to this very value: `work` calls no function that does, and nothing
    /// of Postgres that may call this library back.
    #[inline(always)]
    pub unsafe fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: one thread (see above), and no second reference by the caller's promise.
        work(unsafe { &mut *self.0.get() })
    }
}

impl<T: Copy> Local<T> {
    #[inline(always)]
    pub fn get(&self) -> T {
        // SAFETY: one thread (see above), and the copy is all that is made of the reference.
        unsafe { *self.0.get() }
    }

    #[inline(always)]
    pub fn set(&self, new: T) {
        // SAFETY: one thread (see above), and the write is all that is made of the reference.
        unsafe { *self.0.get() = new }
    }
}
