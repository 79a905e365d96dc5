//! `idgenctl lock`.

use crate::shared::{CellArguments, DryRunArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::consent::Change;
use idgen_daemon::operator::lock::{self, Locks, Outcome, Wish};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

#[derive(Subcommand)]
pub enum LockCommand {
    /// Take a lock, run a command while it is held, and give it back. The command is asked to stop (SIGTERM) when the lock
    /// cannot be renewed, and ended (SIGKILL) at its deadline. Ends as the command does; 3 the lock was not to be had in
    /// time, 4 it was lost and the command stopped.
    #[command(after_help = RUN_HELP)]
    Run {
        // A section [locks.CLASS] is in it.
        #[command(flatten)]
        cell: CellArguments,
        /// The class of the lock, a section [locks.CLASS] of the configuration.
        #[arg(long, value_name = "CLASS")]
        class: String,
        /// Which lock of the class: words of letters, digits, ".", "_" and "-", separated by slashes. Without it the class
        /// is one lock.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// How long to wait for it, as 30s or 5m.
        #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
        wait: Duration,
        #[command(flatten)]
        dry_run: DryRunArguments,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Show every lock that was ever taken, and who has it.
    #[command(after_help = "Example:\n  idgenctl lock list --config /etc/idgend.toml")]
    List {
        #[command(flatten)]
        cell: CellArguments,
    },
}

const RUN_HELP: &str = "\
Example:
  idgenctl lock run --config /etc/idgend.toml --class settlement --name 2026-11 --wait 5m -- ./settle.sh

The command finds the lock's name in IDGEN_LOCK and, unless the class is advisory, its fencing token in
IDGEN_LOCK_TOKEN. What it writes to must refuse a token below one that it has seen, in the transaction that writes:

  idgenctl lock run --config /etc/idgend.toml --class settlement --wait 1m -- sh -c '
    psql app -v ON_ERROR_STOP=1 -c \"BEGIN\" -c \"SELECT idgen.fence('\\''$IDGEN_LOCK'\\'', '\\''$IDGEN_LOCK_TOKEN'\\'')\" \\
      -c \"UPDATE account SET settled = true\" -c \"COMMIT\"'";

impl LockCommand {
    pub fn run(self) -> Result<Ended> {
        match self {
            Self::List { cell } => {
                let locks = wait_for(lock::list(&cell.load()?))??;
                cell.output.show(&locks, Locks::table)?;
                Ok(Ended::OK)
            }
            Self::Run {
                cell,
                class,
                name,
                wait,
                dry_run,
                command,
            } => {
                let wish = Wish {
                    class,
                    name,
                    wait,
                    command,
                };
                if dry_run.dry_run {
                    return try_lock(&cell, &wish);
                }
                run_locked(&cell, &wish)
            }
        }
    }
}

fn try_lock(cell: &CellArguments, wish: &Wish) -> Result<Ended> {
    match wait_for(lock::look(&cell.load()?, wish))?? {
        Ok((locks, would)) => {
            cell.output
                .show_change(&Change::tried(locks, would), Locks::table)?;
            Ok(Ended::OK)
        }
        Err(why) => Ok(not_to_be_had(&why)),
    }
}

fn run_locked(cell: &CellArguments, wish: &Wish) -> Result<Ended> {
    Ok(match wait_for(lock::run(&cell.load()?, wish))?? {
        Outcome::Ended(status) => as_shells_do(status),
        Outcome::Taken(why) => not_to_be_had(&why),
        Outcome::Stopped(why, status) => {
            eprintln!("idgenctl: the lock is lost ({why}), and the command was stopped: {status}");
            Ended::INCONCLUSIVE
        }
    })
}

fn not_to_be_had(why: &str) -> Ended {
    eprintln!("idgenctl: the lock is not to be had: {why}");
    Ended::FINDING
}

/// 128 and the number of the signal, for a command that one has ended.
fn as_shells_do(status: ExitStatus) -> Ended {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    Ended::As(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
