//! Formats by name: the compiled-in ones, and those registered in this database.

use crate::boundary::unix_us;
use crate::call::{Call, boolean_datum, current_user, in_recovery, integer_datum, text_datum, v1_function};
use crate::error::{Error, clip};
use crate::local::Local;
use crate::owner::{AsOwner, Table};
use crate::parse::timestamptz;
use crate::transaction;
use idgen_core::clock::UnixMs;
use idgen_core::format::register::Widths;
use idgen_core::format::{ALL, Format, FormatName, by_name};
use pgrx::pg_sys;
use pgrx::prelude::*;

v1_function!(idgen_compiled_formats, compiled_formats);
v1_function!(idgen_register_format, register_format);
v1_function!(idgen_format_stays, format_stays);

const INSERT: &str = "
    INSERT INTO idgen.format (name, epoch, sign_bits, ts_bits, region_bits, version_bits, node_bits, seq_bits,
                              is_shard, registered_by)
    VALUES ($1, pg_catalog.to_timestamp($2 / 1000.0), $3, $4, $5, $6, $7, $8, $9, (SELECT rolname FROM pg_roles WHERE oid = $10))
    ON CONFLICT (name) DO NOTHING
    RETURNING true";

const FIND: &str = "
    SELECT (extract(epoch FROM epoch) * 1000)::bigint, sign_bits, ts_bits, region_bits, version_bits, node_bits,
           seq_bits, is_shard
      FROM idgen.format WHERE name = $1";

/// Where a function looks for a format. One that is immutable may not look into a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    CompiledIn,
    All,
}

/// The registered format that was used last in this transaction.
static LAST: Local<Option<Format>> = Local::new(None);

/// Forget it with the end of every transaction, and when one is rolled back to a savepoint: the format may have been
/// registered in what is undone. Once per process.
pub fn define_callbacks() {
    transaction::tell(on_transaction);
    transaction::tell_savepoints(on_subtransaction);
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(
    _event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    LAST.set(None);
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut std::ffi::c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        LAST.set(None);
    }
}

/// Argument `format` of a strict function.
///
/// # Errors
/// 22023 not known.
pub fn format_argument(call: Call, index: usize, registry: Registry) -> Result<Format, Error> {
    let name = call.text(index)?.ok_or(Error::NullArgument { name: "format" })?;
    if let Some(format) = by_name(name) {
        return Ok(*format);
    }
    let found = match registry {
        Registry::CompiledIn => None,
        Registry::All => registered(name)?,
    };
    found.ok_or_else(|| Error::InvalidParameter {
        message: format!("id format \"{}\" is not known", clip(name)),
        hint: match registry {
            Registry::CompiledIn => {
                "Known formats: classic, regional, sharded. Registered ones are read by the functions whose names end in _registered."
            }
            Registry::All => "View idgen.formats lists them; idgen.register_format() makes one known.",
        },
    })
}

fn registered(name: &str) -> Result<Option<Format>, Error> {
    if let Some(last) = LAST.get().filter(|last| last.name.as_str() == name) {
        return Ok(Some(last));
    }
    // What is no name is in no table.
    let (Some(_), Some(table)) = (FormatName::new(name), Table::of_extension(c"format")) else {
        return Ok(None);
    };
    let _as_owner = AsOwner::begin(table.owner);
    let found = Spi::connect(|client| find(client, name))?;
    LAST.set(found);
    Ok(found)
}

fn find(client: &pgrx::spi::SpiClient<'_>, name: &str) -> Result<Option<Format>, Error> {
    let row = client.select(FIND, Some(1), &[name.into()])?.first();
    if row.is_empty() {
        return Ok(None);
    }
    let width = |column| -> Result<u32, Error> { Ok(row.get::<i32>(column)?.unwrap_or(0).cast_unsigned()) };
    let widths = Widths {
        sign: width(2)?,
        ts: width(3)?,
        region: width(4)?,
        version: width(5)?,
        node: width(6)?,
        seq: width(7)?,
    };
    let epoch = UnixMs(row.get::<i64>(1)?.unwrap_or(0).cast_unsigned());
    let is_shard = row.get::<bool>(8)?.unwrap_or(false);
    let format = Format::register(name, epoch, widths, is_shard).map_err(|error| Error::Internal {
        message: format!("the row of format \"{name}\" in table idgen.format is damaged: {error}"),
    })?;
    Ok(Some(format))
}

