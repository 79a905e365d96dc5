//! Crockford's base 32: an id as 13 characters that survive JSON, URLs and the telephone.
//!
//! JavaScript rounds integers above 2^53, so a bigint travels better as text. The alphabet has no I, L, O and
//! U (<https://www.crockford.com/base32.html>); reading takes lower case, I and L as 1, O as 0, and hyphens
//! anywhere. Always 13 characters, so texts sort as their numbers do.

use core::fmt;

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Characters of an encoded id: 63 bits in fives.
pub const LEN: usize = 13;
const BITS_PER_CHAR: u32 = 5;
const _: () = assert!(LEN as u32 * BITS_PER_CHAR >= i64::BITS - 1);

/// Why a text is no encoded id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Not [`LEN`] characters, hyphens not counted.
    Length {
        /// How many there are.
        found: usize,
    },
    /// A byte that is no digit of the alphabet.
    Digit {
        /// Its place in the text, from 0.
        at: usize,
    },
    /// More than 63 bits.
    TooLarge,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found } => write!(f, "{found} characters instead of {LEN}"),
            Self::Digit { at } => write!(f, "byte {} is no digit of Crockford's base 32", at + 1),
            Self::TooLarge => f.write_str("the number does not fit into a positive bigint"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The 13 characters of an id; `None` for a negative number, which no id is.
#[must_use]
pub fn encode(id: i64) -> Option<[u8; LEN]> {
    let mut rest = u64::try_from(id).ok()?;
    let mut text = [b'0'; LEN];
    for place in text.iter_mut().rev() {
        *place = ALPHABET[(rest % 32) as usize];
        rest /= 32;
    }
    Some(text)
}

/// The id that a text stands for.
///
/// # Errors
/// [`DecodeError`] for everything else; never a guess.
pub fn decode(text: &[u8]) -> Result<i64, DecodeError> {
    let digits = text.iter().filter(|byte| **byte != b'-').count();
    if digits != LEN {
        return Err(DecodeError::Length { found: digits });
    }
    let mut id: u64 = 0;
    for (at, byte) in text.iter().enumerate().filter(|(_, byte)| **byte != b'-') {
        let digit = value(*byte).ok_or(DecodeError::Digit { at })?;
        if id >> (i64::BITS - 1 - BITS_PER_CHAR) != 0 {
            return Err(DecodeError::TooLarge);
        }
        id = id << BITS_PER_CHAR | digit;
    }
    i64::try_from(id).map_err(|_| DecodeError::TooLarge)
}

fn value(byte: u8) -> Option<u64> {
    let digit = match byte.to_ascii_uppercase() {
        b'O' => b'0',
        b'I' | b'L' => b'1',
        other => other,
    };
    ALPHABET
        .iter()
        .position(|known| *known == digit)
        .map(|place| place as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_values() {
        for (id, text) in [
            (0, b"0000000000000"),
            (31, b"000000000000Z"),
            (32, b"0000000000010"),
            (914_921_407_366_844_416, b"0SCKM5GNR0M00"),
            (i64::MAX, b"7ZZZZZZZZZZZZ"),
        ] {
            assert_eq!(encode(id).as_ref(), Some(text), "{id}");
            assert_eq!(decode(text), Ok(id));
        }
        assert_eq!(encode(-1), None);
    }

    #[test]
    fn reading_forgives_what_people_write() {
        assert_eq!(decode(b"oooo-OOOO-0001-0"), Ok(32));
        assert_eq!(decode(b"000000000000l"), decode(b"000000000000I"));
        assert_eq!(decode(b"7zzzzzzzzzzzz"), Ok(i64::MAX));
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(decode(b""), Err(DecodeError::Length { found: 0 }));
        assert_eq!(decode(b"-------------"), Err(DecodeError::Length { found: 0 }));
        assert_eq!(decode(&[b'0'; 14]), Err(DecodeError::Length { found: 14 }));
        assert_eq!(decode(b"000000U000000"), Err(DecodeError::Digit { at: 6 }));
        assert_eq!(
            decode("0000000000é0".as_bytes()),
            Err(DecodeError::Digit { at: 10 })
        );
        assert_eq!(decode(b"8000000000000"), Err(DecodeError::TooLarge));
        assert_eq!(decode(b"ZZZZZZZZZZZZZ"), Err(DecodeError::TooLarge));
    }

    proptest! {
        #[test]
        fn every_id_comes_back_and_sorts_as_its_text(a in 0..=i64::MAX, b in 0..=i64::MAX) {
            let (text_a, text_b) = (encode(a).unwrap(), encode(b).unwrap());
            prop_assert_eq!(decode(&text_a), Ok(a));
            prop_assert_eq!(a.cmp(&b), text_a.cmp(&text_b));
        }

        #[test]
        fn any_bytes_are_an_id_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(id) = decode(&bytes) {
                prop_assert!(id >= 0);
            }
        }
    }
}
