//! The log of the embedded store: what triggers have written down in `idgen.lease_change`, in the transactions that changed
//! its rows. Positions have no gaps and are in the order of the commits, because they are taken under the lock of the cell.

use super::super::events::{EventLog, Next, Present, row_places};
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_named::no_cell;
use super::{PostgresStore, Result, broken, column, identity_column, not_done, unsigned};
use crate::postgres::Session;
use idgen_core::clock::UnixMs;
use idgen_core::lease::events::{Before, Commit, KeyChange, Log, Place, Seen, When};
use idgen_core::lease::{CellId, Revision};
use std::time::Duration;
use tokio_postgres::Row;
use uuid::Uuid;

/// Changes that are read at once; a transaction is never cut.
const AT_ONCE: i64 = 1_000;
/// Somebody who follows may be behind so long.
const KEEP: &str = "7 days";
/// What is removed at once: whoever follows waits for it.
const PRUNED_AT_ONCE: i64 = 10_000;

const PRESENT: &str = "
    SELECT c.cell_id, format('postgres/%s/%s/%s', i.system_identifier, i.timeline, i.database_oid), c.changes, c.revision,
           (extract(epoch FROM clock_timestamp()) * 1000)::int8,
           c.changes > 0 AND c.changes = (SELECT count(*) FROM idgen.lease_change)
      FROM idgen.cell c CROSS JOIN idgen.store_identity() i";

/// In one snapshot; JSON because the log has rows as JSON.
const ROWS: &str = "
              SELECT 'cell', to_jsonb(c)::text FROM idgen.cell c
    UNION ALL SELECT 'lease', to_jsonb(l)::text FROM idgen.lease l
    UNION ALL SELECT 'named_lease', to_jsonb(n)::text FROM idgen.named_lease n
    UNION ALL SELECT 'lease_order', to_jsonb(o)::text FROM idgen.lease_order o
    UNION ALL SELECT 'request', to_jsonb(r)::text FROM idgen.request r
    UNION ALL SELECT 'shard_assignment', to_jsonb(a)::text FROM idgen.shard_assignment a
    UNION ALL SELECT 'server_drain', to_jsonb(d)::text FROM idgen.server_drain d
    UNION ALL SELECT 'epoch', to_jsonb(e)::text FROM idgen.epoch e
    UNION ALL SELECT 'stripe', to_jsonb(s)::text FROM idgen.stripe s";

const CHANGES: &str = "
    WITH part AS (SELECT * FROM idgen.lease_change WHERE position > $1 ORDER BY position LIMIT $2),
         whole AS (SELECT * FROM part
                   UNION ALL
                   SELECT l.* FROM idgen.lease_change l
                    WHERE l.position > (SELECT max(position) FROM part)
                      AND l.tx = (SELECT tx FROM part ORDER BY position DESC LIMIT 1))
    SELECT position, revision, (extract(epoch FROM at) * 1000)::int8, tx::text, changed_by::text, of_table::text,
           before::text, after::text
      FROM whole ORDER BY position";

/// See the module.
pub(crate) struct PostgresLog {
    /// What it connects by.
    store: PostgresStore,
    cursor: u64,
}

impl PostgresLog {
    pub(crate) fn new(store: PostgresStore) -> Self {
        Self { store, cursor: 0 }
    }

    async fn changes(&mut self) -> Result<Next> {
        let session = self.store.take_session().await?;
        let from = i64::try_from(self.cursor).map_err(|_| broken("a position does not fit into bigint"))?;
        let rows = session
            .rows(CHANGES, &[&from, &AT_ONCE])
            .await
            .map_err(not_done)?;
        let reached: Option<i64> = match rows.is_empty() {
            false => None,
            true => {
                let cell = session
                    .rows("SELECT changes FROM idgen.cell", &[])
                    .await
                    .map_err(not_done)?;
                cell.first().map(|row| column(row, 0)).transpose()?
            }
        };
        self.store.session = Some(session);
        let Some(first) = rows.first() else {
            let reached = reached.map(unsigned).transpose()?.ok_or_else(no_cell)?;
            return Ok(match reached.cmp(&self.cursor) {
                std::cmp::Ordering::Less => Next::Replaced(format!("its log ends at {reached}")),
                std::cmp::Ordering::Equal => Next::AtItsEnd,
                // It was changed between the two statements, or the log was removed.
                std::cmp::Ordering::Greater => self.missing(reached).await?,
            });
        };
        let mut commits: Vec<Commit> = Vec::new();
        let mut transaction = String::new();
        let mut position = self.cursor;
        if unsigned(column(first, 0)?)? != self.cursor + 1 {
            return Ok(Next::Gap(self.cursor + 1));
        }
        for row in &rows {
            let next = unsigned(column(row, 0)?)?;
            if next != position + 1 {
                // What is before the hole is told first.
                break;
            }
            position = next;
            let tx: String = column(row, 3)?;
            let (when, by, changes) = change(row)?;
            match commits.last_mut().filter(|_| transaction == tx) {
                Some(commit) => {
                    commit.when = when;
                    commit.changes.extend(changes);
                }
                None => commits.push(Commit {
                    when,
                    by: Some(by),
                    changes,
                }),
            }
            transaction = tx;
        }
        self.cursor = position;
        Ok(Next::Commits(commits, position))
    }

