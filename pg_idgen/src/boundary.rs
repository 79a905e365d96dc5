//! Ids as bounds in time: for range scans, partitions and cursors. All immutable, so that the planner can use
//! them; all clamped, so that a bound is never an error.

use crate::call::{Call, bigint_datum, uuid_result, v1_function};
use crate::error::Error;
use crate::formats::{Registry, format_argument};
use crate::parse::POSTGRES_EPOCH_MS;
use idgen_core::uuidv7;
use pgrx::pg_sys;

v1_function!(idgen_snowflake_min, snowflake_min);
v1_function!(idgen_snowflake_max, snowflake_max);
v1_function!(idgen_snowflake_min_registered, snowflake_min_registered);
v1_function!(idgen_snowflake_max_registered, snowflake_max_registered);
v1_function!(idgen_uuidv7_min, uuidv7_min);
v1_function!(idgen_uuidv7_max, uuidv7_max);
v1_function!(idgen_cursor_floor, cursor_floor);

/// Argument of SQL type timestamptz in Unix µs. The infinities stay at the ends.
pub fn unix_us(call: Call, index: usize) -> Result<i64, Error> {
    let since_2000_us = call.bigint(index).ok_or(Error::NullArgument { name: "at" })?;
    Ok(since_2000_us.saturating_add(POSTGRES_EPOCH_MS * 1_000))
}

fn snowflake_min(call: Call) -> Result<pg_sys::Datum, Error> {
    let format = format_argument(call, 1, Registry::CompiledIn)?;
    Ok(pg_sys::Datum::from(format.lowest_id_at(unix_us(call, 0)?)))
}

fn snowflake_max(call: Call) -> Result<pg_sys::Datum, Error> {
    let format = format_argument(call, 1, Registry::CompiledIn)?;
    Ok(pg_sys::Datum::from(format.highest_id_at(unix_us(call, 0)?)))
}

fn snowflake_min_registered(call: Call) -> Result<pg_sys::Datum, Error> {
    let format = format_argument(call, 1, Registry::All)?;
    Ok(pg_sys::Datum::from(format.lowest_id_at(unix_us(call, 0)?)))
}

fn snowflake_max_registered(call: Call) -> Result<pg_sys::Datum, Error> {
    let format = format_argument(call, 1, Registry::All)?;
    Ok(pg_sys::Datum::from(format.highest_id_at(unix_us(call, 0)?)))
}

fn uuidv7_min(call: Call) -> Result<pg_sys::Datum, Error> {
    uuid_result(uuidv7::lowest_at(unix_us(call, 0)?))
}

fn uuidv7_max(call: Call) -> Result<pg_sys::Datum, Error> {
    uuid_result(uuidv7::highest_at(unix_us(call, 0)?))
}

fn cursor_floor(call: Call) -> Result<pg_sys::Datum, Error> {
    let id = call.bigint(0).ok_or(Error::NullArgument { name: "id" })?;
    let overlap = call.interval(1).ok_or(Error::NullArgument { name: "overlap" })?;
    let wrong = |message: &str| Error::InvalidParameter {
        message: message.into(),
        hint: "Give the overlap in hours, minutes or seconds.",
    };
    if overlap.month != 0 || overlap.day != 0 {
        return Err(wrong(
            "the overlap must not have months or days, whose length depends on the calendar",
        ));
    }
    if overlap.time < 0 {
        return Err(wrong("the overlap must not be negative"));
    }
    let format = format_argument(call, 2, Registry::CompiledIn)?;
    let Some(parts) = format.parse(id) else {
        return Ok(call.null());
    };
    let at_us = (parts.unix_ms.0.cast_signed() * 1_000).saturating_sub(overlap.time);
    Ok(bigint_datum(format.lowest_id_at(at_us)).unwrap_or_else(|| call.null()))
}
