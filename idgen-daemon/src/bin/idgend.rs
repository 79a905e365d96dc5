//! `idgend`: keeps the lease of the Postgres server beside it.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use idgen_core::lease::{Class, Gate, InstanceId};
#[cfg(feature = "outbox")]
use idgen_daemon::archive::archive;
#[cfg(feature = "outbox")]
use idgen_daemon::audit::nightly::{NightlyAudit, NightlySetup};
#[cfg(feature = "outbox")]
use idgen_daemon::audit::probe::probe;
#[cfg(feature = "outbox")]
use idgen_daemon::audit::witness::{Witness, WitnessSetup};
use idgen_daemon::authority::{AuthorityConfig, AuthorityKeeper, Board};
use idgen_daemon::command_line;
use idgen_daemon::config::{ClassConfig, Config};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::http::{self, Pages};
use idgen_daemon::lease::events::{events, keep_short};
use idgen_daemon::lease::{
    AcceptRequests, AnyShards, AnyStore, ClockInputs, Heard, HolderName, Keeper, KeeperConfig, MapFeeder,
    OrdersHeard, Report, ShardBoard, ShardList, ShardWatch, ShardWatchConfig, Shown, accept_channel,
    ask_for_ever, hear_orders, listen, order_channel, shards_of,
};
use idgen_daemon::log;
use idgen_daemon::metrics::{ClassMetrics, Metrics};
#[cfg(feature = "outbox")]
use idgen_daemon::outbox::{Holder, Outbox, OutboxSetup};
use idgen_daemon::secret;
use idgen_daemon::server_counts;
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

/// A request to etcd is a large future within others, and a build without optimisation moves each over the stack: the
/// 2 MiB that threads have by default are too few for a release that is refused and tried again.
const STACK_BYTES: usize = 8 << 20;

/// For connections that are being closed when everything else has ended.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(
    name = "idgend",
    version,
    about = "Keeps the lease that a Postgres server with pg_idgen mints ids from.",
    after_help = "Example:\n  idgend --config /etc/idgend.toml\n\n\
                  Exit codes: 0 ok, 1 runtime failure, 2 usage or configuration, 3 refused for good.",
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
    #[command(after_help = "Example:\n  idgend check-config --config /etc/idgend.toml")]
    CheckConfig(ConfigFile),
    /// Write a script that lets a shell complete the arguments.
    #[command(after_help = "Example:\n  idgend completions bash >/etc/bash_completion.d/idgend")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    secret::tell_panics_redacted();
    tls::install_provider();
    let arguments = match command_line::parse::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let outcome = match (arguments.command, arguments.run) {
        (Some(Command::CheckConfig(file)), _) => load(&file).map(|_| ExitCode::SUCCESS),
        (Some(Command::Completions { shell }), _) => {
            command_line::complete::<Arguments>(shell);
            Ok(ExitCode::SUCCESS)
        }
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
    check_build(&config, cfg!(feature = "outbox"))?;
    config.check_files()?;
    Ok(config)
}

/// A build without the outbox does not go on as if nobody had asked for it: events would wait in the tables for ever.
fn check_build(config: &Config, has_outbox: bool) -> Result<()> {
    let asked = [
        ("kafka", config.kafka.is_some()),
        ("archive", config.archive.is_some()),
        ("audit", config.audit.is_some()),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((section, _)) if !has_outbox => Err(Error::usage(format!(
            "[{section}]: this idgend was built without the outbox (hint: build it with the feature outbox, as releases are)"
        ))),
        _ => Ok(()),
    }
}

