//! The server's anchors: how far its lease store had come when leases were last installed and extended.
//!
//! Written by the daemon's sessions, one file for each kind of lease, so that no two sessions write one file. An
//! anchor is a lower bound: an older copy of the file is less sharp but not wrong, so a base backup may carry it.
//! What the text means is said by `idgen_core::lease::Anchor`; a torn or changed one has a wrong checksum.

use crate::call::{Call, bigint_datum, in_recovery, text_datum, v1_function};
use crate::cell::{read_file, write_file};
use crate::control::{check_boot, kind_argument, other_cell};
use crate::error::Error;
use crate::shmem::{Kind, shared};
use idgen_core::clock::BootMs;
use idgen_core::lease::Anchor;
use pgrx::pg_sys;

v1_function!(idgen_anchors, anchors);
v1_function!(idgen_store_anchor, store_anchor);

/// In the data directory.
fn file_of(kind: Kind) -> String {
    format!("pg_idgen_anchor.{kind}")
}

/// `None`: there is none.
fn remembered(kind: Kind) -> Result<Option<Anchor>, Error> {
    let file = file_of(kind);
    let doubtful = |reason: String| Error::AnchorDoubtful {
        file: file.clone(),
        reason,
    };
    let Some(text) = read_file(&file).map_err(|error| doubtful(error.to_string()))? else {
        return Ok(None);
    };
    let anchor = text.trim_end().parse::<Anchor>();
    anchor.map(Some).map_err(|error| doubtful(error.to_string()))
}

fn anchors(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    let now = crate::clock::boot();
    for kind in Kind::ALL {
        if let Some(anchor) = remembered(kind)? {
            let ago_ms = shared().and_then(|shared| shared.store_asked_ago_ms(kind, now));
            let ago_ms = ago_ms.and_then(|ms| i64::try_from(ms).ok());
            rows.push([
                text_datum(kind.name()),
                text_datum(&anchor.to_string()),
                ago_ms.and_then(bigint_datum),
            ]);
        }
    }
    Ok(rows.done())
}

fn store_anchor(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 0)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let kind = kind_argument(call, 1)?;
    let text = call.text(2)?.ok_or(Error::NullArgument { name: "anchor" })?;
    let anchor: Anchor = text.parse().map_err(|error| Error::InvalidParameter {
        message: format!("this is no anchor: {error}"),
        hint: "",
    })?;
    let asked = call.bigint(3).ok_or(Error::NullArgument { name: "asked_ms" })?;
    let offered = anchor.cell_id.0.to_be_bytes();
    if let Some(cell) = shared.cell_id().filter(|cell| *cell != offered) {
        return Err(other_cell(cell, offered));
    }
    // One of another cell was left by a server whose cell was forgotten on purpose.
    let before = remembered(kind)?.filter(|before| before.cell_id == anchor.cell_id);
    if let Some(before) = &before {
        before
            .may_become(&anchor)
            .map_err(|departure| Error::StoreBehindAnchor {
                reason: departure.to_string(),
            })?;
    }
    let changed = before.as_ref() != Some(&anchor);
    if changed {
        write_file(&file_of(kind), &format!("{anchor}\n")).map_err(|error| Error::AnchorNotKept {
            reason: error.to_string(),
        })?;
    }
    // What lies in the future is no reading of this clock.
    let asked = BootMs(u64::try_from(asked).unwrap_or(0));
    if asked <= crate::clock::boot() {
        shared.note_store_asked(kind, asked);
    }
    Ok(pg_sys::Datum::from(changed))
}
