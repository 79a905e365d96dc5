//! What an audit has found, as `idgen.audit_finding` keeps it: each thing once, whoever finds it and how often.

use crate::error::{Error, Result};
use crate::postgres::{PgError, Session};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Of a text that Postgres does not take so many characters are kept.
const TEXT_MAX: usize = 1_000;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// Two grants have ids in common.
    Overlap,
    /// An event is not what it was, or two have one number.
    Rewritten,
    /// Numbers of a tag's events that nobody has.
    Missing,
    /// An event that cannot be.
    Malformed,
    /// Two leases of one identity at a time.
    LeaseOverlap,
    /// The archive or the topic has an event that the database has lost.
    NotInDatabase,
    /// The database has an event that the archive should have and has not.
    NotInArchive,
    /// A value is there twice in a table.
    Duplicate,
}

impl FindingKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Overlap,
        Self::Rewritten,
        Self::Missing,
        Self::Malformed,
        Self::LeaseOverlap,
        Self::NotInDatabase,
        Self::NotInArchive,
        Self::Duplicate,
    ];

    /// As the table calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Rewritten => "rewritten",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::LeaseOverlap => "lease_overlap",
            Self::NotInDatabase => "not_in_database",
            Self::NotInArchive => "not_in_archive",
            Self::Duplicate => "duplicate",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which audit has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// Whoever reads the topic as it grows.
    Probe,
    /// A nightly run.
    Incremental,
    /// A weekly run.
    Full,
    /// A pass over the archive.
    Archive,
    /// A pass over a table of the applications.
    Table,
    /// The comparison after a failover.
    Reconcile,
}

impl FoundBy {
    /// As the table calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Incremental => "incremental",
            Self::Full => "full",
            Self::Archive => "archive",
            Self::Table => "table",
            Self::Reconcile => "reconcile",
        }
    }
}

/// Who has given something out, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issuer {
    /// Who has recorded it: a database's `source_id`, or a cell.
    pub source: String,
    /// What its events are called by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<i64>,
    /// When it was recorded, as RFC 3339 in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// First of what it has given out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lo: Option<i64>,
    /// Last of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hi: Option<i64>,
    /// Its fencing token, EPOCH/REVISION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Partition of the topic, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// ... and offset there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
}

impl Issuer {
    /// What makes it this one. Where it lies in a topic does not: a copy is the same event.
    fn key(&self) -> String {
        match self.event_id {
            Some(event) => format!("{} {event}", self.source),
            None => format!(
                "{} {:?} {:?} {}",
                self.source,
                self.lo,
                self.hi,
                self.token.as_deref().unwrap_or_default()
            ),
        }
    }

    fn reduced(&self) -> Self {
        let reduced = |text: &Option<String>| text.as_deref().map(plain);
        Self {
            source: plain(&self.source),
            service: reduced(&self.service),
            at: reduced(&self.at),
            token: reduced(&self.token),
            ..self.clone()
        }
    }
}

/// The beginning of a text, without anything that some database may not take.
fn plain(text: &str) -> String {
    let begins = text.chars().take(TEXT_MAX);
    begins.flat_map(char::escape_default).collect()
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// Space of the tag; `None`: it is not about segments.
    pub space: Option<Uuid>,
    /// The tag, an identity such as `worker/7`, or a column.
    pub tag: Option<String>,
    /// Ids that both have; of leases Unix ms, of missing events their numbers.
    pub common: Option<(i64, i64)>,
    /// The first issuer.
    pub first: Option<Issuer>,
    /// The second.
    pub second: Option<Issuer>,
    /// In words.
    pub detail: String,
}

