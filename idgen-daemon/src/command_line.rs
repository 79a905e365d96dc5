//! What both programs do with their command line.

use crate::secret::redacted;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

/// The arguments, or the exit code of a process that has told what is wrong with them (or what was asked of them: help,
/// version).
pub fn parse<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse().map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            // A reader that has seen enough, such as `head`, is no error.
            let _ = error.print();
        } else {
            // An argument in the wrong place is quoted, and may be a URL with a password.
            let text = match wants_colours(&stderr()) {
                true => error.render().ansi().to_string(),
                false => error.render().to_string(),
            };
            let _ = stderr().write_all(redacted(&text).as_bytes());
        }
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// Somebody looks at it, and has not said that colours are not wanted.
pub fn wants_colours(to: &impl IsTerminal) -> bool {
    to.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes what this shell needs to complete the program's arguments.
pub fn complete<T: CommandFactory>(shell: Shell) {
    let mut command = T::command();
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    let _ = stdout().write_all(&script);
}
