//! The day leaves of `idgen.audit_event`: made ahead, and before a grant that needs one.
//!
//! They are no members of the extension, so that pg_dump takes them along with their rows; hence no install
//! script can make them. Keys and indexes are on the leaves only, which is what pg_dump can restore.

use pgrx::spi::{Result, SpiClient, SpiHeapTupleData};
use std::cell::Cell;

/// Days made ahead of today.
const DAYS_AHEAD: i32 = 7;

thread_local! {
    /// Postgres day number (UTC) up to which this process has seen the leaves, in which database.
    static SEEN: Cell<i32> = const { Cell::new(i32::MIN) };
}

const TODAY: &str = "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date - DATE '2000-01-01'";

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

/// See to it that an event of now (and of the coming days) finds its leaf.
pub fn prepare(client: &mut SpiClient<'_>) -> Result<()> {
    let today = client
        .select(TODAY, Some(1), &[])?
        .first()
        .get::<i32>(1)?
        .unwrap_or(0);
    // One day of slack: a transaction that begins now may record after midnight.
    if SEEN.get() > today {
        return Ok(());
    }
    client.update(OWN_IDENTITY, None, &[])?;
    if !missing(client, today)?.is_empty() {
        // Conflicts with itself and with nothing that inserts; then look again, another may have been first.
        client.update(
            "LOCK TABLE idgen.audit_event IN SHARE UPDATE EXCLUSIVE MODE",
            None,
            &[],
        )?;
        for leaf in missing(client, today)? {
            make(client, &leaf)?;
        }
    }
    SEEN.set(today + DAYS_AHEAD);
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

fn missing(client: &mut SpiClient<'_>, today: i32) -> Result<Vec<Leaf>> {
    let rows = client.update(MISSING, None, &[today.into(), (today + DAYS_AHEAD).into()])?;
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
