//! One run, from its beginning, or from where another one has left it, to its verdict.

use super::fence;
use super::halt::{Halt, column, trouble};
use super::ledger::{Axes, Ledger, Progress, Run, Verdict, kind_of};
use super::listed::list;
use super::prove::{Evidence, Proof, prove};
use super::reader::Reader;
use super::reconcile::{Sides, reconcile};
use super::sweep::{Told, read};
use super::windows::windows;
use crate::config::{ArchivePlace, AuditConfig};
use crate::lease::host_us;
use crate::metrics::NightlyMetrics;
use crate::postgres::PostgresUrl;
use idgen_core::audit::{Extent, Floor};
use idgen_core::day::{Day, SECONDS};
use std::collections::BTreeSet;
use std::time::Duration;
use uuid::Uuid;

/// Before the last run began events may have been on their way that it did not see: so far back they are looked for. What it has
/// seen is no news, and what is older and missing shows as a number that is not there.
const SLACK_S: i64 = SECONDS;

const SOURCES: &str =
    "SELECT a.sources_before || p.source_id FROM idgen.authority a CROSS JOIN idgen.space p";

/// How a database is audited.
#[derive(Clone)]
pub struct Site {
    /// The database.
    pub database: String,
    /// Where it is.
    pub primary: PostgresUrl,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// What was configured.
    pub config: AuditConfig,
    /// Where events are archived; none: nowhere.
    pub archive: Option<ArchivePlace>,
    /// Its findings are those of the leases in the archive too.
    pub watches_leases: bool,
    /// What is counted; none: nobody looks.
    pub metrics: Option<NightlyMetrics>,
}

/// Leases are of the whole cell, so the audits of one database look at them: that which is configured.
#[must_use]
pub fn watches_leases(url: &PostgresUrl, database: &str) -> bool {
    url.get_dbname().or(url.get_user()) == Some(database)
}

/// What a run has come to.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The run.
    pub run: i64,
    /// Its kind, as the table calls it.
    pub kind: &'static str,
    /// Its verdict.
    pub verdict: Verdict,
}

/// Goes on with the run that is open, or begins one of `extent`, of that night. The lease is held.
///
/// # Errors
/// It is to be tried again, or another one audits: the run stays open.
pub async fn run(
    ledger: &mut Ledger,
    site: &Site,
    (extent, night): (Extent, Option<Day>),
    told: Told<'_>,
) -> Result<Ended, Halt> {
    let mut run = match open_run(ledger, extent).await? {
        Some(run) => {
            tracing::info!(
                database = site.database,
                run = run.id,
                "audit: goes on with a run"
            );
            run
        }
        None => begin(ledger, extent, night).await?,
    };
    if let Some(metrics) = &site.metrics {
        metrics.set_state(kind_of(run.extent), None);
    }
    let verdict = match look(ledger, site, &mut run, told).await {
        Ok((proof, mut axes)) => {
            let verdict = judge(ledger, &run, proof).await?;
            // Only now: whoever goes on with this run after a kill must find these tags as suspect as they were.
            ledger.save_and_end(&run, &mut axes, &verdict).await?;
            verdict
        }
        Err(Halt::Inconclusive(reason)) => {
            let verdict = inconclusive(reason);
            ledger.end(&run, &verdict).await?;
            verdict
        }
        Err(halt) => return Err(halt),
    };
    tell(site, &run, &verdict);
    Ok(Ended {
        run: run.id,
        kind: kind_of(run.extent),
        verdict,
    })
}

const fn inconclusive(reason: String) -> Verdict {
    Verdict {
        name: "INCONCLUSIVE",
        reason: Some(reason),
        tags: 0,
        findings: 0,
    }
}

/// The one to go on with. Whoever wants everything looked at does not get the verdict of a run that looks at what is new.
async fn open_run(ledger: &mut Ledger, extent: Extent) -> Result<Option<Run>, Halt> {
    match ledger.open_run().await? {
        Some(run) if extent == Extent::Full && run.extent == Extent::Incremental => {
            let verdict = inconclusive("it was given up for a run over everything".to_owned());
            ledger.end(&run, &verdict).await?;
            Ok(None)
        }
        open => Ok(open),
    }
}

