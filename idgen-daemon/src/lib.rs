//! The companion of a Postgres server that has pg_idgen: it keeps the server's lease on worker
//! identities, and lets an operator look at it.
//!
//! ```text
//!  idgend -> supervisor -+-> lease::Keeper --> postgres::Control   (the server that mints)
//!                        |        |
//!                        |        +-> LeaseStore <- PostgresStore | EtcdStore
//!                        +-> http (/metrics, /livez, /readyz)
//! ```
//! Every decision about a lease is made in `idgen_core::lease`; here are the sockets and timers.
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod http;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod postgres;
pub mod status;
pub mod supervisor;
