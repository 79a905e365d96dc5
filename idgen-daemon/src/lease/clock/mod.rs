//! The wall clock of the server that mints: what is known of it, and who says so.
//!
//! [`source`] asks chronyd and the kernel, [`accept`] lets an operator speak; [`watch`] puts it together for a keeper,
//! by the rules of `idgen_core::lease::monitor`.

mod accept;
mod chrony;
mod kernel;
mod source;
mod watch;

pub use accept::{ANSWER_LIMIT, AcceptClock, AcceptRequests, accept_channel};
pub use kernel::{host_clock, host_ms, host_us};
pub use source::{SyncSeen, ask_for_ever};
pub use watch::ClockInputs;

pub(in crate::lease) use accept::AcceptRequest;
pub(in crate::lease) use watch::ClockWatch;
