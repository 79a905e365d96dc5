//! The daemon's control functions: read the clocks, install, extend and fence leases; and what views show.

use crate::call::{
    Call, bigint_datum, boolean_datum, in_recovery, integer_datum, text_datum, unsigned_datum, uuid_datum,
    v1_function,
};
use crate::error::{Error, clip};
use crate::shmem::{Shared, TokenCell, WORKERS, shared};
use crate::snowflake::WORKER_FORMAT;
use crate::{cell, clock};
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::contract::CONTRACT_VERSION;
use idgen_core::format::{self, Format};
use idgen_core::mint::{Identities, InstallError, Slot, SlotView};
use pgrx::pg_sys;
use std::sync::atomic::Ordering::Relaxed;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// No window reaches further ahead of this server's clock; one that does comes from a broken one.
const WINDOW_MS_MAX: u64 = 24 * 3_600 * 1_000;

v1_function!(idgen_server_clock, server_clock);
v1_function!(idgen_claim_server, claim_server);
v1_function!(idgen_install_lease, install_lease);
v1_function!(idgen_extend_lease, extend_lease);
v1_function!(idgen_fence_lease, fence_lease);
v1_function!(idgen_slot_states, slot_states);
v1_function!(idgen_server_state, server_state);

fn server_clock(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let reading = clock::reading();
    shared.note_daemon(reading.boot);
    call.record([
        uuid_datum(shared.boot_id()),
        unsigned_datum(reading.boot.0),
        unsigned_datum(reading.wall.0),
        boolean_datum(in_recovery()),
        shared.cell_id().and_then(uuid_datum),
        text_datum(VERSION),
        integer_datum(CONTRACT_VERSION),
    ])
}

fn claim_server(_call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    Ok(pg_sys::Datum::from(shared.claim_for_this_session()))
}

/// A lease's identity and token as the daemon names them.
struct Named {
    identity: usize,
    epoch: u64,
    revision: u64,
}

impl Named {
    /// Arguments `kind`, `identity`, `token_epoch`, `token_revision` from `first` on.
    fn from_args(call: Call, first: usize) -> Result<Self, Error> {
        let kind = call.text(first)?.ok_or(Error::NullArgument { name: "kind" })?;
        if kind != "worker" {
            return Err(Error::InvalidParameter {
                message: format!("lease kind \"{}\" is not known", clip(kind)),
                hint: "This release leases workers.",
            });
        }
        let identity = call
            .integer(first + 1)
            .ok_or(Error::NullArgument { name: "identity" })?;
        let identity = usize::try_from(identity)
            .ok()
            .filter(|identity| *identity < WORKERS);
        Ok(Self {
            identity: identity.ok_or_else(|| Error::InvalidParameter {
                message: format!("worker identity is not within 0 to {}", WORKERS - 1),
                hint: "",
            })?,
            epoch: unsigned(call, first + 2, "token_epoch")?,
            revision: unsigned(call, first + 3, "token_revision")?,
        })
    }

    fn token(&self) -> (u64, u64) {
        (self.epoch, self.revision)
    }
}

impl TokenCell {
    /// The token of the latest install, if there was one.
    fn token(&self) -> Option<(u64, u64)> {
        self.known
            .load(Relaxed)
            .then(|| (self.epoch.load(Relaxed), self.revision.load(Relaxed)))
    }
}

fn unsigned(call: Call, index: usize, name: &'static str) -> Result<u64, Error> {
    let value = call.bigint(index).ok_or(Error::NullArgument { name })?;
    u64::try_from(value).map_err(|_| Error::InvalidParameter {
        message: format!("{name} must not be negative"),
        hint: "",
    })
}

fn check_contract(call: Call, index: usize) -> Result<(), Error> {
    let offered = call
        .integer(index)
        .ok_or(Error::NullArgument { name: "contract" })?;
    if offered == CONTRACT_VERSION {
        Ok(())
    } else {
        Err(Error::ContractVersion { offered })
    }
}

fn check_boot(shared: &Shared, call: Call, index: usize) -> Result<(), Error> {
    let boot_id = call.uuid(index).ok_or(Error::NullArgument { name: "boot_id" })?;
    if boot_id == shared.boot_id() {
        Ok(())
    } else {
        Err(Error::OtherBoot)
    }
}

