//! One session, and the errors it can end in.

use super::url::PostgresUrl;
use crate::error::with_causes;
use crate::tls::{self, Source, TlsFiles};
use rustls::ClientConfig;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What went wrong, by what is known afterwards.
#[derive(Debug)]
pub enum PgError {
    /// No connection, or it broke: what was asked for may or may not have been done.
    Lost(String),
    /// No answer within the limit; the connection is closed for it.
    Timeout(Duration),
    /// The server refused: nothing was done.
    Refused {
        /// Five characters.
        sqlstate: SqlState,
        /// Message, and the detail and hint where there are any.
        message: String,
    },
    /// The server answered something that cannot be.
    Malformed(String),
}

impl fmt::Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(message) | Self::Malformed(message) => f.write_str(message),
            Self::Timeout(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Self::Refused { sqlstate, message } => write!(f, "{message} (SQLSTATE {})", sqlstate.code()),
        }
    }
}

impl std::error::Error for PgError {}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(db) => Self::Refused {
                sqlstate: db.code().clone(),
                message: refusal(db.message(), db.detail(), db.hint()),
            },
            None => Self::Lost(tls::explain(&error).unwrap_or_else(|| with_causes(&error))),
        }
    }
}

impl PgError {
    /// The server's code; `None` when it did not answer.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Refused { sqlstate, .. } => Some(sqlstate.code()),
            _ => None,
        }
    }

    /// Class 57P: the server is shutting down, crashing or starting. The session is over, whatever the
    /// statement did.
    pub fn is_shutdown(&self) -> bool {
        self.sqlstate().is_some_and(|code| code.starts_with("57P"))
    }
}

/// What the server says, as one line: the detail is where it says which of several reasons it is.
fn refusal(message: &str, detail: Option<&str>, hint: Option<&str>) -> String {
    let mut text = message.to_owned();
    if let Some(detail) = detail {
        text.push_str(": ");
        text.push_str(detail);
    }
    if let Some(hint) = hint {
        text.push_str(&format!(" (hint: {hint})"));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// User, host, port and database of a connection string; never its password.
pub fn describe(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let ports = config.get_ports();
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                Host::Unix(dir) => format!("{}:{port}", dir.display()),
            }
        })
        .collect();
    let user = config.get_user().unwrap_or_default();
    format!(
        "{user}@{}/{}",
        hosts.join(","),
        config.get_dbname().unwrap_or(user)
    )
}

/// Pinned so that nobody's ALTER ROLE or ALTER DATABASE changes what the daemon does. Synchronous
/// commit: an answer of the store must outlive a crash. The server's limits come before ours, because
/// what it says about a statement it gave up is worth more than silence.
fn pinned_settings(limit: Duration) -> String {
    let limit_ms = limit.as_millis();
    format!(
        "SET synchronous_commit = on; SET search_path = pg_catalog; SET TimeZone = 'UTC'; \
         SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
         SET default_transaction_deferrable = off; SET client_min_messages = warning; \
         SET statement_timeout = {limit_ms}; SET lock_timeout = {limit_ms}; \
         SET idle_in_transaction_session_timeout = {}",
        limit_ms * 2
    )
}

/// A connection with its driver. Dropping it closes the socket.
pub struct Session {
    client: Client,
    driver: JoinHandle<()>,
    warnings: Arc<AtomicU64>,
    limit: Duration,
    certificates: Option<tls::Watch<TlsFiles>>,
    notifications: mpsc::Receiver<String>,
    files_at: Instant,
}

/// Between two looks at the certificates of a session that nobody uses.
const FILES_PERIOD: Duration = Duration::from_secs(2);

