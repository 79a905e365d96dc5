//! Watching what is below a folder: all that is there, then every key that is put, as it is put. A watch that breaks is
//! begun anew with a look, so nothing that still stands is missed.

use super::super::store::{StoreError, StoreErrorKind};
use super::Result;
use super::link::{Effect, EtcdSecurity, Link};
use etcd_client::{EventType, GetOptions, KeyValue, WatchOptions, WatchStream};
use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two tries to listen.
const PAUSE: Duration = Duration::from_secs(1);

/// Where to listen.
pub(super) struct Folder {
    pub(super) endpoints: Vec<String>,
    pub(super) security: EtcdSecurity,
    /// Limit for each request.
    pub(super) request_timeout: Duration,
    /// What the keys begin with.
    pub(super) path: String,
    /// For the log.
    pub(super) what: &'static str,
}

impl Folder {
    /// Hands every key on until `stop`. One may be handed on twice. What goes wrong is tried again.
    pub(super) async fn watch<F: Future<Output = ()>>(
        self,
        mut each: impl FnMut(KeyValue) -> F,
        stop: CancellationToken,
    ) {
        let mut link = Link::new(
            self.endpoints.clone(),
            self.security.clone(),
            self.request_timeout,
            self.path.clone(),
        );
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                ended = self.hear(&mut link, &mut each) => {
                    if let Err(error) = ended {
                        tracing::debug!("listening for {}: {error}", self.what);
                    }
                    link.rotate();
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn hear<F: Future<Output = ()>>(
        &self,
        link: &mut Link,
        each: &mut impl FnMut(KeyValue) -> F,
    ) -> Result<()> {
        let client = link.client().await?;
        let (mut kv, mut watch) = (client.kv_client(), client.watch_client());
        let all = kv.get(self.path.clone(), Some(GetOptions::new().with_prefix()));
        let mut answer = link.request(Effect::None, all).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        for pair in answer.take_kvs() {
            each(pair).await;
        }
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let mut events = link
            .request(Effect::None, watch.watch(self.path.clone(), Some(options)))
            .await?;
        loop {
            for pair in next_puts(&mut events).await? {
                each(pair).await;
            }
        }
    }
}

/// The keys of the next message. There may be none for as long as nobody puts any: a member that is gone is noticed by the
/// pings, and one that is cut off from the others ends the watch.
async fn next_puts(events: &mut WatchStream) -> Result<Vec<KeyValue>> {
    let broken = |why: String| StoreError::new(StoreErrorKind::Unreachable, why);
    let response = match events.message().await {
        Ok(Some(response)) if !response.canceled() => response,
        Ok(other) => {
            let why = other.map(|response| response.cancel_reason().to_owned());
            let why = why.unwrap_or_default();
            return Err(broken(format!("the watch has ended: {why}")));
        }
        Err(error) => return Err(broken(error.to_string())),
    };
    let puts = response
        .events()
        .iter()
        .filter(|event| event.event_type() == EventType::Put);
    Ok(puts.filter_map(|event| event.kv().cloned()).collect())
}
