//! `idgenctl`: the operator's view of a server with pg_idgen, and what an operator may change.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand, ValueEnum};
use idgen_core::lease::Class;
use idgen_daemon::config::{Config, parse_postgres};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::epoch::EpochStatus;
use idgen_daemon::operator::format::{Formats, When};
use idgen_daemon::operator::leases::Leases;
use idgen_daemon::operator::lock::{Locks, Outcome};
use idgen_daemon::operator::stripes::Stripes;
use idgen_daemon::operator::{clock, epoch, format, leases, lock, masters, stripes};
use idgen_daemon::status::{CertificateStatus, PoolStatus, Status, table};
use idgen_daemon::tls::install_provider;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// Exit code of a status without an open lease.
const EXIT_FINDING: u8 = 3;
/// Exit code of a command that may have done half of its work.
const EXIT_INCONCLUSIVE: u8 = 4;

#[derive(Parser)]
#[command(
    name = "idgenctl",
    version,
    about = "Look at the leases of a Postgres server that has pg_idgen, and change what an operator may change.",
    after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 finding (no open lease, a sealed store) or refused, \
                  4 inconclusive (a lock was lost)."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show server, cell, slots, tokens, seconds to the deadline and ceiling lead.
    Status {
        /// As a table for people, or as JSON.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
        /// Configuration file of the server's idgend.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "postgres",
            required_unless_present = "postgres"
        )]
        config: Option<PathBuf>,
        /// libpq URL or key=value string of the server.
        #[arg(long, value_name = "URL")]
        postgres: Option<String>,
    },
    /// The wall clock that idgend believes.
    #[command(subcommand)]
    Clock(ClockCommand),
    /// The format of the ids that the workers of a cell mint.
    #[command(subcommand)]
    Format(FormatCommand),
    /// The epoch of a cell: whether its lease store is sealed, and how it is opened.
    #[command(subcommand)]
    Epoch(EpochCommand),
    /// Who has which identity, as the lease store of a cell says it.
    #[command(subcommand)]
    Leases(LeasesCommand),
    /// Which database has which stripe of a space that several masters share.
    #[command(subcommand)]
    Stripes(StripesCommand),
    /// Commands that run as long as they alone hold a name.
    #[command(subcommand)]
    Lock(LockCommand),
}

#[derive(Subcommand)]
enum ClockCommand {
    /// Say that the server's wall clock is right as it is now, although it was set, is not synchronised or is apart
    /// from the peers': idgend takes new leases and raises ceilings by it again, until that is over. May be repeated;
    /// does nothing when the clock is believed already. The idgend must run on this host and serve HTTP.
    Accept {
        /// Configuration file of the idgend.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "http",
            required_unless_present = "http"
        )]
        config: Option<PathBuf>,
        /// Address and port that it listens at.
        #[arg(long, value_name = "ADDR")]
        http: Option<SocketAddr>,
    },
}

#[derive(Subcommand)]
enum FormatCommand {
    /// Show the format, and the switch to another one, past or to come.
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Switch to another format at a moment to come. Every server of the cell follows by itself; nothing is
    /// restarted. Refused while another switch is pending, and unless ids go on rising over it. It cannot be taken
    /// back.
    Switch {
        #[command(flatten)]
        cell: CellArguments,
        /// Name of a format that is compiled in, or registered in the server's database.
        #[arg(long, value_name = "NAME")]
        to: String,
        /// Region of the cell, for a format that has one.
        #[arg(long, value_name = "N")]
        region: Option<u64>,
        /// The moment, as 2026-12-01T03:00:00Z, or how long from now, as +15m. It must lie beyond every window
        /// that was or is being granted.
        #[arg(long, value_name = "WHEN", default_value = "+15m")]
        at: When,
    },
}

