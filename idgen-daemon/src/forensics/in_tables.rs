//! What the databases of a server know of an id.

use super::{Looked, Range};
use crate::authority::Open;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::postgres::{HAS_EXTENSION, PgError, Session, column};
use idgen_core::clock::UnixMs;
use idgen_core::format::register::Widths;
use idgen_core::format::{self, Format};
use idgen_core::utc::show_us;
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

/// A statement may take so long. The quick look takes milliseconds; the other one reads every event.
const STATEMENT: Duration = Duration::from_secs(120);

/// Events that are shown, in the statements below.
pub(super) const EVENTS_MAX: usize = 100;

/// What is to be known of each event.
macro_rules! event_columns {
    () => {
        "e.kind, e.space_id, e.tag, e.lo, e.hi, (extract(epoch FROM e.at) * 1000000)::int8, e.source_id, e.event_id,
         e.token_epoch, e.token_revision, e.tx::text, e.payload::text"
    };
}

/// Grants, through the index that sealed days have on them (`idgen.index_audit_day`): ranges that begin at most so many ids
/// before. A refill is never larger; what is drawn in bulk may be.
const NEAR: &str = concat!(
    "SELECT ",
    event_columns!(),
    "
      FROM idgen.segment s
     CROSS JOIN idgen.space p
     CROSS JOIN LATERAL (SELECT * FROM idgen.audit_event e
                          WHERE e.kind = 'segment.grant' AND e.space_id = p.space_id AND e.tag = s.tag
                            AND e.lo <= $1 AND e.lo > greatest($1, -9223372036853775808) - 1000000 AND e.hi >= $1
                          LIMIT 100) e
     WHERE ($2::text IS NULL OR s.tag = $2) AND s.start_id <= $1
     ORDER BY e.at, e.event_id LIMIT 100"
);
/// All of them, whatever their size and whatever the space was called then.
const ANYWHERE: &str = concat!(
    "SELECT ",
    event_columns!(),
    "
      FROM idgen.audit_event e
     WHERE e.lo <= $1 AND e.hi >= $1 AND ($2::text IS NULL OR e.tag = $2)
     ORDER BY e.at, e.event_id LIMIT 100"
);
/// That of the cell first.
const FORMATS: &str = "
    SELECT name, (extract(epoch FROM epoch) * 1000)::int8, sign_bits, ts_bits, region_bits, version_bits, node_bits, seq_bits,
           is_shard, coalesce(cell, '')
      FROM idgen.formats ORDER BY cell IS NULL, cell <> 'now', name";
const PREFIX: &str = "
    SELECT owner::text, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM idgen.prefixes WHERE prefix = $1";
/// The functions lie in the extension's schema, which nobody's search_path names here.
const OPEN: &str = "
    SELECT format('SELECT %I.idgen_open($1, $2)', n.nspname)
      FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_idgen'";

/// Sessions with those that have the extension. Standbys too: nothing is written.
pub(super) struct Databases {
    each: Vec<(String, Session)>,
    /// Those that did not answer.
    away: Vec<(String, String)>,
}

/// What came of opening a sealed id.
#[derive(Default)]
pub(super) struct Opened {
    /// What is in it, and which database could tell.
    pub found: Option<(i64, String)>,
    /// Why others could not.
    pub refused: Vec<String>,
}

impl Databases {
    /// # Errors
    /// The server does not answer. A database that does not is told, and the others are asked.
    pub(super) async fn open(config: &Config) -> Result<Self> {
        let postgres = &config.postgres;
        let mut found = Self {
            each: Vec::new(),
            away: Vec::new(),
        };
        for database in postgres.databases().await? {
            let url = postgres.url.in_database(&database);
            match open(&url, postgres.connect_timeout).await {
                Ok(Some(session)) => found.each.push((database, session)),
                Ok(None) => {}
                Err(error) => found.away.push((database, error.to_string())),
            }
        }
        Ok(found)
    }

    /// Each database that can be asked.
    pub(super) fn each(&self) -> impl Iterator<Item = (&str, &Session)> {
        self.each.iter().map(|(name, session)| (name.as_str(), session))
    }

    pub(super) fn tell_who_is_away(&self, looked: &mut Vec<Looked>) {
        let told = |(database, why): &(String, String)| Looked::failed(format!("database {database}"), why);
        looked.extend(self.away.iter().map(told));
    }

    /// Events that are about an id of a tag, or of any.
    pub(super) async fn grants(
        &self,
        sought: (i64, Option<&str>),
        whole: bool,
        looked: &mut Vec<Looked>,
    ) -> Vec<Range> {
        let mut found = Vec::new();
        for (database, session) in self.each() {
            let ranges = grants_of(session, sought, whole, database).await;
            let (told, ranges) = Looked::at(format!("database {database}"), ranges, |ranges| {
                let outcome = match ranges.len() {
                    0 => "no event is about it".to_owned(),
                    events => format!("{events} events are about it"),
                };
                (outcome, ranges)
            });
            looked.push(told);
            found.extend(ranges.unwrap_or_default());
        }
        self.tell_who_is_away(looked);
        found
    }

