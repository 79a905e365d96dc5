//! `idgenctl lock run`: one command at a time has a name; it is stopped before somebody else may have it, and one that
//! cannot be stopped in time is refused by the database that it writes to.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::kit::daemon::{Answer, IDGENCTL, idgenctl};
use crate::kit::process::{Process, Signal, pids_in, signal_pid};
use crate::kit::{
    Daemon, DaemonOptions, Etcd, PATIENCE, Pause, Scratch, Server, Store, eventually, eventually_true, sql,
};

/// Short, so that a lease that nobody gives back is over soon; etcd keeps leases by whole seconds.
const TTL: Duration = Duration::from_secs(4);

/// A server, its daemon, and folders for what commands write.
struct Scene {
    server: Server,
    daemon: Daemon,
    scratch: Scratch,
}

impl Scene {
    fn new(store: Store) -> Scene {
        let server = Server::start();
        let locks = format!(
            "[locks.settlement]\nttl_ms = {ttl}\n[locks.report]\nmode = \"advisory\"\nttl_ms = {ttl}\n",
            ttl = TTL.as_millis()
        );
        let daemon = DaemonOptions::new(&server).store(store).locks(&locks).start();
        sql::run(
            &mut server.connect(),
            "CREATE TABLE account (written_by text); INSERT INTO account VALUES ('nobody')",
        );
        Scene {
            server,
            daemon,
            scratch: Scratch::new("lock"),
        }
    }

    fn args<'a>(&'a self, class: &'a str, more: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
        let config = self.daemon.config_path().to_str().expect("a path");
        [
            &["lock", "run", "--config", config, "--class", class],
            more,
            &["--"],
            command,
        ]
        .concat()
    }

    fn run(&self, class: &str, more: &[&str], command: &[&str]) -> Answer {
        idgenctl(&self.args(class, more, command))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs beside the test: it notes its token, waits until it is told to go on, and writes to the account.
    fn writer(&self, name: &str, class: &str, wait: &str) -> Writer {
        let fence = match class {
            "settlement" => "-c \"SELECT idgen.fence('$IDGEN_LOCK', '$IDGEN_LOCK_TOKEN')\"",
            _ => "",
        };
        let dir = self.file(name);
        fs::create_dir(&dir).expect("make a folder");
        let script = format!(
            "cd {dir}; echo \"${{IDGEN_LOCK_TOKEN-none}}\" > new && mv new token; while [ ! -e go ]; do sleep 0.05; done; \
             psql -X '{url}' -v ON_ERROR_STOP=1 -v VERBOSITY=verbose -c BEGIN {fence} \
             -c \"UPDATE account SET written_by = '{name}'\" -c COMMIT > said 2>&1; ended=$?; echo $ended > ended; exit $ended",
            dir = dir.display(),
            url = self.server.conninfo(),
        );
        let mut command = Command::new(IDGENCTL);
        command.args(self.args(class, &["--wait", wait], &["sh", "-c", &script]));
        Writer {
            process: Process::spawn(&format!("lock of {name}"), command, dir.join("log")),
            dir,
        }
    }

    fn written_by(&self) -> String {
        sql::value(&mut self.server.connect(), "SELECT written_by FROM account")
    }

    fn locks(&self) -> serde_json::Value {
        let config = self.daemon.config_path().to_str().expect("a path");
        let answer = idgenctl(&["lock", "list", "--config", config, "--output", "json"]);
        assert_eq!(answer.code, Some(0), "{}", answer.stderr);
        serde_json::from_str::<serde_json::Value>(&answer.stdout).expect("JSON")["locks"].clone()
    }
}

struct Writer {
    process: Process,
    dir: PathBuf,
}

impl Writer {
    fn wait_token(&self) -> String {
        eventually(PATIENCE, "the command runs", || {
            fs::read_to_string(self.dir.join("token")).ok()
        })
        .trim()
        .to_owned()
    }

    /// Its command and what that has started, in a process group of their own.
    fn command(&self) -> Vec<u32> {
        pids_in(&self.dir)
    }

    fn go_on(&self) {
        fs::write(self.dir.join("go"), "").expect("write");
    }

    /// What psql said, and how it ended.
    fn wait_said(&self) -> (String, String) {
        let ended = eventually(PATIENCE, "psql ends", || {
            fs::read_to_string(self.dir.join("ended"))
                .ok()
                .filter(|ended| ended.ends_with('\n'))
        });
        let said = fs::read_to_string(self.dir.join("said")).expect("read");
        (said, ended.trim().to_owned())
    }

    fn wait_exit(&mut self) -> Option<i32> {
        self.process.wait_exit(PATIENCE).code()
    }
}

/// A `lock run` that is killed leaves its command behind.
impl Drop for Writer {
    fn drop(&mut self) {
        for pid in self.command() {
            signal_pid(pid, Signal::KILL);
        }
    }
}

