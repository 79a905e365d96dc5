//! End to end: the real extension in real servers, the real daemon, the embedded store and a real etcd.
//!
//! Every test brings up what it needs in a temp dir of its own and stops it on the way out, also when it
//! fails; the logs of its servers are printed then. Nothing here sleeps for a while and hopes: conditions
//! are waited for, with deadlines (`kit::wait`).
//!
//! Run by `make test SUITES=e2e`, which installs nothing: `make install` comes first. `PG_CONFIG` chooses
//! the server as it does in the Makefile.

#[cfg(test)]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared with the tests of faults"
)]
#[cfg(test)]
mod kit;

#[cfg(test)]
mod adopt;
#[cfg(test)]
mod approvals;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod clock_gate;
#[cfg(test)]
mod collision;
#[cfg(test)]
mod consent;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod dump;
#[cfg(test)]
mod duplicate_keys;
#[cfg(test)]
mod epoch;
#[cfg(test)]
mod events;
mod events_go_on;
#[cfg(test)]
mod fencing;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod format;
#[cfg(test)]
mod full;
#[cfg(test)]
mod lease;
#[cfg(test)]
mod leased;
#[cfg(test)]
mod leases_list;
#[cfg(test)]
mod lock;
#[cfg(test)]
mod masters;
#[cfg(test)]
mod notifications;
#[cfg(test)]
mod order;
#[cfg(test)]
mod public;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod refusal;
#[cfg(test)]
mod region;
#[cfg(test)]
mod replication;
#[cfg(test)]
mod revoke;
#[cfg(test)]
mod runbooks;
#[cfg(test)]
mod seal;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod segment;
#[cfg(test)]
mod segment_attack;
#[cfg(test)]
mod segment_failover;
#[cfg(test)]
mod segment_faults;
#[cfg(test)]
mod segment_home;
#[cfg(test)]
mod segment_incidents;
#[cfg(test)]
mod segment_load;
#[cfg(test)]
mod segment_manage;
#[cfg(test)]
mod segment_serve;
#[cfg(test)]
mod server;
#[cfg(test)]
mod server_drain;
#[cfg(test)]
mod shard;
#[cfg(test)]
mod shard_moves;
#[cfg(test)]
mod sqlstates;
#[cfg(test)]
mod store;
#[cfg(test)]
mod stripes;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod whois;
