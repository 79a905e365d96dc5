//! An event, and the record that is kept of it.

use super::super::token::Revision;
use crate::clock::UnixMs;
use core::fmt::{self, Write};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The trail begins here: what came before is not in it.
    Began,
    /// The cell was made.
    CellMade,
    /// An identity was leased.
    Granted,
    /// It was given back with its exact high water.
    Released,
    /// Nobody has renewed it, and its time is over.
    Expired,
    /// Its holder is gone, and it is not over.
    Removed,
    /// Its holder was ordered to give it back.
    Revoked,
    /// It was taken from its holder by a request that was approved.
    ForceReleased,
    /// Something was asked that people have to approve.
    Asked,
    /// A request was used.
    Used,
    /// Another server is to have a shard.
    Assigned,
    /// A server is to take no leases, and to give back what it has.
    Drained,
    /// It may take leases again.
    Resumed,
    /// A name was leased.
    Taken,
    /// It was given back.
    GivenBack,
    /// The cell was sealed.
    Sealed,
    /// Another epoch began.
    EpochAdvanced,
    /// Another number of people has to approve.
    ApprovalsSet,
    /// Workers mint in another format, or will.
    FormatsSwitched,
    /// A stripe was claimed.
    StripeClaimed,
    /// A database began to grant under it.
    StripeJoined,
    /// It was released.
    StripeReleased,
    /// A key changed in a way that has no name.
    Changed,
    /// A key is gone.
    Deleted,
    /// Changes of a key are missing.
    Lost,
    /// A part of the log is missing.
    Gap,
    /// The store was replaced by another one, or by an older state of itself.
    StoreReplaced,
    /// What happened before is explained by nothing.
    Unexplained,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::Began,
        Self::CellMade,
        Self::Granted,
        Self::Released,
        Self::Expired,
        Self::Removed,
        Self::Revoked,
        Self::ForceReleased,
        Self::Asked,
        Self::Used,
        Self::Assigned,
        Self::Drained,
        Self::Resumed,
        Self::Taken,
        Self::GivenBack,
        Self::Sealed,
        Self::EpochAdvanced,
        Self::ApprovalsSet,
        Self::FormatsSwitched,
        Self::StripeClaimed,
        Self::StripeJoined,
        Self::StripeReleased,
        Self::Changed,
        Self::Deleted,
        Self::Lost,
        Self::Gap,
        Self::StoreReplaced,
        Self::Unexplained,
    ];

    /// As tables and lists name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::CellMade => "cell_made",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Removed => "removed",
            Self::Revoked => "revoked",
            Self::ForceReleased => "force_released",
            Self::Asked => "asked",
            Self::Used => "request_used",
            Self::Assigned => "assigned",
            Self::Drained => "drained",
            Self::Resumed => "resumed",
            Self::Taken => "taken",
            Self::GivenBack => "given_back",
            Self::Sealed => "sealed",
            Self::EpochAdvanced => "epoch_advanced",
            Self::ApprovalsSet => "approvals_set",
            Self::FormatsSwitched => "formats_switched",
            Self::StripeClaimed => "stripe_claimed",
            Self::StripeJoined => "stripe_joined",
            Self::StripeReleased => "stripe_released",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::Lost => "lost",
            Self::Gap => "gap",
            Self::StoreReplaced => "store_replaced",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Why somebody should look at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Finding {
    /// A holder was removed before its time, and no release, order or grant says why.
    RemovedEarly,
    /// An identity was granted while another one held it.
    Robbed,
    /// A high water was written without its holder.
    HighWaterAlone,
    /// A holder was written without its high water.
    HolderAlone,
    /// A ceiling went down, and that was no release.
    CeilingFell,
    /// Grants were counted wrongly.
    GenerationSkipped,
    /// A key that stays was deleted.
    KeyDeleted,
    /// An epoch began that nobody has recorded.
    EpochUnrecorded,
    /// What people have to approve was done, and too few have.
    Unapproved,
    /// The cell was opened without another epoch.
    Unsealed,
    /// A value cannot be read.
    Unreadable,
    /// Changes are missing from the log.
    Gap,
    /// The store is another one.
    StoreReplaced,
}

