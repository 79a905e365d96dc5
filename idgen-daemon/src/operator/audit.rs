//! What `idgenctl audit` runs and shows.

use crate::audit::finding::Issuer;
use crate::audit::nightly::{Ended, Halt, Site, open_ledger, run, watches_leases};
use crate::authority::Open;
use crate::config::{AuditConfig, Config};
use crate::error::{Error, Exit, Result};
use crate::outbox::Holder;
use crate::plain_table::plain_table;
use crate::postgres::{PgError, PostgresUrl, Session, column, reach};
use idgen_core::audit::Extent;
use serde::Serialize;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;
use uuid::Uuid;

const STATEMENT: Duration = Duration::from_secs(10);
/// Another one may be at it: so long it is waited for.
const WAIT_MAX: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(500);
const RUNS_MAX: i64 = 10;
const FINDINGS_MAX: i64 = 100;

/// A run that was made.
#[derive(Clone, Debug, Serialize)]
pub struct AuditRun {
    /// The database.
    pub database: String,
    /// Its number there.
    pub run: i64,
    /// incremental or full.
    pub kind: String,
    /// PASS, FINDING or INCONCLUSIVE.
    pub verdict: String,
    /// Why it is INCONCLUSIVE, or a remark.
    pub reason: Option<String>,
    /// Tags that were looked at.
    pub tags: u64,
    /// What was found.
    pub findings: u64,
}

/// How a command ends that has come to these verdicts.
#[must_use]
pub fn exit_of<'v>(verdicts: impl IntoIterator<Item = &'v str>) -> Exit {
    let mut exit = Exit::Ok;
    for verdict in verdicts {
        exit = match (verdict, exit) {
            ("FINDING", _) | (_, Exit::Finding) => Exit::Finding,
            ("PASS", exit) => exit,
            _ => Exit::Inconclusive,
        };
    }
    exit
}

fn failed(error: PgError) -> Error {
    Error::retry(format!("ask idgen.audit_run: {error}"))
}

/// Audits a database, or all of the server, now. `told` hears how many ranges were looked at.
///
/// # Errors
/// A database does not answer, or another one audits it.
pub async fn run_now(
    config: &Config,
    extent: Extent,
    database: Option<&str>,
    told: &(dyn Fn(u64) + Send + Sync),
) -> Result<Vec<AuditRun>> {
    let databases = match database {
        Some(database) => vec![database.to_owned()],
        None => config.postgres.databases().await?,
    };
    let audit = match &config.audit {
        Some(audit) => audit.clone(),
        None => AuditConfig::standard()?,
    };
    let mut runs = Vec::new();
    for name in databases {
        let site = Site {
            primary: config.postgres.url.clone(),
            connect_timeout: config.postgres.connect_timeout,
            config: audit.clone(),
            archive: config.archive.as_ref().map(|archive| archive.place.clone()),
            watches_leases: watches_leases(&config.postgres.url, &name),
            metrics: None,
            database: name,
        };
        match run_one(config, &site, extent, told).await? {
            Some(ended) => runs.push(AuditRun {
                database: site.database,
                run: ended.run,
                kind: ended.kind.to_owned(),
                verdict: ended.verdict.name.to_owned(),
                reason: ended.verdict.reason,
                tags: ended.verdict.tags,
                findings: ended.verdict.findings,
            }),
            None if database.is_some() => {
                return Err(Error::refused(format!(
                    "database {} has no tables for audits, or is a standby",
                    site.database
                ))
                .with_hint("CREATE EXTENSION pg_idgen, or ALTER EXTENSION pg_idgen UPDATE"));
            }
            None => {}
        }
    }
    if runs.is_empty() {
        return Err(Error::refused("no database of this server can be audited"));
    }
    Ok(runs)
}

async fn run_one(
    config: &Config,
    site: &Site,
    extent: Extent,
    told: &(dyn Fn(u64) + Send + Sync),
) -> Result<Option<Ended>> {
    let holder = Holder {
        instance: Uuid::new_v4(),
        name: format!("idgenctl of {}", config.name),
    };
    let url = site.primary.in_database(&site.database);
    let Some(mut ledger) = open_ledger(&url, site.connect_timeout, holder)
        .await
        .map_err(error_of)?
    else {
        return Ok(None);
    };
    let began = Instant::now();
    while !ledger.keep().await.map_err(error_of)? {
        if began.elapsed() > WAIT_MAX {
            return Err(error_of(Halt::NotOurs));
        }
        tokio::time::sleep(WAIT).await;
    }
    let ended = run(&mut ledger, site, (extent, None), told).await;
    if !matches!(ended, Err(Halt::NotOurs)) {
        ledger.give_back().await;
    }
    ended.map(Some).map_err(error_of)
}

