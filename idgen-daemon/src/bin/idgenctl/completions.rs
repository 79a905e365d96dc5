//! `idgenctl completions`.

use crate::Arguments;
use crate::shared::Ended;
use clap::Args;
use clap_complete::Shell;
use idgen_daemon::command_line;
use idgen_daemon::error::Result;

#[derive(Args)]
#[command(after_help = "Example:\n  idgenctl completions bash >/etc/bash_completion.d/idgenctl")]
pub struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

impl CompletionsArguments {
    pub fn run(self) -> Result<Ended> {
        command_line::complete::<Arguments>(self.shell);
        Ok(Ended::OK)
    }
}
