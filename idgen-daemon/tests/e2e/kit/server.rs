//! A real Postgres with the installed extension, reached through a socket in its temp dir.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use postgres::{Client, Config, NoTls};

use super::ports::free_ports;
use super::process::{Process, ServerAccount, Signal, pids_in, print_tail, signal_pid};
use super::wait::within;
use super::{FakeClock, PATIENCE, Scratch, eventually, eventually_true, pace, sql};

const DEBIAN_PG_CONFIG: &str = "/usr/lib/postgresql/15/bin/pg_config";
const PORT: u16 = 5432;
/// A refill worker that gets no processor on a busy machine is no fault: tests of the wait itself set their own.
const PATIENT_SEGMENTS: &str = "idgen.segment_wait_ms = 30s";
/// After this an immediate shutdown has failed and the processes are killed.
const STOP_DEADLINE: Duration = Duration::from_secs(8);

#[derive(Clone)]
pub struct ServerOptions {
    /// `shared_preload_libraries = 'pg_idgen'`.
    pub preload: bool,
    /// The extension, the daemon's role and its grants in database `postgres`.
    pub extension: bool,
    /// Which of the shared templates it is made from: servers of one template are copies of each other.
    pub template: usize,
    /// Its own system identifier instead of that of a template.
    pub own_identity: bool,
    /// A wall clock that the test sets: [`Server::clock`].
    pub fake_clock: bool,
    pub settings: Vec<String>,
    /// Directory of a [`CertDir`](super::CertDir): at 127.0.0.1 there is TLS, and nobody without a certificate of its
    /// authority that names the user. The socket stays open for all.
    pub certs: Option<PathBuf>,
    /// It listens at a free port of 127.0.0.1 too: for what a [`Proxy`](super::Proxy) is to come between.
    pub tcp: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            preload: true,
            extension: true,
            template: 0,
            own_identity: false,
            fake_clock: false,
            settings: Vec::new(),
            certs: None,
            tcp: false,
        }
    }
}

pub struct Server {
    postmaster: Option<Process>,
    clock: Option<FakeClock>,
    port: u16,
    scratch: Scratch,
    _template: Option<Arc<Scratch>>,
}

impl Server {
    pub fn start() -> Server {
        Server::with(ServerOptions::default())
    }

    /// Some that are no copies of each other.
    pub fn several(count: usize) -> Vec<Server> {
        Server::several_with(count, &ServerOptions::default())
    }

    pub fn several_with(count: usize, options: &ServerOptions) -> Vec<Server> {
        let starting: Vec<_> = (0..count)
            .map(|template| ServerOptions {
                template,
                ..options.clone()
            })
            .map(|options| std::thread::spawn(|| Server::with(options)))
            .collect();
        // All of them first: one that has started is stopped where another has not.
        let started: Vec<_> = starting.into_iter().map(std::thread::JoinHandle::join).collect();
        let started = started.into_iter();
        started.map(|server| server.expect("start a server")).collect()
    }

    pub fn with(options: ServerOptions) -> Server {
        let scratch = Scratch::new("pg");
        let data = scratch.join("data");
        let template = (!options.own_identity).then(|| template(options.template));
        match &template {
            Some(template) => copy(&template.join("data"), &data),
            None => initdb(&data, scratch.path()),
        }
        let mut server = Server {
            postmaster: None,
            clock: options.fake_clock.then(|| FakeClock::new(&scratch)),
            port: PORT,
            scratch,
            _template: template,
        };
        pace::observe();
        server.set("listen_addresses", "");
        server.set_socket_dir();
        if options.tcp {
            server.listen();
        }
        if let Some(certs) = &options.certs {
            server.listen_with(certs);
        }
        server.set("shared_buffers", "32MB");
        server.set_preload(options.preload);
        if options.preload {
            server.append(PATIENT_SEGMENTS);
        }
        for setting in &options.settings {
            server.append(setting);
        }
        server.run();
        if options.extension {
            server.install_extension("postgres");
        }
        server
    }

