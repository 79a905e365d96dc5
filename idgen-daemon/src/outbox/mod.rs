//! The outbox: events go from the tables of Postgres to Kafka, in order, none left out. The rules are in
//! `idgen_core::outbox`, the reasons in docs/decisions/outbox.md.
//!
//! ```text
//!  Outbox -+- which databases are there?
//!          +- Drainer<SegmentQueue>, one for each database   idgen.audit_event  \
//!          `- Drainer<TrailQueue>, where the trail is        idgen.lease_event   -> Sender (one producer each) -> Kafka
//! ```
//! One drainer is at work for each queue, by a row with an epoch (`lease.rs`). Sessions keep no state in the server, so a
//! transaction pooler may be in between. Whatever Postgres or Kafka do, the daemon goes on, since leases have nothing to do with it; what ends it
//! is a panic here, as it does everywhere.

mod days;
mod drain;
mod lease;
mod producer;
mod queue;
mod rows;
mod segments;
mod server;
mod trail;

pub use drain::{DrainConfig, Drainer};
pub(crate) use lease::IN_FORCE;
pub use lease::{Held, Holder, Lease, Stream};
pub use queue::{Marked, Page, Queue, Row, Watched};
pub use segments::{SegmentKey, SegmentQueue};
pub use server::{Outbox, OutboxSetup, open};
pub use trail::TrailQueue;
