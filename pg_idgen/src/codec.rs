//! `idgen_encode()` and `idgen_decode()`: ids as text that survives JSON. `idgen.mix_id()`: what sets of ids come to.

use crate::call::{Call, text_datum, v1_function};
use crate::error::{Error, shown};
use idgen_core::archive;
use idgen_core::base32;
use pgrx::pg_sys;

v1_function!(idgen_encode, encode);
v1_function!(idgen_decode, decode);
v1_function!(idgen_mix_id, mix_id);

fn encode(call: Call) -> Result<pg_sys::Datum, Error> {
    let id = call.bigint(0).ok_or(Error::NullArgument { name: "id" })?;
    let encoded = base32::encode(id).ok_or_else(|| Error::InvalidParameter {
        message: format!("{id} is negative and so no id"),
        hint: "Ids are positive.",
    })?;
    // The alphabet is ASCII.
    let text = encoded.iter().map(|byte| char::from(*byte)).collect::<String>();
    Ok(text_datum(&text).unwrap_or_else(|| call.null()))
}

fn decode(call: Call) -> Result<pg_sys::Datum, Error> {
    let bytes = call
        .text_bytes(0)
        .ok_or(Error::NullArgument { name: "encoded" })?;
    base32::decode(bytes)
        .map(pg_sys::Datum::from)
        .map_err(|error| Error::InvalidText {
            message: format!("\"{}\" is no encoded id", shown(bytes)),
            detail: format!("Reason: {error}."),
        })
}

fn mix_id(call: Call) -> Result<pg_sys::Datum, Error> {
    let id = call.bigint(0).ok_or(Error::NullArgument { name: "id" })?;
    let mixed = archive::mix_id(id.cast_unsigned()).cast_signed();
    Ok(pg_sys::Datum::from(mixed))
}