    /// Those that a number may be in: what the cell of the server mints in now and next, or the one that is named.
    ///
    /// # Errors
    /// No database knows a format of that name.
    pub(super) async fn formats(&self, name: Option<&str>) -> Result<Vec<Format>> {
        let mut found: Vec<Format> = Vec::new();
        for (_, session) in self.each() {
            let Ok(rows) = session.rows(FORMATS, &[]).await else {
                continue;
            };
            for row in &rows {
                let (format, cell) = format_of(row)?;
                let is_wanted = match name {
                    Some(name) => format.name.as_str() == name,
                    // Shards have a format of their own beside that of the workers.
                    None => !cell.is_empty() || format == format::SHARDED,
                };
                if is_wanted && !found.contains(&format) {
                    found.push(format);
                }
            }
        }
        match name {
            Some(name) if found.is_empty() => {
                let known = format::by_name(name).copied().map(|format| vec![format]);
                known.ok_or_else(|| {
                    Error::usage(format!("there is no format \"{name}\""))
                        .with_hint("SELECT name FROM idgen.formats")
                })
            }
            _ => Ok(found),
        }
    }

    /// Who has registered a prefix.
    pub(super) async fn registered(&self, prefix: &str, looked: &mut Vec<Looked>) -> Vec<String> {
        let mut found = Vec::new();
        for (database, session) in self.each() {
            if let Ok(rows) = session.rows(PREFIX, &[&prefix]).await {
                found.extend(rows.iter().filter_map(|row| {
                    let (owner, since): (&str, &str) = (column(row, 0).ok()?, column(row, 1).ok()?);
                    Some(format!("in {database} by {owner} on {since}"))
                }));
            }
        }
        self.tell_who_is_away(looked);
        found
    }

    /// Opens it with the keys of the server, where there are some.
    pub(super) async fn open_sealed(&self, text: &str, prefix: &str, looked: &mut Vec<Looked>) -> Opened {
        let mut opened = Opened::default();
        for (database, session) in self.each() {
            match open_in(session, text, prefix).await {
                Ok(id) => {
                    opened.found = Some((id, database.to_owned()));
                    break;
                }
                // Well-formed, and not sealed with these keys.
                Err(error) => opened.refused.push(format!("{database}: {error}")),
            }
        }
        // One server has one key file: the others say the same.
        opened.refused.truncate(1);
        let outcome = match &opened.found {
            Some((_, database)) => format!("opened in {database}"),
            None => "not opened".to_owned(),
        };
        looked.push(Looked::new("keys of sealed ids", outcome));
        opened
    }
}

async fn open(
    url: &crate::postgres::PostgresUrl,
    connect_timeout: Duration,
) -> std::result::Result<Option<Session>, PgError> {
    let session = Session::open(url, "idgenctl forensics", connect_timeout, STATEMENT).await?;
    // A hundred day tables make a plan look dear, and to compile it takes seconds.
    session.batch("SET jit = off").await?;
    let has_it: bool = session.row(HAS_EXTENSION, &[]).await?.get(0);
    Ok(has_it.then_some(session))
}

async fn open_in(session: &Session, text: &str, prefix: &str) -> std::result::Result<i64, PgError> {
    let sql: String = session.row(OPEN, &[]).await?.get(0);
    Ok(session.row(&sql, &[&text, &prefix]).await?.get(0))
}

async fn grants_of(
    session: &Session,
    (id, tag): (i64, Option<&str>),
    whole: bool,
    database: &str,
) -> Result<Vec<Range>> {
    let ways = if whole { &[ANYWHERE][..] } else { &[NEAR, ANYWHERE] };
    for sql in ways.iter().copied() {
        let rows = session
            .rows(sql, &[&id, &tag])
            .await
            .map_err(|error| Error::retry(error.to_string()))?;
        if !rows.is_empty() {
            return rows.iter().map(|row| range_of(row, database)).collect();
        }
    }
    Ok(Vec::new())
}

fn range_of(row: &Row, database: &str) -> Result<Range> {
    let token: Option<i64> = column(row, 8)?;
    let revision: Option<i64> = column(row, 9)?;
    let payload: &str = column(row, 11)?;
    Ok(Range {
        event: column(row, 0)?,
        space: column::<Uuid>(row, 1)?.to_string(),
        tag: column(row, 2)?,
        lo: column(row, 3)?,
        hi: column(row, 4)?,
        at: show_us(column(row, 5)?),
        source: column::<Uuid>(row, 6)?.to_string(),
        event_id: column(row, 7)?,
        token: token
            .zip(revision)
            .map(|(epoch, revision)| format!("{epoch}/{revision}")),
        tx: column(row, 10)?,
        payload: serde_json::from_str(payload).unwrap_or_default(),
        found_in: format!("idgen.audit_event of {database}"),
    })
}

fn format_of(row: &Row) -> Result<(Format, String)> {
    let name: &str = column(row, 0)?;
    let cell: String = column(row, 9)?;
    if let Some(format) = format::by_name(name) {
        return Ok((*format, cell));
    }
    let bits = |at: usize| column::<i32>(row, at).map(i32::cast_unsigned);
    let widths = Widths {
        sign: bits(2)?,
        ts: bits(3)?,
        region: bits(4)?,
        version: bits(5)?,
        node: bits(6)?,
        seq: bits(7)?,
    };
    let epoch = UnixMs(column::<i64>(row, 1)?.max(0).cast_unsigned());
    Format::register(name, epoch, widths, column(row, 8)?)
        .map(|format| (format, cell))
        .map_err(|error| Error::runtime(format!("format {name}: {error}")))
}
