//! The chain of one log in a place: its end, and what is put behind it.

use super::commit::{Commit, FileEntry, commit_key, sha256};
use super::objects::{Keep, ObjectError, ObjectErrorKind, Objects};
use super::pack::Packed;
use crate::lease::host_us;
use bytes::Bytes;
use idgen_core::archive::{Answer, Chain, Cut, Found, Gap, Step, after_answer, after_look};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Requests for one object before it is given up for now; the pause between two grows to a second.
const TRIES: u32 = 6;
const PAUSE_MS: u64 = 50;
/// Files that are put at once.
const PUTS: usize = 4;

/// What is there in the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// What we wanted to be there.
    Ours,
    /// Something else.
    Theirs(Bytes),
}

/// Makes an object if there is none, whatever answers get lost. Errors that waiting does not mend come back at once.
pub(super) async fn settle<O: Objects>(
    objects: &O,
    key: &str,
    body: &Bytes,
    keep: Keep,
) -> Result<Settled, ObjectError> {
    let mut step = Step::Again;
    let mut theirs = Bytes::new();
    let mut last = None;
    for tried in 0..TRIES {
        if tried > 0 && step == Step::Again {
            tokio::time::sleep(Duration::from_millis(PAUSE_MS << tried.min(4))).await;
        }
        if step == Step::Again {
            let put = objects.put_if_absent(key, body, keep).await;
            let answer = match put.as_ref().map_err(|error| error.kind) {
                Ok(()) => Answer::Created,
                Err(ObjectErrorKind::Exists) => Answer::Exists,
                Err(ObjectErrorKind::Conflict) => Answer::Conflict,
                Err(ObjectErrorKind::Lost) => Answer::Lost,
                Err(_) => return put.map(|()| Settled::Ours),
            };
            last = put.err();
            step = after_answer(answer);
        }
        if step == Step::Look {
            let found = match objects.get(key).await {
                Ok(there) if there == *body => Found::Ours,
                Ok(there) => {
                    theirs = there;
                    Found::Theirs
                }
                Err(error) if error.kind == ObjectErrorKind::Missing => Found::Nothing,
                Err(error) if error.kind == ObjectErrorKind::Lost => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            step = after_look(found);
        }
        match step {
            Step::Done => return Ok(Settled::Ours),
            Step::Adopt => return Ok(Settled::Theirs(theirs)),
            Step::Look | Step::Again => {}
        }
    }
    Err(last.unwrap_or_else(|| ObjectError::new(ObjectErrorKind::Lost, format!("{key}: no answer"))))
}

/// What came of a commit.
#[derive(Debug, PartialEq, Eq)]
pub enum Appended {
    /// It counts.
    Ours,
    /// Somebody else was faster: theirs counts, and this chain goes on behind it.
    Adopted,
}

/// A chain in a place.
pub struct Ledger<O> {
    objects: Arc<O>,
    name: String,
    chain: Chain,
    /// The last commit.
    last: Option<Commit>,
}

impl<O: Objects> Ledger<O> {
    /// Finds the end of the chain. Commits are looked for by their numbers: nothing is listed.
    ///
    /// # Errors
    /// The place does not answer, or a commit is none.
    pub async fn open(objects: Arc<O>, name: impl Into<String>) -> Result<Self, ObjectError> {
        let mut ledger = Self {
            objects,
            name: name.into(),
            chain: Chain::default(),
            last: None,
        };
        ledger.seek().await?;
        Ok(ledger)
    }

    /// The name of the chain.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its state.
    #[must_use]
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The last commit; `None`: there is none.
    #[must_use]
    pub const fn last(&self) -> Option<&Commit> {
        self.last.as_ref()
    }

    /// The place.
    #[must_use]
    pub const fn objects(&self) -> &Arc<O> {
        &self.objects
    }

    /// Goes to the end of the chain, from where it is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn seek(&mut self) -> Result<(), ObjectError> {
        let known = self.chain.head().seq;
        let there = last_there(&*self.objects, &self.name, known).await?;
        if there == known {
            return Ok(());
        }
        let bytes = self.objects.get(&commit_key(&self.name, there)).await?;
        self.believe(there, &bytes)
    }

    fn believe(&mut self, seq: u64, bytes: &Bytes) -> Result<(), ObjectError> {
        let bad = |why: String| {
            let key = commit_key(&self.name, seq);
            ObjectError::new(
                ObjectErrorKind::Other,
                format!("{key} is no commit of this chain: {why}"),
            )
        };
        let commit = Commit::parse(bytes).map_err(bad)?;
        let link = commit.link().map_err(bad)?;
        if commit.seq != seq || commit.chain != self.name {
            return Err(bad(format!(
                "it says that it is {} of {}",
                commit.seq, commit.chain
            )));
        }
        let hash = sha256(bytes);
        if seq == self.chain.head().seq + 1 {
            self.chain
                .append(&link, hash)
                .map_err(|error| bad(error.to_string()))?;
        } else {
            self.chain = Chain::behind(&link, hash);
        }
        self.last = Some(commit);
        Ok(())
    }

    /// Puts the files, then the commit that makes them count.
    ///
    /// # Errors
    /// The place does not take them. The commit may be there all the same: look for the end of the chain anew.
    pub async fn append(&mut self, batch: Batch) -> Result<Appended, ObjectError> {
        let files = self.put_files(batch.files).await?;
        let link = self.chain.extend(&batch.ends, batch.gaps, batch.epoch);
        let now_us = host_us();
        let commit = Commit::new(&self.name, &link, (batch.cut, batch.source), files, now_us);
        let bytes = commit.to_bytes();
        let bytes = bytes.map_err(|error| ObjectError::new(ObjectErrorKind::Other, error.to_string()))?;
        let bytes = Bytes::from(bytes);
        let key = commit_key(&self.name, link.seq);
        let keep = Keep {
            locked_until: batch.locked_until,
        };
        match settle(&*self.objects, &key, &bytes, keep).await? {
            Settled::Ours => {
                self.believe(link.seq, &bytes)?;
                Ok(Appended::Ours)
            }
            Settled::Theirs(theirs) => {
                self.believe(link.seq, &theirs)?;
                self.seek().await?;
                Ok(Appended::Adopted)
            }
        }
    }

    async fn put_files(&self, files: Vec<Packed>) -> Result<Vec<FileEntry>, ObjectError> {
        let mut entries = Vec::new();
        let mut waiting = files.into_iter();
        let mut putting = JoinSet::new();
        loop {
            while putting.len() < PUTS
                && let Some(file) = waiting.next()
            {
                let objects = Arc::clone(&self.objects);
                entries.push(file.entry.clone());
                putting.spawn(async move {
                    let key = &file.entry.key;
                    match settle(&*objects, key, &file.bytes, file.keep).await? {
                        Settled::Ours => Ok(()),
                        Settled::Theirs(_) => Err(ObjectError::new(
                            ObjectErrorKind::Other,
                            format!("{key} is there with another content than its name says"),
                        )),
                    }
                });
            }
            match putting.join_next().await {
                None => return Ok(entries),
                Some(Ok(put)) => put?,
                Some(Err(error)) => return Err(ObjectError::new(ObjectErrorKind::Other, error.to_string())),
            }
        }
    }
}

/// The last commit behind one that is known, looked for by numbers: the chain is believed to have no holes.
pub(super) async fn last_there<O: Objects>(objects: &O, name: &str, known: u64) -> Result<u64, ObjectError> {
    let (mut there, mut step) = (known, 1);
    // Doubling, then halving: about twice the logarithm of what is new.
    while is_there(objects, name, there + step).await? {
        there += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if is_there(objects, name, there + step).await? {
            there += step;
        }
    }
    Ok(there)
}

async fn is_there<O: Objects>(objects: &O, name: &str, seq: u64) -> Result<bool, ObjectError> {
    let found = objects.head(&commit_key(name, seq)).await?;
    Ok(found.is_some())
}

/// What becomes one commit.
pub struct Batch {
    /// Its files, encoded.
    pub files: Vec<Packed>,
    /// Up to where each partition is covered then.
    pub ends: BTreeMap<i32, i64>,
    /// What of that is missing.
    pub gaps: Vec<Gap>,
    /// Under which lease.
    pub epoch: u64,
    /// Why it is made.
    pub cut: Cut,
    /// Where the rows come from.
    pub source: &'static str,
    /// Of the commit itself.
    pub locked_until: Option<std::time::SystemTime>,
}
