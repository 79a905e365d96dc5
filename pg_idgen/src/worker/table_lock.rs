//! Who has locked a table that a refill needs.

use super::attempt;
use crate::segment::failure::Holder;

/// A lock that an insert or update waits for, on a table of schema idgen or a leaf or index of one. One of them, if
/// several have one; 0: none any more, or that of a prepared transaction.
const HOLDER: &str = "
    SELECT coalesce(l.pid, 0) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
     WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
       AND c.relnamespace = 'idgen'::regnamespace
       AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
     ORDER BY l.pid NULLS LAST LIMIT 1";

pub fn holder() -> Holder {
    // Locks of catalogues may be in the way of this too: then nobody is named.
    let found = attempt(|client| {
        let row = client.select(HOLDER, Some(1), &[])?.first();
        Ok(row.get::<i32>(1).ok().flatten())
    });
    let pid = found.ok().and_then(Result::ok).flatten().unwrap_or(0);
    Holder {
        pid: pid.unsigned_abs(),
        prepared_xid: 0,
    }
}
