//! `idgenctl lock`: commands that run as long as they alone hold a name. The rules are in `idgen_core::lease::named`.

mod command;
mod list;

use self::command::Running;
use super::store::{anchors_of, open_as};
use crate::config::{Config, LockClass};
use crate::error::{Error, Result};
use crate::lease::{AnyStore, Hold, Holder, NamedStore, boot_now};
use idgen_core::clock::BootMs;
use idgen_core::lease::Timing;
use idgen_core::lease::named::lock::stop_at;
use idgen_core::lease::named::{LeaseName, LockMode};
use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use list::{Lock, Locks, list, look};

/// The clocks are read at least so often: timers stand still while the machine sleeps, the clock that counts does not.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(500);

/// What is to run, and under which lock.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The class, as configured.
    pub class: String,
    /// Which lock of the class; `None`: it has one.
    pub name: Option<String>,
    /// How long to wait for it.
    pub wait: Duration,
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
}

/// What came of it.
#[derive(Debug)]
pub enum Outcome {
    /// The command has ended by itself, under the lock to its end.
    Ended(ExitStatus),
    /// The lock was not to be had in time: why.
    Taken(String),
    /// The lock could not be kept, and the command was stopped: why, and how it ended.
    Stopped(String, ExitStatus),
}

/// Waits for the lock, runs the command under it, and gives it back.
pub async fn run(config: &Config, wish: &Wish) -> Result<Outcome> {
    let class = class_of(config, &wish.class)?;
    let name = name_of(wish)?;
    let anchors = anchors_of(config).await?;
    let (store, instance) = open_as(
        config,
        &format!("idgenctl lock at {}", config.name),
        class.timing.ttl_ms(),
    );
    match store {
        AnyStore::Postgres(store) => {
            run_under(
                Holder::new(*store, instance, name, class.timing, anchors),
                class,
                wish,
            )
            .await
        }
        AnyStore::Etcd(store) => {
            run_under(
                Holder::new(*store, instance, name, class.timing, anchors),
                class,
                wish,
            )
            .await
        }
    }
}

fn name_of(wish: &Wish) -> Result<LeaseName> {
    LeaseName::lock(&wish.class, wish.name.as_deref())
        .map_err(|error| Error::usage(format!("--name: {error}")))
}

fn class_of(config: &Config, class: &str) -> Result<LockClass> {
    config.locks.get(class).copied().ok_or_else(|| {
        let known: Vec<&str> = config.locks.keys().map(String::as_str).collect();
        let hint = match known[..] {
            [] => format!("add [locks.{class}] to the configuration file"),
            _ => format!("there are: {}", known.join(", ")),
        };
        Error::usage(format!("--class {class}: there is no such class of locks")).with_hint(hint)
    })
}

async fn run_under<S: NamedStore>(holder: Holder<S>, class: LockClass, wish: &Wish) -> Result<Outcome> {
    let name = holder.name().clone();
    let (told, mut hold) = watch::channel(Hold::Waiting("the lease store was not asked yet".to_owned()));
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(holder.run(told, stop.clone()));
    let outcome = attend(&mut hold, &name, class, wish).await;
    stop.cancel();
    keeping
        .await
        .map_err(|error| Error::runtime(format!("the keeper of the lock: {error}")))?;
    outcome
}

async fn attend(
    hold: &mut watch::Receiver<Hold>,
    name: &LeaseName,
    class: LockClass,
    wish: &Wish,
) -> Result<Outcome> {
    if let Some(why) = wait_for(hold, wish.wait).await? {
        return Ok(Outcome::Taken(why));
    }
    let Hold::Held(token, deadline) = *hold.borrow_and_update() else {
        return Ok(Outcome::Taken(
            "the lock was lost before the command began".to_owned(),
        ));
    };
    let resource = name.of_lock().unwrap_or(name.as_str());
    let token = (class.mode == LockMode::Fenced).then_some(token);
    let running = Running::start(&wish.command, resource, token)?;
    watch_over(running, hold, deadline, &class.timing).await
}

/// `None`: it is held. Otherwise why it is not, after that time.
async fn wait_for(hold: &mut watch::Receiver<Hold>, wait: Duration) -> Result<Option<String>> {
    // The first answer counts, however short the wait.
    let _ = hold.changed().await;
    let settled = hold.wait_for(|hold| !matches!(hold, Hold::Waiting(_)));
    let timed_out = tokio::time::timeout(wait, settled).await.is_err();
    let now = hold.borrow().clone();
    match now {
        Hold::Held(..) => Ok(None),
        Hold::Refused(why) => Err(Error::refused(why)),
        Hold::Lost(why) => Ok(Some(why)),
        Hold::Waiting(why) if timed_out => Ok(Some(why)),
        Hold::Waiting(why) => Err(Error::runtime(why)),
    }
}

/// Lets the command run while the lock is held. It is asked to stop before the deadline, and ended at the deadline.
async fn watch_over(
    mut running: Running,
    hold: &mut watch::Receiver<Hold>,
    mut deadline: BootMs,
    timing: &Timing,
) -> Result<Outcome> {
    let mut stopped = None;
    loop {
        let held = match &*hold.borrow_and_update() {
            Hold::Held(_, until) => {
                deadline = *until;
                Ok(())
            }
            Hold::Lost(why) | Hold::Refused(why) | Hold::Waiting(why) => Err(why.clone()),
        };
        let now = boot_now();
        let stop = stop_at(deadline, timing);
        let why = match held {
            Err(why) => Some(why),
            Ok(()) if now >= stop => Some("it could not be renewed in time".to_owned()),
            Ok(()) => None,
        };
        if let Some(why) = why.filter(|_| stopped.is_none()) {
            running.ask_to_stop();
            stopped = Some(why);
        }
        let next = match stopped {
            Some(_) if now >= deadline => {
                running.end();
                LOOK_AT_CLOCK
            }
            Some(_) => between(now, deadline),
            None => between(now, stop),
        };
        tokio::select! {
            status = running.wait() => {
                let status = status?;
                return Ok(match stopped {
                    None => Outcome::Ended(status),
                    Some(why) => Outcome::Stopped(why, status),
                });
            }
            changed = hold.changed() => {
                if changed.is_err() {
                    // The keeper has said its last word, and ended.
                    tokio::time::sleep(next.min(LOOK_AT_CLOCK)).await;
                }
            }
            () = tokio::time::sleep(next.min(LOOK_AT_CLOCK)) => {}
        }
    }
}

fn between(now: BootMs, then: BootMs) -> Duration {
    Duration::from_millis(then.0.saturating_sub(now.0))
}
