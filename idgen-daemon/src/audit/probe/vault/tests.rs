use super::super::desk::Order;
use super::*;
use crate::archive::commit::commit_key;
use crate::archive::parquet::tests::{event, message};
use crate::archive::{Batch, Ledger, pack};
use crate::event::Event;
use idgen_core::archive::{Cut, Gap};
use idgen_core::audit::Limits;
use std::fs;
use std::path::PathBuf;
use tokio::sync::{mpsc, watch};

/// A commit has so many offsets of a partition.
const EACH: i64 = 10;

struct Scene {
    folder: PathBuf,
    vault: Vault,
    ledger: Ledger<AnyObjects>,
    mind: Mind,
    tray: Tray,
    _from: mpsc::UnboundedReceiver<Order>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The event at an offset of a partition: each has a stream of its own, without gaps.
fn at(partition: i32, offset: i64) -> Event {
    Event {
        tag: format!("tag {partition}"),
        tag_seq: offset + 1,
        ..event(offset + 1)
    }
}

impl Scene {
    async fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("idgen-vault-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let vault = Vault::open(&ArchivePlace::Folder(folder.clone()), "t").await;
        let ledger = Ledger::open(Arc::clone(&vault.objects), "t").await.unwrap();
        let (tray, from) = Tray::new(watch::channel(Arc::default()).1);
        Self {
            folder,
            vault,
            ledger,
            mind: Mind::new(Limits::default()),
            tray,
            _from: from,
        }
    }

    /// One more commit, of so many partitions, without these offsets of the first.
    async fn append(&mut self, partitions: i32, gone: std::ops::Range<i64>) {
        let begin = self.ledger.chain().next_of(0);
        let mut messages = Vec::new();
        for partition in 0..partitions {
            let offsets = (begin..begin + EACH).filter(|offset| partition > 0 || !gone.contains(offset));
            messages.extend(offsets.map(|offset| message(partition, offset, &at(partition, offset))));
        }
        let gap = Gap {
            partition: 0,
            from: gone.start,
            to: gone.end,
        };
        let batch = Batch {
            files: pack(messages, "t", self.ledger.chain().head().seq + 1, None).unwrap(),
            ends: (0..partitions)
                .map(|partition| (partition, begin + EACH))
                .collect(),
            gaps: (!gone.is_empty()).then_some(gap).into_iter().collect(),
            epoch: 1,
            cut: Cut::Time,
            source: "kafka",
            locked_until: None,
        };
        self.ledger.append(batch).await.unwrap();
    }

    /// What the probe has read of the topic before.
    fn heard(&mut self, partition: i32, offsets: std::ops::Range<i64>) {
        for offset in offsets {
            self.mind
                .hear(&at(partition, offset), (partition, offset))
                .unwrap();
        }
    }

    async fn tell_part(&mut self, partition: i32, from: i64, to: i64) -> Offsets {
        let wanted = BTreeMap::from([(partition, (from, to))]);
        let teller = (&self.tray, &CancellationToken::new());
        let told = self.vault.tell_part(&wanted, &mut self.mind, teller).await;
        told.unwrap()
    }

    async fn tell_all(&mut self) -> Offsets {
        let teller = (&self.tray, &CancellationToken::new());
        self.vault.tell_all(&mut self.mind, teller).await.unwrap()
    }

    fn commit(&self, seq: u64) -> PathBuf {
        self.folder.join(commit_key("t", seq))
    }

    /// Events that were heard, streams of which a part is gone, and gaps that somebody is accused of.
    fn known(&self) -> (u64, usize, usize) {
        let probe = &self.mind.probe;
        (
            probe.counts().events,
            probe.unseen_streams(),
            probe.open_gaps().count(),
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_gone_or_changed_is_a_hole_and_not_the_beginning() {
    for fault in ["gone", "changed"] {
        let mut scene = Scene::new(fault).await;
        for _ in 0..5 {
            scene.append(1, 0..0).await;
        }
        scene.heard(0, 0..5);
        let path = scene.commit(3);
        match fault {
            "gone" => fs::remove_file(path).unwrap(),
            _ => {
                let text = fs::read_to_string(&path).unwrap();
                fs::remove_file(&path).unwrap();
                fs::write(&path, text.replace("\"end\": 30", "\"end\": 31")).unwrap();
            }
        }
        assert_eq!(
            scene.tell_part(0, 5, 50).await,
            Offsets::from([(0, 50)]),
            "{fault}"
        );
        assert_eq!(scene.known(), (40, 1, 0), "{fault}");
        // Whoever looks for an earlier record looks behind the hole too.
        let found = scene.vault.at(0, 7).await.unwrap();
        assert_eq!(found.unwrap().event.tag_seq, 8, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_an_archive_with_a_hole_is_all_but_the_hole() {
    let mut scene = Scene::new("all").await;
    for _ in 0..5 {
        scene.append(1, 0..0).await;
    }
    fs::remove_file(scene.commit(3)).unwrap();
    assert_eq!(scene.tell_all().await, Offsets::from([(0, 20)]), "up to the hole");
    // What the topic has no more.
    assert_eq!(scene.tell_part(0, 20, 45).await, Offsets::from([(0, 45)]));
    assert_eq!(scene.known(), (35, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_end_of_an_archive_has_lost_is_not_reached() {
    let mut scene = Scene::new("end").await;
    for _ in 0..3 {
        scene.append(1, 0..0).await;
    }
    fs::write(scene.commit(3), "{}").unwrap();
    assert_eq!(scene.tell_part(0, 0, 30).await, Offsets::from([(0, 20)]));
    assert_eq!(scene.known(), (20, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_within_a_commit_cuts_where_it_is() {
    let mut scene = Scene::new("gap").await;
    scene.append(1, 4..6).await;
    scene.append(1, 0..0).await;
    scene.tell_all().await;
    assert_eq!(scene.known(), (18, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_cuts_what_is_read_from_it_and_nothing_else() {
    let mut scene = Scene::new("file").await;
    scene.append(2, 0..0).await;
    let commit = Commit::parse(&fs::read(scene.commit(1)).unwrap()).unwrap();
    for file in &commit.files {
        fs::remove_file(scene.folder.join(&file.key)).unwrap();
    }
    scene.heard(0, 0..2);
    scene.heard(1, 0..2);
    scene.tell_part(1, 2, 10).await;
    scene.heard(1, 10..11);
    assert_eq!(scene.known(), (5, 1, 0));
    scene.heard(0, 5..6);
    assert_eq!(scene.known(), (6, 1, 1), "of the other partition all was there");
}
