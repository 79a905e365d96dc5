//! The text form of public and sealed ids: a prefix that says what the id is of, `_`, 22 characters base 62.
//!
//! `ord_2kP8TzQ0xW7VbNcYh3mAeR`: a person sees that it is an order, a program can refuse an invoice, and 128
//! bits tell nothing else.

use crate::base62;
use core::fmt;

/// Longest prefix, in characters.
pub const PREFIX_LEN_MAX: usize = 16;
/// Longest text, in characters.
pub const TEXT_LEN_MAX: usize = PREFIX_LEN_MAX + 1 + base62::LEN;
const SEPARATOR: u8 = b'_';

/// A prefix of the right form: a lower-case letter, then up to 15 lower-case letters and digits.
///
/// No underscore, so that the first one of a text ends the prefix; no capitals, so that two prefixes never
/// differ by case alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix<'a>(&'a str);

/// Why a text is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// Empty, or longer than [`PREFIX_LEN_MAX`].
    Length {
        /// How many bytes there are.
        found: usize,
    },
    /// A byte that must not be where it is.
    Character {
        /// Its place, from 0.
        at: usize,
    },
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found } => {
                write!(f, "a prefix has 1 to {PREFIX_LEN_MAX} characters, not {found}")
            }
            Self::Character { at: 0 } => f.write_str("a prefix begins with a lower-case letter"),
            Self::Character { at } => {
                write!(
                    f,
                    "byte {} of the prefix is no lower-case letter or digit",
                    at + 1
                )
            }
        }
    }
}

impl core::error::Error for PrefixError {}

impl<'a> Prefix<'a> {
    /// The prefix that these bytes are.
    ///
    /// # Errors
    /// [`PrefixError`] for any other form.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PrefixError> {
        let length = PrefixError::Length { found: bytes.len() };
        if bytes.is_empty() || bytes.len() > PREFIX_LEN_MAX {
            return Err(length);
        }
        let fits = |(at, byte): (usize, &u8)| byte.is_ascii_lowercase() || (at > 0 && byte.is_ascii_digit());
        if let Some(at) = bytes.iter().enumerate().position(|byte| !fits(byte)) {
            return Err(PrefixError::Character { at });
        }
        // ASCII, as was just seen.
        core::str::from_utf8(bytes).map(Self).map_err(|_| length)
    }

    /// Its characters.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

/// A text in its final form, without an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    bytes: [u8; TEXT_LEN_MAX],
    len: usize,
}

impl Text {
    /// Its characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Written by `compose` only, from ASCII.
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The text of a number.
#[must_use]
pub fn compose(prefix: Prefix<'_>, number: u128) -> Text {
    let prefix = prefix.as_str().as_bytes();
    let mut bytes = [0; TEXT_LEN_MAX];
    let (head, rest) = bytes.split_at_mut(prefix.len());
    head.copy_from_slice(prefix);
    rest[0] = SEPARATOR;
    rest[1..=base62::LEN].copy_from_slice(&base62::encode(number));
    Text {
        bytes,
        len: prefix.len() + 1 + base62::LEN,
    }
}

/// Why a text is no public or sealed id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// No underscore where a prefix could end.
    Separator,
    /// What is before the underscore is no prefix.
    Prefix(PrefixError),
    /// What is after the underscore is no number.
    Number(base62::DecodeError),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Separator => f.write_str("there is no prefix that ends with an underscore"),
            Self::Prefix(error) => error.fmt(f),
            Self::Number(error) => write!(f, "after the underscore: {error}"),
        }
    }
}

impl core::error::Error for ParseError {}

/// Prefix and number of a text.
///
/// # Errors
/// [`ParseError`] for everything that [`compose`] does not write. Texts of any length cost the same: no more
/// than a prefix is searched for the underscore.
pub fn parse(text: &[u8]) -> Result<(Prefix<'_>, u128), ParseError> {
    let end = text
        .iter()
        .take(PREFIX_LEN_MAX + 1)
        .position(|byte| *byte == SEPARATOR)
        .ok_or(ParseError::Separator)?;
    let prefix = Prefix::parse(&text[..end]).map_err(ParseError::Prefix)?;
    let number = base62::decode(&text[end + 1..]).map_err(ParseError::Number)?;
    Ok((prefix, number))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::base62::DecodeError;
    use proptest::prelude::*;

    fn prefix(text: &str) -> Prefix<'_> {
        Prefix::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_text_has_its_prefix_in_front() {
        let text = compose(prefix("ord"), u128::MAX);
        assert_eq!(text.as_str(), "ord_7n42DGM5Tflk9n8mt7Fhc7");
        assert_eq!(parse(text.as_str().as_bytes()), Ok((prefix("ord"), u128::MAX)));
        let longest = compose(prefix("a234567890123456"), 0);
        assert_eq!(longest.as_str().len(), TEXT_LEN_MAX);
    }

    #[test]
    fn the_form_of_a_prefix() {
        for good in ["a", "ord", "a1", "z9z9", "abcdefghijklmnop"] {
            assert_eq!(Prefix::parse(good.as_bytes()).map(|found| found.0), Ok(good));
        }
        for (bad, error) in [
            ("", PrefixError::Length { found: 0 }),
            ("abcdefghijklmnopq", PrefixError::Length { found: 17 }),
            ("1a", PrefixError::Character { at: 0 }),
            ("_a", PrefixError::Character { at: 0 }),
            ("a_", PrefixError::Character { at: 1 }),
            ("a_b", PrefixError::Character { at: 1 }),
            ("Ord", PrefixError::Character { at: 0 }),
            ("orD", PrefixError::Character { at: 2 }),
            ("ord ", PrefixError::Character { at: 3 }),
            ("örd", PrefixError::Character { at: 0 }),
            ("o\0d", PrefixError::Character { at: 1 }),
        ] {
            assert_eq!(Prefix::parse(bad.as_bytes()), Err(error), "{bad:?}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let zeros = "0".repeat(base62::LEN);
        for (bad, error) in [
            (String::new(), ParseError::Separator),
            (zeros.clone(), ParseError::Separator),
            (format!("abcdefghijklmnopq_{zeros}"), ParseError::Separator),
            (
                format!("_{zeros}"),
                ParseError::Prefix(PrefixError::Length { found: 0 }),
            ),
            (
                format!("ORD_{zeros}"),
                ParseError::Prefix(PrefixError::Character { at: 0 }),
            ),
            (
                "ord_".into(),
                ParseError::Number(DecodeError::Length { found: 0 }),
            ),
            (
                format!("ord_{zeros}0"),
                ParseError::Number(DecodeError::Length { found: 23 }),
            ),
            (
                format!("ord__{}", &zeros[1..]),
                ParseError::Number(DecodeError::Digit { at: 0 }),
            ),
            (
                "ord_7n42DGM5Tflk9n8mt7Fhc8".into(),
                ParseError::Number(DecodeError::TooLarge),
            ),
        ] {
            assert_eq!(parse(bad.as_bytes()), Err(error), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_id_comes_back(head in "[a-z][a-z0-9]{0,15}", number in any::<u128>()) {
            let text = compose(prefix(&head), number);
            prop_assert_eq!(parse(text.as_str().as_bytes()), Ok((prefix(&head), number)));
        }

        #[test]
        fn what_is_read_is_written_back_the_same(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok((head, number)) = parse(&bytes) {
                let text = compose(head, number);
                prop_assert_eq!(text.as_str().as_bytes(), &bytes[..]);
            }
        }
    }
}
