//! The anchor of a database's ranges outside of its data directory (`idgen.anchor_directory`).
//!
//! One file for each database. Written by the refill worker after the commit of every grant and before any id of it
//! is used; read whenever a worker begins. What it means is said by `idgen_core::segment::waterline`.

use super::home;
use crate::call::current_database;
use crate::error::Error;
use crate::guc;
use idgen_core::segment::home::Cause;
use idgen_core::segment::waterline::{Shown, Waterline};
use pgrx::pg_sys;
use pgrx::spi::SpiClient;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

const SPACE: &str = "SELECT p.space_id FROM idgen.space p";
const MAX_ID: &str = "SELECT s.max_id FROM idgen.segment s WHERE s.segment_id = $1";

/// At the start of the server: a directory that every copy of the data directory brings along is no anchor.
///
/// # Errors
/// In words; the server must not start.
pub fn check_directory() -> Result<(), String> {
    let Some(directory) = guc::anchor_directory() else {
        return Ok(());
    };
    let resolved =
        |path: &Path| fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()));
    if !directory.is_absolute() {
        return Err(format!("\"{}\" is not an absolute path", directory.display()));
    }
    let directory = resolved(&directory)?;
    // The working directory of the postmaster.
    if directory.starts_with(resolved(Path::new("."))?) {
        return Err(format!(
            "\"{}\" is inside the data directory",
            directory.display()
        ));
    }
    Ok(())
}

/// Of this database; `None`: there is to be none.
fn file() -> Option<PathBuf> {
    let directory = guc::anchor_directory()?;
    // SAFETY: reads what the server has read from its control file.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    Some(directory.join(format!("pg_idgen_segments.{system}.{}", current_database())))
}

/// Whether ranges were granted that this database does not know of. Begins an anchor where there is none.
///
/// # Errors
/// Those of the queries, and the file cannot be written.
pub fn judge(client: &SpiClient<'_>) -> Result<Option<Cause>, Error> {
    if file().is_some_and(|file| !file.exists()) {
        begin(client)?;
        return Ok(None);
    }
    look(client)
}

/// The same, and nothing is written.
///
/// # Errors
/// Those of the queries, and the file cannot be read.
pub fn look(client: &SpiClient<'_>) -> Result<Option<Cause>, Error> {
    let Some(file) = file() else { return Ok(None) };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(not_kept(&file, &error)),
    };
    match text.trim_end().parse::<Waterline>() {
        Ok(line) => Ok(line.judge(&shown(client, line.segment_id)?)),
        Err(garbled) => {
            pgrx::log!("pg_idgen: anchor \"{}\": {garbled}", file.display());
            Ok(Some(Cause::AnchorDoubtful))
        }
    }
}

/// Begin anew, at what the database shows now: no grant is known.
///
/// # Errors
/// As [`judge`].
pub fn begin(client: &SpiClient<'_>) -> Result<(), Error> {
    let shown = shown(client, 0)?;
    write(&Waterline {
        system_identifier: shown.system_identifier,
        timeline: shown.timeline,
        // What is inserted may not be on disk yet, and would be missing after a crash.
        lsn: 0,
        space_id: shown.space_id,
        segment_id: 0,
        max_id: 0,
    })
}

/// After the commit of a grant; on disk when this returns.
///
/// # Errors
/// The file cannot be written: the range must not be used.
pub fn note(space_id: [u8; 16], segment_id: [u8; 16], max_id: i64) -> Result<(), Error> {
    if guc::anchor_directory().is_none() {
        return Ok(());
    }
    let home = home::found()?;
    write(&Waterline {
        system_identifier: home.system_identifier,
        timeline: home.timeline,
        // SAFETY: a variable of this process: the end of its last commit, which was flushed.
        lsn: unsafe { pg_sys::XactLastCommitEnd },
        space_id: u128::from_be_bytes(space_id),
        segment_id: u128::from_be_bytes(segment_id),
        max_id,
    })
}

fn shown(client: &SpiClient<'_>, segment_id: u128) -> Result<Shown, Error> {
    let home = home::found()?;
    let space = client.select(SPACE, Some(1), &[])?.first().get::<pgrx::Uuid>(1)?;
    let segment = pgrx::Uuid::from_bytes(segment_id.to_be_bytes());
    let row = client.select(MAX_ID, Some(1), &[segment.into()])?;
    let max_id = if row.is_empty() {
        None
    } else {
        row.first().get::<i64>(1)?
    };
    Ok(Shown {
        system_identifier: home.system_identifier,
        timeline: home.timeline,
        // SAFETY: recovery is over.
        lsn: unsafe { pg_sys::GetXLogInsertRecPtr() },
        space_id: space.map_or(0, |space| u128::from_be_bytes(*space.as_bytes())),
        max_id,
    })
}

fn write(line: &Waterline) -> Result<(), Error> {
    let Some(file) = file() else { return Ok(()) };
    replace(&file, &format!("{line}\n")).map_err(|error| not_kept(&file, &error))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_added_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn not_kept(file: &Path, error: &io::Error) -> Error {
    Error::Internal {
        message: format!("anchor \"{}\": {error}", file.display()),
    }
}
