//! What somebody has typed as an id.

use crate::public_id::{self, ParseError, Prefix};
use crate::{base32, uuid};
use core::fmt;

/// An id in one of the forms that this extension writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A 64-bit id: a snowflake, or a value of a segment. Nothing in it says which.
    Number(i64),
    /// A UUID, its bytes in the order of the text.
    Uuid([u8; 16]),
    /// `ord_…`: random, or a sealed 64-bit id. Only the keys tell.
    Outside {
        /// What it begins with.
        prefix: String,
        /// The 128 bits behind.
        number: u128,
    },
}

/// Why a text is no id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoId {
    /// It looks like a public or sealed id, and is none.
    Outside(ParseError),
    /// It has no form that this extension writes.
    Form,
}

impl fmt::Display for NoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside(error) => write!(f, "no public or sealed id: {error}"),
            Self::Form => f.write_str("no id of a form that is known"),
        }
    }
}

impl core::error::Error for NoId {}

const UUID_DIGITS: usize = 32;

impl Asked {
    /// Reads a decimal number, a UUID (with or without hyphens), 13 characters of Crockford's base32 (`idgen_encode()`), or a
    /// public or sealed id. Digits alone are a decimal number.
    ///
    /// # Errors
    /// [`NoId`].
    pub fn parse(text: &str) -> Result<Self, NoId> {
        let text = text.trim();
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        if text.contains('_') {
            let (prefix, number): (Prefix<'_>, u128) =
                public_id::parse(text.as_bytes()).map_err(NoId::Outside)?;
            let prefix = prefix.as_str().to_owned();
            return Ok(Self::Outside { prefix, number });
        }
        if let Some(bytes) = uuid_bytes(text) {
            return Ok(Self::Uuid(bytes));
        }
        base32::decode(text.as_bytes())
            .map(Self::Number)
            .map_err(|_| NoId::Form)
    }

    /// Of a UUID: its version; `None` for the nil UUID, and for others that RFC 9562 has not made.
    #[must_use]
    pub fn uuid_version(&self) -> Option<u8> {
        match self {
            Self::Uuid(bytes) => uuid::version(bytes),
            _ => None,
        }
    }
}

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let hyphens: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    if !hyphens.is_empty() && hyphens != [8, 13, 18, 23] {
        return None;
    }
    let digits = text.replace('-', "");
    let is_hex = digits.len() == UUID_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_hex.then(|| u128::from_str_radix(&digits, 16).ok())??;
    Some(number.to_be_bytes())
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_form_is_known_by_its_look() {
        assert_eq!(Asked::parse(" 4711\n"), Ok(Asked::Number(4_711)));
        assert_eq!(Asked::parse("-1"), Ok(Asked::Number(-1)));
        let v7 = Asked::parse("017F22E2-79B0-7CC3-98C4-DC0C0C07398F").unwrap();
        assert_eq!(
            v7,
            Asked::Uuid(0x017f_22e2_79b0_7cc3_98c4_dc0c_0c07_398f_u128.to_be_bytes())
        );
        assert_eq!(v7.uuid_version(), Some(7));
        assert_eq!(Asked::parse("017f22e279b07cc398c4dc0c0c07398f"), Ok(v7));
        let prefix = Prefix::parse(b"ord").unwrap();
        assert_eq!(
            Asked::parse(public_id::compose(prefix, 7).as_str()),
            Ok(Asked::Outside {
                prefix: "ord".to_owned(),
                number: 7
            })
        );
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "x",
            "9223372036854775808",
            "12-34",
            "017f22e2-79b07cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        ] {
            assert_eq!(Asked::parse(text), Err(NoId::Form), "{text}");
        }
        assert!(matches!(Asked::parse("ord_1"), Err(NoId::Outside(_))));
        assert_eq!(Asked::parse("1").unwrap().uuid_version(), None);
    }

    proptest! {
        #[test]
        fn numbers_are_read_in_both_their_forms(id in 0..=i64::MAX) {
            prop_assert_eq!(Asked::parse(&id.to_string()), Ok(Asked::Number(id)));
            let encoded = base32::encode(id).unwrap();
            let text = core::str::from_utf8(&encoded).unwrap();
            // Digits alone are a number: of 13 characters about one in 1,800.
            if text.bytes().any(|byte| !byte.is_ascii_digit()) {
                prop_assert_eq!(Asked::parse(text), Ok(Asked::Number(id)));
            }
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,40}") {
            let _ = Asked::parse(&text);
        }
    }
}
