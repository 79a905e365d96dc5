//! `[archive]`: whether events are archived, and where.

use super::Checked;
use idgen_core::archive::CutRule;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

const CUT_SECONDS_MAX: u64 = 3_600;
/// A file of all that is buffered must be put within one attempt, and no attempt takes longer than 20 s.
const BUFFER_MIB_MAX: u64 = 256;
/// As S3 has it: a hundred years.
const LOCK_DAYS_MAX: u64 = 36_500;

/// Whether events are archived, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Where.
    pub place: ArchivePlace,
    /// When a commit is made.
    pub cut: CutRule,
    /// Files with a release by force cannot be deleted for so long.
    pub object_lock_days: Option<u32>,
    /// Every day is checked after it has ended.
    pub verify: bool,
}

impl ArchiveConfig {
    /// Until when a file that is written now is locked.
    #[must_use]
    pub fn lock_until(&self) -> Option<SystemTime> {
        let days = self.object_lock_days?;
        Some(SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400))
    }
}

/// Where the archive lies, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivePlace {
    /// A local folder.
    Folder(PathBuf),
    /// A bucket.
    S3(S3Config),
}

impl fmt::Display for ArchivePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::S3(config) => write!(f, "s3://{}/{}", config.bucket, config.prefix),
        }
    }
}

/// Which bucket, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// The bucket.
    pub bucket: String,
    /// What all names begin with, without a slash at its end; empty: nothing.
    pub prefix: String,
    /// Its region.
    pub region: Option<String>,
    /// Another service than AWS.
    pub endpoint: Option<String>,
    /// The bucket is in the path and not in the host's name.
    pub force_path_style: bool,
    /// Encrypts with this key of KMS; `None`: as the bucket does by itself.
    pub kms_key_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawArchive {
    pub(super) kind: Option<String>,
    pub(super) path: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) force_path_style: Option<bool>,
    pub(super) kms_key_id: Option<String>,
    pub(super) object_lock_days: Option<u64>,
    pub(super) cut_seconds: Option<u64>,
    pub(super) buffer_mib: Option<u64>,
    pub(super) verify: Option<bool>,
}

impl RawArchive {
    /// `None`: nothing is archived.
    pub(super) fn check(self) -> Checked<Option<ArchiveConfig>> {
        let of_s3 = [
            ("bucket", self.bucket.is_some()),
            ("prefix", self.prefix.is_some()),
            ("region", self.region.is_some()),
            ("endpoint", self.endpoint.is_some()),
            ("force_path_style", self.force_path_style.is_some()),
            ("kms_key_id", self.kms_key_id.is_some()),
            ("object_lock_days", self.object_lock_days.is_some()),
        ];
        let first_of_s3 = of_s3.iter().find(|(_, given)| *given).map(|(key, _)| *key);
        let place = match (self.kind.as_deref(), first_of_s3) {
            (None, first) => {
                let others = [
                    ("path", self.path.is_some()),
                    ("cut_seconds", self.cut_seconds.is_some()),
                    ("buffer_mib", self.buffer_mib.is_some()),
                    ("verify", self.verify.is_some()),
                ];
                let first = first.or(others.iter().find(|(_, given)| *given).map(|(key, _)| *key));
                return match first {
                    Some(key) => Err(format!("archive.{key} needs archive.kind, \"folder\" or \"s3\"")),
                    None => Ok(None),
                };
            }
            (Some("folder"), Some(key)) => return Err(format!("archive.{key} is for kind = \"s3\" only")),
            (Some("folder"), None) => ArchivePlace::Folder(self.folder()?),
            (Some("s3"), _) if self.path.is_some() => {
                return Err("archive.path is for kind = \"folder\" only; s3 takes archive.bucket".into());
            }
            (Some("s3"), _) => ArchivePlace::S3(self.s3()?),
            (Some(other), _) => {
                return Err(format!(
                    "archive.kind = \"{other}\" is neither \"folder\" nor \"s3\""
                ));
            }
        };
        let within = |key: &str, given: Option<u64>, default: u64, max: u64| {
            let value = given.unwrap_or(default);
            (1..=max)
                .contains(&value)
                .then_some(value)
                .ok_or_else(|| format!("archive.{key} = {value} is not in 1 to {max}"))
        };
        let standard = CutRule::default();
        let every_ms = within(
            "cut_seconds",
            self.cut_seconds,
            standard.every_ms / 1_000,
            CUT_SECONDS_MAX,
        )? * 1_000;
        let buffer_mib = within(
            "buffer_mib",
            self.buffer_mib,
            standard.bytes_max >> 20,
            BUFFER_MIB_MAX,
        )?;
        let lock_days = self
            .object_lock_days
            .map(|days| within("object_lock_days", Some(days), 1, LOCK_DAYS_MAX));
        Ok(Some(ArchiveConfig {
            place,
            cut: CutRule {
                every_ms,
                grace_ms: standard.grace_ms.min(every_ms / 10),
                bytes_max: buffer_mib << 20,
            },
            object_lock_days: lock_days.transpose()?.and_then(|days| u32::try_from(days).ok()),
            verify: self.verify.unwrap_or(true),
        }))
    }