/// `anchor_wall_ms`, `anchor_boottime_ms` at `first`; `None` unless both are given.
fn anchor(call: Call, first: usize) -> Result<Option<ClockReading>, Error> {
    if call.bigint(first).is_none() || call.bigint(first + 1).is_none() {
        return Ok(None);
    }
    Ok(Some(ClockReading {
        wall: UnixMs(unsigned(call, first, "anchor_wall_ms")?),
        boot: BootMs(unsigned(call, first + 1, "anchor_boottime_ms")?),
    }))
}

/// Only what this release can mint: a worker format without fields that somebody would have to claim first.
fn check_format(name: &str) -> Result<&'static Format, Error> {
    let found = format::by_name(name).ok_or_else(|| Error::FormatMismatch {
        detail: format!("Format \"{}\" is not known here.", clip(name)),
    })?;
    if found.name == WORKER_FORMAT.name {
        return Ok(WORKER_FORMAT);
    }
    let minted = WORKER_FORMAT.name;
    Err(Error::FormatMismatch {
        detail: format!("The cell's worker format is \"{name}\", this release mints \"{minted}\"."),
    })
}

/// The window of an install in ticks of the format: (floor, ceiling).
fn window(call: Call, format: &Format) -> Result<(u64, u64), Error> {
    let floor_ms = unsigned(call, 8, "floor_ms")?;
    let ceiling_ms = unsigned(call, 9, "ceiling_ms")?;
    let wrong = |message: &str| Error::InvalidParameter {
        message: message.into(),
        hint: "",
    };
    if floor_ms <= format.epoch.0 {
        return Err(wrong("floor_ms is not above the epoch of the format"));
    }
    if ceiling_ms < floor_ms {
        return Err(wrong("ceiling_ms is below floor_ms"));
    }
    if ceiling_ms > clock::wall().0.max(floor_ms) + WINDOW_MS_MAX {
        return Err(wrong(
            "ceiling_ms is more than a day ahead of this server's clock",
        ));
    }
    let floor_tick = format
        .tick(UnixMs(floor_ms))
        .map_err(|_| Error::EndOfEpoch { format: format.name })?;
    Ok((floor_tick, ceiling_tick(ceiling_ms)))
}

/// A ceiling behind the end of the epoch means the end.
fn ceiling_tick(ceiling_ms: u64) -> u64 {
    ceiling_ms
        .saturating_sub(WORKER_FORMAT.epoch.0)
        .min(WORKER_FORMAT.last_tick)
}

fn install_lease(call: Call) -> Result<pg_sys::Datum, Error> {
    check_contract(call, 0)?;
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 1)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let cell_id = call.uuid(2).ok_or(Error::NullArgument { name: "cell_id" })?;
    let format = check_format(call.text(3)?.ok_or(Error::NullArgument { name: "format" })?)?;
    let named = Named::from_args(call, 4)?;
    let (floor_tick, ceiling_tick) = window(call, format)?;
    let lease = Lease {
        named,
        floor_tick,
        ceiling_tick,
        deadline: BootMs(unsigned(call, 10, "deadline_ms")?),
    };
    let now = clock::boot();
    if lease.deadline <= now {
        return Err(Error::InstallDeadlinePassed {
            late_ms: now.since(lease.deadline),
        });
    }
    let good_clock = anchor(call, 11)?;
    pin_cell(shared, cell_id)?;
    let installed = install_locked(shared, &lease, cell_id, good_clock);
    Ok(pg_sys::Datum::from(installed.map_err(|refused| {
        refused.into_error(shared, cell_id, &lease)
    })?))
}

/// Remember the cell on disk before its first lease opens, or refuse one that is not the remembered. One session is
/// the daemon's, so nobody races here; if two did all the same, with two cells, the lock lets one of them in, and a
/// file that names the other makes the server refuse leases after its next start.
fn pin_cell(shared: &Shared, cell_id: [u8; 16]) -> Result<(), Error> {
    match shared.cell_id() {
        Some(remembered) if remembered != cell_id => Err(other_cell(remembered, cell_id)),
        Some(_) => Ok(()),
        None => cell::remember(cell_id).map_err(|error| Error::CellNotKept {
            reason: error.to_string(),
        }),
    }
}

