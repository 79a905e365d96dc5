//! Being the only one of a cell that does something: a named lease that is held while it is done.

use super::holder::{Hold, Holder};
use super::open::AnyStore;
use super::store::HolderName;
use crate::config::StoreConfig;
use crate::error::{Error, Result};
use crate::event::hex;
use idgen_core::lease::named::{LeaseName, lease_timing};
use idgen_core::lease::{Class, Timing, Token};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// So long nobody does it when whoever did it dies.
const TTL_MS: u64 = 15_000;
/// Bits of the revision in [`Sole::epoch`].
const REVISION_BITS: u32 = 40;

/// See the module. Whoever drops it without [`Sole::give_up`] leaves the lease to its expiry.
pub(crate) struct Sole {
    hold: watch::Receiver<Hold>,
    ending: CancellationToken,
    keeping: JoinHandle<()>,
}

impl Sole {
    /// Asks to be the only one who does `what` of something, such as a topic, which may be called otherwise than a lease.
    pub(crate) fn ask_of(store: &StoreConfig, holder: &HolderName, what: &str, of: &str) -> Result<Self> {
        let name = format!("{what}/{of}");
        let name = name
            .parse::<LeaseName>()
            .or_else(|_| format!("{what}/{}", hex(&Sha256::digest(of))).parse())
            .map_err(|error| Error::runtime(format!("name of the lease of {what}: {error}")))?;
        Self::ask(store, holder, name)
    }

    /// Asks for the lease, and goes on asking.
    pub(crate) fn ask(store: &StoreConfig, holder: &HolderName, name: LeaseName) -> Result<Self> {
        let timing =
            Timing::new(lease_timing(Some(TTL_MS))).map_err(|error| Error::runtime(error.to_string()))?;
        let (told, hold) = watch::channel(Hold::Waiting(String::new()));
        let ending = CancellationToken::new();
        // Of names the class of a store says nothing.
        let keeping = match AnyStore::new(store, Class::Worker, TTL_MS, holder.clone()) {
            AnyStore::Postgres(store) => {
                let held = Holder::new(*store, holder.instance, name, timing, Vec::new());
                tokio::spawn(held.run(told, ending.clone()))
            }
            AnyStore::Etcd(store) => {
                let held = Holder::new(*store, holder.instance, name, timing, Vec::new());
                tokio::spawn(held.run(told, ending.clone()))
            }
        };
        Ok(Self {
            hold,
            ending,
            keeping,
        })
    }

    /// Waits until it is held. `Retry`: it will not be; ask anew.
    pub(crate) async fn held(&mut self) -> Result<Token> {
        loop {
            let now = self.hold.borrow_and_update().clone();
            match now {
                Hold::Held(token, _) => return Ok(token),
                Hold::Lost(why) | Hold::Refused(why) => return Err(Error::retry(why)),
                Hold::Waiting(_) => {}
            }
            if self.hold.changed().await.is_err() {
                return Err(Error::retry("its lease is not kept"));
            }
        }
    }

    /// Is it held still?
    pub(crate) fn is_held(&self) -> bool {
        matches!(&*self.hold.borrow(), Hold::Held(..))
    }

    /// A token as one number that rises with every holder.
    pub(crate) fn epoch(token: Token) -> u64 {
        let revision = token.revision.0 & ((1 << REVISION_BITS) - 1);
        (token.epoch.0 << REVISION_BITS) | revision
    }

    /// Gives it back, within a limit.
    pub(crate) async fn give_up(self) {
        self.ending.cancel();
        // A panic of it is no reason to stop.
        let _ = self.keeping.await;
    }
}