/// The first holder is paused over its deadline with all its processes, and the next one writes. Returned paused.
fn paused_over_the_next(scene: &Scene, class: &str) -> Writer {
    let first = scene.writer("first", class, "0s");
    first.wait_token();
    let command = first.command();
    assert!(!command.is_empty());
    for pid in command.iter().copied().chain([first.process.id()]) {
        assert!(signal_pid(pid, Signal::STOP));
    }
    let mut second = scene.writer("second", class, "60s");
    assert_ne!(second.wait_token(), first.wait_token_if_fenced(class));
    second.go_on();
    assert_eq!(second.wait_exit(), Some(0));
    assert_eq!(scene.written_by(), "second");
    // Only the command, for it is what writes; whoever watches over it would end it.
    first.go_on();
    for pid in &command {
        assert!(signal_pid(*pid, Signal::CONT));
    }
    first
}

impl Writer {
    /// Advisory locks have no token, so there is nothing to compare.
    fn wait_token_if_fenced(&self, class: &str) -> String {
        match class {
            "settlement" => self.wait_token(),
            _ => String::new(),
        }
    }

    fn resume_and_wait(mut self) {
        self.process.signal(Signal::CONT);
        assert_eq!(self.wait_exit(), Some(4), "lost");
        assert!(
            self.process.log().contains("the lock is lost"),
            "{}",
            self.process.log()
        );
    }
}

fn a_paused_holder_is_refused_by_postgres_itself(store: Store) {
    let scene = Scene::new(store);
    let first = paused_over_the_next(&scene, "settlement");
    let (said, ended) = first.wait_said();
    assert!(said.contains("IG040") && said.contains("is stale"), "{said}");
    assert_ne!(ended, "0");
    assert_eq!(scene.written_by(), "second");
    first.resume_and_wait();
    assert_eq!(scene.written_by(), "second");
    let locks = scene.locks();
    assert_eq!(
        (&locks[0]["name"], &locks[0]["state"]),
        (&"settlement".into(), &"free".into())
    );
}

#[test]
fn a_paused_holder_of_a_fenced_lock_is_refused_by_postgres_itself() {
    a_paused_holder_is_refused_by_postgres_itself(Store::Embedded);
}

#[test]
fn a_paused_holder_of_a_fenced_lock_in_an_etcd_is_refused_by_postgres_itself() {
    let etcd = Etcd::start();
    a_paused_holder_is_refused_by_postgres_itself(Store::etcd(&etcd));
}

/// As docs/operations.md says: nothing but time keeps two holders apart.
#[test]
fn a_paused_holder_of_an_advisory_lock_writes_over_the_next_one() {
    let scene = Scene::new(Store::Embedded);
    let first = paused_over_the_next(&scene, "report");
    let (said, ended) = first.wait_said();
    assert_eq!(ended, "0", "{said}");
    assert_eq!(scene.written_by(), "first");
    first.resume_and_wait();
}

#[test]
fn a_lock_run_ends_as_its_command_does_and_gives_the_lock_back() {
    let scene = Scene::new(Store::Embedded);
    assert_eq!(
        scene.run("settlement", &[], &["sh", "-c", "exit 7"]).code,
        Some(7)
    );
    assert_eq!(
        scene.run("settlement", &[], &["sh", "-c", "kill -9 $$"]).code,
        Some(137)
    );
    let answer = scene.run(
        "settlement",
        &["--name", "2026/11"],
        &["sh", "-c", "echo $IDGEN_LOCK ${IDGEN_LOCK_TOKEN%/*}"],
    );
    assert_eq!(
        (answer.code, answer.stdout.trim()),
        (Some(0), "settlement/2026/11 0")
    );
    let answer = scene.run("report", &[], &["sh", "-c", "echo ${IDGEN_LOCK_TOKEN-none}"]);
    assert_eq!(answer.stdout.trim(), "none", "nothing to show to a fence");
    let locks = scene.locks();
    let names: Vec<_> = locks
        .as_array()
        .expect("a list")
        .iter()
        .map(|lock| &lock["name"])
        .collect();
    assert_eq!(names, ["report", "settlement", "settlement/2026/11"]);
    assert_eq!(
        (&locks[1]["generation"], &locks[1]["state"]),
        (&2.into(), &"free".into())
    );
}

#[test]
fn a_lock_that_is_taken_is_waited_for_as_long_as_is_asked() {
    let scene = Scene::new(Store::Embedded);
    let mut first = scene.writer("first", "settlement", "0s");
    let token = first.wait_token();
    let refused = scene.run(
        "settlement",
        &[],
        &["touch", scene.file("ran").to_str().expect("a path")],
    );
    assert_eq!(refused.code, Some(3));
    let why = format!("held by idgenctl lock at e2e under token {token}");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert!(!scene.file("ran").exists());
    assert_eq!(scene.locks()[0]["state"], "held");

    let second = scene.writer("second", "settlement", "60s");
    first.go_on();
    assert_eq!(first.wait_exit(), Some(0));
    second.wait_token();
    assert_eq!(scene.written_by(), "first");
}

