//! Reads a file of ours. Its pages have no checksums, because the library writes none (arrow-rs#6290 is about reading them):
//! whoever has to know whether a file is as it was written compares its SHA-256 with the commit.

use super::{Arrived, FILE_SCHEMA, FileError, Foreign, Spot, Summary, place_id};
use crate::event::{Event, EventToken, GRANT, Stub, StubReason};
use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType};
use arrow_array::{Array, ArrayRef, RecordBatch};
use bytes::Bytes;
use idgen_core::archive::EventKey;
use idgen_core::utc::show_us;
use serde_json::value::RawValue;
use std::collections::HashSet;
use uuid::Uuid;

const BATCH_ROWS: usize = 8_192;

/// A row of a file of events.
pub type EventRow = Arrived;
/// A row of a file of foreign messages.
pub type ForeignRow = Foreign;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About<'r> {
    /// Its space.
    pub space: Uuid,
    /// Its tag.
    pub tag: &'r str,
    /// First and last of its ids; `None`: it is about none.
    pub ids: Option<(i64, i64)>,
    /// Its payload, where that was asked for.
    pub payload: Option<&'r str>,
}

/// A file whose footer was read.
pub struct Opened {
    bytes: Bytes,
    /// A file of messages that are no events?
    pub is_foreign: bool,
    /// What the footer says.
    pub rows: u64,
    /// Different events, as the footer says.
    pub events: u64,
}

