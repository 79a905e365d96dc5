//! What a store commits, written down in its order while it happens.
//!
//! A commit is known to lie between two moments: the beginning of the last look that did not show it, and the moment
//! it was seen. So an id is judged by what was certainly not committed yet, never by how fast the recorder is.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::files::{Lines, Record, TRAIL};
use crate::kit::eventually_true;
use crate::moment;

/// What a recorder and the run share.
pub struct Shared {
    lines: Lines,
    stop: AtomicBool,
    /// Beginning of the latest look after which everything was written down that it showed.
    complete_since: AtomicU64,
    /// The store was replaced by an older one since the last look.
    replaced: AtomicBool,
}

impl Shared {
    pub fn new(dir: &Path) -> Arc<Shared> {
        Arc::new(Shared {
            lines: Lines::append(&dir.join(TRAIL)),
            stop: AtomicBool::new(false),
            complete_since: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
        })
    }

    pub fn write(&self, record: &Record) {
        self.lines.write(record);
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The store is about to be replaced by an older one; nobody writes to the old one any more. A restore under the
    /// old token cannot be told by looking.
    pub fn replace(&self, replaced: bool) -> bool {
        self.replaced.swap(replaced, Ordering::Relaxed)
    }

    /// Everything is written down that was committed before this moment.
    pub fn complete(&self, since_us: u64) {
        self.complete_since.fetch_max(since_us, Ordering::Relaxed);
    }
}

/// A recorder at work.
pub struct Trail {
    pub shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Trail {
    pub fn start(dir: &Path, record: impl FnOnce(Arc<Shared>) + Send + 'static) -> Trail {
        let shared = Shared::new(dir);
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || record(theirs));
        let trail = Trail { shared, thread };
        trail.catch_up();
        trail
    }

    /// Waits until everything is written down that has been committed so far.
    pub fn catch_up(&self) {
        let from = moment::now().0;
        eventually_true(crate::kit::PATIENCE, "the trail is complete", || {
            assert!(!self.thread.is_finished(), "the recorder of the trail has ended");
            self.shared.complete_since.load(Ordering::Relaxed) >= from
        });
    }

    pub fn finish(self) {
        self.catch_up();
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the recorder of the trail");
    }
}
