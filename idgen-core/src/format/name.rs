//! Names of formats, held in place so that a format is plain data wherever it lies.

use core::fmt;

/// Most characters of a name.
pub const NAME_LEN_MAX: usize = 31;

/// A lower-case letter, then lower-case letters, digits and underscores; at most [`NAME_LEN_MAX`] of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FormatName {
    bytes: [u8; NAME_LEN_MAX],
    len: u8,
}

impl FormatName {
    /// `None` for what is no name of a format.
    #[must_use]
    pub const fn new(name: &str) -> Option<Self> {
        let from = name.as_bytes();
        if from.is_empty() || from.len() > NAME_LEN_MAX || !from[0].is_ascii_lowercase() {
            return None;
        }
        let mut bytes = [0; NAME_LEN_MAX];
        let mut i = 0;
        while i < from.len() {
            let byte = from[i];
            if !(byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
                return None;
            }
            bytes[i] = byte;
            i += 1;
        }
        Some(Self {
            bytes,
            len: from.len() as u8,
        })
    }

    /// For names in the source: a wrong one does not compile.
    pub(super) const fn built_in(name: &str) -> Self {
        match Self::new(name) {
            Some(name) => name,
            None => panic!("not a name of a format"),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // ASCII by construction.
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