    /// The cell counts more changes than the log shows.
    async fn missing(&mut self, reached: u64) -> Result<Next> {
        let session = self.store.take_session().await?;
        let from = i64::try_from(self.cursor).map_err(|_| broken("a position does not fit into bigint"))?;
        let sql = "SELECT EXISTS (SELECT FROM idgen.lease_change WHERE position > $1)";
        let row = session.row(sql, &[&from]).await.map_err(not_done)?;
        self.store.session = Some(session);
        Ok(if column(&row, 0)? {
            Next::Nothing
        } else {
            Next::Gap(reached)
        })
    }
}

/// When, by whom, and the keys that a logged row would be.
fn change(row: &Row) -> Result<(When, String, Vec<KeyChange>)> {
    let when = When {
        position: unsigned(column(row, 0)?)?,
        revision: Revision(unsigned(column(row, 1)?)?),
        at: UnixMs(unsigned(column(row, 2)?)?),
    };
    let table: String = column(row, 5)?;
    let side = |index| -> Result<Option<Vec<(Place, Seen)>>> {
        let text: Option<&str> = column(row, index)?;
        let parse = |text| serde_json::from_str(text).map_err(|_| broken("a row of the log cannot be read"));
        Ok(text.map(parse).transpose()?.map(|row| row_places(&table, &row)))
    };
    let (before, after) = (side(6)?, side(7)?);
    let mut changes: Vec<KeyChange> = Vec::new();
    for (place, seen) in before.into_iter().flatten() {
        changes.push(KeyChange {
            place,
            before: Before::Was(seen),
            after: None,
        });
    }
    for (place, seen) in after.into_iter().flatten() {
        match changes.iter_mut().find(|change| change.place == place) {
            Some(change) => change.after = Some(seen),
            None => changes.push(KeyChange {
                place,
                before: Before::Nothing,
                after: Some(seen),
            }),
        }
    }
    Ok((when, column(row, 4)?, changes))
}

impl EventLog for PostgresLog {
    const LOG: Log = Log::ButRenewals;

    /// As they are: the tables do not tell what they were.
    async fn present(&mut self, _at: Option<u64>) -> Result<Present> {
        let session = self.store.take_session().await?;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        session.batch(begin).await.map_err(not_done)?;
        let present = present(&session).await?;
        session.batch("COMMIT").await.map_err(not_done)?;
        self.store.session = Some(session);
        Ok(present)
    }

    async fn follow(&mut self, from: u64) -> Result<()> {
        self.cursor = from;
        Ok(())
    }

    async fn next(&mut self, within: Duration) -> Result<Next> {
        match self.changes().await? {
            Next::Nothing | Next::AtItsEnd => tokio::time::sleep(within).await,
            next => return Ok(next),
        }
        self.changes().await
    }

    async fn prune(&mut self) -> Result<bool> {
        let session = self.store.take_session().await?;
        let sql = format!(
            "DELETE FROM idgen.lease_change
              WHERE position = ANY (ARRAY(SELECT l.position FROM idgen.lease_change l
                                           WHERE l.at < clock_timestamp() - interval '{KEEP}' ORDER BY l.at LIMIT $1))"
        );
        let pruned = session
            .execute(&sql, &[&PRUNED_AT_ONCE])
            .await
            .map_err(not_done)?;
        self.store.session = Some(session);
        Ok(pruned >= PRUNED_AT_ONCE.unsigned_abs())
    }
}

async fn present(session: &Session) -> Result<Present> {
    let rows = session.rows(PRESENT, &[]).await.map_err(not_done)?;
    let cell = rows.first().ok_or_else(no_cell)?;
    let mut states = Vec::new();
    for row in session.rows(ROWS, &[]).await.map_err(not_done)? {
        let (table, text): (String, String) = (column(&row, 0)?, column(&row, 1)?);
        let row = serde_json::from_str(&text).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Denied,
                format!("read a row of idgen.{table}: {error}"),
            )
        })?;
        states.extend(row_places(&table, &row));
    }
    Ok(Present {
        cell: CellId(column::<Uuid>(cell, 0)?.as_u128()),
        store: identity_column(cell, 1)?,
        when: When {
            position: unsigned(column(cell, 2)?)?,
            revision: Revision(unsigned(column(cell, 3)?)?),
            at: UnixMs(unsigned(column(cell, 4)?)?),
        },
        has_all: column(cell, 5)?,
        states,
    })
}
