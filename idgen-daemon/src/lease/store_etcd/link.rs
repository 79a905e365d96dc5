//! The way to the members: one client at a time, with TLS and user where they are configured, and what an error means.

use super::super::store::{StoreError, StoreErrorKind};
use crate::secret::Secret;
use crate::tls::{self, Material, Source, TlsFiles, Watch};
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

type Result<T> = std::result::Result<T, StoreError>;

/// HTTP/2 pings while a request waits: a member that went away without a word is noticed after twice this. Not while
/// none does: etcd takes pings of an idle connection for abuse and ends it at the fourth, and a request that is
/// sent at that moment fails (seen with 3.4.23).
const PING: Duration = Duration::from_secs(2);

/// How the members are trusted, and how they trust us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdSecurity {
    /// `None`: the members are reached without TLS.
    pub tls: Option<TlsFiles>,
    /// `None`: nobody, or whom the client certificate names.
    pub user: Option<EtcdUser>,
}

impl EtcdSecurity {
    /// Whom etcd takes us for, where it asks for users: it believes a password before a certificate.
    pub(super) fn user_name(&self) -> std::result::Result<String, String> {
        if let Some(user) = &self.user {
            return Ok(user.name.clone());
        }
        let identity = self.tls.as_ref().map(Source::read).transpose()?;
        let (cert, _) = identity
            .and_then(|material| material.identity)
            .ok_or("neither a user nor a client certificate is given")?;
        tls::common_name(&cert)
    }
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: Password,
}

/// Where a password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// From the environment.
    Given(Secret),
    /// From a file, read with every connection; one line end at its end is not part of it.
    File(PathBuf),
}

impl Password {
    /// One that is known.
    #[must_use]
    pub fn given(password: String) -> Self {
        Self::Given(Secret::from(password))
    }

    /// What it is now.
    ///
    /// # Errors
    /// The file cannot be read, is open to others, or is empty.
    pub fn read(&self) -> std::result::Result<Secret, String> {
        let path = match self {
            Self::Given(password) => return Ok(password.clone()),
            Self::File(path) => path,
        };
        let content = String::from_utf8(tls::read_secret(path)?)
            .map_err(|_| format!("{} is not UTF-8", path.display()))?;
        let password = content.strip_suffix('\n').unwrap_or(&content);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() {
            return Err(format!("{} is empty", path.display()));
        }
        Ok(Secret::from(password.to_owned()))
    }
}

/// What the security's files say at one moment.
#[derive(PartialEq)]
pub struct Credentials {
    tls: Option<Material>,
    password: Option<Secret>,
}

impl Source for EtcdSecurity {
    type Content = Credentials;

    fn read(&self) -> std::result::Result<Credentials, String> {
        let tls = self.tls.as_ref().map(Source::read).transpose()?;
        let password = self.user.as_ref().map(|user| user.password.read()).transpose()?;
        Ok(Credentials { tls, password })
    }
}

/// What a failed request means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It reads, or what it makes is of no consequence.
    None,
    /// It may have been done when no answer came.
    Unknown,
}

/// See the module. One client per endpoint, so that "try another member" can be steered.
pub(super) struct Link {
    endpoints: Vec<String>,
    security: EtcdSecurity,
    limit: Duration,
    /// A key that is read to see whether a new connection works.
    probe: String,
    endpoint: usize,
    client: Option<Client>,
    /// What the client was made with.
    made_with: Option<Watch<EtcdSecurity>>,
    /// How many were made.
    connection: u64,
}

impl Link {
    /// Connects with the first request.
    pub(super) fn new(
        endpoints: Vec<String>,
        security: EtcdSecurity,
        limit: Duration,
        probe: String,
    ) -> Self {
        Self {
            endpoints,
            security,
            limit,
            probe,
            endpoint: 0,
            client: None,
            made_with: None,
            connection: 0,
        }
    }

    /// Tells one connection from the next: whoever listens on an older one has been left behind.
    pub(super) fn connection(&self) -> u64 {
        self.connection
    }

