//! Walks a chain: every commit must follow from the one before.

use super::super::commit::{Commit, commit_key, commits_prefix, name_part, sha256, unhex};
use super::super::ledger::last_there;
use super::super::objects::{ObjectErrorKind, Objects};
use super::{ChainHead, Progress, Told};
use crate::error::{Error, Result};
use crate::event::hex;
use idgen_core::archive::Chain;

/// What was found.
pub struct Walked {
    /// The commits, from behind the checkpoint on.
    pub commits: Vec<Commit>,
    /// Where it ends, as far as it follows.
    pub head: ChainHead,
    /// What is wrong with it; nothing behind that is looked at.
    pub problem: Option<String>,
}

/// The chains of an archive. The only listing that a check depends on; what of a chain is not listed is asked for by its number.
///
/// # Errors
/// The place does not answer.
pub async fn chains<O: Objects>(objects: &O) -> Result<Vec<String>> {
    let prefix = commits_prefix();
    let (mut chains, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
    loop {
        let listed = objects.list(&prefix, after.as_deref()).await?;
        let Some(first) = listed.first() else {
            return Ok(chains);
        };
        let part = first
            .key
            .get(prefix.len()..)
            .and_then(|rest| rest.split('/').next());
        let part = part.unwrap_or_default().to_owned();
        // Behind everything of this chain, and before the next: `0` comes behind `/`.
        after = Some(format!("{prefix}{part}0"));
        let bytes = objects.get(&first.key).await?;
        match Commit::parse(&bytes) {
            Ok(commit) if name_part(&commit.chain) == part => chains.push(commit.chain),
            // What its name says, which the walk will find wanting.
            _ => chains.push(part),
        }
    }
}

/// Walks a chain from a checkpoint, or from its beginning.
///
/// # Errors
/// The place does not answer.
pub async fn walk<O: Objects>(
    objects: &O,
    name: &str,
    from: Option<&ChainHead>,
    told: Told<'_>,
) -> Result<Walked> {
    let mut walked = Walked {
        commits: Vec::new(),
        head: ChainHead {
            chain: name.to_owned(),
            seq: 0,
            sha256: hex(&[0; 32]),
        },
        problem: None,
    };
    let mut chain = Chain::default();
    let last = last_listed(objects, name, from.map_or(0, |from| from.seq)).await?;
    if let Some(from) = from.filter(|from| from.seq > 0) {
        match checkpoint(objects, name, from).await? {
            Ok(found) => chain = found,
            Err(why) => walked.problem = Some(why),
        }
    }
    told(Progress::Commits(last.saturating_sub(chain.head().seq)));
    while walked.problem.is_none() {
        let seq = chain.head().seq + 1;
        match follow(objects, name, &mut chain).await? {
            Some(Ok(commit)) => walked.commits.push(commit),
            Some(Err(why)) => walked.problem = Some(why),
            None => {
                walked.problem = (seq <= last).then(|| missing(name, seq));
                break;
            }
        }
        told(Progress::Commit);
    }
    walked.head.seq = chain.head().seq;
    walked.head.sha256 = hex(&chain.head().sha256);
    Ok(walked)
}

/// Goes one commit on, which is the chain's end then; within: why what is there does not follow. `None`: nothing is there, so
/// the chain ends or a commit is missing.
pub(crate) async fn follow<O: Objects>(
    objects: &O,
    name: &str,
    chain: &mut Chain,
) -> Result<Option<std::result::Result<Commit, String>>> {
    let seq = chain.head().seq + 1;
    let bytes = match objects.get(&commit_key(name, seq)).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind == ObjectErrorKind::Missing => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let followed = Commit::parse(&bytes).and_then(|commit| {
        let link = commit.link()?;
        if commit.chain != name {
            return Err(format!("it is of chain {}", commit.chain));
        }
        chain
            .append(&link, sha256(&bytes))
            .map_err(|error| error.to_string())?;
        Ok(commit)
    });
    Ok(Some(
        followed.map_err(|why| format!("commit {seq} of chain {name}: {why}")),
    ))
}

/// A walk from the end of a chain to its beginning, over whatever is not there or cannot be read.
pub(crate) struct Back<'b, O> {
    objects: &'b O,
    name: &'b str,
    /// The next one that is looked at,
    seq: u64,
    /// ... and its SHA-256, where the commit behind it was read.
    sha256: Option<[u8; 32]>,
}

