//! What the commands share: the cell they are about, how they show things, and how they end.

use clap::{Args, ValueEnum};
use idgen_core::clock::UnixMs;
use idgen_daemon::command_line::wants_colours;
use idgen_daemon::config::Config;
use idgen_daemon::error::{Error, Exit, Result};
use idgen_daemon::operator::consent::{Change, Consent};
use serde::Serialize;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// How a command ends where it does not end by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As commands of ours do.
    Ours(Exit),
    /// As the command did that it has run.
    As(u8),
}

impl Ended {
    pub const OK: Self = Self::Ours(Exit::Ok);
    pub const FINDING: Self = Self::Ours(Exit::Finding);
    pub const INCONCLUSIVE: Self = Self::Ours(Exit::Inconclusive);

    /// A finding unless all is well.
    pub fn unless(is_well: bool) -> Self {
        if is_well { Self::OK } else { Self::FINDING }
    }
}

/// Of commands that ask or change a lease store.
#[derive(Args)]
pub struct CellArguments {
    /// Configuration file of an idgend of the cell; of the one with the longest window where they differ.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    pub output: OutputArguments,
}

impl CellArguments {
    pub fn load(&self) -> Result<Config> {
        Config::load(&self.config)
    }
}

/// Of commands that show something.
#[derive(Args)]
pub struct OutputArguments {
    /// As text for people, or as JSON.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

impl OutputArguments {
    pub fn is_json(&self) -> bool {
        matches!(self.output, Output::Json)
    }

    pub fn show<T: Serialize>(&self, what: &T, for_people: impl FnOnce(&T) -> String) -> Result<()> {
        let text = match self.output {
            Output::Table => for_people(what),
            Output::Json => serde_json::to_string_pretty(what)
                .map_err(|error| Error::runtime(format!("write JSON: {error}")))?,
        };
        // A reader that has seen enough, such as `head`, is no error.
        let _ = writeln!(stdout(), "{text}");
        Ok(())
    }

    /// Of a change: what it has made of things, or would have.
    pub fn show_change<T: Serialize>(
        &self,
        change: &Change<T>,
        for_people: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        self.show(change, |change| change.text(for_people))
    }
}

/// Of commands whose change cannot be taken back.
#[derive(Args)]
pub struct ConsentArguments {
    /// Do everything but write: say what would be done, or refuse as the command would.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask. Without a terminal the command is refused unless this is given.
    #[arg(short, long)]
    yes: bool,
}

impl ConsentArguments {
    pub fn consent(&self) -> Result<Consent> {
        Consent::of(self.dry_run, self.yes)
    }
}

/// Of commands that change something which ends by itself, or which may be done again: nobody is asked.
#[derive(Args)]
pub struct DryRunArguments {
    /// Do everything but write: say what would be done, or refuse as the command would.
    #[arg(long)]
    pub dry_run: bool,
}

pub fn wait_for<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::runtime(format!("start the runtime: {error}")))?;
    Ok(runtime.block_on(work))
}

/// The text with the line that says the state in green or red, where somebody looks at it.
pub fn with_state(text: String, is_well: bool) -> String {
    if !wants_colours(&stdout()) {
        return text;
    }
    let colour = if is_well { "32" } else { "31" };
    let lines = text.lines().map(|line| match line.strip_prefix("state ") {
        Some(state) => format!("state \u{1b}[{colour}m{state}\u{1b}[0m"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// So long ago, or a time.
pub fn moment(text: &str) -> std::result::Result<UnixMs, String> {
    let at = match humantime::parse_duration(text) {
        Ok(ago) => SystemTime::now().checked_sub(ago),
        Err(_) => Some(humantime::parse_rfc3339_weak(text).map_err(|error| error.to_string())?),
    };
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let ms = since.and_then(|since| u64::try_from(since.as_millis()).ok());
    ms.map(UnixMs).ok_or_else(|| "that is before 1970".to_owned())
}
