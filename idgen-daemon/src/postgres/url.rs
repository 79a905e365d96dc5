//! Connection strings as libpq has them, TLS included.
//!
//! The library underneath knows no files of certificates and no verification, so these parameters are taken out here.
//! Of `sslmode` there are two: `disable`, and `verify-full`, which is TLS with a server whose certificate and name were
//! checked. The modes between them are refused, because each of them connects to a stranger in some situation: to do
//! less than libpq would be a surprise, and so would it be to do more.

use crate::tls::{ClientFiles, TlsFiles};
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// A connection string whose parts fit together. `Debug` hides the password.
#[derive(Clone, Debug)]
pub struct PostgresUrl {
    config: Config,
    tls: Option<TlsFiles>,
}

/// What is wrong with a connection string; never quotes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

impl Deref for PostgresUrl {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

impl PostgresUrl {
    /// The files for TLS; `None`: this server is reached without.
    #[must_use]
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// The same server and user, another database.
    #[must_use]
    pub fn in_database(&self, database: &str) -> Self {
        let mut other = self.clone();
        other.config.dbname(database);
        other
    }
}

/// The parameters that are ours.
#[derive(Default)]
struct TlsParameters {
    mode: Option<String>,
    root_cert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsParameters {
    fn take(&mut self, key: &str, value: String) -> bool {
        match key {
            "sslmode" => self.mode = Some(value),
            "sslrootcert" => self.root_cert = Some(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return false,
        }
        true
    }

    /// The files for TLS, if that is what the mode says.
    fn check(self) -> Result<Option<TlsFiles>, String> {
        let files = [&self.root_cert, &self.cert, &self.key];
        match self.mode.as_deref() {
            None | Some("disable") if files.iter().any(|file| file.is_some()) => Err(
                "sslrootcert, sslcert and sslkey need sslmode=verify-full: without it they would not be used"
                    .to_owned(),
            ),
            None | Some("disable") => Ok(None),
            Some("verify-full") => self.files().map(Some),
            Some(weak @ ("allow" | "prefer" | "require" | "verify-ca")) => Err(format!(
                "sslmode={weak} is not supported, because it may connect to a server that is not the right one; use \
                 verify-full with sslrootcert, or disable"
            )),
            Some(_) => Err("sslmode is neither verify-full nor disable".to_owned()),
        }
    }

    fn files(self) -> Result<TlsFiles, String> {
        let ca = self
            .root_cert
            .ok_or("sslmode=verify-full needs sslrootcert, a file with the authorities to believe")?;
        let client = match (self.cert, self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(ClientFiles { cert, key }),
            _ => return Err("sslcert and sslkey belong together".to_owned()),
        };
        Ok(TlsFiles { ca, client })
    }
}

impl FromStr for PostgresUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse(text).map_err(UrlError)
    }
}

fn parse(text: &str) -> Result<PostgresUrl, String> {
    let mut ours = TlsParameters::default();
    let is_url = ["postgres://", "postgresql://"]
        .iter()
        .any(|prefix| text.starts_with(prefix));
    let rest = if is_url {
        split_url(text, &mut ours)
    } else {
        split_pairs(text, &mut ours)
    };
    // The parser's own message may quote what it could not read, a password for instance.
    let malformed = "is not a libpq URL or key=value string";
    let mut config: Config = rest.ok_or(malformed)?.parse().map_err(|_| malformed)?;
    if config.get_hosts().is_empty() {
        return Err("names no host".to_owned());
    }
    if config.get_user().is_none() {
        return Err("names no user".to_owned());
    }
    let tls = ours.check()?;
    let sockets = config
        .get_hosts()
        .iter()
        .filter(|host| matches!(host, Host::Unix(_)))
        .count();
    // As libpq does: nobody listens between the ends of a socket in the file system.
    let tls = tls.filter(|_| sockets < config.get_hosts().len());
    if tls.is_some() && sockets > 0 {
        return Err("names both a socket and a host, so it cannot be said whether there is TLS".to_owned());
    }
    config.ssl_mode(if tls.is_some() {
        SslMode::Require
    } else {
        SslMode::Disable
    });
    Ok(PostgresUrl { config, tls })
}

/// The URL without our parameters.
fn split_url(url: &str, ours: &mut TlsParameters) -> Option<String> {
    let Some((base, parameters)) = url.split_once('?') else {
        return Some(url.to_owned());
    };
    let mut others = Vec::new();
    for parameter in parameters.split('&') {
        let (key, value) = parameter.split_once('=')?;
        if !ours.take(&percent_decoded(key)?, percent_decoded(value)?) {
            others.push(parameter);
        }
    }
    Some(if others.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", others.join("&"))
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// The pairs without ours, each as it was written.
fn split_pairs(text: &str, ours: &mut TlsParameters) -> Option<String> {
    let mut others = String::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, tail) = pair_value(after)?;
        if !ours.take(key.trim(), value) {
            others.push_str(&rest[..rest.len() - tail.len()]);
            others.push(' ');
        }
        rest = tail.trim_start();
    }
    Some(others)
}

/// The value at the start of `text`, with quotes and backslashes undone, and what follows it.
fn pair_value(text: &str) -> Option<(String, &str)> {
    let (quoted, body) = match text.strip_prefix('\'') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.push(chars.next()?.1),
            '\'' if quoted => return Some((value, &body[at + 1..])),
            c if c.is_whitespace() && !quoted => return Some((value, &body[at..])),
            c => value.push(c),
        }
    }
    (!quoted).then_some((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(text: &str) -> TlsFiles {
        text.parse::<PostgresUrl>().unwrap().tls().cloned().expect("TLS")
    }

    fn refusal(text: &str) -> String {
        let error = text.parse::<PostgresUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        error
    }

    #[test]
    fn both_forms_name_the_files() {
        let files = TlsFiles {
            ca: "/etc/my ca.pem".into(),
            client: Some(ClientFiles {
                cert: "/c.pem".into(),
                key: "/k.pem".into(),
            }),
        };
        let pairs = "host=a user=u sslmode = verify-full sslrootcert='/etc/my ca.pem' sslcert=/c.pem sslkey=/k.pem port=6";
        let url = "postgresql://u:secret@a:6/d?sslmode=verify-full&sslrootcert=%2Fetc%2Fmy%20ca.pem&connect_timeout=3&\
                   sslcert=/c.pem&sslkey=/k.pem";
        for text in [pairs, url] {
            assert_eq!(tls(text), files, "{text}");
            let parsed: PostgresUrl = text.parse().unwrap();
            assert_eq!(parsed.get_ports(), [6]);
            assert_eq!(parsed.get_ssl_mode(), SslMode::Require);
        }
        assert_eq!(
            tls("host=a user=u sslmode=verify-full sslrootcert=/ca").client,
            None
        );
    }

    #[test]
    fn what_is_not_ours_stays_as_it_was() {
        let parsed: PostgresUrl = r"host=a user='u \' x' password=a\ b options='-c a=b' sslmode=disable"
            .parse()
            .unwrap();
        assert_eq!(parsed.get_user(), Some("u ' x"));
        assert_eq!(parsed.get_password(), Some(&b"a b"[..]));
        assert_eq!(parsed.get_options(), Some("-c a=b"));
        assert_eq!((parsed.get_ssl_mode(), parsed.tls()), (SslMode::Disable, None));
    }

    /// Never TLS that is only tried, and never TLS with somebody unknown.
    #[test]
    fn without_a_mode_there_is_no_tls_and_weak_modes_are_refused() {
        let plain: PostgresUrl = "postgres://u@a/d".parse().unwrap();
        assert_eq!(plain.get_ssl_mode(), SslMode::Disable);
        for mode in ["allow", "prefer", "require", "verify-ca"] {
            let text = refusal(&format!("postgres://u:secret@a/d?sslmode={mode}&sslrootcert=/ca"));
            assert!(
                text.starts_with(&format!("sslmode={mode} is not supported")),
                "{text}"
            );
            assert!(text.contains("use verify-full"), "{text}");
        }
    }

    #[test]
    fn parameters_that_do_not_fit_together_are_refused() {
        for (text, why) in [
            ("host=a user=u sslmode=verify-full", "needs sslrootcert"),
            ("host=a user=u sslrootcert=/ca", "need sslmode=verify-full"),
            (
                "host=a user=u sslmode=disable sslkey=/k",
                "need sslmode=verify-full",
            ),
            (
                "host=a user=u sslmode=verify-full sslrootcert=/ca sslcert=/c",
                "belong together",
            ),
            ("host=a user=u sslmode=secret", "neither verify-full nor disable"),
            (
                "host=a,/tmp user=u sslmode=verify-full sslrootcert=/ca",
                "both a socket and a host",
            ),
            ("host=a user='secret", "not a libpq URL"),
            ("postgres://u:secret@a/d?sslmode", "not a libpq URL"),
        ] {
            let text = refusal(text);
            assert!(text.contains(why), "{text} does not say `{why}`");
        }
    }

    #[test]
    fn a_socket_stays_without_tls() {
        let parsed: PostgresUrl = "host=/tmp user=u sslmode=verify-full sslrootcert=/ca"
            .parse()
            .unwrap();
        assert_eq!((parsed.get_ssl_mode(), parsed.tls()), (SslMode::Disable, None));
    }
}
