//! `idgenctl audit table`: is a value there twice in a column that nothing in the database guards?
//!
//! Where an index leads with the column it is gone through page by page, in order. Where there is none the table is read
//! several times, each time for a part of the values (by a hash of them), so that neither memory nor files grow with it. After
//! each page or part the run says how far it is, and another call goes on there. Nothing is locked and no snapshot is held
//! over the pages: what is written meanwhile may not be seen.

mod parts;
mod run;

use self::parts::{Place, Twice};
use self::run::Run;
use crate::error::{Error, Result};
use crate::plain_table::plain_table;
use crate::postgres::{PgError, PostgresUrl, Session, column, reach};
use serde::Serialize;
use std::time::Duration;
use tokio_postgres::Row;

/// A page takes a second; a part reads the whole table once.
const STATEMENT: Duration = Duration::from_secs(3_600);
/// Values that are shown, and written down as findings. Of more there is the count.
const NAMED_MAX: usize = 1_000;

/// Which column: what is quoted is quoted already, and what may be in a name is in it.
const LOOK: &str = "
    SELECT c.oid::int8, c.relkind::text, n.nspname || '.' || c.relname, a.attname::text,
           format('%I.%I', n.nspname, c.relname), quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
           row_security_active(c.oid), a.attnum::int2,
           coalesce((SELECT nullif(sum(pg_table_size(t.relid)), 0) FROM pg_partition_tree(c.oid) t), pg_table_size(c.oid))::int8,
           concat(c.oid, '/', pg_relation_filenode(c.oid))
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.oid = to_regclass($1)";
/// Its indexes of all rows that begin with it: first those that refuse duplicates, which are unique and of it alone. That of a table
/// with heirs says nothing of theirs.
const INDEXES: &str = "
    SELECT x.relname::text, i.indisunique AND i.indnkeyatts = 1
           AND (c.relkind = 'p' OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid))
      FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
      JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
     WHERE i.indrelid = $1::int8::oid AND i.indkey[0] = $2 AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree'
     ORDER BY 2 DESC, 1";

/// What is to be looked at.
#[derive(Clone, Debug)]
pub struct TableWish {
    /// The table, as SQL names it.
    pub relation: String,
    /// The column, as the catalogue has it.
    pub column: String,
    /// Rows of a page.
    pub page: i64,
    /// Begin at the beginning, whatever an earlier run has left.
    pub anew: bool,
}

/// What it came to.
#[derive(Clone, Debug, Serialize)]
pub struct TableAudit {
    /// Number of the run in `idgen.audit_run`.
    pub run: i64,
    /// The table.
    pub relation: String,
    /// The column.
    pub column: String,
    /// How it was looked at.
    pub how: String,
    /// It went on where an earlier run had been stopped.
    pub resumed: bool,
    /// PASS or FINDING.
    pub verdict: String,
    /// Values that are there more than once,
    pub duplicates: u64,
    /// ... and those of them that somebody has closed as findings (`idgenctl audit close`).
    pub closed: u64,
    /// The first of them that this call has met.
    pub values: Vec<Twice>,
}

/// How far it is: so many of so many pages or parts.
pub type Told<'t> = &'t (dyn Fn(u64, u64) + Send + Sync);

/// A column, as it is written in SQL.
struct Column {
    oid: i64,
    number: i16,
    /// For people, and for findings.
    name: String,
    column: String,
    /// For SQL.
    relation: String,
    quoted: String,
    type_name: String,
    bytes: i64,
    /// Another one when the table was made anew, emptied or rewritten.
    identity: String,
}

fn failed(error: &PgError) -> Error {
    let error_text = error.to_string();
    let denied = error.sqlstate() == Some("42501");
    let told = Error::retry(format!("audit a table: {error_text}"));
    match denied {
        true => told.with_hint("the role needs SELECT on the table, and what idgen.grant_daemon() gives: name another with --postgres"),
        false => told,
    }
}

