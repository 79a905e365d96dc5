//! A local folder. An object appears whole or not at all, and is on the disk when it was made.
//!
//! It is written under a name that no listing shows, synced, and then linked (made only if absent) or renamed (replaced) to
//! its own; then the folder is synced. The disk must know hard links, as those of Linux do.

use super::{Keep, Meta, ObjectError, ObjectErrorKind, Objects, Result};
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Of a listing at most.
const LIST_MAX: usize = 1_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder itself must be there: where it lies below a mount point, nothing is written beside a disk that is not mounted.
    #[must_use]
    pub const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        let is_plain = key
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && !part.contains('\0'));
        if is_plain {
            Ok(self.root.join(key))
        } else {
            Err(ObjectError::new(
                ObjectErrorKind::Other,
                format!("\"{key}\" is no name of an object"),
            ))
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (root, path, key) = (self.root.clone(), self.path(key)?, key.to_owned());
        let done = tokio::task::spawn_blocking(move || {
            // Also when it was read before: `NotFound` of a file in a folder that is gone is something else.
            if !root.is_dir() {
                let gone = format!("the folder {} is not there", root.display());
                return Err(ObjectError::new(ObjectErrorKind::NoPlace, gone));
            }
            work(&root, &path).map_err(|error| failed(&key, &error))
        });
        done.await
            .map_err(|error| ObjectError::new(ObjectErrorKind::Other, format!("{error}")))?
    }
}

fn failed(key: &str, error: &io::Error) -> ObjectError {
    let kind = match error.kind() {
        ErrorKind::AlreadyExists => ObjectErrorKind::Exists,
        ErrorKind::NotFound => ObjectErrorKind::Missing,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ObjectErrorKind::Denied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ObjectErrorKind::Full,
        _ => ObjectErrorKind::Lost,
    };
    ObjectError::new(kind, format!("{key}: {error}"))
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes the folders of a path, and what names each is on the disk too.
fn make_dirs(root: &Path, dir: &Path) -> io::Result<()> {
    if dir == root || dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        make_dirs(root, above)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => dir.parent().map_or(Ok(()), sync_dir),
    }
}

/// A file that is whole and synced, under a name of nobody's; removed when dropped.
struct Draft(PathBuf);

impl Draft {
    fn write(root: &Path, path: &Path, body: &[u8]) -> io::Result<Self> {
        let dir = path.parent().unwrap_or(root);
        make_dirs(root, dir)?;
        let draft = Self(dir.join(format!(".{}", Uuid::new_v4().simple())));
        let mut file = File::create_new(&draft.0)?;
        file.write_all(body)?;
        file.sync_all()?;
        Ok(draft)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Objects for Folder {
    async fn put_if_absent(&self, key: &str, body: &Bytes, _keep: Keep) -> Result<()> {
        let body = body.clone();
        self.blocking(key, move |root, path| {
            let draft = Draft::write(root, path, &body)?;
            fs::hard_link(&draft.0, path)?;
            path.parent().map_or(Ok(()), sync_dir)
        })
        .await
    }

    async fn put(&self, key: &str, body: &Bytes) -> Result<()> {
        let body = body.clone();
        self.blocking(key, move |root, path| {
            let draft = Draft::write(root, path, &body)?;
            fs::rename(&draft.0, path)?;
            path.parent().map_or(Ok(()), sync_dir)
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.blocking(key, |_, path| fs::read(path).map(Bytes::from))
            .await
    }

    async fn head(&self, key: &str) -> Result<Option<Meta>> {
        let name = key.to_owned();
        let found = self
            .blocking(key, move |_, path| {
                let there = fs::metadata(path)?;
                Ok(Meta {
                    key: name,
                    bytes: there.len(),
                    modified: there.modified().ok(),
                })
            })
            .await;
        match found {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind == ObjectErrorKind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Meta>> {
        let (root, prefix, after) = (self.root.clone(), prefix.to_owned(), after.map(str::to_owned));
        let done = tokio::task::spawn_blocking(move || list(&root, &prefix, after.as_deref()));
        done.await
            .map_err(|error| ObjectError::new(ObjectErrorKind::Other, format!("{error}")))?
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let gone = self
            .blocking(key, |_, path| {
                fs::remove_file(path)?;
                path.parent().map_or(Ok(()), sync_dir)
            })
            .await;
        match gone {
            Err(error) if error.kind == ObjectErrorKind::Missing => Ok(()),
            other => other,
        }
    }
}

fn list(root: &Path, prefix: &str, after: Option<&str>) -> Result<Vec<Meta>> {
    if !root.is_dir() {
        let gone = format!("the folder {} is not there", root.display());
        return Err(ObjectError::new(ObjectErrorKind::NoPlace, gone));
    }
    let mut found = Vec::new();
    // The deepest folder that all of them are in.
    let within = prefix.rsplit_once('/').map_or("", |(dir, _)| dir);
    walk(root, within, prefix, &mut found).map_err(|error| failed(prefix, &error))?;
    found.sort_by(|a: &Meta, b| a.key.cmp(&b.key));
    found.retain(|meta| after.is_none_or(|after| meta.key.as_str() > after));
    found.truncate(LIST_MAX);
    Ok(found)
}

fn walk(root: &Path, dir: &str, prefix: &str, found: &mut Vec<Meta>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(dir)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        let key = if dir.is_empty() {
            name
        } else {
            format!("{dir}/{name}")
        };
        let there = match entry.metadata() {
            // Deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            there => there?,
        };
        let leads_there = key.starts_with(prefix) || prefix.starts_with(&format!("{key}/"));
        if there.is_dir() && leads_there {
            walk(root, &key, prefix, found)?;
        } else if there.is_file() && key.starts_with(prefix) {
            found.push(Meta {
                key,
                bytes: there.len(),
                modified: there.modified().ok(),
            });
        }
    }
    Ok(())
}
