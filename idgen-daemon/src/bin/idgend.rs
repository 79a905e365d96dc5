//! `idgend`: keeps the lease of the Postgres server beside it.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use idgen_core::lease::{Class, Gate, InstanceId};
use idgen_daemon::authority::{AuthorityConfig, AuthorityKeeper, Board};
use idgen_daemon::config::{ClassConfig, Config};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::http::{self, Pages};
use idgen_daemon::lease::{
    AcceptRequests, AnyStore, ClockInputs, Heard, HolderName, Keeper, KeeperConfig, Report, Shown,
    accept_channel, ask_for_ever, listen,
};
use idgen_daemon::log;
use idgen_daemon::metrics::{ClassMetrics, Metrics};
use idgen_daemon::supervisor::Supervisor;
use idgen_daemon::tls::{self, CertificateExpiry};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

/// One thread for the keeper, one for whoever reads metrics: a daemon beside a database stays small.
const WORKER_THREADS: usize = 2;

/// For connections that are being closed when everything else has ended.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(
    name = "idgend",
    version,
    about = "Keeps the lease that a Postgres server with pg_idgen mints ids from.",
    after_help = "Exit codes: 0 ok, 1 runtime failure, 2 usage or configuration, 3 refused for good.",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(flatten)]
    run: Option<ConfigFile>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Args)]
struct ConfigFile {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Check the configuration file and the environment, and end.
    CheckConfig(ConfigFile),
}

fn main() -> ExitCode {
    tls::install_provider();
    let arguments = Arguments::parse();
    let outcome = match (arguments.command, arguments.run) {
        (Some(Command::CheckConfig(file)), _) => load(&file).map(|_| ExitCode::SUCCESS),
        (None, Some(file)) => load(&file).and_then(run),
        (None, None) => Err(Error::usage("--config FILE is missing")),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("idgend: {error}");
            error.exit_code()
        }
    }
}

fn load(file: &ConfigFile) -> Result<Config> {
    let config = Config::load(&file.config)?;
    config.check_files()?;
    Ok(config)
}

/// Errors before the log is set up are returned; later ones go there.
fn run(config: Config) -> Result<ExitCode> {
    log::init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .map_err(|error| Error::runtime(format!("start the runtime: {error}")))?;
    let outcome = runtime.block_on(supervise(config));
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    match outcome {
        Ok(()) => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            tracing::error!("{error}");
            Ok(error.exit_code())
        }
    }
}

async fn supervise(config: Config) -> Result<()> {
    let stop = CancellationToken::new();
    let signals = Signals::new()?;
    let metrics = Arc::new(Metrics::new()?);
    let holder = HolderName {
        instance: InstanceId(Uuid::new_v4().as_u128()),
        name: config.name.clone(),
    };
    let instance = Uuid::from_u128(holder.instance.0);
    tracing::info!(name = config.name, %instance, version = env!("CARGO_PKG_VERSION"), "starting");

    let mut supervisor = Supervisor::new(stop.clone());
    let listener = config.http_listen.map(http::bind).transpose()?;
    let clock = watch_clocks(&mut supervisor, &config, holder.instance, &stop).await;
    let (mut reports, mut clocks) = (Vec::new(), Vec::new());
    for leases in &config.classes {
        let class = leases.class;
        let (accept, accepts) = accept_channel();
        let keeper = KeeperConfig {
            poll: config.postgres.poll,
            class: leases.clone(),
            holder: holder.clone(),
            clock: ClockInputs {
                // One of them tells the server, so that it hears one voice.
                tells_server: reports.is_empty(),
                ..clock.clone()
            },
            reach: config.store.reach(),
        };
        let (metrics, stop) = (metrics.of(class), stop.clone());
        let reported = spawn_keeper(&mut supervisor, &config, keeper, accepts, metrics, stop);
        reports.push((class, reported));
        clocks.push((class, accept));
    }
    let board = spawn_authority(&mut supervisor, &config, &holder, &reports, &metrics, &stop);
    let certificates = config.client_certificates();
    if !certificates.is_empty() {
        let expiry = CertificateExpiry::new(certificates, metrics.certificate_expiry.clone());
        supervisor.spawn_essential("certificates", tls::watch(expiry, stop.clone()));
    }
    if let Some(listener) = listener {
        let pages = Pages {
            reports,
            authority: board,
            metrics,
            clocks,
        };
        spawn_http(&mut supervisor, listener, pages);
    }
    supervisor.spawn_essential("signals", signals.forward(stop));
    supervisor.run().await
}

