//! Walks a chain: every commit must follow from the one before.

use super::super::commit::{Commit, commit_key, commits_prefix, name_part, sha256, unhex};
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
        let bytes = match objects.get(&commit_key(name, seq)).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind == ObjectErrorKind::Missing => {
                if seq <= last {
                    walked.problem = Some(format!("commit {seq} of chain {name} is missing"));
                }
                break;
            }
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
        match followed {
            Ok(commit) => walked.commits.push(commit),
            Err(why) => walked.problem = Some(format!("commit {seq} of chain {name}: {why}")),
        }
        told(Progress::Commit);
    }
    walked.head.seq = chain.head().seq;
    walked.head.sha256 = hex(&chain.head().sha256);
    Ok(walked)
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
            return Ok(Err(format!("commit {} of chain {name} is missing", from.seq)));
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

/// The highest number that is there.
async fn last_listed<O: Objects>(objects: &O, name: &str, from: u64) -> Result<u64> {
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
