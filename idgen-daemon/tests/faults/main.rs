//! The catalogue of faults, run for real on clusters of three etcds of either release.

#[cfg(test)]
#[path = "../e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared; these tests need a part of it"
)]
mod kit;

#[cfg(test)]
mod injection;
