//! Every setting of the extension.

use idgen_core::clock::REWIND_MS_MIN;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// How long a caller waits for a lease that is likely to come back. Two seconds cover a crash-restart of
/// Postgres (0.2 s) and the daemon's poll (0.5 s) twice over.
static LEASE_WAIT_MS: GucSetting<i32> = GucSetting::<i32>::new(2_000);

/// How long a caller waits for a range of its tag: many refills of a healthy disk, short for a person.
static SEGMENT_WAIT_MS: GucSetting<i32> = GucSetting::<i32>::new(2_000);

/// How far the wall clock may be behind its own maximum, or the last id, before minting is refused.
static MAX_CLOCK_REWIND_MS: GucSetting<i32> = GucSetting::<i32>::new(10_000);

/// What to do about a wall clock that is behind its own maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum ClockPolicy {
    /// Go on from the last millisecond, up to `idgen.max_clock_rewind_ms`.
    #[name = c"tolerant"]
    Tolerant,
    /// Refuse beyond [`REWIND_MS_MIN`].
    #[name = c"halt"]
    Halt,
}

static CLOCK_POLICY: GucSetting<ClockPolicy> = GucSetting::<ClockPolicy>::new(ClockPolicy::Tolerant);

/// How many of the server's workers are for batches and for what spills over; 0: all serve all.
static BULK_SLOTS: GucSetting<i32> = GucSetting::<i32>::new(0);

/// The shard of `idgen_snowflake(NULL)`; -1: none.
static SHARD: GucSetting<i32> = GucSetting::<i32>::new(-1);

static TRACK_IDS: GucSetting<bool> = GucSetting::<bool>::new(true);

/// Refill workers at a time. Two, so that one slow database does not stop the others, out of the default
/// `max_worker_processes = 8`.
static MAX_REFILL_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(2);

/// Tags that can be served at a time over all databases; 640 bytes of shared memory each.
static MAX_SEGMENTS: GucSetting<i32> = GucSetting::<i32>::new(1_024);

/// How long a tag must not have been used before its place may be given to another one. A tag that is thrown out costs the
/// rest of its ranges and a database write when it comes back: once a minute is little.
static SEGMENT_IDLE_S: GucSetting<i32> = GucSetting::<i32>::new(60);

/// The key file of sealed ids. Empty by default: there is no key that everybody could have.
static SEAL_KEY_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// Who may grant ranges of segment tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Authority {
    /// Whoever has the row and is a primary.
    #[name = c"local"]
    Local,
    /// The holder of the lease of the database's space.
    #[name = c"leased"]
    Leased,
}

static AUTHORITY: GucSetting<Authority> = GucSetting::<Authority>::new(Authority::Local);

/// How long an old primary may go on granting before it is fenced: what a safety burn makes up for.
static SAFETY_TIME_S: GucSetting<i32> =
    GucSetting::<i32>::new(idgen_core::segment::burn::SAFETY_TIME_S as i32);

/// Where the anchors of segments are. Empty: nowhere, because no default could lie outside of the data directory.
static ANCHOR_DIRECTORY: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// Upper limit of `idgen.max_refill_workers`: the size of the table in shared memory.
pub const REFILL_WORKERS_MAX: usize = 16;

pub fn lease_wait_ms() -> u64 {
    non_negative(LEASE_WAIT_MS.get())
}
pub fn segment_wait_ms() -> u64 {
    non_negative(SEGMENT_WAIT_MS.get())
}
/// How far the wall clock may be behind its maximum, by the policy.
#[inline(always)]
pub fn clock_rewind_ms_max() -> u64 {
    match CLOCK_POLICY.get() {
        ClockPolicy::Tolerant => non_negative(MAX_CLOCK_REWIND_MS.get()),
        ClockPolicy::Halt => REWIND_MS_MIN,
    }
}
#[inline(always)]
pub fn bulk_slots() -> u32 {
    BULK_SLOTS.get().cast_unsigned()
}
pub fn shard() -> Option<i32> {
    Some(SHARD.get()).filter(|shard| *shard >= 0)
}
#[inline(always)]
pub fn track_ids() -> bool {
    TRACK_IDS.get()
}
pub fn max_refill_workers() -> usize {
    MAX_REFILL_WORKERS.get().clamp(1, REFILL_WORKERS_MAX as i32) as usize
}
/// `None`: no anchors are kept.
pub fn anchor_directory() -> Option<PathBuf> {
    let path = ANCHOR_DIRECTORY.get()?;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(path.as_bytes())))
}
/// Seconds of granting that a safety burn passes over.
pub fn safety_time_s() -> u32 {
    SAFETY_TIME_S.get().cast_unsigned()
}
pub fn authority() -> Authority {
    AUTHORITY.get()
}
/// See `idgen_core::segment::places`.
pub fn segment_idle_ms() -> u64 {
    non_negative(SEGMENT_IDLE_S.get()) * 1_000
}
pub fn max_segments() -> usize {
    non_negative(MAX_SEGMENTS.get()) as usize
}

/// `None`: none is named. Not to be kept: it lives until the configuration is loaded anew.
pub fn seal_key_file<'a>() -> Option<&'a CStr> {
    // SAFETY: a variable of this process that holds NULL or a NUL-terminated string. Reading it as a value would
    // copy the string at every call.
    let path = unsafe {
        let path = *SEAL_KEY_FILE.as_ptr();
        if path.is_null() {
            return None;
        }
        CStr::from_ptr(path)
    };
    (!path.is_empty()).then_some(path)
}

