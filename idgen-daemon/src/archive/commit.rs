//! A commit as an object, and the names of everything.
//!
//! ```text
//! audit/v1/dt=2026-04-03/service=orders/CHAIN-SEQ-SHA256.parquet   data: does not count until a commit names it
//! audit/v1/_commits/CHAIN/SEQ.json                                 made by a conditional create: the transaction
//! audit/v1/_daily/2026-04-03.json                                  what the daily check has found
//! audit/v1/_index/2026-04-03.json                                  which ids and leases the day's files are about
//! ```

use super::parquet::{FileError, Opened, Summary};
use crate::event::hex;
use bytes::Bytes;
use idgen_core::archive::{Covered, Cut, FORM, Gap, Link};
use idgen_core::day::Day;
use idgen_core::utc::show_us;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};

/// Version of the form of commits. A reader refuses another.
pub const COMMIT_SCHEMA: u32 = 1;

/// Folder of messages that are no events of this version: no service can be called so.
pub const FOREIGN_SERVICE: &str = "_foreign";

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// [`COMMIT_SCHEMA`].
    pub schema: u32,
    /// Of which chain: a topic, or `table-SOURCE`, or `lease-CELL-…`.
    pub chain: String,
    /// Its number, from 1.
    pub seq: u64,
    /// SHA-256 of the bytes of the commit before it; 64 zeros: it is the first.
    pub prev_sha256: String,
    /// Of the lease under which it was written.
    pub epoch: u64,
    /// Why it was made.
    pub cut: String,
    /// Where the rows come from: `kafka`, `table`, or `db` (what was missing, from the table).
    pub source: String,
    /// What it covers: every partition that is known.
    pub ranges: Vec<Range>,
    /// What of that is missing.
    pub gaps: Vec<Missing>,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// When it was made, by the clock of whoever made it.
    pub created_at: String,
    /// Version of the program.
    pub writer: String,
}

/// Offsets `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The partition.
    pub p: i32,
    /// First offset.
    pub start: i64,
    /// The one after the last.
    pub end: i64,
}

/// Offsets `[from, to)` that were gone before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The partition.
    pub p: i32,
    /// First offset.
    pub from: i64,
    /// The one after the last.
    pub to: i64,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name.
    pub key: String,
    /// SHA-256 of all of it.
    pub sha256: String,
    /// Its length.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// Of them different events.
    pub events: u64,
    /// First time in it.
    pub min_at: String,
    /// Last time in it.
    pub max_at: String,
    /// Lowest `event_id`.
    pub id_min: i64,
    /// Highest `event_id`.
    pub id_max: i64,
    /// XOR and sum of `event_id` and `at` of all rows, mixed.
    pub id_digest: String,
}

impl FileEntry {
    /// Of a file with this name and content.
    #[must_use]
    pub fn of(key: String, bytes: &[u8], summary: &Summary) -> Self {
        Self {
            key,
            sha256: hex(&Sha256::digest(bytes)),
            bytes: bytes.len() as u64,
            rows: summary.rows,
            events: summary.events,
            min_at: show_us(summary.at.0),
            max_at: show_us(summary.at.1),
            id_min: summary.ids.0,
            id_max: summary.ids.1,
            id_digest: digest_text(summary),
        }
    }

    /// Opens what was read under its name, if that is what was written.
    ///
    /// # Errors
    /// [`BadFile`].
    pub fn open(&self, bytes: Bytes) -> Result<Opened, BadFile> {
        is_as_written(&bytes, self).map_err(BadFile::Changed)?;
        Opened::open(bytes).map_err(BadFile::Broken)
    }

    /// Of which day and service it is.
    #[must_use]
    pub fn place(&self) -> Option<(Day, String)> {
        let rest = self.key.strip_prefix(&format!("audit/{FORM}/dt="))?;
        let mut parts = rest.split('/');
        let day = parts.next()?.parse().ok()?;
        let service = parts.next()?.strip_prefix("service=")?;
        Some((day, service.to_owned()))
    }

    /// Has it messages that are no events?
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.place()
            .is_some_and(|(_, service)| service == FOREIGN_SERVICE)
    }
}

