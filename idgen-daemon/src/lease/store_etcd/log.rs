//! The log of an etcd: a watch of everything below the prefix, with the value before, from where it was left.
//!
//! A watch may be silent because nothing happens, or because it is dead, or because the cluster was restored to an older
//! state and has not come so far again. So the quorum is asked for its revision beside it.

use super::super::clock::host_clock;
use super::super::events::{EventLog, Next, Present, key_places, value_of};
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_named::no_cell;
use super::link::{Effect, Link};
use super::listen::Listening;
use super::look::header_of;
use super::value::{CellValue, identity_of, unsigned, value};
use super::{EtcdConfig, Result};
use etcd_client::{
    Event, EventType, GetOptions, KeyValue, SortOrder, SortTarget, WatchOptions, WatchResponse,
};
use idgen_core::lease::Class;
use idgen_core::lease::events::{Before, Commit, KeyChange, Log, Place, Seen, When};
use std::time::{Duration, Instant};

/// Between two looks at the revision of the quorum.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A watch that brings nothing for so many looks, while there is something, is dead.
const SILENT_LOOKS: u32 = 3;
/// Keys of one answer: far below the 4 MB that an answer may have.
const AT_ONCE: i64 = 2_000;
/// A watch that catches up brings a thousand revisions at once, with values.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub(crate) struct EtcdLog {
    link: Link,
    /// Without a slash at its end.
    prefix: String,
    watch: Option<Listening>,
    /// Everything up to here was handed on.
    cursor: i64,
    /// Of the watch.
    cluster_id: u64,
    looked: Instant,
    /// Looks since the last message that showed more than was brought.
    silent: u32,
    /// Looks in a row that were behind.
    behind: u32,
}

impl EtcdLog {
    /// Connects with the first request.
    pub(crate) fn new(config: &EtcdConfig) -> Self {
        let probe = format!("{}/cell", config.prefix);
        Self {
            link: Link::new(
                config.endpoints.clone(),
                config.security.clone(),
                config.request_timeout,
                probe,
            ),
            prefix: config.prefix.clone(),
            watch: None,
            cursor: 0,
            cluster_id: 0,
            looked: Instant::now(),
            silent: 0,
            behind: 0,
        }
    }

