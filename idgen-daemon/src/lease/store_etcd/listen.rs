//! A watch that outlives what it was begun with. It asks for nothing as long as it listens, so nothing would take up
//! other certificates or another password for it: it looks at the files itself, now and then.

use super::super::store::{StoreError, StoreErrorKind};
use super::Result;
use super::link::{Effect, Link};
use etcd_client::{WatchClient, WatchOptions, WatchResponse, WatchStream};
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at the files.
const FILES_PERIOD: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Listening {
    events: WatchStream,
    /// The connection that it is of.
    connection: u64,
    files_at: Instant,
}

impl Listening {
    /// Begins one by `watch`, which is of the connection that the link has.
    pub(super) async fn begin(
        link: &mut Link,
        mut watch: WatchClient,
        path: String,
        options: WatchOptions,
    ) -> Result<Self> {
        let connection = link.connection();
        let events = link
            .request(Effect::None, watch.watch(path, Some(options)))
            .await?;
        Ok(Self {
            events,
            connection,
            files_at: Instant::now() + FILES_PERIOD,
        })
    }

    /// The next message, which may be long in coming. `None`: the link has another connection meanwhile, and this is to be
    /// begun anew by it. Nothing is lost where it is given up waiting.
    pub(super) async fn next(&mut self, link: &mut Link) -> Result<Option<WatchResponse>> {
        let Some(response) = self.next_or_gap(link).await? else {
            return Ok(None);
        };
        match response.canceled() {
            false => Ok(Some(response)),
            true => Err(ended(response.cancel_reason())),
        }
    }

    /// The same for whoever knows what to do where the store has forgotten what was to come next: that is a message too.
    pub(super) async fn next_or_gap(&mut self, link: &mut Link) -> Result<Option<WatchResponse>> {
        loop {
            if self.connection != link.connection() {
                return Ok(None);
            }
            tokio::select! {
                message = self.events.message() => {
                    return match message {
                        Ok(Some(response)) => Ok(Some(response)),
                        Ok(None) => Err(ended("")),
                        Err(error) => Err(broken(error.to_string())),
                    };
                }
                () = tokio::time::sleep_until(self.files_at) => {
                    link.client().await?;
                    self.files_at = Instant::now() + FILES_PERIOD;
                }
            }
        }
    }
}

fn ended(why: &str) -> StoreError {
    broken(format!("the watch has ended: {why}"))
}

fn broken(why: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, why)
}
