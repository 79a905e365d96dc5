//! The edge between Postgres and the extension's functions: V1 entries, arguments, results.

use crate::error::Error;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Define the V1 entry of a SQL function.
///
/// `$body: fn(Call) -> Result<pg_sys::Datum, Error>`. A panic becomes an ERROR inside the guard; an `Err` is
/// stored, all Rust values die, and the outer frame, which has none, throws it with its own SQLSTATE.
macro_rules! v1_function {
    ($name:ident, $body:path) => {
        const _: () = {
            #[unsafe(export_name = concat!("pg_finfo_", stringify!($name)))]
            extern "C" fn finfo() -> &'static pgrx::pg_sys::Pg_finfo_record {
                const V1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &V1
            }

            #[unsafe(export_name = stringify!($name))]
            extern "C-unwind" fn entry(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
                let mut failed = false;
                let datum = guarded(fcinfo, &mut failed);
                if failed {
                    // SAFETY: this frame holds a bool and a Datum, neither of which has a destructor.
                    unsafe { $crate::error::throw() }
                }
                datum
            }

            #[pgrx::pg_guard]
            extern "C-unwind" fn guarded(
                fcinfo: pgrx::pg_sys::FunctionCallInfo,
                failed: &mut bool,
            ) -> pgrx::pg_sys::Datum {
                // SAFETY: Postgres calls the entry with a valid call frame that outlives it.
                let call = unsafe { $crate::call::Call::new(fcinfo) };
                match $body(call) {
                    Ok(datum) => datum,
                    Err(error) => {
                        error.store();
                        *failed = true;
                        pgrx::pg_sys::Datum::null()
                    }
                }
            }
        };
    };
}
pub(crate) use v1_function;

