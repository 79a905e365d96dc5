//! The configuration: one TOML file with strict keys, and environment overrides on top.
//!
//! Parsed once, into values that are known to fit together. Nothing here reads the environment or a
//! file by itself except [`Config::load`]; tests hand both in.

mod archive;
mod audit;
mod authority;
mod clock;
mod credentials;
mod env;
mod etcd;
mod events;
mod kafka;
mod locks;
mod outbox;
#[cfg(test)]
mod tests;

use self::archive::RawArchive;
use self::audit::RawAudit;
use self::authority::RawAuthority;
use self::clock::RawClock;
use self::events::RawEvents;
use self::kafka::RawKafka;
use self::locks::RawLock;
use self::outbox::RawOutbox;
use crate::error::{Error, Result};
use crate::lease::events::EventsConfig;
use crate::lease::{EtcdSecurity, identities_at_once, ranges};
use crate::postgres::PostgresUrl;
use crate::secret::Secret;
use crate::tls::{Source, TlsFiles};
use idgen_core::lease::{Class, Identity, Reach, Timing, Wanted};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::metadata::LevelFilter;
use tracing_subscriber::filter::Targets;

pub use self::archive::{ArchiveConfig, ArchivePlace, S3Config};
pub use self::audit::AuditConfig;
pub use self::clock::ClockConfig;
pub use self::credentials::Credentials;
pub use self::kafka::KafkaConfig;
pub use self::locks::LockClass;
pub use self::outbox::OutboxConfig;

/// Workers per server at most: with more a single server would take more than an eighth of the half of
/// the pool that an epoch may use.
const WORKERS_MAX: usize = 64;
/// Everything the daemon needs to know, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this daemon, for people.
    pub name: String,
    /// The server that mints.
    pub postgres: PostgresConfig,
    /// Where leases are kept.
    pub store: StoreConfig,
    /// What is leased for the server: at least one class, each at most once.
    pub classes: Vec<ClassConfig>,
    /// Where clients find the shards of this server; empty: not said.
    pub shard_address: String,
    /// Times of the leases that make the server the authority of its segments; `None`: that is not leased.
    pub authority: Option<Timing>,
    /// What commands may run under a lock, by the names of the classes.
    pub locks: BTreeMap<String, LockClass>,
    /// Whether the log of the lease store is followed, and where the trail is written.
    pub events: EventsConfig,
    /// Where events are sent; `None`: nowhere.
    pub kafka: Option<KafkaConfig>,
    /// How events are called, and for how long they are kept.
    pub outbox: OutboxConfig,
    /// Whether events are archived, and where; `None`: they are not.
    pub archive: Option<ArchiveConfig>,
    /// Whether and how databases are audited; `None`: they are not.
    pub audit: Option<AuditConfig>,
    /// What is asked of the clock.
    pub clock: ClockConfig,
    /// Where metrics and health are served; `None`: nowhere.
    pub http_listen: Option<SocketAddr>,
    /// How to log.
    pub log: LogConfig,
}

/// What is leased of one class.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Which class.
    pub class: Class,
    /// Which identities of it. Of shards perhaps none: some may be moved to this server.
    pub wanted: Wanted,
    /// TTL, window, period and margin.
    pub timing: Timing,
}

/// The server that mints.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    /// Parsed connection string; its `Debug` hides the password.
    pub url: PostgresUrl,
    /// Limit for connecting, and for each request afterwards.
    pub connect_timeout: Duration,
    /// Time between two looks at the server.
    pub poll: Duration,
}

/// Where leases are kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// Tables of a coordinator database.
    Postgres {
        /// Parsed connection string.
        url: Box<PostgresUrl>,
        /// Limit for connecting.
        connect_timeout: Duration,
        /// Limit for each request.
        request_timeout: Duration,
    },
    /// An etcd cluster.
    Etcd {
        /// Client URLs of its members.
        endpoints: Vec<String>,
        /// Prefix of all keys, without a slash at its end.
        prefix: String,
        /// Limit for connecting, and for each request.
        request_timeout: Duration,
        /// TLS and user.
        security: EtcdSecurity,
        /// Operations that a transaction may have: `--max-txn-ops` of the members.
        txn_ops_max: usize,
    },
}

impl StoreConfig {
    /// How many shards a server can lease in it.
    #[must_use]
    pub fn shard_room(&self) -> usize {
        let all = usize::from(Class::Shard.size());
        match self {
            Self::Postgres { .. } => all,
            Self::Etcd { txn_ops_max, .. } => identities_at_once(*txn_ops_max).min(all),
        }
    }

