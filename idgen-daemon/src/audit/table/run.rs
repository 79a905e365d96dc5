//! A run over a column, in `idgen.audit_run`: where it is, what it has found.

use super::parts::{FoundTwice, Place, Twice};
use super::{Column, failed};
use crate::audit::finding::{self, Finding, FindingKind, FoundBy, Issuer};
use crate::error::{Error, Result};
use crate::postgres::{Session, column};
use serde::{Deserialize, Serialize};

/// Whoever audits a column holds this as long as the session lives; the number is of nothing else of ours.
const LOCK: &str = "SELECT pg_try_advisory_lock(1768187239, hashint8($1::int8 * 65536 + $2::int8))";
const OPEN: &str = "
    SELECT run_id, progress::text, findings, began_at > clock_timestamp() - interval '1 day' FROM idgen.audit_run
     WHERE kind = 'table' AND verdict IS NULL AND progress ->> 'relation' = $1 AND progress ->> 'column' = $2
     ORDER BY run_id DESC LIMIT 1";
const BEGIN: &str = "
    INSERT INTO idgen.audit_run (kind, holder_name, read_from, progress)
    VALUES ('table', $1, CASE WHEN pg_is_in_recovery() THEN 'replica' ELSE 'primary' END, $2::text::jsonb) RETURNING run_id";
const REACHED: &str =
    "UPDATE idgen.audit_run SET progress = $2::text::jsonb, findings = $3 WHERE run_id = $1";
const END: &str =
    "UPDATE idgen.audit_run SET ended_at = clock_timestamp(), verdict = $2, reason = $3 WHERE run_id = $1";

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    relation: String,
    column: String,
    #[serde(default)]
    identity: String,
    /// Of what was found.
    #[serde(default)]
    closed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// The next one, and how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<(u64, u64)>,
}

/// See the module.
pub(super) struct Run {
    pub(super) id: i64,
    pub(super) is_resumed: bool,
    pub(super) after: Option<String>,
    pub(super) part: Option<(u64, u64)>,
    /// Values that are there more than once, those of before included.
    pub(super) duplicates: u64,
    /// Those of them that somebody has closed: they are a remark.
    pub(super) closed: u64,
    relation: String,
    column: String,
    identity: String,
}

/// Rows may have come behind where it was.
const OLD: &str = "it was begun more than a day ago";
const ANOTHER: &str = "the table was emptied, rewritten or made anew meanwhile";
const ANEW: &str = "begun anew before it had ended";

impl Run {
    /// `None`: another session is at it.
    pub(super) async fn begin(session: &Session, of: &Column, by: &str, anew: bool) -> Result<Option<Self>> {
        let number = i64::from(of.number);
        let row = session
            .row(LOCK, &[&of.oid, &number])
            .await
            .map_err(|error| failed(&error))?;
        if !column::<bool>(&row, 0)? {
            return Ok(None);
        }
        let mut run = Self {
            id: 0,
            is_resumed: false,
            after: None,
            part: None,
            duplicates: 0,
            closed: 0,
            relation: of.name.clone(),
            column: of.column.clone(),
            identity: of.identity.clone(),
        };
        let open = session.rows(OPEN, &[&run.relation, &run.column]).await;
        for row in open.map_err(|error| failed(&error))? {
            run.id = column(&row, 0)?;
            let progress: Progress = serde_json::from_str(column(&row, 1)?).unwrap_or_default();
            let why_not = match (anew, column::<bool>(&row, 3)?) {
                (true, _) => Some(ANEW),
                (false, false) => Some(OLD),
                (false, true) => (progress.identity != run.identity).then_some(ANOTHER),
            };
            if why_not.is_some() {
                run.write_end(session, "INCONCLUSIVE", why_not).await?;
                continue;
            }
            (run.after, run.part, run.closed) = (progress.after, progress.part, progress.closed);
            run.duplicates = column::<i64>(&row, 2)?.unsigned_abs();
            run.is_resumed = true;
            return Ok(Some(run));
        }
        let row = session.row(BEGIN, &[&by, &run.progress()?]).await;
        run.id = column(&row.map_err(|error| failed(&error))?, 0)?;
        Ok(Some(run))
    }

    fn progress(&self) -> Result<String> {
        let progress = Progress {
            relation: self.relation.clone(),
            column: self.column.clone(),
            identity: self.identity.clone(),
            closed: self.closed,
            after: self.after.clone(),
            part: self.part,
        };
        serde_json::to_string(&progress).map_err(|error| Error::runtime(format!("write JSON: {error}")))
    }

    /// Writes down what a page or part has, the first so many of it by name.
    pub(super) async fn found(
        &mut self,
        session: &Session,
        of: &Column,
        found: &FoundTwice,
        named: usize,
    ) -> Result<()> {
        for twice in found.named.iter().take(named) {
            let finding = finding_of(of, twice);
            let recorded = finding::record(session, &finding, FoundBy::Table, Some(self.id)).await?;
            self.closed += u64::from(!recorded.is_open);
        }
        self.duplicates += found.count;
        Ok(())
    }

    pub(super) async fn reached(&mut self, session: &Session, place: &Place) -> Result<()> {
        match place {
            Place::Pages { after, .. } => self.after.clone_from(after),
            Place::Parts { next, of } => self.part = Some((*next, *of)),
        }
        let duplicates = i64::try_from(self.duplicates).unwrap_or(i64::MAX);
        let reached = session
            .execute(REACHED, &[&self.id, &self.progress()?, &duplicates])
            .await;
        reached.map(|_| ()).map_err(|error| failed(&error))
    }

    /// Returns what it came to.
    pub(super) async fn end(&self, session: &Session) -> Result<&'static str> {
        let verdict = if self.duplicates > self.closed {
            "FINDING"
        } else {
            "PASS"
        };
        let remark = format!(
            "{} values that are there more than once were closed before",
            self.closed
        );
        self.write_end(session, verdict, (self.closed > 0).then_some(remark.as_str()))
            .await?;
        Ok(verdict)
    }

    async fn write_end(&self, session: &Session, verdict: &str, reason: Option<&str>) -> Result<()> {
        let ended = session.execute(END, &[&self.id, &verdict, &reason]).await;
        ended.map(|_| ()).map_err(|error| failed(&error))
    }
}

fn finding_of(of: &Column, twice: &Twice) -> Finding {
    let id: Option<i64> = twice.value.parse().ok();
    let place = format!("{}.{}", of.name, of.column);
    Finding {
        kind: FindingKind::Duplicate,
        space: None,
        common: id.map(|id| (id, id)),
        first: Some(Issuer {
            // Of one value one finding, whatever its type.
            source: format!("{place} {}", twice.value),
            ..Issuer::default()
        }),
        second: None,
        detail: format!("{} is there {} times in {place}", twice.value, twice.times),
        tag: Some(place),
    }
}
