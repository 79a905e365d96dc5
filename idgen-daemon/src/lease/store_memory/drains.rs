//! Servers that are drained.

use super::{Ground, MemoryStore, Result, refused};
use idgen_core::lease::Drain;
use idgen_daemon::lease::{DrainStore, StoreErrorKind};

impl Ground {
    pub(super) fn drain_of(&self, server: &str) -> Option<Drain> {
        self.books.drains.get(server).cloned()
    }

    /// Whoever asks is to take nothing.
    pub(super) fn check_drain(&self, server: &str) -> Result<()> {
        match self.drain_of(server) {
            Some(drain) if drain.drained => refused(StoreErrorKind::Conflict, "this server was drained"),
            _ => Ok(()),
        }
    }

    fn set_drain(&mut self, drain: &Drain) -> Result<()> {
        let before = self.drain_of(&drain.server).map_or(0, |before| before.version);
        if self.books.cell.is_none() || before + 1 != drain.version {
            return refused(StoreErrorKind::Conflict, "something else was said of it");
        }
        self.raise_revision();
        self.books.drains.insert(drain.server.clone(), drain.clone());
        Ok(())
    }
}

impl DrainStore for MemoryStore {
    async fn drains(&mut self) -> Result<Vec<Drain>> {
        self.look(|ground| Ok(ground.books.drains.values().cloned().collect()))
            .await
    }

    async fn set_drain(&mut self, drain: &Drain) -> Result<()> {
        let drain = drain.clone();
        self.change(move |ground| ground.set_drain(&drain)).await
    }
}