impl Finding {
    /// The same for the same thing, whichever of both issuers is called the first.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut issuers: Vec<String> = self.first.iter().chain(&self.second).map(Issuer::key).collect();
        issuers.sort_unstable();
        let mut hash = Sha256::new();
        let mut add = |part: &str| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(self.kind.name());
        add(&self.space.map(|space| space.to_string()).unwrap_or_default());
        add(self.tag.as_deref().unwrap_or_default());
        // Of one that names no event the ids say which it is, and of what is missing its numbers.
        let names_events = self
            .first
            .iter()
            .chain(&self.second)
            .any(|issuer| issuer.event_id.is_some());
        let is_by_numbers = !names_events || self.kind == FindingKind::Missing;
        if is_by_numbers && let Some((lo, hi)) = self.common {
            add(&format!("{lo} {hi}"));
        }
        for issuer in &issuers {
            add(issuer);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The same with texts that every database takes; `why`: what Postgres has said of it as it is.
    fn reduced(&self, why: &str) -> Self {
        let detail = format!(
            "{} (escaped and cut, since Postgres refused it as it was: {why})",
            self.detail
        );
        Self {
            kind: self.kind,
            space: self.space,
            tag: self.tag.as_deref().map(plain),
            common: self.common.filter(|(lo, hi)| lo <= hi),
            first: self.first.as_ref().map(Issuer::reduced),
            second: self.second.as_ref().map(Issuer::reduced),
            detail: plain(&detail),
        }
    }
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number.
    pub id: i64,
    /// It was not there.
    pub is_new: bool,
    /// Nobody has closed it.
    pub is_open: bool,
    /// Postgres refused it as it was: its texts are escaped and cut.
    pub is_reduced: bool,
}

const RECORD: &str = "
    SELECT finding_id, is_new, is_open FROM idgen.record_finding($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9, $10, $11)";

/// Writes a finding down, or that it was met again. What comes from a topic or an archive may have texts that this database
/// cannot store: it is stored all the same, with these texts escaped.
///
/// # Errors
/// `Retry`: Postgres did not answer, or cannot now. `Refused`: it will never take this finding.
pub async fn record(
    session: &Session,
    finding: &Finding,
    found_by: FoundBy,
    run_id: Option<i64>,
) -> Result<Recorded> {
    let fingerprint = finding.fingerprint();
    let name = |error: &PgError| format!("record a finding: {error}");
    let why = match write(session, (&fingerprint, finding), found_by, run_id).await {
        Ok(recorded) => return Ok(recorded),
        Err(error) if is_for_good(error.sqlstate()) => error,
        Err(error) => return Err(Error::retry(name(&error))),
    };
    let reduced = finding.reduced(&why.to_string());
    match write(session, (&fingerprint, &reduced), found_by, run_id).await {
        Ok(recorded) => {
            tracing::error!(
                finding = recorded.id,
                "Postgres refuses a finding as it is, and has it escaped and cut: {why}"
            );
            Ok(Recorded {
                is_reduced: true,
                ..recorded
            })
        }
        Err(error) if is_for_good(error.sqlstate()) => Err(Error::refused(name(&error))),
        Err(error) => Err(Error::retry(name(&error))),
    }
}

/// Does Postgres say this of what is to be stored, and will say it again: data exceptions, constraints, limits of the program?
fn is_for_good(sqlstate: Option<&str>) -> bool {
    sqlstate
        .is_some_and(|code| code != "23505" && ["22", "23", "54"].iter().any(|class| code.starts_with(class)))
}

async fn write(
    session: &Session,
    (fingerprint, finding): (&str, &Finding),
    found_by: FoundBy,
    run_id: Option<i64>,
) -> std::result::Result<Recorded, PgError> {
    let (lo, hi) = (finding.common.map(|ids| ids.0), finding.common.map(|ids| ids.1));
    let (first, second) = (json(finding.first.as_ref())?, json(finding.second.as_ref())?);
    let rows = session
        .rows_typed(
            RECORD,
            &[
                (&fingerprint, Type::TEXT),
                (&finding.kind.name(), Type::TEXT),
                (&finding.space, Type::UUID),
                (&finding.tag, Type::TEXT),
                (&lo, Type::INT8),
                (&hi, Type::INT8),
                (&first, Type::TEXT),
                (&second, Type::TEXT),
                (&finding.detail, Type::TEXT),
                (&found_by.name(), Type::TEXT),
                (&run_id, Type::INT8),
            ],
        )
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| PgError::Malformed("no answer".to_owned()))?;
    Ok(Recorded {
        id: row.try_get(0)?,
        is_new: row.try_get(1)?,
        is_open: row.try_get(2)?,
        is_reduced: false,
    })
}

fn json(issuer: Option<&Issuer>) -> std::result::Result<Option<String>, PgError> {
    let text = issuer.map(serde_json::to_string).transpose();
    text.map_err(|error| PgError::Malformed(format!("write an issuer down: {error}")))
}

