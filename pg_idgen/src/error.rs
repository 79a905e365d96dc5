//! Every error of the extension: one enum, one table, one way out.

mod snowflakes;
mod tags;

use std::ffi::c_char;

const START_DAEMON: &str = "Start the daemon of this server: idgend --config FILE. \"idgenctl status\" and \"SELECT * FROM idgen.health\" say what is missing.";
const PRELOAD: &str =
    "Add this line to postgresql.conf and restart the server: shared_preload_libraries = 'pg_idgen'";

/// What can go wrong. The documentation of each variant names its SQLSTATE; `docs/errors.md` is for users.
#[derive(Debug)]
pub enum Error {
    /// IG001
    NoLease { waited_ms: u64 },
    /// IG050
    Drained { why: String },
    /// IG002
    WindowUsedUp,
    /// IG003
    ClockBehind { behind_ms: u64, limit_ms: u64 },
    /// IG004
    DeadlinePassed { waited_ms: u64 },
    /// IG005
    UnknownTag { tag: String },
    /// IG006
    TagExhausted { tag: String, limit_id: i64 },
    /// IG006
    TooFewLeft { tag: String, n: u64, limit_id: i64 },
    /// IG007
    RefillTimedOut {
        tag: String,
        waited_ms: u64,
        cause: String,
    },
    /// IG008
    RateLimited {
        tag: String,
        limit: u32,
        retry_in_ms: u64,
    },
    /// IG030
    NoAuthority {
        tag: String,
        waited_ms: u64,
        cause: String,
    },
    /// IG031
    CopyOfDatabase,
    /// IG032
    BurnTooLarge { tag: String, limit_id: i64 },
    /// IG033
    Unwitnessed { tag: String, waited_ms: u64 },
    /// IG035
    NotCut { tag: String },
    /// IG036
    NoMaster {
        message: String,
        detail: String,
        hint: &'static str,
    },
    /// IG009
    FormatMismatch { detail: String, hint: &'static str },
    /// IG010
    EndOfEpoch { format: String },
    /// IG011
    NotPreloaded,
    /// IG012
    InRecovery,
    /// IG013
    NoRightOnTag { tag: String },
    /// IG013
    NotOwnerOfTag { tag: String, owner: String },
    /// 42704
    UnknownRole { role: String },
    /// 42501
    NotMemberOfRole { role: String },
    /// IG014
    ShardNotLeased { shard: u16, waited_ms: u64 },
    /// 22004
    NoShardNamed,
    /// IG015
    MillisecondWait { waited_ms: u64 },
    /// IG016
    TagExists { tag: String },
    /// IG017
    SegmentTableFull { segments_max: usize, idle_s: u64 },
    /// IG018
    UnknownPrefix { prefix: String },
    /// IG019
    PrefixStays,
    /// IG019
    FormatStays,
    /// IG020
    NoSealKey,
    /// IG021
    SealKeyFile { reason: String },
    /// IG022
    NotSealed { prefix: String },
    /// 22023
    NoPrefix { text: String, reason: String },
    /// IG023
    FormatExists { name: String },
    /// IG024
    ChangedHere { tag: String },
    /// IG025
    RequestKeyTaken { n: u64 },
    /// IG026
    NumberLine {
        message: String,
        detail: String,
        hint: &'static str,
    },
    /// IG027
    SequenceNotAdoptable {
        sequence: String,
        detail: String,
        hint: &'static str,
    },
    /// IG028
    NotReleasable {
        tag: String,
        detail: String,
        hint: &'static str,
    },
    /// 42501
    NotOwner { kind: &'static str, name: String },
    /// 42809
    NoSequence { name: String },
    /// IG101
    OtherBoot,
    /// IG102
    TokenNotNewer { detail: String },
    /// IG103
    FloorNotAbove { floor_ms: i64, last_ms: u64 },
    /// IG104
    InstallDeadlinePassed { late_ms: u64 },
    /// IG105
    OtherCell { installed: String, offered: String },
    /// IG109
    OtherRegion { remembered: u64, offered: Option<u64> },
    /// IG108
    OtherSpace { own: String, offered: String },
    /// IG017
    AuthorityTableFull,
    /// 58030
    CellNotKept { reason: String },
    /// 58030
    RegionNotKept { reason: String },
    /// 58030
    AnchorNotKept { reason: String },
    /// IG107
    AnchorDoubtful { file: String, reason: String },
    /// IG107
    StoreBehindAnchor { reason: String },
    /// IG106
    ContractVersion { offered: i32 },
    /// 22023
    InvalidParameter { message: String, hint: &'static str },
    /// 22P02
    InvalidText { message: String, detail: String },
    /// 22008
    TimeOutOfRange { what: &'static str },
    /// 22004
    NullArgument { name: &'static str },
    /// 53200
    OutOfMemory,
    /// XX000
    Internal { message: String },
}

/// The SQLSTATEs that `idgen.stats` counts: all of class IG.
pub const REFUSALS: [&str; 44] = [
    "IG001", "IG002", "IG003", "IG004", "IG005", "IG006", "IG007", "IG008", "IG009", "IG010", "IG011",
    "IG012", "IG013", "IG014", "IG015", "IG016", "IG017", "IG018", "IG019", "IG020", "IG021", "IG022",
    "IG023", "IG024", "IG025", "IG026", "IG027", "IG028", "IG030", "IG031", "IG032", "IG033", "IG035",
    "IG036", "IG050", "IG101", "IG102", "IG103", "IG104", "IG105", "IG106", "IG107", "IG108", "IG109",
];

struct Report {
    sqlstate: &'static str,
    message: String,
    detail: String,
    hint: &'static str,
}

fn report(
    sqlstate: &'static str,
    message: impl Into<String>,
    detail: impl Into<String>,
    hint: &'static str,
) -> Report {
    Report {
        sqlstate,
        message: message.into(),
        detail: detail.into(),
        hint,
    }
}

/// A name from outside, for a message: long ones are cut.
pub fn clip(name: &str) -> String {
    const CHARS_MAX: usize = 64;
    match name.char_indices().nth(CHARS_MAX) {
        Some((cut, _)) => format!("{}...", &name[..cut]),
        None => name.into(),
    }
}

/// Text from outside that should be plain ASCII, for a message: everything else is escaped, so that look-alike
/// letters show and any server encoding can carry it, and long ones are cut.
pub fn shown(text: &[u8]) -> String {
    const BYTES_MAX: usize = 64;
    match text.get(..BYTES_MAX) {
        Some(front) if text.len() > BYTES_MAX => format!("{}...", front.escape_ascii()),
        _ => text.escape_ascii().to_string(),
    }
}

impl Error {
    /// The table: what concerns everything first, then snowflakes, tags, and what only the daemon and administrators see.
    fn report(self) -> Report {
        match self {
            Self::NoLease { .. }
            | Self::Drained { .. }
            | Self::WindowUsedUp
            | Self::ClockBehind { .. }
            | Self::DeadlinePassed { .. }
            | Self::EndOfEpoch { .. }
            | Self::FormatExists { .. }
            | Self::FormatStays
            | Self::ShardNotLeased { .. }
            | Self::NoShardNamed
            | Self::MillisecondWait { .. } => self.snowflake_report(),
            Self::NotPreloaded => report(
                "IG011",
                "pg_idgen is not preloaded",
                "This function needs shared memory, which exists only after a preload.",
                PRELOAD,
            ),
            Self::InRecovery => report(
                "IG012",
                "this server is in recovery",
                "A standby issues no snowflakes and no segment ids.",
                "Use the primary, or idgen_uuidv7(), which works on a standby.",
            ),
            Self::UnknownTag { .. }
            | Self::TagExhausted { .. }
            | Self::TooFewLeft { .. }
            | Self::RefillTimedOut { .. }
            | Self::RateLimited { .. }
            | Self::NoAuthority { .. }
            | Self::NoRightOnTag { .. }
            | Self::NotOwnerOfTag { .. }
            | Self::TagExists { .. }
            | Self::ChangedHere { .. }
            | Self::RequestKeyTaken { .. }
            | Self::NumberLine { .. }
            | Self::SequenceNotAdoptable { .. }
            | Self::NotReleasable { .. }
            | Self::SegmentTableFull { .. } => self.tag_report(),
            Self::InvalidParameter { message, hint } => report("22023", message, "", hint),
            Self::NotOwner { kind, name } => {
                report("42501", format!("must be owner of {kind} {name}"), "", "")
            }
            Self::NoSequence { name } => report(
                "42809",
                format!("{name} is not a sequence"),
                "",
                "pg_get_serial_sequence('table', 'column') gives that of a column.",
            ),
            Self::UnknownRole { role } => report("42704", format!("role \"{role}\" does not exist"), "", ""),
            Self::NotMemberOfRole { role } => report(
                "42501",
                format!("must be member of role \"{role}\""),
                "A tag is handed over to a role that the caller could act as.",
                "",
            ),
            Self::InvalidText { message, detail } => report("22P02", message, detail, ""),
            Self::TimeOutOfRange { what } => {
                report("22008", format!("timestamp out of range for {what}"), "", "")
            }
            Self::NullArgument { name } => report("22004", format!("{name} must not be null"), "", ""),
            Self::OutOfMemory => report("53200", "out of memory", "", ""),
            Self::Internal { message } => report("XX000", message, "", "Please report this."),
            other => other.control_report(),
        }
    }

    fn public_id_report(self) -> Report {
        match self {
            Self::UnknownPrefix { prefix } => report(
                "IG018",
                format!("prefix \"{prefix}\" is not registered"),
                "Public ids are made with registered prefixes only, so that a slip of the pen does not get into tables.",
                "Register it once in this database: SELECT idgen_register_prefix('prefix').",
            ),
            Self::PrefixStays => report(
                "IG019",
                "a registered prefix is never changed or removed",
                "Ids with it may be anywhere.",
                "Register another prefix and leave this one unused.",
            ),
            Self::NoSealKey => report(
                "IG020",
                "no key for sealed ids",
                "idgen.seal_key_file names no file.",
                "Write a file with a key, name it in postgresql.conf and reload; docs/public-ids.md tells how.",
            ),
            Self::SealKeyFile { reason } => report(
                "IG021",
                "the key file of sealed ids is refused",
                format!("Reason: {reason}."),
                "Mend the file that idgen.seal_key_file names. Nothing is sealed or opened until then, also not with the keys of before.",
            ),
            Self::NotSealed { prefix } => report(
                "IG022",
                format!("not a sealed id of prefix \"{prefix}\""),
                "It was sealed elsewhere or with another prefix, it was changed, or its key is not in use any more.",
                "",
            ),
            Self::NoPrefix { text, reason } => report(
                "22023",
                format!("\"{text}\" is no prefix"),
                format!("Reason: {reason}."),
                "A prefix is a lower-case letter and up to 15 more lower-case letters and digits.",
            ),
            other => Self::unlisted(&other),
        }
    }

    fn control_report(self) -> Report {
        match self {
            Self::FormatMismatch { detail, hint } => report("IG009", "id format mismatch", detail, hint),
            Self::OtherBoot => report(
                "IG101",
                "the lease was granted for another shared memory",
                "Shared memory has been made anew since: the server has restarted.",
                "Read idgen.server_clock() and take a new token.",
            ),
            Self::TokenNotNewer { detail } => report(
                "IG102",
                "the lease token is not newer",
                detail,
                "The lease store has gone back, or two daemons serve one server: idgenctl status.",
            ),
            Self::FloorNotAbove { floor_ms, last_ms } => report(
                "IG103",
                "the floor is not above what this identity has minted here",
                format!("Floor {floor_ms}, last minted millisecond {last_ms}."),
                "The lease store has gone back: seal it and advance its epoch.",
            ),
            Self::InstallDeadlinePassed { late_ms } => report(
                "IG104",
                "the deadline of the lease has passed already",
                format!("By {late_ms} ms on this server's boot-time clock."),
                "Take a new token; the way from the store to here took too long.",
            ),
            Self::OtherCell { installed, offered } => report(
                "IG105",
                "this server has minted under another cell",
                format!("It belongs to cell {installed}, the lease comes from cell {offered}."),
                "Snowflakes are unique within one cell only: point idgend at the store of the first. If that is gone for good, docs/operations.md says when the file pg_idgen_cell may be deleted.",
            ),
            Self::OtherRegion { remembered, offered } => report(
                "IG109",
                "the cell is of another region than this server",
                match offered {
                    Some(region) => format!(
                        "This server has minted in region {remembered}, the cell has claimed region {region}."
                    ),
                    None => {
                        format!("This server has minted in region {remembered}, the cell has claimed none.")
                    }
                },
                "Point idgend at the store of a cell of that region. docs/operations.md says when the file pg_idgen_region may be deleted.",
            ),
            Self::CellNotKept { reason } => report(
                "58030",
                "could not write the cell of this server to its data directory",
                reason,
                "No lease is opened before that; look at disk space and rights.",
            ),
            Self::RegionNotKept { reason } => report(
                "58030",
                "could not read or write the region of this server in its data directory",
                reason,
                "No lease is opened before that; look at disk space, rights, and the file.",
            ),
            Self::ContractVersion { offered } => report(
                "IG106",
                "the daemon and the extension speak different contract versions",
                format!(
                    "The daemon offers {offered}, the extension has {}.",
                    idgen_core::contract::CONTRACT_VERSION
                ),
                "Install the daemon and the extension of the same release.",
            ),
            other => other.authority_report(),
        }
    }

    fn authority_report(self) -> Report {
        match self {
            Self::CopyOfDatabase => report(
                "IG031",
                "this database may be a copy of one that is still in use",
                "Its history is that of the database that granted ids last, but its files are in another place: another machine, directory or device.",
                "If this is the database now and the other one is gone, an administrator runs SELECT idgen.adopt_authority('why'). Otherwise stop this copy.",
            ),
            Self::BurnTooLarge { tag, limit_id } => report(
                "IG032",
                format!("the safety burn of segment tag \"{tag}\" would pass its limit"),
                format!(
                    "Ids may have been granted that this database does not know of; passing over as many as that may be would leave none up to {limit_id}."
                ),
                "Find out what the highest id in use is, and say how many to pass over: SELECT idgen.set_safety_burn('tag', ids).",
            ),
            Self::Unwitnessed { tag, waited_ms } => report(
                "IG033",
                format!("segment tag \"{tag}\" waits for what topic and archive know of lost grants"),
                format!(
                    "The database has another history since a promotion or recovery, and idgend has not told yet what it has lost. Waited {waited_ms} ms."
                ),
                "Start idgend of this server, or look at its log. The wait ends by itself: idgen.authority has changed_at and witness_wait. To go on at once: SELECT idgen.witnessed(mark) FROM idgen.authority.",
            ),
            Self::NotCut { tag } => report(
                "IG035",
                format!("segment tag \"{tag}\" is not cut in the stripes of its space"),
                "It was restored or replicated from a database that shares its space with other masters, or from one that does not, and this one does not do the same: its ids may be others' too.",
                "Join the space with \"idgenctl stripes join\", or make the database a space of its own: SELECT idgen.leave_space('why').",
            ),
            Self::NoMaster {
                message,
                detail,
                hint,
            } => report("IG036", message, detail, hint),
            Self::OtherSpace { own, offered } => report(
                "IG108",
                "the lease is not that of this database's space",
                format!("This database is space {own}, the lease is for {offered}."),
                "A restore or a clone has made another space: read idgen.authority_wanted() again.",
            ),
            Self::AuthorityTableFull => report(
                "IG017",
                "too many databases with a leased authority",
                "Every place in shared memory has an open lease.",
                "Fence the leases of databases that need none, or let them end.",
            ),
            other => other.anchor_report(),
        }
    }

    fn anchor_report(self) -> Report {
        match self {
            Self::AnchorNotKept { reason } => report(
                "58030",
                "could not write the anchor of this server to its data directory",
                reason,
                "No lease is opened or extended before that; look at disk space and rights.",
            ),
            Self::AnchorDoubtful { file, reason } => report(
                "IG107",
                format!("the anchor in file \"{file}\" cannot be trusted"),
                format!("Reason: {reason}."),
                "It says how far the lease store had come. Without it a restored store cannot be told: docs/operations.md says when the file may be deleted.",
            ),
            Self::StoreBehindAnchor { reason } => report(
                "IG107",
                "the lease store is behind what this server has seen of it",
                format!("Reason: {reason}."),
                "Nothing is leased until an operator has looked at it: idgenctl epoch show.",
            ),
            other => other.public_id_report(),
        }
    }

    /// Only reached if a variant is missing from the tables above.
    fn unlisted(&self) -> Report {
        report(
            "XX000",
            format!("error without a text: {self:?}"),
            "",
            "Please report this.",
        )
    }

    /// Hand the error to the shim, from where [`throw`] raises it once no Rust value is alive.
    pub fn store(self) {
        let Report {
            sqlstate,
            message,
            detail,
            hint,
        } = self.report();
        crate::stats::count_refusal(sqlstate);
        let parts = [message.as_str(), detail.as_str(), hint];
        let [message, detail, hint] = parts.map(|text| (text.as_ptr().cast::<c_char>(), text.len()));
        // SAFETY: sqlstate has five bytes by the tables above; the others are given with their lengths, and
        // the shim copies before it returns.
        unsafe {
            idgen_error_store(
                sqlstate.as_ptr().cast(),
                message.0,
                message.1,
                detail.0,
                detail.1,
                hint.0,
                hint.1,
            );
        }
    }
}

impl From<pgrx::spi::Error> for Error {
    fn from(error: pgrx::spi::Error) -> Self {
        Self::Internal {
            message: format!("query of pg_idgen's own tables: {error}"),
        }
    }
}

unsafe extern "C-unwind" {
    fn idgen_error_store(
        sqlstate: *const c_char,
        message: *const c_char,
        message_length: usize,
        detail: *const c_char,
        detail_length: usize,
        hint: *const c_char,
        hint_length: usize,
    );
    fn idgen_error_throw() -> !;
}

/// Raise the stored error. Leaves by longjmp.
///
/// # Safety
/// No frame between here and Postgres may hold a value with a destructor.
pub unsafe fn throw() -> ! {
    // SAFETY: the caller's promise.
    unsafe { idgen_error_throw() }
}
