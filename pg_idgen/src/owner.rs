//! Running the extension's own statements: as the owner of its tables, with every setting that could bend
//! them pinned.

use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    /// How many [`AsOwner`] there are now.
    static ACTING: Cell<u32> = const { Cell::new(0) };
}

/// The statement that runs is the extension's own.
pub fn is_acting() -> bool {
    ACTING.get() > 0
}

/// From construction to drop this backend acts as the owner of the extension's tables, with a search path
/// that holds nothing a user could have put there. After an error Postgres restores both by itself.
pub struct AsOwner {
    user: pg_sys::Oid,
    security_context: i32,
    guc_level: i32,
}

impl AsOwner {
    /// `owner`: role that owns schema `idgen`.
    pub fn begin(owner: pg_sys::Oid) -> Self {
        let (mut user, mut security_context) = (pg_sys::InvalidOid, 0);
        // SAFETY: both are written; the context is restored by drop or by the abort of the transaction.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&raw mut user, &raw mut security_context);
            // Restricted: what a trigger of the tables defers would run after the end of this, as whoever
            // commits, so it is refused.
            let flags = pg_sys::SECURITY_LOCAL_USERID_CHANGE
                | pg_sys::SECURITY_RESTRICTED_OPERATION
                | pg_sys::SECURITY_NOFORCE_RLS;
            pg_sys::SetUserIdAndSecContext(owner, security_context | flags as i32);
        }
        // SAFETY: closed by AtEOXact_GUC in drop or by the abort of the transaction.
        let guc_level = unsafe { pg_sys::NewGUCNestLevel() };
        ACTING.set(ACTING.get() + 1);
        let as_owner = Self {
            user,
            security_context,
            guc_level,
        };
        as_owner.pin(c"search_path", c"pg_catalog, pg_temp");
        as_owner.pin(c"TimeZone", c"UTC");
        as_owner
    }

    /// One more setting that keeps this value until the drop.
    pub fn pin(&self, name: &std::ffi::CStr, value: &std::ffi::CStr) {
        // Undone at the end of the level that `begin` has opened.
        set(name, value, pg_sys::GucAction::GUC_ACTION_SAVE);
    }
}

/// Until the drop the caller's own statements, with the caller's rights, run under settings that cannot bend them.
/// After an error Postgres restores the settings by itself.
pub struct Pinned {
    guc_level: i32,
}

impl Pinned {
    /// For reading and altering the caller's tables: names are as they are written, and rows that a policy would hide
    /// are an error instead of being missed.
    pub fn for_alterations() -> Self {
        // SAFETY: closed by AtEOXact_GUC in drop or by the abort of the transaction.
        let guc_level = unsafe { pg_sys::NewGUCNestLevel() };
        for (name, value) in [
            (c"search_path", c"pg_catalog, pg_temp"),
            (c"row_security", c"off"),
            (c"standard_conforming_strings", c"on"),
            (c"quote_all_identifiers", c"off"),
        ] {
            set(name, value, pg_sys::GucAction::GUC_ACTION_SAVE);
        }
        Self { guc_level }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: opened by `for_alterations`. While an error unwinds, the abort of the transaction does the same.
        unsafe { pg_sys::AtEOXact_GUC(true, self.guc_level) };
    }
}

/// The commit of this transaction is to wait for the disk, and for the synchronous standby if there is one, as
/// the commits of refill workers do. Not inside of an [`AsOwner`], whose end would undo it.
pub fn commit_durably() {
    // The worker's grants are durable before they are used. This transaction's leaves with its commit, and others
    // may have seen the ids before a crash or a failover takes them back.
    // SAFETY: inside a transaction; a variable of this process, and a flag that ends with the transaction.
    let weak = unsafe {
        pg_sys::ForceSyncCommit();
        pg_sys::synchronous_commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32
    };
    if weak {
        set(c"synchronous_commit", c"on", pg_sys::GucAction::GUC_ACTION_LOCAL);
    }
}

fn set(name: &std::ffi::CStr, value: &std::ffi::CStr, action: pg_sys::GucAction::Type) {
    // SAFETY: two constants; both actions are undone by Postgres, the latest at the end of the transaction.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            action,
            true,
            0,
            false,
        );
    }
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        ACTING.set(ACTING.get().saturating_sub(1));
        // SAFETY: what `begin` opened, in reverse order. While an error unwinds, the abort of the transaction
        // does the same again, which is harmless.
        unsafe {
            pg_sys::AtEOXact_GUC(true, self.guc_level);
            pg_sys::SetUserIdAndSecContext(self.user, self.security_context);
        }
    }
}

/// `InvalidSubTransactionId`, a macro that has no binding.
const INVALID_SUBTRANSACTION: pg_sys::SubTransactionId = 0;

/// The extension's tables in this database.
#[derive(Clone, Copy)]
pub struct Tables {
    pub segment: pg_sys::Oid,
    pub segment_grant: pg_sys::Oid,
    pub audit_event: pg_sys::Oid,
    pub owner: pg_sys::Oid,
}

impl Tables {
    /// `None` where the extension is not created. Needs a transaction.
    pub fn of_this_database() -> Option<Self> {
        let (segment, segment_grant, audit_event) = (
            Table::of_extension(c"segment")?,
            Table::of_extension(c"segment_grant")?,
            Table::of_extension(c"audit_event")?,
        );
        Some(Self {
            segment: segment.oid,
            segment_grant: segment_grant.oid,
            audit_event: audit_event.oid,
            owner: segment.owner,
        })
    }

    /// They were created by this very transaction, so nobody else sees them.
    pub fn are_of_this_transaction(self) -> bool {
        // SAFETY: the relation exists as far as this transaction is concerned; it is closed before the end.
        unsafe {
            let relation = pg_sys::RelationIdGetRelation(self.audit_event);
            if relation.is_null() {
                return false;
            }
            let created = (*relation).rd_createSubid != INVALID_SUBTRANSACTION;
            pg_sys::RelationClose(relation);
            created
        }
    }
}

/// One table of the extension in this database.
#[derive(Clone, Copy)]
pub struct Table {
    pub oid: pg_sys::Oid,
    pub owner: pg_sys::Oid,
}

impl Table {
    /// Table `name` of schema `idgen`; `None` where the extension is not created, or where the table is somebody
    /// else's. Needs a transaction.
    pub fn of_extension(name: &std::ffi::CStr) -> Option<Self> {
        // SAFETY: catalogue look-ups inside a transaction with constant names.
        let oid = unsafe {
            let schema = pg_sys::get_namespace_oid(c"idgen".as_ptr(), true);
            let oid = pg_sys::get_relname_relid(name.as_ptr(), schema);
            let extension = pg_sys::get_extension_oid(c"pg_idgen".as_ptr(), true);
            // Anybody who may create schemas can make a table of this name; only ours is a member.
            let ours = extension != pg_sys::InvalidOid
                && pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid) == extension;
            ours.then_some(oid)?
        };
        Some(Self {
            oid,
            owner: owner_of(oid)?,
        })
    }
}

fn owner_of(relation: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: a look-up inside a transaction; the tuple is read before it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, relation.into());
        if tuple.is_null() {
            return None;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}