/// Looks for duplicates. `by`: who does, for people.
///
/// # Errors
/// There is no such column, it cannot be read whole, or another one is at it.
pub async fn audit_table(
    url: &PostgresUrl,
    connect_timeout: Duration,
    (by, wish): (&str, &TableWish),
    told: Told<'_>,
) -> Result<TableAudit> {
    let session = reach(url, "idgenctl audit table", connect_timeout, STATEMENT).await?;
    let column = find(&session, wish).await?;
    let index = index_of(&session, &column).await?;
    let Some(mut run) = Run::begin(&session, &column, by, wish.anew).await? else {
        return Err(Error::refused(format!(
            "somebody else audits {}.{} right now",
            column.name, column.column
        )));
    };
    let mut audit = TableAudit {
        run: run.id,
        relation: column.name.clone(),
        column: column.column.clone(),
        how: String::new(),
        resumed: run.is_resumed,
        verdict: String::new(),
        duplicates: 0,
        closed: 0,
        values: Vec::new(),
    };
    match index {
        Some((name, true)) => audit.how = format!("the unique index {name} refuses duplicates"),
        Some((name, false)) => {
            audit.how = format!("in the order of the index {name}");
            let place = Place::pages(run.after.take(), wish.page);
            go(&session, &column, (&mut run, place), &mut audit, told).await?;
        }
        None => {
            let place = Place::parts(run.part, column.bytes);
            audit.how = format!(
                "without an index: the table is read {} times",
                place.parts_in_all()
            );
            go(&session, &column, (&mut run, place), &mut audit, told).await?;
        }
    }
    (audit.duplicates, audit.closed) = (run.duplicates, run.closed);
    audit.verdict = run.end(&session).await?.to_owned();
    Ok(audit)
}

async fn go(
    session: &Session,
    column: &Column,
    (run, mut place): (&mut Run, Place),
    audit: &mut TableAudit,
    told: Told<'_>,
) -> Result<()> {
    while let Some(found) = place.next(session, column).await? {
        let room = NAMED_MAX.saturating_sub(audit.values.len());
        run.found(session, column, &found, room).await?;
        audit.values.extend(found.named.into_iter().take(room));
        run.reached(session, &place).await?;
        told(place.done(), place.parts_in_all());
    }
    Ok(())
}

async fn find(session: &Session, wish: &TableWish) -> Result<Column> {
    let rows = session.rows(LOOK, &[&wish.relation, &wish.column]).await;
    let rows = rows.map_err(|error| failed(&error))?;
    let Some(row) = rows.first() else {
        return Err(Error::usage(format!(
            "there is no column \"{}\" of a table {} in this database",
            wish.column, wish.relation
        ))
        .with_hint(
            "name the table with its schema, and both as SQL does: public.orders, public.\"Orders\"",
        ));
    };
    let kind: &str = column(row, 1)?;
    if !matches!(kind, "r" | "p" | "m") {
        return Err(Error::usage(format!("{} is no table", wish.relation)));
    }
    if column(row, 7)? {
        // Whoever sees a part of the rows would say PASS of all of them.
        return Err(Error::refused(format!(
            "row security hides rows of {} from this role",
            wish.relation
        ))
        .with_hint(
            "name a role that sees all of them with --postgres, as the table's owner or one with BYPASSRLS",
        ));
    }
    column_of(row)
}

fn column_of(row: &Row) -> Result<Column> {
    Ok(Column {
        oid: column(row, 0)?,
        name: column(row, 2)?,
        column: column(row, 3)?,
        relation: column(row, 4)?,
        quoted: column(row, 5)?,
        type_name: column(row, 6)?,
        number: column(row, 8)?,
        bytes: column(row, 9)?,
        identity: column(row, 10)?,
    })
}

/// The one to go by, and whether it refuses duplicates by itself.
async fn index_of(session: &Session, of: &Column) -> Result<Option<(String, bool)>> {
    let rows = session.rows(INDEXES, &[&of.oid, &of.number]).await;
    let rows = rows.map_err(|error| failed(&error))?;
    let first = rows.first();
    first
        .map(|row| Ok((column(row, 0)?, column(row, 1)?)))
        .transpose()
}

impl TableAudit {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}.{}: {} (run {}{}; {})",
            self.relation,
            self.column,
            self.verdict,
            self.run,
            if self.resumed {
                ", which was begun before"
            } else {
                ""
            },
            self.how
        );
        if self.duplicates == 0 {
            return text;
        }
        let mut table = plain_table();
        table.set_header(["value", "times"]);
        for twice in &self.values {
            table.add_row([twice.value.clone(), twice.times.to_string()]);
        }
        text.push_str(&format!(
            "\n{} values are there more than once, {} of them closed as findings\n{table}",
            self.duplicates, self.closed
        ));
        text
    }
}