impl Finding {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::RemovedEarly,
        Self::Robbed,
        Self::HighWaterAlone,
        Self::HolderAlone,
        Self::CeilingFell,
        Self::GenerationSkipped,
        Self::KeyDeleted,
        Self::EpochUnrecorded,
        Self::Unapproved,
        Self::Unsealed,
        Self::Unreadable,
        Self::Gap,
        Self::StoreReplaced,
    ];

    /// As tables and lists name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RemovedEarly => "removed_early",
            Self::Robbed => "granted_while_held",
            Self::HighWaterAlone => "high_water_alone",
            Self::HolderAlone => "holder_alone",
            Self::CeilingFell => "ceiling_fell",
            Self::GenerationSkipped => "generation_skipped",
            Self::KeyDeleted => "key_deleted",
            Self::EpochUnrecorded => "epoch_unrecorded",
            Self::Unapproved => "unapproved",
            Self::Unsealed => "unsealed",
            Self::Unreadable => "unreadable",
            Self::Gap => "gap",
            Self::StoreReplaced => "store_replaced",
        }
    }

    /// For people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::RemovedEarly => {
                "the holder was removed before its time, and no release, order or newer grant of its own explains it"
            }
            Self::Robbed => "it was granted while another daemon held it",
            Self::HighWaterAlone => "somebody wrote the high water and not the holder",
            Self::HolderAlone => "somebody wrote the holder and not the high water",
            Self::CeilingFell => "the ceiling was lowered, and not by a release of its holder",
            Self::GenerationSkipped => "the grants were not counted one by one",
            Self::KeyDeleted => "a key that is never deleted was deleted",
            Self::EpochUnrecorded => "an epoch began, and nobody has recorded who advanced it",
            Self::Unapproved => {
                "it needs people who approve it, and no request that enough of them had approved was used"
            }
            Self::Unsealed => "the cell was opened, and its epoch was not advanced",
            Self::Unreadable => "a value was written that cannot be read: by hand, or by a later release",
            Self::Gap => "changes are missing from the store's log",
            Self::StoreReplaced => "the store was replaced by another one, or by an older state of itself",
        }
    }
}

/// What else is to be known of an event: names and values, as one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Detail(String);

impl Detail {
    /// With a text.
    #[must_use]
    pub fn text(mut self, name: &str, value: &str) -> Self {
        self.begin(name);
        self.quoted(value);
        self
    }

    /// With a number.
    #[must_use]
    pub fn number(mut self, name: &str, value: u64) -> Self {
        self.begin(name);
        let _ = write!(self.0, "{value}");
        self
    }

    /// With a truth.
    #[must_use]
    pub fn flag(mut self, name: &str, value: bool) -> Self {
        self.begin(name);
        let _ = write!(self.0, "{value}");
        self
    }

    /// With a text, if there is one.
    #[must_use]
    pub fn maybe(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    fn begin(&mut self, name: &str) {
        self.0.push_str(if self.0.is_empty() { "" } else { ", " });
        self.quoted(name);
        self.0.push_str(": ");
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.0.extend(['\\', c]),
                // Postgres stores no NUL in a text, escaped or not.
                '\0' => self.0.push('\u{fffd}'),
                c if c.is_control() => {
                    let _ = write!(self.0, "\\u{:04x}", u32::from(c));
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.0)
    }
}

/// When something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct When {
    /// Where in the store's log; where that has no other count, the revision.
    pub position: u64,
    /// In the store's count.
    pub revision: Revision,
    /// By the clock of the store, or of whoever has read the log.
    pub at: UnixMs,
}

/// What happened at a revision of the store to one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub when: When,
    /// What.
    pub kind: Kind,
    /// To what.
    pub subject: String,
    /// The version of the subject afterwards; 0: it does not exist.
    pub version: u64,
    /// How many changes of it there were since its last event. All but this one were renewals, or are lost.
    pub steps: u64,
    /// Why somebody should look at it.
    pub finding: Option<Finding>,
    /// What else is to be known.
    pub detail: Detail,
}

/// An event as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Counts the records of a trail, without gaps.
    pub seq: u64,
    /// Counts the histories of the store: revisions begin anew in each.
    pub branch: u64,
    /// As in the event.
    pub position: u64,
    /// As in the event.
    pub revision: u64,
    /// As in the event.
    pub at_ms: u64,
    /// As in the event.
    pub kind: String,
    /// As in the event.
    pub subject: String,
    /// As in the event.
    pub version: u64,
    /// As in the event.
    pub steps: u64,
    /// As in the event.
    pub finding: Option<String>,
    /// As in the event.
    pub detail: String,
    /// Of this record and all before it.
    pub hash: [u8; 32],
}