fn error_of(halt: Halt) -> Error {
    match halt {
        Halt::Trouble(error) => error,
        Halt::Inconclusive(why) => Error::retry(why),
        Halt::NotOurs => Error::retry("another one audits this database").with_hint(
            "holder_name of idgen.drain_lease, stream audit, says who; what it comes to: idgenctl audit show",
        ),
    }
}

/// For people.
#[must_use]
pub fn runs_text(runs: &[AuditRun]) -> String {
    let mut table = plain_table();
    table.set_header(["database", "run", "kind", "verdict", "tags", "findings", "why"]);
    for run in runs {
        table.add_row([
            run.database.clone(),
            run.run.to_string(),
            run.kind.clone(),
            run.verdict.clone(),
            run.tags.to_string(),
            run.findings.to_string(),
            run.reason.clone().unwrap_or_default(),
        ]);
    }
    let mut text = table.to_string();
    if runs.iter().any(|run| run.findings > 0) {
        text.push_str("\nWhat was found: idgenctl audit show");
    }
    text
}

/// A run as the table has it.
#[derive(Clone, Debug, Serialize)]
pub struct ShownRun {
    /// Its number.
    pub run: i64,
    /// Its kind.
    pub kind: String,
    /// When it began,
    pub began_at: String,
    /// ... and ended.
    pub ended_at: Option<String>,
    /// What it has come to; none: it has not ended.
    pub verdict: Option<String>,
    /// Why, or a remark.
    pub reason: Option<String>,
    /// Who has run it.
    pub by: String,
    /// Where it has read.
    pub read_from: Option<String>,
    /// Ranges that it has looked at.
    pub ranges: i64,
    /// Tags.
    pub tags: i64,
    /// What it has found.
    pub findings: i64,
}

/// A finding as the table has it.
#[derive(Clone, Debug, Serialize)]
pub struct ShownFinding {
    /// Its number.
    pub finding: i64,
    /// Its kind.
    pub kind: String,
    /// The tag, or what else it is about.
    pub tag: Option<String>,
    /// First of what both have,
    pub lo: Option<i64>,
    /// ... and last.
    pub hi: Option<i64>,
    /// In words.
    pub detail: String,
    /// The first issuer.
    pub first: Option<Issuer>,
    /// The second.
    pub second: Option<Issuer>,
    /// Which audit has found it.
    pub found_by: String,
    /// When.
    pub found_at: String,
    /// How often.
    pub seen: i32,
    /// Why it was closed; none: it is open.
    pub closed: Option<String>,
    /// What to do.
    pub advice: String,
}

/// The audits of a database.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The database.
    pub database: String,
    /// Runs, the last one first.
    pub runs: Vec<ShownRun>,
    /// Findings, the last one first.
    pub findings: Vec<ShownFinding>,
}

const RUNS: &str = "
    SELECT run_id, kind, to_char(began_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
           to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), verdict, reason, holder_name, read_from, ranges, tags, findings
      FROM idgen.audit_run WHERE $1::int8 IS NULL OR run_id = $1 ORDER BY run_id DESC LIMIT $2";

const FINDINGS: &str = "
    SELECT f.finding_id, f.kind, f.tag, f.lo, f.hi, f.detail, f.first::text, f.second::text, f.found_by,
           to_char(f.found_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), f.seen, f.closed_reason
      FROM idgen.audit_finding f
     WHERE CASE WHEN $1::int8 IS NULL THEN f.closed_at IS NULL ELSE f.run_id = $1 END
     ORDER BY f.finding_id DESC LIMIT $2";

