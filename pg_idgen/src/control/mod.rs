//! The daemon's control functions: read the clocks, install, extend and fence leases.

mod view;

use crate::call::{
    Call, boolean_datum, in_recovery, integer_datum, text_datum, unsigned_datum, uuid_datum, v1_function,
};
use crate::error::{Error, clip};
use crate::shmem::{ClockWords, Identity, Kind, Shared, TokenCell, shared};
use crate::{cell, clock, mint};
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::contract::CONTRACT_VERSION;
use idgen_core::format::layout::{moment_of, tick_of};
use idgen_core::format::plan::PlanRefused;
use idgen_core::format::{EPOCH_2020, FormatError, FormatPlan, SHARDED};
use idgen_core::mint::{InstallError, Slot};
use pgrx::pg_sys;
use std::sync::atomic::Ordering::Relaxed;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// No window reaches further ahead of this server's clock; one that does comes from a broken one.
const WINDOW_MS_MAX: u64 = 24 * 3_600 * 1_000;

v1_function!(idgen_server_clock, server_clock);
v1_function!(idgen_note_clock, note_clock);
v1_function!(idgen_note_drained, note_drained);
v1_function!(idgen_claim_server, claim_server);
v1_function!(idgen_install_lease, install_lease);
v1_function!(idgen_extend_lease, extend_lease);
v1_function!(idgen_fence_lease, fence_lease);

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

fn note_clock(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let said = ClockWords {
        state: call.text(0)?.ok_or(Error::NullArgument { name: "state" })?,
        reason: call.text(1)?.ok_or(Error::NullArgument { name: "reason" })?,
        offset_us: call.bigint(2),
        error_us: call.bigint(3),
    };
    shared.note_clock(clock::boot(), &said);
    Ok(pg_sys::Datum::null())
}

fn note_drained(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    shared.note_drained(call.text(0)?);
    Ok(pg_sys::Datum::null())
}

fn claim_server(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let kind = kind_argument(call, 0)?;
    Ok(pg_sys::Datum::from(shared.claim_for_this_session(kind)))
}

pub fn kind_argument(call: Call, index: usize) -> Result<Kind, Error> {
    let name = call.text(index)?.ok_or(Error::NullArgument { name: "kind" })?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    kind.ok_or_else(|| Error::InvalidParameter {
        message: format!("lease kind \"{}\" is not known", clip(name)),
        hint: "There are worker and shard.",
    })
}

/// A lease's identity and token as the daemon names them.
struct Named {
    identity: Identity,
    epoch: u64,
    revision: u64,
}

impl Named {
    /// Arguments `kind`, `identity`, `token_epoch`, `token_revision` from `first` on.
    fn from_args(call: Call, first: usize) -> Result<Self, Error> {
        let kind = kind_argument(call, first)?;
        let number = call
            .integer(first + 1)
            .ok_or(Error::NullArgument { name: "identity" })?;
        let number = u16::try_from(number)
            .ok()
            .filter(|number| *number < kind.size())
            .ok_or_else(|| Error::InvalidParameter {
                message: format!("{kind} identity is not within 0 to {}", kind.size() - 1),
                hint: "",
            })?;
        Ok(Self {
            identity: Identity { kind, number },
            epoch: unsigned(call, first + 2, "token_epoch")?,
            revision: unsigned(call, first + 3, "token_revision")?,
        })
    }

    fn token(&self) -> (u64, u64) {
        (self.epoch, self.revision)
    }

    fn cell_and_slot<'s>(&self, shared: &'s Shared) -> (&'s TokenCell, &'s Slot) {
        let leases = shared.leases();
        (leases.token(self.identity), leases.slot_of(self.identity))
    }
}

