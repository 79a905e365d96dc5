//! Audit events as others read them: one message of Kafka, one row of the archive. The contract is `docs/events.md`, with vectors in
//! `docs/vectors/events.json`.
//!
//! An event of a segment is a row of `idgen.audit_event`, one of a lease is a row of `idgen.lease_event`. Both count their *stream*,
//! (source, space, tag), by one, so that whoever reads them sees what is missing, what comes again and what was changed.

mod stub;
#[cfg(test)]
mod tests;

pub use self::stub::{Stub, StubReason, hex};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// Version of the contract that is written. A reader refuses others by name.
pub const SCHEMA: u32 = 1;

/// Tag of all events of leases: their space is the cell, and they are counted per cell.
pub const LEASE_TAG: &str = "lease";

/// Kind of the events that grant ids of a tag.
pub const GRANT: &str = "segment.grant";

/// What the kinds of events of leases begin with.
pub const LEASE_KIND: &str = "snowflake.lease.";

/// Longest name of a database, in bytes.
const SERVICE_MAX: usize = 63;

/// One event. Fields are written in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Version of the contract.
    pub schema: u32,
    /// `segment.grant`, `authority.burn`, `snowflake.lease.granted`, …
    pub kind: String,
    /// The database that recorded it, or of a lease the cell. `(source, event_id)` is unique.
    pub source: Uuid,
    /// Number within the source. Rises, with gaps.
    pub event_id: i64,
    /// When it was recorded: UTC, RFC 3339 with six digits.
    pub at: String,
    /// Which installation speaks, for people and for folders: the database's name unless configured.
    pub service: String,
    /// Tag space, or of a lease the cell.
    pub space: Uuid,
    /// The tag; empty: the whole space. Of a lease [`LEASE_TAG`].
    pub tag: String,
    /// Number within (source, space, tag), without gaps.
    pub tag_seq: i64,
    /// First id of the range that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lo: Option<i64>,
    /// Last id of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hi: Option<i64>,
    /// Fencing token of the authority or lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<EventToken>,
    /// Transaction of the database (xid8), in decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx: Option<String>,
    /// Present: the event could not be sent as it is, and this says of what it stands in the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stub: Option<Stub>,
    /// What else is to be known, by kind: a JSON object. Of a stub `{}`.
    pub payload: Box<RawValue>,
}

/// A fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventToken {
    /// Epoch of the store.
    pub epoch: i64,
    /// Revision of the store.
    pub revision: i64,
}

impl std::fmt::Display for EventToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.epoch, self.revision)
    }
}

/// What the detail of an event of a lease may have, by kind, as `idgen_core::lease::events` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseDetail {
    pub holder: Option<String>,
    pub instance: Option<String>,
    pub token: Option<String>,
    pub ceiling_ms: Option<u64>,
    pub generation: Option<u64>,
    pub above_ms: Option<u64>,
    pub early_ms: Option<u64>,
}

/// Why bytes are no event that this program reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Another version of the contract.
    Schema(u64),
    /// No event at all. The text is for people.
    Malformed(String),
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Schema(schema) => write!(f, "schema version {schema}, and this program reads {SCHEMA}"),
            Self::Malformed(why) => write!(f, "not an event: {why}"),
        }
    }
}

/// What an event of a lease is made of: a row of `idgen.lease_event`.
#[derive(Debug)]
pub struct LeaseEvent<'a> {
    /// Of which cell.
    pub cell: Uuid,
    /// Its number in the trail of the cell.
    pub seq: i64,
    /// As the trail calls it.
    pub kind: &'a str,
    /// When it was recorded.
    pub at: String,
    /// Which installation.
    pub service: &'a str,
    /// What else is known of it.
    pub payload: Box<RawValue>,
}

impl From<LeaseEvent<'_>> for Event {
    /// The cell is its source and its space, and the trail counts both its events and those of its one tag.
    fn from(of: LeaseEvent<'_>) -> Self {
        Self {
            schema: SCHEMA,
            kind: format!("{LEASE_KIND}{}", of.kind),
            source: of.cell,
            event_id: of.seq,
            at: of.at,
            service: of.service.to_owned(),
            space: of.cell,
            tag: LEASE_TAG.to_owned(),
            tag_seq: of.seq,
            lo: None,
            hi: None,
            token: None,
            tx: None,
            stub: None,
            payload: of.payload,
        }
    }
}

impl Event {
    /// The message's value.
    ///
    /// # Errors
    /// None that is known: all fields have a form in JSON.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    /// Reads a message's value. Fields that are not known are passed over: a later release may add some.
    ///
    /// # Errors
    /// [`Foreign`]: another version, or no event.
    pub fn parse(value: &[u8]) -> Result<Self, Foreign> {
        #[derive(Deserialize)]
        struct Version {
            schema: u64,
        }
        let malformed = |error: serde_json::Error| Foreign::Malformed(error.to_string());
        // Once where all is well: of what is no event of this version it is asked which it is.
        let event = match serde_json::from_slice::<Self>(value) {
            Ok(event) if event.schema == SCHEMA => event,
            parsed => {
                let version: Version = serde_json::from_slice(value).map_err(malformed)?;
                if version.schema != u64::from(SCHEMA) {
                    return Err(Foreign::Schema(version.schema));
                }
                parsed.map_err(malformed)?
            }
        };
        // Postgres has no such texts: what is told of the event could not be written down there.
        let texts = [&event.kind, &event.at, &event.tag];
        if texts.into_iter().chain(&event.tx).any(|text| text.contains('\0')) {
            return Err(Foreign::Malformed("a text of it has a zero byte".to_owned()));
        }
        // It becomes a folder's name, and of one that cannot be made nothing would ever be written.
        if event.service.is_empty() || event.service.len() > SERVICE_MAX || event.service.contains('\0') {
            return Err(Foreign::Malformed(format!(
                "its service is not 1 to {SERVICE_MAX} bytes without a zero"
            )));
        }
        Ok(event)
    }

    /// The message's key, `SPACE/TAG`: everything of a tag is in one partition, in order.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.space, self.tag)
    }

    /// Is it of a lease, and not of a segment?
    #[must_use]
    pub fn is_of_lease(&self) -> bool {
        self.kind.starts_with(LEASE_KIND)
    }
}