impl<'b, O: Objects> Back<'b, O> {
    /// From the last commit that is there.
    pub(crate) async fn from_end(objects: &'b O, name: &'b str) -> Result<Self> {
        // What a hole in the middle hides from whoever looks for the end by numbers, the listing has.
        let there = last_there(objects, name, 0).await?;
        Ok(Self {
            objects,
            name,
            seq: last_listed(objects, name, there).await?,
            sha256: None,
        })
    }

    /// The next commit, and within why there is none of this number. `None`: that was the first.
    pub(crate) async fn step(&mut self) -> Result<Option<std::result::Result<Commit, String>>> {
        let (seq, name) = (self.seq, self.name);
        if seq == 0 {
            return Ok(None);
        }
        self.seq -= 1;
        let named = self.sha256.take();
        let bytes = match self.objects.get(&commit_key(name, seq)).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind == ObjectErrorKind::Missing => return Ok(Some(Err(missing(name, seq)))),
            Err(error) => return Err(error.into()),
        };
        let read = Commit::parse(&bytes).and_then(|commit| {
            let link = commit.link()?;
            if commit.chain != name || commit.seq != seq {
                return Err(format!("it is {} of chain {}", commit.seq, commit.chain));
            }
            if named.is_some_and(|named| named != sha256(&bytes)) {
                return Err("it is not the one that the next commit was made behind".to_owned());
            }
            Ok((commit, link.prev_sha256))
        });
        Ok(Some(match read {
            Ok((commit, before)) => {
                self.sha256 = Some(before);
                Ok(commit)
            }
            Err(why) => Err(format!("commit {seq} of chain {name}: {why}")),
        }))
    }
}

pub(crate) fn missing(name: &str, seq: u64) -> String {
    format!("commit {seq} of chain {name} is missing")
}

/// The commit that a checkpoint names must be there still, and the same.
async fn checkpoint<O: Objects>(
    objects: &O,
    name: &str,
    from: &ChainHead,
) -> Result<std::result::Result<Chain, String>> {
    let bytes = match objects.get(&commit_key(name, from.seq)).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind == ObjectErrorKind::Missing => {
            return Ok(Err(missing(name, from.seq)));
        }
        Err(error) => return Err(error.into()),
    };
    let hash = sha256(&bytes);
    if unhex(&from.sha256) != Some(hash) {
        return Ok(Err(format!(
            "commit {} of chain {name} was changed since an earlier check: its SHA-256 was {}",
            from.seq, from.sha256
        )));
    }
    let link = Commit::parse(&bytes).and_then(|commit| commit.link());
    Ok(link
        .map(|link| Chain::behind(&link, hash))
        .map_err(|why| format!("commit {} of chain {name}: {why}", from.seq)))
}

/// The highest number that is there, of those from `from` on.
pub(crate) async fn last_listed<O: Objects>(objects: &O, name: &str, from: u64) -> Result<u64> {
    let prefix = format!("{}{}/", commits_prefix(), name_part(name));
    let (mut last, mut after) = (from, commit_key(name, from));
    loop {
        let listed = objects.list(&prefix, Some(&after)).await?;
        let Some(end) = listed.last() else {
            return Ok(last);
        };
        after.clone_from(&end.key);
        let number = end
            .key
            .get(prefix.len()..)
            .and_then(|rest| rest.strip_suffix(".json"));
        last = number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| Error::refused(format!("{} is no commit", end.key)))?;
    }
}