/// One call of a V1 function.
#[derive(Clone, Copy)]
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Call {
    /// # Safety
    /// `fcinfo` must be the call frame that Postgres gave to the running function.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo }
    }

    #[inline(always)]
    fn arg(self, index: usize) -> Option<pg_sys::Datum> {
        // SAFETY: the frame is valid (see new) and Postgres fills nargs entries; the check keeps us inside.
        unsafe {
            if index >= usize::try_from((*self.fcinfo).nargs).unwrap_or(0) {
                return None;
            }
            let arg = &*(&raw const (*self.fcinfo).args)
                .cast::<pg_sys::NullableDatum>()
                .add(index);
            (!arg.isnull).then_some(arg.value)
        }
    }

    /// Argument of SQL type bigint.
    pub fn bigint(self, index: usize) -> Option<i64> {
        self.arg(index).map(|datum| datum.value() as i64)
    }

    /// Argument of SQL type integer.
    pub fn integer(self, index: usize) -> Option<i32> {
        self.arg(index).map(|datum| datum.value() as i32)
    }

    /// Argument of SQL type oid, or of one that stands for it as regclass.
    pub fn oid(self, index: usize) -> Option<pg_sys::Oid> {
        self.arg(index)
            .map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    /// Argument of SQL type boolean.
    pub fn boolean(self, index: usize) -> Option<bool> {
        self.arg(index).map(|datum| datum.value() != 0)
    }

    /// Argument of SQL type interval.
    pub fn interval(self, index: usize) -> Option<pg_sys::Interval> {
        // SAFETY: a non-null interval datum points to an Interval.
        self.arg(index)
            .map(|datum| unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() })
    }

    /// Argument of SQL type uuid.
    pub fn uuid(self, index: usize) -> Option<[u8; 16]> {
        // SAFETY: a non-null uuid datum points to 16 bytes.
        self.arg(index)
            .map(|datum| unsafe { *datum.cast_mut_ptr::<[u8; 16]>() })
    }

    /// Argument of SQL type text, its bytes in the server's encoding.
    #[inline(always)]
    pub fn text_bytes<'a>(self, index: usize) -> Option<&'a [u8]> {
        let datum = self.arg(index)?;
        // SAFETY: a non-null text datum points to a varlena that lives as long as the call. Only one that is
        // compressed or external needs Postgres (and its memory) to be read.
        unsafe {
            let mut varlena = datum.cast_mut_ptr::<pg_sys::varlena>();
            let plain = pgrx::varlena::varatt_is_4b_u(varlena)
                || (pgrx::varlena::varatt_is_1b(varlena) && !pgrx::varlena::varatt_is_1b_e(varlena));
            if !plain {
                varlena = pg_sys::pg_detoast_datum_packed(varlena);
            }
            let length = pgrx::varlena::varsize_any_exhdr(varlena);
            Some(std::slice::from_raw_parts(
                pgrx::varlena::vardata_any(varlena).cast(),
                length,
            ))
        }
    }

    /// Argument of SQL type text.
    ///
    /// # Errors
    /// 22023 for bytes that are not UTF-8: another server encoding with other than ASCII characters.
    pub fn text<'a>(self, index: usize) -> Result<Option<&'a str>, Error> {
        self.text_bytes(index)
            .map(|bytes| {
                std::str::from_utf8(bytes).map_err(|_| Error::InvalidParameter {
                    message: "text argument is not valid UTF-8".into(),
                    hint: "Use ASCII names in a database whose encoding is not UTF8.",
                })
            })
            .transpose()
    }

    /// Any argument, as Postgres has given it: to hand it on to a function of Postgres.
    pub fn datum(self, index: usize) -> Option<pg_sys::Datum> {
        self.arg(index)
    }

    /// Body of a trigger whose table backends remember something of: with the commit all of them, and with a
    /// rollback this one, learn that it is void.
    ///
    /// # Errors
    /// XX000 when `function` was not called as a trigger.
    pub fn invalidate_trigger_relation(self, function: &str) -> Result<pg_sys::Datum, Error> {
        let relation = self.trigger_relation().ok_or_else(|| Error::Internal {
            message: format!("{function}() was not called as a trigger"),
        })?;
        // SAFETY: a relation that is open; the message leaves with the commit.
        unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
        Ok(pg_sys::Datum::null())
    }

    /// The row whose trigger this call is.
    ///
    /// # Errors
    /// XX000 when `function` was not called as a row trigger of INSERT or UPDATE.
    pub fn row_change(self, function: &str) -> Result<RowChange, Error> {
        self.trigger_rows().ok_or_else(|| Error::Internal {
            message: format!("{function}() was not called as a row trigger"),
        })
    }

    fn trigger_rows(self) -> Option<RowChange> {
        const OPERATION: u32 = 0b11;
        const INSERT: u32 = 0;
        const UPDATE: u32 = 2;
        const FOR_EACH_ROW: u32 = 4;
        // SAFETY: the frame is valid (see new); a context of this node type is a TriggerData, whose rows are
        // there for as long as the call when it is fired for each row.
        unsafe {
            let context = (*self.fcinfo).context;
            if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                return None;
            }
            let trigger = &*context.cast::<pg_sys::TriggerData>();
            if trigger.tg_event & FOR_EACH_ROW == 0 {
                return None;
            }
            let columns = (*trigger.tg_relation).rd_att;
            match trigger.tg_event & OPERATION {
                INSERT => Some(RowChange {
                    columns,
                    old: None,
                    new: trigger.tg_trigtuple,
                }),
                UPDATE => Some(RowChange {
                    columns,
                    old: Some(trigger.tg_trigtuple),
                    new: trigger.tg_newtuple,
                }),
                _ => None,
            }
        }
    }

    /// The table whose trigger this call is.
    fn trigger_relation(self) -> Option<pg_sys::Oid> {
        // SAFETY: the frame is valid (see new); a context of this node type is a TriggerData with an open
        // relation.
        unsafe {
            let context = (*self.fcinfo).context;
            if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                return None;
            }
            Some((*(*context.cast::<pg_sys::TriggerData>()).tg_relation).rd_id)
        }
    }

    /// SQL NULL as the result.
    pub fn null(self) -> pg_sys::Datum {
        // SAFETY: the frame is valid (see new).
        unsafe { (*self.fcinfo).isnull = true };
        pg_sys::Datum::null()
    }

    /// One row of the function's OUT columns.
    pub fn record<const N: usize>(self, columns: [Option<pg_sys::Datum>; N]) -> Result<pg_sys::Datum, Error> {
        let (mut values, mut nulls) = split(columns);
        // SAFETY: the frame is valid; the tuple descriptor is checked to have as many columns as the arrays.
        unsafe {
            let mut descriptor: pg_sys::TupleDesc = std::ptr::null_mut();
            let class = pg_sys::get_call_result_type(self.fcinfo, std::ptr::null_mut(), &raw mut descriptor);
            if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE || (*descriptor).natts != N as i32 {
                return Err(wrong_columns(N));
            }
            let descriptor = pg_sys::BlessTupleDesc(descriptor);
            let tuple = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Ok(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
        }
    }

    /// The next row of a set that is made row by row. `first` makes the state at the first call, `next` a row
    /// from it, until `None`. The state is plain data: it ends with Postgres' memory, not by a destructor.
    pub fn stream<S: Copy>(
        self,
        first: impl FnOnce() -> Result<S, Error>,
        next: impl FnOnce(&mut S) -> Result<Option<pg_sys::Datum>, Error>,
    ) -> Result<pg_sys::Datum, Error> {
        // SAFETY: the frame is valid. fn_extra of a set-returning function is null at the first call and what
        // init_MultiFuncCall made of it later, which ends with end_MultiFuncCall; it checks that the caller
        // takes a set, so resultinfo is one. user_fctx is our S, in memory that lives as long.
        unsafe {
            let function = (*self.fcinfo).flinfo;
            if (*function).fn_extra.is_null() {
                let state = first()?;
                let context = pg_sys::init_MultiFuncCall(self.fcinfo);
                let room = pg_sys::MemoryContextAlloc((*context).multi_call_memory_ctx, size_of::<S>());
                room.cast::<S>().write(state);
                (*context).user_fctx = room;
            }
            let context = (*function).fn_extra.cast::<pg_sys::FuncCallContext>();
            let info = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            match next(&mut *(*context).user_fctx.cast::<S>())? {
                Some(row) => {
                    (*context).call_cntr += 1;
                    (*info).isDone = pg_sys::ExprDoneCond::ExprMultipleResult;
                    Ok(row)
                }
                None => {
                    pg_sys::end_MultiFuncCall(self.fcinfo, context);
                    (*info).isDone = pg_sys::ExprDoneCond::ExprEndResult;
                    Ok(self.null())
                }
            }
        }
    }

    /// Begin a set of rows of the function's OUT columns.
    pub fn rows<const N: usize>(self) -> Result<Rows<N>, Error> {
        // SAFETY: the frame is valid; InitMaterializedSRF checks that the caller takes a set, and fills
        // resultinfo with a tuplestore and a descriptor.
        unsafe {
            pg_sys::InitMaterializedSRF(self.fcinfo, 0);
            let info = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            if (*(*info).setDesc).natts != N as i32 {
                return Err(wrong_columns(N));
            }
            Ok(Rows { info })
        }
    }
}

