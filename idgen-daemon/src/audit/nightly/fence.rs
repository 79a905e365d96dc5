//! Is what the replica shows what the primary had? System, timeline and position say so, and a mark that the run itself has left
//! on the primary: a server of another history may have any position, but never that.

use super::halt::{Halt, column, trouble};
use super::ledger::{Fence, Ledger};
use super::reader::Reader;
use crate::metrics::NightlyMetrics;
use crate::postgres::{PgError, Session};
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Between two looks at a replica that is behind.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The timeline by the name of the segment: the control file lags after a promotion.
const OF_PRIMARY: &str = "
    SELECT l.lsn::text, ('x' || left(pg_walfile_name(l.lsn), 8))::bit(32)::int4, s.system_identifier
      FROM pg_control_system() s, pg_current_wal_insert_lsn() l(lsn)";

/// The control file has the timeline of the last restartpoint, and that which recovery must come to at the least.
const OF_REPLICA: &str = "
    SELECT s.system_identifier, pg_is_in_recovery(),
           greatest(c.timeline_id, r.min_recovery_end_timeline),
           CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
           CASE WHEN pg_is_in_recovery() THEN pg_wal_lsn_diff($1::pg_lsn, pg_last_wal_replay_lsn())::int8 END
      FROM pg_control_system() s, pg_control_checkpoint() c, pg_control_recovery() r";

const HAS_MARK: &str = "
    SELECT EXISTS (SELECT FROM idgen.audit_run r WHERE r.run_id = $1 AND r.progress ->> 'fence' = $2)";

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    system: i64,
    in_recovery: bool,
    timeline: i32,
    is_paused: bool,
    /// Bytes that it is behind the fence; of a server that has replayed nothing none.
    behind: Option<i64>,
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judged {
    /// It has everything.
    There,
    /// It may come to it.
    Wait(String),
    /// It never will.
    Never(String),
}

fn judge(fence: &Fence, replica: &Standing) -> Judged {
    if replica.system != fence.system {
        return Judged::Never(format!(
            "audit.replica is of another system: {} and not {}",
            replica.system, fence.system
        ));
    }
    if !replica.in_recovery {
        return Judged::Never(
            "audit.replica is no replica: it is not in recovery (was it promoted?)".to_owned(),
        );
    }
    if replica.timeline > fence.timeline {
        return Judged::Never(format!(
            "audit.replica is of another timeline: {} and not {}",
            replica.timeline, fence.timeline
        ));
    }
    match replica.behind {
        Some(bytes) if bytes <= 0 => Judged::There,
        behind => {
            let far = behind.map_or_else(
                || "has replayed nothing".to_owned(),
                |bytes| format!("is {bytes} bytes behind"),
            );
            let paused = if replica.is_paused {
                ", and replay is paused"
            } else {
                ""
            };
            Judged::Wait(format!("audit.replica {far}{paused}"))
        }
    }
}

/// The position of the primary now.
///
/// # Errors
/// It does not answer.
pub async fn of_primary(ledger: &Ledger) -> Result<Fence, Halt> {
    let rows = ledger
        .primary
        .rows_typed(OF_PRIMARY, &[])
        .await
        .map_err(trouble)?;
    let row = rows
        .first()
        .ok_or_else(|| Halt::Inconclusive("the primary does not say where it is".to_owned()))?;
    Ok(Fence {
        lsn: column(row, 0)?,
        timeline: column(row, 1)?,
        system: column(row, 2)?,
    })
}

async fn look(reader: &mut Reader, fence: &Fence) -> Result<Standing, PgError> {
    let rows = reader.try_rows(OF_REPLICA, &[(&fence.lsn, Type::TEXT)]).await;
    standing(&rows?)
}

fn standing(rows: &[Row]) -> Result<Standing, PgError> {
    let row = rows
        .first()
        .ok_or_else(|| PgError::Malformed("the replica does not say where it is".to_owned()))?;
    let get = |error: tokio_postgres::Error| PgError::Malformed(error.to_string());
    Ok(Standing {
        system: row.try_get(0).map_err(get)?,
        in_recovery: row.try_get(1).map_err(get)?,
        timeline: row.try_get(2).map_err(get)?,
        is_paused: row.try_get(3).map_err(get)?,
        behind: row.try_get(4).map_err(get)?,
    })
}

/// What a session that reads has to show.
#[derive(Clone, Debug)]
pub struct Proof {
    fence: Fence,
    run: i64,
    mark: String,
}

impl Proof {
    /// Of a run and its mark.
    #[must_use]
    pub fn new(fence: Fence, (run, mark): (i64, Uuid)) -> Self {
        Self {
            fence,
            run,
            mark: mark.to_string(),
        }
    }

