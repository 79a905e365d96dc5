//! A session with one database of the server that grants: the control functions of the extension for its authority
//! (`sql/46-authority.sql`), and nothing else.

use crate::config::PostgresConfig;
use crate::error::{Error, Result};
use crate::postgres::{HAS_EXTENSION, PgError, PostgresUrl, Session, column, explain, read_anchors};
use idgen_core::clock::BootMs;
use idgen_core::lease::named::{Held, Want};
use idgen_core::lease::{Anchor, BootId};
use idgen_core::segment::Stripes;
use std::future::Future;
use std::time::Duration;
use uuid::Uuid;

/// What a database would like to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Space and stripe whose authority is to be leased. `None`: its authority is local, or it is a standby.
    pub of: Option<(u128, u32)>,
    /// Which ids that are, where several masters share the space: leased only with a claim.
    pub cut: Option<Stripes>,
    /// Tags whose ceilings should be raised, and how high.
    pub ceilings: Vec<Want>,
}

/// What a database says to a lease or ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is as asked.
    Done,
    /// It is not: shared memory is new, or belongs to another token or space. The text is for people.
    Refused(String),
}

/// How a database is reached.
pub trait Open: Clone + Send + Sync + 'static {
    /// The session.
    type Database: Database;

    /// Opens one.
    fn open(&self, database: &str) -> impl Future<Output = Result<Self::Database>> + Send;

    /// The databases that there are.
    fn databases(&self) -> impl Future<Output = Result<Vec<String>>> + Send;
}

/// A session with one database. `Retry` errors end the session and can be waited out.
pub trait Database: Send + Sync + 'static {
    /// False once the connection has ended, or was made with certificates that others have replaced since.
    fn is_usable(&mut self) -> bool;

    /// Is the extension in it? Without it nothing else may be asked.
    fn has_extension(&self) -> impl Future<Output = Result<bool>> + Send;

    /// Shared memory and the boot clock; `None`: the server is in recovery.
    fn clock(&self) -> impl Future<Output = Result<Option<(BootId, BootMs)>>> + Send;

    /// What the server remembers of the lease store.
    fn anchors(&self) -> impl Future<Output = Result<Vec<Anchor>>> + Send;

    /// System identifier of the cluster.
    fn system_identifier(&self) -> impl Future<Output = Result<u64>> + Send;

    /// What is wanted here.
    fn wanted(&self) -> impl Future<Output = Result<Wanted>> + Send;

    /// Opens the lease, or moves its deadline.
    fn install(
        &self,
        of: (u128, u32),
        held: &Held,
        deadline: BootMs,
    ) -> impl Future<Output = Result<Said>> + Send;

    /// Ids of the tag above the first and up to the second may be granted under this lease.
    fn raise(
        &self,
        of: (u128, u32),
        held: &Held,
        tag: &str,
        stretch: (i64, i64),
    ) -> impl Future<Output = Result<Said>> + Send;

    /// Closes whatever lease of this is open.
    fn fence(&self, of: (u128, u32)) -> impl Future<Output = Result<()>> + Send;
}

impl Open for PostgresConfig {
    type Database = Session;

    async fn open(&self, database: &str) -> Result<Session> {
        open(&self.url.in_database(database), self.connect_timeout)
            .await
            .map_err(|error| Error::retry(format!("connect to database {database}: {error}")))
    }

    async fn databases(&self) -> Result<Vec<String>> {
        let session = open(&self.url, self.connect_timeout)
            .await
            .map_err(|error| Error::retry(format!("connect to postgres: {error}")))?;
        let rows = session
            .rows(
                "SELECT datname::text FROM pg_database \
                  WHERE datallowconn AND NOT datistemplate AND has_database_privilege(oid, 'CONNECT') \
                  ORDER BY datname",
                &[],
            )
            .await
            .map_err(retry)?;
        rows.iter().map(|row| column(row, 0)).collect()
    }
}

async fn open(url: &PostgresUrl, limit: Duration) -> std::result::Result<Session, PgError> {
    Session::open(url, "idgend authority", limit, limit).await
}

impl Database for Session {
    fn is_usable(&mut self) -> bool {
        Self::is_usable(self)
    }

    async fn has_extension(&self) -> Result<bool> {
        column(&self.row(HAS_EXTENSION, &[]).await.map_err(retry)?, 0)
    }

    async fn clock(&self) -> Result<Option<(BootId, BootMs)>> {
        let read = "SELECT boot_id, boottime_ms, in_recovery FROM idgen.server_clock()";
        let row = self.row(read, &[]).await.map_err(explain)?;
        let (boot_id, boot_ms): (Uuid, i64) = (column(&row, 0)?, column(&row, 1)?);
        if column(&row, 2)? {
            return Ok(None);
        }
        let boot_ms = u64::try_from(boot_ms).map_err(|_| Error::runtime("boottime_ms is negative"))?;
        Ok(Some((BootId(boot_id.as_u128()), BootMs(boot_ms))))
    }

