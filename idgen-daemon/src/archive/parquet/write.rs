//! Writes a file in memory, and reads it back before anybody else can see it.

use super::read::Opened;
use super::{Arrived, Encoded, FILE_SCHEMA, FileError, Foreign, Summary, place_id};
use crate::event::StubReason;
use ::parquet::arrow::ArrowWriter;
use ::parquet::arrow::arrow_writer::ArrowWriterOptions;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::file::metadata::{KeyValue, SortingColumn};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use ::parquet::schema::types::ColumnPath;
use arrow_array::builder::{BinaryBuilder, Int32Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch, TimestampMicrosecondArray, TimestampMillisecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

const ROW_GROUP_ROWS: usize = 131_072;
const ROW_GROUP_BYTES: usize = 16 << 20;
const PAGE_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 8_192;
const BATCH_BYTES: usize = 4 << 20;
const ZSTD_LEVEL: i32 = 3;
const BLOOM_FALSE: f64 = 0.01;

fn text(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Utf8, nullable)
}

fn number(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Int64, nullable)
}

fn spot_fields() -> [Field; 3] {
    [
        Field::new("kafka_partition", DataType::Int32, false),
        number("kafka_offset", false),
        Field::new(
            "broker_ts",
            DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            false,
        ),
    ]
}

static EVENTS: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let mut fields = vec![
        text("service", false),
        text("tag", false),
        text("kind", false),
        number("tag_seq", false),
        number("lo", true),
        number("hi", true),
        text("source", false),
        number("event_id", false),
        Field::new(
            "at",
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            false,
        ),
        text("space", false),
        number("token_epoch", true),
        number("token_revision", true),
        text("tx", true),
        text("stub_reason", true),
        number("stub_bytes", true),
        text("stub_sha256", true),
        text("payload", false),
        number("drain_epoch", true),
        text("original", true),
    ];
    fields.extend(spot_fields());
    Arc::new(Schema::new(fields))
});

static FOREIGN: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let mut fields = vec![
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        text("why", false),
    ];
    fields.extend(spot_fields());
    Arc::new(Schema::new(fields))
});

/// The file of these events. They are sorted by it: by tag, then as the ids of each were granted.
///
/// # Errors
/// What was read back is not what was written, or the library fails.
pub fn encode_events(rows: &mut [Arrived], chain: &str, seq: u64) -> Result<Encoded, FileError> {
    rows.sort_by(|a, b| {
        let key = |row: &Arrived| (row.event.lo, row.event.tag_seq, row.spot);
        (&a.event.tag, key(a)).cmp(&(&b.event.tag, key(b)))
    });
    let summary = summary_of_events(rows);
    let properties = properties("events", chain, seq, &summary)
        .set_column_bloom_filter_enabled("event_id".into(), true)
        .set_column_bloom_filter_fpp("event_id".into(), BLOOM_FALSE)
        .set_column_bloom_filter_max_ndv("event_id".into(), summary.rows.max(1))
        .set_sorting_columns(Some(
            ["tag", "lo", "tag_seq"]
                .map(sorting)
                .into_iter()
                .collect::<Result<_, _>>()?,
        ));
    let size = |row: &Arrived| row.event.payload.get().len() + row.original.as_ref().map_or(0, String::len);
    let chunks = chunks(rows, size).map(event_batch);
    let bytes = write(&EVENTS, properties.build(), chunks)?;
    checked(bytes, summary)
}

/// The file of messages that are none of ours.
///
/// # Errors
/// As [`encode_events`].
pub fn encode_foreign(rows: &mut [Foreign], chain: &str, seq: u64) -> Result<Encoded, FileError> {
    rows.sort_by_key(|row| row.spot);
    let mut summary = Summary {
        rows: rows.len() as u64,
        ..Summary::default()
    };
    let at = || rows.iter().map(|row| row.spot.at_ms.saturating_mul(1_000));
    summary.at = (at().min().unwrap_or(0), at().max().unwrap_or(0));
    for row in &*rows {
        summary.offsets.add(place_id(row.spot.partition, row.spot.offset));
    }
    let properties = properties("foreign", chain, seq, &summary).build();
    let bytes = write(
        &FOREIGN,
        properties,
        chunks(rows, |row| row.value.as_ref().map_or(0, Vec::len)).map(foreign_batch),
    )?;
    checked(bytes, summary)
}