    /// A client that works, or did at its last request.
    pub(super) async fn client(&mut self) -> Result<Client> {
        let changed = self.made_with.as_mut().is_some_and(Watch::has_changed);
        if let Some(client) = self.client.clone() {
            if !changed {
                return Ok(client);
            }
            // Certificates are exchanged on both sides, never at one moment: what works is kept until the new do.
            match self.connect().await {
                Ok(()) => tracing::info!(
                    "the certificates or the password have changed; connected with the new ones"
                ),
                Err(error) => {
                    tracing::warn!(
                        "with the new certificates or password: {error}; going on with the old connection"
                    );
                    return Ok(client);
                }
            }
        } else if let Err(error) = self.connect().await {
            self.next_member();
            return Err(error);
        }
        let connected = self.client.clone();
        connected.ok_or_else(|| StoreError::new(StoreErrorKind::Unreachable, "no connection"))
    }

    /// Runs one request under the limit. After an error the next member is tried.
    pub(super) async fn request<T>(
        &mut self,
        effect: Effect,
        request: impl Future<Output = std::result::Result<T, Error>>,
    ) -> Result<T> {
        let answer = self.limited(effect, request).await;
        if answer.is_err() {
            self.rotate();
        }
        answer
    }

    /// Leaves this connection, if it was not left already; the next one is to the next member.
    pub(super) fn rotate(&mut self) {
        if self.client.take().is_some() {
            self.made_with = None;
            self.next_member();
        }
    }

    fn next_member(&mut self) {
        self.endpoint = (self.endpoint + 1) % self.endpoints.len().max(1);
    }

    fn address(&self) -> &str {
        self.endpoints.get(self.endpoint).map_or("", String::as_str)
    }

    async fn limited<T>(
        &self,
        effect: Effect,
        request: impl Future<Output = std::result::Result<T, Error>>,
    ) -> Result<T> {
        let failed = match tokio::time::timeout(self.limit, request).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => classify(effect, &error),
            Err(_) => {
                let kind = if effect == Effect::None {
                    StoreErrorKind::Unreachable
                } else {
                    StoreErrorKind::Unknown
                };
                StoreError::new(kind, format!("no answer within {} ms", self.limit.as_millis()))
            }
        };
        Err(self.named(failed))
    }

    fn named(&self, error: StoreError) -> StoreError {
        StoreError::new(error.kind, format!("etcd {}: {}", self.address(), error.message))
    }

    /// A new client, which has had an answer. So a request that may have an effect is never the one that finds out
    /// that there is no connection.
    async fn connect(&mut self) -> Result<()> {
        let denied = |why| self.named(StoreError::new(StoreErrorKind::Denied, why));
        let credentials = self.security.read().map_err(denied)?;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.limit)
            .with_timeout(self.limit)
            .with_keep_alive(PING, PING)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let (Some(files), Some(material)) = (&self.security.tls, &credentials.tls) {
            files.check_expiry(material, SystemTime::now()).map_err(denied)?;
            options = options.with_tls(tls_options(material));
        }
        match self.proven(options, &credentials).await {
            Ok(client) => self.client = Some(client),
            Err(error) => return Err(self.diagnosed(error, &credentials).await),
        }
        self.made_with = Some(Watch::new(self.security.clone(), credentials));
        self.connection += 1;
        Ok(())
    }

    /// A client that has had an answer.
    async fn proven(&self, options: ConnectOptions, credentials: &Credentials) -> Result<Client> {
        let client = self.authenticated(options, credentials).await?;
        let probe = async { client.kv_client().get(self.probe.as_str(), None).await };
        self.limited(Effect::None, probe).await?;
        Ok(client)
    }

    /// With what TLS objects to, if that is why nothing was answered.
    async fn diagnosed(&self, error: StoreError, credentials: &Credentials) -> StoreError {
        let Some(material) = credentials
            .tls
            .as_ref()
            .filter(|_| error.kind == StoreErrorKind::Unreachable)
        else {
            return error;
        };
        let diagnosis = tls::diagnose(self.address(), material);
        match tokio::time::timeout(self.limit, diagnosis).await {
            Ok(Some(why)) => self.named(StoreError::new(StoreErrorKind::Denied, why)),
            _ => error,
        }
    }

    async fn authenticated(&self, options: ConnectOptions, credentials: &Credentials) -> Result<Client> {
        let connect = |options| Client::connect([self.address()], Some(options));
        let (Some(user), Some(password)) = (&self.security.user, &credentials.password) else {
            return self.limited(Effect::None, connect(options)).await;
        };
        let with_user = options.clone().with_user(&user.name, password.expose());
        match tokio::time::timeout(self.limit, connect(with_user)).await {
            // Users are known, but nobody has to be one (yet).
            Ok(Err(error)) if is_auth_off(&error) => self.limited(Effect::None, connect(options)).await,
            Ok(answer) => self.limited(Effect::None, async { answer }).await,
            Err(_) => self.limited(Effect::None, std::future::pending()).await,
        }
    }
}

