//! One line of text with a checksum at its end, for a file that a crash may tear or a person may edit.

use core::fmt::{self, Write};
use sha2::{Digest, Sha256};

/// Bytes of the digest that are written: this is against a torn or edited file, not against an enemy.
const SUM_BYTES: usize = 8;

/// A text that is no such line, or not a whole one: torn, changed, or of another release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is torn or was changed: its checksum does not match")
    }
}

impl core::error::Error for Garbled {}

/// Writes `body` and its checksum.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, body: &str) -> fmt::Result {
    write!(f, "{body} {}", sum(body))
}

/// The body of a line that is whole.
pub(crate) fn read(line: &str) -> Result<&str, Garbled> {
    let (body, checksum) = line.rsplit_once(' ').ok_or(Garbled)?;
    if checksum == sum(body) {
        Ok(body)
    } else {
        Err(Garbled)
    }
}

fn sum(body: &str) -> String {
    let digest = Sha256::digest(body.as_bytes());
    digest[..SUM_BYTES].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