#[derive(Subcommand)]
enum EpochCommand {
    /// Show the epoch, the identity of the store, whether it is sealed and why, and what an advance would do. Ends
    /// with 3 when it is sealed.
    Show {
        #[command(flatten)]
        cell: CellArguments,
    },
    /// Open a store that was restored, promoted or moved: the cell begins a new epoch in it. Workers mint again at
    /// once, from the other half of their numbers; shards when all that was lost has run out. Refused while the
    /// store is not sealed, and twice within the time that the longest window takes.
    Advance {
        #[command(flatten)]
        cell: CellArguments,
        /// The store that is meant, as idgenctl epoch show prints it.
        #[arg(long, value_name = "ID")]
        identity: String,
        /// Why. It is kept with the epoch.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// The plan of formats that holds, as it is printed: only where servers follow plans that contradict each
        /// other. Workers are leased when all windows have run out, and servers that follow another plan mint again
        /// after a restart of Postgres.
        #[arg(long, value_name = "PLAN")]
        formats: Option<String>,
    },
}

#[derive(Subcommand)]
enum LeasesCommand {
    /// Show every worker and shard that is not free: state, holder, token, ceiling. Works on a sealed store too, and
    /// names the holders of another epoch, such as those of an old primary. Asks the store, not the servers.
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Of one class only.
        #[arg(long, value_enum)]
        class: Option<Kind>,
    },
}

#[derive(Subcommand)]
enum StripesCommand {
    /// Show every stripe that is or was claimed, and who holds its authority now.
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Of one space only.
        #[arg(long, value_name = "UUID")]
        space: Option<Uuid>,
    },
    /// Give a stripe of a space to a database of this configuration's server, for good: its standbys have it too. Refused
    /// while another database has it, when the space is cut among another number of masters, and when another database
    /// had it whose grants the store does not know. Does nothing when it has it already.
    Claim {
        #[command(flatten)]
        cell: CellArguments,
        /// The space: space_id in idgen.health of the database that has made it, which is the first to claim.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The index of the stripe, from 0.
        #[arg(long, value_name = "I")]
        stripe: u32,
        /// Among how many masters the space is cut, 2 to 64. The first claim decides it, for good.
        #[arg(long, value_name = "N")]
        of: u32,
        /// Ids per stripe, 10,000 to 1,000,000,000,000. The first claim decides it: 100,000 where it does not say.
        #[arg(long, value_name = "IDS")]
        size: Option<u64>,
        /// Ids up to this one were granted before the space was cut, and are nobody's. The first claim decides it: 0 where
        /// it does not say.
        #[arg(long, value_name = "ID")]
        above: Option<i64>,
        /// The database that is to belong to the space; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
    },
    /// Let a database of this configuration's server grant under the index that it has claimed. Refused without a claim, before
    /// the database that has made the space, when its tags have granted what may be others', and when a database has
    /// granted under the index before and how far is not known. Done again, it takes in tags that came since from a dump.
    Join {
        #[command(flatten)]
        cell: CellArguments,
        /// The space.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The database; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
    },
    /// Make a database of this configuration's server a space of its own again, and give its index back.
    Leave {
        #[command(flatten)]
        cell: CellArguments,
        /// The space that it leaves.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The database; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        /// Why. It is kept with the claim.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Take a stripe from a database that is gone. Refused while it has joined and its authority is held. The claim stays on record.
    Release {
        #[command(flatten)]
        cell: CellArguments,
        /// The space.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The index of the stripe.
        #[arg(long, value_name = "I")]
        stripe: u32,
        /// Why. It is kept with the claim.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Subcommand)]
enum LockCommand {
    /// Take a lock, run a command while it is held, and give it back. The command is asked to stop (SIGTERM) when the lock
    /// cannot be renewed, and ended (SIGKILL) at its deadline. Ends as the command does; 3 the lock was not to be had in
    /// time, 4 it was lost and the command stopped.
    #[command(after_help = LOCK_RUN_HELP)]
    Run {
        /// Configuration file of an idgend of the cell, with a section [locks.CLASS].
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The class of the lock.
        #[arg(long, value_name = "CLASS")]
        class: String,
        /// Which lock of the class: words of letters, digits, ".", "_" and "-", separated by slashes. Without it the class
        /// is one lock.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// How long to wait for it, as 30s or 5m.
        #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
        wait: Duration,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Show every lock that was ever taken, and who has it.
    List {
        #[command(flatten)]
        cell: CellArguments,
    },
}

const LOCK_RUN_HELP: &str = "\
The command finds the lock's name in IDGEN_LOCK and, unless the class is advisory, its fencing token in
IDGEN_LOCK_TOKEN. What it writes to must refuse a token below one that it has seen, in the transaction that writes:

  idgenctl lock run --config /etc/idgend.toml --class settlement --wait 1m -- sh -c '
    psql app -v ON_ERROR_STOP=1 -c \"BEGIN\" -c \"SELECT idgen.fence('\\''$IDGEN_LOCK'\\'', '\\''$IDGEN_LOCK_TOKEN'\\'')\" \\
      -c \"UPDATE account SET settled = true\" -c \"COMMIT\"'";

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Worker,
    Shard,
}

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Worker => Self::Worker,
            Kind::Shard => Self::Shard,
        }
    }
}