fn non_negative(value: i32) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub fn define() {
    define_clock();
    define_snowflakes();
    define_segments();
    define_public_ids();
    // SAFETY: called once per process from _PG_init; the name is a NUL-terminated constant that Postgres copies.
    unsafe { pgrx::pg_sys::MarkGUCPrefixReserved(c"idgen".as_ptr()) };
}

fn define_clock() {
    GucRegistry::define_int_guc(
        c"idgen.max_clock_rewind_ms",
        c"How far the wall clock may be behind its own maximum before minting is refused.",
        c"With idgen.clock_policy = tolerant. Within it ids go on from the last millisecond; beyond it calls fail with SQLSTATE IG003 until the clock has caught up.",
        &MAX_CLOCK_REWIND_MS,
        5,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_enum_guc(
        c"idgen.clock_policy",
        c"What happens when the wall clock is behind its own maximum.",
        c"tolerant: ids go on from the last millisecond, up to idgen.max_clock_rewind_ms. halt: more than 5 ms behind, calls fail with SQLSTATE IG003. Either way minting goes on by itself when the clock has caught up.",
        &CLOCK_POLICY,
        GucContext::Sighup,
        GucFlags::default(),
    );
}

fn define_snowflakes() {
    GucRegistry::define_int_guc(
        c"idgen.lease_wait_ms",
        c"How long idgen_snowflake() waits for a lease that is likely to come back.",
        c"Applies when a daemon was seen in the last minute or the server has just crash-restarted; otherwise the call fails at once. 0 never waits.",
        &LEASE_WAIT_MS,
        0,
        60_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idgen.bulk_slots",
        c"How many of the server's worker identities are for batches and for what spills over.",
        c"The highest ones; single ids then come from the others, of which one is always left, and a backfill by idgen_snowflake_batch() does not starve them. 0: all serve all.",
        &BULK_SLOTS,
        0,
        1_023,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.shard",
        c"The logical shard of idgen_snowflake(NULL) and idgen_snowflake_batch(n, NULL).",
        c"May be set per database, role, function or session. -1: none; the shard must be named in the call then.",
        &SHARD,
        -1,
        crate::shmem::SHARDS as i32 - 1,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"idgen.track_ids",
        c"Count ids per worker, shard and role in idgen.stats.",
        c"Costs about one nanosecond per id.",
        &TRACK_IDS,
        GucContext::Sighup,
        GucFlags::default(),
    );
}

fn define_segments() {
    GucRegistry::define_int_guc(
        c"idgen.segment_wait_ms",
        c"How long idgen_segment() waits for the next range of its tag.",
        c"When it is over the call fails with SQLSTATE IG007 and says what held the refill up.",
        &SEGMENT_WAIT_MS,
        1,
        600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idgen.max_refill_workers",
        c"How many databases have their segments refilled at the same time.",
        c"Each takes one of max_worker_processes while it works and for one idle second.",
        &MAX_REFILL_WORKERS,
        1,
        REFILL_WORKERS_MAX as i32,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"idgen.authority",
        c"Who may grant ranges of segment tags.",
        c"local: every primary that has the tables; an old primary that runs on beside a promoted standby issues numbers twice. leased: only the holder of the lease of the database's space in the lease store, up to the ceiling that is written there.",
        &AUTHORITY,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idgen.safety_burn_time",
        c"How much granting a tag passes over after a promotion, a recovery or a restore.",
        c"What the tag would have granted in this time at its measured rate, and two ranges of max_step. An old primary must be fenced within this time.",
        &SAFETY_TIME_S,
        0,
        86_400,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"idgen.segment_idle_time",
        c"How long a tag must not have been used before its place in shared memory may be given to another one.",
        c"When all idgen.max_segments places are taken, the tag that was used least recently gives its place away; what it had in memory is burned. If none was idle for so long, the call fails with SQLSTATE IG017.",
        &SEGMENT_IDLE_S,
        1,
        86_400,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    // It sizes shared memory. Without preload there is none, and Postgres refuses a setting of the postmaster
    // then; it is defined all the same, so that a line in postgresql.conf is not called wrong.
    let of_postmaster = || match crate::shmem::preloading() {
        true => GucContext::Postmaster,
        false => GucContext::Sighup,
    };
    GucRegistry::define_int_guc(
        c"idgen.max_segments",
        c"How many tags can be served from shared memory at a time, over all databases.",
        c"When all places are taken, that of the tag used least recently is reused (idgen.segment_idle_time). Takes 640 bytes of shared memory each. Every database that uses segments takes one place more.",
        &MAX_SEGMENTS,
        16,
        1_000_000,
        of_postmaster(),
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idgen.anchor_directory",
        c"Directory outside of the data directory where it is written down how far ranges of segment tags were granted.",
        c"One small file for each database, written with every range. A data directory that was set back to an older snapshot is noticed by it. Empty: off.",
        &ANCHOR_DIRECTORY,
        of_postmaster(),
        GucFlags::SUPERUSER_ONLY,
    );
}

fn define_public_ids() {
    GucRegistry::define_string_guc(
        c"idgen.seal_key_file",
        c"File with the keys of idgen_seal() and idgen_open(), one per line in hexadecimal; the first seals, all open.",
        c"Only the server's user may read it (or a group, if it belongs to root). A relative path begins at the data directory. Read again when the configuration is loaded anew.",
        &SEAL_KEY_FILE,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
}
