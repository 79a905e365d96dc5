//! Shards that move, in tables of the coordinator database (`sql/26-store-shards.sql`). Whoever changes something says so
//! (`NOTIFY`), and all look once a period in any case.

use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_shards::{AssignmentStore, Reassignment, ShardFeed, ShardLook};
use super::{
    PostgresStore, Result, begin, broken, column, ms, not_done, raise_revision, signed, signed_all, unsigned,
};
use crate::postgres::{PostgresUrl, Session, describe};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{
    Assigned, Assignment, BootId, Epoch, Holding, Identity, InstanceId, Presence, Revision, Token,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use uuid::Uuid;

const CHANNEL: &str = "idgen_shards";

const RECORDS: &str = "
    SELECT shard, server, (extract(epoch FROM assigned_at) * 1000)::int8, assigned_by, reason, version
      FROM idgen.shard_assignment";

/// What takes the place of the version that was seen; the caller counts. The cell's row is locked.
const ASSIGN: &str = "
    INSERT INTO idgen.shard_assignment AS a (shard, server, assigned_at, assigned_by, reason, version)
    SELECT p.shard, p.server, to_timestamp(p.at_ms::float8 / 1000), p.by, p.reason, p.version
      FROM unnest($1::int4[], $2::text[], $3::int8[], $4::text[], $5::text[], $6::int8[], $7::int8[])
           AS p(shard, server, at_ms, by, reason, version, seen)
      LEFT JOIN idgen.shard_assignment o ON o.shard = p.shard
     WHERE coalesce(o.version, 0) = p.seen
        ON CONFLICT (shard) DO UPDATE
       SET server = excluded.server, assigned_at = excluded.assigned_at, assigned_by = excluded.assigned_by,
           reason = excluded.reason, version = excluded.version";

const SERVERS: &str = "
    SELECT s.instance, s.server, s.boot_id, s.address, s.room, s.lasts_ms, s.shown_ms,
           s.shards, s.token_epochs, s.token_revisions, s.since_ms
      FROM idgen.shard_server s WHERE s.expires_at > clock_timestamp()";

const REVISION: &str = "SELECT coalesce((SELECT revision FROM idgen.cell), 0)";

/// Rows of servers that were not heard of for a minute go.
const SHOW: &str = "
    WITH gone AS (DELETE FROM idgen.shard_server WHERE expires_at < clock_timestamp() - interval '1 minute')
    INSERT INTO idgen.shard_server AS s (instance, server, boot_id, address, room, lasts_ms, shown_ms,
                                         shards, token_epochs, token_revisions, since_ms, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_timestamp() + $12 * interval '1 millisecond')
        ON CONFLICT (instance) DO UPDATE
       SET server = excluded.server, boot_id = excluded.boot_id, address = excluded.address, room = excluded.room,
           lasts_ms = excluded.lasts_ms, shown_ms = excluded.shown_ms, shards = excluded.shards,
           token_epochs = excluded.token_epochs, token_revisions = excluded.token_revisions,
           since_ms = excluded.since_ms, expires_at = excluded.expires_at";

fn notify(session_says: &str) -> String {
    format!("SELECT pg_catalog.pg_notify('{CHANNEL}', '{session_says}')")
}

impl AssignmentStore for PostgresStore {
    async fn assignments(&mut self) -> Result<BTreeMap<Identity, Assignment>> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session, super::Expected::Unknown).await?;
        let rows = session.rows(RECORDS, &[]).await.map_err(not_done)?;
        self.commit(session, warnings).await?;
        rows.iter().map(record).collect()
    }

    async fn assign(&mut self, records: &[Reassignment]) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin(&session, super::Expected::Unknown).await?;
        raise_revision(&session).await?;
        let new = || records.iter().map(|(_, _, record)| record);
        let shards: Vec<i32> = records.iter().map(|(shard, _, _)| i32::from(shard.0)).collect();
        let servers: Vec<&str> = new().map(|record| record.server.as_str()).collect();
        let at = signed_all(new().map(|record| record.at.0))?;
        let by: Vec<&str> = new().map(|record| record.by.as_str()).collect();
        let reasons: Vec<&str> = new().map(|record| record.reason.as_str()).collect();
        let versions = signed_all(new().map(|record| record.version))?;
        let seen = signed_all(records.iter().map(|(_, seen, _)| *seen))?;
        let written = session
            .execute(ASSIGN, &[&shards, &servers, &at, &by, &reasons, &versions, &seen])
            .await
            .map_err(not_done)?;
        session.batch(&notify("assigned")).await.map_err(not_done)?;
        self.commit_all(session, warnings, written, records.len()).await
    }
}

fn shard(number: i32) -> Result<Identity> {
    u16::try_from(number)
        .map(Identity)
        .map_err(|_| broken("a shard is out of range"))
}

fn record(row: &Row) -> Result<(Identity, Assignment)> {
    let record = Assignment {
        server: column(row, 1)?,
        at: UnixMs(unsigned(column(row, 2)?)?),
        by: column(row, 3)?,
        reason: column(row, 4)?,
        version: unsigned(column(row, 5)?)?,
    };
    Ok((shard(column(row, 0)?)?, record))
}