#[derive(Args)]
struct CellArguments {
    /// Configuration file of an idgend of the cell; of the one with the longest window where they differ.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// As text for people, or as JSON.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    install_provider();
    let outcome = match Arguments::parse().command {
        Command::Status {
            output,
            config,
            postgres,
        } => show_status(output, config, postgres),
        Command::Clock(ClockCommand::Accept { config, http }) => accept_clock(config, http),
        Command::Format(FormatCommand::Show { cell }) => show_formats(&cell),
        Command::Format(FormatCommand::Switch { cell, to, region, at }) => {
            switch_format(&cell, &format::Wish { to, region, when: at })
        }
        Command::Epoch(EpochCommand::Show { cell }) => show_epoch(&cell),
        Command::Epoch(EpochCommand::Advance {
            cell,
            identity,
            reason,
            formats,
        }) => advance_epoch(&cell, &identity, &reason, formats),
        Command::Leases(LeasesCommand::List { cell, class }) => list_leases(&cell, class),
        Command::Stripes(command) => stripes_command(&command),
        Command::Lock(LockCommand::List { cell }) => list_locks(&cell),
        Command::Lock(LockCommand::Run {
            config,
            class,
            name,
            wait,
            command,
        }) => run_locked(
            &config,
            &lock::Wish {
                class,
                name,
                wait,
                command,
            },
        ),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("idgenctl: {error}");
            error.exit_code()
        }
    }
}

fn show_status(output: Output, config: Option<PathBuf>, postgres: Option<String>) -> Result<ExitCode> {
    let config = config.as_deref().map(Config::load).transpose()?;
    let (url, limit) = match (&config, postgres) {
        (Some(config), _) => (config.postgres.url.clone(), config.postgres.connect_timeout),
        (None, Some(url)) => (parse_postgres("--postgres", &url)?, Duration::from_secs(3)),
        (None, None) => return Err(Error::usage("neither --config nor --postgres is given")),
    };
    let mut status = wait_for(Status::read(&url, limit))??;
    if let Some(config) = &config {
        // The server's own state is told whether or not its store is within reach.
        status.pool = Some(match wait_for(leases::pool(config))? {
            Ok(Some(pool)) => PoolStatus::Known(pool),
            Ok(None) => PoolStatus::Unknown("the lease store is new".to_owned()),
            Err(error) => PoolStatus::Unknown(error.to_string()),
        });
        let now = SystemTime::now();
        let files = config.client_certificates();
        status.certificates = files
            .iter()
            .map(|file| CertificateStatus::read(file, now))
            .collect();
    }
    show(output, &status, table)?;
    Ok(if status.is_serving() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FINDING)
    })
}

fn accept_clock(config: Option<PathBuf>, http: Option<SocketAddr>) -> Result<ExitCode> {
    let addr = match (config, http) {
        (_, Some(addr)) => addr,
        (Some(path), None) => http_of(&Config::load(&path)?)?,
        (None, None) => return Err(Error::usage("neither --config nor --http is given")),
    };
    say(clock::accept(addr)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Where the idgend of this configuration can be asked.
fn http_of(config: &Config) -> Result<SocketAddr> {
    let unknown = |why: &str| {
        let error = Error::usage(format!("{why}, so idgend cannot be asked"));
        Err(error.with_hint("restarting idgend accepts the clock too"))
    };
    match config.http_listen {
        None => unknown("http.listen is empty"),
        Some(addr) if addr.port() == 0 => unknown("http.listen leaves the port open, give --http ADDR"),
        Some(addr) if addr.ip().is_unspecified() => {
            Ok(SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), addr.port()))
        }
        Some(addr) => Ok(addr),
    }
}

