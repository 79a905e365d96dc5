//! The runbooks of docs/operations.md: every command of them is run here, in order, on real servers in the state that the page is about.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kit::daemon::{Answer, IDGENCTL, answer, idgenctl};
use crate::kit::{
    Daemon, DaemonOptions, Etcd, PATIENCE, Scratch, Server, ServerOptions, Store, eventually, page, sql,
};

/// What every runbook is called.
const HEADING: &str = "### Runbook: ";

/// A section of the page, and what stands for what in it.
struct Runbook {
    blocks: Vec<String>,
    next: Cell<usize>,
    environment: Vec<(&'static str, String)>,
    replaced: Vec<(&'static str, String)>,
    files: Scratch,
}

impl Runbook {
    fn open(name: &str, server: &Server, daemon: &mut Daemon) -> Runbook {
        let page = page::operations();
        let section = page::section(&page, &format!("{HEADING}{name}"));
        for part in ["**You see**", "Look ", "It is over when "] {
            assert!(section.contains(part), "\"{name}\" does not say \"{part}\"");
        }
        let addr = daemon.addr().expect("it listens");
        let bin = Path::new(IDGENCTL).parent().expect("a directory").display();
        let path = std::env::var("PATH").unwrap_or_default();
        Runbook {
            blocks: page::blocks(section, "sh"),
            next: Cell::new(0),
            environment: vec![
                ("PATH", format!("{bin}:{path}")),
                ("PGHOST", server.socket_dir().display().to_string()),
                ("PGUSER", "postgres".to_owned()),
                ("PGDATABASE", "postgres".to_owned()),
                ("ETCDCTL_API", "3".to_owned()),
            ],
            replaced: vec![
                ("/etc/idgend.toml", daemon.config_path().display().to_string()),
                ("127.0.0.1:9787", addr.to_string()),
            ],
            files: Scratch::new("runbook"),
        }
    }

    fn with(mut self, environment: &'static str, value: String) -> Self {
        self.environment.push((environment, value));
        self
    }

    fn replacing(mut self, written: &'static str, with: &str) -> Self {
        assert!(
            self.blocks.iter().any(|block| block.contains(written)),
            "{written} is not on the page"
        );
        self.replaced.push((written, with.to_owned()));
        self
    }

    fn text(&self) -> String {
        let block = self.blocks.get(self.next.get()).expect("another block");
        let replaced = self.replaced.iter();
        replaced.fold(block.clone(), |text, (written, with)| text.replace(written, with))
    }

    /// The next block, command by command: what each says and how it ends.
    fn run(&self) -> Vec<(String, Answer)> {
        let told = self.files.join("systemctl");
        let commands: Vec<(String, Answer)> = self
            .text()
            .lines()
            .map(|line| {
                // Whoever manages services here is the test.
                let script = format!("systemctl() {{ echo \"$*\" >>{}; }}\n{line}", told.display());
                let mut shell = Command::new("bash");
                shell.args(["-c", &script]).stdin(Stdio::null());
                shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
                (line.to_owned(), answer(shell))
            })
            .collect();
        self.next.set(self.next.get() + 1);
        commands
    }

    /// The next block, whose commands end like this and say that, in this order.
    #[track_caller]
    fn says(&self, expected: &[(i32, &str)]) {
        if let Err(why) = Self::compare(&self.run(), expected) {
            panic!("{why}");
        }
    }

    /// The same of what takes its time: run again until it is so.
    fn comes_to_say(&self, expected: &[(i32, &str)]) {
        let block = self.next.get();
        let mut last = String::new();
        let came = crate::kit::within(PATIENCE, || {
            self.next.set(block);
            match Self::compare(&self.run(), expected) {
                Ok(()) => true,
                Err(why) => {
                    last = why;
                    false
                }
            }
        });
        assert!(came, "{last}");
    }

    fn compare(commands: &[(String, Answer)], expected: &[(i32, &str)]) -> Result<(), String> {
        let lines: Vec<&String> = commands.iter().map(|(line, _)| line).collect();
        assert_eq!(
            commands.len(),
            expected.len(),
            "the page has other commands: {lines:#?}"
        );
        for ((line, answer), (code, said)) in commands.iter().zip(expected) {
            let text = format!("{}{}", answer.stdout, answer.stderr);
            if answer.code != Some(*code) || !text.contains(said) {
                return Err(format!(
                    "{line}\nends with {:?}, not {code}, or does not say \"{said}\":\n{text}",
                    answer.code
                ));
            }
        }
        Ok(())
    }

    /// What systemctl was told in the block before.
    fn services(&self) -> String {
        fs::read_to_string(self.files.join("systemctl")).unwrap_or_default()
    }

    #[track_caller]
    fn is_over(&self) {
        assert_eq!(self.next.get(), self.blocks.len(), "every block was run");
    }
}

#[test]
fn every_runbook_is_run() {
    let here = include_str!("runbooks.rs");
    let runbooks = page::headings(&page::operations(), HEADING);
    assert!(runbooks.len() >= 5, "{runbooks:?}");
    for runbook in runbooks {
        let name = runbook.trim_start_matches(HEADING);
        assert!(
            here.contains(&format!("Runbook::open(\"{name}\"")),
            "no test opens \"{name}\""
        );
    }
}

#[test]
fn the_runbook_of_a_store_that_is_away() {
    let (server, mut etcd) = (Server::start(), Etcd::start());
    let mut daemon = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .workers_more("period_ms = 500")
        .start();
    etcd.kill();
    daemon.wait_log(&["WARN", "lease store"]);
    let runbook = Runbook::open("the lease store is away", &server, &mut daemon)
        .with("ETCDCTL_ENDPOINTS", etcd.endpoint());
    runbook.comes_to_say(&[(0, "the lease lasts"), (0, "serving"), (1, "unhealthy")]);
    runbook.says(&[(0, "")]);
    assert_eq!(runbook.services(), "start etcd\n");
    etcd.run();
    runbook.comes_to_say(&[(0, "ready\n"), (0, "held")]);
    let (_, page) = daemon.get("/readyz").expect("readyz");
    assert_eq!(page, "ready\n", "and nothing more");
    runbook.is_over();
}

#[test]
fn the_runbook_of_the_clock_alarm() {
    let server = Server::with(ServerOptions {
        fake_clock: true,
        ..Default::default()
    });
    let mut daemon = DaemonOptions::new(&server).start();
    server.clock().set_offset_ms(3_600_000);
    daemon.wait_log(&["WARN", "the clock was set"]);
    let runbook = Runbook::open("the clock alarm", &server, &mut daemon);
    // There is no chronyd where tests run.
    runbook.comes_to_say(&[(0, "stepped"), (0, "UTC"), (1, "Cannot talk to daemon")]);
    runbook.says(&[
        (0, "would be accepted; the clock was set by"),
        (0, "accepted; the clock was set by"),
    ]);
    runbook.comes_to_say(&[(0, "idgen_clock_stepped"), (0, "ready")]);
    runbook.is_over();
}

#[test]
fn the_runbook_of_a_store_that_was_restored() {
    let (server, mut etcd) = (Server::start(), Etcd::start());
    let mut daemon = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .ttl_ms(4_000)
        .workers_more("period_ms = 500")
        .start();
    let snapshot = etcd.save("before");
    daemon.wait_renewals(2);
    etcd.kill();
    etcd.restore(&snapshot, Some("another"));
    etcd.run();
    daemon.wait_log(&["sealed"]);
    let config = daemon.config_path().display().to_string();
    let identity = eventually(PATIENCE, "it is sealed", || {
        let shown = idgenctl(&["epoch", "show", "--config", &config, "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&shown.stdout).ok()?;
        (shown.code == Some(3)).then(|| status["identity"].as_str().map(str::to_owned))?
    });
    let runbook = Runbook::open("the lease store was restored", &server, &mut daemon)
        .replacing("etcd/cdf818194e3a8c32", &identity);
    runbook.says(&[(3, "sealed"), (0, "sealed")]);
    runbook.says(&[(0, "nothing was changed. Epoch 1 of cell"), (0, "state     open")]);
    runbook.comes_to_say(&[(0, "state     open"), (0, "ready"), (0, "open")]);
    runbook.is_over();
}

#[test]
fn the_runbook_of_a_pool_that_is_nearly_full() {
    let server = Server::start();
    let options = DaemonOptions::new(&server).ttl_ms(4_000);
    options.start().terminate();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "INSERT INTO idgen.lease (kind, identity, generation, ceiling_ms, revision, holder, holder_name,
                                  token_epoch, token_revision, boot_id, expires_at)
         SELECT 'worker', n, 1, 0, 0, gen_random_uuid(), 'of somebody', 0, 0, gen_random_uuid(), now() + interval '1 day'
           FROM generate_series(0, 449) n
         ON CONFLICT (kind, identity) DO NOTHING",
    );
    let mut daemon = options.start();
    let runbook = Runbook::open("the pool is nearly full", &server, &mut daemon);
    runbook.comes_to_say(&[(0, "idgen_pool_pressure{class=\"worker\"} 1"), (0, "of somebody")]);
    runbook.says(&[(0, "")]);
    assert_eq!(runbook.services(), "stop idgend\n");
    // As a daemon does that ends cleanly.
    sql::run(
        &mut client,
        "UPDATE idgen.lease SET holder = NULL, holder_name = NULL, token_epoch = NULL, token_revision = NULL,
                boot_id = NULL, expires_at = NULL WHERE holder_name = 'of somebody'",
    );
    runbook.comes_to_say(&[(0, "idgen_pool_pressure{class=\"worker\"} 0")]);
    runbook.is_over();
}

#[test]
fn the_runbook_of_shards_that_must_move() {
    let servers = Server::several(2);
    let options = |n: usize, name: &str, ids: &str| {
        let options = DaemonOptions::new(&servers[n]).store(Store::on(&servers[1]));
        options.name(name).ttl_ms(4_000).shards(ids)
    };
    let first = options(0, "db-a", "5, 6").start();
    let mut second = options(1, "db-b", "7").start();
    let runbook = Runbook::open("the shards of a server must move", &servers[1], &mut second);
    runbook.comes_to_say(&[(0, "db-a"), (0, "(3 rows)")]);
    first.kill();
    runbook.says(&[(0, "moved in ")]);
    runbook.comes_to_say(&[(0, "3|t")]);
    runbook.is_over();
}

#[test]
fn the_runbook_of_a_planned_restart() {
    let mut servers = Server::several(2);
    let store = Store::on(&servers[1]);
    let options = |servers: &[Server], n: usize, name: &str, ids: &str| {
        let options = DaemonOptions::new(&servers[n]).store(store.clone());
        options.name(name).shards(ids)
    };
    let mut first = options(&servers, 0, "db-a", "5, 6").start();
    let _second = options(&servers, 1, "db-b", "7").start();
    let runbook = Runbook::open("a planned restart", &servers[0], &mut first);
    runbook.comes_to_say(&[(0, "db-a"), (0, "db-b")]);
    runbook.comes_to_say(&[
        (0, "nothing was changed"),
        (0, "it has no lease any more"),
        (0, "drained|server db-a was drained"),
    ]);
    runbook.says(&[(0, "")]);
    assert_eq!(runbook.services(), "restart postgresql\n");
    servers[0].restart();
    runbook.says(&[(0, "takes leases again"), (0, "moved in ")]);
    runbook.comes_to_say(&[(0, "serving"), (0, "ready")]);
    runbook.is_over();
}

#[test]
fn the_runbook_of_a_lock_that_is_stuck() {
    let (server, files) = (Server::start(), Scratch::new("stuck"));
    let mut daemon = DaemonOptions::new(&server)
        .locks("[locks.settlement]\nttl_ms = 4000\n")
        .start();
    let runs = files.join("runs");
    let config = daemon.config_path().display().to_string();
    let hangs = format!("echo >{}; sleep 1000", runs.display());
    let mut job = Command::new(IDGENCTL)
        .args([
            "lock",
            "run",
            "--config",
            &config,
            "--class",
            "settlement",
            "--",
            "sh",
            "-c",
            &hangs,
        ])
        .spawn()
        .expect("run the job");
    eventually(PATIENCE, "the job hangs", || runs.exists().then_some(()));
    let pid = job.id().to_string();
    let runbook = Runbook::open("a lock is stuck", &server, &mut daemon).replacing("4711", &pid);
    runbook.says(&[(0, "held"), (0, &pid)]);
    runbook.says(&[(0, "")]);
    runbook.comes_to_say(&[(0, "it is free"), (0, "free")]);
    let ended = job.wait().expect("its end");
    assert_eq!(ended.code(), Some(128 + 15), "as its job ended");
    runbook.is_over();
}

#[test]
fn the_runbook_of_an_identity_that_is_to_be_taken_by_force() {
    let (server, files) = (Server::start(), Scratch::new("people"));
    for who in ["alice", "bob"] {
        let role = format!("CREATE ROLE {who} LOGIN");
        sql::run(&mut server.connect(), &role);
        sql::run(
            &mut server.connect(),
            &format!("SELECT idgen.grant_approver('{who}')"),
        );
        let url = server.daemon_url().replace("user=idgend", &format!("user={who}"));
        let file = files.join(who);
        fs::write(&file, format!("url = \"{url}\"\n")).expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("close the file");
    }
    let mut daemon = DaemonOptions::new(&server).name("db3").shards("7").start();
    let config = daemon.config_path().display().to_string();
    let runbook = Runbook::open("an identity is to be taken by force", &server, &mut daemon)
        .replacing("~alice/idgen.toml", &files.join("alice").display().to_string())
        .replacing("~bob/idgen.toml", &files.join("bob").display().to_string());
    runbook.says(&[(0, "db3")]);
    runbook.says(&[
        (0, "nothing was changed"),
        (0, "take shard 7"),
        (0, "take shard 7"),
    ]);
    let listed = idgenctl(&["approvals", "list", "--config", &config, "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let request = listed["requests"][0]["request"]
        .as_str()
        .expect("a request")
        .to_owned();
    let runbook = runbook.replacing("6b1f0c0e-5a34-4a57-9d0c-0b5f3a1f7c11", &request);
    runbook.says(&[(0, "alice"), (0, "taken")]);
    runbook.comes_to_say(&[(0, "taken"), (0, "db3")]);
    runbook.is_over();
}