/// Errors before the log is set up are returned; later ones go there.
fn run(config: Config) -> Result<ExitCode> {
    log::init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_stack_size(STACK_BYTES)
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
    let (mut reports, mut clocks, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
    let mut shards = None;
    for leases in &config.classes {
        let class = leases.class;
        let (accept, accepts) = accept_channel();
        let (post, orders) = order_channel();
        let (list, follows) = watch::channel::<ShardList>(None);
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
            list: (class == Class::Shard).then_some(follows),
        };
        let (metrics, stop) = (metrics.of(class), stop.clone());
        let heard = Told { accepts, orders };
        let reported = spawn_keeper(&mut supervisor, &config, keeper, heard, metrics, stop);
        if class == Class::Shard {
            let followed = (reported.clone(), list);
            shards = Some(spawn_shards(&mut supervisor, &config, leases, &holder, followed));
        }
        reports.push((class, reported));
        listeners.push((class, post));
        clocks.push((class, accept));
    }
    let listening = hear_orders(
        config.store.clone(),
        listeners.into_iter().collect(),
        stop.clone(),
    );
    supervisor.spawn_essential("orders of operators", async {
        listening.await;
        Ok(())
    });
    let board = spawn_authority(&mut supervisor, &config, &holder, &reports, &metrics, &stop);
    spawn_events(&mut supervisor, &config, &holder, &metrics, &stop);
    #[cfg(feature = "outbox")]
    spawn_outbox(&mut supervisor, &config, &holder, &metrics, &stop);
    spawn_watchers(&mut supervisor, &config, &metrics, &stop);
    if let Some(listener) = listener {
        let pages = Pages {
            reports,
            authority: board,
            shards,
            metrics,
            clocks,
        };
        spawn_http(&mut supervisor, listener, pages);
    }
    supervisor.spawn_essential("signals", signals.forward(stop));
    supervisor.run().await
}

/// Starts what reads the counters of the server, and what looks when our certificates end, where there are any.
fn spawn_watchers(supervisor: &mut Supervisor, config: &Config, metrics: &Metrics, stop: &CancellationToken) {
    let counted = server_counts::watch(config.postgres.clone(), metrics.of_server(), stop.clone());
    supervisor.spawn_essential("counters of the server", counted);
    let certificates = config.client_certificates();
    if !certificates.is_empty() {
        let expiry = CertificateExpiry::new(certificates, metrics.certificate_expiry.clone());
        supervisor.spawn_essential("certificates", tls::watch(expiry, stop.clone()));
    }
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

/// Where a keeper is told things.
struct Told {
    accepts: AcceptRequests,
    orders: OrdersHeard,
}

/// Starts the keeper of one class; returns what it reports.
fn spawn_keeper(
    supervisor: &mut Supervisor,
    config: &Config,
    keeper: KeeperConfig,
    told: Told,
    metrics: ClassMetrics,
    stop: CancellationToken,
) -> watch::Receiver<Report> {
    let ClassConfig {
        class,
        wanted,
        timing,
    } = keeper.class.clone();
    let Told { accepts, orders } = told;
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
            let keeper = Keeper::new(keeper, postgres, *store, accepts, orders, report, metrics);
            supervisor.spawn_essential(name, keeper.run(stop).instrument(span));
        }
        AnyStore::Etcd(store) => {
            let keeper = Keeper::new(keeper, postgres, *store, accepts, orders, report, metrics);
            supervisor.spawn_essential(name, keeper.run(stop).instrument(span));
        }
    }
    reported
}

