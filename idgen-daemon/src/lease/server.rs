//! The server that mints, as a keeper talks to it.

use crate::config::PostgresConfig;
use crate::error::Result;
use crate::postgres::{Control, InstallOutcome, OpenSlot, ServerClock, ServerMemory};
use idgen_core::clock::{BootMs, ClockReading};
use idgen_core::lease::keeper::Held;
use idgen_core::lease::{Anchor, BootId, Cell, Claim, Class, Judgement, Mark};
use std::future::Future;

/// How to get a session with it. `Retry` errors can be waited out, others end the daemon.
pub trait Connect: Send + 'static {
    /// The session.
    type Server: MintingServer;

    /// Opens one, for the leases of this class.
    fn connect(&self, class: Class) -> impl Future<Output = Result<Self::Server>> + Send;
}

/// A session with it. What each does is said at [`Control`].
pub trait MintingServer: Send + Sync + 'static {
    /// False: the session has ended, or another one is to be opened instead.
    fn is_usable(&mut self) -> bool;

    /// Boot id and clocks.
    fn server_clock(&self) -> impl Future<Output = Result<ServerClock>> + Send;

    /// Every identity of the class that it knows of.
    fn slots(&self) -> impl Future<Output = Result<Vec<OpenSlot>>> + Send;

    /// What it remembers of its lease store.
    fn memory(&self) -> impl Future<Output = Result<ServerMemory>> + Send;

    /// Remembers how far the store has come, for good, and (on its boot clock) a moment before the store was asked for
    /// that. Before every [`Self::install`] and [`Self::extend`].
    fn remember(
        &self,
        boot_id: BootId,
        anchor: &Anchor,
        asked: BootMs,
    ) -> impl Future<Output = Result<InstallOutcome>> + Send;

    /// Opens every identity of the lease.
    fn install(
        &self,
        held: &Held,
        cell: &Cell,
        anchor: ClockReading,
    ) -> impl Future<Output = Result<InstallOutcome>> + Send;

    /// Raises ceilings and deadline.
    fn extend(
        &self,
        held: &Held,
        cell: &Cell,
        anchor: Option<ClockReading>,
    ) -> impl Future<Output = Result<InstallOutcome>> + Send;

    /// Closes claims; `None`: it has another boot id.
    fn fence(
        &self,
        boot_id: BootId,
        claims: &[Claim],
    ) -> impl Future<Output = Result<Option<Vec<Mark>>>> + Send;

    /// Tells what is known of its wall clock. One that shows it to nobody need not listen.
    fn note_clock(&self, _judged: &Judgement) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Tells that somebody has drained it, and why; `None`: nobody has. One that shows it to nobody need not listen.
    fn note_drained(&self, _why: Option<&str>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Waits until the session has ended.
    fn closed(&mut self) -> impl Future<Output = ()> + Send;
}

impl Connect for PostgresConfig {
    type Server = Control;

    async fn connect(&self, class: Class) -> Result<Control> {
        Control::open(self, class).await
    }
}

impl MintingServer for Control {
    fn is_usable(&mut self) -> bool {
        Self::is_usable(self)
    }

    async fn server_clock(&self) -> Result<ServerClock> {
        self.server_clock().await
    }

    async fn slots(&self) -> Result<Vec<OpenSlot>> {
        self.slots().await
    }

    async fn memory(&self) -> Result<ServerMemory> {
        self.memory().await
    }

    async fn remember(&self, boot_id: BootId, anchor: &Anchor, asked: BootMs) -> Result<InstallOutcome> {
        self.remember(boot_id, anchor, asked).await
    }

    async fn install(&self, held: &Held, cell: &Cell, anchor: ClockReading) -> Result<InstallOutcome> {
        self.install(held, cell, anchor).await
    }

    async fn extend(&self, held: &Held, cell: &Cell, anchor: Option<ClockReading>) -> Result<InstallOutcome> {
        self.extend(held, cell, anchor).await
    }

    async fn fence(&self, boot_id: BootId, claims: &[Claim]) -> Result<Option<Vec<Mark>>> {
        self.fence(boot_id, claims).await
    }

    async fn note_clock(&self, judged: &Judgement) -> Result<()> {
        self.note_clock(judged).await
    }

    async fn note_drained(&self, why: Option<&str>) -> Result<()> {
        self.note_drained(why).await
    }

    async fn closed(&mut self) {
        self.closed().await;
    }
}
