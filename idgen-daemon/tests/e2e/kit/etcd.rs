//! Real etcds: one member, or a cluster, of either release that is tested.

use std::fmt;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::daemon::{Answer, answer};
use super::ports::free_ports;
use super::process::{Process, Signal};
use super::{CertDir, PATIENCE, Scratch, eventually, eventually_true, http};

/// Where `make/etcd.sh` unpacks the newer release.
const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/etcd-3.5/usr/bin");
/// No answer of a healthy member takes longer; a stopped one never answers.
const CTL_TIMEOUT: &str = "2s";
/// A snapshot takes as long as the machine is busy.
const SAVE_TIMEOUT: &str = "30s";

const DAY_S: usize = 86_400;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Installed: Debian 12's. Has the lease faults that we must be safe from (etcd #15247, #20590).
    #[default]
    V3_4,
    /// Debian 13's, unpacked by `make/etcd.sh`.
    V3_5,
}

impl Release {
    pub const ALL: [Release; 2] = [Release::V3_4, Release::V3_5];

    pub fn name(self) -> &'static str {
        match self {
            Release::V3_4 => "3.4",
            Release::V3_5 => "3.5",
        }
    }

    pub fn program(self, name: &str) -> PathBuf {
        match self {
            Release::V3_4 => PathBuf::from(name),
            Release::V3_5 => {
                let program = Path::new(UNPACKED).join(name);
                assert!(
                    program.exists(),
                    "{} is not there: make/etcd.sh fetches it (make test SUITES=faults calls it)",
                    program.display()
                );
                program
            }
        }
    }

    /// As the program says it, such as 3.4.23.
    pub fn version(self) -> String {
        let mut command = Command::new(self.program("etcd"));
        command.arg("--version");
        let said = answer(command).stdout;
        let line = said.lines().next().unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a test chooses; the same for all members of a cluster.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub release: Release,
    /// More arguments of the program.
    pub args: Vec<String>,
    /// Directory of a [`CertDir`](super::CertDir): clients come with TLS, and show a certificate of its authority.
    pub certs: Option<PathBuf>,
    /// Members of a cluster have monotonic clocks that differ by days: namespaces of their own. A signal does not reach them.
    pub days_apart: bool,
}

impl EtcdOptions {
    pub fn of(release: Release) -> EtcdOptions {
        EtcdOptions {
            release,
            ..Default::default()
        }
    }

    pub fn certs(self, certs: &CertDir) -> Self {
        EtcdOptions {
            certs: Some(certs.path().to_owned()),
            ..self
        }
    }

    pub fn days_apart(self) -> Self {
        EtcdOptions {
            days_apart: true,
            ..self
        }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }
}

/// One member; by itself it is a cluster of one.
pub struct Etcd {
    process: Option<Process>,
    options: EtcdOptions,
    name: String,
    client_port: u16,
    peer_port: u16,
    /// Health in plain HTTP, whatever the clients must do.
    health_port: u16,
    /// `name=peer URL` of all members.
    initial_cluster: String,
    /// How far its monotonic clocks are ahead.
    ahead_s: usize,
    scratch: Scratch,
}

impl Etcd {
    pub fn start() -> Etcd {
        Etcd::with(EtcdOptions::default())
    }

    pub fn with(options: EtcdOptions) -> Etcd {
        let mut etcd = Etcd::reserve_with("e2e", options);
        etcd.run();
        etcd
    }

    /// A place for an etcd that does not run yet: its endpoint is known and refuses connections.
    pub fn reserve() -> Etcd {
        Etcd::reserve_with("e2e", EtcdOptions::default())
    }

    fn reserve_with(name: &str, options: EtcdOptions) -> Etcd {
        let [client_port, peer_port, health_port] = free_ports();
        let mut etcd = Etcd {
            process: None,
            options,
            name: name.to_owned(),
            client_port,
            peer_port,
            health_port,
            initial_cluster: String::new(),
            ahead_s: 0,
            scratch: Scratch::new("etcd"),
        };
        etcd.initial_cluster = etcd.as_peer();
        etcd
    }

