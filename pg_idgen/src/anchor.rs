//! The server's anchors: how far its lease store had come when leases were last installed and extended.
//!
//! Written by the daemon's sessions, one file for each kind of lease, so that no two sessions write one file. An
//! anchor is a lower bound: an older copy of the file is less sharp but not wrong, so a base backup may carry it.
//! What the text means is said by `idgen_core::lease::Anchor`; a torn or changed one has a wrong checksum.
//!
//! A second line says when the store was asked for what the anchor tells of, on the clock of this boot of the host. A
//! copy of it is as true as the anchor beside it; on another host, or after a boot, it says nothing.

use crate::call::{Call, bigint_datum, in_recovery, text_datum, v1_function};
use crate::cell::{read_file, write_file};
use crate::control::{check_boot, kind_argument, other_cell};
use crate::error::Error;
use crate::shmem::{Kind, shared};
use idgen_core::clock::BootMs;
use idgen_core::lease::Anchor;
use pgrx::pg_sys;

/// Names the boot of the host that readings of CLOCK_BOOTTIME belong to.
const HOST_BOOT: &str = "/proc/sys/kernel/random/boot_id";

v1_function!(idgen_anchors, anchors);
v1_function!(idgen_store_anchor, store_anchor);

/// In the data directory.
fn file_of(kind: Kind) -> String {
    format!("pg_idgen_anchor.{kind}")
}

/// What a file has.
struct Remembered {
    anchor: Anchor,
    /// A moment before the store was asked for it.
    asked: Option<BootMs>,
}

/// `None`: there is none.
fn remembered(kind: Kind) -> Result<Option<Remembered>, Error> {
    let file = file_of(kind);
    let doubtful = |reason: String| Error::AnchorDoubtful {
        file: file.clone(),
        reason,
    };
    let Some(text) = read_file(&file).map_err(|error| doubtful(error.to_string()))? else {
        return Ok(None);
    };
    let (anchor, asked) = text.trim_end().split_once('\n').unwrap_or((text.trim_end(), ""));
    let anchor = anchor
        .parse::<Anchor>()
        .map_err(|error| doubtful(error.to_string()))?;
    Ok(Some(Remembered {
        anchor,
        asked: asked_in_this_boot(asked),
    }))
}

fn host_boot() -> Option<String> {
    let id = std::fs::read_to_string(HOST_BOOT).ok()?;
    Some(id.trim().to_owned())
}

/// `asked HOST_BOOT MS`
fn asked_line(asked: BootMs) -> String {
    let known = host_boot().filter(|_| asked.0 > 0);
    known.map_or_else(String::new, |boot| format!("asked {boot} {}\n", asked.0))
}

fn asked_in_this_boot(line: &str) -> Option<BootMs> {
    let (boot, ms) = line.strip_prefix("asked ")?.split_once(' ')?;
    let asked = BootMs(ms.parse().ok()?);
    (host_boot()? == boot && asked <= crate::clock::boot()).then_some(asked)
}

fn anchors(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    for kind in Kind::ALL {
        if let Some(Remembered { anchor, asked }) = remembered(kind)? {
            let age_ms = asked.map(|asked| crate::clock::boot().since(asked));
            rows.push([
                text_datum(kind.name()),
                text_datum(&anchor.to_string()),
                age_ms
                    .and_then(|ms| i64::try_from(ms).ok())
                    .and_then(bigint_datum),
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
    let asked = BootMs(u64::try_from(asked).unwrap_or(0));
    let offered = anchor.cell_id.0.to_be_bytes();
    if let Some(cell) = shared.cell_id().filter(|cell| *cell != offered) {
        return Err(other_cell(cell, offered));
    }
    // One of another cell was left by a server whose cell was forgotten on purpose.
    let before = remembered(kind)?.map(|before| before.anchor);
    let before = before.filter(|before| before.cell_id == anchor.cell_id);
    if let Some(before) = &before {
        before
            .may_become(&anchor)
            .map_err(|departure| Error::StoreBehindAnchor {
                reason: departure.to_string(),
            })?;
    }
    let changed = before.as_ref() != Some(&anchor);
    if changed {
        write_file(&file_of(kind), &format!("{anchor}\n{}", asked_line(asked))).map_err(|error| {
            Error::AnchorNotKept {
                reason: error.to_string(),
            }
        })?;
    }
    Ok(pg_sys::Datum::from(changed))
}
