//! Is this database where it was when it granted last? Asked before ranges are granted, answered in
//! `idgen_core::segment::home`, remembered in `idgen.authority`.

use super::{anchor, home};
use crate::as_of_now::Columns;
use crate::error::Error;
use crate::guc;
use idgen_core::segment::home::{Cause, Home, Verdict, judge};
use pgrx::spi::SpiClient;

/// Columns of the remembered home, in the order that [`read_home`] takes them.
pub const HOME_COLUMNS: &str = "a.system_identifier, a.timeline, a.machine, a.os_boot, a.device, a.inode";

const REMEMBER: &str = "
    UPDATE idgen.authority
       SET system_identifier = $1, timeline = $2, machine = $3, os_boot = $4, device = $5, inode = $6";

/// Another mark: every tag burns before it serves again, and what others know of the old history is asked for.
const RENEW: &str = "
    UPDATE idgen.authority
       SET mark = gen_random_uuid(), cause = $1, changes = changes + 1, changed_at = clock_timestamp(),
           unheard = CASE WHEN is_witnessed THEN 1 ELSE unheard + 1 END, is_witnessed = false,
           sources_before = sources_before || (SELECT p.source_id FROM idgen.space p)
    RETURNING changes, sources_before[cardinality(sources_before)]";

/// The old history may have recorded events that this one knows nothing of: theirs are the numbers that come next.
const ANOTHER_SOURCE: &str = "UPDATE idgen.space SET source_id = gen_random_uuid()";

/// Events of the whole space have an empty tag, which no tag has.
const RECORD: &str = "
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, $1, '', $2,
           jsonb_build_object('cause', $3, 'reason', $4, 'source_before', $5, 'session_user', session_user, 'pid', pg_backend_pid(),
                              'system_identifier', a.system_identifier, 'timeline', a.timeline,
                              'machine', a.machine, 'device', a.device, 'inode', a.inode)
      FROM idgen.space p, idgen.authority a
    RETURNING event_id";

/// The remembered home in the columns of a row from `first` on.
pub fn read_home(row: &impl Columns, first: i32) -> Home {
    let number = |column| row.column::<i64>(column).unwrap_or_default().cast_unsigned();
    Home {
        system_identifier: number(first),
        timeline: row.column::<i32>(first + 1).unwrap_or_default().cast_unsigned(),
        machine: row.column(first + 2),
        os_boot: row.column(first + 3),
        device: number(first + 4),
        inode: number(first + 5),
    }
}

/// What a comparison says now. Not for a standby.
///
/// # Errors
/// Those of the query, and the data directory cannot be looked at.
pub fn verdict(client: &SpiClient<'_>) -> Result<Verdict, Error> {
    let query = format!("SELECT {HOME_COLUMNS} FROM idgen.authority a");
    let row = client.select(query.as_str(), Some(1), &[])?.first();
    Ok(judge(&read_home(&row, 1), &home::found()?))
}

/// Whether a worker has something to settle here before tags are known to have granted no more than their rows say.
///
/// # Errors
/// As [`verdict`]; with a local authority also: this may be a copy.
pub fn is_pending(client: &SpiClient<'_>) -> Result<bool, Error> {
    match verdict(client)? {
        Verdict::Copy(_) if guc::authority() == guc::Authority::Local => Err(Error::CopyOfDatabase),
        Verdict::Burn(_) => Ok(true),
        Verdict::Same | Verdict::Relabel | Verdict::Copy(_) => Ok(anchor::look(client)?.is_some()),
    }
}

/// Worker's side: do what the comparison asks for, in a transaction of its own. A copy is left as it is.
///
/// # Errors
/// As [`verdict`].
pub fn settle(client: &mut SpiClient<'_>) -> Result<Verdict, Error> {
    let verdict = match verdict(client)? {
        Verdict::Same | Verdict::Relabel if let Some(cause) = anchor::judge(client)? => Verdict::Burn(cause),
        verdict => verdict,
    };
    match verdict {
        Verdict::Same | Verdict::Copy(_) => {}
        Verdict::Relabel => remember(client)?,
        Verdict::Burn(cause) => begin_anew(client, "authority.burn", cause, None)?,
    }
    Ok(verdict)
}

/// Be at home here, as another source of events, and let every tag burn before it serves again.
///
/// # Errors
/// Those of the queries.
pub fn begin_anew(
    client: &mut SpiClient<'_>,
    kind: &str,
    cause: Cause,
    reason: Option<&str>,
) -> Result<(), Error> {
    remember(client)?;
    let renewed = client.update(RENEW, Some(1), &[cause.name().into()])?.first();
    let changes = renewed.get::<i64>(1)?;
    let before = renewed.get::<pgrx::Uuid>(2)?;
    client.update(ANOTHER_SOURCE, None, &[])?;
    let recorded = client.update(
        RECORD,
        Some(1),
        &[
            kind.into(),
            changes.into(),
            cause.name().into(),
            reason.into(),
            before.into(),
        ],
    )?;
    if recorded.is_empty() {
        return Err(Error::Internal {
            message: "idgen.space or idgen.authority has lost its row".into(),
        });
    }
    Ok(())
}

fn remember(client: &mut SpiClient<'_>) -> Result<(), Error> {
    let home = home::found()?;
    client.update(
        REMEMBER,
        None,
        &[
            home.system_identifier.cast_signed().into(),
            home.timeline.cast_signed().into(),
            home.machine.into(),
            home.os_boot.into(),
            home.device.cast_signed().into(),
            home.inode.cast_signed().into(),
        ],
    )?;
    Ok(())
}
