//! Who holds the row of a tag that a refill has found locked.

use super::failure::Holder;
use idgen_core::segment::Stripes;
use pgrx::pg_sys;
use pgrx::spi::SpiClient;

const XMAX: &str = "
    SELECT s.xmax::text::bigint FROM idgen.segment s
     WHERE s.segment_id = $1 AND s.dropped_at IS NULL
       AND EXISTS (SELECT FROM idgen.space p WHERE p.space_id = $2 AND (p.stripe, p.stripes) = ($3, $4))";

/// A prepared transaction has no process.
const HOLDER: &str = "
    SELECT coalesce((SELECT l.pid FROM pg_locks l
                      WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
                        AND l.transactionid::text::bigint = $1 LIMIT 1), 0),
           coalesce((SELECT $1 FROM pg_prepared_xacts p WHERE p.transaction::text::bigint = $1), 0)";

/// `None`: there is no such row. Several holders at a time have none that is found here.
pub fn find(
    client: &mut SpiClient<'_>,
    segment_id: pgrx::Uuid,
    space_id: pgrx::Uuid,
    stripes: Stripes,
) -> Result<Option<Holder>, pgrx::spi::Error> {
    let [stripe, stripes] = [stripes.index(), stripes.count()].map(|value| value as i32);
    let args = [segment_id.into(), space_id.into(), stripe.into(), stripes.into()];
    let row = client.update(XMAX, Some(1), &args)?.first();
    if row.is_empty() {
        return Ok(None);
    }
    let xmax = row.get::<i64>(1)?.and_then(|xid| u32::try_from(xid).ok());
    let Some(xid) = xmax.and_then(running_transaction) else {
        return Ok(Some(Holder::default()));
    };
    let found = client.update(HOLDER, Some(1), &[i64::from(xid).into()])?.first();
    let number = |value: Option<i64>| value.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    Ok(Some(Holder {
        pid: number(found.get::<i32>(1)?.map(i64::from)),
        prepared_xid: number(found.get::<i64>(2)?),
    }))
}

/// The transaction that runs under this id, or under a savepoint of this id. `None`: it has ended, or it is no
/// transaction: a row with several lockers has a number of another kind there.
fn running_transaction(xid: u32) -> Option<u32> {
    let xid = pg_sys::TransactionId::from(xid);
    // SAFETY: inside a transaction with a snapshot. A number from the future is not asked for, and one that is in
    // progress is young enough to have its parents on record.
    let top = unsafe {
        let next = pg_sys::TransactionId::from(pg_sys::ReadNextFullTransactionId().value as u32);
        if !pg_sys::TransactionIdPrecedes(xid, next) || !pg_sys::TransactionIdIsInProgress(xid) {
            return None;
        }
        pg_sys::SubTransGetTopmostTransaction(xid)
    };
    Some(top.into_inner())
}
