//! The real idgend and idgenctl.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::process::{Process, Signal, connections};
use super::{Etcd, EtcdCluster, PATIENCE, Proxy, Scratch, Server, eventually, eventually_true, http};

pub const IDGEND: &str = env!("CARGO_BIN_EXE_idgend");
pub const IDGENCTL: &str = env!("CARGO_BIN_EXE_idgenctl");

/// Where the leases of a daemon live.
#[derive(Clone)]
pub enum Store {
    /// In the daemon's own server.
    Embedded,
    /// In the database of another server: its URL.
    Postgres(String),
    /// Endpoints of an etcd.
    Etcd(Vec<String>),
}

impl Store {
    pub fn on(server: &Server) -> Store {
        Store::Postgres(server.daemon_url())
    }

    pub fn etcd(etcd: &Etcd) -> Store {
        Store::Etcd(vec![etcd.endpoint()])
    }

    pub fn cluster(cluster: &EtcdCluster) -> Store {
        Store::Etcd(cluster.endpoints())
    }

    /// The members behind their proxies.
    pub fn behind(proxies: &[Proxy]) -> Store {
        Store::Etcd(proxies.iter().map(Proxy::endpoint).collect())
    }
}

/// What a test chooses; the same options can be started again after a kill.
#[derive(Clone)]
pub struct DaemonOptions {
    pub name: String,
    pub postgres_url: String,
    pub store: Store,
    pub workers: u32,
    pub ttl_ms: u64,
    /// More lines of section `[workers]`.
    pub workers_more: String,
    /// More lines of section `[shards]`; none: no shards.
    pub shards: String,
    /// Lines of section `[authority]`; none: it is not leased.
    pub authority: String,
    /// Sections `[locks.CLASS]`.
    pub locks: String,
    /// Lines of section `[clock]`. `None`: a machine that runs tests need not be synchronised.
    pub clock: Option<String>,
    /// More lines of section `[store]`.
    pub store_more: String,
    /// Whole sections, such as `[kafka]` with its lines.
    pub sections: String,
    pub log_level: &'static str,
    /// More variables of the environment.
    pub env: Vec<(String, String)>,
    /// A program that runs it, with its arguments; none: it runs by itself.
    pub wrapper: Vec<String>,
}