/// What is to be done, in the order in which it is to be done. `docs/operations.md`, \"Audits\", has the commands at length.
fn advice(kind: &str, tag: &str) -> String {
    let freeze = format!(
        "freeze: SELECT idgen_seek_segment('{}', ID) with an ID above both ranges",
        tag.replace('\'', "''")
    );
    match kind {
        "overlap" => format!(
            "{freeze}, so that nothing more of them is granted; identify: rows with these ids in both systems (idgen.fed_columns \
             says where such ids are); fence: whichever issuer should not grant; repair: renumber the rows of one of them; then \
             idgenctl audit close"
        ),
        "not_in_database" => format!(
            "the database has lost this grant in a failover, and its ids may be in use. The tag goes on above it already; where the \
             finding does not say so: {freeze}. Then look for ids that were granted twice since"
        ),
        "not_in_archive" => "idgenctl archive verify DATE, then idgenctl archive backfill DATE: the topic has lost it".to_owned(),
        "missing" => "somebody has removed events, or the database was damaged: compare with the archive (idgenctl archive cat DATE)".to_owned(),
        "rewritten" => "somebody has changed an event: find out who may write to idgen.audit_event; the archive has the event as it was".to_owned(),
        "malformed" => "somebody has written an event that the extension does not write: find out who may write to idgen.audit_event. One of \
             ids that had been granted before: do as of an overlap (docs/operations.md, Audits)".to_owned(),
        "lease_overlap" => "two servers may have minted the same ids: compare both windows (idgenctl events list --identity), and fence one of them".to_owned(),
        "duplicate" => "renumber one of the rows, and make the index unique (idgen.lint has the SQL)".to_owned(),
        _ => String::new(),
    }
}

async fn open(url: &PostgresUrl, connect_timeout: Duration) -> Result<Session> {
    reach(url, "idgenctl audit", connect_timeout, STATEMENT).await
}

/// Runs and findings of a database, or of all. Without a run: the last ones, and the findings that are open.
///
/// # Errors
/// A database does not answer.
pub async fn show(config: &Config, database: Option<&str>, run: Option<i64>) -> Result<Vec<Shown>> {
    let databases = match database {
        Some(database) => vec![database.to_owned()],
        None => config.postgres.databases().await?,
    };
    let mut all = Vec::new();
    for name in databases {
        let url = config.postgres.url.in_database(&name);
        let session = open(&url, config.postgres.connect_timeout).await?;
        let there = "SELECT to_regclass('idgen.audit_run') IS NOT NULL";
        let rows = session.rows_typed(there, &[]).await.map_err(failed)?;
        if rows.first().map(|row| column::<bool>(row, 0)).transpose()? == Some(true) {
            all.push(show_one(&session, name, run).await?);
        }
    }
    Ok(all)
}

async fn show_one(session: &Session, database: String, run: Option<i64>) -> Result<Shown> {
    let mut shown = Shown {
        database,
        runs: Vec::new(),
        findings: Vec::new(),
    };
    let params = [(&run as _, Type::INT8), (&RUNS_MAX as _, Type::INT8)];
    for row in &session.rows_typed(RUNS, &params).await.map_err(failed)? {
        shown.runs.push(ShownRun {
            run: column(row, 0)?,
            kind: column(row, 1)?,
            began_at: column(row, 2)?,
            ended_at: column(row, 3)?,
            verdict: column(row, 4)?,
            reason: column(row, 5)?,
            by: column(row, 6)?,
            read_from: column(row, 7)?,
            ranges: column(row, 8)?,
            tags: column(row, 9)?,
            findings: column(row, 10)?,
        });
    }
    let params = [(&run as _, Type::INT8), (&FINDINGS_MAX as _, Type::INT8)];
    for row in &session.rows_typed(FINDINGS, &params).await.map_err(failed)? {
        let issuer = |at| {
            let text: Option<&str> = column(row, at)?;
            Ok::<_, Error>(text.and_then(|text| serde_json::from_str(text).ok()))
        };
        let (kind, tag): (String, Option<String>) = (column(row, 1)?, column(row, 2)?);
        shown.findings.push(ShownFinding {
            finding: column(row, 0)?,
            advice: advice(&kind, tag.as_deref().unwrap_or_default()),
            kind,
            tag,
            lo: column(row, 3)?,
            hi: column(row, 4)?,
            detail: column(row, 5)?,
            first: issuer(6)?,
            second: issuer(7)?,
            found_by: column(row, 8)?,
            found_at: column(row, 9)?,
            seen: column(row, 10)?,
            closed: column(row, 11)?,
        });
    }
    Ok(shown)
}