fn other_cell(installed: [u8; 16], offered: [u8; 16]) -> Error {
    let uuid = |bytes| uuid::Uuid::from_bytes(bytes).to_string();
    Error::OtherCell {
        installed: uuid(installed),
        offered: uuid(offered),
    }
}

struct Lease {
    named: Named,
    floor_tick: u64,
    ceiling_tick: u64,
    deadline: BootMs,
}

/// What was found under the lock; made into words after it.
enum InstallRefused {
    OtherCell,
    NotNewer,
    Floor(InstallError),
}

/// Arithmetic only: the lock is held. `false`: this very token is open already.
fn install_locked(
    shared: &Shared,
    lease: &Lease,
    cell_id: [u8; 16],
    good_clock: Option<ClockReading>,
) -> Result<bool, InstallRefused> {
    let Lease {
        named,
        floor_tick,
        ceiling_tick,
        deadline,
    } = lease;
    let (cell, slot) = (&shared.tokens[named.identity], shared.slot(named.identity as u64));
    let _locked = shared.lock_control();
    match shared.cell_id() {
        Some(installed) if installed != cell_id => return Err(InstallRefused::OtherCell),
        _ => {}
    }
    match cell.token() {
        Some(latest) if latest == named.token() && is_open(cell, slot) => return Ok(false),
        Some(latest) if latest >= named.token() => return Err(InstallRefused::NotNewer),
        _ => {}
    }
    if *floor_tick <= slot.view().tick {
        return Err(InstallRefused::Floor(InstallError::FloorNotAbove {
            last_tick: slot.view().tick,
        }));
    }
    // The cell first: a server must never have minted under a cell it does not know.
    shared.set_cell_id(cell_id);
    if let Some(reading) = good_clock {
        shared.set_anchor(reading);
    }
    let generation = slot
        .install(*floor_tick, *ceiling_tick, deadline.0)
        .map_err(InstallRefused::Floor)?;
    cell.epoch.store(named.epoch, Relaxed);
    cell.revision.store(named.revision, Relaxed);
    cell.generation.store(generation, Relaxed);
    cell.floor_tick.store(*floor_tick, Relaxed);
    cell.known.store(true, Relaxed);
    shared.set_active(named.identity, true);
    Ok(true)
}

impl InstallRefused {
    fn into_error(self, shared: &Shared, cell_id: [u8; 16], lease: &Lease) -> Error {
        match self {
            Self::OtherCell => other_cell(shared.cell_id().unwrap_or_default(), cell_id),
            Self::NotNewer => Error::TokenNotNewer {
                detail: format!(
                    "Worker {} has had token {:?} here; {:?} is offered.",
                    lease.named.identity,
                    shared.tokens[lease.named.identity].token().unwrap_or_default(),
                    lease.named.token()
                ),
            },
            Self::Floor(InstallError::FloorNotAbove { last_tick }) => Error::FloorNotAbove {
                floor_ms: WORKER_FORMAT.unix_ms(lease.floor_tick).0.cast_signed(),
                last_ms: WORKER_FORMAT.unix_ms(last_tick).0,
            },
        }
    }
}

/// The generation that this token opened is the slot's own and has not been fenced.
fn is_open(cell: &TokenCell, slot: &Slot) -> bool {
    let view = slot.view();
    view.open && view.generation == cell.generation.load(Relaxed)
}

fn extend_lease(call: Call) -> Result<pg_sys::Datum, Error> {
    check_contract(call, 0)?;
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 1)?;
    let named = Named::from_args(call, 2)?;
    let ceiling_tick = ceiling_tick(unsigned(call, 6, "ceiling_ms")?);
    let deadline = BootMs(unsigned(call, 7, "deadline_ms")?);
    let good_clock = anchor(call, 8)?;
    let (cell, slot) = (&shared.tokens[named.identity], shared.slot(named.identity as u64));
    let extended = {
        let _locked = shared.lock_control();
        let current = cell.token() == Some(named.token()) && is_open(cell, slot);
        if let (true, Some(reading)) = (current, good_clock) {
            shared.set_anchor(reading);
        }
        current && slot.extend(cell.generation.load(Relaxed), ceiling_tick, deadline.0)
    };
    Ok(pg_sys::Datum::from(extended))
}

