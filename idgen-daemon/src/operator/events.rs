//! `idgenctl events`: the trail of lease events, shown and proved.

use super::store::{of_store, open, printable, rfc3339};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::events::{AnyLog, Present, Read, Sink, TableSink, TrailEnd};
use crate::lease::{AnyStore, Asked, RequestStore};
use crate::plain_table::plain_table;
use idgen_core::clock::UnixMs;
use idgen_core::lease::CellId;
use idgen_core::lease::approval::{Act, Request};
use idgen_core::lease::events::{Finding, Head, Kind, Place, Record, Tracked, Tracker, Verifier};
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// Events that are read at once.
const AT_ONCE: u32 = 5_000;
/// A follower that is at work is at the end of the log within this.
const TRIES: u32 = 10;
const TRY_EVERY: Duration = Duration::from_secs(1);

/// What is to be shown.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Of this subject: `worker 5`, `name lock/settlement`.
    pub subject: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Not before this.
    pub since: Option<UnixMs>,
    /// The last so many of them.
    pub limit: u32,
}

/// Events, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Events {
    /// They.
    pub events: Vec<Event>,
}

/// An event as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Its number.
    pub seq: u64,
    /// In which history of the store.
    pub branch: u64,
    /// Where in the store's log.
    pub position: u64,
    /// Revision of the store.
    pub revision: u64,
    /// When.
    pub at: String,
    /// What happened.
    pub kind: String,
    /// To what.
    pub subject: String,
    /// How often it was changed.
    pub version: u64,
    /// Changes since its last event.
    pub steps: u64,
    /// Why somebody should look at it.
    pub finding: Option<String>,
    /// What else is to be known.
    pub detail: serde_json::Value,
    /// Its hash.
    pub hash: String,
}

impl Event {
    fn of(record: &Record) -> Self {
        let hash = record.hash.iter().map(|byte| format!("{byte:02x}"));
        Self {
            seq: record.seq,
            branch: record.branch,
            position: record.position,
            revision: record.revision,
            at: rfc3339(UnixMs(record.at_ms.min(i64::MAX.unsigned_abs() / 1_000_000))),
            kind: record.kind.clone(),
            subject: record.subject.clone(),
            version: record.version,
            steps: record.steps,
            finding: record.finding.clone(),
            detail: serde_json::from_str(&record.detail).unwrap_or_else(|_| record.detail.clone().into()),
            hash: hash.collect(),
        }
    }

    /// One line of a table.
    fn row(&self) -> [String; 6] {
        let detail = match &self.detail {
            serde_json::Value::Object(fields) => {
                let text = |value: &serde_json::Value| {
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                };
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{name}={}", text(value)))
                    .collect();
                fields.join(" ")
            }
            other => other.to_string(),
        };
        [
            self.seq.to_string(),
            self.at.clone(),
            printable(&self.subject),
            printable(&self.kind),
            self.finding.as_deref().map_or_else(|| "-".to_owned(), printable),
            printable(&detail),
        ]
    }

    /// As one line, for whoever follows.
    #[must_use]
    pub fn line(&self) -> String {
        self.row().join("  ")
    }
}

impl Events {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        if self.events.is_empty() {
            return "no such event".to_owned();
        }
        let mut table = plain_table();
        table.set_header(["number", "time", "subject", "event", "finding", "detail"]);
        for event in &self.events {
            table.add_row(event.row());
        }
        table.to_string()
    }
}

/// A trail that is open for reading.
pub struct Trail {
    sink: TableSink,
    cell: CellId,
}

