//! `idgenctl status`: what a server says about its lease.

mod certificate;
mod render;

use crate::error::{Error, Result};
use crate::operator::leases::Pool;
use crate::postgres::{PgError, PostgresUrl, Session, describe};
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

pub use certificate::CertificateStatus;
pub use render::table;

/// What `idgen.health` and `idgen.slots` say.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The server that was asked.
    pub server: ServerStatus,
    /// Where its ids are unique.
    pub cell: CellStatus,
    /// The pool of workers, as the lease store says. `None`: no store was asked.
    pub pool: Option<PoolStatus>,
    /// The client certificates of the configuration; none without one.
    pub certificates: Vec<CertificateStatus>,
    /// Its identities.
    pub slots: Vec<SlotStatus>,
}

/// The server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// User, host, port and database; no password.
    pub url: String,
    /// Version of Postgres.
    pub postgres: String,
    /// Version of the extension's library.
    pub extension: String,
    /// What a daemon must speak.
    pub contract: i32,
    /// serving, drained, no lease, not preloaded or in recovery.
    pub state: String,
    /// Who has drained it, when and why. `None`: nobody, as far as its daemon knows.
    pub drained: Option<String>,
    /// Name of its shared memory.
    pub boot_id: Option<Uuid>,
    /// Since when the daemon has been silent.
    pub daemon_seen_ms_ago: Option<i64>,
    /// Identities that can mint now.
    pub open_slots: i32,
    /// Until the last of them stops.
    pub deadline_in_ms: Option<i64>,
    /// What the daemon knows of its wall clock. `None`: no daemon has said anything lately.
    pub clock: Option<ClockStatus>,
    /// Who may grant ranges of segments in this database.
    pub authority: AuthorityStatus,
}

/// The authority over segments of one database.
#[derive(Clone, Debug, Serialize)]
pub struct AuthorityStatus {
    /// local or leased.
    pub kind: String,
    /// granting, no lease, expired, fenced, in recovery or not preloaded.
    pub state: String,
    /// Until granting stops. `None`: it is local, or there is no lease.
    pub deadline_in_ms: Option<i64>,
}

/// A server's wall clock.
#[derive(Clone, Debug, Serialize)]
pub struct ClockStatus {
    /// good, warn, unsynchronised, stepped, apart from peers, listening or unchecked.
    pub state: String,
    /// The same in words.
    pub reason: Option<String>,
    /// Ahead of its time source, or of its peers. `None`: nobody tells.
    pub offset_us: Option<i64>,
    /// Off at the most. `None`: nobody tells.
    pub error_us: Option<i64>,
}

/// The cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellStatus {
    /// `None` before the first lease.
    pub id: Option<Uuid>,
    /// Format of worker ids.
    pub worker_format: Option<String>,
}

/// The pool of workers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolStatus {
    /// As the store says.
    Known(Pool),
    /// Why it is not known.
    Unknown(String),
}

/// One identity.
#[derive(Clone, Debug, Serialize)]
pub struct SlotStatus {
    /// worker or shard.
    pub kind: String,
    /// The number that ids carry.
    pub identity: i32,
    /// open, expired or fenced.
    pub state: String,
    /// Fencing token.
    pub token: TokenStatus,
    /// Unix ms.
    pub floor_ms: Option<i64>,
    /// Unix ms.
    pub last_ms: Option<i64>,
    /// Unix ms. `None`: fenced.
    pub ceiling_ms: Option<i64>,
    /// Negative: it has passed. `None`: fenced.
    pub deadline_in_ms: Option<i64>,
    /// Ceiling minus the server's wall clock. `None`: fenced.
    pub ceiling_lead_ms: Option<i64>,
}

/// A fencing token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TokenStatus {
    /// Compared first.
    pub epoch: i64,
    /// Compared second.
    pub revision: i64,
}

impl Status {
    /// Asks a server.
    pub async fn read(url: &PostgresUrl, limit: Duration) -> Result<Self> {
        let at = describe(url);
        let session = Session::open(url, "idgenctl", limit, limit)
            .await
            .map_err(|error| Error::runtime(format!("connect to postgres at {at}: {error}")))?;
        Self::query(&session, at.clone()).await.map_err(|error| {
            let failed = Error::runtime(format!("read the status of {at}: {error}"));
            match error.sqlstate() {
                Some("42P01" | "3F000" | "42703" | "42883") => {
                    failed.with_hint("run CREATE EXTENSION pg_idgen in this database")
                }
                _ => failed,
            }
        })
    }

    async fn query(session: &Session, url: String) -> std::result::Result<Self, PgError> {
        let health = session
            .row(
                "SELECT current_setting('server_version'), version, contract_version, state, boot_id, \
                        daemon_seen_ms_ago, open_slots, deadline_in_ms, cell_id, worker_format, \
                        clock_state, clock_reason, clock_offset_us, clock_error_us, \
                        authority, authority_state, authority_deadline_in_ms, drained \
                   FROM idgen.health",
                &[],
            )
            .await?;
        let rows = session
            .rows(
                "SELECT kind, identity, state, token_epoch, token_revision, floor_ms, last_ms, ceiling_ms, \
                        deadline_in_ms, ceiling_lead_ms \
                   FROM idgen.slots ORDER BY kind DESC, identity",
                &[],
            )
            .await?;
        let slots = rows
            .iter()
            .map(slot)
            .collect::<std::result::Result<_, tokio_postgres::Error>>()?;
        Ok(Self {
            server: ServerStatus {
                url,
                postgres: health.try_get(0)?,
                extension: health.try_get(1)?,
                contract: health.try_get(2)?,
                state: health.try_get(3)?,
                drained: health.try_get("drained")?,
                boot_id: health.try_get(4)?,
                daemon_seen_ms_ago: health.try_get(5)?,
                open_slots: health.try_get::<_, Option<i32>>(6)?.unwrap_or_default(),
                deadline_in_ms: health.try_get(7)?,
                clock: clock(&health)?,
                authority: AuthorityStatus {
                    kind: health.try_get("authority")?,
                    state: health.try_get("authority_state")?,
                    deadline_in_ms: health.try_get("authority_deadline_in_ms")?,
                },
            },
            cell: CellStatus {
                id: health.try_get(8)?,
                worker_format: health.try_get(9)?,
            },
            pool: None,
            certificates: Vec::new(),
            slots,
        })
    }

    /// Can the server mint snowflakes?
    pub fn is_serving(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == "open")
    }
}

fn clock(health: &tokio_postgres::Row) -> std::result::Result<Option<ClockStatus>, tokio_postgres::Error> {
    let Some(state) = health.try_get("clock_state")? else {
        return Ok(None);
    };
    Ok(Some(ClockStatus {
        state,
        reason: health.try_get("clock_reason")?,
        offset_us: health.try_get("clock_offset_us")?,
        error_us: health.try_get("clock_error_us")?,
    }))
}

fn slot(row: &tokio_postgres::Row) -> std::result::Result<SlotStatus, tokio_postgres::Error> {
    Ok(SlotStatus {
        kind: row.try_get(0)?,
        identity: row.try_get(1)?,
        state: row.try_get(2)?,
        token: TokenStatus {
            epoch: row.try_get(3)?,
            revision: row.try_get(4)?,
        },
        floor_ms: row.try_get(5)?,
        last_ms: row.try_get(6)?,
        ceiling_ms: row.try_get(7)?,
        deadline_in_ms: row.try_get(8)?,
        ceiling_lead_ms: row.try_get(9)?,
    })
}
