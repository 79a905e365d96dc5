//! The daemon's functions: install, raise, fence.

use crate::call::{Call, boolean_datum, current_database, in_recovery, v1_function};
use crate::control::{check_boot, unsigned};
use crate::error::{Error, clip};
use crate::owner::{AsOwner, Tables};
use crate::segment::failure::Failure;
use crate::shmem::{AuthorityName, NotInstalled, SegmentKey, Shared, shared};
use crate::{clock, segment};
use idgen_core::clock::BootMs;
use idgen_core::lease::{Epoch, Revision, Token};
use idgen_core::segment::authority::Stretch;
use pgrx::pg_sys;
use pgrx::spi::Spi;

v1_function!(idgen_install_authority, install_authority);
v1_function!(idgen_raise_ceiling, raise_ceiling);
v1_function!(idgen_fence_authority, fence_authority);

/// A space that this database is not of: its lease is no use here.
const IS_OWN_SPACE: &str = "
    SELECT p.space_id, p.stripe, p.space_id = $1 AND p.stripe = $2 AND p.database_oid = d.oid
      FROM idgen.space p, pg_database d WHERE d.datname = current_database()";

const SEGMENT_OF: &str = "
    SELECT s.segment_id, p.stripe, p.stripes, p.stripe_size
      FROM idgen.segment s, idgen.space p WHERE s.tag = $1 AND s.dropped_at IS NULL";

/// Arguments `space_id`, `stripe` from `first` on.
fn name_argument(call: Call, first: usize) -> Result<AuthorityName, Error> {
    let stripe = call
        .integer(first + 1)
        .ok_or(Error::NullArgument { name: "stripe" })?;
    Ok(AuthorityName {
        database: current_database(),
        space_id: call.uuid(first).ok_or(Error::NullArgument { name: "space_id" })?,
        stripe: u32::try_from(stripe).map_err(|_| wrong("stripe must not be negative"))?,
    })
}

fn token_argument(call: Call, first: usize) -> Result<Token, Error> {
    Ok(Token {
        epoch: Epoch(unsigned(call, first, "token_epoch")?),
        revision: Revision(unsigned(call, first + 1, "token_revision")?),
    })
}

fn wrong(message: &str) -> Error {
    Error::InvalidParameter {
        message: message.into(),
        hint: "",
    }
}

fn tables() -> Result<Tables, Error> {
    Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })
}

fn install_authority(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    check_boot(shared, call, 0)?;
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let name = name_argument(call, 1)?;
    let token = token_argument(call, 3)?;
    let deadline = BootMs(unsigned(call, 5, "deadline_boot_ms")?);
    let now = clock::boot();
    if deadline <= now {
        return Err(Error::InstallDeadlinePassed {
            late_ms: now.since(deadline),
        });
    }
    check_space(name)?;
    let installed = shared.install_authority(name, token, deadline, now);
    let opened = installed.map_err(|refused| refused_install(refused, token))?;
    shared.note_daemon(now);
    Ok(pg_sys::Datum::from(opened))
}

fn refused_install(refused: NotInstalled, offered: Token) -> Error {
    match refused {
        NotInstalled::NotNewer { latest } => Error::TokenNotNewer {
            detail: format!("The authority of this space has had token {latest} here; {offered} is offered."),
        },
        NotInstalled::Full => Error::AuthorityTableFull,
    }
}

/// The lease must be that of this database's own space: a clone by CREATE DATABASE ... TEMPLATE carries the
/// original's until a worker has renewed it.
fn check_space(name: AuthorityName) -> Result<(), Error> {
    let _as_owner = AsOwner::begin(tables()?.owner);
    let offered = pgrx::Uuid::from_bytes(name.space_id);
    let row = Spi::connect(|client| {
        let args = [offered.into(), (name.stripe as i32).into()];
        let row = client.select(IS_OWN_SPACE, Some(1), &args)?.first();
        Ok::<_, pgrx::spi::Error>((row.get::<pgrx::Uuid>(1)?, row.get::<i32>(2)?, row.get::<bool>(3)?))
    })?;
    match row {
        (_, _, Some(true)) => Ok(()),
        (own, stripe, _) => Err(Error::OtherSpace {
            own: match own {
                // The lease of another index of the space.
                Some(own) if own == offered => format!("{own}, stripe {}", stripe.unwrap_or_default()),
                own => own.map(|own| own.to_string()).unwrap_or_default(),
            },
            offered: match own {
                Some(own) if own == offered => format!("stripe {}", name.stripe),
                _ => offered.to_string(),
            },
        }),
    }
}

fn raise_ceiling(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let name = name_argument(call, 0)?;
    let token = token_argument(call, 2)?;
    let tag = call.text(4)?.ok_or(Error::NullArgument { name: "tag" })?;
    let bound = |index, name| {
        let value = call.bigint(index).ok_or(Error::NullArgument { name })?;
        if value < 0 {
            return Err(wrong(&format!("{name} must not be negative")));
        }
        Ok(value)
    };
    let stretch = Stretch {
        floor: bound(5, "floor")?,
        ceiling: bound(6, "ceiling")?,
    };
    let raised = raise(shared, name, token, tag, stretch)?;
    Ok(boolean_datum(raised).unwrap_or(pg_sys::Datum::null()))
}

fn raise(
    shared: &'static Shared,
    name: AuthorityName,
    token: Token,
    tag: &str,
    stretch: Stretch,
) -> Result<bool, Error> {
    let found = {
        let _as_owner = AsOwner::begin(tables()?.owner);
        Spi::connect(|client| {
            let row = client.select(SEGMENT_OF, Some(1), &[tag.into()])?.first();
            if row.is_empty() {
                return Ok(None);
            }
            let segment_id = row.get::<pgrx::Uuid>(1)?;
            Ok::<_, pgrx::spi::Error>(segment_id.zip(segment::read_stripes(&row, 2)))
        })?
    };
    let (segment_id, stripes) = found.ok_or_else(|| Error::UnknownTag { tag: clip(tag) })?;
    let key = SegmentKey {
        database: name.database,
        segment_id: *segment_id.as_bytes(),
        space_id: name.space_id,
        stripes,
    };
    let slot = segment::place(shared, &key)?.slot;
    let raised = shared.raise_ceiling(name, token, (slot, &key), stretch);
    if raised && matches!(slot.failure(), Failure::NoAuthority | Failure::NoCeiling) {
        // Somebody waits, or a range that was asked for ahead was not granted.
        segment::ask(slot);
    }
    Ok(raised)
}

fn fence_authority(call: Call) -> Result<pg_sys::Datum, Error> {
    let shared = shared().ok_or(Error::NotPreloaded)?;
    let fenced = shared.fence_authority(name_argument(call, 0)?);
    Ok(pg_sys::Datum::from(fenced))
}