/// The same; returns whether it is new.
///
/// # Errors
/// Postgres did not answer, or refused.
pub async fn store(
    session: &Session,
    finding: &Finding,
    found_by: FoundBy,
    run_id: Option<i64>,
) -> Result<bool> {
    Ok(record(session, finding, found_by, run_id).await?.is_new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(source: &str, event: i64) -> Issuer {
        Issuer {
            source: source.to_owned(),
            event_id: Some(event),
            ..Issuer::default()
        }
    }

    fn overlap() -> Finding {
        Finding {
            kind: FindingKind::Overlap,
            space: Some(Uuid::from_u128(7)),
            tag: Some("orders".to_owned()),
            common: Some((5, 10)),
            first: Some(issuer("a", 1)),
            second: Some(issuer("b", 2)),
            detail: "two grants".to_owned(),
        }
    }

    #[test]
    fn a_finding_is_the_same_whoever_finds_it_and_in_whatever_order() {
        let one = overlap();
        let mut other = Finding {
            first: one.second.clone(),
            second: one.first.clone(),
            detail: "in other words".to_owned(),
            common: Some((6, 10)),
            ..one.clone()
        };
        other.first.as_mut().unwrap().offset = Some(77);
        assert_eq!(one.fingerprint(), other.fingerprint());
        assert_eq!(one.fingerprint().len(), 64);
    }

    #[test]
    fn another_event_tag_space_or_kind_is_another_finding() {
        let one = overlap();
        let mut others = vec![one.clone(); 5];
        others[0].kind = FindingKind::Rewritten;
        others[1].space = None;
        others[2].tag = Some("order".to_owned());
        others[3].first = Some(issuer("a", 3));
        others[4].second = None;
        for other in others {
            assert_ne!(one.fingerprint(), other.fingerprint(), "{other:?}");
        }
    }

    #[test]
    fn what_names_no_event_is_told_apart_by_its_numbers() {
        let missing = |lo, hi| Finding {
            kind: FindingKind::Missing,
            common: Some((lo, hi)),
            first: Some(Issuer {
                source: "a".to_owned(),
                ..Issuer::default()
            }),
            second: None,
            ..overlap()
        };
        assert_ne!(missing(5, 6).fingerprint(), missing(5, 7).fingerprint());
        assert_eq!(missing(5, 6).fingerprint(), missing(5, 6).fingerprint());
        // What has not come names the event that came instead: rows that are lost later are another finding.
        let not_come = |lo, hi| Finding {
            second: Some(issuer("a", 77)),
            ..missing(lo, hi)
        };
        assert_ne!(not_come(5, 6).fingerprint(), missing(5, 6).fingerprint());
        assert_ne!(not_come(5, 6).fingerprint(), not_come(5, 7).fingerprint());
    }

    #[test]
    fn a_reduced_finding_is_plain_and_of_the_same_place() {
        let mut odd = overlap();
        odd.tag = Some("or\0ders ü".to_owned());
        odd.common = Some((5, 4));
        odd.first.as_mut().unwrap().service = Some("ü".repeat(2 * TEXT_MAX));
        let reduced = odd.reduced("no \0 please");
        assert_eq!(reduced.tag.as_deref(), Some("or\\u{0}ders \\u{fc}"));
        assert_eq!((reduced.common, reduced.space), (None, odd.space));
        assert!(reduced.detail.starts_with("two grants (") && reduced.detail.ends_with("no \\u{0} please)"));
        let first = reduced.first.unwrap();
        assert_eq!((first.source.as_str(), first.event_id), ("a", Some(1)));
        assert_eq!(first.service.unwrap(), "\\u{fc}".repeat(TEXT_MAX));
    }

    #[test]
    fn what_postgres_says_of_a_finding_itself_it_says_again() {
        for code in ["22021", "22P05", "23514", "23502", "54000"] {
            assert!(is_for_good(Some(code)), "{code}");
        }
        for code in ["23505", "40001", "42501", "42883", "53100", "57P01"] {
            assert!(!is_for_good(Some(code)), "{code}");
        }
        assert!(!is_for_good(None));
    }

    #[test]
    fn an_issuer_has_the_keys_of_the_contract_and_only_what_is_known() {
        let json = serde_json::to_string(&issuer("a", 1)).unwrap();
        assert_eq!(json, r#"{"source":"a","event_id":1}"#);
    }
}