fn tls_options(material: &Material) -> TlsOptions {
    let options = TlsOptions::new().ca_certificate(Certificate::from_pem(&material.ca));
    match &material.identity {
        Some((cert, key)) => options.identity(Identity::from_pem(cert, key)),
        None => options,
    }
}

// Codes as in the gRPC specification, because the client library does not export the type.
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;
/// The server says that it did nothing.
const DENIED: [i32; 6] = [
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    FAILED_PRECONDITION,
    UNIMPLEMENTED,
    UNAUTHENTICATED,
];

fn is_auth_off(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if i32::from(status.code()) == FAILED_PRECONDITION
        && status.message().contains("authentication is not enabled"))
}

/// gRPC says by its code whether a server may have acted; a handshake that failed, that none was asked.
fn classify(effect: Effect, error: &Error) -> StoreError {
    let (code, message, source): (_, _, &(dyn std::error::Error + 'static)) = match error {
        Error::GRpcStatus(status) => (i32::from(status.code()), status.message().to_owned(), status),
        Error::TransportError(transport) => (2, transport.to_string(), transport),
        other => (2, other.to_string(), other),
    };
    let handshake = tls::explain(source);
    let denied = DENIED.contains(&code) || (effect == Effect::None && handshake.is_some());
    let kind = if denied {
        StoreErrorKind::Denied
    } else if effect == Effect::Unknown {
        StoreErrorKind::Unknown
    } else {
        StoreErrorKind::Unreachable
    };
    let message = match (handshake, hint(code, &message)) {
        (Some(handshake), _) => handshake,
        (None, Some(hint)) => format!("{message} (hint: {hint})"),
        (None, None) => message,
    };
    StoreError::new(kind, message)
}

/// What can be done about what the server says. The texts are etcd's own, of `rpctypes`; an unknown one has no hint.
fn hint(code: i32, message: &str) -> Option<&'static str> {
    let known: [(i32, &str, &str); 7] = [
        (
            PERMISSION_DENIED,
            "permission denied",
            "give the role of this user readwrite on the configured prefix: etcdctl role grant-permission --prefix \
             ROLE readwrite PREFIX/",
        ),
        (
            INVALID_ARGUMENT,
            "user name is empty",
            "authentication was switched on: set store.username and store.password_file, or a client certificate whose \
             common name is the user",
        ),
        (
            INVALID_ARGUMENT,
            "invalid user ID or password",
            "compare store.username and the password with the user in etcd",
        ),
        (
            INVALID_ARGUMENT,
            "revision of auth store is old",
            "users or roles were changed; the next connection takes a new token",
        ),
        (
            INVALID_ARGUMENT,
            "too many operations in txn",
            "--max-txn-ops of a member is below store.max_txn_ops (128 by default): raise it on every member, or lower the \
             key and lease less",
        ),
        (
            UNAUTHENTICATED,
            "invalid auth token",
            "the token has expired; the next connection takes a new one",
        ),
        (
            RESOURCE_EXHAUSTED,
            "database space exceeded",
            "the NOSPACE alarm is on, etcd writes nothing: compact and defragment it, or raise \
             --quota-backend-bytes, then etcdctl alarm disarm",
        ),
    ];
    known
        .into_iter()
        .find(|(of, text, _)| *of == code && message.contains(text))
        .map(|(_, _, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever listens leaves a connection after every error, whether there is one or not.
    #[tokio::test]
    async fn a_member_that_cannot_be_reached_is_left_once_for_the_next_one() {
        let nobody = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(str::to_owned);
        let (security, limit) = (EtcdSecurity::default(), Duration::from_secs(10));
        let mut link = Link::new(nobody.to_vec(), security, limit, "cell".to_owned());
        for next in [&nobody[1], &nobody[0], &nobody[1]] {
            assert!(link.client().await.is_err());
            link.rotate();
            assert_eq!(link.address(), next);
        }
        assert_eq!(link.connection(), 0);
    }
}
