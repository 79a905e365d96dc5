//! The product's trail of lease events beside the record of the test: both must tell the same grants, releases and ends.
//!
//! The record is made by a plain watch or by logical decoding, which know nothing of the product's rules. A trail ends where
//! whoever wrote it ended. Where the store was replaced by an older state of itself, the trail may lack the last commits before
//! (they were gone before anybody read them), and goes on from what it found then.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use idgen_core::history::{Branch, Change, History, RowState, Step};
use idgen_core::lease::{Class, Identity};
use serde::{Deserialize, Serialize};

use crate::kit::{Server, sql};

/// One trail: of one sink.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    /// Of which server.
    sink: usize,
    /// Everything up to here is in it.
    revision: u64,
    /// Branch, revision, kind, subject, holder.
    events: Vec<(u64, u64, String, String, Option<String>)>,
}

fn file(dir: &Path, sink: usize) -> std::path::PathBuf {
    dir.join(format!("told-{sink}.json"))
}

/// Keeps what a server's database has of the trail.
pub fn keep(server: &Server, sink: usize, dir: &Path) {
    let mut client = server.connect();
    let Some(revision) = sql::column::<i64>(&mut client, "SELECT revision FROM idgen.lease_trail").pop()
    else {
        return;
    };
    let rows = client
        .query(
            "SELECT branch, revision, kind, subject, detail->>'holder' FROM idgen.lease_event ORDER BY seq",
            &[],
        )
        .expect("the events");
    let number = |row: &postgres::Row, n: usize| row.get::<_, i64>(n).unsigned_abs();
    let event = |row: &postgres::Row| (number(row, 0), number(row, 1), row.get(2), row.get(3), row.get(4));
    let told = Told {
        sink,
        revision: revision.unsigned_abs(),
        events: rows.iter().map(event).collect(),
    };
    fs::write(file(dir, sink), serde_json::to_vec(&told).expect("JSON")).expect("keep the trail");
}

/// What happened to an identity at a revision.
type Deed = (u64, String, &'static str);

/// By the record: the histories of the store, one after the other.
fn recorded(history: &History) -> Vec<Vec<Deed>> {
    let mut lives: Vec<(Branch, Vec<Deed>)> = vec![(Branch(0), Vec::new())];
    let mut rows: BTreeMap<(Branch, Class, Identity), RowState> = BTreeMap::new();
    for commit in &history.trail {
        let branch = commit.branch;
        match commit.change {
            Change::Restored => {
                rows.retain(|(of, ..), _| *of != branch);
                lives.push((branch, Vec::new()));
            }
            Change::Found(class, identity, row) => drop(rows.insert((branch, class, identity), row)),
            Change::Row(class, identity, row) => {
                let before = rows.insert((branch, class, identity), row);
                let kind = match Step::between(before.as_ref(), &row) {
                    Step::Granted => "granted",
                    Step::Released => "released",
                    Step::Removed => "gone",
                    Step::Renewed | Step::Other => continue,
                };
                let life = lives.iter_mut().rev().find(|(of, _)| *of == branch);
                let (_, life) = life.expect("a history of this branch");
                life.push((commit.revision.0, format!("{class} {identity}"), kind));
            }
            Change::Epoch(_) | Change::Shown(..) => {}
        }
    }
    lives.into_iter().map(|(_, deeds)| deeds).collect()
}

impl Told {
    /// Of one branch: where it begins, and what happened in it.
    fn branch(&self, branch: u64) -> (u64, Vec<Deed>) {
        let of_branch = || self.events.iter().filter(move |(of, ..)| *of == branch);
        let base = of_branch()
            .find(|(_, _, kind, ..)| kind == "began" || kind == "store_replaced")
            .map_or(0, |(_, revision, ..)| *revision);
        let granted_there = |at: u64, subject: &str| {
            of_branch()
                .any(|(_, revision, kind, of, _)| *revision == at && of == subject && kind == "granted")
        };
        let deeds = of_branch().filter_map(|(_, revision, kind, subject, holder)| {
            let kind = match kind.as_str() {
                _ if holder.as_deref() == Some("filler") => return None,
                "granted" => "granted",
                "released" => "released",
                // The record has the grant alone, where it takes the place of a holder that had expired.
                "expired" | "removed" if granted_there(*revision, subject) => return None,
                "expired" | "removed" => "gone",
                _ => return None,
            };
            Some((*revision, subject.clone(), kind))
        });
        let ours = |subject: &str| subject.starts_with("worker ") || subject.starts_with("shard ");
        (base, deeds.filter(|(_, subject, _)| ours(subject)).collect())
    }
}

/// Compares all trails that were kept with the record; how many steps they told.
pub fn compare(dir: &Path, history: &History, servers: usize) -> usize {
    let lives = recorded(history);
    let mut compared = 0;
    for sink in 0..servers {
        let Ok(text) = fs::read(file(dir, sink)) else {
            continue;
        };
        let told: Told = serde_json::from_slice(&text).expect("a trail");
        let last = told.events.iter().map(|(branch, ..)| *branch).max().unwrap_or(0);
        assert!(
            usize::try_from(last).expect("a branch") < lives.len(),
            "trail {sink} tells of {last} replacements of the store, and there were {}",
            lives.len() - 1
        );
        for branch in 0..=last {
            // A trail that came later than some replacements knows none of them.
            let life = lives.len() - 1 - usize::try_from(last - branch).expect("a branch");
            let (base, mut deeds) = told.branch(branch);
            let mut expected: Vec<Deed> = lives[life]
                .iter()
                .filter(|(at, ..)| *at > base)
                .cloned()
                .collect();
            if branch == last {
                expected.retain(|(at, ..)| *at <= told.revision);
            } else {
                let end = deeds.iter().map(|(at, ..)| *at).max().unwrap_or(base);
                expected.retain(|(at, ..)| *at <= end);
            }
            expected.sort();
            deeds.sort();
            let missing: Vec<&Deed> = expected
                .iter()
                .filter(|deed| deeds.binary_search(deed).is_err())
                .collect();
            let invented: Vec<&Deed> = deeds
                .iter()
                .filter(|deed| expected.binary_search(deed).is_err())
                .collect();
            assert!(
                missing.is_empty() && invented.is_empty() && deeds.len() == expected.len(),
                "trail {sink}, branch {branch} after revision {base}: missing {missing:?}, invented {invented:?}"
            );
            compared += deeds.len();
        }
    }
    compared
}
