//! The audits of a server: one for each of its databases that has the extension, at its time.

use super::halt::{Halt, column, trouble};
use super::ledger::Ledger;
use super::run::{Site, run, watches_leases};
use crate::authority::Open;
use crate::complaint::Complaint;
use crate::config::{ArchivePlace, AuditConfig, PostgresConfig};
use crate::each_database::EachDatabase;
use crate::error::{Error, Result};
use crate::metrics::{AuditMetrics, NightlyMetrics};
use crate::outbox::Holder;
use crate::postgres::{PostgresUrl, Session};
use idgen_core::audit::History;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks whether a run is due, and at how the last ones stand.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// After a run that could not go on.
const AGAIN: Duration = Duration::from_secs(5);
/// Of a statement on the primary: one writes down all streams.
const STATEMENT: Duration = Duration::from_secs(10);

const READY: &str = "
    SELECT to_regclass('idgen.audit_run') IS NOT NULL AND NOT pg_is_in_recovery()";

/// The database's own clock: the night is the same whichever daemon looks.
const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()))::int8";

const STATES: &str = "
    SELECT k.kind, l.verdict, (extract(epoch FROM c.ended_at))::int8, l.run_id IS NOT NULL
      FROM unnest('{incremental,full}'::text[]) k(kind)
      LEFT JOIN LATERAL (SELECT * FROM idgen.audit_run r WHERE r.kind = k.kind ORDER BY r.run_id DESC LIMIT 1) l ON true
      LEFT JOIN LATERAL (SELECT * FROM idgen.audit_run r WHERE r.kind = k.kind AND r.verdict IN ('PASS', 'FINDING')
                          ORDER BY r.run_id DESC LIMIT 1) c ON true";

const OPEN: &str = "SELECT count(*) FROM idgen.audit_finding WHERE closed_at IS NULL";

/// What the audits of a server work with.
#[derive(Clone)]
pub struct NightlySetup {
    /// The server.
    pub postgres: PostgresConfig,
    /// What was configured.
    pub audit: AuditConfig,
    /// Where events are archived; none: nowhere.
    pub archive: Option<ArchivePlace>,
    /// Who we are.
    pub holder: Holder,
    /// What is counted.
    pub metrics: AuditMetrics,
}

/// See the module.
pub struct NightlyAudit {
    setup: NightlySetup,
}

/// Opens a database that can be audited; `None`: it has no extension, or is in recovery.
///
/// # Errors
/// It does not answer.
pub async fn open_ledger(
    url: &PostgresUrl,
    connect_timeout: Duration,
    holder: Holder,
) -> std::result::Result<Option<Ledger>, Halt> {
    let session = Session::open(url, "idgend audit", connect_timeout, STATEMENT)
        .await
        .map_err(trouble)?;
    let rows = session.rows_typed(READY, &[]).await.map_err(trouble)?;
    let is_ready = rows.first().map(|row| column::<bool>(row, 0)).transpose()?;
    Ok((is_ready == Some(true)).then(|| Ledger::new(session, holder)))
}

impl NightlyAudit {
    /// One that has not begun.
    #[must_use]
    pub fn new(setup: NightlySetup) -> Self {
        Self { setup }
    }

    /// Audits until `stop`.
    ///
    /// # Errors
    /// An audit has panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<()> {
        let each = EachDatabase::new("audit", "audit", Arc::default());
        let keep = |database: String, stop| {
            let setup = self.setup.clone();
            let metrics = setup.metrics.nightly(&database);
            async move {
                let site = Site {
                    primary: setup.postgres.url.clone(),
                    connect_timeout: setup.postgres.connect_timeout,
                    config: setup.audit.clone(),
                    archive: setup.archive.clone(),
                    watches_leases: watches_leases(&setup.postgres.url, &database),
                    metrics: Some(metrics.clone()),
                    database,
                };
                keep_audited(&site, &setup.holder, &metrics, stop).await;
                metrics.forget();
            }
        };
        each.run(|| self.setup.postgres.databases(), keep, stop).await
    }
}

/// Looks whether a run is due, until `stop`.
async fn keep_audited(site: &Site, holder: &Holder, metrics: &NightlyMetrics, stop: CancellationToken) {
    let mut trouble = Complaint::default();
    while !stop.is_cancelled() {
        // A run may take minutes. Whoever comes next goes on with it.
        let looked = tokio::select! {
            () = stop.cancelled() => return,
            looked = look(site, holder, metrics) => looked,
        };
        let pause = match looked {
            Ok(()) => {
                trouble.settle(&format!("audit: database {} is looked after", site.database));
                LOOK_EVERY
            }
            Err(Halt::NotOurs) => LOOK_EVERY,
            Err(Halt::Inconclusive(why)) => {
                trouble.raise(
                    format!("audit: database {}: {why}", site.database),
                    Instant::now(),
                );
                LOOK_EVERY
            }
            Err(Halt::Trouble(error)) => {
                trouble.raise(
                    format!("audit: database {}: {error}", site.database),
                    Instant::now(),
                );
                AGAIN
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn look(site: &Site, holder: &Holder, metrics: &NightlyMetrics) -> std::result::Result<(), Halt> {
    let url = site.primary.in_database(&site.database);
    let Some(mut ledger) = open_ledger(&url, site.connect_timeout, holder.clone()).await? else {
        return Ok(());
    };
    show(&ledger, metrics).await?;
    let nights = ledger.nights().await?;
    let history = History {
        last: nights.last,
        last_full: nights.last_full,
        nights: &nights.all,
    };
    let now_s = now(&ledger).await?;
    let due = site.config.schedule.due(now_s, &history);
    let is_open = ledger.open_run().await?.is_some();
    let (extent, night) = match due {
        Some(due) => (due.extent, Some(due.night)),
        // Somebody has left one: it is gone on with, whatever it was for.
        None if is_open => (idgen_core::audit::Extent::Incremental, None),
        None => return Ok(()),
    };
    if !ledger.keep().await? {
        return Ok(());
    }
    // Looked at under the lease: another one may have run it just now.
    let again = ledger.nights().await?;
    let is_changed = again.all.first() != nights.all.first() || again.all.len() != nights.all.len();
    let outcome = if is_changed {
        Ok(())
    } else {
        run(&mut ledger, site, (extent, night), &|_| {}).await.map(drop)
    };
    if !matches!(outcome, Err(Halt::NotOurs)) {
        ledger.give_back().await;
    }
    outcome?;
    show(&ledger, metrics).await
}

async fn now(ledger: &Ledger) -> std::result::Result<i64, Halt> {
    let rows = ledger.primary.rows_typed(NOW, &[]).await.map_err(trouble)?;
    let row = rows
        .first()
        .ok_or_else(|| Halt::Trouble(Error::retry("audit: the server does not tell the time")))?;
    column(row, 0)
}

/// How the runs stand, whoever has made them.
async fn show(ledger: &Ledger, metrics: &NightlyMetrics) -> std::result::Result<(), Halt> {
    for row in ledger.primary.rows_typed(STATES, &[]).await.map_err(trouble)? {
        let kind: &str = column(&row, 0)?;
        if column(&row, 3)? {
            metrics.set_state(kind, column(&row, 1)?);
        }
        metrics.set_conclusive(kind, column::<Option<i64>>(&row, 2)?.unwrap_or(0));
    }
    let rows = ledger.primary.rows_typed(OPEN, &[]).await.map_err(trouble)?;
    if let Some(row) = rows.first() {
        metrics.set_open(column(row, 0)?);
    }
    Ok(())
}