/// Rows that are handed to the library at once: it looks at what it holds only between two of them.
fn chunks<T>(mut rows: &[T], size: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rows.iter().take(BATCH_ROWS).take_while(|row| {
            let before = bytes;
            bytes += size(row);
            before < BATCH_BYTES
        });
        let (chunk, rest) = rows.split_at(fits.count());
        rows = rest;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// What was written must be what is read: a file without an end is never put.
fn checked(bytes: Vec<u8>, summary: Summary) -> Result<Encoded, FileError> {
    let bytes = bytes::Bytes::from(bytes);
    let back = Opened::open(bytes.clone())?.summary()?;
    if back == summary {
        Ok(Encoded { bytes, summary })
    } else {
        Err(FileError::new(format!(
            "wrote {summary:?} and read back {back:?}"
        )))
    }
}

fn sorting(column: &str) -> Result<SortingColumn, FileError> {
    let at = EVENTS.index_of(column)?;
    Ok(SortingColumn {
        column_idx: i32::try_from(at).map_err(|_| FileError::new("too many columns"))?,
        descending: false,
        nulls_first: true,
    })
}

pub(super) fn summary_of_events(rows: &[Arrived]) -> Summary {
    let mut summary = Summary::default();
    let mut seen = HashSet::with_capacity(rows.len());
    for row in rows {
        let event = &row.event;
        if summary.rows == 0 {
            summary.at = (row.at_us, row.at_us);
            summary.ids = (event.event_id, event.event_id);
        }
        summary.add(row.at_us, event.event_id, (row.spot.partition, row.spot.offset));
        seen.insert((event.source, event.event_id, row.at_us));
    }
    summary.events = seen.len() as u64;
    summary
}

impl Summary {
    pub(super) fn add(&mut self, at_us: i64, event_id: i64, (partition, offset): (i32, i64)) {
        self.rows += 1;
        self.at = (self.at.0.min(at_us), self.at.1.max(at_us));
        self.ids = (self.ids.0.min(event_id), self.ids.1.max(event_id));
        self.digest.add_event((event_id, at_us));
        self.offsets.add(place_id(partition, offset));
    }
}

fn properties(kind: &str, chain: &str, seq: u64, summary: &Summary) -> WriterPropertiesBuilder {
    let entry = |key: &str, value: String| KeyValue::new(format!("idgen.{key}"), value);
    let footer = vec![
        entry("schema", FILE_SCHEMA.to_owned()),
        entry("kind", kind.to_owned()),
        entry("contract", crate::event::SCHEMA.to_string()),
        entry("writer", env!("CARGO_PKG_VERSION").to_owned()),
        entry("chain", chain.to_owned()),
        entry("seq", seq.to_string()),
        entry("rows", summary.rows.to_string()),
        entry("events", summary.events.to_string()),
        entry("id_digest", shown(summary)),
    ];
    let level = ZstdLevel::try_new(ZSTD_LEVEL).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        // Not the library's version: equal rows give equal bytes.
        .set_created_by("pg_idgen archive".to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_data_page_size_limit(PAGE_BYTES)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_dictionary_enabled(false)
        .set_key_value_metadata(Some(footer));
    for column in ["service", "tag", "kind", "source", "space", "stub_reason", "why"] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(column), true);
    }
    properties
}

fn shown(summary: &Summary) -> String {
    let mut text = String::new();
    let _ = write!(text, "{:016x}{:016x}", summary.digest.xor, summary.digest.sum);
    text
}

fn write(
    schema: &Arc<Schema>,
    properties: WriterProperties,
    batches: impl Iterator<Item = Result<RecordBatch, FileError>>,
) -> Result<Vec<u8>, FileError> {
    let options = ArrowWriterOptions::new()
        .with_properties(properties)
        .with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(schema), options)?;
    for batch in batches {
        writer.write(&batch?)?;
        // The library would hold the whole group.
        if writer.memory_size() > ROW_GROUP_BYTES {
            writer.flush()?;
        }
    }
    Ok(writer.into_inner()?)
}