fn fence_lease(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 0)?;
    let named = Named::from_args(call, 1)?;
    let (cell, slot) = (&shared.tokens[named.identity], shared.slot(named.identity as u64));
    let last_tick = {
        let _locked = shared.lock_control();
        (cell.token() == Some(named.token())).then(|| {
            shared.set_active(named.identity, false);
            match slot.fence(cell.generation.load(Relaxed)) {
                Some((tick, _)) => tick,
                // Fenced before: the word still holds what that fence found.
                None => slot.view().tick,
            }
        })
    };
    match last_tick {
        Some(tick) => Ok(pg_sys::Datum::from(WORKER_FORMAT.unix_ms(tick).0.cast_signed())),
        None => Ok(call.null()),
    }
}

fn slot_states(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    if let Some(shared) = shared() {
        let now = clock::boot();
        for (identity, cell) in shared.tokens.iter().enumerate() {
            if let Some(token) = cell.token() {
                let slot = shared.slot(identity as u64);
                rows.push(slot_row(identity, cell, token, &slot.view(), now));
            }
        }
    }
    Ok(rows.done())
}

fn slot_row(
    identity: usize,
    cell: &TokenCell,
    token: (u64, u64),
    view: &SlotView,
    now: BootMs,
) -> [Option<pg_sys::Datum>; 11] {
    let open = view.open && view.generation == cell.generation.load(Relaxed);
    let state = match (open, now.0 < view.dead_boot_ms) {
        (true, true) => "open",
        (true, false) => "expired",
        (false, _) => "fenced",
    };
    let unix_ms = |tick| unsigned_datum(WORKER_FORMAT.unix_ms(tick).0);
    let deadline_in_ms = view.dead_boot_ms.cast_signed() - now.0.cast_signed();
    [
        text_datum("worker"),
        integer_datum(identity as i32),
        text_datum(state),
        integer_datum(view.generation as i32),
        unsigned_datum(token.0),
        unsigned_datum(token.1),
        unix_ms(cell.floor_tick.load(Relaxed)),
        unix_ms(view.tick),
        if open { unix_ms(view.ceiling_tick) } else { None },
        if open {
            unsigned_datum(view.dead_boot_ms)
        } else {
            None
        },
        if open { bigint_datum(deadline_in_ms) } else { None },
    ]
}

/// What `idgen.health` shows; answers without shared memory too.
fn server_state(call: Call) -> Result<pg_sys::Datum, Error> {
    let now = clock::boot();
    let Some(shared) = shared() else {
        let absent = "not preloaded";
        return call.record([
            text_datum(VERSION),
            integer_datum(CONTRACT_VERSION),
            boolean_datum(false),
            boolean_datum(in_recovery()),
            None,
            None,
            None,
            None,
            integer_datum(0),
            None,
            text_datum(absent),
        ]);
    };
    let open = || {
        let views = (0..WORKERS)
            .filter(|i| shared.tokens[*i].token().is_some())
            .map(|i| shared.slot(i as u64).view());
        views.filter(|view| view.open && now.0 < view.dead_boot_ms)
    };
    let open_slots = open().count();
    let state = match (in_recovery(), open_slots) {
        (true, _) => "in recovery",
        (false, 0) => "no lease",
        (false, _) => "serving",
    };
    let cell_id = shared.cell_id();
    call.record([
        text_datum(VERSION),
        integer_datum(CONTRACT_VERSION),
        boolean_datum(true),
        boolean_datum(in_recovery()),
        uuid_datum(shared.boot_id()),
        cell_id.and_then(uuid_datum),
        cell_id.and_then(|_| text_datum(WORKER_FORMAT.name)),
        shared.daemon_silent_ms(now).and_then(unsigned_datum),
        integer_datum(open_slots as i32),
        open()
            .map(|view| view.dead_boot_ms - now.0)
            .max()
            .and_then(unsigned_datum),
        text_datum(state),
    ])
}