/// Why nothing is read of a file. Goes on behind its name.
#[derive(Clone, Debug)]
pub enum BadFile {
    /// It is not what was written.
    Changed(String),
    /// It is what was written, and is no file of ours.
    Broken(FileError),
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(why) => f.write_str(why),
            Self::Broken(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

/// As footers and commits have it.
#[must_use]
pub fn digest_text(summary: &Summary) -> String {
    format!("{:016x}{:016x}", summary.digest.xor, summary.digest.sum)
}

/// Why bytes are no commit that this program reads.
pub type BadCommit = String;

impl Commit {
    /// Of this link and these files.
    #[must_use]
    pub fn new(
        chain: &str,
        link: &Link,
        (cut, source): (Cut, &str),
        files: Vec<FileEntry>,
        now_us: i64,
    ) -> Self {
        Self {
            schema: COMMIT_SCHEMA,
            chain: chain.to_owned(),
            seq: link.seq,
            prev_sha256: hex(&link.prev_sha256),
            epoch: link.epoch,
            cut: cut.name().to_owned(),
            source: source.to_owned(),
            ranges: link.covered.iter().map(Range::from).collect(),
            gaps: link.gaps.iter().map(Missing::from).collect(),
            files,
            created_at: show_us(now_us),
            writer: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The object.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads one.
    ///
    /// # Errors
    /// Another version, or no commit; a sentence for people.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadCommit> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let version: Version = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version.schema != COMMIT_SCHEMA {
            return Err(format!(
                "it has the form of version {}, and this program reads {COMMIT_SCHEMA}",
                version.schema
            ));
        }
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// What ties it to the others.
    ///
    /// # Errors
    /// Its hash cannot be read.
    pub fn link(&self) -> Result<Link, BadCommit> {
        Ok(Link {
            seq: self.seq,
            prev_sha256: unhex(&self.prev_sha256).ok_or("its prev_sha256 is no SHA-256")?,
            epoch: self.epoch,
            covered: self
                .ranges
                .iter()
                .map(|range| Covered {
                    partition: range.p,
                    start: range.start,
                    end: range.end,
                })
                .collect(),
            gaps: self
                .gaps
                .iter()
                .map(|gap| Gap {
                    partition: gap.p,
                    from: gap.from,
                    to: gap.to,
                })
                .collect(),
        })
    }
}

impl From<&Covered> for Range {
    fn from(one: &Covered) -> Self {
        Self {
            p: one.partition,
            start: one.start,
            end: one.end,
        }
    }
}

impl From<&Gap> for Missing {
    fn from(one: &Gap) -> Self {
        Self {
            p: one.partition,
            from: one.from,
            to: one.to,
        }
    }
}

/// SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(&Sha256::digest(bytes));
    sha256
}

/// Is this, byte for byte, the file that a commit names?
///
/// # Errors
/// It is not; a sentence for people that goes on behind the file's name.
fn is_as_written(bytes: &[u8], wanted: &FileEntry) -> Result<(), String> {
    let hash = hex(&sha256(bytes));
    if hash == wanted.sha256 && bytes.len() as u64 == wanted.bytes {
        return Ok(());
    }
    Err(format!(
        "is not what was written: its SHA-256 is {hash}, and the commit says {}",
        wanted.sha256
    ))
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A text as part of a name: letters, digits, `.`, `-` and `_` but not in front; everything else as `%` and two digits.
#[must_use]
pub fn name_part(text: &str) -> String {
    let mut part = String::new();
    for (at, byte) in text.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || (at > 0 && b"._-".contains(&byte));
        if is_plain {
            part.push(char::from(byte));
        } else {
            let _ = write!(part, "%{byte:02X}");
        }
    }
    if part.is_empty() { "%".to_owned() } else { part }
}

/// Name of a file of data.
#[must_use]
pub fn data_key(day: Day, service: Option<&str>, chain: &str, seq: u64, sha256: &[u8; 32]) -> String {
    let service = service.map_or_else(|| FOREIGN_SERVICE.to_owned(), name_part);
    let start = hex(sha256.get(..8).unwrap_or_default());
    format!(
        "audit/{FORM}/dt={day}/service={service}/{}-{seq:012}-{start}.parquet",
        name_part(chain)
    )
}

/// What the names of the files of a day begin with.
#[must_use]
pub fn day_prefix(day: Day) -> String {
    format!("audit/{FORM}/dt={day}/")
}

/// What the names of all commits begin with.
#[must_use]
pub fn commits_prefix() -> String {
    format!("audit/{FORM}/_commits/")
}

/// Name of a commit.
#[must_use]
pub fn commit_key(chain: &str, seq: u64) -> String {
    format!("{}{}/{seq:012}.json", commits_prefix(), name_part(chain))
}

/// Name of what the daily check has found.
#[must_use]
pub fn daily_key(day: Day) -> String {
    format!("audit/{FORM}/_daily/{day}.json")
}

/// What the indexes of days begin with.
#[must_use]
pub fn indexes_prefix() -> String {
    format!("audit/{FORM}/_index/")
}

/// Name of the index of a day.
#[must_use]
pub fn index_key(day: Day) -> String {
    format!("{}{day}.json", indexes_prefix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_whatever_a_service_is_called() {
        for (text, part) in [
            ("orders", "orders"),
            ("a/b", "a%2Fb"),
            ("../x", "%2E./x".replace('/', "%2F").as_str()),
            ("_foreign", "%5Fforeign"),
            ("", "%"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(name_part(text), part);
        }
        let key = data_key(Day(20_546), Some("a b"), "t.x", 7, &[0xab; 32]);
        assert_eq!(
            key,
            "audit/v1/dt=2026-04-03/service=a%20b/t.x-000000000007-abababababababab.parquet"
        );
        let entry = FileEntry::of(key, b"", &Summary::default());
        assert_eq!(entry.place(), Some((Day(20_546), "a%20b".to_owned())));
        assert_eq!(commit_key("t", 7), "audit/v1/_commits/t/000000000007.json");
    }

    #[test]
    fn a_commit_is_read_as_it_was_written_and_another_version_is_named() {
        let link = Link {
            seq: 3,
            prev_sha256: [0x5a; 32],
            epoch: 9,
            covered: vec![Covered {
                partition: 1,
                start: 5,
                end: 9,
            }],
            gaps: vec![Gap {
                partition: 1,
                from: 5,
                to: 6,
            }],
        };
        let file = FileEntry::of("k".into(), b"x", &Summary::default());
        let commit = Commit::new("t", &link, (Cut::Time, "kafka"), vec![file], 1_000_000);
        let bytes = commit.to_bytes().unwrap();
        let back = Commit::parse(&bytes).unwrap();
        assert_eq!((back.link().unwrap(), &back), (link, &commit));
        let other = String::from_utf8(bytes)
            .unwrap()
            .replace("\"schema\": 1", "\"schema\": 2");
        assert!(Commit::parse(other.as_bytes()).unwrap_err().contains("version 2"));
    }
}
