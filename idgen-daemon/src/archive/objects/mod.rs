//! Where the archive lies: objects with names, in a bucket or in a folder.

mod folder;
mod s3;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;

pub use self::folder::Folder;
pub use self::s3::{BucketFacts, S3};

use crate::config::ArchivePlace;
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::time::SystemTime;

/// What went wrong, by what is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectErrorKind {
    /// There is one of that name already (412).
    Exists,
    /// Another request for the name is under way (409).
    Conflict,
    /// There is none of that name.
    Missing,
    /// The bucket or folder itself is gone.
    NoPlace,
    /// Not allowed.
    Denied,
    /// The key that encrypts is not to be had.
    KeyDenied,
    /// No room.
    Full,
    /// The service says that our clock is wrong.
    Clock,
    /// No answer, or one that says nothing of what was done.
    Lost,
    /// Anything else.
    Other,
}

impl ObjectErrorKind {
    /// As the label of a metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::Conflict => "conflict",
            Self::Missing => "missing",
            Self::NoPlace => "no_place",
            Self::Denied => "denied",
            Self::KeyDenied => "key_denied",
            Self::Full => "full",
            Self::Clock => "clock",
            Self::Lost => "lost",
            Self::Other => "other",
        }
    }

    /// What an operator can do.
    const fn hint(self) -> Option<&'static str> {
        match self {
            Self::NoPlace => Some(
                "the bucket or folder of [archive] must exist; nothing was thrown away, the archive goes on when it is there",
            ),
            Self::Denied => Some(
                "idgend needs GetObject, PutObject and DeleteObject on the prefix and ListBucket on the bucket, or all rights on the folder",
            ),
            Self::KeyDenied => Some(
                "idgend needs kms:GenerateDataKey and kms:Decrypt on archive.kms_key_id, and the key must be enabled",
            ),
            Self::Full => Some("make room; nothing was thrown away, the archive goes on when there is some"),
            Self::Clock => Some("set this machine's clock: requests are signed with the time"),
            _ => None,
        }
    }
}

/// An error of the place.
#[derive(Clone, Debug)]
pub struct ObjectError {
    /// What to do.
    pub kind: ObjectErrorKind,
    message: String,
}

/// Result of requests to the place.
pub type Result<T> = std::result::Result<T, ObjectError>;

impl ObjectError {
    /// An error with a sentence for people.
    pub fn new(kind: ObjectErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.kind.hint() {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ObjectError {}

impl From<ObjectError> for crate::error::Error {
    fn from(error: ObjectError) -> Self {
        Self::retry(error.to_string())
    }
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its name.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written, by the clock of the place.
    pub modified: Option<SystemTime>,
}

/// How an object is to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Nobody can delete it before this, where the place knows such locks.
    pub locked_until: Option<SystemTime>,
}

/// A place for objects. Names have slashes between their parts and no part that begins with a dot.
pub trait Objects: Send + Sync + 'static {
    /// Makes an object if there is none of that name: the whole of it, or nothing.
    fn put_if_absent(&self, key: &str, body: &Bytes, keep: Keep) -> impl Future<Output = Result<()>> + Send;

    /// Makes or replaces an object.
    fn put(&self, key: &str, body: &Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Reads an object.
    fn get(&self, key: &str) -> impl Future<Output = Result<Bytes>> + Send;

    /// Looks at an object; `None`: there is none.
    fn head(&self, key: &str) -> impl Future<Output = Result<Option<Meta>>> + Send;

    /// Objects whose names begin with the prefix, in the order of their names, from behind `after` on, a thousand at most.
    fn list(&self, prefix: &str, after: Option<&str>) -> impl Future<Output = Result<Vec<Meta>>> + Send;

    /// Removes an object; it is no error when there is none.
    fn delete(&self, key: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Either of them.
#[derive(Clone)]
pub enum AnyObjects {
    /// A local folder.
    Folder(Folder),
    /// A bucket.
    S3(S3),
}

impl AnyObjects {
    /// Reaches nothing yet.
    pub async fn open(place: &ArchivePlace) -> Self {
        match place {
            ArchivePlace::Folder(path) => Self::Folder(Folder::new(path.clone())),
            ArchivePlace::S3(config) => Self::S3(S3::open(config).await),
        }
    }
}

impl Objects for AnyObjects {
    async fn put_if_absent(&self, key: &str, body: &Bytes, keep: Keep) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.put_if_absent(key, body, keep).await,
            Self::S3(s3) => s3.put_if_absent(key, body, keep).await,
        }
    }

    async fn put(&self, key: &str, body: &Bytes) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.put(key, body).await,
            Self::S3(s3) => s3.put(key, body).await,
        }
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        match self {
            Self::Folder(folder) => folder.get(key).await,
            Self::S3(s3) => s3.get(key).await,
        }
    }

    async fn head(&self, key: &str) -> Result<Option<Meta>> {
        match self {
            Self::Folder(folder) => folder.head(key).await,
            Self::S3(s3) => s3.head(key).await,
        }
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Meta>> {
        match self {
            Self::Folder(folder) => folder.list(prefix, after).await,
            Self::S3(s3) => s3.list(prefix, after).await,
        }
    }

    async fn delete(&self, key: &str) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.delete(key).await,
            Self::S3(s3) => s3.delete(key).await,
        }
    }
}
