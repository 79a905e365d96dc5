//! Ceilings: how far the holder of a name may go, key by key.
//!
//! A ceiling is raised in the store under the holder's token before anything up to it is done, and is never lowered. What
//! lies between the ceiling that a holder *found* when it first looked (its floor) and the one it has raised belongs to it
//! alone: the holder before cannot raise any more once this one has the lease, and the one after begins above.
//!
//! So floors are fixed under a token, by a look that came after the grant; and a raise whose answer got lost is read again
//! before the next one, since it may have been made.

use super::super::token::Revision;
use std::collections::BTreeMap;

/// A ceiling as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Nothing above it was done under any token.
    pub ceiling: i64,
    /// Revision of its last change: guards the next one.
    pub revision: Revision,
}

/// A ceiling that somebody would like to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its key.
    pub key: String,
    /// How high.
    pub ceiling: i64,
}

/// One ceiling to be raised, if it is as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Its key.
    pub key: String,
    /// As it was seen; `None`: there was none.
    pub seen: Option<Stored>,
    /// How high; above what was seen.
    pub to: i64,
}

/// What is not there counts as this: nothing was ever done.
const NOTHING: i64 = 0;

#[derive(Clone, Copy, Debug)]
struct Known {
    floor: i64,
    stored: Option<Stored>,
    /// It may be higher than this by now.
    doubt: bool,
}

/// What the holder of a token knows of the ceilings under it. Another token begins anew.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    known: BTreeMap<String, Known>,
}

impl Ceilings {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keys that must be read before they can be raised.
    #[must_use]
    pub fn unread(&self, wants: &[Want]) -> Vec<String> {
        let sure = |want: &&Want| self.known.get(&want.key).is_none_or(|known| known.doubt);
        wants.iter().filter(sure).map(|want| want.key.clone()).collect()
    }

    /// Keys were read, after the grant of the token. Those that are not among `found` have no ceiling.
    pub fn note_read(&mut self, asked: &[String], found: &BTreeMap<String, Stored>) {
        for key in asked {
            let stored = found.get(key).copied();
            let floor = stored.map_or(NOTHING, |stored| stored.ceiling);
            let known = self.known.entry(key.clone()).or_insert(Known {
                floor,
                stored,
                doubt: false,
            });
            // Under one token only its holder raises, so the floor that was found first stays.
            known.stored = stored;
            known.doubt = false;
        }
    }

    /// What is to be raised, of what was read.
    #[must_use]
    pub fn plan(&self, wants: &[Want]) -> Vec<Raise> {
        let raise = |want: &Want| {
            let known = self.known.get(&want.key).filter(|known| !known.doubt)?;
            let have = known.stored.map_or(NOTHING, |stored| stored.ceiling);
            (want.ceiling > have).then(|| Raise {
                key: want.key.clone(),
                seen: known.stored,
                to: want.ceiling,
            })
        };
        wants.iter().filter_map(raise).collect()
    }

    /// They are committed, at this revision.
    pub fn note_raised(&mut self, raises: &[Raise], revision: Revision) {
        for raise in raises {
            if let Some(known) = self.known.get_mut(&raise.key) {
                known.stored = Some(Stored {
                    ceiling: raise.to,
                    revision,
                });
            }
        }
    }

    /// They may or may not be as they were seen: they are read before they are raised again.
    pub fn note_doubt(&mut self, raises: &[Raise]) {
        for raise in raises {
            if let Some(known) = self.known.get_mut(&raise.key) {
                known.doubt = true;
            }
        }
    }

    /// What the holder may do of a key: everything above the first up to the second, which is nothing where they are the
    /// same. `None`: it was not read yet, or that is in doubt.
    #[must_use]
    pub fn granted(&self, key: &str) -> Option<(i64, i64)> {
        let known = self.known.get(key).filter(|known| !known.doubt)?;
        let ceiling = known.stored.map_or(NOTHING, |stored| stored.ceiling);
        Some((known.floor, ceiling.max(known.floor)))
    }

    /// How many keys are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Is none known?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(key: &str, ceiling: i64) -> Want {
        Want {
            key: key.to_owned(),
            ceiling,
        }
    }

    fn stored(ceiling: i64, revision: u64) -> Stored {
        Stored {
            ceiling,
            revision: Revision(revision),
        }
    }

    #[test]
    fn the_floor_is_what_was_found_first_and_stays() {
        let mut ceilings = Ceilings::new();
        let wants = [want("a", 150), want("b", 10)];
        assert!(ceilings.plan(&wants).is_empty(), "nothing was read");
        let asked = ceilings.unread(&wants);
        assert_eq!(asked, ["a", "b"]);
        ceilings.note_read(&asked, &BTreeMap::from([("a".to_owned(), stored(100, 4))]));
        assert_eq!(
            ceilings.granted("a"),
            Some((100, 100)),
            "what was found belongs to the holder before"
        );
        let raises = ceilings.plan(&wants);
        assert_eq!(raises[0].seen, Some(stored(100, 4)));
        assert_eq!((raises[1].seen, raises[1].to), (None, 10));
        ceilings.note_raised(&raises, Revision(5));
        assert_eq!(ceilings.granted("a"), Some((100, 150)));
        assert_eq!(ceilings.granted("b"), Some((0, 10)));
        ceilings.note_raised(&ceilings.plan(&[want("a", 180)]), Revision(6));
        assert_eq!(ceilings.granted("a"), Some((100, 180)));
        assert!(ceilings.unread(&wants).is_empty());
    }

    #[test]
    fn nothing_is_lowered_and_nothing_is_raised_in_doubt() {
        let mut ceilings = Ceilings::new();
        ceilings.note_read(
            &["a".to_owned()],
            &BTreeMap::from([("a".to_owned(), stored(100, 4))]),
        );
        assert!(ceilings.plan(&[want("a", 100)]).is_empty());
        let raises = ceilings.plan(&[want("a", 120)]);
        ceilings.note_doubt(&raises);
        assert!(ceilings.plan(&[want("a", 130)]).is_empty());
        assert_eq!(ceilings.granted("a"), None);
        assert_eq!(ceilings.unread(&[want("a", 130)]), ["a"]);
        // It was made after all; what it gave is ours, and the floor is the old one.
        ceilings.note_read(
            &["a".to_owned()],
            &BTreeMap::from([("a".to_owned(), stored(120, 5))]),
        );
        assert_eq!(ceilings.granted("a"), Some((100, 120)));
        assert!(ceilings.plan(&[want("a", 115)]).is_empty());
    }
}
