//! The command that runs under a lock.

use crate::error::{Error, Result};
use idgen_core::lease::Token;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::process::ExitStatus;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Arriving, SignalKind, signal};

/// What the command can tell its resource: the name of the lock without "lock/",
const RESOURCE: &str = "IDGEN_LOCK";
/// ... and the fencing token, where the class has one.
const TOKEN: &str = "IDGEN_LOCK_TOKEN";

/// A command, in a process group of its own, so that all that it has started ends with it.
pub(super) struct Running {
    child: Child,
    group: Option<Pid>,
    /// What is passed on to it.
    arriving: [(Signal, Arriving); 3],
}

impl Running {
    pub(super) fn start(command: &[OsString], resource: &str, token: Option<Token>) -> Result<Self> {
        let [program, arguments @ ..] = command else {
            return Err(Error::usage("there is no command to run"));
        };
        // Before the command is there: none may get lost between.
        let arriving = [
            (Signal::TERM, listen(SignalKind::terminate())?),
            (Signal::INT, listen(SignalKind::interrupt())?),
            (Signal::HUP, listen(SignalKind::hangup())?),
        ];
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env(RESOURCE, resource)
            .env_remove(TOKEN)
            .process_group(0);
        if let Some(token) = token {
            command.env(TOKEN, token.to_string());
        }
        let child = command
            .spawn()
            .map_err(|error| Error::usage(format!("run {}: {error}", program.display())))?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self {
            child,
            group,
            arriving,
        })
    }

    /// Its end; meanwhile signals that arrive here are passed on.
    pub(super) async fn wait(&mut self) -> Result<ExitStatus> {
        let [(first, one), (second, two), (third, three)] = &mut self.arriving;
        loop {
            let passed_on = tokio::select! {
                status = self.child.wait() => {
                    return status.map_err(|error| Error::runtime(format!("wait for the command: {error}")));
                }
                Some(()) = one.recv() => *first,
                Some(()) = two.recv() => *second,
                Some(()) = three.recv() => *third,
            };
            send(self.group, passed_on);
        }
    }

    /// It has until the deadline to end by itself. One that is paused goes on, or it could not.
    pub(super) fn ask_to_stop(&self) {
        send(self.group, Signal::TERM);
        send(self.group, Signal::CONT);
    }

    pub(super) fn end(&self) {
        send(self.group, Signal::KILL);
    }
}

fn listen(kind: SignalKind) -> Result<Arriving> {
    signal(kind).map_err(|error| Error::runtime(format!("listen for signals: {error}")))
}

/// A group that is gone needs no signal.
fn send(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        let _ = kill_process_group(group, signal);
    }
}
