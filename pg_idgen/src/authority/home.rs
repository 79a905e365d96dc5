//! Where this cluster is: history and place.

use crate::error::Error;
use idgen_core::segment::home::Home;
use pgrx::pg_sys;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What the machine and the running system call themselves. Where there is nothing to read they have no name.
const MACHINE: &str = "/etc/machine-id";
const OS_BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Of this cluster, now. Not for a standby: its timeline is another's.
///
/// # Errors
/// The data directory cannot be looked at.
pub fn found() -> Result<Home, Error> {
    // The working directory of every server process.
    let directory = fs::metadata(".").map_err(|error| Error::Internal {
        message: format!("look at the data directory: {error}"),
    })?;
    Ok(Home {
        // SAFETY: reads what the server has read from its control file.
        system_identifier: unsafe { pg_sys::GetSystemIdentifier() },
        // SAFETY: recovery is over, so this is known and stays.
        timeline: unsafe { pg_sys::GetWALInsertionTimeLine() },
        machine: name_in(MACHINE),
        os_boot: name_in(OS_BOOT),
        device: directory.dev(),
        inode: directory.ino(),
    })
}

fn name_in(file: &str) -> Option<String> {
    let name = fs::read_to_string(file).ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.chars().take(64).collect())
}
