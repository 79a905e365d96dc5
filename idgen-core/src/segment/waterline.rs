//! How far ranges of a database were granted, written down outside of its data directory.
//!
//! A snapshot of the data directory that is put back in its place looks like itself: the same history, the same
//! place. What it does not bring back is a file elsewhere. The file is written after the commit of every grant and before
//! any id of it is used, so that whatever was used lies behind a waterline.

use super::home::Cause;
use crate::checked_line::{self, Garbled};
use core::fmt;
use core::str::FromStr;

/// Form of the text; another form has another word.
const FORM: &str = "segments1";

/// A waterline: one line of text with a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waterline {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Timeline of its write-ahead log.
    pub timeline: u32,
    /// Position in that log which was on disk.
    pub lsn: u64,
    /// Space of the database.
    pub space_id: u128,
    /// The tag of the last grant; 0: none yet.
    pub segment_id: u128,
    /// The highest id that it was granted.
    pub max_id: i64,
}

/// What the database shows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Timeline of its write-ahead log.
    pub timeline: u32,
    /// The end of that log.
    pub lsn: u64,
    /// Space of the database.
    pub space_id: u128,
    /// `max_id` of the waterline's tag; `None`: there is no such tag.
    pub max_id: Option<i64>,
}

impl Waterline {
    /// Whether the database has lost something that was granted. `None`: nothing that this tells; another system or a
    /// later timeline is told by the database's own home.
    #[must_use]
    pub fn judge(&self, shown: &Shown) -> Option<Cause> {
        if shown.system_identifier != self.system_identifier || shown.timeline > self.timeline {
            return None;
        }
        let tag_lost = shown.space_id == self.space_id
            && self.segment_id != 0
            && shown.max_id.is_none_or(|max_id| max_id < self.max_id);
        let behind = shown.timeline < self.timeline || shown.lsn < self.lsn || tag_lost;
        behind.then_some(Cause::RolledBack)
    }
}

impl fmt::Display for Waterline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = format!(
            "{FORM} {} {} {:X} {:032x} {:032x} {}",
            self.system_identifier, self.timeline, self.lsn, self.space_id, self.segment_id, self.max_id
        );
        checked_line::write(f, &body)
    }
}

impl FromStr for Waterline {
    type Err = Garbled;

    fn from_str(text: &str) -> Result<Self, Garbled> {
        let fields: Vec<&str> = checked_line::read(text)?.split(' ').collect();
        let [FORM, system, timeline, lsn, space, segment, max_id] = fields[..] else {
            return Err(Garbled);
        };
        let uuid = |hex| u128::from_str_radix(hex, 16).map_err(|_| Garbled);
        Ok(Self {
            system_identifier: system.parse().map_err(|_| Garbled)?,
            timeline: timeline.parse().map_err(|_| Garbled)?,
            lsn: u64::from_str_radix(lsn, 16).map_err(|_| Garbled)?,
            space_id: uuid(space)?,
            segment_id: uuid(segment)?,
            max_id: max_id.parse().map_err(|_| Garbled)?,
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: Waterline = Waterline {
        system_identifier: 7,
        timeline: 2,
        lsn: 1_000,
        space_id: 5,
        segment_id: 9,
        max_id: 500,
    };

    fn judged(change: impl FnOnce(&mut Shown)) -> Option<Cause> {
        let mut shown = Shown {
            system_identifier: 7,
            timeline: 2,
            lsn: 1_000,
            space_id: 5,
            max_id: Some(500),
        };
        change(&mut shown);
        LINE.judge(&shown)
    }

    #[test]
    fn a_database_that_went_on_has_lost_nothing() {
        assert_eq!(judged(|_| {}), None);
        assert_eq!(
            judged(|shown| (shown.lsn, shown.max_id) = (2_000, Some(900))),
            None
        );
    }

    #[test]
    fn what_is_behind_the_waterline_was_rolled_back() {
        let rolled_back = Some(Cause::RolledBack);
        assert_eq!(judged(|shown| shown.lsn = 999), rolled_back);
        assert_eq!(
            judged(|shown| shown.timeline = 1),
            rolled_back,
            "over a promotion"
        );
        // The log has grown past the waterline again, but the grant is not in it.
        assert_eq!(
            judged(|shown| (shown.lsn, shown.max_id) = (5_000, Some(499))),
            rolled_back
        );
        assert_eq!(
            judged(|shown| (shown.lsn, shown.max_id) = (5_000, None)),
            rolled_back
        );
    }

    #[test]
    fn another_history_or_space_is_not_its_matter() {
        assert_eq!(judged(|shown| (shown.timeline, shown.lsn) = (3, 1)), None);
        assert_eq!(
            judged(|shown| (shown.system_identifier, shown.lsn) = (8, 1)),
            None
        );
        assert_eq!(judged(|shown| (shown.space_id, shown.max_id) = (6, None)), None);
    }

    proptest! {
        #[test]
        fn text_and_back_and_no_changed_text_is_taken(
            system_identifier: u64, timeline: u32, lsn: u64, space_id: u128, segment_id: u128, max_id: i64,
            at in 0..200_usize, other in b' '..b'~',
        ) {
            let line = Waterline { system_identifier, timeline, lsn, space_id, segment_id, max_id };
            let text = line.to_string();
            prop_assert_eq!(text.parse(), Ok(line));
            let mut changed = text.clone().into_bytes();
            let at = at % changed.len();
            changed[at] = other;
            let changed = String::from_utf8(changed).unwrap();
            prop_assert!(changed == text || changed.parse::<Waterline>().is_err(), "{changed}");
            prop_assert!(text[..text.len() - 1].parse::<Waterline>().is_err());
        }
    }
}
