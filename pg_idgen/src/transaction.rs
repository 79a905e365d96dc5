//! Who is told when a transaction or a savepoint ends.

use pgrx::pg_sys;
use std::ffi::c_void;

/// Postgres calls it with each event in the life of a transaction.
pub type OnTransaction = unsafe extern "C-unwind" fn(pg_sys::XactEvent::Type, *mut c_void);

/// Postgres calls it with each event in the life of a subtransaction.
pub type OnSavepoint = unsafe extern "C-unwind" fn(
    pg_sys::SubXactEvent::Type,
    pg_sys::SubTransactionId,
    pg_sys::SubTransactionId,
    *mut c_void,
);

/// Calls `callback` from now on; once per process.
pub fn tell(callback: OnTransaction) {
    // SAFETY: a function of this signature, which Postgres never unloads with its library; it is given no argument.
    unsafe { pg_sys::RegisterXactCallback(Some(callback), std::ptr::null_mut()) };
}

/// Calls `callback` from now on; once per process.
pub fn tell_savepoints(callback: OnSavepoint) {
    // SAFETY: as above.
    unsafe { pg_sys::RegisterSubXactCallback(Some(callback), std::ptr::null_mut()) };
}
