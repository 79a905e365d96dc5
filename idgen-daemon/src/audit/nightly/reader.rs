//! Reads grants in pages that are small enough to be read again: on a replica any statement may be cancelled because the primary
//! has removed what it looks at.

use super::fence::Proof;
use super::halt::Halt;
use crate::postgres::{PgError, PostgresUrl, Session, describe};
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Of a statement. The longest replica conflict that is waited out by default is three times as long.
const STATEMENT: Duration = Duration::from_secs(10);
/// How often the same page is asked for before a smaller one is.
const TRIES: u32 = 5;
/// Rows of a page at first, and at the least.
const PAGE: i64 = 50_000;
const PAGE_MIN: i64 = 100;
/// Before it is asked again, doubled each time.
const PAUSE: Duration = Duration::from_millis(50);

/// What an audit asks for must not be in the way of others, and must not depend on how the server is tuned.
const SETTINGS: &str = "
    SET default_transaction_read_only = on; SET work_mem = '64MB'; SET jit = off; SET max_parallel_workers_per_gather = 0";

/// A session that reads.
pub struct Reader {
    url: PostgresUrl,
    connect_timeout: Duration,
    session: Option<Session>,
    /// Rows a second, where they are counted.
    rate: Option<u64>,
    page: i64,
    /// Statements that were cancelled and asked again.
    pub retried: u64,
    /// The plan is to follow an index, and never to sort.
    in_order: bool,
    /// What each session has to show before anything of it is believed.
    proof: Option<Proof>,
}

/// Is it worth asking again? A conflict with recovery comes as any of these, and as the end of the session.
fn passes(error: &PgError) -> bool {
    match error {
        PgError::Lost(_) | PgError::Timeout(_) => true,
        PgError::Malformed(_) => false,
        PgError::Refused { sqlstate, .. } => {
            error.is_shutdown() || matches!(sqlstate.code(), "40001" | "40P01" | "57014" | "55P03")
        }
    }
}

impl Reader {
    /// Of a database, not connected yet.
    #[must_use]
    pub fn new(url: PostgresUrl, connect_timeout: Duration, rate: Option<u64>) -> Self {
        Self {
            url,
            connect_timeout,
            session: None,
            rate,
            page: PAGE,
            retried: 0,
            in_order: false,
            proof: None,
        }
    }

    /// From now on each session has to show this: the next one may come to another server, behind a balancer or after a change of
    /// names.
    pub fn prove_each(&mut self, proof: Proof) {
        self.proof = Some(proof);
        self.session = None;
    }

    /// Whether the next statements are to follow an index: a page of a sorted day would sort all of it each time.
    pub async fn set_in_order(&mut self, in_order: bool) {
        self.in_order = in_order;
        // The next one is opened with it.
        self.session = None;
    }

    /// Whether it is one still: who is promoted goes on answering.
    ///
    /// # Errors
    /// It is not.
    pub async fn prove_again(&mut self) -> Result<(), Halt> {
        if self.proof.is_some() {
            self.session = None;
            self.rows("SELECT", &[]).await?;
        }
        Ok(())
    }

    async fn session(&mut self) -> Result<&Session, PgError> {
        if self.session.as_mut().is_none_or(|session| !session.is_usable()) {
            let opened = Session::open(&self.url, "idgend audit", self.connect_timeout, STATEMENT).await?;
            opened.batch(SETTINGS).await?;
            if self.in_order {
                opened.batch("SET enable_sort = off").await?;
            }
            if let Some(proof) = &self.proof {
                proof.check(&opened).await?;
            }
            self.session = Some(opened);
        }
        self.session
            .as_ref()
            .ok_or_else(|| PgError::Lost("there is no session".to_owned()))
    }

    async fn once(&mut self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, PgError> {
        let asked = self.session().await?.rows_typed(sql, params).await;
        if let Err(error) = &asked
            && !matches!(error, PgError::Refused { .. })
        {
            self.session = None;
        }
        asked
    }

    /// Asks once, and says what came of it.
    ///
    /// # Errors
    /// As Postgres says.
    pub async fn try_rows(
        &mut self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, PgError> {
        self.once(sql, params).await
    }

    /// Asks until there is an answer.
    ///
    /// # Errors
    /// There was none five times in a row.
    pub async fn rows(
        &mut self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Halt> {
        match self.insist(sql, params).await {
            Ok(rows) => Ok(rows),
            Err(error) => Err(self.given_up(&error)),
        }
    }

    async fn insist(
        &mut self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, PgError> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.once(sql, params).await {
                Err(error) if passes(&error) => {
                    tracing::debug!("audit: asked again: {error}");
                    self.retried += 1;
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
        self.once(sql, params).await
    }

    fn given_up(&self, error: &PgError) -> Halt {
        if let PgError::Malformed(why) = error {
            return Halt::Inconclusive(why.clone());
        }
        Halt::Inconclusive(format!(
            "{} could not be read, {TRIES} times in a row: {error}",
            describe(&self.url)
        ))
    }

    /// The next page of something that `ask` asks for, whose last parameter is how many rows it may have. One that is cancelled
    /// again and again is cut in half. Returns the rows, and whether there may be more.
    ///
    /// # Errors
    /// Not even a small one was to be had.
    pub async fn page(
        &mut self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<(Vec<Row>, bool), Halt> {
        let began = Instant::now();
        loop {
            // Of a second at the most, so that it is read evenly.
            let limit = self
                .rate
                .map_or(self.page, |rate| self.page.min(rate.cast_signed()));
            let mut all = params.to_vec();
            all.push((&limit, Type::INT8));
            match self.insist(sql, &all).await {
                Ok(rows) => {
                    let is_full = rows.len() as u64 >= limit.cast_unsigned();
                    self.page = (self.page * 2).min(PAGE);
                    self.pace(rows.len(), began).await;
                    return Ok((rows, is_full));
                }
                Err(error) if passes(&error) && self.page > PAGE_MIN => {
                    self.page = (self.page / 2).max(PAGE_MIN);
                }
                Err(error) => return Err(self.given_up(&error)),
            }
        }
    }

    /// Others have the primary too.
    async fn pace(&self, rows: usize, began: Instant) {
        let Some(rate) = self.rate else { return };
        let wanted = Duration::from_secs_f64(rows as f64 / rate as f64);
        tokio::time::sleep(wanted.saturating_sub(began.elapsed())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::error::SqlState;

    #[test]
    fn what_a_conflict_with_recovery_looks_like_is_asked_again_and_a_mistake_is_not() {
        let refused = |code: &str| PgError::Refused {
            sqlstate: SqlState::from_code(code),
            message: String::new(),
        };
        for code in ["40001", "57014", "57P01", "57P03", "40P01", "55P03"] {
            assert!(passes(&refused(code)), "{code}");
        }
        for code in ["42501", "42P01", "22023", "53200"] {
            assert!(!passes(&refused(code)), "{code}");
        }
        assert!(passes(&PgError::Lost(String::new())) && passes(&PgError::Timeout(STATEMENT)));
    }
}