    /// How it is reached.
    #[must_use]
    pub fn reach(&self) -> Reach {
        let (limit, members) = match self {
            Self::Postgres { request_timeout, .. } => (request_timeout, 1),
            Self::Etcd {
                request_timeout,
                endpoints,
                ..
            } => (request_timeout, endpoints.len()),
        };
        Reach {
            timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            members: members.max(1) as u64,
        }
    }
}

/// How to log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// One JSON object per line instead of text.
    pub json: bool,
    /// Levels, by target.
    pub filter: Targets,
}

/// The file as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    name: Option<String>,
    postgres: RawPostgres,
    store: RawStore,
    workers: RawWorkers,
    shards: RawShards,
    authority: RawAuthority,
    locks: BTreeMap<String, RawLock>,
    events: RawEvents,
    kafka: RawKafka,
    outbox: RawOutbox,
    archive: RawArchive,
    audit: Option<RawAudit>,
    clock: RawClock,
    http: RawHttp,
    log: RawLog,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPostgres {
    url: Option<Secret>,
    connect_timeout_ms: Option<u64>,
    poll_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawStore {
    kind: Option<String>,
    url: Option<Secret>,
    endpoints: Option<Vec<String>>,
    prefix: Option<String>,
    request_timeout_ms: Option<u64>,
    max_txn_ops: Option<u64>,
    ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    username: Option<String>,
    password_file: Option<String>,
    /// From the environment only: a configuration file is read by too many.
    #[serde(skip)]
    password: Option<Secret>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawWorkers {
    count: Option<u64>,
    ttl_ms: Option<u64>,
    window_ms: Option<u64>,
    period_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawShards {
    ids: Option<Vec<RawShard>>,
    address: Option<String>,
    ttl_ms: Option<u64>,
    window_ms: Option<u64>,
    period_ms: Option<u64>,
}

/// One item of `ids`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a number or a range such as \"16-31\"")]
enum RawShard {
    One(i64),
    Range(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHttp {
    listen: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLog {
    format: Option<String>,
    level: Option<String>,
}

impl Config {
    /// Reads a file and this process's environment.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("read {}: {error}", path.display())))?;
        Self::parse(
            &path.display().to_string(),
            &text,
            std::env::vars_os().filter_map(env::utf8),
        )
    }

    /// Reads the certificates, keys and passwords that are named, so that a wrong path is told at the start.
    pub fn check_files(&self) -> Result<()> {
        let mut checked: Checked<()> = self.tls_files().try_for_each(|files| files.read().map(drop));
        if let StoreConfig::Etcd { security, .. } = &self.store {
            checked = checked.and_then(|()| security.read().map(drop));
        }
        if let Some(kafka) = &self.kafka {
            checked = checked.and_then(|()| kafka.check_files());
        }
        checked.map_err(|why| Error::usage(format!("{why} (hint: idgend reads these files as its own user)")))
    }

    /// Our own certificates: those that somebody has to renew in time.
    pub fn client_certificates(&self) -> Vec<PathBuf> {
        let files = self.tls_files().filter_map(|files| files.client.as_ref());
        let kafka = self.kafka.iter().filter_map(KafkaConfig::certificate);
        let certificates: BTreeSet<PathBuf> =
            files.map(|client| &client.cert).chain(kafka).cloned().collect();
        certificates.into_iter().collect()
    }

    /// The files of every connection that has TLS.
    fn tls_files(&self) -> impl Iterator<Item = &TlsFiles> {
        let store = match &self.store {
            StoreConfig::Postgres { url, .. } => url.tls(),
            StoreConfig::Etcd { security, .. } => security.tls.as_ref(),
        };
        let events = self.events.url.tls().filter(|_| self.events.enabled);
        let replica = self.audit.iter().filter_map(|audit| audit.replica.as_ref());
        let replica = replica.filter_map(|url| url.tls());
        self.postgres
            .url
            .tls()
            .into_iter()
            .chain(store)
            .chain(events)
            .chain(replica)
    }

    /// Parses `text`; `file` is how errors call it.
    pub fn parse(file: &str, text: &str, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut raw: RawConfig =
            toml::from_str(text).map_err(|error| Error::usage(locate(file, text, &error)))?;
        env::override_with(&mut raw, vars)?;
        raw.check()
            .map_err(|message| Error::usage(format!("{file}: {message}")))
    }
}

/// `file:line: key: message`. The line itself is not shown: it may hold a password.
fn locate(file: &str, text: &str, error: &toml::de::Error) -> String {
    let message = without_values(error.message());
    let Some(span) = error.span() else {
        return format!("{file}: {message}");
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count();
    let key = text
        .lines()
        .nth(line)
        .and_then(|line| line.split_once('='))
        .map(|(key, _)| key.trim())
        // Within a list or a text of several lines it is no key.
        .filter(|key| {
            key.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        });
    match key.filter(|key| !message.contains(&format!("`{key}`"))) {
        Some(key) => format!("{file}:{}: {key}: {message}", line + 1),
        None => format!("{file}:{}: {message}", line + 1),
    }
}

/// `invalid type: string "…", expected …`: a URL that was put in the place of something else is not quoted.
fn without_values(message: &str) -> String {
    match (message.find("string \""), message.rfind("\", expected")) {
        (Some(from), Some(to)) if from + 8 <= to => {
            format!("{}string{}", &message[..from], &message[to + 1..])
        }
        _ => message.to_owned(),
    }
}

type Checked<T> = std::result::Result<T, String>;

impl RawConfig {
    fn check(self) -> Checked<Config> {
        let url = self.postgres.url.ok_or("postgres.url is missing")?;
        let postgres = PostgresConfig {
            url: parse_url("postgres.url", url.expose())?,
            connect_timeout: millis(
                "postgres.connect_timeout_ms",
                self.postgres.connect_timeout_ms,
                3_000,
            )?,
            poll: millis("postgres.poll_ms", self.postgres.poll_ms, 500)?,
        };
        let store = self.store.check(&postgres)?;
        let classes = check_classes(&self.workers, &self.shards, &store)?;
        let authority = self.authority.check(&postgres, &store)?;
        let locks = locks::check(&self.locks, &store)?;
        let events = self.events.check(&postgres, &store)?;
        let kafka = self.kafka.check()?;
        let outbox = self.outbox.check()?;
        let archive = self.archive.check()?;
        let audit = self.audit.map(RawAudit::check).transpose()?;
        let clock = self.clock.check(&postgres, &store)?;
        Ok(Config {
            name: self.name.map_or_else(host_name, Ok)?,
            postgres,
            store,
            classes,
            shard_address: self.shards.address.unwrap_or_default(),
            authority,
            locks,
            events,
            kafka,
            outbox,
            archive,
            audit,
            clock,
            http_listen: self.http.check()?,
            log: self.log.check()?,
        })
    }
}

impl RawStore {
    fn check(self, postgres: &PostgresConfig) -> Checked<StoreConfig> {
        let request_timeout = millis("store.request_timeout_ms", self.request_timeout_ms, 1_000)?;
        match self.kind.as_deref().unwrap_or("postgres") {
            "postgres" => {
                if let Some((key, _)) = etcd::given(&self).iter().find(|(_, given)| *given) {
                    return Err(format!("store.{key} is for kind = \"etcd\" only"));
                }
                let url = match self.url {
                    Some(url) => parse_url("store.url", url.expose())?,
                    None => postgres.url.clone(),
                };
                let connect_timeout = postgres.connect_timeout;
                Ok(StoreConfig::Postgres {
                    url: Box::new(url),
                    connect_timeout,
                    request_timeout,
                })
            }
            "etcd" => {
                if self.url.is_some() {
                    return Err(
                        "store.url is for kind = \"postgres\" only; etcd takes store.endpoints".into(),
                    );
                }
                let endpoints = self.endpoints.clone().ok_or("store.endpoints is missing")?;
                etcd::check_endpoints(&endpoints)?;
                let security = etcd::check_security(&self, &endpoints)?;
                let txn_ops_max = etcd::check_txn_ops(self.max_txn_ops)?;
                let prefix = self.prefix.unwrap_or_else(|| "/pg_idgen/default".to_owned());
                if !prefix.starts_with('/') || prefix.ends_with('/') {
                    return Err(format!(
                        "store.prefix = \"{prefix}\" must begin, but not end, with a slash"
                    ));
                }
                Ok(StoreConfig::Etcd {
                    endpoints,
                    prefix,
                    request_timeout,
                    security,
                    txn_ops_max,
                })
            }
            other => Err(format!(
                "store.kind = \"{other}\" is neither \"postgres\" nor \"etcd\""
            )),
        }
    }
}

/// What the server is to lease: workers, shards, or both.
fn check_classes(workers: &RawWorkers, shards: &RawShards, store: &StoreConfig) -> Checked<Vec<ClassConfig>> {
    let classes: Vec<ClassConfig> = [workers.check(store)?, shards.check(store)?]
        .into_iter()
        .flatten()
        .collect();
    if classes.iter().all(|class| class.wanted.count() == 0) {
        return Err("workers.count = 0 and shards.ids is empty: there is nothing to lease".into());
    }
    Ok(classes)
}

impl RawWorkers {
    fn check(&self, store: &StoreConfig) -> Checked<Option<ClassConfig>> {
        let count = self.count.unwrap_or(2);
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= WORKERS_MAX)
            .ok_or_else(|| format!("workers.count = {count} is not in 0 to {WORKERS_MAX}"))?;
        etcd::check_count(store, count).map_err(|why| format!("workers.count = {count}: {why}"))?;
        let timing = check_timing(
            Class::Worker,
            store,
            [self.ttl_ms, self.window_ms, self.period_ms],
        )?;
        Ok((count > 0).then_some(ClassConfig {
            class: Class::Worker,
            wanted: Wanted::Any(count),
            timing,
        }))
    }
}

impl RawShards {
    fn check(&self, store: &StoreConfig) -> Checked<Option<ClassConfig>> {
        let identities = self.identities()?;
        let count = identities.len();
        etcd::check_count(store, count).map_err(|why| format!("shards.ids names {count} shards: {why}"))?;
        let timing = check_timing(Class::Shard, store, [self.ttl_ms, self.window_ms, self.period_ms])?;
        // A list without any says that some may come.
        Ok(self.ids.is_some().then_some(ClassConfig {
            class: Class::Shard,
            wanted: Wanted::Listed(identities),
            timing,
        }))
    }

    /// In rising order, whatever the order of the list.
    fn identities(&self) -> Checked<Vec<Identity>> {
        let mut identities = BTreeSet::new();
        for item in self.ids.iter().flatten() {
            let text = match item {
                RawShard::One(number) => number.to_string(),
                RawShard::Range(text) => text.clone(),
            };
            let range =
                ranges::parse(&text, Class::Shard.size()).map_err(|error| format!("shards.ids: {error}"))?;
            for shard in range {
                if !identities.insert(Identity(shard)) {
                    return Err(format!("shards.ids: shard {shard} is named twice"));
                }
            }
        }
        Ok(identities.into_iter().collect())
    }
}

fn check_timing(class: Class, store: &StoreConfig, asked: [Option<u64>; 3]) -> Checked<Timing> {
    let [ttl_ms, window_ms, period_ms] = asked;
    let mut spec = class.timing(ttl_ms);
    spec.window_ms = window_ms.or(spec.window_ms);
    spec.period_ms = period_ms.or(spec.period_ms);
    if matches!(store, StoreConfig::Etcd { .. }) && !spec.ttl_ms.is_multiple_of(1_000) {
        return Err(format!(
            "{class}s.ttl_ms = {}: etcd keeps leases by whole seconds",
            spec.ttl_ms
        ));
    }
    Timing::new(spec).map_err(|error| format!("{class}s.{error}"))
}

impl RawHttp {
    fn check(self) -> Checked<Option<SocketAddr>> {
        let listen = self.listen.unwrap_or_else(|| "127.0.0.1:9787".to_owned());
        if listen.is_empty() {
            return Ok(None);
        }
        let addr = listen.parse().map_err(|_| {
            format!("http.listen = \"{listen}\" is not an address and port such as 127.0.0.1:9787")
        })?;
        Ok(Some(addr))
    }
}

impl RawLog {
    fn check(self) -> Checked<LogConfig> {
        let json = match self.format.as_deref().unwrap_or("human") {
            "human" => false,
            "json" => true,
            other => {
                return Err(format!(
                    "log.format = \"{other}\" is neither \"human\" nor \"json\""
                ));
            }
        };
        let level = self.level.unwrap_or_else(|| "info".to_owned());
        let bad = || format!("log.level = \"{level}\" is not off, error, warn, info, debug or trace");
        let level = level.parse::<LevelFilter>().map_err(|_| bad())?;
        // Below info the transport crates tell about every frame; they stay at info.
        let filter = Targets::new()
            .with_default(level.min(LevelFilter::INFO))
            .with_target("idgen_daemon", level)
            .with_target("idgend", level);
        Ok(LogConfig { json, filter })
    }
}

/// Parses a connection string for a command line; `key` is how errors call it.
pub fn parse_postgres(key: &str, url: &str) -> Result<PostgresUrl> {
    parse_url(key, url).map_err(Error::usage)
}

fn parse_url(key: &str, url: &str) -> Checked<PostgresUrl> {
    url.parse().map_err(|error| format!("{key}: {error}"))
}

/// 10 minutes: anything longer is a slip of the unit.
const MILLIS_MAX: u64 = 600_000;

fn millis(key: &str, given: Option<u64>, default: u64) -> Checked<Duration> {
    let ms = given.unwrap_or(default);
    if !(1..=MILLIS_MAX).contains(&ms) {
        return Err(format!("{key} = {ms} is not in 1 to {MILLIS_MAX}"));
    }
    Ok(Duration::from_millis(ms))
}

fn host_name() -> Checked<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().unwrap_or_default();
    if name.is_empty() {
        Err("name is missing, and the host has none".into())
    } else {
        Ok(name.to_owned())
    }
}