fn tell(site: &Site, run: &Run, verdict: &Verdict) {
    let (database, reason) = (&site.database, verdict.reason.as_deref().unwrap_or_default());
    let kind = kind_of(run.extent);
    match verdict.name {
        "PASS" => tracing::info!(database, run = run.id, kind, ranges = run.ranges, "audit: PASS"),
        "FINDING" => tracing::error!(
            database,
            run = run.id,
            kind,
            findings = verdict.findings,
            "audit: FINDING (hint: idgenctl audit show)"
        ),
        other => tracing::warn!(database, run = run.id, kind, "audit: {other}: {reason}"),
    }
}

async fn begin(ledger: &mut Ledger, extent: Extent, night: Option<Day>) -> Result<Run, Halt> {
    let base = ledger.base().await?;
    let mut progress = Progress {
        night: night.map(|night| night.to_string()),
        ..Progress::default()
    };
    let extent = match (extent, base) {
        (Extent::Incremental, Some((base, began_s))) => {
            progress.base = Some(base);
            progress.from_s = Some(began_s - SLACK_S);
            Extent::Incremental
        }
        // There is nothing to go on from.
        (_, base) => {
            progress.base = base.map(|(base, _)| base);
            Extent::Full
        }
    };
    ledger.begin(extent, progress).await
}

async fn look(
    ledger: &mut Ledger,
    site: &Site,
    run: &mut Run,
    told: Told<'_>,
) -> Result<(Proof, Axes), Halt> {
    let before = match run.progress.base {
        Some(base) => ledger.frontier(base, true).await?,
        None => Axes::new(),
    };
    let mut axes = resume(ledger, run, &before).await?;
    let mark = Uuid::new_v4();
    run.progress.fence = Some(mark);
    ledger.save(run, &mut Axes::new()).await?;
    let listed = list(&ledger.primary).await?;
    let fence = fence::of_primary(ledger).await?;
    let now_us = host_us();
    let (mut reader, read_from) = reader(ledger, site, (run.id, mark), &fence).await?;
    ledger.fenced(run.id, &fence, read_from).await?;
    let mut leaves = read(
        ledger,
        &mut reader,
        (run, &mut axes),
        (site.metrics.as_ref(), told),
    )
    .await?;
    let evidence = Evidence {
        axes: &mut axes,
        leaves: &mut leaves,
        listed: &listed,
        before: &before,
        now_us,
    };
    let mut proof = prove(ledger, &mut reader, run, evidence).await?;
    if let Some(place) = &site.archive {
        let sides = Sides {
            place,
            leaves: &leaves,
            from_s: run.progress.from_s,
            now_s: now_us / 1_000_000,
            sources: sources(ledger, &axes).await?,
        };
        // What was found so far is a finding, whatever else cannot be read.
        match reconcile(ledger, &mut reader, sides, &mut proof).await {
            Err(Halt::Inconclusive(why)) => proof.doubts(why),
            compared => compared?,
        }
        if site.watches_leases {
            match windows(ledger, place, run.progress.from_s, &mut proof).await {
                Err(Halt::Inconclusive(why)) => proof.doubts(why),
                looked => looked?,
            }
        }
    }
    match ledger.meanwhile(reader.prove_again()).await? {
        Err(Halt::Inconclusive(why)) => proof.doubts(why),
        proved => proved?,
    }
    keep(&mut axes, &before);
    Ok((proof, axes))
}

/// Under which names this database has recorded its events, now and before: also where nothing of one is left.
async fn sources(ledger: &Ledger, axes: &Axes) -> Result<BTreeSet<Uuid>, Halt> {
    let streams = axes
        .values()
        .flat_map(|tags| tags.values())
        .flat_map(|axis| axis.streams());
    let mut sources: BTreeSet<Uuid> = streams.map(|(source, _)| *source).collect();
    for row in ledger.primary.rows_typed(SOURCES, &[]).await.map_err(trouble)? {
        sources.extend(column::<Vec<Uuid>>(&row, 0)?);
    }
    Ok(sources)
}

