//! What held a refill up, in words: the DETAIL of the error that a waiter gets.

use super::failure::{Failure, Holder};
use crate::as_of_now;
use crate::owner::{AsOwner, Tables};

const PREPARED: &str = "SELECT p.gid FROM pg_prepared_xacts p WHERE p.transaction::text::bigint = $1";

/// For the person who reads the error.
pub fn cause(failure: Failure, holder: Holder) -> String {
    match failure {
        Failure::RowLocked => row_locked(holder),
        Failure::TableLocked => match holder.pid {
            0 => "A table of schema idgen is locked; its holder is not found (see pg_locks).".into(),
            pid => format!("Process {pid} has locked a table of schema idgen."),
        },
        Failure::Error => "The refill worker met an error; the server log has it.".into(),
        Failure::NoWorker => {
            "No background worker could be started for this database; max_worker_processes may be used up.".into()
        }
        Failure::NoAuthority => {
            "No lease of this database's space is open: the daemon has none, or its deadline has passed.".into()
        }
        Failure::NoCeiling => "The daemon has not raised the ceiling of the tag in the lease store.".into(),
        Failure::Unwitnessed => {
            "The database has another history since a promotion or recovery, and waits for what topic and archive know of grants that it has lost.".into()
        }
        Failure::None
        | Failure::Gone
        | Failure::Exhausted
        | Failure::Copy
        | Failure::NotCut
        | Failure::BurnTooLarge
        | Failure::RateLimited => {
            "The refill has not finished: a slow disk, a synchronous standby that does not answer, or all idgen.max_refill_workers busy.".into()
        }
    }
}

fn row_locked(holder: Holder) -> String {
    match holder {
        Holder {
            prepared_xid: 0,
            pid: 0,
        } => "Another transaction holds the row of the tag; it is not found: several may hold it.".into(),
        Holder { prepared_xid: 0, pid } => {
            format!("Process {pid} holds the row of the tag in its transaction.")
        }
        Holder { prepared_xid, .. } => match name_of_prepared(prepared_xid) {
            Some(gid) => format!(
                "Prepared transaction \"{gid}\" holds the row of the tag until it is ended by COMMIT PREPARED or ROLLBACK PREPARED (see pg_prepared_xacts)."
            ),
            None => "A prepared transaction held the row of the tag, and has ended.".into(),
        },
    }
}

/// `None`: it has ended.
fn name_of_prepared(xid: u32) -> Option<String> {
    let tables = Tables::of_this_database()?;
    let _as_owner = AsOwner::begin(tables.owner);
    let read = |row: &as_of_now::Row| row.get::<String>(1);
    as_of_now::first_row(PREPARED, &[i64::from(xid).into()], read)
        .ok()
        .flatten()
        .flatten()
}