/// The columns that say where each message was.
fn spots(spots: impl Iterator<Item = super::Spot>) -> [ArrayRef; 3] {
    let (mut partitions, mut offsets, mut times) = (Int32Builder::new(), Int64Builder::new(), Vec::new());
    for spot in spots {
        partitions.append_value(spot.partition);
        offsets.append_value(spot.offset);
        times.push(spot.at_ms);
    }
    [
        Arc::new(partitions.finish()),
        Arc::new(offsets.finish()),
        Arc::new(TimestampMillisecondArray::from(times).with_timezone("UTC")),
    ]
}

fn texts<'r>(rows: &'r [Arrived], of: impl Fn(&'r Arrived) -> &'r str) -> ArrayRef {
    let mut column = StringBuilder::with_capacity(rows.len(), rows.len() * 16);
    rows.iter().for_each(|row| column.append_value(of(row)));
    Arc::new(column.finish())
}

fn maybe_texts<'r>(rows: &'r [Arrived], of: impl Fn(&'r Arrived) -> Option<&'r str>) -> ArrayRef {
    let mut column = StringBuilder::new();
    rows.iter().for_each(|row| column.append_option(of(row)));
    Arc::new(column.finish())
}

fn numbers(rows: &[Arrived], of: impl Fn(&Arrived) -> Option<i64>) -> ArrayRef {
    let mut column = Int64Builder::with_capacity(rows.len());
    rows.iter().for_each(|row| column.append_option(of(row)));
    Arc::new(column.finish())
}

fn uuids(rows: &[Arrived], of: impl Fn(&Arrived) -> uuid::Uuid) -> ArrayRef {
    let mut column = StringBuilder::with_capacity(rows.len(), rows.len() * 36);
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    for row in rows {
        column.append_value(of(row).hyphenated().encode_lower(&mut text));
    }
    Arc::new(column.finish())
}

fn stub_reason(row: &Arrived) -> Option<&str> {
    row.event.stub.as_ref().map(|stub| match stub.reason {
        StubReason::TooLarge => "too_large",
        StubReason::Refused => "refused",
    })
}

fn event_batch(rows: &[Arrived]) -> Result<RecordBatch, FileError> {
    let at = rows.iter().map(|row| row.at_us).collect::<Vec<_>>();
    let mut columns: Vec<ArrayRef> = vec![
        texts(rows, |row| &row.event.service),
        texts(rows, |row| &row.event.tag),
        texts(rows, |row| &row.event.kind),
        numbers(rows, |row| Some(row.event.tag_seq)),
        numbers(rows, |row| row.event.lo),
        numbers(rows, |row| row.event.hi),
        uuids(rows, |row| row.event.source),
        numbers(rows, |row| Some(row.event.event_id)),
        Arc::new(TimestampMicrosecondArray::from(at).with_timezone("UTC")),
        uuids(rows, |row| row.event.space),
        numbers(rows, |row| row.event.token.map(|token| token.epoch)),
        numbers(rows, |row| row.event.token.map(|token| token.revision)),
        maybe_texts(rows, |row| row.event.tx.as_deref()),
        maybe_texts(rows, |row| stub_reason(row)),
        numbers(rows, |row| {
            row.event
                .stub
                .as_ref()
                .and_then(|stub| i64::try_from(stub.bytes).ok())
        }),
        maybe_texts(rows, |row| {
            row.event.stub.as_ref().map(|stub| stub.sha256.as_str())
        }),
        texts(rows, |row| row.event.payload.get()),
        numbers(rows, |row| row.epoch),
        maybe_texts(rows, |row| row.original.as_deref()),
    ];
    columns.extend(spots(rows.iter().map(|row| row.spot)));
    Ok(RecordBatch::try_new(Arc::clone(&EVENTS), columns)?)
}

fn foreign_batch(rows: &[Foreign]) -> Result<RecordBatch, FileError> {
    let (mut keys, mut values, mut whys) = (BinaryBuilder::new(), BinaryBuilder::new(), StringBuilder::new());
    for row in rows {
        keys.append_option(row.key.as_deref());
        values.append_option(row.value.as_deref());
        whys.append_value(&row.why);
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(keys.finish()),
        Arc::new(values.finish()),
        Arc::new(whys.finish()),
    ];
    columns.extend(spots(rows.iter().map(|row| row.spot)));
    Ok(RecordBatch::try_new(Arc::clone(&FOREIGN), columns)?)
}
