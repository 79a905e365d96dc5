//! `idgen_snowflake()`: by this server's workers, or by a logical shard.

use crate::call::{Call, v1_function};
use crate::error::Error;
use crate::guc;
use crate::mint::{self, Source};
use crate::shmem::{SHARDS, shared};
use pgrx::pg_sys;

v1_function!(idgen_snowflake, snowflake);
v1_function!(idgen_snowflake_shard, snowflake_shard);

#[inline(always)]
fn snowflake(_call: Call) -> Result<pg_sys::Datum, Error> {
    one(Source::Workers)
}

fn snowflake_shard(call: Call) -> Result<pg_sys::Datum, Error> {
    one(shard_argument(call, 0)?)
}

#[inline(always)]
fn one(source: Source) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    Ok(pg_sys::Datum::from(mint::ids(shared, source, 1)?.take_first()))
}

/// The shard that an argument names; NULL: that of `idgen.shard`.
///
/// # Errors
/// 22004 neither is given, 22023 not a shard.
pub fn shard_argument(call: Call, index: usize) -> Result<Source, Error> {
    let number = match call.integer(index) {
        Some(number) => number,
        None => guc::shard().ok_or(Error::NoShardNamed)?,
    };
    let shard = u16::try_from(number)
        .ok()
        .filter(|shard| usize::from(*shard) < SHARDS);
    shard.map(Source::Shard).ok_or_else(|| Error::InvalidParameter {
        message: format!("shard {number} is not within 0 to {}", SHARDS - 1),
        hint: "View idgen.slots shows the shards of this server.",
    })
}
