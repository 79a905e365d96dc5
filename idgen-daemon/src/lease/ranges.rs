//! Sets of identities as text: `0, 7, 16-31`.

use idgen_core::lease::Identity;
use std::fmt;

/// Shows identities that are in rising order, neighbours as ranges.
pub(crate) struct Ranges<'a>(pub &'a [Identity]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| next.0 == one.0 + 1);
        for (n, run) in runs.enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            match run {
                [first, .., last] => write!(f, "{first}-{last}")?,
                [only] => write!(f, "{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Reads one item of a list: a number, or an inclusive range such as `16-31`, below `size`.
pub(crate) fn parse(item: &str, size: u16) -> Result<std::ops::RangeInclusive<u16>, String> {
    let number = |text: &str| {
        let digits = Some(text.trim()).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let parsed = digits.and_then(|digits| digits.parse::<u16>().ok());
        parsed
            .filter(|number| *number < size)
            .ok_or_else(|| format!("\"{item}\" is not a number or range within 0 to {}", size - 1))
    };
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("\"{item}\" ends before it begins"));
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(identities: &[u16]) -> String {
        let identities: Vec<Identity> = identities.iter().copied().map(Identity).collect();
        Ranges(&identities).to_string()
    }

    #[test]
    fn neighbours_are_shown_as_ranges() {
        assert_eq!(shown(&[0, 7, 16, 17, 18]), "0, 7, 16-18");
        assert_eq!(shown(&[3]), "3");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn what_is_shown_can_be_read() {
        assert_eq!(parse("7", 8_192), Ok(7..=7));
        assert_eq!(parse(" 16 - 31 ", 8_192), Ok(16..=31));
        assert_eq!(parse("0-8191", 8_192), Ok(0..=8_191));
    }

    #[test]
    fn nonsense_is_refused() {
        for item in ["", "-", "8192", "5-", "-5", "a", "1-2-3", "0x10", "1-8192", "+5"] {
            let refused = parse(item, 8_192);
            assert!(refused.is_err(), "{item}: {refused:?}");
        }
        assert_eq!(
            parse("5-4", 8_192),
            Err("\"5-4\" ends before it begins".to_owned())
        );
    }
}
