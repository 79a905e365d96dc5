//! `[kafka]`: where events are sent, and read again by the archiver. Shared by both, which add what each of them needs.

use super::Checked;
use crate::error::{Error, Result};
use crate::lease::Password;
use crate::secret::Secret;
use crate::tls::ClientFiles;
#[cfg(feature = "outbox")]
use rdkafka::ClientConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Topic unless configured.
const TOPIC: &str = "idgen.audit";
/// Kafka's own limit.
const TOPIC_LEN_MAX: usize = 249;
/// Without an acknowledgement for so long, while a broker is connected, the producer is made anew.
const ACK_TIMEOUT_MS: u64 = 60_000;
/// What a broker takes by default, in one message.
const MESSAGE_BYTES: u64 = 1_000_000;
const MESSAGE_BYTES_MAX: u64 = 8_000_000;

/// What promises rest on, and what has a key of its own: not to be set by `properties`. Whole names, or beginnings with `*`.
const OURS: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "assignor",
    "auto.offset.reset",
    "bootstrap.servers",
    "delivery.*",
    "dr_*",
    "enable.*",
    "fetch.*",
    "group.*",
    "isolation.level",
    "max.in.flight*",
    "message.*",
    "metadata.broker.list",
    "partitioner",
    "queue*",
    "request.required.acks",
    "retries",
    "sasl.*",
    "security.protocol",
    "ssl.ca.*",
    "ssl.certificate.*",
    "ssl.key.*",
    "ssl.keystore.*",
    "test.*",
    "transaction*",
];

/// How Kafka is reached.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// The topic of all events.
    pub topic: String,
    /// Without an acknowledgement for so long, while a broker is connected, the producer is made anew.
    pub ack_timeout: Duration,
    /// Longest message; what is longer is sent as a stub.
    pub message_bytes_max: usize,
    tls: Option<KafkaTls>,
    sasl: Option<Sasl>,
    properties: BTreeMap<String, String>,
}

/// TLS of librdkafka, which reads the files by itself.
#[derive(Clone, Debug)]
struct KafkaTls {
    /// Whom to believe.
    ca: PathBuf,
    /// Who we are.
    client: Option<ClientFiles>,
}

/// A user of the brokers.
#[derive(Clone, Debug)]
struct Sasl {
    mechanism: String,
    username: String,
    password: Password,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawKafka {
    pub(super) brokers: Option<Vec<String>>,
    pub(super) topic: Option<String>,
    pub(super) ack_timeout_ms: Option<u64>,
    pub(super) max_message_bytes: Option<u64>,
    pub(super) ca_file: Option<String>,
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) sasl_mechanism: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password_file: Option<String>,
    /// From the environment only, as the store's.
    #[serde(skip)]
    pub(super) password: Option<Secret>,
    properties: BTreeMap<String, Property>,
}

/// As librdkafka takes them all: text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a text, a whole number, true or false")]
enum Property {
    Text(String),
    Number(i64),
    Truth(bool),
}

impl RawKafka {
    /// `None`: events stay in the tables.
    pub(super) fn check(self) -> Checked<Option<KafkaConfig>> {
        if self.brokers.is_none() {
            return match self.first_given() {
                Some(key) => Err(format!("kafka.{key} needs kafka.brokers")),
                None => Ok(None),
            };
        }
        let brokers = check_brokers(self.brokers.as_deref().unwrap_or_default())?;
        let topic = check_topic(self.topic.clone())?;
        let ack_timeout = super::millis("kafka.ack_timeout_ms", self.ack_timeout_ms, ACK_TIMEOUT_MS)?;
        let bytes = self.max_message_bytes.unwrap_or(MESSAGE_BYTES);
        let message_bytes_max = usize::try_from(bytes)
            .ok()
            .filter(|_| (10_000..=MESSAGE_BYTES_MAX).contains(&bytes))
            .ok_or_else(|| {
                format!("kafka.max_message_bytes = {bytes} is not in 10000 to {MESSAGE_BYTES_MAX}")
            })?;
        Ok(Some(KafkaConfig {
            brokers,
            topic,
            ack_timeout,
            message_bytes_max,
            tls: self.check_tls()?,
            sasl: self.check_sasl()?,
            properties: self.check_properties()?,
        }))
    }

