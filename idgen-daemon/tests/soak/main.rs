//! The soak: three servers with their daemons mint from one lease store while a seed breaks things, and everything
//! that happens is written down and judged by `idgen_core::history`.
//!
//! ```text
//!  plan     which faults, of which server or member, for how long: from the seed alone
//!  arena    the servers, daemons, the store, and what can be done to them   faults  doing it
//!  failover a standby of the store that is promoted beside its old primary
//!  mint     sessions that mint and write down what they were given          moment  the one clock
//!  trail    what the store commits: trail_etcd (a watch), trail_postgres (logical decoding)
//!  told     the product's trail of lease events beside that
//!  logs     what daemons told their servers                                 files   all of it on disk, and back
//!  run      one run from its beginning to its verdicts                      table   verdicts for people
//! ```
//! `segments` is a soak of its own: one server, whose segments are drawn from while everything crashes.
//!
//! `make soak SUITE=leases STORE=etcd SEED=7 MINUTES=10` runs one of these for longer. Without a wish the seed is
//! fixed and the run is short: `make test SUITES=soak`.

#[cfg(test)]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit of the end-to-end tests; not all of it is used here"
)]
#[path = "../e2e/kit/mod.rs"]
mod kit;

#[cfg(test)]
mod arena;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod files;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod mint;
#[cfg(test)]
mod moment;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod run;
#[cfg(test)]
mod segments;
#[cfg(test)]
mod table;
#[cfg(test)]
mod told;
#[cfg(test)]
mod trail;
#[cfg(test)]
mod trail_etcd;
#[cfg(test)]
mod trail_postgres;

#[cfg(test)]
mod tests {
    use super::plan::StoreKind;
    use super::run::soak;

    #[test]
    fn leases_in_etcd() {
        soak(StoreKind::Etcd);
    }

    #[test]
    fn leases_in_postgres() {
        soak(StoreKind::Postgres);
    }

    #[test]
    fn segments_through_crashes() {
        super::segments::soak();
    }
}
