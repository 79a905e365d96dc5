//! The audits: what is wrong is found and named, what is well passes, and what could not be read says nothing.

#[cfg(test)]
#[path = "../e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared; these tests need a part of it"
)]
mod kit;

#[cfg(test)]
mod failover;
#[cfg(test)]
mod nightly;
#[cfg(test)]
mod nightly_known;
#[cfg(test)]
mod nightly_scene;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod probe_scene;
#[cfg(test)]
mod probe_state;
#[cfg(test)]
mod table;
