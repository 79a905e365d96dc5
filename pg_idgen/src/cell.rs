//! The cell that a server belongs to, and its region, on disk.
//!
//! Shared memory forgets the cell with every restart; the data directory must not, because its tables hold the
//! cell's ids and snowflakes are unique within one cell only. A base backup carries the file along with the
//! tables, a dump does not.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use uuid::Uuid;

/// In the data directory, which is the working directory of every server process.
const FILE: &str = "pg_idgen_cell";

/// The cell of this data directory. A file that cannot be read as one stops the server's start: minting for
/// some other cell could repeat ids.
pub fn remembered() -> Option<[u8; 16]> {
    let text = match read_file(FILE) {
        Ok(Some(text)) => text,
        Ok(None) => return None,
        Err(error) => stop(&error.to_string()),
    };
    match Uuid::try_parse(text.trim()) {
        Ok(cell) => Some(cell.into_bytes()),
        Err(error) => stop(&error.to_string()),
    }
}

/// The region that cells of this server have claimed, in a file of its own: it outlives that of the cell, so that a server
/// which is taken to another cell on purpose does not come to another region by mistake.
const REGION_FILE: &str = "pg_idgen_region";

/// `None`: this data directory has never been told of one.
///
/// # Errors
/// Those of the file system, and a file that names none.
pub fn region() -> io::Result<Option<u64>> {
    let Some(text) = read_file(REGION_FILE)? else {
        return Ok(None);
    };
    let region = text.trim().parse();
    region.map(Some).map_err(|_| {
        let error = format!("file \"{REGION_FILE}\" in the data directory names no region");
        io::Error::new(ErrorKind::InvalidData, error)
    })
}

/// Write the region down; on disk when this returns.
///
/// # Errors
/// Those of the file system; nothing may be minted then.
pub fn remember_region(region: u64) -> io::Result<()> {
    write_file(REGION_FILE, &format!("{region}\n"))
}

fn stop(reason: &str) -> ! {
    pgrx::error!("file \"{FILE}\" in the data directory does not name the cell of this server: {reason}");
}

/// Write the cell down; on disk when this returns.
///
/// # Errors
/// Those of the file system; nothing may be minted then.
pub fn remember(cell_id: [u8; 16]) -> io::Result<()> {
    write_file(FILE, &format!("{}\n", Uuid::from_bytes(cell_id)))
}

/// A file of the data directory; `None`: there is none.
///
/// # Errors
/// Those of the file system.
pub fn read_file(name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(name) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replace a file of the data directory as a whole; on disk when this returns.
///
/// # Errors
/// Those of the file system; the file is as it was, or as it is to be.
pub fn write_file(name: &str, text: &str) -> io::Result<()> {
    let new = format!("{name}.new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, name)?;
    File::open(Path::new("."))?.sync_all()
}
