//! Several masters of one space: `idgen.join_space()` and `idgen.leave_space()`.
//!
//! The row of `idgen.space` says which stripes of the axis this database grants, every tag's row in which stripes its
//! `max_id` counts. Where the two differ nothing is granted (IG035), so a row that comes from elsewhere is not mistaken
//! for one of this master. Both change here only, in one transaction, under a lock that no grant and no change of a tag
//! passes. That no other database has the same stripes is not known here: whoever calls this has looked in the lease
//! store.

mod join;
mod leave;

use super::{catalog, changed, leaf, own, place_in_use};
use crate::as_of_now::Columns;
use crate::call::{Call, bigint_datum, in_recovery, v1_function};
use crate::error::Error;
use crate::owner::{AsOwner, Tables, commit_durably};
use catalog::Identity;
use idgen_core::segment::Stripes;
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;
use pgrx::spi::{Spi, SpiClient};

v1_function!(idgen_join_space, join_space);
v1_function!(idgen_leave_space, leave_space);
v1_function!(idgen_stripe_place, stripe_place);

/// No grant (it locks rows), no change of a tag and no new tag while this is held; reading goes on.
const LOCK: &str = "LOCK TABLE idgen.segment IN EXCLUSIVE MODE";

const SPACE: &str = "
    SELECT p.space_id, p.source_id, p.stripe, p.stripes, p.stripe_size, p.above,
           p.database_oid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      FROM idgen.space p";

const SET_SPACE: &str = "
    UPDATE idgen.space
       SET space_id = coalesce($1, gen_random_uuid()), stripe = $2, stripes = $3, stripe_size = $4, above = $5
    RETURNING space_id";

/// What is written down with the space stays what it is: oids of roles and of sequences.
const TAKE_ALONG: [&str; 2] = [
    "UPDATE idgen.segment_grant SET role_space = $2 WHERE role_space = $1",
    "UPDATE idgen.adopted_sequence SET space_id = $2 WHERE space_id = $1",
];

/// Under the number of the events of the whole space.
const RECORD: &str = "
    WITH counted AS (UPDATE idgen.authority SET changes = changes + 1 RETURNING changes)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, $1, '', c.changes,
           jsonb_build_object('from', jsonb_build_object('space_id', $2, 'stripe', $3, 'stripes', $4, 'stripe_size', $5),
                              'stripe', p.stripe, 'stripes', p.stripes, 'stripe_size', p.stripe_size, 'above', p.above,
                              'reason', $6, 'session_user', session_user, 'pid', pg_backend_pid())
      FROM idgen.space p, counted c";

fn join_space(call: Call) -> Result<pg_sys::Datum, Error> {
    let wish = join::Wish::from_args(call)?;
    change(|client, space| join::join(client, space, &wish))
}

fn leave_space(call: Call) -> Result<pg_sys::Datum, Error> {
    let reason = call.text(0)?.ok_or(Error::NullArgument { name: "reason" })?;
    if reason.trim().is_empty() {
        return Err(Error::InvalidParameter {
            message: "reason must not be empty".into(),
            hint: "It is recorded with the event, for whoever asks later why the database is on its own.",
        });
    }
    change(|client, space| leave::leave(client, space, reason))
}

/// How many own ids there are up to one; for people and views.
fn stripe_place(call: Call) -> Result<pg_sys::Datum, Error> {
    let stripes = || {
        let [index, count] = [call.integer(1)?, call.integer(2)?].map(|value| u32::try_from(value).ok());
        match (index?, count?, call.bigint(3)) {
            (0, 1, _) => Some(Stripes::SINGLE),
            (index, count, Some(size)) => Stripes::new(index, count, u64::try_from(size).ok()?).ok(),
            _ => None,
        }
    };
    let place = call
        .bigint(0)
        .zip(stripes())
        .map(|(id, stripes)| stripes.places_to(id));
    Ok(place.and_then(bigint_datum).unwrap_or_else(|| call.null()))
}

/// Where the database is now.
struct Space {
    identity: Identity,
    above: i64,
}

