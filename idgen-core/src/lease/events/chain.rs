//! Hashes that tie a trail together.
//!
//! Each record's hash is SHA-256 over the hash of the record before it and over the record itself, field by field, each with
//! its length before it. So a record that is changed, taken out, put in or moved breaks the chain where it is, unless all
//! hashes after it are made anew; and then the head is another one. Whoever has noted a head elsewhere notices that as well.

use super::record::{Event, Kind, Record};
use core::fmt;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// What the hash of a record begins with: another form of records gets another name.
const FORM: &str = "pg_idgen lease event 1";

/// The end of a trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// Number of the last record; 0: there is none.
    pub seq: u64,
    /// Its hash; that of an empty trail is zero.
    pub hash: [u8; 32],
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.seq)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A trail that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Whose: part of every hash, so that no record passes for one of another cell.
    cell: u128,
    branch: u64,
    head: Head,
}

impl Chain {
    /// Goes on behind this head.
    #[must_use]
    pub const fn new(cell: u128, branch: u64, head: Head) -> Self {
        Self { cell, branch, head }
    }

    /// Where it ends.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// Another history of the store begins.
    pub fn turn(&mut self) {
        self.branch += 1;
    }

    /// In which history of the store it is.
    #[must_use]
    pub const fn branch(&self) -> u64 {
        self.branch
    }

    /// The next record.
    pub fn append(&mut self, event: &Event) -> Record {
        let mut record = Record {
            seq: self.head.seq + 1,
            branch: self.branch,
            position: event.when.position,
            revision: event.when.revision.0,
            at_ms: event.when.at.0,
            kind: event.kind.name().to_owned(),
            subject: event.subject.clone(),
            version: event.version,
            steps: event.steps,
            finding: event.finding.map(|finding| finding.name().to_owned()),
            detail: event.detail.to_string(),
            hash: [0; 32],
        };
        record.hash = hash(self.cell, &self.head.hash, &record);
        self.head = Head {
            seq: record.seq,
            hash: record.hash,
        };
        record
    }
}

fn hash(cell: u128, before: &[u8; 32], record: &Record) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut field = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    field(FORM.as_bytes());
    field(&cell.to_be_bytes());
    field(before);
    for number in [
        record.seq,
        record.branch,
        record.position,
        record.revision,
        record.at_ms,
        record.version,
        record.steps,
    ] {
        field(&number.to_be_bytes());
    }
    field(record.kind.as_bytes());
    field(record.subject.as_bytes());
    // Whether there is one is part of it.
    field(&[u8::from(record.finding.is_some())]);
    field(record.finding.as_deref().unwrap_or_default().as_bytes());
    field(record.detail.as_bytes());
    digest.finalize().into()
}

/// Where a trail is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Records are missing.
    Missing {
        /// The first of them,
        from: u64,
        /// ... and the last one.
        to: u64,
    },
    /// A record is there twice, or out of its order.
    Misplaced(u64),
    /// This record, or one before it, was changed.
    Changed(u64),
    /// The trail ends elsewhere.
    OtherHead {
        /// The head that was written down.
        noted: Head,
        /// What its records add up to.
        found: Head,
    },
    /// Changes of a subject are missing between two of its records.
    Skipped {
        /// Of what.
        subject: String,
        /// The later record.
        seq: u64,
        /// The version after the earlier one.
        from_version: u64,
        /// The version that the later one begins with.
        to_version: u64,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { from, to } if from == to => write!(f, "record {from} is missing"),
            Self::Missing { from, to } => write!(f, "records {from} to {to} are missing"),
            Self::Misplaced(seq) => write!(f, "record {seq} is not in its place"),
            Self::Changed(seq) => write!(
                f,
                "the chain breaks at record {seq}: it was changed after it was written, or what its hash was made from was"
            ),
            Self::OtherHead { noted, found } => {
                write!(
                    f,
                    "the trail ends in {found}, and {noted} was written down as its end"
                )
            }
            Self::Skipped {
                subject,
                seq,
                from_version,
                to_version,
            } => write!(
                f,
                "{subject} was at version {from_version}, and record {seq} begins with version {to_version}"
            ),
        }
    }
}

/// Reads a trail from its beginning, record by record: is it what was written?
#[derive(Clone, Debug)]
pub struct Verifier {
    cell: u128,
    head: Head,
    /// The version that the last record of each subject ended with.
    versions: BTreeMap<(u64, String), u64>,
}

impl Verifier {
    /// `from`: the end of what was pruned.
    #[must_use]
    pub const fn new(cell: u128, from: Head) -> Self {
        Self {
            cell,
            head: from,
            versions: BTreeMap::new(),
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn head(&self) -> Head {
        self.head
    }

    /// The next record.
    ///
    /// # Errors
    /// [`Broken`]: what is wrong with it.
    pub fn take(&mut self, record: &Record) -> Result<(), Broken> {
        if record.seq <= self.head.seq {
            return Err(Broken::Misplaced(record.seq));
        }
        if record.seq > self.head.seq + 1 {
            return Err(Broken::Missing {
                from: self.head.seq + 1,
                to: record.seq - 1,
            });
        }
        if hash(self.cell, &self.head.hash, record) != record.hash {
            return Err(Broken::Changed(record.seq));
        }
        self.head = Head {
            seq: record.seq,
            hash: record.hash,
        };
        self.follow(record)
    }

    /// What one record ends with, the next one of its subject begins with.
    fn follow(&mut self, record: &Record) -> Result<(), Broken> {
        let of = (record.branch, record.subject.clone());
        let before = self.versions.insert(of, record.version);
        // Of a key that was deleted no version says how often it had been changed; and what is lost is told as lost.
        let is_counted = record.version > 0 && record.kind != Kind::Lost.name();
        match (before, record.version.checked_sub(record.steps)) {
            (Some(from_version), begins) if is_counted && begins != Some(from_version) => {
                Err(Broken::Skipped {
                    subject: record.subject.clone(),
                    seq: record.seq,
                    from_version,
                    to_version: begins.unwrap_or(0),
                })
            }
            _ => Ok(()),
        }
    }

    /// It ends here. `noted`: where it should.
    ///
    /// # Errors
    /// [`Broken`]: it does not.
    pub fn finish(self, noted: Head) -> Result<(), Broken> {
        let found = self.head;
        if found == noted {
            return Ok(());
        }
        if found.seq < noted.seq {
            return Err(Broken::Missing {
                from: found.seq + 1,
                to: noted.seq,
            });
        }
        Err(Broken::OtherHead { noted, found })
    }
}