    fn folder(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// What this key is; none for what is no matter of the trail.
    fn place(&self, pair: &KeyValue) -> Option<Place> {
        key_places(pair.key().strip_prefix(self.folder().as_bytes())?)
    }

    async fn open(&mut self) -> Result<()> {
        let folder = self.folder();
        let options = WatchOptions::new()
            .with_prefix()
            .with_prev_key()
            .with_start_revision(self.cursor + 1);
        let client = self.link.client().await?;
        let watch = client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
        self.watch = Some(Listening::begin(&mut self.link, watch, folder, options).await?);
        Ok(())
    }

    /// The newest revision of a key of ours, and what the quorum is at.
    async fn look(&mut self) -> Result<Option<Next>> {
        self.looked = Instant::now();
        let options = GetOptions::new()
            .with_prefix()
            .with_keys_only()
            .with_sort(SortTarget::Mod, SortOrder::Descend)
            .with_limit(1);
        let folder = self.folder();
        let mut kv = self.link.client().await?.kv_client();
        let answer = self
            .link
            .request(Effect::None, kv.get(folder, Some(options)))
            .await?;
        let (cluster_id, revision) = header_of(answer.header())?;
        if cluster_id != self.cluster_id {
            return Ok(Some(Next::Replaced(format!(
                "it is the cluster {cluster_id:x} now"
            ))));
        }
        if revision < self.cursor {
            // A member that was paused may answer once with what is old (#20418).
            self.behind += 1;
            self.link.rotate();
            let again = self.behind >= 2;
            self.looked = Instant::now().checked_sub(LOOK_EVERY).unwrap_or(self.looked);
            return Ok(again.then(|| Next::Replaced(format!("it is at revision {revision} again"))));
        }
        self.behind = 0;
        let newest = answer.kvs().first().map_or(0, KeyValue::mod_revision);
        self.silent = if newest > self.cursor { self.silent + 1 } else { 0 };
        if self.silent >= SILENT_LOOKS {
            self.silent = 0;
            self.watch = None;
            self.link.rotate();
            let message = format!(
                "the watch has brought nothing after revision {} for {} s, and there is something at {newest}",
                self.cursor,
                LOOK_EVERY.as_secs() * u64::from(SILENT_LOOKS)
            );
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        Ok(None)
    }

    fn read(&mut self, answer: &WatchResponse) -> Result<Next> {
        if answer.compact_revision() > 0 {
            self.watch = None;
            return Ok(Next::Gap(answer.compact_revision().unsigned_abs()));
        }
        if answer.canceled() {
            self.watch = None;
            let message = format!("the watch has ended: {}", answer.cancel_reason());
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        let (cluster_id, _) = header_of(answer.header())?;
        if cluster_id != self.cluster_id {
            return Ok(Next::Replaced(format!("it is the cluster {cluster_id:x} now")));
        }
        self.silent = 0;
        let mut commits: Vec<Commit> = Vec::new();
        let at = host_clock();
        for event in answer.events() {
            let Some(pair) = event.kv() else { continue };
            let revision = unsigned(pair.mod_revision());
            self.cursor = self.cursor.max(pair.mod_revision());
            let Some(change) = self.change(event, pair) else {
                continue;
            };
            match commits
                .last_mut()
                .filter(|commit| commit.when.revision == revision)
            {
                Some(commit) => commit.changes.push(change),
                None => commits.push(Commit {
                    when: When {
                        position: revision.0,
                        revision,
                        at,
                    },
                    by: None,
                    changes: vec![change],
                }),
            }
        }
        Ok(match commits.is_empty() && answer.events().is_empty() {
            true => Next::Nothing,
            false => Next::Commits(commits, self.cursor.unsigned_abs()),
        })
    }

    fn change(&self, event: &Event, pair: &KeyValue) -> Option<KeyChange> {
        let place = self.place(pair)?;
        let is_put = event.event_type() == EventType::Put;
        let before = match event.prev_kv() {
            Some(was) => Before::Was(seen(&place, was)),
            None if is_put && pair.version() == 1 => Before::Nothing,
            None => Before::Unknown,
        };
        let after = is_put.then(|| seen(&place, pair));
        Some(KeyChange { place, before, after })
    }

    /// All keys at one revision, some at a time. `Err(None)`: that revision is gone.
    async fn keys(&mut self, at: Option<u64>) -> Result<(u64, i64, Vec<KeyValue>)> {
        let folder = self.folder();
        // What comes after the slash.
        let end = format!("{}0", self.prefix);
        let mut revision = at.map_or(0, |at| i64::try_from(at).unwrap_or(i64::MAX));
        let (mut from, mut pairs) = (folder.into_bytes(), Vec::new());
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(AT_ONCE)
                .with_revision(revision);
            let mut kv = self.link.client().await?.kv_client();
            let mut answer = self
                .link
                .request(Effect::None, kv.get(from.clone(), Some(options)))
                .await?;
            let (cluster_id, now) = header_of(answer.header())?;
            if revision == 0 {
                revision = now;
            }
            let more = answer.more();
            pairs.extend(answer.take_kvs());
            match pairs.last().filter(|_| more) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok((cluster_id, revision, pairs)),
            }
        }
    }

    /// Is the log there from its beginning?
    async fn has_all(&mut self) -> Result<bool> {
        let options = GetOptions::new().with_revision(1).with_keys_only();
        let cell = format!("{}/cell", self.prefix);
        let mut kv = self.link.client().await?.kv_client();
        match self.link.request(Effect::None, kv.get(cell, Some(options))).await {
            Ok(_) => Ok(true),
            Err(error) if is_compacted(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The text is etcd's own, of `rpctypes`.
fn is_compacted(error: &StoreError) -> bool {
    error.message.contains("required revision has been compacted")
}

fn seen(place: &Place, pair: &KeyValue) -> Seen {
    let text = String::from_utf8_lossy(pair.value()).replace('\0', "\u{fffd}");
    let made = unsigned(pair.create_revision());
    Seen {
        made,
        version: pair.version().unsigned_abs(),
        changed: unsigned(pair.mod_revision()),
        value: value_of(place, made, &text),
        text,
    }
}

impl EventLog for EtcdLog {
    const LOG: Log = Log::Every;

    async fn present(&mut self, at: Option<u64>) -> Result<Present> {
        let has_all = at.is_none() && self.has_all().await?;
        let keys = match self.keys(at).await {
            // It was compacted once more: as it is now.
            Err(error) if at.is_some() && is_compacted(&error) => self.keys(None).await,
            keys => keys,
        };
        let (cluster_id, revision, pairs) = keys?;
        self.cluster_id = cluster_id;
        let cell = pairs
            .iter()
            .find(|pair| self.place(pair) == Some(Place::Cell))
            .ok_or_else(no_cell)?;
        let cell: CellValue = value(cell)?;
        let state = |pair: &KeyValue| {
            let place = self.place(pair)?;
            let seen = seen(&place, pair);
            Some((place, seen))
        };
        Ok(Present {
            cell: cell.cell(Class::Worker)?.cell_id,
            store: identity_of(cluster_id)?,
            when: When {
                position: revision.unsigned_abs(),
                revision: unsigned(revision),
                at: host_clock(),
            },
            has_all,
            states: pairs.iter().filter_map(state).collect(),
        })
    }

    async fn follow(&mut self, from: u64) -> Result<()> {
        self.cursor = i64::try_from(from).unwrap_or(i64::MAX);
        self.watch = None;
        (self.silent, self.behind) = (0, 0);
        self.looked = Instant::now();
        Ok(())
    }

    async fn next(&mut self, within: Duration) -> Result<Next> {
        if self.watch.is_none() {
            self.open().await?;
        }
        if self.looked.elapsed() >= LOOK_EVERY
            && let Some(replaced) = self.look().await?
        {
            return Ok(replaced);
        }
        let Some(watch) = &mut self.watch else {
            return Ok(Next::Nothing);
        };
        match tokio::time::timeout(within, watch.next_or_gap(&mut self.link)).await {
            Err(_) => return Ok(Next::Nothing),
            Ok(Ok(Some(answer))) => return self.read(&answer),
            // By another connection already.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::debug!("lease events: {error}; watching anew");
                self.link.rotate();
            }
        }
        self.watch = None;
        Ok(Next::Nothing)
    }

    /// etcd is compacted by whoever runs it.
    async fn prune(&mut self) -> Result<()> {
        Ok(())
    }
}
