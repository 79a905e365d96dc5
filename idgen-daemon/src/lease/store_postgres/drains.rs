//! Servers that are drained: rows of `idgen.server_drain`, read and written under the lock of the cell.

use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_drains::DrainStore;
use super::{PostgresStore, Result, begin_change, column, ms, not_done, signed, unsigned};
use crate::postgres::Session;
use idgen_core::clock::UnixMs;
use idgen_core::lease::Drain;
use tokio_postgres::Row;

const READ: &str = "
    SELECT server, drained, (extract(epoch FROM said_at) * 1000)::int8, said_by, reason, version
      FROM idgen.server_drain WHERE server = $1::text OR $1 IS NULL ORDER BY server COLLATE \"C\"";

/// The cell's row is locked, so no grant slips in between.
const WRITE: &str = "
    INSERT INTO idgen.server_drain AS d (server, drained, said_at, said_by, reason, version)
    SELECT $1::text, $2::bool, to_timestamp($3::float8 / 1000), $4::text, $5::text, $6::int8
     WHERE coalesce((SELECT o.version FROM idgen.server_drain o WHERE o.server = $1), 0) = $6 - 1
        ON CONFLICT (server) DO UPDATE
       SET drained = excluded.drained, said_at = excluded.said_at, said_by = excluded.said_by,
           reason = excluded.reason, version = excluded.version";

/// What was said last of the server of this name, or of every one.
pub(super) async fn read(session: &Session, server: Option<&str>) -> Result<Vec<Drain>> {
    let rows = session.rows(READ, &[&server]).await.map_err(not_done)?;
    rows.iter().map(drain).collect()
}

fn drain(row: &Row) -> Result<Drain> {
    Ok(Drain {
        server: column(row, 0)?,
        drained: column(row, 1)?,
        at: UnixMs(unsigned(column(row, 2)?)?),
        by: column(row, 3)?,
        reason: column(row, 4)?,
        version: unsigned(column(row, 5)?)?,
    })
}

/// Whoever asks is to take nothing.
pub(super) async fn check(session: &Session, server: &str) -> Result<()> {
    let said = read(session, Some(server)).await?;
    if said.iter().any(|drain| drain.drained) {
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "this server was drained",
        ));
    }
    Ok(())
}

impl DrainStore for PostgresStore {
    async fn drains(&mut self) -> Result<Vec<Drain>> {
        let session = self.take_session().await?;
        let drains = read(&session, None).await?;
        self.session = Some(session);
        Ok(drains)
    }

    async fn set_drain(&mut self, drain: &Drain) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin_change(&session).await?;
        let Drain {
            server, by, reason, ..
        } = drain;
        let (at, version) = (ms(drain.at.0), signed(drain.version)?);
        let written = session
            .execute(WRITE, &[server, &drain.drained, &at, by, reason, &version])
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, written, 1).await
    }
}
