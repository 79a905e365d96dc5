//! When our own certificates end: told as a metric, and as a warning two weeks ahead.

use super::explain::date;
use super::{certificates, read_file};
use crate::error::Result;
use prometheus::IntGaugeVec;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// A file of a few kB is read this often; a new one shows in the metric after this time at the latest.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long before its end a certificate is warned of.
const WARN_AHEAD: Duration = Duration::from_secs(14 * 86_400);
/// Once a day is enough for what can wait for days.
const WARN_EVERY: Duration = Duration::from_secs(86_400);

/// The common name of the first certificate in `pem`: the user that etcd takes its holder for.
///
/// # Errors
/// What is wrong with it, for people.
pub fn common_name(pem: &[u8]) -> std::result::Result<String, String> {
    /// X.520, 2.5.4.3.
    const COMMON_NAME: &str = "2.5.4.3";
    let chain = certificates(Path::new("the client certificate"), pem)?;
    let first = chain.first().ok_or("the client certificate is empty")?;
    let certificate = Certificate::from_der(first).map_err(|error| error.to_string())?;
    let parts = certificate.tbs_certificate.subject.0.iter();
    let mut names = parts.flat_map(|part| part.0.iter());
    let name = names.find(|name| name.oid.to_string() == COMMON_NAME);
    let name = name.ok_or("the client certificate has no common name")?;
    str::from_utf8(name.value.value())
        .map(str::to_owned)
        .map_err(|_| "the common name of the client certificate is not UTF-8".to_owned())
}

/// The end of a certificate, or of the first of its chain to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Not valid from then on.
    pub at: SystemTime,
}

impl Deadline {
    /// That of the certificates in a file.
    ///
    /// # Errors
    /// What is wrong with the file, for people.
    pub fn read(path: &Path) -> std::result::Result<Self, String> {
        read_file(path).and_then(|content| Self::of(path, &content))
    }

    /// That of the certificates in `pem`, which is the content of `path`.
    pub(super) fn of(path: &Path, pem: &[u8]) -> std::result::Result<Self, String> {
        let unreadable = |error| format!("{}: read the validity: {error}", path.display());
        let mut ends = Vec::new();
        for der in certificates(path, pem)? {
            let certificate = Certificate::from_der(&der).map_err(unreadable)?;
            ends.push(certificate.tbs_certificate.validity.not_after.to_unix_duration());
        }
        let first = ends.into_iter().min().unwrap_or_default();
        Ok(Self {
            at: UNIX_EPOCH + first,
        })
    }

    fn unix_s(self) -> u64 {
        self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Still valid at `now`, but not for much longer.
    fn is_near(self, now: SystemTime) -> bool {
        self.at <= now + WARN_AHEAD
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&date(self.unix_s()))
    }
}

/// What is known of the certificates on disk.
pub struct CertificateExpiry {
    files: Vec<PathBuf>,
    gauge: IntGaugeVec,
    seen: BTreeMap<PathBuf, Deadline>,
    warned: BTreeMap<PathBuf, SystemTime>,
}

impl CertificateExpiry {
    /// Of these files; the gauge has the label `file`.
    pub fn new(files: Vec<PathBuf>, gauge: IntGaugeVec) -> Self {
        Self {
            files,
            gauge,
            seen: BTreeMap::new(),
            warned: BTreeMap::new(),
        }
    }

    /// Looks at each of them; returns what to warn of. One that cannot be read keeps its value: whoever connects with it
    /// tells what is wrong.
    pub fn look(&mut self, now: SystemTime) -> Vec<String> {
        let mut warnings = Vec::new();
        for path in self.files.clone() {
            let Ok(deadline) = Deadline::read(&path) else {
                continue;
            };
            let label = path.display().to_string();
            let seconds = i64::try_from(deadline.unix_s()).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[&label]).set(seconds);
            let before = self.seen.insert(path.clone(), deadline);
            if before.is_some_and(|before| before != deadline) {
                tracing::info!(file = label, expires = %deadline, "there is a new certificate");
                self.warned.remove(&path);
            }
            if deadline.is_near(now) && self.is_warning_due(path, now) {
                let ends = if deadline.at <= now { "expired" } else { "expires" };
                warnings.push(format!(
                    "our certificate {label} {ends} on {deadline}: put a new one in place, no restart is needed"
                ));
            }
        }
        warnings
    }

    fn is_warning_due(&mut self, path: PathBuf, now: SystemTime) -> bool {
        let long_ago = |last: &SystemTime| now.duration_since(*last).is_ok_and(|ago| ago >= WARN_EVERY);
        let due = self.warned.get(&path).is_none_or(long_ago);
        if due {
            self.warned.insert(path, now);
        }
        due
    }
}

/// Looks until `stop`.
pub async fn watch(mut expiry: CertificateExpiry, stop: CancellationToken) -> Result<()> {
    loop {
        for warning in expiry.look(SystemTime::now()) {
            tracing::warn!("{warning}");
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
