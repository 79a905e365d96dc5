use super::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, UNIX_EPOCH};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("idgen-tls-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("make a directory");
        Self(path)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("close");
        path
    }

    /// An authority and a client that it knows, valid to the end of `year`.
    fn files(&self, year: i32) -> TlsFiles {
        let ca_key = KeyPair::generate().expect("key");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).expect("certificate");
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec!["client".to_owned()]).expect("name");
        params.not_after = date_time_ymd(year, 12, 31);
        let cert = params.signed_by(&key, &issuer).expect("certificate");
        TlsFiles {
            ca: self.write("ca.pem", &ca_cert.pem()),
            client: Some(ClientFiles {
                cert: self.write("client.pem", &cert.pem()),
                key: self.write("client.key", &key.serialize_pem()),
            }),
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn client(files: &TlsFiles) -> &ClientFiles {
    files.client.as_ref().expect("a client certificate")
}

#[test]
fn files_that_do_not_fit_together_are_no_reason_to_connect_anew() {
    let dir = Dir::new("halves");
    let files = dir.files(2040);
    let mut watch = Watch::new(files.clone(), files.read().unwrap());
    assert!(!watch.has_changed(), "nothing has changed");
    let (cert, key) = (client(&files).cert.clone(), client(&files).key.clone());
    let (old_cert, old_key) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());

    dir.files(2041);
    let (new_cert, new_key) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());
    fs::write(&key, &old_key).unwrap();
    let refused = files.read().unwrap_err();
    assert!(
        refused.contains("client.pem") && refused.contains("do not fit together"),
        "{refused}"
    );
    assert!(!watch.has_changed(), "the new certificate, still the old key");
    fs::write(&cert, &new_cert[..new_cert.len() / 2]).unwrap();
    assert!(!watch.has_changed(), "half a certificate");
    fs::remove_file(&cert).unwrap();
    assert!(!watch.has_changed(), "none");
    fs::write(&cert, &new_cert).unwrap();
    fs::write(&key, &new_key).unwrap();
    assert!(watch.has_changed(), "all of it");
    fs::write(&cert, &old_cert).unwrap();
    assert!(!watch.has_changed());
}

#[test]
fn an_expired_certificate_is_named_with_its_date() {
    let dir = Dir::new("expired");
    let files = dir.files(2030);
    let material = files.read().expect("an expired certificate can be read");
    let day = |year: u64| UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_556_952);
    assert_eq!(files.check_expiry(&material, day(2030)), Ok(()));
    let refused = files
        .check_expiry(&material, day(2031) + Duration::from_secs(86_400))
        .unwrap_err();
    assert!(
        refused.contains("client.pem expired on 2030-12-31T00:00:00Z"),
        "{refused}"
    );
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = Dir::new("open");
    let files = dir.files(2040);
    fs::set_permissions(&client(&files).key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = files.read().unwrap_err();
    assert!(
        refused.contains("client.key is open to others (mode 0644)"),
        "{refused}"
    );
    fs::set_permissions(&client(&files).key, fs::Permissions::from_mode(0o400)).unwrap();
    files.read().expect("closed");
}

#[test]
fn a_file_that_is_no_certificate_or_key_is_named_and_not_quoted() {
    let dir = Dir::new("nonsense");
    let files = dir.files(2040);
    fs::write(&files.ca, "secret").unwrap();
    let refused = files.read().unwrap_err();
    assert!(
        refused.ends_with("ca.pem has no certificate in PEM form"),
        "{refused}"
    );
    let files = dir.files(2040);
    fs::write(&client(&files).key, "secret").unwrap();
    let refused = files.read().unwrap_err();
    assert!(
        refused.ends_with("client.key has no private key in PEM form"),
        "{refused}"
    );
}

#[test]
fn the_end_of_a_certificate_is_a_metric_that_follows_the_file() {
    let dir = Dir::new("metric");
    let files = dir.files(2030);
    let opts = prometheus::Opts::new("expiry", "-");
    let gauge = prometheus::IntGaugeVec::new(opts, &["file"]).unwrap();
    let cert = client(&files).cert.clone();
    let label = cert.display().to_string();
    let mut expiry = CertificateExpiry::new(vec![cert.clone()], gauge.clone());
    assert!(expiry.look(UNIX_EPOCH).is_empty());
    assert_eq!(gauge.with_label_values(&[&label]).get(), 1_924_905_600);
    fs::write(&cert, "half of").unwrap();
    assert!(expiry.look(UNIX_EPOCH).is_empty());
    assert_eq!(
        gauge.with_label_values(&[&label]).get(),
        1_924_905_600,
        "what was known"
    );
    dir.files(2031);
    assert!(expiry.look(UNIX_EPOCH).is_empty());
    assert_eq!(gauge.with_label_values(&[&label]).get(), 1_956_441_600);
}

#[test]
fn the_end_of_a_certificate_is_warned_of_two_weeks_ahead_and_once_a_day() {
    let dir = Dir::new("warning");
    let files = dir.files(2030);
    let gauge = prometheus::IntGaugeVec::new(prometheus::Opts::new("expiry", "-"), &["file"]).unwrap();
    let cert = client(&files).cert.clone();
    let mut expiry = CertificateExpiry::new(vec![cert.clone()], gauge);
    const DAY: Duration = Duration::from_secs(86_400);
    let end = UNIX_EPOCH + Duration::from_secs(1_924_905_600);
    assert!(expiry.look(end - DAY * 15).is_empty());
    let warnings = expiry.look(end - DAY * 14);
    let told = "expires on 2030-12-31T00:00:00Z";
    assert!(warnings.len() == 1 && warnings[0].contains(told), "{warnings:?}");
    assert!(expiry.look(end - DAY * 14 + DAY / 2).is_empty(), "not again");
    assert_eq!(expiry.look(end - DAY * 13).len(), 1, "the next day");
    assert!(expiry.look(end)[0].contains("expired on"), "and after its end");
    dir.files(2031);
    assert!(expiry.look(end + DAY).is_empty(), "there is a new one");
}
