//! Faults of processes and disks: a sync that stalls or fails, a process that is paused.

use std::process::Command;
use std::time::Duration;

use super::process::{Process, Signal, signal_pid};
use super::{PATIENCE, Scratch, eventually_true};

/// What happens to each `fdatasync` of a process.
#[derive(Clone, Copy, Debug)]
pub enum SyncFault {
    Delay(Duration),
    /// The name of an errno, such as EIO.
    Error(&'static str),
}

impl SyncFault {
    fn inject(self) -> String {
        match self {
            SyncFault::Delay(delay) => format!("inject=fdatasync:delay_enter={}", delay.as_micros()),
            SyncFault::Error(errno) => format!("inject=fdatasync:error={errno}"),
        }
    }
}

/// strace holds a process while this lives. Dropped: strace lets go, and a delay that runs ends.
pub struct SyncFaultGuard {
    strace: Process,
    _scratch: Scratch,
}

impl SyncFaultGuard {
    /// All threads of the process; in force when this returns.
    pub fn on(pid: u32, fault: SyncFault) -> SyncFaultGuard {
        let scratch = Scratch::new("strace");
        let mut command = Command::new("strace");
        command
            .args(["-f", "-p", &pid.to_string(), "-e", "trace=fdatasync", "-e"])
            .arg(fault.inject());
        let strace = Process::spawn("strace", command, scratch.join("strace.log"));
        eventually_true(PATIENCE, "strace is attached", || {
            strace.log().contains(" attached")
        });
        SyncFaultGuard {
            strace,
            _scratch: scratch,
        }
    }

    /// How many syncs were met so far.
    pub fn met(&self) -> usize {
        self.strace.log().matches("fdatasync(").count()
    }
}

impl Drop for SyncFaultGuard {
    fn drop(&mut self) {
        // A killed tracer would leave a thread in the middle of its delay; asked to end, it detaches.
        self.strace.signal(Signal::INT);
        self.strace.wait_exit(PATIENCE);
    }
}

/// Processes that stand still while this lives.
pub struct Pause {
    pids: Vec<u32>,
}

impl Pause {
    pub fn of(pids: impl IntoIterator<Item = u32>) -> Pause {
        let pids: Vec<u32> = pids.into_iter().collect();
        for pid in &pids {
            assert!(
                signal_pid(*pid, Signal::STOP),
                "process {pid} is there to be paused"
            );
        }
        Pause { pids }
    }

    pub fn resume(self) {}
}

impl Drop for Pause {
    fn drop(&mut self) {
        for pid in &self.pids {
            signal_pid(*pid, Signal::CONT);
        }
    }
}