pub fn unsigned(call: Call, index: usize, name: &'static str) -> Result<u64, Error> {
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

pub fn check_boot(shared: &Shared, call: Call, index: usize) -> Result<(), Error> {
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

/// What the daemon says of formats: the plan of its cell for workers, nothing but the constant for shards.
fn formats_argument(call: Call, index: usize, kind: Kind) -> Result<Option<FormatPlan>, Error> {
    let text = call.text(index)?.ok_or(Error::NullArgument { name: "formats" })?;
    match kind {
        Kind::Shard if text == SHARDED.name.as_str() => Ok(None),
        Kind::Shard => Err(Error::FormatMismatch {
            detail: format!(
                "Logical shards are in format \"{}\", not \"{}\".",
                SHARDED.name,
                clip(text)
            ),
            hint: SAME_EVERYWHERE,
        }),
        Kind::Worker => text.parse().map(Some).map_err(|error| Error::FormatMismatch {
            detail: format!("\"{}\" is no plan of worker formats: {error}.", clip(text)),
            hint: SAME_EVERYWHERE,
        }),
    }
}

/// Hints of IG009.
const SAME_EVERYWHERE: &str = "The worker format is a property of the cell and the same on all its servers.";
const RESTART: &str =
    "If this is the cell's plan, restart Postgres: it then mints by what the lease store says.";

/// Publish the plan, before any ceiling that depends on it. Arithmetic only: the `control` lock is held.
fn follow(shared: &Shared, plan: Option<&FormatPlan>) -> Result<(), PlanRefused> {
    let Some(plan) = plan else { return Ok(()) };
    shared.formats.follow(plan, || highest_worker_ceiling(shared))
}

fn highest_worker_ceiling(shared: &Shared) -> UnixMs {
    let workers = shared
        .leases()
        .known()
        .filter(|(identity, ..)| identity.kind == Kind::Worker);
    let open = workers.map(|(.., slot)| slot.view()).filter(|view| view.open);
    open.map(|view| moment_of(view.ceiling_tick))
        .max()
        .unwrap_or_default()
}

fn plan_refused(shared: &Shared, plan: Option<&FormatPlan>, refused: PlanRefused) -> Error {
    let offered = plan.map(ToString::to_string).unwrap_or_default();
    let now = shared
        .formats
        .plan_at(clock::wall())
        .map(|(current, next)| match next {
            Some((from, next)) => format!("{current}; {next} from {}", from.0),
            None => current.to_string(),
        })
        .unwrap_or_default();
    let (why, hint) = match refused {
        PlanRefused::Other => ("does not follow from it", RESTART),
        PlanRefused::TooLate => (
            "comes too late: ids of that time may have been granted in the old format",
            SAME_EVERYWHERE,
        ),
        PlanRefused::Full => ("is one switch too many for one run of the server", RESTART),
    };
    Error::FormatMismatch {
        detail: format!("This server's workers mint \"{now}\"; the plan \"{offered}\" {why}."),
        hint,
    }
}

/// The format of the first ids has begun and not ended. (Before anything is changed: a plan that was followed stays.)
fn check_alive(plan: Option<&FormatPlan>, floor: UnixMs) -> Result<(), Error> {
    let format = plan.map_or(&SHARDED, |plan| plan.at(floor).format());
    match format.tick(floor) {
        Ok(_) => Ok(()),
        Err(FormatError::EndOfEpoch { .. }) => Err(Error::EndOfEpoch {
            format: format.name.to_string(),
        }),
        Err(error) => Err(Error::FormatMismatch {
            detail: format!("Format \"{format}\" cannot be minted in yet: {error}."),
            hint: SAME_EVERYWHERE,
        }),
    }
}

/// The window of an install: (floor, ceiling). Ticks saturate, so the moments are what is compared.
fn window(call: Call) -> Result<(UnixMs, UnixMs), Error> {
    let floor_ms = unsigned(call, 8, "floor_ms")?;
    let ceiling_ms = unsigned(call, 9, "ceiling_ms")?;
    let wrong = |message: &str| Error::InvalidParameter {
        message: message.into(),
        hint: "",
    };
    if floor_ms <= EPOCH_2020.0 {
        return Err(wrong("floor_ms is not after 2020"));
    }
    if ceiling_ms < floor_ms {
        return Err(wrong("ceiling_ms is below floor_ms"));
    }
    if ceiling_ms > clock::wall().0.max(floor_ms) + WINDOW_MS_MAX {
        return Err(wrong(
            "ceiling_ms is more than a day ahead of this server's clock",
        ));
    }
    Ok((UnixMs(floor_ms), UnixMs(ceiling_ms)))
}

fn install_lease(call: Call) -> Result<pg_sys::Datum, Error> {
    check_contract(call, 0)?;
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 1)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let cell_id = call.uuid(2).ok_or(Error::NullArgument { name: "cell_id" })?;
    let named = Named::from_args(call, 4)?;
    let plan = formats_argument(call, 3, named.identity.kind)?;
    let (floor, ceiling) = window(call)?;
    check_alive(plan.as_ref(), floor)?;
    let lease = Lease {
        named,
        plan,
        floor,
        ceiling,
        deadline: BootMs(unsigned(call, 10, "deadline_ms")?),
    };
    let now = clock::boot();
    if lease.deadline <= now {
        return Err(Error::InstallDeadlinePassed {
            late_ms: now.since(lease.deadline),
        });
    }
    let good_clock = anchor(call, 11)?;
    check_cell(shared, cell_id)?;
    pin_region(shared, lease.plan.as_ref())?;
    pin_cell(shared, cell_id)?;
    let installed = install_locked(shared, &lease, cell_id, good_clock);
    Ok(pg_sys::Datum::from(installed.map_err(|refused| {
        refused.into_error(shared, cell_id, &lease)
    })?))
}

/// Refuse a cell that is not the remembered.
fn check_cell(shared: &Shared, cell_id: [u8; 16]) -> Result<(), Error> {
    match shared.cell_id() {
        Some(remembered) if remembered != cell_id => Err(other_cell(remembered, cell_id)),
        _ => Ok(()),
    }
}

/// Remember the cell on disk before its first lease opens, and once nothing else is wrong with it. One session is
/// the daemon's, so nobody races here; if two did all the same, with two cells, the lock lets one of them in, and a
/// file that names the other makes the server refuse leases after its next start.
fn pin_cell(shared: &Shared, cell_id: [u8; 16]) -> Result<(), Error> {
    if shared.cell_id().is_some() {
        return Ok(());
    }
    cell::remember(cell_id).map_err(|error| Error::CellNotKept {
        reason: error.to_string(),
    })
}

/// Remember the region that the cell has claimed before anything is minted by the plan that says so, or refuse another one. A
/// plan that this server cannot follow is refused before: its region must not stay behind, and one from before the region
/// was claimed is told to be that.
fn pin_region(shared: &Shared, plan: Option<&FormatPlan>) -> Result<(), Error> {
    // Shards have no region.
    let Some(plan) = plan else { return Ok(()) };
    let not_kept = |error: std::io::Error| Error::RegionNotKept {
        reason: error.to_string(),
    };
    let remembered = cell::region().map_err(not_kept)?;
    match (remembered, plan.region()) {
        (Some(remembered), Some(claimed)) if remembered != claimed => Err(Error::OtherRegion {
            remembered,
            offered: Some(claimed),
        }),
        (None, Some(claimed)) => {
            check_followed(shared, plan)?;
            cell::remember_region(claimed).map_err(not_kept)
        }
        (Some(remembered), None) => {
            check_followed(shared, plan)?;
            Err(Error::OtherRegion {
                remembered,
                offered: None,
            })
        }
        _ => Ok(()),
    }
}

fn check_followed(shared: &Shared, plan: &FormatPlan) -> Result<(), Error> {
    let followed = {
        let _locked = shared.lock_control();
        shared.formats.check(plan, || highest_worker_ceiling(shared))
    };
    followed.map_err(|refused| plan_refused(shared, Some(plan), refused))
}

pub fn other_cell(installed: [u8; 16], offered: [u8; 16]) -> Error {
    let uuid = |bytes| uuid::Uuid::from_bytes(bytes).to_string();
    Error::OtherCell {
        installed: uuid(installed),
        offered: uuid(offered),
    }
}

struct Lease {
    named: Named,
    plan: Option<FormatPlan>,
    floor: UnixMs,
    ceiling: UnixMs,
    deadline: BootMs,
}

/// What was found under the lock; made into words after it.
enum InstallRefused {
    OtherCell,
    NotNewer,
    Plan(PlanRefused),
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
        plan,
        floor,
        ceiling,
        deadline,
    } = lease;
    let floor_tick = tick_of(*floor);
    let (cell, slot) = named.cell_and_slot(shared);
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
    if floor_tick <= slot.view().tick {
        return Err(InstallRefused::Floor(InstallError::FloorNotAbove {
            last_tick: slot.view().tick,
        }));
    }
    // The formats before the ceiling: whoever mints under it must find them.
    follow(shared, plan.as_ref()).map_err(InstallRefused::Plan)?;
    let last_tick = mint::last_tick(shared, named.identity.kind);
    // The cell first: a server must never have minted under a cell it does not know.
    shared.set_cell_id(cell_id);
    if let Some(reading) = good_clock {
        shared.set_anchor(reading);
    }
    let generation = slot
        .install(floor_tick, tick_of(*ceiling).min(last_tick), deadline.0)
        .map_err(InstallRefused::Floor)?;
    cell.epoch.store(named.epoch, Relaxed);
    cell.revision.store(named.revision, Relaxed);
    cell.generation.store(generation, Relaxed);
    cell.floor_tick.store(floor_tick, Relaxed);
    cell.known.store(true, Relaxed);
    shared.leases().set_active(named.identity, true);
    Ok(true)
}

