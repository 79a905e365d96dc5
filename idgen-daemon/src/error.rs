//! Errors, by what the caller must do about them.

use crate::secret::redacted;
use std::fmt;
use std::process::ExitCode;

/// How a program ends. The same numbers for both, and for every command: docs/operations.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It could not be done: something is away, or has failed.
    Error = 1,
    /// Command line or configuration.
    Usage = 2,
    /// Something is found that somebody must look at, or what was asked for is refused.
    Finding = 3,
    /// It may have been done in part.
    Inconclusive = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Try again later: the other side is away, busy, or in recovery.
    Retry,
    /// Mend the configuration or the command line.
    Usage,
    /// Refused for good: somebody must change the server or install another version.
    Refused,
    /// End the process: something failed that may not fail.
    Runtime,
}

/// An error with a sentence for people, and where there is one, what they can do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// See [`ErrorKind::Retry`].
    pub fn retry(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Retry, message)
    }

    /// See [`ErrorKind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// See [`ErrorKind::Refused`].
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// See [`ErrorKind::Runtime`].
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Runtime, message)
    }

    /// Adds what can be done about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What to do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The exit code it ends a process with. `Retry` ends only one-shot commands.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.kind {
            ErrorKind::Retry | ErrorKind::Runtime => Exit::Error,
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::Refused => Exit::Finding,
        }
    }

    /// The same, as a program returns it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        self.exit().into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may quote a command line, or what a library says.
        f.write_str(&redacted(&self.message))?;
        match &self.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// What a library's error says, with its causes, each once: many print only their own half.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