impl Opened {
    /// Reads the footer.
    ///
    /// # Errors
    /// It has none, or is of another version.
    pub fn open(bytes: Bytes) -> Result<Self, FileError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?;
        let metadata = builder.metadata().file_metadata();
        let entry = |key: &str| {
            let key = format!("idgen.{key}");
            let entries = metadata.key_value_metadata()?;
            entries.iter().find(|entry| entry.key == key)?.value.clone()
        };
        let schema = entry("schema").ok_or_else(|| FileError::new("it is no file of an archive of ours"))?;
        if schema != FILE_SCHEMA {
            return Err(FileError::new(format!(
                "it has columns of version {schema}, and this program reads {FILE_SCHEMA}"
            )));
        }
        let number = |key: &str| {
            let number = entry(key).and_then(|value| value.parse::<u64>().ok());
            number.ok_or_else(|| FileError::new(format!("its footer has no {key}")))
        };
        let opened = Self {
            is_foreign: entry("kind").as_deref() == Some("foreign"),
            rows: number("rows")?,
            events: number("events")?,
            bytes,
        };
        if metadata.num_rows() != opened.rows.cast_signed() {
            return Err(FileError::new("its footer has two numbers of rows"));
        }
        Ok(opened)
    }

    fn batches(&self) -> Result<ParquetRecordBatchReader, FileError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(self.bytes.clone())?;
        Ok(builder.with_batch_size(BATCH_ROWS).build()?)
    }

    /// Of these columns alone: others are not even unpacked.
    fn batches_of(&self, columns: &[&str]) -> Result<ParquetRecordBatchReader, FileError> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(self.bytes.clone())?;
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
        let builder = builder.with_projection(mask);
        Ok(builder.with_batch_size(BATCH_ROWS).build()?)
    }

    /// Calls `see` with what each event is about, until it says false. `with_payload`: reads that column too, which is most
    /// of a file.
    ///
    /// # Errors
    /// A page is damaged, or it is a file of foreign messages.
    pub fn each_about(
        &self,
        with_payload: bool,
        mut see: impl FnMut(&About<'_>) -> bool,
    ) -> Result<(), FileError> {
        let columns = ["space", "tag", "lo", "hi", "payload"];
        let columns = &columns[..columns.len() - usize::from(!with_payload)];
        let mut last = (String::new(), Uuid::nil());
        for batch in self.batches_of(columns)? {
            let columns = Columns(batch?);
            let (spaces, tags) = (columns.get("space")?, columns.get("tag")?);
            let (spaces, tags) = (spaces.as_string::<i32>(), tags.as_string::<i32>());
            let payloads = with_payload.then(|| columns.get("payload")).transpose()?;
            for row in 0..tags.len() {
                if last.0 != spaces.value(row) {
                    last = (spaces.value(row).to_owned(), uuid(spaces.value(row))?);
                }
                let about = About {
                    space: last.1,
                    tag: tags.value(row),
                    ids: columns.number("lo", row)?.zip(columns.number("hi", row)?),
                    payload: payloads.map(|payloads| payloads.as_string::<i32>().value(row)),
                };
                if !see(&about) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `see` with the source, the space, the tag and the last id of each grant.
    ///
    /// # Errors
    /// As [`Self::each_about`].
    pub fn each_grant(&self, mut see: impl FnMut((Uuid, Uuid), &str, i64)) -> Result<(), FileError> {
        let mut last = ((String::new(), String::new()), (Uuid::nil(), Uuid::nil()));
        for batch in self.batches_of(&["kind", "source", "space", "tag", "hi"])? {
            let columns = Columns(batch?);
            let text = |name| Ok::<_, FileError>(columns.get(name)?.as_string::<i32>());
            let (kinds, sources) = (text("kind")?, text("source")?);
            let (spaces, tags) = (text("space")?, text("tag")?);
            for row in (0..tags.len()).filter(|row| kinds.value(*row) == GRANT) {
                let Some(hi) = columns.number("hi", row)? else {
                    continue;
                };
                let (source, space) = (sources.value(row), spaces.value(row));
                if (last.0.0.as_str(), last.0.1.as_str()) != (source, space) {
                    last = (
                        (source.to_owned(), space.to_owned()),
                        (uuid(source)?, uuid(space)?),
                    );
                }
                see(last.1, tags.value(row), hi);
            }
        }
        Ok(())
    }

    /// Calls `see` with the source of each event, its id and its time.
    ///
    /// # Errors
    /// A page is damaged, or a column is missing.
    pub fn each_key(&self, mut see: impl FnMut(Uuid, EventKey)) -> Result<(), FileError> {
        for batch in self.batches_of(&["source", "event_id", "at"])? {
            let columns = Columns(batch?);
            let (sources, ids) = (columns.get("source")?, columns.get("event_id")?);
            let (sources, ids) = (sources.as_string::<i32>(), ids.as_primitive::<Int64Type>());
            let at = columns.get("at")?;
            let at = at.as_primitive::<TimestampMicrosecondType>();
            for row in 0..ids.len() {
                see(uuid(sources.value(row))?, (ids.value(row), at.value(row)));
            }
        }
        Ok(())
    }

    /// What is in it, counted anew. Reads every page.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn summary(&self) -> Result<Summary, FileError> {
        let mut summary = Summary::default();
        let mut seen: HashSet<(Uuid, i64, i64)> = HashSet::new();
        for batch in self.batches()? {
            let columns = Columns(batch?);
            let (partitions, offsets) = (columns.get("kafka_partition")?, columns.get("kafka_offset")?);
            let partitions = partitions.as_primitive::<Int32Type>();
            let offsets = offsets.as_primitive::<Int64Type>();
            if self.is_foreign {
                let at = columns.get("broker_ts")?;
                let at = at.as_primitive::<TimestampMillisecondType>();
                for row in 0..offsets.len() {
                    let us = at.value(row).saturating_mul(1_000);
                    if summary.rows == 0 {
                        summary.at = (us, us);
                    }
                    summary.rows += 1;
                    summary.at = (summary.at.0.min(us), summary.at.1.max(us));
                    summary
                        .offsets
                        .add(place_id(partitions.value(row), offsets.value(row)));
                }
                continue;
            }
            let (ids, at, sources) = (
                columns.get("event_id")?,
                columns.get("at")?,
                columns.get("source")?,
            );
            let (ids, sources) = (ids.as_primitive::<Int64Type>(), sources.as_string::<i32>());
            let at = at.as_primitive::<TimestampMicrosecondType>();
            for row in 0..ids.len() {
                let (us, id) = (at.value(row), ids.value(row));
                if summary.rows == 0 {
                    summary.at = (us, us);
                    summary.ids = (id, id);
                }
                summary.add(us, id, (partitions.value(row), offsets.value(row)));
                seen.insert((uuid(sources.value(row))?, id, us));
            }
        }
        summary.events = seen.len() as u64;
        Ok(summary)
    }

    /// Every event, in the order of the file.
    ///
    /// # Errors
    /// A page is damaged, or it is a file of foreign messages.
    pub fn each_event(&self, mut see: impl FnMut(EventRow)) -> Result<(), FileError> {
        for batch in self.batches()? {
            let columns = Columns(batch?);
            for row in 0..columns.0.num_rows() {
                see(columns.event(row)?);
            }
        }
        Ok(())
    }

    /// Every foreign message.
    ///
    /// # Errors
    /// A page is damaged, or it is a file of events.
    pub fn each_foreign(&self, mut see: impl FnMut(ForeignRow)) -> Result<(), FileError> {
        for batch in self.batches()? {
            let columns = Columns(batch?);
            let (keys, values) = (columns.get("key")?, columns.get("value")?);
            let (keys, values) = (keys.as_binary::<i32>(), values.as_binary::<i32>());
            for row in 0..columns.0.num_rows() {
                see(Foreign {
                    spot: columns.spot(row)?,
                    key: keys.is_valid(row).then(|| keys.value(row).to_vec()),
                    value: values.is_valid(row).then(|| values.value(row).to_vec()),
                    why: columns.text("why", row)?.unwrap_or_default(),
                });
            }
        }
        Ok(())
    }
}

fn uuid(text: &str) -> Result<Uuid, FileError> {
    text.parse()
        .map_err(|_| FileError::new(format!("\"{text}\" is no source")))
}

/// The columns of a batch, by name.
struct Columns(RecordBatch);

impl Columns {
    fn get(&self, name: &str) -> Result<&ArrayRef, FileError> {
        let column = self.0.column_by_name(name);
        column.ok_or_else(|| FileError::new(format!("it has no column {name}")))
    }

    fn text(&self, name: &str, row: usize) -> Result<Option<String>, FileError> {
        let column = self.get(name)?.as_string::<i32>();
        Ok(column.is_valid(row).then(|| column.value(row).to_owned()))
    }

    fn number(&self, name: &str, row: usize) -> Result<Option<i64>, FileError> {
        let column = self.get(name)?.as_primitive::<Int64Type>();
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    fn wanted<T>(&self, name: &str, value: Option<T>) -> Result<T, FileError> {
        value.ok_or_else(|| FileError::new(format!("its column {name} has a hole")))
    }

    fn spot(&self, row: usize) -> Result<Spot, FileError> {
        Ok(Spot {
            partition: self
                .get("kafka_partition")?
                .as_primitive::<Int32Type>()
                .value(row),
            offset: self.wanted("kafka_offset", self.number("kafka_offset", row)?)?,
            at_ms: self
                .get("broker_ts")?
                .as_primitive::<TimestampMillisecondType>()
                .value(row),
        })
    }

    fn event(&self, row: usize) -> Result<Arrived, FileError> {
        let text = |name: &str| self.text(name, row).and_then(|value| self.wanted(name, value));
        let number = |name: &str| self.number(name, row).and_then(|value| self.wanted(name, value));
        let at_us = self
            .get("at")?
            .as_primitive::<TimestampMicrosecondType>()
            .value(row);
        let stub = match (self.text("stub_reason", row)?, self.number("stub_bytes", row)?) {
            (Some(reason), Some(bytes)) => Some(Stub {
                reason: if reason == "too_large" {
                    StubReason::TooLarge
                } else {
                    StubReason::Refused
                },
                bytes: u64::try_from(bytes).unwrap_or(0),
                sha256: text("stub_sha256")?,
            }),
            _ => None,
        };
        let token = match (
            self.number("token_epoch", row)?,
            self.number("token_revision", row)?,
        ) {
            (Some(epoch), Some(revision)) => Some(EventToken { epoch, revision }),
            _ => None,
        };
        let payload =
            RawValue::from_string(text("payload")?).map_err(|error| FileError::new(error.to_string()))?;
        Ok(Arrived {
            spot: self.spot(row)?,
            epoch: self.number("drain_epoch", row)?,
            event: Event {
                schema: crate::event::SCHEMA,
                kind: text("kind")?,
                source: uuid(&text("source")?)?,
                event_id: number("event_id")?,
                at: show_us(at_us),
                service: text("service")?,
                space: uuid(&text("space")?)?,
                tag: text("tag")?,
                tag_seq: number("tag_seq")?,
                lo: self.number("lo", row)?,
                hi: self.number("hi", row)?,
                token,
                tx: self.text("tx", row)?,
                stub,
                payload,
            },
            at_us,
            original: self.text("original", row)?,
        })
    }
}