/// Notifications that may wait for whoever listens. More than that are lost, so whoever listens looks now and then.
const NOTIFICATIONS_MAX: usize = 256;

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    /// Connects and pins the session's settings. The server gives up a statement after `limit`; a quarter
    /// later so do we.
    pub async fn open(
        url: &PostgresUrl,
        application_name: &str,
        connect_timeout: Duration,
        limit: Duration,
    ) -> Result<Self, PgError> {
        let session = Self::open_stateless(url, application_name, connect_timeout, limit).await?;
        session.batch(&pinned_settings(limit)).await?;
        Ok(session)
    }

    /// Connects, and leaves nothing behind in the server: for whoever may be behind a pooler that gives each transaction
    /// another session. Use [`Session::rows_typed`] and [`Session::execute_typed`] alone with it: the others prepare
    /// statements by name.
    pub async fn open_stateless(
        url: &PostgresUrl,
        application_name: &str,
        connect_timeout: Duration,
        limit: Duration,
    ) -> Result<Self, PgError> {
        let mut config = Config::clone(url);
        config
            .application_name(application_name)
            .connect_timeout(connect_timeout)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
        // The parameter covers the socket only; a stopped server accepts and never answers.
        let warnings = Arc::new(AtomicU64::new(0));
        let (heard, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let ears = Ears {
            warnings: Arc::clone(&warnings),
            heard,
        };
        let late = |_| PgError::Timeout(connect_timeout);
        let (client, driver, certificates) = match url.tls() {
            None => {
                let connecting = tokio::time::timeout(connect_timeout, config.connect(NoTls));
                let (client, connection) = connecting.await.map_err(late)??;
                (client, tokio::spawn(drive(connection, ears)), None)
            }
            Some(files) => {
                let material = files.read().map_err(PgError::Lost)?;
                files
                    .check_expiry(&material, SystemTime::now())
                    .map_err(PgError::Lost)?;
                let encrypted = MakeRustlsConnect::new(ClientConfig::clone(&material.config));
                let connecting = tokio::time::timeout(connect_timeout, config.connect(encrypted));
                let (client, connection) = connecting.await.map_err(late)??;
                let certificates = tls::Watch::new(files.clone(), material);
                (client, tokio::spawn(drive(connection, ears)), Some(certificates))
            }
        };
        Ok(Self {
            client,
            driver,
            warnings,
            limit: limit + limit / 4,
            certificates,
            notifications,
            files_at: Instant::now() + FILES_PERIOD,
        })
    }

    /// Runs one query without a name, with parameters of these types.
    pub async fn rows_typed(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, PgError> {
        self.limited(self.client.query_typed(sql, params)).await
    }

    /// The same for a statement; returns how many rows it changed.
    pub async fn execute_typed(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<u64, PgError> {
        self.limited(self.client.execute_typed(sql, params)).await
    }

    /// Runs statements that return nothing.
    pub async fn batch(&self, sql: &str) -> Result<(), PgError> {
        self.limited(self.client.batch_execute(sql)).await
    }

    /// Runs one query.
    pub async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, PgError> {
        self.limited(self.client.query(sql, params)).await
    }

    /// Runs one statement; returns how many rows it changed.
    pub async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64, PgError> {
        self.limited(self.client.execute(sql, params)).await
    }

    /// Runs one query that returns exactly one row.
    pub async fn row(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row, PgError> {
        let mut rows = self.rows(sql, params).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            _ => Err(PgError::Malformed("expected exactly one row".to_owned())),
        }
    }

    /// WARNINGs received so far. One of them tells that a wait for synchronous replication was given
    /// up, so whoever commits compares the number before and after.
    pub fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }

    /// False once the connection has ended, or was made with certificates that others have replaced since.
    pub fn is_usable(&mut self) -> bool {
        let replaced = self.certificates.as_mut().is_some_and(tls::Watch::has_changed);
        if replaced {
            tracing::info!("the certificates have changed; connecting anew with them");
        }
        !replaced && !self.client.is_closed()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&mut self) {
        // A panic of the driver ends the connection as well.
        let _ = (&mut self.driver).await;
    }

    /// The same for whoever has not used it for a while, and asks often: the files are looked at now and then.
    pub fn is_usable_still(&mut self) -> bool {
        if Instant::now() < self.files_at {
            return true;
        }
        self.files_at = Instant::now() + FILES_PERIOD;
        self.is_usable()
    }

    /// The payload of the next notification of a channel that is listened to; `None`: the session is of no use any more.
    /// Nothing is lost where it is given up waiting.
    pub async fn notified(&mut self) -> Option<String> {
        while self.is_usable_still() {
            tokio::select! {
                told = self.notifications.recv() => return told,
                () = tokio::time::sleep_until(self.files_at) => {}
            }
        }
        None
    }

    /// Those that have come in so far: whoever looks at everything now needs none of them.
    pub fn forget_notifications(&mut self) {
        while self.notifications.try_recv().is_ok() {}
    }

    async fn limited<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, PgError> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(answer) => Ok(answer?),
            Err(_) => {
                // Answers are paired with requests by order; after one is given up the session is over.
                self.driver.abort();
                Err(PgError::Timeout(self.limit))
            }
        }
    }
}

/// What comes over a connection beside answers.
struct Ears {
    warnings: Arc<AtomicU64>,
    heard: mpsc::Sender<String>,
}

impl Ears {
    /// Counts the WARNINGs, and hands notifications on.
    fn hear(&self, message: AsyncMessage) {
        match message {
            AsyncMessage::Notice(notice) if notice.severity() == "WARNING" => {
                tracing::warn!(
                    sqlstate = notice.code().code(),
                    "postgres warns: {}",
                    notice.message()
                );
                self.warnings.fetch_add(1, Ordering::SeqCst);
            }
            AsyncMessage::Notification(told) => {
                // Never waited for: answers come over the same connection.
                let _ = self.heard.try_send(told.payload().to_owned());
            }
            _ => {}
        }
    }
}

/// Runs a connection to its end.
async fn drive<S, T>(mut connection: Connection<S, T>, ears: Ears)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        ears.hear(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_detail_in_one_line() {
        assert_eq!(refusal("busy", None, None), "busy");
        assert_eq!(
            refusal(
                "id format mismatch",
                Some("This server's workers mint \"a\";\n  the plan \"b\" does not follow from it."),
                Some("Restart Postgres."),
            ),
            "id format mismatch: This server's workers mint \"a\"; the plan \"b\" does not follow from it. (hint: \
             Restart Postgres.)"
        );
    }
}