fn issuer_text(issuer: &Issuer) -> String {
    let mut text = format!("source {}", issuer.source);
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(", {what} {value}"));
        }
    };
    add("service", issuer.service.clone());
    add("event", issuer.event_id.map(|id| id.to_string()));
    add("at", issuer.at.clone());
    add(
        "ids",
        issuer.lo.zip(issuer.hi).map(|(lo, hi)| format!("{lo} to {hi}")),
    );
    add("token", issuer.token.clone());
    add(
        "partition and offset",
        issuer
            .partition
            .zip(issuer.offset)
            .map(|(partition, offset)| format!("{partition}/{offset}")),
    );
    text
}

impl Shown {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = plain_table();
        table.set_header([
            "run",
            "kind",
            "began (UTC)",
            "verdict",
            "read from",
            "ranges",
            "tags",
            "findings",
            "why",
        ]);
        for run in &self.runs {
            table.add_row([
                run.run.to_string(),
                run.kind.clone(),
                run.began_at.clone(),
                run.verdict.clone().unwrap_or_else(|| "runs".to_owned()),
                run.read_from.clone().unwrap_or_default(),
                run.ranges.to_string(),
                run.tags.to_string(),
                run.findings.to_string(),
                run.reason.clone().unwrap_or_default(),
            ]);
        }
        let mut text = format!("database {}\n{table}", self.database);
        for finding in &self.findings {
            text.push_str(&format!(
                "\n\nfinding {}: {} (found by {} on {} UTC, seen {} times)\n  {}",
                finding.finding,
                finding.kind.to_uppercase(),
                finding.found_by,
                finding.found_at,
                finding.seen,
                finding.detail
            ));
            for (what, issuer) in [("first", &finding.first), ("second", &finding.second)] {
                if let Some(issuer) = issuer {
                    text.push_str(&format!("\n  {what}: {}", issuer_text(issuer)));
                }
            }
            match &finding.closed {
                Some(reason) => text.push_str(&format!("\n  closed: {reason}")),
                None => text.push_str(&format!("\n  what to do: {}", finding.advice)),
            }
        }
        if self.findings.is_empty() {
            text.push_str("\nno finding is open");
        }
        text
    }
}

/// A finding that was closed.
#[derive(Clone, Debug, Serialize)]
pub struct Closed {
    /// The finding.
    pub finding: i64,
    /// It was open.
    pub was_open: bool,
    /// In words.
    pub detail: String,
    /// It was closed now.
    pub is_done: bool,
}

/// Closes a finding, as whoever `url` logs in as.
///
/// # Errors
/// There is none of that number, that one may not, or the database does not answer.
pub async fn close(
    url: &PostgresUrl,
    connect_timeout: Duration,
    (finding, reason): (i64, &str),
    dry_run: bool,
) -> Result<Closed> {
    let session = open(url, connect_timeout).await?;
    let sql = "SELECT closed_at IS NULL, detail FROM idgen.audit_finding WHERE finding_id = $1";
    let rows = session
        .rows_typed(sql, &[(&finding, Type::INT8)])
        .await
        .map_err(failed)?;
    let row = rows
        .first()
        .ok_or_else(|| Error::refused(format!("there is no finding {finding}")))?;
    let mut closed = Closed {
        finding,
        was_open: column(row, 0)?,
        detail: column(row, 1)?,
        is_done: false,
    };
    if !dry_run {
        let sql = "SELECT idgen.audit_close($1, $2)";
        let rows = session
            .rows_typed(sql, &[(&finding, Type::INT8), (&reason, Type::TEXT)])
            .await;
        match rows {
            Ok(rows) => closed.is_done = rows.first().map(|row| column(row, 0)).transpose()? == Some(true),
            Err(error) if error.sqlstate() == Some("42501") => {
                return Err(Error::refused(format!("close finding {finding}: {error}"))
                    .with_hint("--postgres takes the URL of an administrator (idgen.grant_admin), who is to be in pg_monitor"));
            }
            Err(error) => return Err(Error::refused(format!("close finding {finding}: {error}"))),
        }
    }
    Ok(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_verdict_says_how_it_ends() {
        assert_eq!(exit_of(["PASS", "PASS"]), Exit::Ok);
        assert_eq!(exit_of(["PASS", "INCONCLUSIVE", "PASS"]), Exit::Inconclusive);
        assert_eq!(exit_of(["INCONCLUSIVE", "FINDING", "PASS"]), Exit::Finding);
        assert_eq!(exit_of(["FINDING", "INCONCLUSIVE"]), Exit::Finding);
    }
}
