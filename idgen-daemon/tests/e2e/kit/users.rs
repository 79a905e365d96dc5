//! Users of an etcd, and how it signs its tokens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::daemon::answer;
use super::{Etcd, Scratch};

/// For etcdctl, once users are asked for.
pub const ROOT: &str = "root:also-secret";
/// What the daemon's role may write.
pub const PREFIX: &str = "/pg_idgen/default/";

/// `root`, and the user and role `idgend`; nobody is asked for them yet.
pub fn add_users(etcd: &Etcd, password: &str) {
    etcd.ctl_ok(&["user", "add", ROOT]);
    etcd.ctl_ok(&["role", "add", "idgend"]);
    permit(etcd, &[]);
    etcd.ctl_ok(&["user", "add", &format!("idgend:{password}")]);
    etcd.ctl_ok(&["user", "grant-role", "idgend", "idgend"]);
}

/// The role may write; `user` are more arguments of etcdctl.
pub fn permit(etcd: &Etcd, user: &[&str]) {
    let grant = [
        "role",
        "grant-permission",
        "--prefix",
        "idgend",
        "readwrite",
        PREFIX,
    ];
    etcd.ctl_ok(&[user, &grant].concat());
}

pub fn as_root(etcd: &Etcd, args: &[&str]) -> String {
    etcd.ctl_ok(&[&["--user", ROOT], args].concat())
}

/// Lines of section `[store]`: the user `idgend`, with its password in a file that only we can read.
pub fn store_lines(files: &Scratch, password: &str) -> String {
    let path = write_password(files, password);
    format!("username = \"idgend\"\npassword_file = \"{}\"\n", path.display())
}

/// The file that [`store_lines`] names, with another password from now on.
pub fn write_password(files: &Scratch, password: &str) -> PathBuf {
    let path = files.join("password");
    fs::write(&path, format!("{password}\n")).expect("write the password");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("close the file");
    path
}

/// Arguments of an etcd whose tokens are signed, and say how old the users are.
pub fn signed_tokens(keys: &Scratch) -> [String; 2] {
    let (private, public) = (
        keys.join("jwt.key").display().to_string(),
        keys.join("jwt.pub").display().to_string(),
    );
    openssl(&["genrsa", "-out", &private, "2048"]);
    openssl(&["rsa", "-in", &private, "-pubout", "-out", &public]);
    let token = format!("jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
    ["--auth-token".to_owned(), token]
}

fn openssl(args: &[&str]) {
    let mut command = Command::new("openssl");
    command.args(args);
    let made = answer(command);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
}
