//! The audits: are ids unique? [`Probe`] hears every event as it comes, [`Sweep`] goes through all that there are.
//!
//! Both look at ranges of ids on the axis of a (space, tag), and neither trusts that the other is right: they share no more than
//! [`Span`]. What they cannot know they say. [`Duplicates`] is what databases themselves have refused.

mod duplicates;
mod leases;
mod probe;
mod ranges;
mod recent;
mod saved;
mod schedule;
mod sequence;
mod span;
mod stream;
mod sweep;

pub use duplicates::{CONSTRAINTS_MAX, Duplicates, NAME_BYTES_MAX, Violated, Violation, Violations};
pub use leases::{LeaseAlarm, LeaseDeed, Leased, Leases, Party, Subject};
pub use probe::{Alarm, Counts, Heard, Ids, Limits, OpenGap, Origin, Probe, Told};
pub use ranges::Ranges;
pub use saved::Damaged;
pub use schedule::{Due, Extent, History, Schedule, TimeOfDay, Weekday};
pub use sequence::{Seen, Sequence};
pub use span::Span;
pub use stream::{Axis, Floor, Point, Rise, Stream};
pub use sweep::{OutOfOrder, Overlap, Sweep};