fn register_format(call: Call) -> Result<pg_sys::Datum, Error> {
    let format = format_from_args(call)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let table = Table::of_extension(c"format").ok_or_else(|| Error::Internal {
        message: "table idgen.format is missing".into(),
    })?;
    let user = current_user();
    let _as_owner = AsOwner::begin(table.owner);
    Spi::connect_mut(|client| insert(client, &format, user))
}

/// Arguments in the order of the SQL definition.
fn format_from_args(call: Call) -> Result<Format, Error> {
    let name = call.text(0)?.ok_or(Error::NullArgument { name: "name" })?;
    let bits = |index, name| {
        let bits = call.integer(index).ok_or(Error::NullArgument { name })?;
        u32::try_from(bits).map_err(|_| Error::InvalidParameter {
            message: format!("{name} must not be negative"),
            hint: "",
        })
    };
    let widths = Widths {
        ts: bits(2, "ts_bits")?,
        node: bits(3, "node_bits")?,
        seq: bits(4, "seq_bits")?,
        region: bits(5, "region_bits")?,
        version: bits(6, "version_bits")?,
        sign: bits(7, "sign_bits")?,
    };
    let is_shard = call.boolean(8).ok_or(Error::NullArgument { name: "is_shard" })?;
    Format::register(name, epoch_argument(call, 1)?, widths, is_shard).map_err(|error| Error::InvalidParameter {
        message: format!("format \"{}\" cannot be registered: {error}", clip(name)),
        hint: "Widths sum to 64 with the sign; at most 41 timestamp bits (ms), 12 sequence bits, and a life of a year.",
    })
}

/// Formats count whole milliseconds from an epoch in 1970 or later.
fn epoch_argument(call: Call, index: usize) -> Result<UnixMs, Error> {
    call.bigint(index).ok_or(Error::NullArgument { name: "epoch" })?;
    let us = unix_us(call, index)?;
    let whole = us % 1_000 == 0;
    let epoch = u64::try_from(us / 1_000).ok().filter(|_| whole);
    epoch.map(UnixMs).ok_or_else(|| Error::InvalidParameter {
        message: "the epoch of a format is a whole millisecond from 1970 on".into(),
        hint: "",
    })
}

/// True: registered. False: the very same one was there.
fn insert(
    client: &mut pgrx::spi::SpiClient<'_>,
    format: &Format,
    user: pg_sys::Oid,
) -> Result<pg_sys::Datum, Error> {
    let widths = format.widths();
    let bits = |width: u32| width.cast_signed();
    let made = client.update(
        INSERT,
        None,
        &[
            format.name.as_str().into(),
            format.epoch.0.cast_signed().into(),
            bits(widths.sign).into(),
            bits(widths.ts).into(),
            bits(widths.region).into(),
            bits(widths.version).into(),
            bits(widths.node).into(),
            bits(widths.seq).into(),
            format.is_shard.into(),
            user.into(),
        ],
    )?;
    if !made.is_empty() {
        return Ok(pg_sys::Datum::from(true));
    }
    match find(client, format.name.as_str())? {
        Some(there) if there == *format => Ok(pg_sys::Datum::from(false)),
        _ => Err(Error::FormatExists {
            name: format.name.to_string(),
        }),
    }
}

/// Trigger: refuses.
fn format_stays(_call: Call) -> Result<pg_sys::Datum, Error> {
    Err(Error::FormatStays)
}

fn compiled_formats(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    for format in ALL {
        let widths = format.widths();
        let bits = |width: u32| integer_datum(width.cast_signed());
        rows.push([
            text_datum(format.name.as_str()),
            timestamptz(format.epoch.0),
            bits(widths.sign),
            bits(widths.ts),
            bits(widths.region),
            bits(widths.version),
            bits(widths.node),
            bits(widths.seq),
            boolean_datum(format.is_shard),
        ]);
    }
    Ok(rows.done())
}