impl DaemonOptions {
    pub fn new(server: &Server) -> DaemonOptions {
        DaemonOptions {
            name: "e2e".to_owned(),
            postgres_url: server.daemon_url(),
            store: Store::Embedded,
            workers: 2,
            ttl_ms: 600_000,
            workers_more: String::new(),
            shards: String::new(),
            authority: String::new(),
            locks: String::new(),
            clock: None,
            store_more: String::new(),
            sections: String::new(),
            log_level: "info",
            env: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    pub fn name(self, name: &str) -> Self {
        DaemonOptions {
            name: name.to_owned(),
            ..self
        }
    }

    pub fn store(self, store: Store) -> Self {
        DaemonOptions { store, ..self }
    }

    pub fn workers(self, workers: u32) -> Self {
        DaemonOptions { workers, ..self }
    }

    pub fn ttl_ms(self, ttl_ms: u64) -> Self {
        DaemonOptions { ttl_ms, ..self }
    }

    /// `ids` as the configuration writes them, with the TTL of the workers.
    pub fn shards(self, ids: &str) -> Self {
        let shards = format!("ids = [{ids}]\nttl_ms = {}\n", self.ttl_ms.min(30_000));
        DaemonOptions { shards, ..self }
    }

    /// The authority over segments is leased, with this TTL.
    pub fn authority(self, ttl_ms: u64) -> Self {
        let authority = format!("leased = true\nttl_ms = {ttl_ms}\n");
        DaemonOptions { authority, ..self }
    }

    /// Sections `[locks.CLASS]`.
    pub fn locks(self, sections: &str) -> Self {
        let locks = sections.to_owned();
        DaemonOptions { locks, ..self }
    }

    /// Lines of section `[clock]`.
    pub fn clock(self, lines: &str) -> Self {
        let clock = Some(lines.to_owned());
        DaemonOptions { clock, ..self }
    }

    /// Lines such as `period_ms = 1000`.
    pub fn workers_more(self, lines: &str) -> Self {
        let workers_more = format!("{lines}\n");
        DaemonOptions { workers_more, ..self }
    }

    /// Lines such as `request_timeout_ms = 500`.
    pub fn store_more(self, lines: &str) -> Self {
        let store_more = format!("{lines}\n");
        DaemonOptions { store_more, ..self }
    }

    pub fn wrapped_in(self, wrapper: &[&str]) -> Self {
        let wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        DaemonOptions { wrapper, ..self }
    }

    pub fn config(&self) -> String {
        let store = match &self.store {
            Store::Embedded => "kind = \"postgres\"".to_owned(),
            Store::Postgres(url) => format!("kind = \"postgres\"\nurl = \"{url}\""),
            Store::Etcd(endpoints) => format!("kind = \"etcd\"\nendpoints = {endpoints:?}"),
        };
        let clock = match (&self.clock, &self.store) {
            (Some(lines), _) => lines,
            (None, Store::Embedded) => "",
            (None, Store::Postgres(_) | Store::Etcd(_)) => "check = \"off\"",
        };
        format!(
            "name = \"{}\"\n[postgres]\nurl = \"{}\"\n[store]\n{store}\n{}[workers]\ncount = {}\nttl_ms = {}\n{}\
             [shards]\n{}[authority]\n{}[clock]\n{clock}\n[http]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\nlevel = \"{}\"\n{}{}",
            self.name,
            self.postgres_url,
            self.store_more,
            self.workers,
            self.ttl_ms,
            self.workers_more,
            self.shards,
            self.authority,
            self.log_level,
            self.sections,
            self.locks
        )
    }

    /// More sections, each with its heading.
    pub fn sections(mut self, sections: &str) -> Self {
        self.sections.push_str(sections);
        self.sections.push('\n');
        self
    }

    pub fn log_level(self, log_level: &'static str) -> Self {
        DaemonOptions { log_level, ..self }
    }

    /// Starts it and returns at once; see [`Daemon::wait_ready`].
    pub fn launch(&self) -> Daemon {
        let scratch = Scratch::new("idgend");
        let config = scratch.join("idgend.toml");
        fs::write(&config, self.config()).expect("write config");
        let mut words = self.wrapper.iter().map(String::as_str).chain([IDGEND]);
        let mut command = Command::new(words.next().unwrap_or(IDGEND));
        command
            .args(words)
            .current_dir(scratch.path())
            .arg("--config")
            .arg(&config)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        let process = Process::spawn(
            &format!("idgend {}", self.name),
            command,
            scratch.join("idgend.log"),
        );
        Daemon {
            process,
            config,
            addr: None,
            _scratch: scratch,
        }
    }

    /// Starts it and waits until every identity is open.
    pub fn start(&self) -> Daemon {
        let mut daemon = self.launch();
        daemon.wait_ready();
        daemon
    }
}

pub struct Daemon {
    process: Process,
    config: PathBuf,
    addr: Option<SocketAddr>,
    _scratch: Scratch,
}

impl Daemon {
    /// With the defaults: two workers, leases in the server itself.
    pub fn start(server: &Server) -> Daemon {
        DaemonOptions::new(server).start()
    }

    pub fn config_path(&self) -> &Path {
        &self.config
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Until this many connections to an etcd are open, at the least.
    pub fn wait_connections(&self, etcd: &Etcd, count: usize) {
        eventually_true(PATIENCE, "everybody has a connection to etcd", || {
            connections(self.pid(), etcd.addr()).len() >= count
        });
    }

    /// Does something; until nothing is left of the connections to an etcd that the daemon had before, and there are as
    /// many others.
    pub fn wait_reconnected(&self, etcd: &Etcd, what: &str, change: impl FnOnce()) {
        let before = connections(self.pid(), etcd.addr());
        change();
        eventually_true(PATIENCE, what, || {
            let now = connections(self.pid(), etcd.addr());
            now.is_disjoint(&before) && now.len() >= before.len()
        });
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        self.process.wait_exit(PATIENCE)
    }

    /// SIGTERM: a clean release.
    pub fn terminate(mut self) {
        self.signal(Signal::TERM);
        let status = self.wait_exit();
        assert_eq!(
            status.code(),
            Some(0),
            "a clean release ends with 0, not {status}"
        );
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait_exit();
    }

    /// Its own HTTP endpoint; the port is free choice, so the log says which.
    pub fn addr(&mut self) -> Option<SocketAddr> {
        if self.addr.is_none() {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("http listening"))?;
            let text = line
                .split(['"', ' ', '='])
                .find(|word| word.starts_with("127.0.0.1:"))?;
            self.addr = text.parse().ok();
        }
        self.addr
    }

    /// Status and body of a page; `None` while nobody answers.
    pub fn get(&mut self, path: &str) -> Option<(u16, String)> {
        http::get(self.addr()?, path)
    }

    pub fn is_ready(&mut self) -> bool {
        self.get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    pub fn wait_ready(&mut self) {
        eventually(PATIENCE, "the daemon is ready", || {
            if let Some(status) = self.exited() {
                panic!("the daemon has ended: {status}");
            }
            self.is_ready().then_some(())
        });
    }

    /// Waits until `/readyz` says no, with this among the reasons, and returns all of it.
    pub fn wait_unready_with(&mut self, reason: &str) -> String {
        let mut last = String::new();
        let said = super::wait::within(PATIENCE, || {
            if let Some((status, body)) = self.get("/readyz") {
                last = body;
                return status == 503 && last.contains(reason);
            }
            false
        });
        assert!(said, "/readyz does not say `{reason}` but `{last}`");
        last
    }

    /// Renewals of workers that the store has committed since its start.
    pub fn renewals(&mut self) -> u64 {
        let (_, metrics) = eventually(PATIENCE, "the metrics", || self.get("/metrics"));
        let name = "idgen_renewals_total{class=\"worker\"} ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name));
        count.and_then(|count| count.parse().ok()).expect("a number")
    }

    /// Waits until leases of workers were renewed so many times more.
    pub fn wait_renewals(&mut self, more: u64) {
        let goal = self.renewals() + more;
        eventually_true(PATIENCE, "leases are renewed", || self.renewals() >= goal);
    }

    /// Waits until the log has a line with all of these.
    pub fn wait_log(&self, parts: &[&str]) {
        let what = format!("a line with {parts:?} in the log");
        eventually(PATIENCE, &what, || {
            let log = self.log();
            let found = log
                .lines()
                .any(|line| parts.iter().all(|part| line.contains(part)));
            found.then_some(())
        });
    }

    /// Waits until `/readyz` says no, and returns why.
    pub fn wait_unready(&mut self) -> String {
        eventually(PATIENCE, "/readyz says 503", || {
            self.get("/readyz")
                .and_then(|(status, body)| (status == 503).then_some(body))
        })
    }
}

pub struct Answer {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a program to its end.
pub fn answer(mut command: Command) -> Answer {
    let output = command.output().expect("run the program");
    Answer {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub fn idgenctl(args: &[&str]) -> Answer {
    let mut command = Command::new(IDGENCTL);
    command.args(args);
    answer(command)
}

/// Runs a command that changes something. A dry run before it must end as it does, and leave as it is what `seen` sees.
pub fn idgenctl_change<T: PartialEq + std::fmt::Debug>(args: &[&str], seen: impl Fn() -> T) -> Answer {
    let before = seen();
    let tried = idgenctl(&[args, &["--dry-run"]].concat());
    assert_eq!(seen(), before, "a dry run of {args:?} has changed something");
    let done = idgenctl(&[args, &["--yes"]].concat());
    assert_eq!(
        tried.code, done.code,
        "{args:?} in a dry run and in earnest: {}{}\n{}{}",
        tried.stdout, tried.stderr, done.stdout, done.stderr
    );
    if tried.code == Some(0) {
        let said = ["dry run, nothing was changed", "\"dry_run\": true"];
        assert!(
            said.iter().any(|said| tried.stdout.contains(said)),
            "{}",
            tried.stdout
        );
    }
    done
}
