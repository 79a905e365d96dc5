//! Batches: sets that are made row by row, in constant memory whatever their size.

use crate::call::{Call, uuid_result, v1_function};
use crate::drawn;
use crate::error::Error;
use crate::mint::{self, Ids, Source};
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
    /// What is left of the run that was claimed last.
    run: Ids,
    /// [`drawn::so_far`] right after it.
    drawn: u64,
    /// How many ids to claim next.
    claim: u64,
}

impl SnowflakeBatch {
    /// Have a run to go on with. What this session has minted since the last row (a trigger, a cursor that is read
    /// in between, another batch) lies above the rest of the run, which would go back then: it is dropped.
    fn go_on(&mut self) -> Result<(), Error> {
        if self.run.len > 0 && self.drawn == drawn::so_far(self.source) {
            return Ok(());
        }
        if self.run.len > 0 {
            mint::burn(self.shared, self.run.len);
            // Who interrupts once does it again and again: little is claimed, and so dropped, from now on.
            self.claim = 1;
        }
        self.run = mint::ids(self.shared, self.source, self.left.min(self.claim))?;
        self.drawn = drawn::so_far(self.source);
        self.claim = (self.claim * 2).min(RUN_MAX);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<pg_sys::Datum>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.go_on()?;
        self.left -= 1;
        Ok(Some(pg_sys::Datum::from(self.run.take_first())))
    }
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
                run: Ids::NONE,
                drawn: 0,
                claim: RUN_MAX,
            })
        },
        SnowflakeBatch::next,
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