    /// A key that says nothing without brokers.
    fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("topic", self.topic.is_some()),
            ("ack_timeout_ms", self.ack_timeout_ms.is_some()),
            ("max_message_bytes", self.max_message_bytes.is_some()),
            ("ca_file", self.ca_file.is_some()),
            ("cert_file", self.cert_file.is_some()),
            ("key_file", self.key_file.is_some()),
            ("sasl_mechanism", self.sasl_mechanism.is_some()),
            ("username", self.username.is_some()),
            ("password_file", self.password_file.is_some()),
            ("properties", !self.properties.is_empty()),
        ];
        given.iter().find(|(_, given)| *given).map(|(key, _)| *key)
    }

    fn check_tls(&self) -> Checked<Option<KafkaTls>> {
        let client = match (&self.cert_file, &self.key_file) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(ClientFiles {
                cert: cert.into(),
                key: key.into(),
            }),
            _ => return Err("kafka.cert_file and kafka.key_file belong together".into()),
        };
        match (&self.ca_file, client) {
            (None, Some(_)) => Err("kafka.cert_file needs kafka.ca_file: without it there is no TLS".into()),
            (None, None) => Ok(None),
            (Some(ca), client) => Ok(Some(KafkaTls {
                ca: ca.into(),
                client,
            })),
        }
    }

    fn check_sasl(&self) -> Checked<Option<Sasl>> {
        let password = match (&self.password_file, &self.password) {
            (Some(_), Some(_)) => {
                return Err("kafka.password_file and IDGEND_KAFKA__PASSWORD are both given".into());
            }
            (Some(file), None) => Some(Password::File(file.into())),
            (None, Some(password)) => Some(Password::Given(password.clone())),
            (None, None) => None,
        };
        match (&self.username, password, &self.sasl_mechanism) {
            (None, None, None) => Ok(None),
            (None, _, _) => Err("kafka.sasl_mechanism and a password need kafka.username".into()),
            (Some(_), None, _) => {
                Err("kafka.username needs kafka.password_file or IDGEND_KAFKA__PASSWORD".into())
            }
            (Some(username), Some(password), mechanism) => {
                let mechanism = mechanism.as_deref().unwrap_or("SCRAM-SHA-512");
                if !["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"].contains(&mechanism) {
                    return Err(format!(
                        "kafka.sasl_mechanism = \"{mechanism}\" is not PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
                    ));
                }
                if mechanism == "PLAIN" && self.ca_file.is_none() {
                    return Err(
                        "kafka.sasl_mechanism = \"PLAIN\" needs kafka.ca_file: without TLS everybody on the way reads \
                         the password"
                            .into(),
                    );
                }
                Ok(Some(Sasl {
                    mechanism: mechanism.to_owned(),
                    username: username.clone(),
                    password,
                }))
            }
        }
    }

    fn check_properties(&self) -> Checked<BTreeMap<String, String>> {
        let mut checked = BTreeMap::new();
        for (name, value) in &self.properties {
            if OURS.iter().any(|ours| covers(ours, name)) {
                return Err(format!(
                    "kafka.properties: {name} is not yours to set: what the outbox promises rests on it, or it has a \
                     key of its own in [kafka]"
                ));
            }
            let value = match value {
                Property::Text(text) => text.clone(),
                Property::Number(number) => number.to_string(),
                Property::Truth(truth) => truth.to_string(),
            };
            checked.insert(name.clone(), value);
        }
        Ok(checked)
    }
}

fn covers(ours: &str, name: &str) -> bool {
    match ours.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == ours,
    }
}

