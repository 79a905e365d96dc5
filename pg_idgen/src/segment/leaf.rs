//! The day leaves of `idgen.audit_event`: made ahead, and before a grant that needs one.
//!
//! They are no members of the extension, so that pg_dump takes them along with their rows; hence no install
//! script can make them. Keys and indexes are on the leaves only, which is what pg_dump can restore.

use crate::clock;
use crate::parse::POSTGRES_EPOCH_MS;
use pgrx::spi::{Result, SpiClient, SpiHeapTupleData};
use std::cell::Cell;

/// Days that a grant insists on beyond today: it may begin before midnight and record after it.
const DAYS_NEEDED: i32 = 1;

/// Days made ahead of today, by a transaction of their own.
const DAYS_AHEAD: i32 = 7;

const DAY_MS: i64 = 86_400_000;

thread_local! {
    /// Last day up to which this process has seen the leaves.
    static SEEN: Cell<i32> = const { Cell::new(i32::MIN) };
}

/// Today in UTC, as Postgres numbers days (since 2000-01-01).
fn today() -> i32 {
    ((clock::wall().0.cast_signed() - POSTGRES_EPOCH_MS).div_euclid(DAY_MS)) as i32
}

/// A clone by CREATE DATABASE … TEMPLATE brings the original's identity along: it is another source of
/// events and another space of tags from now on.
const OWN_IDENTITY: &str = "
    UPDATE idgen.space p
       SET space_id = gen_random_uuid(), source_id = gen_random_uuid(), database_oid = d.oid
      FROM pg_database d
     WHERE d.datname = current_database() AND p.database_oid <> d.oid";

const MISSING: &str = "
    SELECT 'audit_event_' || to_char(day, 'YYYYMMDD'), to_char(day, 'YYYY-MM-DD'), to_char(day + 1, 'YYYY-MM-DD')
      FROM (SELECT DATE '2000-01-01' + n AS day FROM generate_series($1, $2) n) days
     WHERE to_regclass('idgen.audit_event_' || to_char(day, 'YYYYMMDD')) IS NULL
     ORDER BY day";

/// See to it that an event of now finds its leaf.
pub fn prepare(client: &mut SpiClient<'_>) -> Result<()> {
    make_up_to(client, today() + DAYS_NEEDED)
}

/// Whether [`prepare_ahead`] has anything to do.
pub fn ahead_is_due() -> bool {
    SEEN.get() < today() + DAYS_AHEAD
}

/// Make the leaves of the coming days. Apart from grants, because it waits for whoever makes leaves too.
pub fn prepare_ahead(client: &mut SpiClient<'_>) -> Result<()> {
    make_up_to(client, today() + DAYS_AHEAD)
}

fn make_up_to(client: &mut SpiClient<'_>, last: i32) -> Result<()> {
    if SEEN.get() >= last {
        return Ok(());
    }
    client.update(OWN_IDENTITY, None, &[])?;
    if !missing(client, last)?.is_empty() {
        // Conflicts with itself and with nothing that inserts; then look again, another may have been first.
        client.update(
            "LOCK TABLE idgen.audit_event IN SHARE UPDATE EXCLUSIVE MODE",
            None,
            &[],
        )?;
        for leaf in missing(client, last)? {
            make(client, &leaf)?;
        }
    }
    SEEN.set(last);
    Ok(())
}

/// What this process has seen may have been undone with its transaction.
pub fn forget() {
    SEEN.set(i32::MIN);
}

struct Leaf {
    name: String,
    from: String,
    to: String,
}

fn missing(client: &mut SpiClient<'_>, last: i32) -> Result<Vec<Leaf>> {
    let rows = client.update(MISSING, None, &[today().into(), last.into()])?;
    rows.map(|row| {
        Ok(Leaf {
            name: text(&row, 1)?,
            from: text(&row, 2)?,
            to: text(&row, 3)?,
        })
    })
    .collect()
}

fn text(row: &SpiHeapTupleData<'_>, column: usize) -> Result<String> {
    Ok(row.get::<String>(column)?.unwrap_or_default())
}

/// Made beside the parent and then attached, so that inserts into the other leaves go on. The names are dates
/// that Postgres has formatted; bounds carry `+00` because the session's time zone must not matter.
fn make(client: &mut SpiClient<'_>, leaf: &Leaf) -> Result<()> {
    let Leaf { name, from, to } = leaf;
    for statement in [
        format!(
            "CREATE TABLE idgen.{name} (LIKE idgen.audit_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
               PRIMARY KEY (event_id),
               CONSTRAINT {name}_day CHECK (at >= '{from} 00:00:00+00' AND at < '{to} 00:00:00+00'))
             WITH (autovacuum_vacuum_scale_factor = 0.02)"
        ),
        format!("CREATE INDEX {name}_queue ON idgen.{name} (event_id) WHERE NOT published"),
        format!("CREATE INDEX {name}_tag ON idgen.{name} (space_id, tag, tag_seq)"),
        format!(
            "ALTER TABLE idgen.audit_event ATTACH PARTITION idgen.{name}
             FOR VALUES FROM ('{from} 00:00:00+00') TO ('{to} 00:00:00+00')"
        ),
    ] {
        client.update(statement.as_str(), None, &[])?;
    }
    Ok(())
}