    /// A copy of a running server's files, with a socket of its own; it does not run yet. `standby`: it follows that
    /// server until it is promoted.
    pub fn backup_of(origin: &Server, standby: bool) -> Server {
        let scratch = Scratch::new("pg");
        let data = scratch.join("data");
        let mut command = ServerAccount::get().command(program("pg_basebackup"), scratch.path());
        command
            .arg("-h")
            .arg(origin.socket_dir())
            .args([
                "-p",
                &origin.port.to_string(),
                "-U",
                "postgres",
                "-c",
                "fast",
                "-D",
            ])
            .arg(&data);
        if standby {
            command.arg("-R");
        }
        let output = command.output().expect("run pg_basebackup");
        assert!(
            output.status.success(),
            "pg_basebackup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let server = Server {
            postmaster: None,
            clock: None,
            port: origin.port,
            scratch,
            _template: None,
        };
        server.set_socket_dir();
        server
    }

    /// Again, where a configuration came from another server.
    pub fn set_socket_dir(&self) {
        self.set(
            "unix_socket_directories",
            &self.socket_dir().display().to_string(),
        );
    }

    fn listen(&mut self) {
        let [port] = free_ports();
        self.port = port;
        self.set("port", &port.to_string());
        self.set("listen_addresses", "127.0.0.1");
    }

