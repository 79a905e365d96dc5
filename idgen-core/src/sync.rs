//! Atomics: the real ones, or loom's when a model is being checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
