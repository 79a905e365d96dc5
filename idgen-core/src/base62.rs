//! Base 62: 128 bits as 22 characters that need no escaping anywhere.
//!
//! The alphabet is in ASCII order and the width is fixed, so texts sort, byte by byte, as their numbers do.
//! 22 characters could hold more than 128 bits: what is above `7n42DGM5Tflk9n8mt7Fhc7` is refused, not
//! wrapped, so every number has exactly one text.

use core::fmt;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const BASE: u64 = 62;

/// Characters of 128 bits.
pub const LEN: usize = 22;

/// Characters that one 64-bit division loop handles: dividing 128 bits is many times slower.
const LIMB_LEN: usize = 10;
/// 62^10.
const LIMB: u64 = BASE.pow(LIMB_LEN as u32);
/// Characters above the two limbs.
const TOP_LEN: usize = LEN - 2 * LIMB_LEN;
const _: () = assert!(
    u128::MAX / (LIMB as u128 * LIMB as u128) < BASE.pow(TOP_LEN as u32) as u128,
    "128 bits fit into the width"
);

/// No digit. Larger than every digit, so it also tells the two apart in a table of bytes.
const NONE: u8 = 0xff;
const DIGITS: [u8; 256] = digits();

const fn digits() -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut digit = 0;
    while digit < ALPHABET.len() {
        table[ALPHABET[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
}

/// Why a text is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Not [`LEN`] characters.
    Length {
        /// How many bytes there are.
        found: usize,
    },
    /// A byte that is no digit of the alphabet.
    Digit {
        /// Its place in the text, from 0.
        at: usize,
    },
    /// More than 128 bits.
    TooLarge,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found } => write!(f, "{found} bytes instead of {LEN}"),
            Self::Digit { at } => write!(f, "byte {} is none of 0-9, A-Z, a-z", at + 1),
            Self::TooLarge => f.write_str("the number has more than 128 bits"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The 22 characters of a number.
#[must_use]
pub fn encode(number: u128) -> [u8; LEN] {
    let limb = u128::from(LIMB);
    let (rest, low) = (number / limb, (number % limb) as u64);
    let (top, middle) = ((rest / limb) as u64, (rest % limb) as u64);
    let mut text = [b'0'; LEN];
    write(&mut text[..TOP_LEN], top);
    write(&mut text[TOP_LEN..TOP_LEN + LIMB_LEN], middle);
    write(&mut text[TOP_LEN + LIMB_LEN..], low);
    text
}

fn write(places: &mut [u8], mut number: u64) {
    for place in places.iter_mut().rev() {
        *place = ALPHABET[(number % BASE) as usize];
        number /= BASE;
    }
}

/// The number that a text stands for.
///
/// # Errors
/// [`DecodeError`] for everything that [`encode`] does not write.
pub fn decode(text: &[u8]) -> Result<u128, DecodeError> {
    if text.len() != LEN {
        return Err(DecodeError::Length { found: text.len() });
    }
    if let Some(at) = text.iter().position(|byte| DIGITS[usize::from(*byte)] == NONE) {
        return Err(DecodeError::Digit { at });
    }
    let (top, rest) = text.split_at(TOP_LEN);
    let (middle, low) = rest.split_at(LIMB_LEN);
    let limb = u128::from(LIMB);
    // Two limbs are below 2^119: only the top can overflow.
    let rest = read(middle) * limb + read(low);
    read(top)
        .checked_mul(limb * limb)
        .and_then(|top| top.checked_add(rest))
        .ok_or(DecodeError::TooLarge)
}

/// At most [`LIMB_LEN`] digits.
fn read(digits: &[u8]) -> u128 {
    let number = digits.iter().fold(0, |number: u64, byte| {
        number * BASE + u64::from(DIGITS[usize::from(*byte)])
    });
    u128::from(number)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(&encode(0), b"0000000000000000000000");
        assert_eq!(&encode(61), b"000000000000000000000z");
        assert_eq!(&encode(62), b"0000000000000000000010");
        assert_eq!(&encode(u128::MAX), b"7n42DGM5Tflk9n8mt7Fhc7");
        assert_eq!(decode(b"7n42DGM5Tflk9n8mt7Fhc7"), Ok(u128::MAX));
    }

    #[test]
    fn one_above_128_bits_is_refused_in_every_place() {
        let last = *b"7n42DGM5Tflk9n8mt7Fhc7";
        for at in 0..LEN {
            let mut text = last;
            let digit = usize::from(DIGITS[usize::from(text[at])]);
            let Some(above) = ALPHABET.get(digit + 1) else {
                continue;
            };
            text[at] = *above;
            assert_eq!(decode(&text), Err(DecodeError::TooLarge), "place {at}");
        }
        assert_eq!(decode(&[b'z'; LEN]), Err(DecodeError::TooLarge));
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(decode(b""), Err(DecodeError::Length { found: 0 }));
        assert_eq!(decode(&[b'0'; 21]), Err(DecodeError::Length { found: 21 }));
        assert_eq!(decode(&[b'0'; 23]), Err(DecodeError::Length { found: 23 }));
        for byte in 0..=u8::MAX {
            let mut text = [b'0'; LEN];
            text[7] = byte;
            assert_eq!(decode(&text).is_ok(), byte.is_ascii_alphanumeric(), "byte {byte}");
        }
    }

    proptest! {
        #[test]
        fn every_number_comes_back_and_sorts_as_its_text(a in any::<u128>(), b in any::<u128>()) {
            let (text_a, text_b) = (encode(a), encode(b));
            prop_assert_eq!(decode(&text_a), Ok(a));
            prop_assert_eq!(a.cmp(&b), text_a.cmp(&text_b));
        }

        #[test]
        fn what_is_read_is_written_back_the_same(text in "[0-9A-Za-z]{22}") {
            if let Ok(number) = decode(text.as_bytes()) {
                prop_assert_eq!(&encode(number)[..], text.as_bytes());
            }
        }
    }
}