impl Trail {
    /// The trail of the cell of this configuration.
    pub async fn open(config: &Config) -> Result<Self> {
        let events = &config.events;
        let mut sink = TableSink::new(
            (*events.url).clone(),
            events.connect_timeout,
            events.request_timeout,
        );
        let cells = sink.cells().await.map_err(of_store)?;
        let cell = match (&cells[..], AnyLog::new(&config.store).present(None).await) {
            (_, Ok(present)) => present.cell,
            // The store is away: the trail is all the more of interest.
            ([cell, ..], Err(_)) => *cell,
            ([], Err(error)) => return Err(of_store(error)),
        };
        if !cells.contains(&cell) {
            let id = Uuid::from_u128(cell.0);
            let error = Error::runtime(format!("there is no trail of the cell {id} in this database"));
            return Err(error.with_hint("an idgend with this [events] section writes it: look at its log"));
        }
        Ok(Self { sink, cell })
    }

    /// The last events that are wished for.
    pub async fn list(&mut self, wish: &Wish) -> Result<Events> {
        let records = self.records(wish).await?;
        Ok(Events {
            events: records.iter().map(Event::of).collect(),
        })
    }

    /// The same as they are kept.
    pub(crate) async fn records(&mut self, wish: &Wish) -> Result<Vec<Record>> {
        let read = Read {
            after: 0,
            subject: wish.subject.as_deref(),
            kind: wish.kind.as_deref(),
            since: wish.since,
            limit: wish.limit,
            last: true,
        };
        self.sink.read(self.cell, &read).await.map_err(of_store)
    }

    /// What came after this one.
    pub async fn after(&mut self, seq: u64, wish: &Wish) -> Result<Events> {
        let read = Read {
            after: seq,
            subject: wish.subject.as_deref(),
            kind: wish.kind.as_deref(),
            since: None,
            limit: AT_ONCE,
            last: false,
        };
        let records = self.sink.read(self.cell, &read).await.map_err(of_store)?;
        Ok(Events {
            events: records.iter().map(Event::of).collect(),
        })
    }

    /// Is it whole, and is the store what it says?
    pub async fn verify(&mut self, config: &Config, wish: &Proof) -> Result<Verdict> {
        let end = self.sink.end(self.cell).await.map_err(of_store)?;
        let end = end.ok_or_else(|| Error::runtime("the trail is gone"))?;
        let mut verdict = Verdict::new(self.cell, &end);
        self.walk(&end, wish, &mut verdict).await?;
        self.compare(config, &mut verdict).await?;
        if !verdict.forced.is_empty() {
            let branch = self.sink.cursor(self.cell).await.map_err(of_store)?;
            let branch = branch.map_or(0, |kept| kept.branch);
            verdict.judge_approvals(branch, asked(config).await);
        }
        Ok(verdict)
    }

    async fn walk(&mut self, end: &TrailEnd, wish: &Proof, verdict: &mut Verdict) -> Result<()> {
        let mut verifier = Verifier::new(self.cell.0, end.pruned);
        let mut after = end.pruned.seq;
        // What is written meanwhile is another matter.
        while after < end.head.seq {
            let read = Read {
                after,
                limit: AT_ONCE,
                ..Read::default()
            };
            let records = self.sink.read(self.cell, &read).await.map_err(of_store)?;
            let Some(last) = records.last() else { break };
            after = last.seq;
            for record in records.iter().take_while(|record| record.seq <= end.head.seq) {
                verdict.events += 1;
                if let Err(broken) = verifier.take(record) {
                    verdict.broken = Some(broken.to_string());
                    return Ok(());
                }
                let recent = wish.since.is_none_or(|since| record.at_ms >= since.0);
                if record.finding.is_some() && recent {
                    verdict.findings.push(Event::of(record));
                }
                if recent && record.kind == Kind::ForceReleased.name() {
                    verdict.forced.push(Event::of(record));
                }
                if let Some(noted) = wish.head.as_ref().filter(|noted| noted.0 == record.seq) {
                    verdict.note(noted, record);
                }
            }
        }
        if let Some(noted) = wish
            .head
            .as_ref()
            .filter(|_| !verdict.head_met && verdict.broken.is_none())
        {
            verdict.broken = Some(format!("the head {}:{} is not in it", noted.0, noted.1));
        }
        if let Err(broken) = verifier.finish(end.head) {
            verdict.broken.get_or_insert(broken.to_string());
        }
        Ok(())
    }

