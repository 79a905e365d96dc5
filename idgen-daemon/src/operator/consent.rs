//! Whether a change that was planned is made: somebody has said yes to what it does, or it was only to be tried.

use crate::error::{Error, Result};
use serde::Serialize;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

/// What whoever runs a command has said of the change before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Nothing is to be written: the command ends where it would begin to.
    DryRun,
    /// Yes, whatever it does.
    Given,
    /// To be asked, on the terminal, in the words of what was planned.
    Ask,
}

impl Consent {
    /// Of the options of a command. Where nobody can be asked, it is refused before anything is looked at.
    pub fn of(dry_run: bool, yes: bool) -> Result<Self> {
        let is_terminal = stdin().is_terminal() && stderr().is_terminal();
        Self::among(dry_run, yes, is_terminal)
    }

    fn among(dry_run: bool, yes: bool, is_terminal: bool) -> Result<Self> {
        match (dry_run, yes, is_terminal) {
            (true, ..) => Ok(Self::DryRun),
            (false, true, _) => Ok(Self::Given),
            (false, false, true) => Ok(Self::Ask),
            (false, false, false) => Err(Error::usage(
                "nobody has said yes to this, and there is no terminal to ask on",
            )
            .with_hint("--dry-run shows what it would do, --yes does it")),
        }
    }

    /// May what the sentence says be done? An error: somebody was asked, and has not said yes.
    pub fn may(self, sentence: &str) -> Result<bool> {
        match self {
            Self::DryRun => Ok(false),
            Self::Given => Ok(true),
            Self::Ask => ask(&mut stderr(), &mut stdin().lock(), sentence).map(|()| true),
        }
    }
}

fn ask(to: &mut impl Write, from: &mut impl BufRead, sentence: &str) -> Result<()> {
    let failed = |error| Error::runtime(format!("ask on the terminal: {error}"));
    write!(to, "{sentence}\nGo on? [y/N] ")
        .and_then(|()| to.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    from.read_line(&mut answer).map_err(failed)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::runtime("nothing was changed: the answer was not yes")),
    }
}

/// What a command has changed, or would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change<T> {
    /// How things are now; of a dry run, how they would be where that is known, else how they are.
    #[serde(flatten)]
    pub shown: T,
    /// Nothing was written.
    pub dry_run: bool,
    /// What a dry run would have done, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would: Option<String>,
}

impl<T> Change<T> {
    /// It was made.
    pub fn made(shown: T) -> Self {
        Self {
            shown,
            dry_run: false,
            would: None,
        }
    }

    /// It was not, but would have been.
    pub fn tried(shown: T, sentence: impl Into<String>) -> Self {
        Self {
            shown,
            dry_run: true,
            would: Some(sentence.into()),
        }
    }

    /// For people.
    pub fn text(&self, of_shown: impl FnOnce(&T) -> String) -> String {
        match &self.would {
            None => of_shown(&self.shown),
            Some(would) => format!("dry run, nothing was changed. {would}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_is_asked_and_a_dry_run_never_writes() {
        let cases = [
            ((true, true, false), Some(Consent::DryRun)),
            ((true, false, true), Some(Consent::DryRun)),
            ((false, true, true), Some(Consent::Given)),
            ((false, true, false), Some(Consent::Given)),
            ((false, false, true), Some(Consent::Ask)),
            ((false, false, false), None),
        ];
        for ((dry_run, yes, is_terminal), expected) in cases {
            let consent = Consent::among(dry_run, yes, is_terminal);
            assert_eq!(consent.ok(), expected, "{dry_run} {yes} {is_terminal}");
        }
        assert!(!Consent::DryRun.may("x").unwrap());
        assert!(Consent::Given.may("x").unwrap());
    }

    #[test]
    fn nothing_but_yes_is_yes() {
        for (answer, is_yes) in [
            ("y\n", true),
            ("YES\n", true),
            (" y ", true),
            ("", false),
            ("\n", false),
            ("n\n", false),
            ("yep\n", false),
        ] {
            let mut said = Vec::new();
            let asked = ask(&mut said, &mut answer.as_bytes(), "It does this.");
            assert_eq!(asked.is_ok(), is_yes, "{answer:?}");
            assert_eq!(String::from_utf8(said).unwrap(), "It does this.\nGo on? [y/N] ");
        }
    }

    #[test]
    fn a_dry_run_says_so_in_json_too() {
        #[derive(Serialize)]
        struct Shown {
            plan: &'static str,
        }
        let json = |change: &Change<Shown>| serde_json::to_string(change).unwrap();
        let shown = Shown { plan: "classic" };
        let made = Change::made(shown);
        assert_eq!(json(&made), r#"{"plan":"classic","dry_run":false}"#);
        assert_eq!(made.text(|shown| shown.plan.to_owned()), "classic");
        let tried = Change::tried(Shown { plan: "mine" }, "It would.");
        assert_eq!(
            json(&tried),
            r#"{"plan":"mine","dry_run":true,"would":"It would."}"#
        );
        assert_eq!(
            tried.text(|_| String::new()),
            "dry run, nothing was changed. It would."
        );
    }
}