fn server(row: &Row) -> Result<Presence> {
    let (shards, since): (Vec<i32>, Vec<i64>) = (column(row, 7)?, column(row, 10)?);
    let (epochs, revisions): (Vec<i64>, Vec<i64>) = (column(row, 8)?, column(row, 9)?);
    let mut holds = BTreeMap::new();
    for (((number, epoch), revision), since) in shards.into_iter().zip(epochs).zip(revisions).zip(since) {
        let token = Token {
            epoch: Epoch(unsigned(epoch)?),
            revision: Revision(unsigned(revision)?),
        };
        let since = UnixMs(unsigned(since)?);
        holds.insert(shard(number)?, Holding { token, since });
    }
    let room: i32 = column(row, 4)?;
    Ok(Presence {
        instance: InstanceId(column::<Uuid>(row, 0)?.as_u128()),
        server: column(row, 1)?,
        boot_id: column::<Option<Uuid>>(row, 2)?.map(|boot_id| BootId(boot_id.as_u128())),
        address: column(row, 3)?,
        room: usize::try_from(room).unwrap_or(0),
        lasts_ms: unsigned(column(row, 5)?)?,
        holds,
        at: UnixMs(unsigned(column(row, 6)?)?),
    })
}

/// Follows the tables.
pub struct PostgresShards {
    url: PostgresUrl,
    connect_timeout: Duration,
    request_timeout: Duration,
    /// How often to look although nothing was heard.
    period: Duration,
    session: Option<Session>,
    look_at: tokio::time::Instant,
    heard_own: Option<UnixMs>,
    shown: Option<(InstanceId, UnixMs)>,
}

impl PostgresShards {
    /// Connects at the first look.
    pub fn new(url: PostgresUrl, limits: (Duration, Duration), period: Duration) -> Self {
        let (connect_timeout, request_timeout) = limits;
        Self {
            url,
            connect_timeout,
            request_timeout,
            period,
            session: None,
            look_at: tokio::time::Instant::now(),
            heard_own: None,
            shown: None,
        }
    }

    /// One that listens.
    async fn session(&mut self) -> Result<&mut Session> {
        if !self.session.as_mut().is_some_and(Session::is_usable) {
            self.session = None;
        }
        if let Some(session) = self.session.take() {
            return Ok(self.session.insert(session));
        }
        let session = Session::open(
            &self.url,
            "idgend shards",
            self.connect_timeout,
            self.request_timeout,
        )
        .await
        .map_err(|error| {
            let message = format!("connect to {}: {error}", describe(&self.url));
            StoreError::new(StoreErrorKind::Unreachable, message)
        })?;
        session
            .batch(&format!("LISTEN {CHANNEL}"))
            .await
            .map_err(not_done)?;
        Ok(self.session.insert(session))
    }

    async fn read(&mut self) -> Result<ShardLook> {
        let known_at = Instant::now();
        let session = self.session().await?;
        let revision = session.row(REVISION, &[]).await.map_err(not_done)?;
        let records = session.rows(RECORDS, &[]).await.map_err(not_done)?;
        let servers = session.rows(SERVERS, &[]).await.map_err(not_done)?;
        let servers = servers.iter().map(server).collect::<Result<Vec<_>>>()?;
        Ok(ShardLook {
            assigned: Assigned {
                records: records.iter().map(record).collect::<Result<_>>()?,
                servers: servers
                    .into_iter()
                    .map(|server| (server.instance, server))
                    .collect(),
            },
            revision: Revision(unsigned(column(&revision, 0)?)?),
            known_at,
        })
    }
}

impl ShardFeed for PostgresShards {
    async fn look(&mut self) -> Result<ShardLook> {
        let look = match self.read().await {
            Ok(look) => look,
            Err(error) => {
                self.session = None;
                return Err(error);
            }
        };
        self.look_at = tokio::time::Instant::now() + self.period;
        if let Some((instance, at)) = self.shown
            && look
                .assigned
                .servers
                .get(&instance)
                .is_some_and(|own| own.at == at)
        {
            self.heard_own = Some(at);
        }
        Ok(look)
    }

    async fn heard(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        tokio::select! {
            told = session.notified() => {
                // The next look opens another one.
                if told.is_none() {
                    self.session = None;
                } else {
                    session.forget_notifications();
                }
            }
            () = tokio::time::sleep_until(self.look_at) => {}
        }
        Ok(())
    }

    async fn show(&mut self, presence: &Presence, ttl_ms: u64, news: bool) -> Result<()> {
        let (mut shards, mut epochs, mut revisions, mut since) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (shard, holding) in &presence.holds {
            shards.push(i32::from(shard.0));
            epochs.push(signed(holding.token.epoch.0)?);
            revisions.push(signed(holding.token.revision.0)?);
            since.push(signed(holding.since.0)?);
        }
        self.shown = Some((presence.instance, presence.at));
        let session = self.session().await?;
        session
            .execute(
                SHOW,
                &[
                    &Uuid::from_u128(presence.instance.0),
                    &presence.server,
                    &presence.boot_id.map(|boot_id| Uuid::from_u128(boot_id.0)),
                    &presence.address,
                    &i32::try_from(presence.room).unwrap_or(i32::MAX),
                    &signed(presence.lasts_ms)?,
                    &signed(presence.at.0)?,
                    &shards,
                    &epochs,
                    &revisions,
                    &since,
                    &ms(ttl_ms),
                ],
            )
            .await
            .map_err(not_done)?;
        if news {
            session.batch(&notify("shown")).await.map_err(not_done)?;
        }
        Ok(())
    }

    async fn withdraw(&mut self, instance: InstanceId) -> Result<()> {
        let session = self.session().await?;
        let gone = "DELETE FROM idgen.shard_server WHERE instance = $1";
        session
            .execute(gone, &[&Uuid::from_u128(instance.0)])
            .await
            .map_err(not_done)?;
        session.batch(&notify("left")).await.map_err(not_done)
    }

    fn heard_own(&self) -> Option<UnixMs> {
        self.heard_own
    }

    fn start_over(&mut self) {
        self.session = None;
    }
}