    /// What the store has now, against what the trail has seen.
    async fn compare(&mut self, config: &Config, verdict: &mut Verdict) -> Result<()> {
        let mut log = AnyLog::new(&config.store);
        for _ in 0..TRIES {
            let kept = self.sink.cursor(self.cell).await.map_err(of_store)?;
            let kept = kept.ok_or_else(|| Error::runtime("the trail is gone"))?;
            let present = match log.present(Some(kept.cursor.position)).await {
                Ok(present) => present,
                Err(error) => {
                    verdict.not_compared = Some(format!("the store does not answer: {error}"));
                    return Ok(());
                }
            };
            if present.store != kept.store || present.cell != self.cell {
                verdict.not_compared = Some(format!(
                    "the store is {} now, and {} was followed",
                    present.store, kept.store
                ));
                return Ok(());
            }
            if present.when.position == kept.cursor.position {
                verdict.differ(&log, kept.keys, present);
                return Ok(());
            }
            verdict.not_compared = Some(format!(
                "the trail is at {}, and the store's log at {}: is a follower at work?",
                kept.cursor.position, present.when.position
            ));
            tokio::time::sleep(TRY_EVERY).await;
        }
        Ok(())
    }
}

/// The request means the lease that was taken.
fn is_for(request: &Request, event: &Event) -> bool {
    let Act::ForceRelease {
        class,
        identity,
        token,
        ..
    } = &request.ask.act
    else {
        return false;
    };
    event.subject == format!("{class} {identity}") && event.detail["token"] == token.to_string()
}

/// What people have asked and approved.
async fn asked(config: &Config) -> Result<Asked> {
    let asked = match open(config) {
        AnyStore::Postgres(mut store) => store.asked().await,
        AnyStore::Etcd(mut store) => store.asked().await,
    };
    asked.map_err(of_store)
}

/// What is to be proved.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// Findings before it are known.
    pub since: Option<UnixMs>,
    /// A head that somebody has noted: number, and hash in hexadecimal.
    pub head: Option<(u64, String)>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The cell.
    pub cell_id: Uuid,
    /// Its store.
    pub store: String,
    /// Who follows it.
    pub followed_by: String,
    /// When that was last written.
    pub followed_at: String,
    /// So many were looked at.
    pub events: u64,
    /// The number before the first of them; what was before is pruned.
    pub pruned: u64,
    /// Where the chain ends: note it elsewhere, and compare with `--head`.
    pub head: String,
    /// The first place where the chain is not what was written.
    pub broken: Option<String>,
    /// Events that somebody should look at.
    pub findings: Vec<Event>,
    /// Keys that the store has changed without a word in its log.
    pub unexplained: Vec<String>,
    /// Releases by force that two people have not approved, as the store has their approvals.
    pub unapproved: Vec<String>,
    /// Why the store was not compared with the trail.
    pub not_compared: Option<String>,
    #[serde(skip)]
    forced: Vec<Event>,
    #[serde(skip)]
    head_met: bool,
}

impl Verdict {
    fn new(cell: CellId, end: &TrailEnd) -> Self {
        Self {
            cell_id: Uuid::from_u128(cell.0),
            store: end.store.to_string(),
            followed_by: end.followed_by.clone(),
            followed_at: rfc3339(end.followed_at),
            events: 0,
            pruned: end.pruned.seq,
            head: end.head.to_string(),
            broken: None,
            findings: Vec::new(),
            unexplained: Vec::new(),
            unapproved: Vec::new(),
            not_compared: None,
            forced: Vec::new(),
            head_met: false,
        }
    }