fn show_formats(cell: &CellArguments) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let formats = wait_for(format::show(&config))??;
    show(cell.output, &formats, Formats::to_string)?;
    Ok(ExitCode::SUCCESS)
}

fn switch_format(cell: &CellArguments, wish: &format::Wish) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let formats = wait_for(format::switch(&config, wish))??;
    show(cell.output, &formats, Formats::to_string)?;
    Ok(ExitCode::SUCCESS)
}

fn show_epoch(cell: &CellArguments) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let status = wait_for(epoch::show(&config))??;
    show(cell.output, &status, EpochStatus::to_string)?;
    Ok(if status.is_open() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FINDING)
    })
}

fn advance_epoch(
    cell: &CellArguments,
    identity: &str,
    reason: &str,
    formats: Option<String>,
) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let status = wait_for(epoch::advance(&config, identity, reason, formats))??;
    show(cell.output, &status, EpochStatus::to_string)?;
    Ok(ExitCode::SUCCESS)
}

fn list_leases(cell: &CellArguments, class: Option<Kind>) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let leases = wait_for(leases::list(&config, class.map(Class::from)))??;
    show(cell.output, &leases, Leases::table)?;
    Ok(ExitCode::SUCCESS)
}

fn stripes_command(command: &StripesCommand) -> Result<ExitCode> {
    let cell = match command {
        StripesCommand::List { cell, .. }
        | StripesCommand::Claim { cell, .. }
        | StripesCommand::Join { cell, .. }
        | StripesCommand::Leave { cell, .. }
        | StripesCommand::Release { cell, .. } => cell,
    };
    let config = Config::load(&cell.config)?;
    let listed = match *command {
        StripesCommand::List { space, .. } => wait_for(stripes::list(&config, space))?,
        StripesCommand::Claim {
            space,
            stripe,
            of,
            size,
            above,
            ref database,
            ..
        } => {
            let wish = stripes::Wish {
                space_id: space,
                stripe,
                of,
                size,
                above,
                database: database.clone(),
            };
            wait_for(stripes::claim(&config, wish))?
        }
        StripesCommand::Join {
            space, ref database, ..
        } => wait_for(masters::join(&config, space, database.as_deref()))?,
        StripesCommand::Leave {
            space,
            ref database,
            ref reason,
            ..
        } => wait_for(masters::leave(&config, space, database.as_deref(), reason))?,
        StripesCommand::Release {
            space,
            stripe,
            ref reason,
            ..
        } => wait_for(stripes::release(&config, space, stripe, reason))?,
    };
    show(cell.output, &listed?, Stripes::table)?;
    Ok(ExitCode::SUCCESS)
}

fn list_locks(cell: &CellArguments) -> Result<ExitCode> {
    let config = Config::load(&cell.config)?;
    let locks = wait_for(lock::list(&config))??;
    show(cell.output, &locks, Locks::table)?;
    Ok(ExitCode::SUCCESS)
}

fn run_locked(config: &Path, wish: &lock::Wish) -> Result<ExitCode> {
    let config = Config::load(config)?;
    Ok(match wait_for(lock::run(&config, wish))?? {
        Outcome::Ended(status) => as_shells_do(status),
        Outcome::Taken(why) => {
            eprintln!("idgenctl: the lock is not to be had: {why}");
            ExitCode::from(EXIT_FINDING)
        }
        Outcome::Stopped(why, status) => {
            eprintln!("idgenctl: the lock is lost ({why}), and the command was stopped: {status}");
            ExitCode::from(EXIT_INCONCLUSIVE)
        }
    })
}

/// 128 and the number of the signal, for a command that one has ended.
fn as_shells_do(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn wait_for<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::runtime(format!("start the runtime: {error}")))?;
    Ok(runtime.block_on(work))
}

fn show<T: Serialize>(output: Output, what: &T, for_people: impl Fn(&T) -> String) -> Result<()> {
    let text = match output {
        Output::Table => for_people(what),
        Output::Json => serde_json::to_string_pretty(what)
            .map_err(|error| Error::runtime(format!("write JSON: {error}")))?,
    };
    say(&text);
    Ok(())
}

fn say(text: &str) {
    // A reader that has seen enough, such as `head`, is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
}
