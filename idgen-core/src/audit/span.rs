//! First and last id of a range.

use core::fmt;

/// The ids from `lo` to `hi`, both included; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    lo: i64,
    hi: i64,
}

impl Span {
    /// `None`: it would be empty. Such a record is a finding by itself.
    #[must_use]
    pub const fn new(lo: i64, hi: i64) -> Option<Self> {
        if lo <= hi { Some(Self { lo, hi }) } else { None }
    }

    /// A single id.
    #[must_use]
    pub const fn of(id: i64) -> Self {
        Self { lo: id, hi: id }
    }

    /// The first id.
    #[must_use]
    pub const fn lo(self) -> i64 {
        self.lo
    }

    /// The last id.
    #[must_use]
    pub const fn hi(self) -> i64 {
        self.hi
    }

    /// How many ids; of the whole axis one fewer than there are.
    #[must_use]
    pub const fn ids(self) -> u64 {
        self.hi.abs_diff(self.lo).saturating_add(1)
    }

    /// The ids of both; `None`: there is none.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.lo.max(other.lo), self.hi.min(other.hi))
    }

    /// From the first id of both to the last.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.lo, self.hi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lo: i64, hi: i64) -> Span {
        Span::new(lo, hi).unwrap()
    }

    #[test]
    fn a_span_has_both_its_ends() {
        assert_eq!(Span::new(2, 1), None);
        assert_eq!((span(1, 1).ids(), span(-1, 1).ids()), (1, 3));
        assert_eq!(span(i64::MIN, i64::MAX).ids(), u64::MAX);
        assert_eq!(span(3, 9).to_string(), "3 to 9");
    }

    #[test]
    fn common_ids_are_those_of_both() {
        assert_eq!(span(1, 5).common(span(5, 9)), Some(span(5, 5)));
        assert_eq!(span(1, 5).common(span(6, 9)), None);
        assert_eq!(span(1, 5).hull(span(8, 9)), span(1, 9));
        assert_eq!(span(1, 9).common(span(3, 4)), Some(span(3, 4)));
        assert_eq!(
            span(i64::MIN, i64::MAX).common(span(i64::MAX, i64::MAX)),
            Some(span(i64::MAX, i64::MAX))
        );
    }
}
