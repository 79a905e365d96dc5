//! `idgen_parse()` and `idgen_timestamp()`: what an id says about itself. NULL for what is not such an id.

use crate::call::{Call, bigint_datum, integer_datum, v1_function};
use crate::error::Error;
use crate::formats::{Registry, format_argument};
use idgen_core::format::Parts;
use idgen_core::{uuid, uuidv7};
use pgrx::pg_sys;

/// Unix ms of 2000-01-01T00:00:00Z, where Postgres counts its timestamps from.
pub const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

v1_function!(idgen_parse_bigint, parse_bigint);
v1_function!(idgen_parse_uuid, parse_uuid);
v1_function!(idgen_parse_registered, parse_registered);
v1_function!(idgen_timestamp_registered, timestamp_registered);
v1_function!(idgen_timestamp_bigint, timestamp_bigint);
v1_function!(idgen_timestamp_uuid, timestamp_uuid);
v1_function!(idgen_uuid_timestamp, uuid_timestamp);
v1_function!(idgen_uuid_version, uuid_version);

/// A timestamptz datum. 48 bits of ms end in the year 10889, far below Postgres' 294276.
pub fn timestamptz(unix_ms: u64) -> Option<pg_sys::Datum> {
    bigint_datum((unix_ms.cast_signed() - POSTGRES_EPOCH_MS) * 1_000)
}

/// Arguments `id`, `format` of a strict function.
fn parts(call: Call, registry: Registry) -> Result<Option<Parts>, Error> {
    let id = call.bigint(0).ok_or(Error::NullArgument { name: "id" })?;
    Ok(format_argument(call, 1, registry)?.parse(id))
}

fn parse_bigint(call: Call) -> Result<pg_sys::Datum, Error> {
    fields(call, parts(call, Registry::CompiledIn)?)
}

fn parse_registered(call: Call) -> Result<pg_sys::Datum, Error> {
    fields(call, parts(call, Registry::All)?)
}

fn fields(call: Call, parts: Option<Parts>) -> Result<pg_sys::Datum, Error> {
    let Some(parts) = parts else {
        return Ok(call.null());
    };
    // All fit: a life of a year takes 35 bits of the 64.
    let small = |value: u64| i32::try_from(value).ok().and_then(integer_datum);
    let node = |is_shard: bool| {
        if parts.is_shard == is_shard {
            small(parts.node)
        } else {
            None
        }
    };
    call.record([
        timestamptz(parts.unix_ms.0),
        parts.region.and_then(small),
        parts.version.and_then(small),
        node(false),
        node(true),
        small(parts.seq),
    ])
}

fn parse_uuid(call: Call) -> Result<pg_sys::Datum, Error> {
    let uuid = call.uuid(0).ok_or(Error::NullArgument { name: "id" })?;
    let Some(unix_ms) = uuidv7::timestamp_ms(&uuid) else {
        return Ok(call.null());
    };
    call.record([timestamptz(unix_ms), integer_datum(7)])
}

fn timestamp_bigint(call: Call) -> Result<pg_sys::Datum, Error> {
    time(call, parts(call, Registry::CompiledIn)?)
}

fn timestamp_registered(call: Call) -> Result<pg_sys::Datum, Error> {
    time(call, parts(call, Registry::All)?)
}

fn time(call: Call, parts: Option<Parts>) -> Result<pg_sys::Datum, Error> {
    Ok(parts
        .and_then(|parts| timestamptz(parts.unix_ms.0))
        .unwrap_or_else(|| call.null()))
}

fn timestamp_uuid(call: Call) -> Result<pg_sys::Datum, Error> {
    let uuid = call.uuid(0).ok_or(Error::NullArgument { name: "id" })?;
    Ok(uuidv7::timestamp_ms(&uuid)
        .and_then(timestamptz)
        .unwrap_or_else(|| call.null()))
}

/// As `uuid_extract_timestamp` of PostgreSQL 18.
fn uuid_timestamp(call: Call) -> Result<pg_sys::Datum, Error> {
    let uuid = call.uuid(0).ok_or(Error::NullArgument { name: "id" })?;
    // 60 bits of 100 ns end in the year 5236, 48 bits of ms in 10889.
    Ok(uuid::timestamp_us(&uuid)
        .and_then(|unix_us| bigint_datum(unix_us - POSTGRES_EPOCH_MS * 1_000))
        .unwrap_or_else(|| call.null()))
}

/// As `uuid_extract_version` of PostgreSQL 18.
fn uuid_version(call: Call) -> Result<pg_sys::Datum, Error> {
    let uuid = call.uuid(0).ok_or(Error::NullArgument { name: "id" })?;
    Ok(uuid::version(&uuid)
        .map(|version| pg_sys::Datum::from(i16::from(version)))
        .unwrap_or_else(|| call.null()))
}