    fn folder(&self) -> Checked<PathBuf> {
        let path = PathBuf::from(self.path.as_deref().ok_or("archive.path is missing")?);
        if path.is_absolute() {
            Ok(path)
        } else {
            Err(format!(
                "archive.path = \"{}\" does not begin with a slash",
                path.display()
            ))
        }
    }

    fn s3(&self) -> Checked<S3Config> {
        let bucket = self.bucket.clone().filter(|bucket| !bucket.is_empty());
        let prefix = self.prefix.clone().unwrap_or_default();
        let is_plain = prefix.is_empty()
            || prefix
                .split('/')
                .all(|part| !part.is_empty() && !part.starts_with('.'));
        if !is_plain {
            return Err(format!(
                "archive.prefix = \"{prefix}\" must be words between slashes, without one at either end"
            ));
        }
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            return Err(format!(
                "archive.endpoint = \"{endpoint}\" is no http:// or https:// URL"
            ));
        }
        Ok(S3Config {
            bucket: bucket.ok_or("archive.bucket is missing")?,
            prefix,
            region: self.region.clone(),
            endpoint: self.endpoint.clone(),
            force_path_style: self.force_path_style.unwrap_or(false),
            kms_key_id: self.kms_key_id.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn archive(text: &str) -> Result<Option<ArchiveConfig>, String> {
        let text = format!("[postgres]\nurl = \"postgres://u@here/d\"\n{text}");
        let config = Config::parse("f", &text, []).map_err(|error| error.to_string())?;
        Ok(config.archive)
    }

    #[test]
    fn nothing_is_archived_unless_asked_for() {
        assert!(archive("").unwrap().is_none());
        assert!(archive("[archive]").unwrap().is_none());
        let folder = archive("[archive]\nkind = \"folder\"\npath = \"/a\"")
            .unwrap()
            .unwrap();
        assert_eq!(
            (folder.place, folder.cut),
            (ArchivePlace::Folder("/a".into()), CutRule::default())
        );
        assert!(folder.verify && folder.object_lock_days.is_none());
        let s3 = "[archive]\nkind = \"s3\"\nbucket = \"b\"\nprefix = \"x/y\"\nregion = \"eu-central-1\"\n\
                  endpoint = \"http://127.0.0.1:9\"\nforce_path_style = true\nkms_key_id = \"k\"\nobject_lock_days = 30\n\
                  cut_seconds = 60\nbuffer_mib = 8\nverify = false";
        let s3 = archive(s3).unwrap().unwrap();
        assert_eq!(s3.place.to_string(), "s3://b/x/y");
        assert_eq!(
            (s3.cut.every_ms, s3.cut.grace_ms, s3.cut.bytes_max),
            (60_000, 6_000, 8 << 20)
        );
        assert_eq!((s3.object_lock_days, s3.verify), (Some(30), false));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("path = \"/a\"", "archive.path needs archive.kind"),
            ("kind = \"tape\"", "archive.kind = \"tape\""),
            ("kind = \"folder\"", "archive.path is missing"),
            ("kind = \"folder\"\npath = \"a\"", "does not begin with a slash"),
            (
                "kind = \"folder\"\npath = \"/a\"\nbucket = \"b\"",
                "archive.bucket is for",
            ),
            ("kind = \"s3\"\npath = \"/a\"", "archive.path is for"),
            ("kind = \"s3\"", "archive.bucket is missing"),
            ("kind = \"s3\"\nbucket = \"b\"\nprefix = \"/a\"", "archive.prefix"),
            (
                "kind = \"s3\"\nbucket = \"b\"\nendpoint = \"b:1\"",
                "archive.endpoint",
            ),
            (
                "kind = \"s3\"\nbucket = \"b\"\nobject_lock_days = 0",
                "archive.object_lock_days = 0",
            ),
            (
                "kind = \"folder\"\npath = \"/a\"\ncut_seconds = 0",
                "archive.cut_seconds = 0",
            ),
            (
                "kind = \"folder\"\npath = \"/a\"\nbuffer_mib = 257",
                "is not in 1 to 256",
            ),
            ("kind = \"folder\"\npath = \"/a\"\nfoo = 1", "unknown field"),
        ] {
            let refused = archive(&format!("[archive]\n{text}")).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
