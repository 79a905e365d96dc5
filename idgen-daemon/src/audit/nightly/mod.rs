//! The nightly audit: is every id of every tag granted once, and every grant still there?
//!
//! ```text
//!  server.rs  when (idgen_core::audit::Schedule), for each database of the server
//!    run.rs     begins a run or goes on with one
//!      fence.rs   has the replica what the primary had?
//!      sweep.rs   reads (reader.rs)
//!      close.rs   looks closely at what does not go on from what came before
//!      prove.rs   that nothing was left out; listed.rs: of no tag
//!      reconcile.rs  the archive against the database
//!      windows.rs  leases that overlap, as the archive tells of them
//!    ledger.rs  idgen.audit_run and idgen.audit_frontier, under the lease `audit`
//! ```

mod close;
mod fence;
mod halt;
mod ledger;
mod listed;
mod prove;
mod reader;
mod reconcile;
mod run;
mod server;
mod sweep;
mod windows;

pub use halt::Halt;
pub use ledger::{Ledger, Verdict};
pub use run::{Ended, Site, run, watches_leases};
pub use server::{NightlyAudit, NightlySetup, open_ledger};
