//! Sealed ids: an internal id as 128 bits that tell nothing and that nobody without a key can make.
//!
//! ```text
//! block = id (64 bits, big endian) | first 64 bits of SHA-256(prefix)
//! sealed = AES-256 or AES-128 of the block, under one key of the file
//! ```
//! One block under a block cipher is a pseudorandom permutation: without the key a sealed id looks random,
//! and any change of it opens to a random block, whose second half is the hash of the prefix once in 2^64.
//!
//! Limits, on purpose: equal ids of one prefix are equal texts under one key (they serve as keys of a public
//! interface, and as such must be); a forger needs about 2^63 tries, each one a call
//! (2^59 where 16 keys are live, since any of them may fit); and this hides ids, it is
//! no encryption for secrets at rest.

use crate::public_id::Prefix;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use core::fmt;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Most keys of one file: each is tried on every id that does not open, and a rotation needs two.
pub const KEYS_MAX: usize = 16;
/// Largest key file, in bytes: 16 keys and many comments.
pub const FILE_LEN_MAX: usize = 64 * 1024;

const ID_LEN: usize = 8;
const KEY_LEN_MAX: usize = 32;

/// Why a key file is refused. Never carries anything of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFileError {
    /// Larger than [`FILE_LEN_MAX`].
    TooLarge,
    /// A line that is neither a key, nor a comment, nor empty.
    Line {
        /// Its number, from 1.
        line: usize,
    },
    /// More than [`KEYS_MAX`] keys.
    TooMany,
    /// No key at all.
    Empty,
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "it is larger than {FILE_LEN_MAX} bytes"),
            Self::Line { line } => write!(f, "line {line} is no key of 32 or 64 hexadecimal digits"),
            Self::TooMany => write!(f, "it has more than {KEYS_MAX} keys"),
            Self::Empty => f.write_str("it has no key"),
        }
    }
}

impl core::error::Error for KeyFileError {}

/// A key, expanded; wiped when dropped.
enum Cipher {
    Aes128(Aes128),
    Aes256(Aes256),
}

impl Cipher {
    /// `None`: a key of another length.
    fn new(key: &[u8]) -> Option<Self> {
        match key.len() {
            16 => Aes128::new_from_slice(key).ok().map(Self::Aes128),
            32 => Aes256::new_from_slice(key).ok().map(Self::Aes256),
            _ => None,
        }
    }

    fn encrypt(&self, block: u128) -> u128 {
        let mut block = Block::from(block.to_be_bytes());
        match self {
            Self::Aes128(cipher) => cipher.encrypt_block(&mut block),
            Self::Aes256(cipher) => cipher.encrypt_block(&mut block),
        }
        u128::from_be_bytes(block.into())
    }

    fn decrypt(&self, block: u128) -> u128 {
        let mut block = Block::from(block.to_be_bytes());
        match self {
            Self::Aes128(cipher) => cipher.decrypt_block(&mut block),
            Self::Aes256(cipher) => cipher.decrypt_block(&mut block),
        }
        u128::from_be_bytes(block.into())
    }
}

/// The keys of one file, in its order: the first seals, all open.
pub struct SealKeys {
    first: Cipher,
    others: Vec<Cipher>,
}

impl fmt::Debug for SealKeys {
    /// Never the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKeys")
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

impl SealKeys {
    /// Reads a key file: one key per line, 32 or 64 hexadecimal digits; empty lines and lines that begin with
    /// `#` do not count, nor do spaces around a key.
    ///
    /// # Errors
    /// [`KeyFileError`]; one bad line refuses the whole file, because a key that is missing would be noticed by
    /// users first.
    pub fn parse(file: &[u8]) -> Result<Self, KeyFileError> {
        if file.len() > FILE_LEN_MAX {
            return Err(KeyFileError::TooLarge);
        }
        let mut first = None;
        // All room at once: growing would leave copies behind that nobody wipes.
        let mut others = Vec::with_capacity(KEYS_MAX - 1);
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let line_text = line.trim_ascii();
            if line_text.is_empty() || line_text.starts_with(b"#") {
                continue;
            }
            let cipher = cipher(line_text).ok_or(KeyFileError::Line { line: index + 1 })?;
            if first.is_none() {
                first = Some(cipher);
            } else if others.len() < KEYS_MAX - 1 {
                others.push(cipher);
            } else {
                return Err(KeyFileError::TooMany);
            }
        }
        let first = first.ok_or(KeyFileError::Empty)?;
        Ok(Self { first, others })
    }

    /// How many there are, from 1.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The sealed form of an id, under the first key.
    #[must_use]
    pub fn seal(&self, id: i64, prefix: Prefix<'_>) -> u128 {
        let id = u128::from(id.cast_unsigned());
        self.first
            .encrypt(id << u64::BITS | u128::from(prefix_hash(prefix)))
    }

    /// The id that was sealed with this prefix under any of the keys; `None`: it was not.
    #[must_use]
    pub fn open(&self, sealed: u128, prefix: Prefix<'_>) -> Option<i64> {
        let expected = prefix_hash(prefix);
        core::iter::once(&self.first)
            .chain(&self.others)
            .map(|key| key.decrypt(sealed))
            .find(|block| *block as u64 == expected)
            .map(|block| ((block >> u64::BITS) as u64).cast_signed())
    }
}

/// Ties a sealed id to its prefix: an order's does not open as an invoice's.
fn prefix_hash(prefix: Prefix<'_>) -> u64 {
    let digest = Sha256::digest(prefix.as_str().as_bytes());
    digest
        .iter()
        .take(ID_LEN)
        .fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

/// The key of a line of hexadecimal digits.
fn cipher(line: &[u8]) -> Option<Cipher> {
    let (pairs, rest) = line.as_chunks::<2>();
    if pairs.len() > KEY_LEN_MAX || !rest.is_empty() {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY_LEN_MAX]);
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = nibble(*high)? << 4 | nibble(*low)?;
    }
    Cipher::new(&key[..pairs.len()])
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