/// What was seen once is known on, also of a tag of which nothing is there any more.
fn keep(axes: &mut Axes, before: &Axes) {
    for (space, tags) in before {
        let there = axes.entry(*space).or_default();
        for (tag, was) in tags {
            there.entry(tag.clone()).or_default().keep(was.streams());
        }
    }
}

/// What the run has written down. Of an incremental one what its base had seen is no news: read anew, for what it has seen itself
/// since is not to be told from that.
async fn resume(ledger: &mut Ledger, run: &Run, before: &Axes) -> Result<Axes, Halt> {
    let mut axes = ledger.frontier(run.id, false).await?;
    for (space, tags) in before {
        let there = axes.entry(*space).or_default();
        for (tag, was) in tags {
            let axis = there.entry(tag.clone()).or_default();
            let is_suspect = axis.is_suspect();
            for (source, was) in was.streams() {
                if let Some(hi) = was.max_hi {
                    axis.rest_on(Floor {
                        seq: was.last.seq,
                        hi,
                    });
                }
                if run.extent == Extent::Incremental
                    && let Some(mut is) = axis.stream(source).cloned()
                {
                    is.known = was.known;
                    axis.restore(*source, is, is_suspect);
                }
            }
        }
    }
    Ok(axes)
}

/// Where the grants are read: on the replica if there is one, and it has come far enough.
async fn reader(
    ledger: &mut Ledger,
    site: &Site,
    mark: (i64, Uuid),
    fence: &super::ledger::Fence,
) -> Result<(Reader, &'static str), Halt> {
    let config = &site.config;
    let primary = || {
        let url = site.primary.in_database(&site.database);
        Reader::new(url, site.connect_timeout, Some(config.rate))
    };
    let Some(replica) = &config.replica else {
        return Ok((primary(), "primary"));
    };
    let url = replica.in_database(&site.database);
    let mut reader = Reader::new(url, site.connect_timeout, None);
    let waited = fence::wait_for(&mut reader, fence, mark, config.lag_max, site.metrics.as_ref());
    match ledger.meanwhile(waited).await? {
        Ok(()) => {
            reader.prove_each(fence::Proof::new(fence.clone(), mark));
            Ok((reader, "replica"))
        }
        Err(Halt::Inconclusive(why)) if config.fall_back => {
            tracing::warn!(
                database = site.database,
                "audit: the primary is read instead: {why}"
            );
            Ok((primary(), "primary"))
        }
        Err(halt) => Err(halt),
    }
}

/// Writes down what was found, and says what that comes to.
async fn judge(ledger: &mut Ledger, run: &Run, proof: Proof) -> Result<Verdict, Halt> {
    let (mut open, mut closed) = (0_u64, 0_u64);
    let aside = proof.aside.iter().map(|finding| (finding, true));
    for (finding, is_aside) in proof.findings.iter().map(|finding| (finding, false)).chain(aside) {
        let recorded = ledger.record(run, finding).await?;
        if !is_aside || recorded.is_new {
            open += u64::from(recorded.is_open);
            closed += u64::from(!recorded.is_open);
        }
        if recorded.is_new {
            tracing::error!(finding = recorded.id, kind = %finding.kind, "audit: {}", finding.detail);
        }
        if !ledger.keep().await? {
            return Err(Halt::NotOurs);
        }
    }
    // An auditor of this very run may have written some down and been killed then.
    let open = open.max(ledger.open_findings(run).await?);
    let remark = (closed > 0).then(|| format!("{closed} findings that are closed were met again"));
    let (name, reason) = match (open, proof.doubt) {
        (1.., doubt) => ("FINDING", doubt.or(remark)),
        (0, Some(doubt)) => ("INCONCLUSIVE", Some(doubt)),
        (0, None) => ("PASS", remark),
    };
    Ok(Verdict {
        name,
        reason,
        tags: proof.tags,
        findings: open + closed,
    })
}