impl InstallRefused {
    fn into_error(self, shared: &Shared, cell_id: [u8; 16], lease: &Lease) -> Error {
        match self {
            Self::OtherCell => other_cell(shared.cell_id().unwrap_or_default(), cell_id),
            Self::NotNewer => Error::TokenNotNewer {
                detail: format!(
                    "{} {} has had token {:?} here; {:?} is offered.",
                    match lease.named.identity.kind {
                        Kind::Worker => "Worker",
                        Kind::Shard => "Shard",
                    },
                    lease.named.identity.number,
                    shared
                        .leases()
                        .token(lease.named.identity)
                        .token()
                        .unwrap_or_default(),
                    lease.named.token()
                ),
            },
            Self::Plan(refused) => plan_refused(shared, lease.plan.as_ref(), refused),
            Self::Floor(InstallError::FloorNotAbove { last_tick }) => Error::FloorNotAbove {
                floor_ms: lease.floor.0.cast_signed(),
                last_ms: moment_of(last_tick).0,
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
    let named = Named::from_args(call, 3)?;
    let plan = formats_argument(call, 2, named.identity.kind)?;
    // As at an install, what is further ahead comes from a broken clock or store. Cut, not refused: a wall clock of
    // this server that is days behind must not end a lease.
    let latest = clock::wall().saturating_add(WINDOW_MS_MAX);
    let ceiling = UnixMs(unsigned(call, 7, "ceiling_ms")?).min(latest);
    let deadline = BootMs(unsigned(call, 8, "deadline_ms")?);
    let good_clock = anchor(call, 9)?;
    pin_region(shared, plan.as_ref())?;
    let extended = extend_locked(shared, &named, plan.as_ref(), (ceiling, deadline), good_clock);
    Ok(pg_sys::Datum::from(extended.map_err(|refused| {
        plan_refused(shared, plan.as_ref(), refused)
    })?))
}

/// Arithmetic only: the lock is held. `false`: that token is not the open one.
fn extend_locked(
    shared: &Shared,
    named: &Named,
    plan: Option<&FormatPlan>,
    (ceiling, deadline): (UnixMs, BootMs),
    good_clock: Option<ClockReading>,
) -> Result<bool, PlanRefused> {
    let (cell, slot) = named.cell_and_slot(shared);
    let _locked = shared.lock_control();
    if cell.token() != Some(named.token()) || !is_open(cell, slot) {
        return Ok(false);
    }
    follow(shared, plan)?;
    if let Some(reading) = good_clock {
        shared.set_anchor(reading);
    }
    let ceiling_tick = tick_of(ceiling).min(mint::last_tick(shared, named.identity.kind));
    Ok(slot.extend(cell.generation.load(Relaxed), ceiling_tick, deadline.0))
}

fn fence_lease(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 0)?;
    let named = Named::from_args(call, 1)?;
    let (cell, slot) = named.cell_and_slot(shared);
    let last_tick = {
        let _locked = shared.lock_control();
        (cell.token() == Some(named.token())).then(|| {
            shared.leases().set_active(named.identity, false);
            match slot.fence(cell.generation.load(Relaxed)) {
                Some((tick, _)) => tick,
                // Fenced before: the word still holds what that fence found.
                None => slot.view().tick,
            }
        })
    };
    match last_tick {
        Some(tick) => Ok(pg_sys::Datum::from(moment_of(tick).0.cast_signed())),
        None => Ok(call.null()),
    }
}