    async fn anchors(&self) -> Result<Vec<Anchor>> {
        read_anchors(self, None).await
    }

    async fn system_identifier(&self) -> Result<u64> {
        let read = "SELECT system_identifier FROM pg_control_system()";
        let identifier: i64 = column(&self.row(read, &[]).await.map_err(retry)?, 0)?;
        Ok(identifier.cast_unsigned())
    }

    async fn wanted(&self) -> Result<Wanted> {
        let read = "SELECT space_id, stripe, tag, wanted, stripes, stripe_size FROM idgen.authority_wanted()";
        let rows = self.rows(read, &[]).await.map_err(explain)?;
        let mut wanted = Wanted::default();
        for row in &rows {
            let (space_id, stripe): (Uuid, i32) = (column(row, 0)?, column(row, 1)?);
            let stripe = u32::try_from(stripe).map_err(|_| Error::runtime("a stripe is negative"))?;
            wanted.of = Some((space_id.as_u128(), stripe));
            wanted.cut = cut(stripe, column(row, 4)?, column(row, 5)?)?;
            if let Some(key) = column(row, 2)? {
                let ceiling = column(row, 3)?;
                wanted.ceilings.push(Want { key, ceiling });
            }
        }
        Ok(wanted)
    }

    async fn install(&self, of: (u128, u32), held: &Held, deadline: BootMs) -> Result<Said> {
        let (space_id, stripe, epoch, revision) = lease_args(of, held)?;
        let answer = self
            .rows(
                "SELECT idgen.install_authority($1, $2, $3, $4, $5, $6)",
                &[
                    &Uuid::from_u128(held.boot_id.0),
                    &space_id,
                    &stripe,
                    &epoch,
                    &revision,
                    &signed(deadline.0)?,
                ],
            )
            .await;
        match answer {
            Ok(_) => Ok(Said::Done),
            Err(error) => refusal(error),
        }
    }

    async fn raise(&self, of: (u128, u32), held: &Held, tag: &str, stretch: (i64, i64)) -> Result<Said> {
        let (space_id, stripe, epoch, revision) = lease_args(of, held)?;
        let (floor, ceiling) = stretch;
        let answer = self
            .row(
                "SELECT idgen.raise_ceiling($1, $2, $3, $4, $5, $6, $7)",
                &[&space_id, &stripe, &epoch, &revision, &tag, &floor, &ceiling],
            )
            .await;
        match answer {
            Ok(row) if column::<bool>(&row, 0)? => Ok(Said::Done),
            Ok(_) => Ok(Said::Refused("the token is not the open one".to_owned())),
            // It was dropped meanwhile.
            Err(error) if error.sqlstate() == Some("IG005") => Ok(Said::Done),
            Err(error) => refusal(error),
        }
    }

    async fn fence(&self, of: (u128, u32)) -> Result<()> {
        let (space_id, stripe) = (Uuid::from_u128(of.0), index(of.1)?);
        self.rows("SELECT idgen.fence_authority($1, $2)", &[&space_id, &stripe])
            .await
            .map_err(explain)?;
        Ok(())
    }
}

/// Boot id, token, deadline or space are not what the server has: it is looked at anew.
fn refusal(error: PgError) -> Result<Said> {
    match error.sqlstate() {
        Some("IG101" | "IG102" | "IG104" | "IG108") => Ok(Said::Refused(error.to_string())),
        _ => Err(explain(error)),
    }
}

fn lease_args(of: (u128, u32), held: &Held) -> Result<(Uuid, i32, i64, i64)> {
    let (space_id, stripe) = (Uuid::from_u128(of.0), index(of.1)?);
    Ok((
        space_id,
        stripe,
        signed(held.token.epoch.0)?,
        signed(held.token.revision.0)?,
    ))
}

fn cut(stripe: u32, stripes: i32, size: Option<i64>) -> Result<Option<Stripes>> {
    let Some(size) = size else { return Ok(None) };
    let stripes = u32::try_from(stripes).ok().zip(u64::try_from(size).ok());
    let stripes = stripes.and_then(|(count, size)| Stripes::new(stripe, count, size).ok());
    stripes
        .map(Some)
        .ok_or_else(|| Error::runtime("idgen.space says what cannot be"))
}

fn index(stripe: u32) -> Result<i32> {
    i32::try_from(stripe).map_err(|_| Error::runtime("a stripe does not fit into integer"))
}

fn signed(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::runtime(format!("{value} does not fit into bigint")))
}

fn retry(error: PgError) -> Error {
    Error::retry(error.to_string())
}
