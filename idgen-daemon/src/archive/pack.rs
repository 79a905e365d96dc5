//! Messages become files: one for each day and service, and one more where some of them must not be deleted.

use super::commit::{FileEntry, data_key, sha256};
use super::objects::Keep;
use super::parquet::{Arrived, FileError, Foreign, Message, encode_events, encode_foreign};
use bytes::Bytes;
use idgen_core::day::Day;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Kinds of events that are locked: an operator took a lease from its holder.
const LOCKED_KIND: &str = "snowflake.lease.force_released";

/// A file that is ready to be put.
#[derive(Clone, Debug)]
pub struct Packed {
    /// As the commit names it.
    pub entry: FileEntry,
    /// All of it.
    pub bytes: Bytes,
    /// How it is kept.
    pub keep: Keep,
}

/// The files of these messages.
///
/// # Errors
/// A file cannot be written, or is read back otherwise.
pub fn pack(
    messages: Vec<Message>,
    chain: &str,
    seq: u64,
    lock_until: Option<SystemTime>,
) -> Result<Vec<Packed>, FileError> {
    let mut events: BTreeMap<(Day, String, bool), Vec<Arrived>> = BTreeMap::new();
    let mut foreign: BTreeMap<Day, Vec<Foreign>> = BTreeMap::new();
    for message in messages {
        match message {
            Message::Event(row) => {
                let is_locked = lock_until.is_some() && row.event.kind == LOCKED_KIND;
                let group = (Day::of_us(row.at_us), row.event.service.clone(), is_locked);
                events.entry(group).or_default().push(*row);
            }
            Message::Foreign(row) => {
                let day = Day::of_us(row.spot.at_ms.saturating_mul(1_000));
                foreign.entry(day).or_default().push(row);
            }
        }
    }
    let mut packed = Vec::new();
    for ((day, service, is_locked), mut rows) in events {
        let encoded = encode_events(&mut rows, chain, seq)?;
        let key = data_key(day, Some(&service), chain, seq, &sha256(&encoded.bytes));
        packed.push(Packed {
            entry: FileEntry::of(key, &encoded.bytes, &encoded.summary),
            bytes: encoded.bytes,
            keep: Keep {
                locked_until: lock_until.filter(|_| is_locked),
            },
        });
    }
    for (day, mut rows) in foreign {
        let encoded = encode_foreign(&mut rows, chain, seq)?;
        let key = data_key(day, None, chain, seq, &sha256(&encoded.bytes));
        packed.push(Packed {
            entry: FileEntry::of(key, &encoded.bytes, &encoded.summary),
            bytes: encoded.bytes,
            keep: Keep::default(),
        });
    }
    Ok(packed)
}