fn check_brokers(brokers: &[String]) -> Checked<String> {
    if brokers.is_empty() {
        return Err("kafka.brokers is empty".into());
    }
    for broker in brokers {
        let port = broker
            .rsplit_once(':')
            .map(|(host, port)| (host, port.parse::<u16>()));
        let is_right =
            matches!(port, Some((host, Ok(_))) if !host.is_empty() && !broker.contains(['/', '@', ',', ' ']));
        if !is_right {
            return Err(format!(
                "kafka.brokers: \"{broker}\" is not of the form host:port"
            ));
        }
    }
    Ok(brokers.join(","))
}

fn check_topic(topic: Option<String>) -> Checked<String> {
    let topic = topic.unwrap_or_else(|| TOPIC.to_owned());
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_named = !topic.is_empty() && topic.len() <= TOPIC_LEN_MAX && topic.chars().all(is_legal);
    if !is_named || topic == "." || topic == ".." {
        return Err(format!(
            "kafka.topic = \"{topic}\" is no name of a topic: 1 to {TOPIC_LEN_MAX} of a-z, A-Z, 0-9, '.', '_', '-'"
        ));
    }
    Ok(topic)
}

impl KafkaConfig {
    /// What a client of any kind begins with. The password is read anew.
    ///
    /// # Errors
    /// `Usage`: a file cannot be read.
    #[cfg(feature = "outbox")]
    pub fn client(&self) -> Result<ClientConfig> {
        Ok(self.settings()?.into_iter().collect())
    }

    /// What librdkafka is told, whoever uses it.
    ///
    /// # Errors
    /// `Usage`: a file cannot be read.
    pub fn settings(&self) -> Result<BTreeMap<String, String>> {
        let mut settings = self.properties.clone();
        let mut set = |name: &str, value: &str| settings.insert(name.to_owned(), value.to_owned());
        set("bootstrap.servers", &self.brokers);
        set("client.id", "idgend");
        set("socket.keepalive.enable", "true");
        if let Some(tls) = &self.tls {
            set("ssl.ca.location", &tls.ca.to_string_lossy());
            if let Some(files) = &tls.client {
                set("ssl.certificate.location", &files.cert.to_string_lossy());
                set("ssl.key.location", &files.key.to_string_lossy());
            }
        }
        if let Some(sasl) = &self.sasl {
            let password = sasl.password.read().map_err(Error::usage)?;
            set("sasl.mechanism", &sasl.mechanism);
            set("sasl.username", &sasl.username);
            set("sasl.password", password.expose());
        }
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        set("security.protocol", protocol);
        Ok(settings)
    }