    /// Is this session one of a server that has what the primary had?
    ///
    /// # Errors
    /// `Malformed`: it is not, and why. Others: it does not say.
    pub async fn check(&self, session: &Session) -> Result<(), PgError> {
        let rows = session
            .rows_typed(OF_REPLICA, &[(&self.fence.lsn, Type::TEXT)])
            .await?;
        if let Judged::Wait(why) | Judged::Never(why) = judge(&self.fence, &standing(&rows)?) {
            return Err(PgError::Malformed(format!("{why}, and had been there before")));
        }
        let params = [(&self.run as _, Type::INT8), (&self.mark as _, Type::TEXT)];
        let rows = session.rows_typed(HAS_MARK, &params).await?;
        if has_mark(&rows)? {
            Ok(())
        } else {
            Err(PgError::Malformed(NO_MARK.to_owned()))
        }
    }
}

const NO_MARK: &str = "audit.replica has the position of the primary, but not what this run has written there: it is of another timeline";

fn has_mark(rows: &[Row]) -> Result<bool, PgError> {
    let has: Option<bool> = rows
        .first()
        .map(|row| row.try_get(0))
        .transpose()
        .map_err(|error| PgError::Malformed(error.to_string()))?;
    Ok(has == Some(true))
}

/// Waits until the replica has everything up to the fence, and the mark of the run.
///
/// # Errors
/// `Inconclusive`: it has not come to it within `limit`, or never will.
pub async fn wait_for(
    reader: &mut Reader,
    fence: &Fence,
    (run, mark): (i64, Uuid),
    limit: Duration,
    metrics: Option<&NightlyMetrics>,
) -> Result<(), Halt> {
    let began = Instant::now();
    let mut why;
    loop {
        match look(reader, fence).await {
            Ok(standing) => {
                if let (Some(metrics), Some(behind)) = (metrics, standing.behind) {
                    metrics.set_lag(behind.max(0));
                }
                match judge(fence, &standing) {
                    Judged::There => break,
                    Judged::Wait(reason) => why = reason,
                    Judged::Never(reason) => return Err(Halt::Inconclusive(reason)),
                }
            }
            Err(error) => why = format!("audit.replica: {error}"),
        }
        if began.elapsed() >= limit {
            let minutes = limit.as_secs() / 60;
            return Err(Halt::Inconclusive(format!("{why}, for {minutes} minutes")));
        }
        tokio::time::sleep(LOOK_EVERY.min(limit)).await;
    }
    let mark = mark.to_string();
    let rows = reader
        .rows(HAS_MARK, &[(&run, Type::INT8), (&mark, Type::TEXT)])
        .await?;
    if has_mark(&rows).map_err(trouble)? {
        Ok(())
    } else {
        Err(Halt::Inconclusive(NO_MARK.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence() -> Fence {
        Fence {
            system: 7,
            timeline: 3,
            lsn: "0/1000".to_owned(),
        }
    }

    fn there() -> Standing {
        Standing {
            system: 7,
            in_recovery: true,
            timeline: 3,
            is_paused: false,
            behind: Some(-5),
        }
    }

    #[test]
    fn only_a_replica_of_this_history_that_has_come_so_far_will_do() {
        assert_eq!(judge(&fence(), &there()), Judged::There);
        // It stands where it must, and goes no further: that is no matter.
        let paused = Standing {
            is_paused: true,
            ..there()
        };
        assert_eq!(judge(&fence(), &paused), Judged::There);
        let never = |standing: Standing, part: &str| {
            let judged = judge(&fence(), &standing);
            assert!(
                matches!(&judged, Judged::Never(why) if why.contains(part)),
                "{judged:?}"
            );
        };
        never(Standing { system: 8, ..there() }, "another system: 8 and not 7");
        never(
            Standing {
                timeline: 4,
                ..there()
            },
            "another timeline: 4 and not 3",
        );
        never(
            Standing {
                in_recovery: false,
                behind: None,
                ..there()
            },
            "promoted",
        );
        let wait = |standing: Standing, part: &str| {
            let judged = judge(&fence(), &standing);
            assert!(
                matches!(&judged, Judged::Wait(why) if why.contains(part)),
                "{judged:?}"
            );
        };
        let behind = Standing {
            behind: Some(9),
            ..there()
        };
        wait(behind.clone(), "9 bytes behind");
        wait(
            Standing {
                is_paused: true,
                ..behind.clone()
            },
            "paused",
        );
        wait(
            Standing {
                behind: None,
                ..behind
            },
            "replayed nothing",
        );
    }
}