    /// Of a server that listens there.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn listen_with(&mut self, certs: &Path) {
        self.listen();
        self.set("ssl", "on");
        for (setting, file) in [
            ("ssl_ca_file", "server-ca.pem"),
            ("ssl_cert_file", "server.pem"),
            ("ssl_key_file", "server.key"),
        ] {
            self.set(setting, &certs.join(file).display().to_string());
        }
        let rules = "local all all trust\nhostssl all all 127.0.0.1/32 cert\n";
        fs::write(self.data_dir().join("pg_hba.conf"), rules).expect("write pg_hba.conf");
    }

    /// Makes this server, which is stopped, a standby of `origin` that has parted from it: pg_rewind.
    pub fn rewind(&self, origin: &Server) {
        // Until the checkpoint after its promotion the origin's control file shows the old timeline, and pg_rewind before 16
        // goes by it: nothing would be rewound, and the standby would wait forever.
        sql::run(&mut origin.connect(), "CHECKPOINT");
        let source = format!(
            "host={} port={} user=postgres dbname=postgres",
            origin.socket_dir().display(),
            origin.port
        );
        let mut command = ServerAccount::get().command(program("pg_rewind"), self.scratch.path());
        command.arg("--target-pgdata").arg(self.data_dir()).args([
            "--source-server",
            &source,
            "--write-recovery-conf",
        ]);
        let output = command.output().expect("run pg_rewind");
        assert!(
            output.status.success(),
            "pg_rewind: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        // The configuration is the origin's now.
        self.set(
            "unix_socket_directories",
            &self.socket_dir().display().to_string(),
        );
    }

    /// SIGHUP: certificates and settings are read anew.
    pub fn reload(&self) {
        self.postmaster
            .as_ref()
            .expect("the server runs")
            .signal(Signal::HUP);
    }

    /// For the daemon's config, over TCP; `tls` are the parameters for TLS.
    pub fn tcp_url(&self, host: &str, tls: &str) -> String {
        format!("host={host} port={} user=idgend dbname=postgres {tls}", self.port)
    }

    /// The extension, the role `idgend` and what `idgen.grant_daemon` gives it.
    pub fn install_extension(&self, database: &str) {
        let mut client = self.connect_to(database);
        client
            .batch_execute("CREATE EXTENSION pg_idgen")
            .expect("create extension");
        client
            .batch_execute(
                "DO $$ BEGIN CREATE ROLE idgend LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
                 SELECT idgen.grant_daemon('idgend');",
            )
            .expect("grant to the daemon");
    }

    pub fn data_dir(&self) -> PathBuf {
        self.scratch.join("data")
    }

    /// The socket itself.
    pub fn socket(&self) -> PathBuf {
        self.socket_dir().join(format!(".s.PGSQL.{}", self.port))
    }

    pub fn socket_dir(&self) -> &Path {
        self.scratch.path()
    }

    /// Of a server that was started with `fake_clock`.
    pub fn clock(&self) -> &FakeClock {
        self.clock.as_ref().expect("a server with a fake clock")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("server.log")).unwrap_or_default()
    }

    fn append(&self, line: &str) {
        let file = self.data_dir().join("postgresql.conf");
        let mut conf = OpenOptions::new()
            .append(true)
            .open(file)
            .expect("open postgresql.conf");
        writeln!(conf, "{line}").expect("write postgresql.conf");
    }

    pub fn set(&self, name: &str, value: &str) {
        self.append(&format!("{name} = '{value}'"));
    }

    /// Takes effect at the next start.
    pub fn set_preload(&self, preload: bool) {
        self.set("shared_preload_libraries", if preload { "pg_idgen" } else { "" });
    }

    // --- life ---

    pub fn run(&mut self) {
        let mut command = ServerAccount::get().command(program("postgres"), self.scratch.path());
        command.arg("-D").arg(self.data_dir());
        if let Some(clock) = &self.clock {
            clock.preload_into(&mut command);
        }
        self.postmaster = Some(Process::spawn(
            "postgres",
            command,
            self.scratch.join("server.log"),
        ));
        let started = eventually(PATIENCE, "the server accepts connections", || {
            let ended = self.has_ended();
            (ended || self.is_accepting()).then_some(!ended)
        });
        assert!(started, "the server ended at start:\n{}", self.log());
    }

    /// By itself.
    pub fn has_ended(&mut self) -> bool {
        self.postmaster
            .as_mut()
            .is_some_and(|process| process.exited().is_some())
    }

    /// What the postmaster says of itself, as pg_ctl reads it: knocking would fill its log with refusals.
    fn is_accepting(&self) -> bool {
        let lines = fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default();
        let mut lines = lines.lines().map(str::trim);
        let pid = lines.next().and_then(|pid| pid.parse::<u32>().ok());
        // A file left by a killed postmaster names another process.
        let ours = pid.is_some() && pid == self.postmaster.as_ref().map(Process::id);
        ours && lines
            .nth(6)
            .is_some_and(|status| status == "ready" || status == "standby")
    }

    /// A clean stop: smart is too polite for tests, so fast. Not in the middle of crash recovery: PostgreSQL 15 may
    /// hang then, with nothing but its checkpointer left (seen without our library too).
    pub fn stop(&mut self) {
        eventually_true(PATIENCE, "the server accepts connections", || self.is_accepting());
        let mut postmaster = self.postmaster.take().expect("the server runs");
        postmaster.signal(Signal::INT);
        let status = postmaster.wait_exit(PATIENCE);
        assert!(status.success(), "fast shutdown: {status}");
    }

    /// Immediate: the next start recovers from a crash.
    pub fn stop_at_once(&mut self) {
        let mut postmaster = self.postmaster.take().expect("the server runs");
        postmaster.signal(Signal::QUIT);
        postmaster.wait_exit(PATIENCE);
    }

    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    /// kill -9 of the postmaster alone. Its backends are orphans until they notice.
    pub fn kill_postmaster(&mut self) {
        self.postmaster
            .take()
            .expect("the server runs")
            .signal(Signal::KILL);
    }

    /// kill -9 of everything at once, as a power cut is for shared memory.
    pub fn kill_everything(&mut self) {
        self.postmaster
            .take()
            .expect("the server runs")
            .signal(Signal::KILL);
        self.kill_orphans();
    }

    fn kill_orphans(&self) {
        for pid in pids_in(&self.data_dir()) {
            signal_pid(pid, Signal::KILL);
        }
        self.wait_orphans_gone();
    }

    pub fn wait_orphans_gone(&self) {
        let data = self.data_dir();
        eventually_true(PATIENCE, "the orphaned backends end", || {
            pids_in(&data).is_empty()
        });
    }

    // --- sessions ---

    fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .host_path(self.socket_dir())
            .port(self.port)
            .user("postgres")
            .dbname("postgres");
        config.connect_timeout(Duration::from_secs(5));
        config
    }

    pub fn try_connect(&self) -> Result<Client, postgres::Error> {
        self.config().connect(NoTls)
    }

    pub fn connect(&self) -> Client {
        self.try_connect().expect("connect")
    }

    pub fn connect_to(&self, database: &str) -> Client {
        self.config().dbname(database).connect(NoTls).expect("connect")
    }

    pub fn connect_as(&self, user: &str) -> Client {
        self.config().user(user).connect(NoTls).expect("connect")
    }

    /// What other threads need to connect by themselves.
    pub fn connector(&self) -> impl Fn() -> Result<Client, postgres::Error> + Clone + Send + 'static {
        let config = self.config();
        move || config.connect(NoTls)
    }

    /// For the daemon's config.
    pub fn daemon_url(&self) -> String {
        self.daemon_url_to("postgres")
    }

    pub fn daemon_url_to(&self, database: &str) -> String {
        format!(
            "host={} port={} user=idgend dbname={database}",
            self.socket_dir().display(),
            self.port
        )
    }

    /// Starts this backup of `origin`, which is stopped, and has it replay the log up to a restore point; promoted then.
    pub fn recover_to(&mut self, restore_point: &str, origin: &Server) {
        let log = origin.data_dir().join("pg_wal");
        self.set("restore_command", &format!("cp {}/%f %p", log.display()));
        self.set("recovery_target_name", restore_point);
        self.set("recovery_target_action", "promote");
        fs::write(self.data_dir().join("recovery.signal"), "").expect("write recovery.signal");
        self.run();
    }

    /// For another server, and its administrator's programs.
    pub fn conninfo(&self) -> String {
        let dir = self.socket_dir().display();
        format!("host={dir} port={} user=postgres dbname=postgres", self.port)
    }

    /// A program under the account that the server's files belong to.
    pub fn as_account(&self, program: impl AsRef<Path>) -> Command {
        ServerAccount::get().command(program, self.socket_dir())
    }

    /// One of the client programs, pointed at this server.
    pub fn client_program(&self, name: &str) -> Command {
        let mut command = Command::new(program(name));
        command
            .arg("-h")
            .arg(self.socket_dir())
            .args(["-p", &self.port.to_string(), "-U", "postgres"]);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(postmaster) = &mut self.postmaster
            && postmaster.exited().is_none()
        {
            postmaster.signal(Signal::QUIT);
            within(STOP_DEADLINE, || postmaster.exited().is_some());
        } else if std::thread::panicking() {
            print_tail("a server that had ended", &self.log());
        }
        self.postmaster = None;
        for pid in pids_in(&self.data_dir()) {
            signal_pid(pid, Signal::KILL);
        }
    }
}

