//! Disks that are full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::ServerAccount;

/// A small file system of its own at a directory, gone when dropped.
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// It belongs to the account of the servers.
    pub fn at(path: &Path, size: &str) -> SmallDisk {
        fs::create_dir(path).expect("make a mount point");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "tmpfs"])
            .arg(path);
        let status = mount.status().expect("run mount");
        assert!(status.success(), "mount a small tmpfs: {status}");
        ServerAccount::get().own(path);
        SmallDisk { at: path.to_owned() }
    }

    /// Not one more byte fits.
    pub fn fill(&self) -> PathBuf {
        let path = self.at.join("filler");
        let mut file = File::create(&path).expect("make a file");
        let block = vec![0; 4096];
        while file.write_all(&block).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}
