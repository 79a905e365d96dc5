//! Child processes that never outlive their test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, kill_process, kill_process_group};

pub use rustix::process::Signal;

use super::wait::eventually;

/// Lines of a log that are shown when a test fails.
const LOG_TAIL_LINES: usize = 60;

/// Postgres refuses to run as root, so root lends it the account of the Debian package.
pub struct ServerAccount {
    ids: Option<(u32, u32)>,
}

impl ServerAccount {
    pub fn get() -> &'static ServerAccount {
        static ACCOUNT: OnceLock<ServerAccount> = OnceLock::new();
        ACCOUNT.get_or_init(|| ServerAccount {
            ids: rustix::process::geteuid().is_root().then(postgres_ids),
        })
    }

    pub fn own(&self, path: &Path) {
        if let Some((uid, gid)) = self.ids {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
        }
    }

    /// A command under this account. Its working directory is `dir`: ours may be closed to it.
    pub fn command(&self, program: impl AsRef<Path>, dir: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(dir).stdin(Stdio::null()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.ids {
            command.uid(uid).gid(gid);
        }
        command
    }
}

fn postgres_ids() -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").expect("read /etc/passwd");
    let line = passwd
        .lines()
        .find(|line| line.starts_with("postgres:"))
        .expect("a user named postgres");
    let mut fields = line
        .split(':')
        .skip(2)
        .map(|field| field.parse::<u32>().expect("a numeric id"));
    (fields.next().expect("uid"), fields.next().expect("gid"))
}

/// One running program with its log. Dropped: its process group is killed, and its log is shown if the
/// test is failing.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> Process {
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("open log");
        let err = out.try_clone().expect("clone log");
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Process {
            name: name.to_owned(),
            child,
            log,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(pid(self.id()), signal).unwrap_or_else(|error| panic!("signal {}: {error}", self.name));
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for child")
    }

    pub fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(deadline, &what, || self.exited())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            // The group may be gone between the check and the kill; that is what we want anyway.
            let _gone = kill_process_group(pid(self.id()), Signal::KILL);
            let _status = self.child.wait();
        }
        if std::thread::panicking() {
            print_tail(&self.name, &self.log());
        }
    }
}

pub fn print_tail(name: &str, log: &str) {
    let lines: Vec<&str> = log.lines().collect();
    let skipped = lines.len().saturating_sub(LOG_TAIL_LINES);
    eprintln!("--- log of {name} ({skipped} lines before) ---");
    for line in &lines[skipped..] {
        eprintln!("{line}");
    }
}

fn pid(id: u32) -> Pid {
    let raw = i32::try_from(id).expect("a pid fits i32");
    Pid::from_raw(raw).expect("a pid is not 0")
}

/// Sends a signal to a process that is not our child, such as a backend; false when it is gone.
pub fn signal_pid(id: u32, signal: Signal) -> bool {
    kill_process(pid(id), signal).is_ok()
}

/// Processes whose working directory is `dir`: the backends of the server that lives there, orphans
/// included, and nobody else's.
pub fn pids_in(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|id| fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == dir) && !is_zombie(*id))
        .collect()
}

/// The open TCP connections of a process to `server` (IPv4), by their ports on its side.
pub fn connections(id: u32, server: SocketAddr) -> BTreeSet<u16> {
    const ESTABLISHED: &str = "01";
    let sockets: BTreeSet<String> = fs::read_dir(format!("/proc/{id}/fd"))
        .expect("its files")
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let table = fs::read_to_string(format!("/proc/{id}/net/tcp")).expect("its connections");
    let of_line = |line: &str| {
        let column: Vec<&str> = line.split_whitespace().collect();
        let (local, remote, state, inode) =
            (*column.get(1)?, *column.get(2)?, *column.get(3)?, *column.get(9)?);
        let is_its = sockets.contains(&format!("socket:[{inode}]"));
        let wanted = state == ESTABLISHED && port(remote)? == server.port() && is_its;
        wanted.then(|| port(local)).flatten()
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

fn is_zombie(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
