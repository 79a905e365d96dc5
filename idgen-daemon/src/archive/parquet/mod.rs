//! Files of the archive: Parquet, one row a message. Equal rows give equal bytes, whoever writes them, so files are named
//! after their content.

mod read;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub use self::read::{About, EventRow, ForeignRow, Opened};
pub use self::write::{encode_events, encode_foreign};

use crate::event::Event;
use idgen_core::archive::IdDigest;
use idgen_core::utc::parse_us;
use std::sync::Arc;

/// Version of the columns and footers. A reader refuses another.
pub const FILE_SCHEMA: &str = "1";

/// Where a message was in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// When it came there, in ms since 1970, by the clock of whoever keeps the log.
    pub at_ms: i64,
}

/// A message that is an event.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Where.
    pub spot: Spot,
    /// Epoch of the drainer that sent it.
    pub epoch: Option<i64>,
    /// The event.
    pub event: Event,
    /// `event.at`.
    pub at_us: i64,
    /// The message as it came, where this program would write it otherwise: a later release adds fields, and nothing is lost.
    pub original: Option<String>,
}

/// A message that is none, or one of another version of the contract: it is kept as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Where.
    pub spot: Spot,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Why it was not read.
    pub why: String,
}

/// What came.
#[derive(Clone, Debug)]
pub enum Message {
    /// An event.
    Event(Box<Arrived>),
    /// Something else.
    Foreign(Foreign),
}

/// What a struct takes beside its texts.
const OVERHEAD: usize = 64;

impl Message {
    /// Reads a message of a log.
    #[must_use]
    pub fn read(spot: Spot, epoch: Option<i64>, key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        let foreign = |why: String| {
            Self::Foreign(Foreign {
                spot,
                key: key.map(<[u8]>::to_vec),
                value: value.map(<[u8]>::to_vec),
                why,
            })
        };
        let Some(bytes) = value else {
            return foreign("it has no value".to_owned());
        };
        let event = match Event::parse(bytes) {
            Ok(event) => event,
            Err(error) => return foreign(error.to_string()),
        };
        let Some(at_us) = parse_us(&event.at) else {
            return foreign(format!("not an event: its time \"{}\" cannot be read", event.at));
        };
        let as_ours = event.to_json().is_ok_and(|ours| ours == bytes);
        let original = (!as_ours).then(|| String::from_utf8_lossy(bytes).into_owned());
        Self::Event(Box::new(Arrived {
            spot,
            epoch,
            event,
            at_us,
            original,
        }))
    }

    /// Where it was.
    #[must_use]
    pub fn spot(&self) -> Spot {
        match self {
            Self::Event(arrived) => arrived.spot,
            Self::Foreign(foreign) => foreign.spot,
        }
    }

    /// About what it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let texts = match self {
            Self::Event(arrived) => {
                let event = &arrived.event;
                let fields = [&event.kind, &event.at, &event.service, &event.tag];
                let tx = event.tx.as_ref().map_or(0, String::len);
                fields.iter().map(|text| text.len()).sum::<usize>()
                    + tx
                    + event.payload.get().len()
                    + arrived.original.as_ref().map_or(0, String::len)
                    + size_of::<Arrived>()
            }
            Self::Foreign(foreign) => {
                foreign.key.as_ref().map_or(0, Vec::len) + foreign.value.as_ref().map_or(0, Vec::len)
            }
        };
        (texts + size_of::<Self>() + OVERHEAD) as u64
    }
}

/// What a file has, as its commit and its footer say.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// Rows.
    pub rows: u64,
    /// Of them different events: an event may come more than once.
    pub events: u64,
    /// First and last time of an event, or of a foreign message its arrival, in microseconds since 1970.
    pub at: (i64, i64),
    /// Lowest and highest `event_id`.
    pub ids: (i64, i64),
    /// Of `event_id` and `at` of all rows.
    pub digest: IdDigest,
    /// Of the offsets of all rows.
    pub offsets: IdDigest,
}

/// A file that is ready to be put.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// All of it.
    pub bytes: bytes::Bytes,
    /// What is in it.
    pub summary: Summary,
}

/// Why a file could not be written or read.
#[derive(Clone, Debug)]
pub struct FileError(pub Arc<str>);

impl FileError {
    fn new(why: impl AsRef<str>) -> Self {
        Self(Arc::from(why.as_ref()))
    }
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<::parquet::errors::ParquetError> for FileError {
    fn from(error: ::parquet::errors::ParquetError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<arrow_schema::ArrowError> for FileError {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::new(error.to_string())
    }
}

/// An offset as a number of its own among those of all partitions.
fn place_id(partition: i32, offset: i64) -> i64 {
    offset ^ (i64::from(partition) << 48)
}
