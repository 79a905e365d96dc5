//! The companion of a Postgres server that has pg_idgen: it keeps the server's leases on worker
//! identities and shards, and lets an operator look at them.
//!
//! ```text
//!  idgend -> supervisor -+-> lease::Keeper --> postgres::Control   (the server that mints)
//!                        |        |
//!                        |        +-> LeaseStore <- PostgresStore | EtcdStore
//!                        +-> authority::AuthorityKeeper --> each database of that server
//!                        |        +-> NamedStore <- PostgresStore | EtcdStore
//!                        +-> outbox::Outbox --> each database of that server --> Kafka
//!                        +-> server_counts --> each database of that server
//!                        +-> http (/metrics, /livez, /readyz, /clock/accept)
//!  idgenctl -> status | operator
//! ```
//! Every decision about a lease is made in `idgen_core::lease`; here are the sockets and timers.
#![forbid(unsafe_code)]

// So that a file of the tests can name us as the programs do: `lease/store_memory/` is in two test targets.
#[cfg(test)]
extern crate self as idgen_daemon;

#[cfg(feature = "outbox")]
pub mod archive;
#[cfg(feature = "outbox")]
pub mod audit;
pub mod authority;
pub mod command_line;
mod complaint;
pub mod config;
mod each_database;
pub mod error;
pub mod event;
pub mod forensics;
pub mod http;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod operator;
#[cfg(feature = "outbox")]
pub mod outbox;
mod plain_table;
pub mod postgres;
mod random;
pub mod secret;
pub mod server_counts;
pub mod status;
pub mod supervisor;
pub mod tls;