impl Space {
    fn read(client: &mut SpiClient<'_>) -> Result<Self, Error> {
        let damaged = || Error::Internal {
            message: "table idgen.space has lost its row, or it says what cannot be".into(),
        };
        let row = client.update(SPACE, Some(1), &[])?.first();
        if row.get::<bool>(7)? != Some(true) {
            return Err(refused(
                "this database is a clone that is not another space yet",
                "A refill worker makes it one.",
                "Use a tag once, then repeat this.",
            ));
        }
        let uuid = |column| row.column::<pgrx::Uuid>(column).map(|uuid| *uuid.as_bytes());
        Ok(Self {
            identity: Identity {
                space_id: uuid(1).ok_or_else(damaged)?,
                source_id: uuid(2).ok_or_else(damaged)?,
                stripes: catalog::read_stripes(&row, 3).ok_or_else(damaged)?,
            },
            above: row.get::<i64>(6)?.ok_or_else(damaged)?,
        })
    }

    /// The space that it is from now on, `None` for a new one.
    fn move_to(
        &self,
        client: &mut SpiClient<'_>,
        space_id: Option<[u8; 16]>,
        stripes: Stripes,
        above: i64,
    ) -> Result<pgrx::Uuid, Error> {
        let args = [
            space_id.map(pgrx::Uuid::from_bytes).into(),
            (stripes.index() as i32).into(),
            (stripes.count() as i32).into(),
            size_of(stripes).into(),
            above.into(),
        ];
        let moved = client.update(SET_SPACE, Some(1), &args)?.first();
        let space_id = moved.get::<pgrx::Uuid>(1)?.ok_or_else(|| Error::Internal {
            message: "table idgen.space has lost its row".into(),
        })?;
        let before = pgrx::Uuid::from_bytes(self.identity.space_id);
        for statement in TAKE_ALONG {
            client.update(statement, None, &[before.into(), space_id.into()])?;
        }
        Ok(space_id)
    }

    /// This was the space before.
    fn record(&self, client: &mut SpiClient<'_>, kind: &str, reason: Option<&str>) -> Result<(), Error> {
        let stripes = self.identity.stripes;
        let args: [DatumWithOid<'_>; 6] = [
            kind.into(),
            pgrx::Uuid::from_bytes(self.identity.space_id).into(),
            (stripes.index() as i32).into(),
            (stripes.count() as i32).into(),
            size_of(stripes).into(),
            reason.into(),
        ];
        client.update(RECORD, None, &args)?;
        Ok(())
    }

    /// What memory has of a tag is void at the commit: it was granted in the space before.
    fn discard(&self, segment_id: [u8; 16]) {
        changed::note(self.identity.key_of(segment_id), true);
    }

    /// Highest id of a tag that memory has had, which a row that was set back does not know.
    fn published(&self, segment_id: [u8; 16]) -> i64 {
        place_in_use(&self.identity.key_of(segment_id)).map_or(0, |slot| {
            slot.high_water.load(std::sync::atomic::Ordering::Acquire)
        })
    }
}

/// NULL with one master.
fn size_of(stripes: Stripes) -> Option<i64> {
    (!stripes.is_single()).then(|| stripes.size().cast_signed())
}

fn refused(message: impl Into<String>, detail: impl Into<String>, hint: &'static str) -> Error {
    Error::NoMaster {
        message: message.into(),
        detail: detail.into(),
        hint,
    }
}

/// Under the lock, as the owner of the tables.
fn change(
    work: impl FnOnce(&mut SpiClient<'_>, &Space) -> Result<(), Error>,
) -> Result<pg_sys::Datum, Error> {
    if in_recovery() {
        return Err(Error::InRecovery);
    }
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    check_transaction()?;
    leaf::ensure("", tables)?;
    commit_durably();
    {
        let _as_owner = AsOwner::begin(tables.owner);
        Spi::connect_mut(|client| {
            client.update(LOCK, None, &[])?;
            let space = Space::read(client)?;
            work(client, &space)
        })?;
    }
    super::cache::forget_all();
    Ok(pg_sys::Datum::null())
}

/// What was committed before the lock is there must be seen, and what this transaction has granted itself must not be
/// forgotten by a rollback of the rest.
fn check_transaction() -> Result<(), Error> {
    // SAFETY: a plain variable of this process.
    let level = unsafe { pg_sys::XactIsoLevel };
    if level > pg_sys::XACT_READ_COMMITTED as i32 {
        return Err(refused(
            "a space is joined and left in a transaction of isolation level READ COMMITTED only",
            "Another one does not see what is committed while this waits for its lock.",
            "",
        ));
    }
    if own::has_made_any() || changed::has_changed_any() {
        return Err(refused(
            "this transaction has made or changed segment tags",
            "They may have granted ids that only this transaction knows of.",
            "Commit first.",
        ));
    }
    Ok(())
}
