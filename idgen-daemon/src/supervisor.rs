//! Owns the daemon's tasks: each has a name and a policy, and is joined.
//!
//! A panic is a bug in a program that guards a lease: the process ends with exit code 1, and what
//! starts it again finds the lease in shared memory. Leases end by themselves, so nothing is lost by it.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// After a stop was asked for, tasks have this long. A release takes milliseconds; when the store is
/// away it takes three tries, each as long as connecting may take.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Pause before a task is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// What the end of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Its end, good or bad, is the end of the process.
    Essential,
    /// Started again after an error.
    Restart,
}

/// See the module.
pub struct Supervisor {
    tasks: JoinSet<(Policy, Result<()>)>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Without tasks. Whoever cancels `stop` asks for the end.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            names: HashMap::new(),
            stop,
        }
    }

    /// What tells tasks to end.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task whose end, good or bad, is the end of the process.
    pub fn spawn_essential(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(async { (Policy::Essential, task.await) });
        self.names.insert(handle.id(), name);
    }

    /// Starts a task, made by `make` from the token that tells it to end, and starts it again whenever
    /// it fails.
    pub fn spawn_restarted<M, F>(&mut self, name: &'static str, mut make: M)
    where
        M: FnMut(CancellationToken) -> F + Send + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let stop = self.stop.clone();
        let handle = self.tasks.spawn(async move {
            while let Err(error) = make(stop.clone()).await {
                tracing::error!(task = name, "{error}; starting it again");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(RESTART_PAUSE) => {}
                }
            }
            (Policy::Restart, Ok(()))
        });
        self.names.insert(handle.id(), name);
    }

    /// Joins all tasks. Returns when one that is essential has ended, or after a stop.
    pub async fn run(mut self) -> Result<()> {
        let mut outcome = Ok(());
        let mut limit = std::pin::pin!(stop_limit(self.stop.clone()));
        loop {
            let joined = tokio::select! {
                joined = self.tasks.join_next_with_id() => joined,
                () = &mut limit => {
                    let late: Vec<&str> = self.names.values().copied().collect();
                    return Err(Error::runtime(format!("tasks did not stop in time: {}", late.join(", "))));
                }
            };
            let Some(joined) = joined else { return outcome };
            let (name, ended) = self.ended(joined);
            tracing::debug!(task = name, "task ended");
            match ended {
                Ended::Panicked => return Err(Error::runtime(format!("task {name} panicked"))),
                Ended::Done(policy, result) => {
                    if outcome.is_ok() {
                        outcome = result;
                    }
                    if policy == Policy::Essential || outcome.is_err() {
                        self.stop.cancel();
                    }
                }
            }
        }
    }

    fn ended(
        &mut self,
        joined: std::result::Result<(Id, (Policy, Result<()>)), JoinError>,
    ) -> (&'static str, Ended) {
        let (id, ended) = match joined {
            Ok((id, (policy, result))) => (id, Ended::Done(policy, result)),
            // Nobody aborts these tasks, so a join error is a panic.
            Err(error) => (error.id(), Ended::Panicked),
        };
        (self.names.remove(&id).unwrap_or("unknown"), ended)
    }
}

enum Ended {
    Done(Policy, Result<()>),
    Panicked,
}

async fn stop_limit(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_LIMIT).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    async fn waits(stop: CancellationToken) -> Result<()> {
        stop.cancelled().await;
        Ok(())
    }

    #[tokio::test]
    async fn the_end_of_an_essential_task_stops_the_others() {
        let mut supervisor = Supervisor::new(CancellationToken::new());
        supervisor.spawn_restarted("waits", waits);
        supervisor.spawn_essential("fails", async { Err(Error::refused("no")) });
        let error = supervisor.run().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::Refused, "no".to_owned())
        );
    }

    #[tokio::test]
    async fn a_panic_ends_the_process_and_names_the_task() {
        let mut supervisor = Supervisor::new(CancellationToken::new());
        supervisor.spawn_restarted("waits", waits);
        supervisor.spawn_restarted("panics", async |_| panic!("on purpose"));
        let error = supervisor.run().await.unwrap_err();
        assert_eq!(error.to_string(), "task panics panicked");
        assert_eq!(error.kind(), ErrorKind::Runtime);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_is_started_again_after_an_error() {
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::new(stop.clone());
        let starts = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&starts);
        supervisor.spawn_restarted("fails twice", move |stop| {
            let started = counter.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                if started < 3 {
                    return Err(Error::runtime("again"));
                }
                stop.cancel();
                Ok(())
            }
        });
        supervisor.run().await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_is_named() {
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::new(stop.clone());
        supervisor.spawn_restarted("deaf", async |_| std::future::pending().await);
        stop.cancel();
        let error = supervisor.run().await.unwrap_err();
        assert_eq!(error.to_string(), "tasks did not stop in time: deaf");
    }
}