/// A row that is about to be inserted or updated.
pub struct RowChange {
    columns: pg_sys::TupleDesc,
    old: Option<pg_sys::HeapTuple>,
    new: pg_sys::HeapTuple,
}

impl RowChange {
    /// The row as it is to be written.
    pub fn unchanged(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.new)
    }

    /// A bigint column of the new row.
    ///
    /// # Errors
    /// XX000: there is no such column, or it is NULL.
    pub fn new_bigint(&self, column: &CStr) -> Result<i64, Error> {
        self.bigint(self.new, column)
    }

    /// A bigint column of the old row; `None`: the row is inserted.
    ///
    /// # Errors
    /// As [`Self::new_bigint`].
    pub fn old_bigint(&self, column: &CStr) -> Result<Option<i64>, Error> {
        self.old.map(|old| self.bigint(old, column)).transpose()
    }

    fn bigint(&self, row: pg_sys::HeapTuple, column: &CStr) -> Result<i64, Error> {
        let number = self.number_of(column)?;
        let mut null = false;
        // SAFETY: a row of this table, and a column that it has.
        let datum = unsafe { pg_sys::SPI_getbinval(row, self.columns, number, &raw mut null) };
        if null {
            Err(no_column(column))
        } else {
            Ok(datum.value() as i64)
        }
    }

    fn number_of(&self, column: &CStr) -> Result<i32, Error> {
        // SAFETY: a look-up by name in a descriptor that lives as long as the call.
        let number = unsafe { pg_sys::SPI_fnumber(self.columns, column.as_ptr()) };
        if number > 0 {
            Ok(number)
        } else {
            Err(no_column(column))
        }
    }

    /// The new row with other values in these columns.
    ///
    /// # Errors
    /// XX000: there is no such column.
    pub fn with<const N: usize>(
        &self,
        values: [(&CStr, Option<pg_sys::Datum>); N],
    ) -> Result<pg_sys::Datum, Error> {
        let mut numbers = [0; N];
        for (number, (column, _)) in numbers.iter_mut().zip(&values) {
            *number = self.number_of(column)?;
        }
        let (mut datums, mut nulls) = split(values.map(|(_, value)| value));
        // SAFETY: three arrays of N, and columns that the table has; the result is in the caller's memory.
        let row = unsafe {
            pg_sys::heap_modify_tuple_by_cols(
                self.new,
                self.columns,
                N as i32,
                numbers.as_mut_ptr(),
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
            )
        };
        Ok(pg_sys::Datum::from(row))
    }
}

fn no_column(column: &CStr) -> Error {
    Error::Internal {
        message: format!(
            "column {} is not what this library expects",
            column.to_string_lossy()
        ),
    }
}

fn wrong_columns(expected: usize) -> Error {
    Error::Internal {
        message: format!(
            "the SQL definition does not have the {expected} columns of this library: run ALTER EXTENSION pg_idgen UPDATE"
        ),
    }
}

