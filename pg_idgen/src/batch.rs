//! Batches: sets that are made row by row, in constant memory whatever their size.

use crate::call::{Call, uuid_result, v1_function};
use crate::error::Error;
use crate::mint::{self, Source};
use crate::shmem::{Shared, shared};
use crate::snowflake::shard_argument;
use crate::uuid7;
use pgrx::pg_sys;

v1_function!(idgen_snowflake_batch, snowflake_batch);
v1_function!(idgen_snowflake_shard_batch, snowflake_shard_batch);
v1_function!(idgen_uuidv7_batch, uuidv7_batch);

/// Most ids claimed by one swap: what one millisecond of one identity has.
const RUN_MAX: u64 = 4_096;

/// Argument `n` of a batch function.
fn count(call: Call) -> Result<u64, Error> {
    let n = call.bigint(0).ok_or(Error::NullArgument { name: "n" })?;
    u64::try_from(n)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| Error::InvalidParameter {
            message: format!("a batch has at least 1 id, not {n}"),
            hint: "",
        })
}

#[derive(Clone, Copy)]
struct SnowflakeBatch {
    shared: &'static Shared,
    source: Source,
    left: u64,
    /// Next id of the run, and how many it still has.
    next: i64,
    run: u64,
}

fn snowflake_batch(call: Call) -> Result<pg_sys::Datum, Error> {
    stream(call, |_| Ok(Source::BulkWorkers))
}

fn snowflake_shard_batch(call: Call) -> Result<pg_sys::Datum, Error> {
    stream(call, |call| shard_argument(call, 1))
}

fn stream(call: Call, source: impl FnOnce(Call) -> Result<Source, Error>) -> Result<pg_sys::Datum, Error> {
    call.stream(
        || {
            Ok(SnowflakeBatch {
                left: count(call)?,
                source: source(call)?,
                shared: shared().ok_or(Error::NotPreloaded)?,
                next: 0,
                run: 0,
            })
        },
        |batch| {
            if batch.left == 0 {
                return Ok(None);
            }
            if batch.run == 0 {
                let ids = mint::ids(batch.shared, batch.source, batch.left.min(RUN_MAX))?;
                (batch.next, batch.run) = (ids.first, ids.len);
            }
            let id = batch.next;
            // The last id of a run has no successor that anybody uses.
            batch.next = id.wrapping_add(1);
            (batch.run, batch.left) = (batch.run - 1, batch.left - 1);
            Ok(Some(pg_sys::Datum::from(id)))
        },
    )
}

fn uuidv7_batch(call: Call) -> Result<pg_sys::Datum, Error> {
    call.stream(
        || count(call),
        |left| {
            if *left == 0 {
                return Ok(None);
            }
            *left -= 1;
            uuid_result(uuid7::next()?).map(Some)
        },
    )
}
