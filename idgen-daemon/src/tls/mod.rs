//! Certificates, keys and passwords of the daemon's connections: files that somebody else rotates.
//!
//! They are read anew for every connection, and compared before every request: a connection that was made with other
//! files is replaced. Files that do not fit together, such as a new certificate beside the old key, are no reason to
//! leave a connection that works.

mod diagnose;
mod expiry;
mod explain;

pub use diagnose::diagnose;
pub use expiry::{CertificateExpiry, Deadline, common_name, watch};
pub use explain::explain;

use crate::complaint::Complaint;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// A bundle of all public authorities has 200 kB.
const FILE_LEN_MAX: u64 = 1 << 20;

/// All TLS of the process uses this implementation. Called once, first of all.
pub fn install_provider() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Where the files of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to believe; the only ones.
    pub ca: PathBuf,
    /// Who we are.
    pub client: Option<ClientFiles>,
}

/// A certificate with its intermediates, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM.
    pub cert: PathBuf,
    /// PEM, closed to others.
    pub key: PathBuf,
}

/// The content of the files at one moment. They fit together.
#[derive(Clone)]
pub struct Material {
    /// PEM of the authorities.
    pub ca: Vec<u8>,
    /// PEM of certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Made of both; believes nobody else and checks the name of the server.
    pub config: Arc<ClientConfig>,
}

impl PartialEq for Material {
    fn eq(&self, other: &Self) -> bool {
        (&self.ca, &self.identity) == (&other.ca, &other.identity)
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Material(..)")
    }
}

/// What can be read anew, and compared with what it was.
pub trait Source {
    /// What is read.
    type Content: PartialEq;

    /// Reads; the error names the file.
    fn read(&self) -> Result<Self::Content, String>;
}

impl Source for TlsFiles {
    type Content = Material;

    fn read(&self) -> Result<Material, String> {
        let ca = read_file(&self.ca)?;
        let identity = match &self.client {
            None => None,
            Some(client) => Some((read_file(&client.cert)?, read_secret(&client.key)?)),
        };
        let config = self.configure(&ca, identity.as_ref())?;
        Ok(Material {
            ca,
            identity,
            config: Arc::new(config),
        })
    }
}

impl TlsFiles {
    fn configure(&self, ca: &[u8], identity: Option<&(Vec<u8>, Vec<u8>)>) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certificates(&self.ca, ca)?);
        if usable == 0 {
            return Err(format!("{} has no usable certificate", self.ca.display()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("prepare TLS: {error}"))?
            .with_root_certificates(roots);
        let (Some(files), Some((cert, key))) = (&self.client, identity) else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(&files.cert, cert)?;
        // The reader's own message could quote the key.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| format!("{} has no private key in PEM form", files.key.display()))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| {
            let (cert, key) = (files.cert.display(), files.key.display());
            format!("certificate {cert} and key {key} do not fit together: {error}")
        })
    }

    /// Whether our own certificate has expired: a server would say so less clearly, or just hang up.
    pub fn check_expiry(&self, material: &Material, now: SystemTime) -> Result<(), String> {
        let (Some(files), Some((cert, _))) = (&self.client, &material.identity) else {
            return Ok(());
        };
        let deadline = Deadline::of(&files.cert, cert)?;
        if deadline.at > now {
            return Ok(());
        }
        Err(format!(
            "our certificate {} expired on {deadline} (hint: put a new certificate and its key in place; no \
             restart is needed)",
            files.cert.display()
        ))
    }
}

/// A source that a connection was made from.
pub struct Watch<S: Source> {
    source: S,
    used: S::Content,
    complaint: Complaint,
}

impl<S: Source> Watch<S> {
    /// `used` was read from `source`.
    pub fn new(source: S, used: S::Content) -> Self {
        Self {
            source,
            used,
            complaint: Complaint::default(),
        }
    }

    /// Is there something else now, and is it fit for use?
    pub fn has_changed(&mut self) -> bool {
        match self.source.read() {
            Ok(content) => {
                self.complaint.settle("the new certificates are in order again");
                content != self.used
            }
            Err(why) => {
                let text = format!("{why}; the connections that are open go on with what was there before");
                self.complaint.raise(text, Instant::now());
                false
            }
        }
    }
}

/// The certificates of a PEM file, at least one.
fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(content).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{} has no certificate in PEM form", path.display())),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    read_opened(path, file)
}

fn read_opened(path: &Path, file: File) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = file.take(FILE_LEN_MAX + 1).read_to_end(&mut content);
    read.map_err(|error| format!("read {}: {error}", path.display()))?;
    if content.len() as u64 > FILE_LEN_MAX {
        return Err(format!("{} is larger than {FILE_LEN_MAX} bytes", path.display()));
    }
    Ok(content)
}

/// A key or a password. The rule is libpq's: closed to everybody else, but a file of root may be readable for a group.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    // Of what was opened, so that nobody can exchange it in between.
    let metadata = file.metadata().map_err(failed)?;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & forbidden != 0 {
        return Err(format!(
            "{} is open to others (mode {:04o}): it must have mode 0600 or less, or 0640 if it belongs to root",
            path.display(),
            metadata.mode() & 0o7777
        ));
    }
    read_opened(path, file)
}

#[cfg(test)]
mod tests;