fn split<const N: usize>(columns: [Option<pg_sys::Datum>; N]) -> ([pg_sys::Datum; N], [bool; N]) {
    (
        columns.map(|column| column.unwrap_or(pg_sys::Datum::null())),
        columns.map(|column| column.is_none()),
    )
}

/// The rows of a set-returning function.
pub struct Rows<const N: usize> {
    info: *mut pg_sys::ReturnSetInfo,
}

impl<const N: usize> Rows<N> {
    pub fn push(&mut self, columns: [Option<pg_sys::Datum>; N]) {
        let (values, nulls) = split(columns);
        // SAFETY: info was filled by InitMaterializedSRF for this call, whose descriptor has N columns.
        unsafe {
            pg_sys::tuplestore_putvalues(
                (*self.info).setResult,
                (*self.info).setDesc,
                values.as_ptr().cast_mut(),
                nulls.as_ptr().cast_mut(),
            );
        }
    }

    /// The datum that such a function returns: the rows travel beside it.
    pub fn done(self) -> pg_sys::Datum {
        pg_sys::Datum::null()
    }
}

pub fn text_datum(text: &str) -> Option<pg_sys::Datum> {
    text.into_datum()
}
/// A text whose bytes are in the encoding of this database already.
pub fn database_text_datum(bytes: &[u8]) -> Option<pg_sys::Datum> {
    let length = i32::try_from(bytes.len()).ok()?;
    // SAFETY: copies that many bytes into the current memory context.
    let text = unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), length) };
    Some(pg_sys::Datum::from(text))
}
pub fn bigint_datum(value: i64) -> Option<pg_sys::Datum> {
    Some(pg_sys::Datum::from(value))
}
/// For counters and clock readings, which stay far below 2^63.
pub fn unsigned_datum(value: u64) -> Option<pg_sys::Datum> {
    bigint_datum(i64::try_from(value).unwrap_or(i64::MAX))
}
pub fn integer_datum(value: i32) -> Option<pg_sys::Datum> {
    Some(pg_sys::Datum::from(value))
}
pub fn boolean_datum(value: bool) -> Option<pg_sys::Datum> {
    Some(pg_sys::Datum::from(value))
}

/// A uuid as a result, without the cost of a guarded allocation.
///
/// # Errors
/// 53200 out of memory.
#[inline(always)]
pub fn uuid_result(bytes: [u8; 16]) -> Result<pg_sys::Datum, Error> {
    // SAFETY: the shim returns 16 writable bytes of the current memory context, or NULL; it raises nothing.
    unsafe {
        let room = idgen_alloc_uuid().cast::<[u8; 16]>();
        if room.is_null() {
            return Err(Error::OutOfMemory);
        }
        room.write(bytes);
        Ok(pg_sys::Datum::from(room))
    }
}

pub fn uuid_datum(bytes: [u8; 16]) -> Option<pg_sys::Datum> {
    uuid_result(bytes).ok()
}

/// The role whose rights count now.
#[inline(always)]
pub fn current_user() -> pg_sys::Oid {
    // SAFETY: reads a variable of this process.
    unsafe { idgen_user_id() }
}

/// The database of this session.
pub fn current_database() -> u32 {
    // SAFETY: a plain variable of this process.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// This process, as Postgres numbers it.
#[inline(always)]
pub fn own_pid() -> i32 {
    // SAFETY: a plain variable of this process.
    unsafe { pg_sys::MyProcPid }
}

unsafe extern "C-unwind" {
    fn idgen_alloc_uuid() -> *mut std::ffi::c_void;
    fn idgen_user_id() -> pg_sys::Oid;
}

/// Learn what other sessions have committed to the catalogue.
pub fn accept_invalidations() {
    // SAFETY: inside a transaction, where Postgres does the same at every lock.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Wait until whoever has made `relation`, or changed it under an exclusive lock, has told the others, and learn it. New
/// snapshots show a commit a moment before it is told; its locks are let go of afterwards.
pub fn learn_of(relation: pg_sys::Oid) {
    const MODE: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: inside a transaction, which gives the lock back at its end, after an error too.
    unsafe {
        pg_sys::LockRelationOid(relation, MODE);
        pg_sys::UnlockRelationOid(relation, MODE);
    }
}

/// Whether this server replays another one's log.
pub fn in_recovery() -> bool {
    // SAFETY: no precondition.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Sleep until something sets this process's latch or `ms` are over, then serve interrupts.
pub fn nap(ms: u64) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: MyLatch is this process's own and valid in every backend and worker.
    unsafe {
        let timeout = i64::try_from(ms).unwrap_or(i64::MAX);
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, timeout, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}
