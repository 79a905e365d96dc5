//! Segments: dense numbers, taken from ranges that a database granted one at a time.
//!
//! [`buffer`] holds up to two granted ranges of one tag in shared memory, [`step`] decides how large the
//! next one is, what a grant takes from the tag, and where a tag may be moved. [`exchange`] is where a caller
//! that needs many values at once leaves its wish for whoever grants. Nothing here grants: the range is a committed row
//! change first and in a [`Buffer`] afterwards. Who may grant at all is said by [`authority`];
//! [`pace`] is what people see of how fast a tag is used, [`fetches`] counts and limits its grants. [`places`] says whose place goes to another tag. [`home`] and [`burn`] are about a database that may not know of every range that was granted.

pub mod adopt;
pub mod authority;
pub mod buffer;
pub mod burn;
pub mod exchange;
pub mod fetches;
pub mod home;
pub mod pace;
pub mod places;
pub mod step;
pub mod stripes;
pub mod waterline;

pub use buffer::{Buffer, Burned, Publication, PublishError, Snapshot, Take};
pub use exchange::{Exchange, Left, Ticket};
pub use stripes::{Places, Stripes};

pub use step::{
    Exhausted, HARD_STEP_MAX, RANGE_TARGET_MS, SeekRefused, grant, grant_exactly, next_step, seek,
};

/// Consecutive values on the integer axis; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The lowest value.
    pub first: i64,
    /// How many, from `first` upwards; at least 1.
    pub count: u64,
}

impl Range {
    /// The highest value. Whoever makes a `Range` sees to it that it is a value of the type.
    #[must_use]
    pub const fn last(self) -> i64 {
        self.first.wrapping_add_unsigned(self.count.wrapping_sub(1))
    }
}
