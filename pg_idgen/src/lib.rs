//! pg_idgen: unique ids where rows are written.
//!
//! A thin shell around `idgen-core`: SQL functions, settings, shared memory and background workers. The SQL
//! surface is written by hand in `sql/`; every function there is a V1 entry made by [`call::v1_function`].
//!
//! ```text
//! snowflake, batch    uuid7    segment    parse, boundary, codec, formats    public_id    control, stats, duplicates    SQL functions
//!        |              |         |                                             |
//!      mint             |         |                                      prefix, seal_keys
//!        |              |         |
//!   shmem, drawn       local  shmem, drawn       call, error, owner, guc, clock                   rooms they share
//!                                 |
//!                       worker (launcher, refill)
//! ```
//!
//! Invariants: shared memory, raw arguments and the state of the process are touched in `shmem`, `call` and `local`
//! only (`with` of `local` says what its callers promise); any other `unsafe` is one call of a Postgres function or a
//! look at one of its variables, each with its reason; no Postgres call while an LWLock is held; without
//! `shared_preload_libraries` the library loads quietly and only what needs shared memory refuses.

use pgrx::prelude::*;

mod anchor;
mod as_of_now;
mod authority;
mod batch;
mod boundary;
mod call;
mod cell;
mod clock;
mod codec;
mod control;
mod drawn;
mod duplicates;
mod error;
mod formats;
mod guc;
mod local;
mod mint;
mod owner;
mod parse;
mod prefix;
mod public_id;
mod seal_keys;
mod segment;
mod shmem;
mod snowflake;
mod stats;
mod transaction;
mod uuid7;
mod worker;

pgrx::pg_module_magic!();

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: Postgres processes have one thread. A backtrace that the environment asks for would reach users
    // in the DETAIL of errors, with paths of the machine that built this.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    guc::define();
    segment::define_callbacks();
    drawn::define_callback();
    formats::define_callbacks();
    prefix::define_callback();
    if shmem::preloading() {
        if let Err(reason) = authority::anchor::check_directory() {
            pgrx::error!("idgen.anchor_directory: {reason}");
        }
        shmem::request();
        duplicates::define_hook();
        worker::register_launcher();
    }
}
