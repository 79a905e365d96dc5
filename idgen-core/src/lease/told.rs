//! What those who seal a store, and those who find it sealed, tell it: the store was restored, and has forgotten how far
//! the cell had come. The next epoch is made from all that was told (see [`super::epoch`]).

use super::anchor::Anchor;
use super::formats::together;
use super::ledger::Cell;
use super::token::Epoch;
use crate::clock::UnixMs;

/// How far a cell had come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The highest epoch,
    pub epoch: Epoch,
    /// ... and when it began.
    pub since: UnixMs,
    /// Plans of formats with a switch, in the order of their texts.
    pub formats: Vec<String>,
}

impl Told {
    /// All that these remember.
    #[must_use]
    pub fn by<'a>(anchors: impl IntoIterator<Item = &'a Anchor> + Clone) -> Self {
        let latest = anchors
            .clone()
            .into_iter()
            .map(|anchor| (anchor.epoch, anchor.since))
            .max();
        let (epoch, since) = latest.unwrap_or_default();
        let formats = together(anchors.into_iter().map(|anchor| anchor.formats.as_str()));
        Self {
            epoch,
            since,
            formats,
        }
    }

    /// Is it worth telling a store that is sealed already?
    #[must_use]
    pub fn is_news(&self) -> bool {
        self.epoch.0 > 0 || !self.formats.is_empty()
    }

    /// What both know.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (epoch, since) = (self.epoch, self.since).max((other.epoch, other.since));
        let formats = together(self.formats.iter().chain(&other.formats).map(String::as_str));
        Self {
            epoch,
            since,
            formats,
        }
    }

    /// What is written down in `cell`, which knows this, when somebody who knows `more` seals it or finds it sealed.
    /// `None`: nothing; also where an operator has begun a later epoch since, for nothing is known against that.
    #[must_use]
    pub fn sealed_with(&self, more: &Self, cell: &Cell, is_sealed: bool) -> Option<Self> {
        let all = self.and(more);
        if is_sealed {
            return (all != *self).then_some(all);
        }
        (cell.epoch <= more.epoch).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::Revision;
    use super::*;

    const FIRST: &str = "classic; regional/1 from 1790000000000";
    const SECOND: &str = "regional/1; regional/2 from 1790001000000";

    fn told(epoch: u64, since: u64, formats: &[&str]) -> Told {
        Told {
            epoch: Epoch(epoch),
            since: UnixMs(since),
            formats: formats.iter().map(|plan| (*plan).to_owned()).collect(),
        }
    }

    fn anchor(epoch: u64, formats: &str) -> Anchor {
        Anchor {
            epoch: Epoch(epoch),
            since: UnixMs(epoch * 10),
            formats: formats.to_owned(),
            ..Anchor::of(&Cell::example(), Revision(5))
        }
    }

    #[test]
    fn the_latest_epoch_and_every_switch_are_told() {
        let anchors = [anchor(1, SECOND), anchor(3, "classic"), anchor(2, FIRST)];
        assert_eq!(Told::by(&anchors), told(3, 30, &[FIRST, SECOND]));
        assert_eq!(Told::by(&[]), Told::default());
        assert!(!Told::by(&[anchor(0, "classic")]).is_news());
        assert!(Told::by(&[anchor(0, FIRST)]).is_news());
        assert!(Told::by(&[anchor(1, "classic")]).is_news());
    }

    #[test]
    fn a_seal_adds_to_what_others_have_told() {
        let cell = Cell::example();
        let by_one = Told::default().sealed_with(&told(0, 0, &[]), &cell, false);
        assert_eq!(by_one, Some(told(0, 0, &[])), "it seals, whatever it knows");
        let by_one = by_one.unwrap();
        assert_eq!(
            by_one.sealed_with(&told(0, 0, &[]), &cell, true),
            None,
            "nothing new"
        );
        let by_two = by_one.sealed_with(&told(0, 0, &[FIRST]), &cell, true).unwrap();
        assert_eq!(by_two, told(0, 0, &[FIRST]));
        let by_three = by_two.sealed_with(&told(2, 20, &[SECOND]), &cell, true).unwrap();
        assert_eq!(by_three, told(2, 20, &[FIRST, SECOND]));
        assert_eq!(by_three.sealed_with(&told(1, 99, &[FIRST]), &cell, true), None);
    }

    #[test]
    fn an_epoch_that_was_begun_since_is_left_alone() {
        let cell = Cell {
            epoch: Epoch(2),
            ..Cell::example()
        };
        assert_eq!(
            Told::default().sealed_with(&told(1, 10, &[FIRST]), &cell, false),
            None
        );
        assert!(
            Told::default()
                .sealed_with(&told(2, 20, &[]), &cell, false)
                .is_some()
        );
        assert!(
            Told::default()
                .sealed_with(&told(1, 10, &[FIRST]), &cell, true)
                .is_some(),
            "who finds it sealed tells what it knows, whichever epoch that is"
        );
    }
}
