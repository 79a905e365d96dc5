//! Reading what is committed now. The statement's own snapshot, and under REPEATABLE READ that of the whole
//! transaction, may be older than what a worker has done since, at this statement's request.

use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CString;

/// A snapshot that is taken at once, whatever the isolation level; popped by its drop or by the abort.
struct Latest(());

impl Latest {
    fn push() -> Self {
        // SAFETY: inside a transaction, never in a parallel query.
        unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot()) };
        Self(())
    }
}

impl Drop for Latest {
    fn drop(&mut self) {
        // SAFETY: pushed by `push`; whatever was pushed after it has been popped before.
        unsafe { pg_sys::PopActiveSnapshot() };
    }
}

/// The row that a query has found.
pub struct Row {
    table: *mut pg_sys::SPITupleTable,
}

/// A row by its columns, counted from 1, whatever it was read with.
pub trait Columns {
    /// A value of its own; `None`: NULL.
    fn column<T: FromDatum + IntoDatum>(&self, column: i32) -> Option<T>;
}

impl Columns for Row {
    fn column<T: FromDatum + IntoDatum>(&self, column: i32) -> Option<T> {
        self.get(column)
    }
}

impl Columns for spi::SpiTupleTable<'_> {
    fn column<T: FromDatum + IntoDatum>(&self, column: i32) -> Option<T> {
        self.get(column.unsigned_abs() as usize).ok().flatten()
    }
}

impl Row {
    /// A column, counted from 1, as a value of its own; `None`: NULL.
    pub fn get<T: FromDatum>(&self, column: i32) -> Option<T> {
        let mut is_null = false;
        // SAFETY: the table has a row and lives until the end of the connection that it was read in, and the
        // columns are those of the query that stands beside the reader.
        unsafe {
            let tuple = *(*self.table).vals;
            let datum = pg_sys::SPI_getbinval(tuple, (*self.table).tupdesc, column, &raw mut is_null);
            T::from_datum(datum, is_null)
        }
    }
}

/// The first row of a query that only reads; `read` takes out of it what is to outlive it. Sees what this
/// transaction has done itself and what is committed. `None`: no row.
///
/// pgrx gives a query of a transaction that has written something the transaction's snapshot, so this goes to SPI
/// directly.
pub fn first_row<R>(
    query: &str,
    args: &[DatumWithOid<'_>],
    read: impl FnOnce(&Row) -> R,
) -> spi::Result<Option<R>> {
    let query = CString::new(query).map_err(|_| spi::SpiErrorCodes::Argument)?;
    let _latest = Latest::push();
    let mut types: Vec<pg_sys::Oid> = args.iter().map(DatumWithOid::oid).collect();
    let nulls: Vec<std::ffi::c_char> = args
        .iter()
        .map(|arg| if arg.datum().is_none() { b'n' } else { b' ' } as std::ffi::c_char)
        .collect();
    let mut values: Vec<pg_sys::Datum> = args
        .iter()
        .map(|arg| {
            arg.datum()
                .map_or(pg_sys::Datum::null(), |datum| datum.sans_lifetime())
        })
        .collect();
    Spi::connect(|_| {
        // SAFETY: connected; the arrays have one entry per argument and outlive the call. Read-only, so that it
        // uses the snapshot that is active.
        let table = unsafe {
            let status = pg_sys::SPI_execute_with_args(
                query.as_ptr(),
                args.len() as i32,
                types.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_ptr(),
                true,
                1,
            );
            Spi::check_status(status)?;
            pg_sys::SPI_tuptable
        };
        // SAFETY: NULL or what the query has just made.
        let found = unsafe { table.as_ref() }.is_some_and(|table| table.numvals > 0);
        Ok(found.then(|| read(&Row { table })))
    })
}
