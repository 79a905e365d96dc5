//! Who drains a queue: a row of `idgen.drain_lease`, with an epoch that rises whenever it changes hands.
//!
//! It is no lock of a session, which a pooler would leak, and it needs nobody's clock but that of the database. What is marked
//! under an epoch that has passed is refused. Two who drain at once for a moment are no harm beyond copies: each sends in
//! order what the table shows.

use super::rows::{column, retry};
use crate::error::Result;
use crate::postgres::Session;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Whoever has died is followed after so long.
const TTL: Duration = Duration::from_secs(15);
const TTL_S: f64 = 15.0;
/// Between renewals.
const PERIOD: Duration = Duration::from_secs(4);

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// `idgen.audit_event`.
    Segment,
    /// `idgen.lease_event`.
    Lease,
    /// No queue: the audits of the database.
    Audit,
}

impl Stream {
    /// As the table calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Lease => "lease",
            Self::Audit => "audit",
        }
    }
}

/// Who we are.
#[derive(Clone, Debug)]
pub struct Holder {
    /// This run of the daemon.
    pub instance: Uuid,
    /// For people.
    pub name: String,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Of which queue.
    pub stream: Stream,
    /// By whom.
    pub instance: Uuid,
    /// Raised whenever it changes hands.
    pub epoch: i64,
}

/// What belongs into the `WHERE` of whatever is written under a lease: `$1` stream, `$2` epoch, `$3` instance.
pub(crate) const IN_FORCE: &str = "EXISTS (SELECT FROM idgen.drain_lease l
    WHERE l.stream = $1 AND l.epoch = $2 AND l.holder = $3 AND l.expires > clock_timestamp())";

/// A row whose holder is us is taken anew too: what we knew under the epoch before is gone.
const TAKE: &str = "
    UPDATE idgen.drain_lease
       SET epoch = epoch + 1, holder = $2, holder_name = $3, expires = clock_timestamp() + $4 * interval '1 second'
     WHERE stream = $1 AND (expires <= clock_timestamp() OR holder IS NULL OR holder = $2)
    RETURNING epoch, asked";

const RENEW: &str = "
    UPDATE idgen.drain_lease SET expires = clock_timestamp() + $4 * interval '1 second'
     WHERE stream = $1 AND epoch = $2 AND holder = $3 AND expires > clock_timestamp()
    RETURNING asked";

const GIVE_BACK: &str = "
    UPDATE idgen.drain_lease SET holder = NULL, expires = 'epoch'
     WHERE stream = $1 AND epoch = $2 AND holder = $3";

/// A lease of a queue, as far as we know.
#[derive(Debug)]
pub struct Lease {
    stream: Stream,
    holder: Holder,
    held: Option<(Held, Instant)>,
    asked: i64,
}

impl Lease {
    /// Not held.
    #[must_use]
    pub fn new(stream: Stream, holder: Holder) -> Self {
        Self {
            stream,
            holder,
            held: None,
            asked: 0,
        }
    }

    /// What is held, as of the last request.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.held.map(|(held, _)| held)
    }

    /// How often somebody had asked, as of the last renewal, for what was handed on to be handed on once more.
    #[must_use]
    pub fn asked(&self) -> i64 {
        self.asked
    }

    /// Takes or renews it, where that is due. `None`: another one has it.
    ///
    /// # Errors
    /// Postgres did not answer, or refused.
    pub async fn keep(&mut self, session: &Session) -> Result<Option<Held>> {
        // Before the request: nothing is trusted that was measured after it.
        let asked = Instant::now();
        match self.held {
            Some((held, since)) if asked.duration_since(since) < PERIOD => Ok(Some(held)),
            Some((held, _)) => {
                let renewed = self.renew(session, held).await?;
                self.held = renewed.then_some((held, asked));
                Ok(self.held())
            }
            None => {
                let epoch = self.take(session).await?;
                self.held = epoch.map(|epoch| {
                    let (stream, instance) = (self.stream, self.holder.instance);
                    let held = Held {
                        stream,
                        instance,
                        epoch,
                    };
                    (held, asked)
                });
                Ok(self.held())
            }
        }
    }

    async fn take(&mut self, session: &Session) -> Result<Option<i64>> {
        let (stream, instance) = (self.stream.name(), self.holder.instance);
        let taken = session
            .rows_typed(
                TAKE,
                &[
                    (&stream, Type::TEXT),
                    (&instance, Type::UUID),
                    (&self.holder.name, Type::TEXT),
                    (&TTL_S, Type::FLOAT8),
                ],
            )
            .await
            .map_err(retry)?;
        let Some(row) = taken.first() else { return Ok(None) };
        self.asked = column(row, 1)?;
        column(row, 0).map(Some)
    }

    async fn renew(&mut self, session: &Session, held: Held) -> Result<bool> {
        let stream = held.stream.name();
        let renewed = session
            .rows_typed(
                RENEW,
                &[
                    (&stream, Type::TEXT),
                    (&held.epoch, Type::INT8),
                    (&held.instance, Type::UUID),
                    (&TTL_S, Type::FLOAT8),
                ],
            )
            .await
            .map_err(retry)?;
        let Some(row) = renewed.first() else {
            return Ok(false);
        };
        self.asked = column(row, 0)?;
        Ok(true)
    }

    /// Is it still in force? Asks, whatever was known.
    ///
    /// # Errors
    /// Postgres did not answer, or refused.
    pub async fn confirm(&mut self, session: &Session) -> Result<bool> {
        let Some((held, _)) = self.held else {
            return Ok(false);
        };
        let asked = Instant::now();
        let renewed = self.renew(session, held).await?;
        self.held = renewed.then_some((held, asked));
        Ok(renewed)
    }

    /// It may have passed to somebody else: nothing more is to be done under it.
    #[must_use]
    pub fn has_run_out(&self) -> bool {
        self.held.is_some_and(|(_, since)| since.elapsed() >= TTL)
    }

    /// Forgets it: it runs out by itself.
    pub fn forget(&mut self) {
        self.held = None;
    }

    /// Gives it back, so that the next one need not wait.
    ///
    /// # Errors
    /// Postgres did not answer; then it runs out.
    pub async fn give_back(&mut self, session: &Session) -> Result<()> {
        let Some((held, _)) = self.held.take() else {
            return Ok(());
        };
        let stream = held.stream.name();
        session
            .execute_typed(
                GIVE_BACK,
                &[
                    (&stream, Type::TEXT),
                    (&held.epoch, Type::INT8),
                    (&held.instance, Type::UUID),
                ],
            )
            .await
            .map_err(retry)?;
        Ok(())
    }
}
