//! Names of leases.

use core::fmt;
use core::str::FromStr;

/// The name of a lease: words separated by slashes, such as `authority/SPACE/STRIPE`. Words have letters, digits, `.`,
/// `_` and `-`, so that a name is part of a key or path as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(String);

/// A text that is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a name has 1 to {} bytes: words of letters, digits, \".\", \"_\" and \"-\", separated by slashes",
            LeaseName::LEN_MAX
        )
    }
}

impl core::error::Error for BadName {}

impl LeaseName {
    /// Longest name, in bytes.
    pub const LEN_MAX: usize = 200;
    /// Names of locks begin with it.
    pub const LOCKS: &str = "lock/";

    /// What the authority over the segments of a stripe of a space is called.
    #[must_use]
    pub fn authority(space_id: u128, stripe: u32) -> Self {
        let hex = format!("{space_id:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Self(format!("authority/{}/{stripe}", parts.join("-")))
    }

    /// What the lock of a class of callers is called, or the one of several that has `name`.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn lock(class: &str, name: Option<&str>) -> Result<Self, BadName> {
        match name {
            Some(name) => format!("{}{class}/{name}", Self::LOCKS),
            None => format!("{}{class}", Self::LOCKS),
        }
        .parse()
    }

    /// CLASS or CLASS/NAME, where it is the name of a lock.
    #[must_use]
    pub fn of_lock(&self) -> Option<&str> {
        self.0.strip_prefix(Self::LOCKS)
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LeaseName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let is_word = |word: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            !word.is_empty() && word.bytes().all(fits)
        };
        if text.len() <= Self::LEN_MAX && text.split('/').all(is_word) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName)
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_named_by_its_class_whatever_that_is_called() {
        for (class, name, of_lock) in [
            ("a", None, "a"),
            ("a", Some("b/c"), "a/b/c"),
            ("lock", Some("a"), "lock/a"),
        ] {
            assert_eq!(LeaseName::lock(class, name).unwrap().of_lock(), Some(of_lock));
        }
        assert_eq!(LeaseName::authority(1, 0).of_lock(), None);
        assert_eq!(LeaseName::lock("a", Some("")), Err(BadName));
    }

    #[test]
    fn names_are_words_between_slashes() {
        for name in ["a", "authority/x/0", "lock/settlement.eu-1_b"] {
            assert_eq!(name.parse::<LeaseName>().unwrap().as_str(), name);
        }
        let long = "x".repeat(LeaseName::LEN_MAX + 1);
        for text in ["", "/", "a/", "/a", "a//b", "a b", "a:b", "ä", "a\n", &long] {
            assert_eq!(text.parse::<LeaseName>(), Err(BadName), "{text:?}");
        }
    }

    #[test]
    fn the_authority_of_a_stripe_has_a_name() {
        let name = LeaseName::authority(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff, 2);
        assert_eq!(name.as_str(), "authority/00112233-4455-6677-8899-aabbccddeeff/2");
        assert_eq!(name.as_str().parse(), Ok(name));
    }
}
