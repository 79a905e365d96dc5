//! The keys of sealed ids: a file that each backend reads when it first needs it, and anew after a reload of the
//! configuration.
//!
//! The file says what is valid. If it cannot be read after a reload, sealing and opening fail, and do not go on
//! with the keys of before: whoever took a compromised key out expects it gone. The failure is not remembered,
//! so a mended file needs no second reload.

use crate::error::Error;
use crate::guc;
use idgen_core::seal::{FILE_LEN_MAX, SealKeys};
use pgrx::pg_sys;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use zeroize::Zeroizing;

struct Loaded {
    keys: SealKeys,
    /// The reload of the configuration that they belong to; the path changes with a reload only.
    reload: pg_sys::TimestampTz,
}

thread_local! {
    static LOADED: RefCell<Option<Loaded>> = const { RefCell::new(None) };
}

/// Give the keys to `using`.
///
/// # Errors
/// No file is named; the file is refused.
pub fn with<T>(using: impl FnOnce(&SealKeys) -> T) -> Result<T, Error> {
    let path = guc::seal_key_file().ok_or(Error::NoSealKey)?;
    // SAFETY: a plain variable of this process.
    let reload = unsafe { pg_sys::PgReloadTime };
    LOADED.with_borrow_mut(|loaded| {
        if !matches!(loaded, Some(known) if known.reload == reload) {
            // Gone, and wiped, before the new ones are there: never the old ones by mistake.
            *loaded = None;
            let keys = read(path).map_err(|reason| Error::SealKeyFile { reason })?;
            *loaded = Some(Loaded { keys, reload });
        }
        match loaded {
            Some(known) => Ok(using(&known.keys)),
            None => Err(Error::NoSealKey),
        }
    })
}

/// Reasons name neither the path nor anything of the content: they reach whoever called.
fn read(path: &CStr) -> Result<SealKeys, String> {
    let io = |error: std::io::Error| format!("it cannot be read: {}", error.kind());
    let mut file = OpenOptions::new()
        .read(true)
        // Opening a pipe must not wait for its other end.
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(OsStr::from_bytes(path.to_bytes()))
        .map_err(io)?;
    // Of what was opened, so that nobody can exchange it in between.
    check_rights(&file.metadata().map_err(io)?)?;
    let content = content(&mut file).map_err(io)?;
    SealKeys::parse(&content).map_err(|error| error.to_string())
}

/// The rule that Postgres has for its TLS key: nobody else may read it; a file of root may be readable for a
/// group, because the server could not read it otherwise.
fn check_rights(file: &Metadata) -> Result<(), String> {
    const ANY_GROUP_OR_OTHER: u32 = 0o077;
    const GROUP_WRITE_OR_RUN_OR_OTHER: u32 = 0o037;
    if !file.is_file() {
        return Err("it is no regular file".into());
    }
    let forbidden = if file.uid() == rustix::process::geteuid().as_raw() {
        ANY_GROUP_OR_OTHER
    } else if file.uid() == 0 {
        GROUP_WRITE_OR_RUN_OR_OTHER
    } else {
        return Err("it belongs neither to the user of the server nor to root".into());
    };
    if file.mode() & forbidden != 0 {
        return Err(
            "others can read or change it: it must have mode 0600 or less, or 0640 if it belongs to root"
                .into(),
        );
    }
    Ok(())
}

/// All of the file, or one byte more than is allowed; wiped when dropped.
fn content(file: &mut File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; FILE_LEN_MAX + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match file.read(&mut bytes[len..])? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}
