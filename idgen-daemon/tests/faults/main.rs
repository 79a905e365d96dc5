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
mod catalogue;
#[cfg(test)]
mod clock_side;
#[cfg(test)]
mod control_side;
#[cfg(test)]
mod daemon_side;
#[cfg(test)]
mod etcd_side;
#[cfg(test)]
mod incident;
#[cfg(test)]
mod injection;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod postgres_side;
#[cfg(test)]
mod restore_side;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod security_side;
