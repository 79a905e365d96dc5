//! What the probe knows, in a file: written beside it, forced to the disk, and put in its place, so that there is always a
//! whole one. Its last 32 bytes are the SHA-256 of all others.

use super::hear::Mind;
use crate::error::{Error, Result};
use idgen_core::audit::Limits;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"pg_idgen probe 1";
const HASH: usize = 32;

/// Where the probe goes on in each partition.
pub type Offsets = BTreeMap<i32, i64>;

#[derive(Serialize, Deserialize)]
struct Head {
    topic: String,
    next: Offsets,
}

/// What was found in its place.
pub enum Loaded {
    /// This, and where it goes on.
    Whole(Box<Mind>, Offsets),
    /// Nothing.
    Nothing,
    /// Something that is refused, and why. It was put aside.
    Damaged(String),
}

/// The file of one topic in a folder.
pub struct Checkpoint {
    path: PathBuf,
    topic: String,
}

impl Checkpoint {
    /// In this folder.
    #[must_use]
    pub fn new(folder: &Path, topic: &str) -> Self {
        Self {
            path: folder.join(format!("probe-{topic}.checkpoint")),
            topic: topic.to_owned(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(what);
        name.into()
    }

    /// Writes it. The one before stays where this fails.
    ///
    /// # Errors
    /// The disk is full, or the folder is not there.
    pub fn write(&self, mind: &Mind, next: &Offsets) -> Result<()> {
        let failed = |error: std::io::Error| Error::retry(format!("write {}: {error}", self.path.display()));
        let head = Head {
            topic: self.topic.clone(),
            next: next.clone(),
        };
        let head = serde_json::to_vec(&head).map_err(|error| Error::runtime(error.to_string()))?;
        let beside = self.beside(".new");
        let mut out = BufWriter::new(File::create(&beside).map_err(failed)?);
        let (mut hash, mut outcome) = (Sha256::new(), Ok(()));
        let mut put = |bytes: &[u8]| {
            hash.update(bytes);
            if outcome.is_ok() {
                outcome = out.write_all(bytes);
            }
        };
        put(MAGIC);
        put(&(head.len() as u64).to_le_bytes());
        put(&head);
        mind.save(&mut put);
        outcome.map_err(failed)?;
        out.write_all(&hash.finalize()).map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, &self.path).map_err(failed)?;
        // The name is durable when its folder is.
        let folder = self.path.parent().unwrap_or_else(|| Path::new("/"));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn load(&self, limits: Limits) -> Result<Loaded> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Loaded::Nothing),
            Err(error) => return Err(Error::retry(format!("read {}: {error}", self.path.display()))),
        };
        match self.parse(&bytes, limits) {
            Ok((mind, next)) => Ok(Loaded::Whole(Box::new(mind), next)),
            Err(why) => {
                let aside = self.beside(".damaged");
                fs::rename(&self.path, &aside)
                    .map_err(|error| Error::retry(format!("rename {}: {error}", self.path.display())))?;
                Ok(Loaded::Damaged(format!(
                    "{why}; it was put aside as {}",
                    aside.display()
                )))
            }
        }
    }

    fn parse(&self, bytes: &[u8], limits: Limits) -> std::result::Result<(Mind, Offsets), String> {
        let cut_off = || "it is cut off".to_owned();
        let (content, hash) = bytes.split_last_chunk::<HASH>().ok_or_else(cut_off)?;
        let rest = content
            .strip_prefix(MAGIC)
            .ok_or("it is no checkpoint of this version")?;
        if Sha256::digest(content).as_slice() != hash {
            return Err("its SHA-256 is not that of what is in it".to_owned());
        }
        let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(cut_off)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (head, state) = rest.split_at_checked(len).ok_or_else(cut_off)?;
        let head: Head = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        if head.topic != self.topic {
            return Err(format!("it is of topic {}", head.topic));
        }
        let mind = Mind::load(state, limits).map_err(|damaged| damaged.to_string())?;
        Ok((mind, head.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("idgen-probe-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn written(checkpoint: &Checkpoint) -> Offsets {
        let next = Offsets::from([(0, 7), (3, 0)]);
        checkpoint.write(&Mind::new(Limits::default()), &next).unwrap();
        next
    }

    #[test]
    fn what_was_written_is_read_and_replaced_as_a_whole() {
        let folder = Folder::new("whole");
        let checkpoint = Checkpoint::new(&folder.0, "t.x");
        assert!(matches!(checkpoint.load(Limits::default()), Ok(Loaded::Nothing)));
        let next = written(&checkpoint);
        // What a kill has left beside it is of no account.
        fs::write(checkpoint.beside(".new"), "half").unwrap();
        let Loaded::Whole(_, read) = checkpoint.load(Limits::default()).unwrap() else {
            panic!("it is whole");
        };
        assert_eq!(read, next);
        written(&checkpoint);
        assert!(!checkpoint.beside(".new").exists());
        let elsewhere = Checkpoint::new(&folder.0.join("none"), "t.x");
        assert!(elsewhere.write(&Mind::new(Limits::default()), &next).is_err());
    }

    #[test]
    fn a_damaged_one_is_refused_whatever_byte_it_is_and_put_aside() {
        let folder = Folder::new("damaged");
        let checkpoint = Checkpoint::new(&folder.0, "t");
        written(&checkpoint);
        let whole = fs::read(checkpoint.path()).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let parsed = checkpoint.parse(&damaged, Limits::default());
            assert!(parsed.is_err(), "byte {at}");
            let parsed = checkpoint.parse(&whole[..at], Limits::default());
            assert!(parsed.is_err(), "{at} bytes");
        }
        let other = Checkpoint::new(&folder.0, "u").parse(&whole, Limits::default());
        assert_eq!(other.err().unwrap(), "it is of topic t");
        fs::write(checkpoint.path(), &whole[..whole.len() - 1]).unwrap();
        let Loaded::Damaged(why) = checkpoint.load(Limits::default()).unwrap() else {
            panic!("it is damaged");
        };
        assert!(why.contains("SHA-256") && why.contains(".damaged"), "{why}");
        assert!(!checkpoint.path().exists());
    }
}