fn spawn_http(supervisor: &mut Supervisor, listener: TcpListener, pages: Pages) {
    supervisor.spawn_restarted("http", move |stop| {
        let (listener, pages) = (listener.try_clone(), pages.clone());
        async move {
            let listener = listener.map_err(|error| Error::runtime(format!("clone socket: {error}")))?;
            http::serve(listener, pages, stop).await
        }
    });
}

/// Starts what asks who keeps the clock right, and what listens to the clocks of peers.
async fn watch_clocks(
    supervisor: &mut Supervisor,
    config: &Config,
    instance: InstanceId,
    stop: &CancellationToken,
) -> ClockInputs {
    let (sync, asking) = ask_for_ever(&config.clock, stop.clone()).await;
    supervisor.spawn_essential("time source", asking);
    let (shown, heard) = (Shown::default(), Heard::new(Instant::now()));
    if config.clock.gate != Gate::Off {
        let store = config.store.clone();
        let listening = listen(store, instance, shown.clone(), heard.clone(), stop.clone());
        supervisor.spawn_essential("clocks of peers", async {
            listening.await;
            Ok(())
        });
    }
    ClockInputs {
        gate: config.clock.gate,
        accept_synchronised: config.clock.accept_synchronised,
        sync,
        shown,
        heard,
        tells_server: false,
    }
}

/// Starts the keeper of one class; returns what it reports.
fn spawn_keeper(
    supervisor: &mut Supervisor,
    config: &Config,
    keeper: KeeperConfig,
    accepts: AcceptRequests,
    metrics: ClassMetrics,
    stop: CancellationToken,
) -> watch::Receiver<Report> {
    let ClassConfig {
        class,
        wanted,
        timing,
    } = keeper.class.clone();
    let period = Duration::from_millis(timing.period_ms());
    let (report, reported) = watch::channel(Report::starting(wanted.count(), period));
    let name = match class {
        Class::Worker => "lease keeper of workers",
        Class::Shard => "lease keeper of shards",
    };
    let postgres = config.postgres.clone();
    let (shown, holder) = (keeper.clock.shown.clone(), keeper.holder.clone());
    // Every line that a keeper logs says whose it is.
    let span = tracing::info_span!("lease", class = class.name());
    match AnyStore::new(&config.store, class, timing.ttl_ms(), holder).showing(shown) {
        AnyStore::Postgres(store) => {
            let keeper = Keeper::new(keeper, postgres, *store, accepts, report, metrics);
            supervisor.spawn_essential(name, keeper.run(stop).instrument(span));
        }
        AnyStore::Etcd(store) => {
            let keeper = Keeper::new(keeper, postgres, *store, accepts, report, metrics);
            supervisor.spawn_essential(name, keeper.run(stop).instrument(span));
        }
    }
    reported
}

/// Starts what keeps the authority over segments, where that is leased; returns where it reports.
fn spawn_authority(
    supervisor: &mut Supervisor,
    config: &Config,
    holder: &HolderName,
    reports: &[(Class, watch::Receiver<Report>)],
    metrics: &Metrics,
    stop: &CancellationToken,
) -> Board {
    let board = Board::default();
    let Some(timing) = config.authority else {
        return board;
    };
    let reports: Vec<_> = reports.iter().map(|(_, report)| report.clone()).collect();
    let is_served = move || reports.iter().any(|report| report.borrow().lease.is_some());
    let keeper = AuthorityConfig {
        instance: holder.instance,
        timing,
        is_served: Arc::new(is_served),
        poll: config.postgres.poll,
        board: board.clone(),
        metrics: metrics.of_authority(),
    };
    let postgres = config.postgres.clone();
    // Of names the class of a store says nothing.
    match AnyStore::new(&config.store, Class::Worker, timing.ttl_ms(), holder.clone()) {
        AnyStore::Postgres(store) => {
            let keeper = AuthorityKeeper::new(keeper, postgres, *store);
            supervisor.spawn_essential("authority keeper", keeper.run(stop.clone()));
        }
        AnyStore::Etcd(store) => {
            let keeper = AuthorityKeeper::new(keeper, postgres, *store);
            supervisor.spawn_essential("authority keeper", keeper.run(stop.clone()));
        }
    }
    board
}

/// SIGTERM and SIGINT. Once taken over they never again end the process by themselves, so a second one
/// changes nothing.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let failed = |error| Error::runtime(format!("take over signals: {error}"));
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    async fn forward(mut self, stop: CancellationToken) -> Result<()> {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = stop.cancelled() => return Ok(()),
        };
        tracing::info!("{name}: stopping");
        stop.cancel();
        Ok(())
    }
}
