//! A temp dir that the servers' account may use and that is gone after the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::ServerAccount;

/// A Unix socket's path is limited to 107 bytes; ours is the dir plus `/.s.PGSQL.5432.lock`.
const PATH_LEN_MAX: usize = 80;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let mut base = std::env::temp_dir();
        if base.as_os_str().len() + name.len() + 24 > PATH_LEN_MAX {
            base = PathBuf::from("/tmp");
        }
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{name}-{}-{serial}", std::process::id()));
        fs::create_dir(&path).expect("make scratch dir");
        // Others may pass through to the sockets of a server that runs under another account.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("open scratch dir");
        ServerAccount::get().own(&path);
        Scratch { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {}: {error}", self.path.display());
        }
    }
}