    pub fn endpoint(&self) -> String {
        let scheme = if self.options.certs.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port))
    }

    pub fn data_dir(&self) -> PathBuf {
        self.scratch.join("data")
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    fn as_peer(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }

    /// Of the next start: an upgrade.
    pub fn set_release(&mut self, release: Release) {
        self.options.release = release;
    }

    pub fn run(&mut self) {
        self.spawn();
        self.wait_healthy();
    }

    /// Starts it and returns at once: a member of three is not healthy before a second one runs.
    pub fn spawn(&mut self) {
        let (client, peer) = (self.endpoint(), self.peer_url());
        let mut command = self.program();
        command
            .current_dir(self.scratch.path())
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.data_dir())
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &self.initial_cluster])
            .args([
                "--listen-metrics-urls",
                &format!("http://127.0.0.1:{}", self.health_port),
            ])
            .args(&self.options.args);
        if let Some(certs) = &self.options.certs {
            let file = |name: &str| certs.join(name);
            command.arg("--cert-file").arg(file("server.pem"));
            command.arg("--key-file").arg(file("server.key"));
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(file("server-ca.pem"));
        }
        let name = format!("etcd {}", self.name);
        self.process = Some(Process::spawn(&name, command, self.scratch.join("etcd.log")));
    }

    fn program(&self) -> Command {
        let etcd = self.options.release.program("etcd");
        if self.ahead_s == 0 {
            return Command::new(etcd);
        }
        let ahead = self.ahead_s.to_string();
        let mut command = Command::new("unshare");
        command
            .args(["--time", "--monotonic", &ahead, "--boottime", &ahead])
            .args(["--fork", "--kill-child"])
            .arg(etcd);
        command
    }

    pub fn wait_healthy(&self) {
        eventually_true(PATIENCE, "etcd is healthy", || self.is_healthy());
    }

    pub fn is_healthy(&self) -> bool {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, self.health_port));
        http::get(addr, "/health").is_some_and(|(status, body)| status == 200 && body.contains("true"))
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("etcd runs").id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| process.exited().is_some())
    }

    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("etcd runs").signal(signal);
    }

    /// kill -9; the data stays for the next [`Etcd::run`].
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// A snapshot of what this member has now.
    pub fn save(&self, name: &str) -> PathBuf {
        let file = self.scratch.join(name);
        self.ctl_ok(&[
            "snapshot",
            "save",
            &file.display().to_string(),
            "--command-timeout",
            SAVE_TIMEOUT,
        ]);
        file
    }

    /// Puts a snapshot in the place of its data, as a cluster with this token; it runs then. The default token is
    /// that of every cluster which was started without one.
    pub fn restore(&mut self, snapshot: &Path, token: Option<&str>) {
        self.put_back(snapshot, token, None);
        self.run();
    }

    /// The same without running it: a member of three is not healthy before a second one runs.
    fn put_back(&mut self, snapshot: &Path, token: Option<&str>, bump: Option<u64>) {
        self.kill();
        fs::remove_dir_all(self.data_dir()).expect("remove the data");
        // Only the tool of 3.5 can bump revisions; it restores a snapshot of 3.4 as well.
        let mut command = match bump {
            None => Command::new(self.options.release.program("etcdctl")),
            Some(_) => Command::new(Release::V3_5.program("etcdutl")),
        };
        command
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .args(["--name", &self.name, "--initial-cluster", &self.initial_cluster])
            .args(["--initial-advertise-peer-urls", &self.peer_url()])
            .args(["--initial-cluster-token", token.unwrap_or("etcd-cluster")])
            .arg("--data-dir")
            .arg(self.data_dir());
        if let Some(by) = bump {
            command.args(["--bump-revision", &by.to_string(), "--mark-compacted"]);
        }
        let restored = answer(command);
        assert_eq!(restored.code, Some(0), "restore: {}", restored.stderr);
    }

    /// The release's own etcdctl, asking this member.
    pub fn ctl(&self, args: &[&str]) -> Answer {
        answer(self.ctl_command(args))
    }

    fn ctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.options.release.program("etcdctl"));
        command.env("ETCDCTL_API", "3").args([
            "--endpoints",
            &self.endpoint(),
            "--command-timeout",
            CTL_TIMEOUT,
        ]);
        if let Some(certs) = &self.options.certs {
            command.arg("--cacert").arg(certs.join("server-ca.pem"));
            command.arg("--cert").arg(certs.join("admin.pem"));
            command.arg("--key").arg(certs.join("admin.key"));
        }
        command.args(args);
        command
    }

    /// One transaction of these operations, a line each, without comparisons.
    pub fn txn_ok(&self, args: &[&str], operations: &str) {
        let mut command = self.ctl_command(&[args, &["txn"]].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run etcdctl");
        let mut stdin = child.stdin.take().expect("its input");
        write!(stdin, "\n{operations}\n\n\n").expect("write the transaction");
        drop(stdin);
        let done = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && said.contains("SUCCESS"),
            "{said}{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// [`Etcd::ctl`] for a command that must succeed; what it wrote.
    pub fn ctl_ok(&self, args: &[&str]) -> String {
        let answer = self.ctl(args);
        assert_eq!(answer.code, Some(0), "etcdctl {args:?}: {}", answer.stderr);
        answer.stdout
    }

    /// `Status` of `etcdctl endpoint status`; `None` while the member does not answer.
    pub fn status(&self) -> Option<Value> {
        let answer = self.ctl(&["endpoint", "status", "--write-out=json"]);
        let said: Value = serde_json::from_str(&answer.stdout).ok()?;
        said.get(0)?.get("Status").cloned()
    }

    /// It answers, and says that it leads. A member that was cut off may say so although another one does.
    pub fn says_it_leads(&self) -> bool {
        self.status().is_some_and(|status| {
            let member = &status["header"]["member_id"];
            !member.is_null() && *member == status["leader"]
        })
    }
}

/// Members that elect a leader among themselves.
pub struct EtcdCluster {
    pub members: Vec<Etcd>,
}

impl EtcdCluster {
    pub fn start(release: Release) -> EtcdCluster {
        EtcdCluster::with(EtcdOptions::of(release), 3)
    }

    pub fn with(options: EtcdOptions, count: usize) -> EtcdCluster {
        let mut members: Vec<Etcd> = (0..count)
            .map(|n| Etcd::reserve_with(&format!("member-{n}"), options.clone()))
            .collect();
        let initial: Vec<String> = members.iter().map(Etcd::as_peer).collect();
        for (n, member) in members.iter_mut().enumerate() {
            member.initial_cluster = initial.join(",");
            if options.days_apart {
                member.ahead_s = n * 10 * DAY_S;
            }
            member.spawn();
        }
        let cluster = EtcdCluster { members };
        cluster.wait_healthy();
        cluster
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Etcd::endpoint).collect()
    }

    /// Every member, which each of them says only when there is a leader.
    pub fn wait_healthy(&self) {
        self.members.iter().for_each(Etcd::wait_healthy);
    }

    /// Index of the member that leads.
    pub fn leader(&self) -> usize {
        self.leader_among(|_| true)
    }

    /// Of the members that are healthy: those that a test has stopped are left out by `asked`.
    pub fn leader_among(&self, asked: impl Fn(usize) -> bool) -> usize {
        eventually(PATIENCE, "etcd has a leader", || {
            (0..self.members.len()).find(|n| asked(*n) && self.members[*n].says_it_leads())
        })
    }

    /// Makes the next member the leader, and returns its index.
    pub fn move_leader(&self) -> usize {
        let from = self.leader();
        let to = (from + 1) % self.members.len();
        let id = self.members[to].status().expect("a healthy member")["header"]["member_id"]
            .as_u64()
            .expect("a member id");
        self.members[from].ctl_ok(&["move-leader", &format!("{id:x}")]);
        eventually_true(Duration::from_secs(10), "the leader has moved", || {
            self.members[to].says_it_leads()
        });
        to
    }

    pub fn kill_all(&mut self) {
        self.members.iter_mut().for_each(Etcd::kill);
    }

    /// Every member from the same snapshot, as one cluster with this token; see [`Etcd::restore`].
    pub fn restore(&mut self, snapshot: &Path, token: Option<&str>) {
        self.put_back(snapshot, token, None);
    }

    /// The same under the default token, with a revision that is higher by this and all history compacted: what
    /// etcd's documentation advises, so that watches notice.
    pub fn restore_bumped(&mut self, snapshot: &Path, by: u64) {
        self.put_back(snapshot, None, Some(by));
    }

    fn put_back(&mut self, snapshot: &Path, token: Option<&str>, bump: Option<u64>) {
        self.kill_all();
        for member in &mut self.members {
            member.put_back(snapshot, token, bump);
        }
        self.run_all();
    }

    pub fn run_all(&mut self) {
        self.members.iter_mut().for_each(Etcd::spawn);
        self.wait_healthy();
    }
}
