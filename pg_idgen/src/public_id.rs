//! `idgen_public_id()`, `idgen_seal()` and `idgen_open()`: ids for the outside of an application.

use crate::call::{Call, text_datum, v1_function};
use crate::error::{Error, shown};
use crate::{prefix, seal_keys, uuid7};
use idgen_core::public_id;
use pgrx::pg_sys;

v1_function!(idgen_public_id, public_id);
v1_function!(idgen_seal, seal);
v1_function!(idgen_open, open);
v1_function!(idgen_seal_key_count, seal_key_count);

fn text(call: Call, text: &public_id::Text) -> pg_sys::Datum {
    text_datum(text.as_str()).unwrap_or_else(|| call.null())
}

fn public_id(call: Call) -> Result<pg_sys::Datum, Error> {
    let prefix = prefix::argument(call, 0)?;
    prefix::check_registered(prefix)?;
    let [high, low] = uuid7::random_words()?;
    let number = u128::from(high) << u64::BITS | u128::from(low);
    Ok(text(call, &public_id::compose(prefix, number)))
}

/// The prefix needs the right form only. A registered one keeps a slip of the pen out of tables; sealed ids are
/// in no table, and a slip shows itself when nothing opens.
fn seal(call: Call) -> Result<pg_sys::Datum, Error> {
    let id = call.bigint(0).ok_or(Error::NullArgument { name: "id" })?;
    let prefix = prefix::argument(call, 1)?;
    let sealed = seal_keys::with(|keys| keys.seal(id, prefix))?;
    Ok(text(call, &public_id::compose(prefix, sealed)))
}

fn open(call: Call) -> Result<pg_sys::Datum, Error> {
    let sealed = call.text_bytes(0).ok_or(Error::NullArgument { name: "sealed" })?;
    let prefix = prefix::argument(call, 1)?;
    let (found, number) = public_id::parse(sealed).map_err(|error| Error::InvalidText {
        message: format!("\"{}\" is no sealed id", shown(sealed)),
        detail: format!("Reason: {error}."),
    })?;
    // Keys first: without them nothing is said about any text.
    seal_keys::with(|keys| keys.open(number, prefix))?
        .filter(|_| found == prefix)
        .map(pg_sys::Datum::from)
        .ok_or_else(|| Error::NotSealed {
            prefix: prefix.as_str().into(),
        })
}

fn seal_key_count(_call: Call) -> Result<pg_sys::Datum, Error> {
    match seal_keys::with(|keys| keys.count()) {
        Ok(count) => Ok(pg_sys::Datum::from(count as i32)),
        Err(Error::NoSealKey) => Ok(pg_sys::Datum::from(0_i32)),
        Err(error) => Err(error),
    }
}
