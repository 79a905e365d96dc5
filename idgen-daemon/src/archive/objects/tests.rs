use super::s3::{base64, kind_of};
use super::*;
use std::path::{Path, PathBuf};

/// A folder of a test's own, gone when it ends.
pub(crate) struct TestFolder(pub PathBuf);

impl TestFolder {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("idgen-archive-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn files_below(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| if path.is_dir() { files_below(&path) } else { 1 })
        .sum()
}

#[tokio::test]
async fn an_object_in_a_folder_is_made_once_and_whole() {
    let dir = TestFolder::new();
    let folder = Folder::new(dir.0.clone());
    let [one, two] = ["one", "two"].map(Bytes::from_static_str);
    folder
        .put_if_absent("a/b/c", &one, Keep::default())
        .await
        .unwrap();
    let again = folder
        .put_if_absent("a/b/c", &two, Keep::default())
        .await
        .unwrap_err();
    assert_eq!(again.kind, ObjectErrorKind::Exists);
    assert_eq!(folder.get("a/b/c").await.unwrap(), one);
    folder.put("a/b/c", &two).await.unwrap();
    assert_eq!(folder.get("a/b/c").await.unwrap(), two);
    assert_eq!(folder.head("a/b/c").await.unwrap().unwrap().bytes, 3);
    assert_eq!(folder.head("a/b/d").await.unwrap(), None);
    assert_eq!(
        folder.get("a/b/d").await.unwrap_err().kind,
        ObjectErrorKind::Missing
    );
    assert_eq!(files_below(&dir.0), 1, "no draft is left");
    folder.delete("a/b/c").await.unwrap();
    folder.delete("a/b/c").await.unwrap();
    assert_eq!(files_below(&dir.0), 0);
}

#[tokio::test]
async fn a_listing_is_in_order_and_goes_on_behind_a_name() {
    let dir = TestFolder::new();
    let folder = Folder::new(dir.0.clone());
    for key in ["x/dt=2/b", "x/dt=1/a", "x/dt=2/a", "y/a", "x/dt=10/a"] {
        folder.put(key, &Bytes::from_static(b"1")).await.unwrap();
    }
    let keys = async |prefix: &str, after: Option<&str>| {
        let found = folder.list(prefix, after).await.unwrap();
        found.into_iter().map(|meta| meta.key).collect::<Vec<_>>()
    };
    assert_eq!(
        keys("x/", None).await,
        ["x/dt=1/a", "x/dt=10/a", "x/dt=2/a", "x/dt=2/b"]
    );
    assert_eq!(keys("x/dt=1", None).await, ["x/dt=1/a", "x/dt=10/a"]);
    assert_eq!(keys("x/dt=2/", Some("x/dt=2/a")).await, ["x/dt=2/b"]);
    assert!(keys("z/", None).await.is_empty());
}

#[tokio::test]
async fn a_folder_that_is_gone_is_named_and_not_made_anew() {
    let dir = TestFolder::new();
    let folder = Folder::new(dir.0.join("not mounted"));
    let refused = folder.put("a/b", &Bytes::new()).await.unwrap_err();
    assert_eq!(refused.kind, ObjectErrorKind::NoPlace);
    assert!(
        refused.to_string().contains("not mounted is not there (hint: "),
        "{refused}"
    );
    assert_eq!(
        folder.list("a/", None).await.unwrap_err().kind,
        ObjectErrorKind::NoPlace
    );
    assert_eq!(files_below(&dir.0), 0);
    for key in ["../a", "a//b", "", "a/.b"] {
        let refused = Folder::new(dir.0.clone())
            .put(key, &Bytes::new())
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("is no name of an object"),
            "{refused}"
        );
    }
}

/// lance#7061: an answer 400 with the code RequestTimeout was taken for a request that makes no sense. And
/// arrow-rs-object-store#852, opendal#6741: 409 was taken for 412.
#[test]
fn a42_a53_errors_are_told_apart_by_their_code() {
    use ObjectErrorKind::{Clock, Conflict, Denied, Exists, KeyDenied, Lost, Missing, NoPlace, Other};
    for (code, status, kind) in [
        (Some("RequestTimeout"), 400, Lost),
        (Some("InvalidArgument"), 400, Other),
        (Some("ConditionalRequestConflict"), 409, Conflict),
        (Some("PreconditionFailed"), 412, Exists),
        (None, 412, Exists),
        (None, 409, Conflict),
        (None, 404, Missing),
        (Some("NoSuchBucket"), 404, NoPlace),
        (Some("KMS.DisabledException"), 400, KeyDenied),
        (Some("AccessDenied"), 403, Denied),
        (Some("RequestTimeTooSkewed"), 403, Clock),
        (Some("InternalError"), 500, Lost),
        (None, 503, Lost),
    ] {
        assert_eq!(kind_of(code, status), kind, "{code:?} {status}");
    }
}

#[test]
fn base64_is_that_of_the_rfc() {
    for (bytes, text) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foobar", "Zm9vYmFy"),
    ] {
        assert_eq!(base64(bytes.as_bytes()), text);
    }
    assert_eq!(base64(&[0xff, 0xfe]), "//4=");
}

trait FromText {
    fn from_static_str(text: &'static str) -> Bytes;
}

impl FromText for Bytes {
    fn from_static_str(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }
}