    /// Reads the files that are named, so that a wrong path is told at the start.
    pub(super) fn check_files(&self) -> Checked<()> {
        let readable = |path: &PathBuf| match std::fs::File::open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("read {}: {error}", path.display())),
        };
        if let Some(tls) = &self.tls {
            readable(&tls.ca)?;
            if let Some(files) = &tls.client {
                readable(&files.cert)?;
                crate::tls::read_secret(&files.key).map(drop)?;
            }
        }
        match &self.sasl {
            Some(sasl) => sasl.password.read().map(drop),
            None => Ok(()),
        }
    }

    /// Our own certificate, where there is one.
    pub(super) fn certificate(&self) -> Option<&PathBuf> {
        Some(&self.tls.as_ref()?.client.as_ref()?.cert)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn kafka(text: &str) -> std::result::Result<Option<KafkaConfig>, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n[kafka]\n{text}");
        let config = Config::parse("f", &text, []).map_err(|error| error.to_string())?;
        Ok(config.kafka)
    }

    #[test]
    fn without_brokers_events_stay_where_they_are() {
        assert!(kafka("").unwrap().is_none());
        for line in ["topic = \"t\"", "username = \"u\"", "properties = { \"a\" = 1 }"] {
            assert!(kafka(line).unwrap_err().contains("needs kafka.brokers"), "{line}");
        }
    }

    #[test]
    fn the_least_is_enough() {
        let config = kafka("brokers = [\"a:9092\", \"b:9092\"]").unwrap().unwrap();
        assert_eq!(
            (config.brokers.as_str(), config.topic.as_str()),
            ("a:9092,b:9092", "idgen.audit")
        );
        let client = config.client().unwrap();
        assert_eq!(client.get("security.protocol"), Some("plaintext"));
        assert_eq!(client.get("bootstrap.servers"), Some("a:9092,b:9092"));
    }

    #[test]
    fn everything_together_is_handed_on() {
        let dir = std::env::temp_dir().join(format!("kafka-config-{}", std::process::id()));
        std::fs::write(&dir, "pw\n").unwrap();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let config = kafka(&format!(
            "brokers = [\"a:9\"]\ntopic = \"x\"\nca_file = \"/ca\"\ncert_file = \"/c\"\nkey_file = \"/k\"\n\
             sasl_mechanism = \"SCRAM-SHA-256\"\nusername = \"u\"\npassword_file = {dir:?}\n\
             [kafka.properties]\n\"client.rack\" = \"r1\"\n\"linger.ms\" = 7\n\"log.connection.close\" = false",
        ))
        .unwrap()
        .unwrap();
        let client = config.client().unwrap();
        std::fs::remove_file(&dir).unwrap();
        for (name, value) in [
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "/ca"),
            ("ssl.certificate.location", "/c"),
            ("ssl.key.location", "/k"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.username", "u"),
            ("sasl.password", "pw"),
            ("client.rack", "r1"),
            ("linger.ms", "7"),
            ("log.connection.close", "false"),
        ] {
            assert_eq!(client.get(name), Some(value), "{name}");
        }
        assert!(
            !format!("{config:?}").contains("pw\""),
            "a password is never shown"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let brokers = "brokers = [\"a:9\"]\n";
        for (text, part) in [
            ("brokers = []", "kafka.brokers is empty"),
            ("brokers = [\"a\"]", "host:port"),
            ("brokers = [\"kafka://a:1\"]", "host:port"),
            ("brokers = [\"a:1,b:2\"]", "host:port"),
            (&format!("{brokers}topic = \"a b\""), "no name of a topic"),
            (&format!("{brokers}cert_file = \"c\""), "belong together"),
            (
                &format!("{brokers}cert_file = \"c\"\nkey_file = \"k\""),
                "needs kafka.ca_file",
            ),
            (&format!("{brokers}username = \"u\""), "kafka.password_file"),
            (&format!("{brokers}password_file = \"p\""), "need kafka.username"),
            (
                &format!("{brokers}username = \"u\"\npassword_file = \"p\"\nsasl_mechanism = \"GSSAPI\""),
                "is not PLAIN",
            ),
            (
                &format!("{brokers}username = \"u\"\npassword_file = \"p\"\nsasl_mechanism = \"PLAIN\""),
                "reads the password",
            ),
            (
                &format!("{brokers}max_message_bytes = 5"),
                "kafka.max_message_bytes = 5",
            ),
            (&format!("{brokers}password = \"p\""), "unknown field"),
            (
                &format!("{brokers}properties = {{ \"acks\" = 1 }}"),
                "acks is not yours to set",
            ),
            (
                &format!("{brokers}properties = {{ \"enable.idempotence\" = false }}"),
                "not yours",
            ),
            (
                &format!("{brokers}properties = {{ \"sasl.password\" = \"x\" }}"),
                "not yours",
            ),
            (
                &format!("{brokers}properties = {{ \"transactional.id\" = \"x\" }}"),
                "not yours",
            ),
            (
                &format!("{brokers}properties = {{ \"a\" = [1] }}"),
                "a text, a whole number",
            ),
        ] {
            let refused = kafka(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
