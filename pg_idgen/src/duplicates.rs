//! Errors 23505, counted by constraint: a unique index that refuses a row is the only witness of a duplicate id that an
//! application has swallowed. The table and its rules are `idgen_core::audit::Duplicates`.
//!
//! Postgres calls `emit_log_hook` with each message that goes to the server's log. It may do so in any process and any state,
//! so the hook looks at the message and at variables of this process, and adds to atomics in shared memory: it calls nothing of
//! Postgres, allocates nothing, takes no lock and raises nothing.

use crate::call::{Call, boolean_datum, current_database, database_text_datum, unsigned_datum, v1_function};
use crate::clock;
use crate::error::Error;
use crate::shmem::{SingleThreaded, shared};
use idgen_core::audit::{Violated, Violation};
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

v1_function!(idgen_duplicate_key_counts, duplicate_key_counts);

const UNIQUE_VIOLATION: i32 = pg_sys::errcodes::PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION as i32;

static PREVIOUS: SingleThreaded<pg_sys::emit_log_hook_type> = SingleThreaded(UnsafeCell::new(None));

/// Hear of every message that is logged; once, by the postmaster.
pub fn define_hook() {
    // SAFETY: the postmaster is single-threaded, its children inherit both variables, and the hook is meant to be chained
    // like this.
    unsafe {
        *PREVIOUS.0.get() = pg_sys::emit_log_hook;
        pg_sys::emit_log_hook = Some(on_message);
    }
}

/// Not guarded by pgrx, which would raise what goes wrong: an error of the hook would be in the place of the one that is told.
unsafe extern "C-unwind" fn on_message(message: *mut pg_sys::ErrorData) {
    // SAFETY: Postgres calls the hook with a message that lives as long as the call.
    let message_seen = AssertUnwindSafe(|| count(unsafe { &*message }));
    // There is nothing in it that could panic. If there ever is, one error is not counted.
    let _ = catch_unwind(message_seen);
    // SAFETY: whoever was here before us is called as Postgres would; this frame has nothing that an error could skip.
    unsafe {
        if let Some(previous) = *PREVIOUS.0.get() {
            previous(message);
        }
    }
}

fn count(message: &pg_sys::ErrorData) {
    if message.sqlerrcode != UNIQUE_VIOLATION || message.elevel < pgrx::PgLogLevel::ERROR as i32 {
        return;
    }
    // A process without a database may have no shared memory any more, as the one that writes the log.
    let database = current_database();
    // SAFETY: a plain variable of this process.
    let is_parallel_worker = unsafe { pg_sys::ParallelWorkerNumber } >= 0;
    // Its leader raises the error once more.
    if database == 0 || is_parallel_worker {
        return;
    }
    let Some(shared) = shared() else { return };
    // SAFETY: each is null or a text that lives as long as the message.
    let of = unsafe {
        Violated {
            database,
            schema: bytes(message.schema_name),
            table: bytes(message.table_name),
            constraint: bytes(message.constraint_name),
        }
    };
    shared.duplicates.count(&of, clock::wall().0);
}

/// # Safety
/// `text` is null, or a C string that lives as long as the result is used.
unsafe fn bytes<'t>(text: *const c_char) -> &'t [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: see above.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Rows of `idgen.duplicate_key_counts()`: schema, table and constraint (NULL: the error named none), errors, first and
/// last in Unix ms, and whether they are the others.
fn duplicate_key_counts(call: Call) -> Result<pg_sys::Datum, Error> {
    let mut rows = call.rows()?;
    if let Some(shared) = shared() {
        for of in shared.duplicates.of(current_database()) {
            // Of this database, so in its encoding.
            let [schema, table, constraint] = of
                .names
                .map(|name| (!name.is_empty()).then(|| database_text_datum(&name)).flatten());
            let [count, first, last] = numbers(of.seen);
            rows.push([
                schema,
                table,
                constraint,
                count,
                first,
                last,
                boolean_datum(false),
            ]);
        }
        let others = shared.duplicates.others();
        if others.count > 0 {
            let [count, first, last] = numbers(others);
            rows.push([None, None, None, count, first, last, boolean_datum(true)]);
        }
    }
    Ok(rows.done())
}

fn numbers(seen: Violation) -> [Option<pg_sys::Datum>; 3] {
    [seen.count, seen.first_ms, seen.last_ms].map(unsigned_datum)
}
