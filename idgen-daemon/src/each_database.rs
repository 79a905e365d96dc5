//! A task for each database of a server, as long as there is the database.

use crate::complaint::Complaint;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Between two looks at which databases there are.
const DISCOVER: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct EachDatabase {
    /// What the log calls whoever asks,
    of: &'static str,
    /// ... and each task.
    task: &'static str,
    count: Arc<AtomicUsize>,
    running: BTreeMap<String, CancellationToken>,
    /// Each says at its end of which database it was.
    tasks: JoinSet<String>,
    trouble: Complaint,
}

impl EachDatabase {
    /// None that runs yet. `count`: how many databases there are.
    pub(crate) fn new(of: &'static str, task: &'static str, count: Arc<AtomicUsize>) -> Self {
        Self {
            of,
            task,
            count,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            trouble: Complaint::default(),
        }
    }

    /// One more task, of no database.
    #[cfg(feature = "outbox")]
    pub(crate) fn spawn_beside(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            String::new()
        });
    }

    /// Runs what `keep` makes for every database that `list` finds, until `stop`; waits until all of it has ended.
    ///
    /// # Errors
    /// A task has panicked.
    pub(crate) async fn run<L, Listed, K, Kept>(
        mut self,
        list: L,
        keep: K,
        stop: CancellationToken,
    ) -> Result<()>
    where
        L: Fn() -> Listed,
        Listed: Future<Output = Result<Vec<String>>>,
        K: Fn(String, CancellationToken) -> Kept,
        Kept: Future<Output = ()> + Send + 'static,
    {
        let mut discover_at = tokio::time::Instant::now();
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = self.tasks.join_next() => self.note_ended(ended)?,
                () = tokio::time::sleep_until(discover_at) => {
                    self.discover(list().await, &keep, &stop);
                    discover_at = tokio::time::Instant::now() + DISCOVER;
                }
            }
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.note_ended(ended)?;
        }
        Ok(())
    }

    fn note_ended(&mut self, ended: std::result::Result<String, JoinError>) -> Result<()> {
        let task = self.task;
        let database = ended.map_err(|error| Error::runtime(format!("the {task} of a database: {error}")))?;
        self.running.remove(&database);
        Ok(())
    }

    fn discover<K, Kept>(&mut self, found: Result<Vec<String>>, keep: &K, stop: &CancellationToken)
    where
        K: Fn(String, CancellationToken) -> Kept,
        Kept: Future<Output = ()> + Send + 'static,
    {
        let of = self.of;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let text = format!("{of}: list the databases: {error}");
                return self.trouble.raise(text, Instant::now());
            }
        };
        self.trouble.settle(&format!("{of}: postgres answers"));
        self.count.store(found.len(), Ordering::Relaxed);
        for (database, running) in &self.running {
            if !found.contains(database) {
                running.cancel();
            }
        }
        for database in found {
            if self.running.contains_key(&database) {
                continue;
            }
            let stop = stop.child_token();
            self.running.insert(database.clone(), stop.clone());
            let kept = keep(database.clone(), stop);
            self.tasks.spawn(async move {
                kept.await;
                database
            });
        }
    }
}
