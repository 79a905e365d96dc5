//! Authorities and certificates of a test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use super::Scratch;
use super::process::ServerAccount;

/// Who may issue certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both in PEM form.
#[derive(Clone)]
pub struct Leaf {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        Authority { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server at 127.0.0.1.
    pub fn server(&self) -> Leaf {
        self.server_for("127.0.0.1")
    }

    /// For a server that is reached by this name or address.
    pub fn server_for(&self, host: &str) -> Leaf {
        self.issue(CertificateParams::new(vec![host.to_owned()]).expect("a host name"))
    }

    /// For a client; the name is its user.
    pub fn client(&self, user: &str) -> Leaf {
        self.issue(with_name(user))
    }

    /// Expired at the end of 2020.
    pub fn expired_server(&self) -> Leaf {
        self.issue_until_2020(CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address"))
    }

    /// Expired at the end of 2020.
    pub fn expired_client(&self, user: &str) -> Leaf {
        self.issue_until_2020(with_name(user))
    }

    fn issue_until_2020(&self, mut params: CertificateParams) -> Leaf {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 12, 31);
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Leaf {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Leaf {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn bundle(authorities: &[&Authority]) -> String {
    authorities.iter().map(|authority| authority.pem()).collect()
}

fn with_name(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Certificates as files: `ca.pem` and `server-ca.pem`, and NAME.pem with NAME.key.
pub struct CertDir {
    scratch: Scratch,
}

impl CertDir {
    pub fn new() -> CertDir {
        CertDir {
            scratch: Scratch::new("certs"),
        }
    }

    /// An authority, and certificates of it for a server and the clients `idgend` and `root`.
    pub fn of(authority: &Authority) -> CertDir {
        let dir = CertDir::new();
        dir.put_server_ca(&[authority]);
        dir.put_ca(&[authority]);
        dir.put("server", &authority.server());
        dir.put("client", &authority.client("idgend"));
        dir.put("admin", &authority.client("root"));
        dir
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Whom a server and its administrator believe.
    pub fn put_server_ca(&self, authorities: &[&Authority]) {
        self.write("server-ca.pem", &bundle(authorities));
    }

    /// Whom the daemon believes.
    pub fn put_ca(&self, authorities: &[&Authority]) {
        self.write("ca.pem", &bundle(authorities));
    }

    /// First the certificate, then the key: who looks in between finds them not fitting together.
    pub fn put(&self, name: &str, leaf: &Leaf) {
        self.write(&format!("{name}.pem"), &leaf.cert);
        self.write(&format!("{name}.key"), &leaf.key);
    }

    /// For the server's account and nobody else; in place at once.
    pub fn write(&self, name: &str, content: &str) {
        let (path, new) = (self.join(name), self.join(&format!("{name}.new")));
        fs::write(&new, content).expect("write a certificate");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("close the file");
        ServerAccount::get().own(&new);
        fs::rename(&new, &path).expect("put it in place");
    }

    /// The lines of `[store]` for an etcd, with the client certificate.
    pub fn store_lines(&self) -> String {
        let client = |name: &str| self.join(name).display().to_string();
        format!(
            "{}\ncert_file = \"{}\"\nkey_file = \"{}\"",
            self.ca_line(),
            client("client.pem"),
            client("client.key")
        )
    }

    /// Only whom to believe.
    pub fn ca_line(&self) -> String {
        format!("ca_file = \"{}\"", self.join("ca.pem").display())
    }

    /// The parameters of a connection string, with the client certificate.
    pub fn url_parameters(&self) -> String {
        let path = |name: &str| self.join(name).display().to_string();
        format!(
            "{} sslcert={} sslkey={}",
            self.ca_parameters(),
            path("client.pem"),
            path("client.key")
        )
    }

    /// Only whom to believe.
    pub fn ca_parameters(&self) -> String {
        format!(
            "sslmode=verify-full sslrootcert={}",
            self.join("ca.pem").display()
        )
    }
}