    fn note(&mut self, noted: &(u64, String), record: &Record) {
        let head = Head {
            seq: record.seq,
            hash: record.hash,
        };
        self.head_met = head.to_string() == format!("{}:{}", noted.0, noted.1);
        if !self.head_met {
            self.broken = Some(format!("record {} has another hash than was noted", noted.0));
            self.head_met = true;
        }
    }

    fn differ(&mut self, log: &AnyLog, keys: Vec<(Place, Tracked)>, present: Present) {
        self.not_compared = None;
        let mut tracker = Tracker::new(log.log(), keys);
        match tracker.heal(present.when.position, present.when, present.states) {
            Ok(events) => {
                let lost = events.iter().filter(|event| event.kind == Kind::Lost);
                self.unexplained = lost
                    .map(|event| format!("{} {}", event.subject, event.detail))
                    .collect();
            }
            Err(replaced) => self
                .unexplained
                .push(format!("the key {} is older than it was", replaced.key)),
        }
    }

    /// Whoever may write everything can write down that a request was used; whether two people have approved it is said by
    /// their approvals. An older history has its requests elsewhere.
    fn judge_approvals(&mut self, branch: u64, asked: Result<Asked>) {
        let forced: Vec<&Event> = self
            .forced
            .iter()
            .filter(|event| event.branch == branch)
            .collect();
        let asked = match asked {
            Ok(asked) => asked,
            Err(_) if forced.is_empty() => return,
            Err(error) => {
                self.not_compared
                    .get_or_insert(format!("its approvals cannot be read: {error}"));
                return;
            }
        };
        let short_of = |event: &&Event| {
            let id = event.detail["request"]
                .as_str()
                .and_then(|id| id.parse::<Uuid>().ok());
            let found = asked
                .requests
                .iter()
                .find(|request| Some(Uuid::from_u128(request.ask.id.0)) == id && is_for(request, event));
            let by: Vec<String> =
                found.map_or_else(Vec::new, |request| request.approvers().into_iter().collect());
            (by.len() < 2).then(|| {
                let by = if by.is_empty() {
                    "nobody".to_owned()
                } else {
                    by.join(", ")
                };
                format!("{} (approved by {by})", event.line())
            })
        };
        self.unapproved = forced
            .iter()
            .copied()
            .filter_map(|event| short_of(&event))
            .collect();
    }

    /// Nothing is wrong.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let found = [&self.unexplained, &self.unapproved];
        self.broken.is_none() && self.findings.is_empty() && found.iter().all(|found| found.is_empty())
    }

    /// Everything could be looked at.
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        self.not_compared.is_none()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!("cell {}, store {}", self.cell_id, printable(&self.store)),
            format!(
                "followed by {}, last written at {}",
                printable(&self.followed_by),
                self.followed_at
            ),
            format!(
                "{} events after number {}; head {}",
                self.events, self.pruned, self.head
            ),
        ];
        match &self.broken {
            Some(broken) => lines.push(format!("FINDING: {}", printable(broken))),
            None => lines.push("the chain is whole".to_owned()),
        }
        for event in &self.findings {
            let name = event.finding.as_deref().unwrap_or_default();
            let known = Finding::ALL.into_iter().find(|finding| finding.name() == name);
            let meaning = known.map_or("a finding of another release", Finding::meaning);
            lines.push(format!("FINDING: {}: {meaning}", event.line()));
        }
        for change in &self.unexplained {
            lines.push(format!(
                "FINDING: the store has changed this without a word in its log: {}",
                printable(change)
            ));
        }
        for event in &self.unapproved {
            lines.push(format!(
                "FINDING: taken by force, and two people have not approved it: {}",
                printable(event)
            ));
        }
        match &self.not_compared {
            Some(why) => lines.push(format!(
                "INCONCLUSIVE: the store was not compared: {}",
                printable(why)
            )),
            None if self.unexplained.is_empty() => lines.push("the store is what the trail says".to_owned()),
            None => {}
        }
        lines.join("\n")
    }
}