/// Starts what follows who is to have which shard, and what writes that down for clients; returns where it can be read.
fn spawn_shards(
    supervisor: &mut Supervisor,
    config: &Config,
    leases: &ClassConfig,
    holder: &HolderName,
    (report, list): (watch::Receiver<Report>, watch::Sender<ShardList>),
) -> ShardBoard {
    let board = ShardBoard::new();
    let watch = ShardWatchConfig {
        server: holder.name.clone(),
        instance: holder.instance,
        address: config.shard_address.clone(),
        configured: leases.wanted.listed().to_vec(),
        room: config.store.shard_room(),
        timing: leases.timing,
    };
    let stop = supervisor.stop();
    let period = Duration::from_millis(leases.timing.period_ms());
    match shards_of(&config.store, period) {
        AnyShards::Postgres(feed) => {
            let watch = ShardWatch::new(watch, *feed, report, list, board.clone());
            supervisor.spawn_essential("shards", watch.run(stop.clone()));
        }
        AnyShards::Etcd(feed) => {
            let watch = ShardWatch::new(watch, *feed, report, list, board.clone());
            supervisor.spawn_essential("shards", watch.run(stop.clone()));
        }
    }
    let feeder = MapFeeder::new(config.postgres.clone(), board.clone());
    supervisor.spawn_essential("shard map", feeder.run(stop));
    board
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

/// Starts what follows the log of the lease store.
fn spawn_events(
    supervisor: &mut Supervisor,
    config: &Config,
    holder: &HolderName,
    metrics: &Metrics,
    stop: &CancellationToken,
) {
    let (store, holder, stop) = (config.store.clone(), holder.clone(), stop.clone());
    if config.events.enabled {
        let followed = events(store, config.events.clone(), holder, metrics.of_events(), stop);
        supervisor.spawn_essential("lease events", followed);
    } else {
        supervisor.spawn_essential("log of the lease store", keep_short(store, holder, stop));
    }
}

/// Starts what hands events on: to Kafka and into files, where that is configured, and the audits of them. It looks after
/// their tables in any case.
#[cfg(feature = "outbox")]
fn spawn_outbox(
    supervisor: &mut Supervisor,
    config: &Config,
    holder: &HolderName,
    metrics: &Metrics,
    stop: &CancellationToken,
) {
    if let Some(wanted) = config.archive.clone() {
        let (config, holder, metrics) = (config.clone(), holder.clone(), metrics.of_archive());
        let archiving = archive(config, wanted, holder, metrics, stop.clone());
        supervisor.spawn_essential("archive", archiving);
    }
    if let (Some(audit), Some(kafka)) = (config.audit.clone(), config.kafka.clone())
        && audit.probe
    {
        let (config, holder, metrics) = (config.clone(), holder.clone(), metrics.of_audit().probe());
        let probing = probe(config, (audit, kafka), holder, metrics, stop.clone());
        supervisor.spawn_essential("probe", probing);
    }
    let outbox = Outbox::new(OutboxSetup {
        postgres: config.postgres.clone(),
        trail: config.events.enabled.then(|| config.events.url.as_ref().clone()),
        kafka: config.kafka.clone(),
        outbox: config.outbox.clone(),
        holder: Holder {
            instance: Uuid::from_u128(holder.instance.0),
            name: holder.name.clone(),
        },
        metrics: metrics.of_outbox(),
    });
    supervisor.spawn_essential("outbox", outbox.run(stop.clone()));
    spawn_audits(supervisor, config, holder, metrics, stop);
}

/// Starts the audits, where they are configured.
#[cfg(feature = "outbox")]
fn spawn_audits(
    supervisor: &mut Supervisor,
    config: &Config,
    holder: &HolderName,
    metrics: &Metrics,
    stop: &CancellationToken,
) {
    let Some(wanted) = config.audit.clone() else {
        return;
    };
    let archive = config.archive.as_ref().map(|archive| archive.place.clone());
    if archive.is_some() || config.kafka.is_some() {
        let witness = Witness::new(WitnessSetup {
            postgres: config.postgres.clone(),
            wait: wanted.promotion_wait,
            archive: archive.clone(),
            kafka: config.kafka.clone(),
            metrics: metrics.of_witness(),
        });
        supervisor.spawn_essential("witness", witness.run(stop.clone()));
    }
    let nightly = NightlyAudit::new(NightlySetup {
        postgres: config.postgres.clone(),
        audit: wanted,
        archive,
        holder: Holder {
            instance: Uuid::from_u128(holder.instance.0),
            name: holder.name.clone(),
        },
        metrics: metrics.of_audit(),
    });
    supervisor.spawn_essential("nightly audit", nightly.run(stop.clone()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_the_outbox_refuses_what_needs_it() {
        let config = |text: &str| {
            let text = format!("[postgres]\nurl = \"postgres://u@h/d\"\n{text}");
            Config::parse("f", &text, []).expect("a configuration")
        };
        for (section, text) in [
            ("[kafka]", "[kafka]\nbrokers = [\"h:1\"]"),
            ("[archive]", "[archive]\nkind = \"folder\"\npath = \"/a\""),
            ("[audit]", "[audit]"),
        ] {
            assert!(check_build(&config(text), true).is_ok());
            let refused = check_build(&config(text), false)
                .expect_err("refused")
                .to_string();
            assert!(
                refused.starts_with(section) && refused.contains("hint"),
                "{refused}"
            );
        }
        assert!(check_build(&config(""), false).is_ok());
    }
}