/// A program of the server that `PG_CONFIG` names, with the default of the Makefile.
pub fn program(name: &str) -> PathBuf {
    static BINDIR: OnceLock<PathBuf> = OnceLock::new();
    let bindir = BINDIR.get_or_init(|| {
        let output = Command::new(pg_config())
            .arg("--bindir")
            .output()
            .expect("run pg_config");
        PathBuf::from(String::from_utf8(output.stdout).expect("utf-8").trim())
    });
    bindir.join(name)
}

fn pg_config() -> String {
    let debian = Path::new(DEBIAN_PG_CONFIG)
        .exists()
        .then(|| DEBIAN_PG_CONFIG.to_owned());
    std::env::var("PG_CONFIG")
        .ok()
        .or(debian)
        .unwrap_or_else(|| "pg_config".to_owned())
}

fn initdb(data: &Path, dir: &Path) {
    let output = ServerAccount::get()
        .command(program("initdb"), dir)
        .arg("-D")
        .arg(data)
        .args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ])
        .output()
        .expect("run initdb");
    assert!(
        output.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// initdb takes a second, a copy of its result a tenth of that. A template lives as long as a server
/// that was made from it; the last one takes it along.
fn template(number: usize) -> Arc<Scratch> {
    static TEMPLATES: Mutex<BTreeMap<usize, Weak<Scratch>>> = Mutex::new(BTreeMap::new());
    let mut known = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(&number).and_then(Weak::upgrade).unwrap_or_else(|| {
        let made = Arc::new(Scratch::new("template"));
        initdb(&made.join("data"), made.path());
        known.insert(number, Arc::downgrade(&made));
        made
    })
}

fn copy(template: &Path, data: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(template)
        .arg(data)
        .status()
        .expect("run cp");
    assert!(status.success(), "copy the template");
}
