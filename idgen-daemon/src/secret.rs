//! What is never shown: passwords as a type, and what looks like one in a text that is.
//!
//! A value of ours that is secret is a [`Secret`], so it cannot be shown by mistake. What somebody else's text quotes (the
//! command line, a file that cannot be read as TOML, a message of a library) is put through [`redacted`] where it leaves the
//! process: errors, the log, panics.

use serde::Deserialize;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::panic;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// To be used, not to be shown.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

const HIDDEN: &str = "***";

/// The text without passwords in URLs (`http://user:PASSWORD@host`) and in pairs (`password=PASSWORD`).
#[must_use]
pub fn redacted(text: &str) -> Cow<'_, str> {
    if !text.contains("://") && !text.to_ascii_lowercase().contains("password") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(without_pairs(&without_urls(text)))
}

/// Whatever ends a URL within a sentence, a shell's word, TOML or JSON.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '\\' | '<' | '>')
}

fn without_urls(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        safe.push_str(before);
        let end = after.find(ends_word).unwrap_or(after.len());
        let (word, more) = after.split_at(end);
        // A password that was not percent-encoded may hold a slash or an at sign: the last one counts.
        match word
            .rsplit_once('@')
            .and_then(|(login, host)| Some((login.split_once(':')?.0, host)))
        {
            Some((user, host)) => safe.extend([user, ":", HIDDEN, "@", host]),
            None => safe.push_str(word),
        }
        rest = more;
    }
    safe.push_str(rest);
    safe
}

fn without_pairs(text: &str) -> String {
    const KEY: &str = "password";
    let lower = text.to_ascii_lowercase();
    let mut safe = String::with_capacity(text.len());
    let mut from = 0;
    while let Some(at) = lower[from..].find(KEY) {
        let after_key = from + at + KEY.len();
        safe.push_str(&text[from..after_key]);
        from = after_key;
        let rest = &text[after_key..];
        let spaced = rest.trim_start_matches(' ');
        if let Some(value) = spaced.strip_prefix('=') {
            let value = value.trim_start_matches(' ');
            let begin = text.len() - value.len();
            safe.push_str(&text[after_key..begin]);
            safe.push_str(HIDDEN);
            from = begin + value_len(value);
        }
    }
    safe.push_str(&text[from..]);
    safe
}

/// Of a value in quotes, both quotes are part of it.
fn value_len(value: &str) -> usize {
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    match quote {
        Some(quote) => value[1..].find(quote).map_or(value.len(), |end| end + 2),
        None => value.find(|c| ends_word(c) || c == '&').unwrap_or(value.len()),
    }
}

/// Writes lines on, redacted. Each write is a whole line, as `tracing` makes them.
pub struct Redacting<W>(pub W);

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(redacted(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// From now on a panic is told redacted too.
pub fn tell_panics_redacted() {
    panic::set_hook(Box::new(|info| {
        let mut told = redacted(&info.to_string()).into_owned();
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            told.push_str(&format!("\n{backtrace}"));
        }
        // Nobody is left to tell that it could not be told.
        let _ = writeln!(io::stderr(), "{told}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_wherever_a_text_has_them() {
        let cases = [
            ("read x: No such file", "read x: No such file"),
            ("at http://10.0.0.1:2379", "at http://10.0.0.1:2379"),
            (
                "at https://host/a?b=c, and more",
                "at https://host/a?b=c, and more",
            ),
            ("postgres://me@host:5432/db", "postgres://me@host:5432/db"),
            ("\"http://root:pw@h:1\" is", "\"http://root:***@h:1\" is"),
            ("postgres://u:p/w@x@h/db 'x'", "postgres://u:***@h/db 'x'"),
            (
                "postgres://u@h/db?password=pw&a=b",
                "postgres://u@h/db?password=***&a=b",
            ),
            ("host=h password=pw user=u", "host=h password=*** user=u"),
            ("host=h Password = 'p w' user=u", "host=h Password = *** user=u"),
            ("password='never closed", "password=***"),
            (
                "store.password_file: x is empty",
                "store.password_file: x is empty",
            ),
            ("IDGEND_STORE__PASSWORD=pw", "IDGEND_STORE__PASSWORD=***"),
            ("the password is wrong", "the password is wrong"),
            ("password=", "password=***"),
            ("ſ password=ſſ ſ", "ſ password=*** ſ"),
        ];
        for (text, safe) in cases {
            assert_eq!(redacted(text), safe, "{text}");
        }
        let two = "http://a:pw@b and http://c:pw@d password=pw";
        assert!(!redacted(two).contains("pw"), "{}", redacted(two));
    }

    #[test]
    fn a_secret_has_no_text() {
        let secret = Secret::from("pw".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret.expose(), "pw");
    }

    #[test]
    fn a_line_is_written_whole_whatever_its_length_becomes() {
        let mut written = Vec::new();
        let line = b"at http://u:pw@h\n";
        assert_eq!(Redacting(&mut written).write(line).unwrap(), line.len());
        assert_eq!(written, b"at http://u:***@h\n");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z:/@= '\"\\\\ſ]|password|://)*") {
            let _ = redacted(&text);
        }
    }
}