#[test]
fn of_many_at_once_one_runs_at_a_time() {
    let scene = Scene::new(Store::Embedded);
    let count = scene.file("count");
    fs::write(&count, "0").expect("write");
    let script = format!(
        "n=$(cat {count}); sleep 0.1; echo $((n + 1)) > {count}",
        count = count.display()
    );
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let answer = scene.run("settlement", &["--wait", "60s"], &["sh", "-c", &script]);
                assert_eq!(answer.code, Some(0), "{}", answer.stderr);
            });
        }
    });
    assert_eq!(fs::read_to_string(&count).expect("read").trim(), "5");
}

/// A store that is away: what can end by itself does, what does not listen is ended, both before the lease is over.
#[test]
fn a_command_is_stopped_before_its_lock_may_be_somebody_elses() {
    let etcd = Etcd::start();
    let scene = Scene::new(Store::etcd(&etcd));
    for (name, on_term) in [("listens", "echo asked > asked; exit 0"), ("deaf", "")] {
        let dir = scene.file(name);
        fs::create_dir(&dir).expect("make a folder");
        let script = format!(
            "cd {}; trap '{on_term}' TERM; touch runs; while :; do sleep 0.05; done",
            dir.display()
        );
        let mut command = Command::new(IDGENCTL);
        command.args(scene.args("settlement", &["--wait", "60s"], &["sh", "-c", &script]));
        let mut run = Process::spawn(name, command, dir.join("log"));
        eventually_true(PATIENCE, "the command runs", || dir.join("runs").exists());
        let paused = Pause::of([etcd.pid()]);
        let lasted = eventually_true(TTL, "the command ends", || pids_in(&dir).is_empty());
        assert!(
            lasted < TTL,
            "the lease was renewed before the pause at the latest"
        );
        assert_eq!(run.wait_exit(PATIENCE).code(), Some(4));
        assert_eq!(dir.join("asked").exists(), name == "listens");
        paused.resume();
    }
}

#[test]
fn a_signal_reaches_the_command_and_the_lock_is_given_back() {
    let scene = Scene::new(Store::Embedded);
    let dir = scene.file("told");
    fs::create_dir(&dir).expect("make a folder");
    let script = format!(
        "cd {}; trap 'exit 9' INT; touch runs; while :; do sleep 0.05; done",
        dir.display()
    );
    let mut command = Command::new(IDGENCTL);
    command.args(scene.args("settlement", &[], &["sh", "-c", &script]));
    let mut run = Process::spawn("told", command, dir.join("log"));
    eventually_true(PATIENCE, "the command runs", || dir.join("runs").exists());
    run.signal(Signal::INT);
    assert_eq!(run.wait_exit(PATIENCE).code(), Some(9));
    assert_eq!(scene.locks()[0]["state"], "free");
}

#[test]
fn what_is_no_lock_is_refused_and_nothing_runs() {
    let scene = Scene::new(Store::Embedded);
    let ran = scene.file("ran");
    let touch = ["touch", ran.to_str().expect("a path")];
    for (class, more, part) in [
        ("settlements", &[][..], "there are: report, settlement"),
        ("settlement", &["--name", "a b"], "words of letters"),
        ("settlement", &["--name", ""], "words of letters"),
        ("settlement", &["--wait", "soon"], "--wait"),
    ] {
        let refused = scene.run(class, more, &touch);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(
            refused.stderr.contains(part),
            "{part} is not in {}",
            refused.stderr
        );
    }
    assert!(!ran.exists());
    let answer = scene.run("settlement", &[], &["no-such-program"]);
    assert_eq!(answer.code, Some(2));
    assert!(answer.stderr.contains("run no-such-program"), "{}", answer.stderr);
    assert_eq!(scene.locks()[0]["state"], "free", "given back all the same");
}

#[test]
fn a_store_that_was_restored_gives_no_lock() {
    let mut etcd = Etcd::start();
    let mut scene = Scene::new(Store::etcd(&etcd));
    let snapshot = etcd.save("before");
    assert_eq!(scene.run("settlement", &[], &["true"]).code, Some(0));
    scene.daemon.wait_renewals(2);
    etcd.kill();
    etcd.restore(&snapshot, None);
    etcd.run();
    let refused = scene.run("settlement", &["--wait", "5s"], &["true"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("restored"), "{}", refused.stderr);
}

#[test]
fn a_dry_run_of_a_lock_runs_nothing_and_says_whether_it_is_to_be_had() {
    let scene = Scene::new(Store::Embedded);
    let ran = scene.file("ran");
    let command = ["touch", ran.to_str().expect("a path")];
    let tried = scene.run("settlement", &["--dry-run"], &command);
    assert_eq!(tried.code, Some(0), "{}", tried.stderr);
    assert!(tried.stdout.contains("free now"), "{}", tried.stdout);
    assert_eq!(scene.locks(), serde_json::json!([]), "it was never taken");

    let mut holder = scene.writer("holder", "settlement", "0s");
    holder.wait_token();
    let tried = scene.run("settlement", &["--dry-run"], &command);
    assert_eq!(tried.code, Some(3), "{}", tried.stdout);
    assert!(tried.stderr.contains("held by"), "{}", tried.stderr);
    holder.go_on();
    holder.wait_exit();
    assert!(!ran.exists());
}
