//! The key file of sealed ids on a server under test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

use postgres::Client;

use super::process::ServerAccount;
use super::{PATIENCE, Server, ServerOptions, eventually_true, sql};

const NAME: &str = "seal.keys";

/// A server that has the file named in its configuration (the file itself is not there yet) and logs all it can.
pub fn server() -> Server {
    Server::with(ServerOptions {
        settings: vec![
            // Relative: from the data directory on.
            format!("idgen.seal_key_file = '{NAME}'"),
            "log_statement = 'all'".into(),
            "log_min_messages = debug2".into(),
            "log_error_verbosity = verbose".into(),
        ],
        ..Default::default()
    })
}

pub fn file(server: &Server) -> PathBuf {
    server.data_dir().join(NAME)
}

/// Puts a file of the server's account in place, with this mode.
pub fn write(server: &Server, content: impl AsRef<[u8]>, mode: u32) {
    let (new, path) = (server.data_dir().join("seal.keys.new"), file(server));
    fs::write(&new, content).expect("write the key file");
    ServerAccount::get().own(&new);
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("chmod");
    fs::rename(&new, path).expect("put the key file in place");
}

/// Reloads the configuration, and waits until these sessions have done so.
pub fn reload(clients: &mut [&mut Client]) {
    const LOADED: &str = "SELECT pg_conf_load_time()";
    let before: Vec<SystemTime> = clients
        .iter_mut()
        .map(|client| sql::value(client, LOADED))
        .collect();
    sql::run(clients[0], "SELECT pg_reload_conf()");
    for (client, before) in clients.iter_mut().zip(before) {
        eventually_true(PATIENCE, "the session has reloaded its configuration", || {
            sql::value::<SystemTime>(client, LOADED) > before
        });
    }
}
