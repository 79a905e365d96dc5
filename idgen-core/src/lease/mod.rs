//! Leases: who may mint which timestamps of which identity, and until when.
//!
//! A lease is a window on the time axis of one identity, granted by one compare-and-swap in a lease
//! store: (identity, token, floor, ceiling). Ids carry only timestamps of a window that is committed
//! there, and the next window of the same identity begins above the old ceiling. So uniqueness rests on
//! the windows alone; TTLs, deadlines and clocks decide nothing but availability and order.
//!
//! ```text
//!  keeper   what happened -> what to do next (one total function)
//!  class    workers and shards               window  floor and ceiling arithmetic
//!  pool     which workers to ask for         listed  which shards, and who has them
//!  occupancy  how full the pool is, and who fills it
//!  ledger   the store's rows as plain data   timing  TTL, margin, period, deadline
//!  token    fencing tokens and names         switch  another format from a moment on
//!  monitor  the clock: may it be gone by?    step    was it set?
//!  sync     does somebody keep it right?     peers   do the other servers show the same time?
//!  anchor   is this the store that was seen before?   epoch   another history from a moment on
//!  named    leases of anything that has a name, with ceilings that only their holder raises
//!  trust    may a lease be taken from it by now?
//!  drain    an operator has a server give everything back, and take nothing
//!  assigned who is to have which shard, and who has it
//!  order    an operator has a holder stop               approval  what needs two people
//!  told     what those who seal a store tell it       formats which plan of formats is the furthest
//!  events   what happened, from the log of the store, in a trail that shows what is missing or was changed
//! ```
//!
//! What is absent: stores, sockets, Postgres, retries of requests. The daemon's shell does those.

pub mod anchor;
pub mod approval;
pub mod assigned;
pub mod class;
pub mod drain;
pub mod epoch;
pub mod events;
pub mod formats;
pub mod keeper;
pub mod ledger;
pub mod listed;
pub mod monitor;
pub mod named;
pub mod occupancy;
pub mod order;
pub mod peers;
pub mod pool;
pub mod step;
pub mod switch;
pub mod sync;
pub mod timing;
pub mod token;
pub mod told;
pub mod trust;
pub mod window;

pub use anchor::{Anchor, Departure, Pins};
pub use assigned::{Assigned, Assignment, Holding, Place, PlaceState, Presence};
pub use class::Class;
pub use drain::Drain;
pub use epoch::{AdvancePlan, AdvanceRefused, AdvanceWish, EpochChange, Survey, plan_advance};
pub use formats::PlansApart;
pub use keeper::{Action, Event, IllegalTransition, State, next};
pub use ledger::{Cell, GrantPlan, Snapshot};
pub use listed::{NotFree, Occupied};
pub use monitor::{ClockMonitor, ClockState, Gate, Judgement, Known};
pub use occupancy::{Exhausted, Occupancy, Pressure};
pub use order::{Order, Orders};
pub use peers::Peers;
pub use pool::{Memory, Wanted};
pub use step::{ClockVerdict, StepGuard};
pub use switch::{SwitchPlan, SwitchRefused, plan_switch};
pub use sync::KernelClock;
pub use timing::{Reach, Timing, TimingError, TimingSpec};
pub use token::{
    BootId, CellId, Claim, Epoch, EpochNonce, Identity, InstanceId, Mark, Revision, StoreIdentity, Token,
};
pub use told::Told;
pub use trust::{Applicant, Trust, Unsettled, Waits};
pub use window::{Leased, Tenancy, Window};
