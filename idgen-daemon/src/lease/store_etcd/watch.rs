//! Watching what is below a folder: all that is there, then every key that is put, as it is put. A watch that breaks is
//! begun anew with a look, so nothing that still stands is missed.

use super::Result;
use super::link::{Effect, EtcdSecurity, Link};
use super::listen::Listening;
use etcd_client::{EventType, GetOptions, KeyValue, WatchOptions, WatchResponse};
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
                    let Err(error) = ended else { continue };
                    tracing::debug!("listening for {}: {error}", self.what);
                    link.rotate();
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// As long as the connection is the one to listen by.
    async fn hear<F: Future<Output = ()>>(
        &self,
        link: &mut Link,
        each: &mut impl FnMut(KeyValue) -> F,
    ) -> Result<()> {
        let client = link.client().await?;
        let (mut kv, watch) = (client.kv_client(), client.watch_client());
        let all = kv.get(self.path.clone(), Some(GetOptions::new().with_prefix()));
        let mut answer = link.request(Effect::None, all).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        for pair in answer.take_kvs() {
            each(pair).await;
        }
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let mut listening = Listening::begin(link, watch, self.path.clone(), options).await?;
        // There may be no message for as long as nobody puts a key: a member that is gone is noticed by the pings, and one
        // that is cut off from the others ends the watch.
        while let Some(response) = listening.next(link).await? {
            for pair in puts(&response) {
                each(pair).await;
            }
        }
        Ok(())
    }
}

fn puts(response: &WatchResponse) -> Vec<KeyValue> {
    let events = response.events().iter();
    let puts = events.filter(|event| event.event_type() == EventType::Put);
    puts.filter_map(|event| event.kv().cloned()).collect()
}
