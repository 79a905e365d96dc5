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
/// A watch that catches up brings a thousand revisions at once, with values: etcd cuts them into parts of as many bytes as it
/// takes in one request, but never a change. So this is for the largest that a store may be set to take, twice.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub(crate) struct EtcdLog {
    link: Link,
    /// Without a slash at its end.
    prefix: String,
    watch: Option<Listening>,
    /// Everything up to here was handed on.
    cursor: i64,
    /// What has come of the revision after that, which the next message goes on with.
    part: Option<Commit>,
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
            part: None,
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
        self.part = None;
        let folder = self.folder();
        let options = WatchOptions::new()
            .with_prefix()
            .with_prev_key()
            .with_fragment()
            .with_start_revision(self.cursor + 1);
        let client = self.link.client().await?;
        let watch = client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
        self.watch = Some(Listening::begin(&mut self.link, watch, folder, options).await?);
        Ok(())
    }

    /// The newest revision of a key of ours, and what the quorum is at; `None`: something is to come.
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
        if newest <= self.cursor {
            self.silent = 0;
            return Ok(Some(Next::AtItsEnd));
        }
        self.silent += 1;
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
        let (cluster_id, _) = header_of(answer.header()).inspect_err(|_| self.watch = None)?;
        // A cluster that took the place of this one may have been compacted, too.
        if cluster_id != self.cluster_id {
            self.watch = None;
            return Ok(Next::Replaced(format!("it is the cluster {cluster_id:x} now")));
        }
        if answer.compact_revision() > 0 {
            self.watch = None;
            return Ok(Next::Gap(answer.compact_revision().unsigned_abs()));
        }
        if answer.canceled() {
            self.watch = None;
            let message = format!("the watch has ended: {}", answer.cancel_reason());
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        self.silent = 0;
        let Some(last) = answer
            .events()
            .last()
            .and_then(Event::kv)
            .map(KeyValue::mod_revision)
        else {
            return Ok(Next::Nothing);
        };
        let mut commits = self.commits(answer.events());
        let is_cut = answer.0.fragment;
        if is_cut {
            let unfinished = |commit: &mut Commit| commit.when.revision == unsigned(last);
            self.part = commits.pop_if(unfinished);
        }
        self.cursor = self.cursor.max(last - i64::from(is_cut));
        Ok(Next::Commits(commits, self.cursor.unsigned_abs()))
    }

    /// Changes of one revision are one commit, also where two messages have brought them.
    fn commits(&mut self, events: &[Event]) -> Vec<Commit> {
        let mut commits: Vec<Commit> = self.part.take().into_iter().collect();
        let at = host_clock();
        for event in events {
            let Some(pair) = event.kv() else { continue };
            let revision = unsigned(pair.mod_revision());
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
        commits
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
        self.part = None;
        (self.silent, self.behind) = (0, 0);
        self.looked = Instant::now();
        Ok(())
    }

    async fn next(&mut self, within: Duration) -> Result<Next> {
        if self.watch.is_none() {
            self.open().await?;
        }
        if self.looked.elapsed() >= LOOK_EVERY
            && let Some(seen) = self.look().await?
        {
            return Ok(seen);
        }
        let Some(watch) = &mut self.watch else {
            return Ok(Next::Nothing);
        };
        match tokio::time::timeout(within, watch.next_or_gap(&mut self.link)).await {
            Err(_) => Ok(Next::Nothing),
            Ok(Ok(Some(answer))) => self.read(&answer),
            // By another connection already.
            Ok(Ok(None)) => {
                self.watch = None;
                Ok(Next::Nothing)
            }
            Ok(Err(error)) => {
                self.watch = None;
                self.link.rotate();
                Err(error)
            }
        }
    }

    /// etcd is compacted by whoever runs it.
    async fn prune(&mut self) -> Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::events::Next;
    use super::super::super::store::HolderName;
    use super::super::link::EtcdSecurity;
    use super::*;
    use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader, PbWatchResponse};
    use idgen_core::lease::InstanceId;

    const CLUSTER: u64 = 7;

    fn log() -> EtcdLog {
        let mut log = EtcdLog::new(&EtcdConfig {
            endpoints: vec!["http://127.0.0.1:1".to_owned()],
            prefix: "/p".to_owned(),
            request_timeout: Duration::from_secs(1),
            security: EtcdSecurity::default(),
            class: Class::Worker,
            ttl_ms: 10_000,
            holder: HolderName {
                instance: InstanceId(1),
                name: String::new(),
            },
        });
        log.cluster_id = CLUSTER;
        log
    }

    /// Puts of workers at revisions.
    fn message(fragment: bool, puts: &[(i64, u16)]) -> WatchResponse {
        let put = |(revision, worker): &(i64, u16)| PbEvent {
            r#type: 0,
            kv: Some(PbKeyValue {
                key: format!("/p/w/{worker}/hw").into_bytes(),
                create_revision: *revision,
                mod_revision: *revision,
                version: 1,
                ..PbKeyValue::default()
            }),
            prev_kv: None,
        };
        WatchResponse(PbWatchResponse {
            header: Some(PbResponseHeader {
                cluster_id: CLUSTER,
                ..PbResponseHeader::default()
            }),
            fragment,
            events: puts.iter().map(put).collect(),
            ..PbWatchResponse::default()
        })
    }

    /// Revisions with the number of their changes, and up to where all is told.
    fn told(next: &Next) -> (Vec<(u64, usize)>, u64) {
        let Next::Commits(commits, up_to) = next else {
            panic!("{next:?}")
        };
        let told = |commit: &Commit| (commit.when.position, commit.changes.len());
        (commits.iter().map(told).collect(), *up_to)
    }

    #[test]
    fn a_revision_that_comes_in_parts_is_one_commit() {
        let mut log = log();
        let first = log.read(&message(true, &[(4, 1), (5, 1), (5, 2)])).unwrap();
        assert_eq!(told(&first), (vec![(4, 1)], 4));
        let second = log.read(&message(true, &[(5, 3)])).unwrap();
        assert_eq!(told(&second), (vec![], 4));
        let last = log.read(&message(false, &[(5, 4), (6, 1)])).unwrap();
        assert_eq!(told(&last), (vec![(5, 4), (6, 1)], 6));
        let cut_between = log.read(&message(true, &[(7, 1)])).unwrap();
        assert_eq!(told(&cut_between), (vec![], 6));
        let next = log.read(&message(false, &[(8, 1)])).unwrap();
        assert_eq!(told(&next), (vec![(7, 1), (8, 1)], 8));
    }

    #[test]
    fn a_cluster_that_took_the_place_of_another_is_no_gap_of_it() {
        let mut gap = message(false, &[]);
        gap.0.compact_revision = 9;
        gap.0.canceled = true;
        assert!(matches!(log().read(&gap), Ok(Next::Gap(9))));
        gap.0.header = Some(PbResponseHeader {
            cluster_id: CLUSTER + 1,
            ..PbResponseHeader::default()
        });
        assert!(matches!(log().read(&gap), Ok(Next::Replaced(_))));
    }
}
