//! The epoch of a cell as it is shown, and what an advance would do.

use super::super::store::{printable, rfc3339};
use super::{Times, wish_for};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::pool::half;
use idgen_core::lease::window::FLOOR_LEAD_MS;
use idgen_core::lease::{AdvancePlan, AdvanceRefused, Anchor, Epoch, Survey, plan_advance};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// The epoch of a cell, and what an advance would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EpochStatus {
    /// The cell.
    pub cell_id: Uuid,
    /// Its epoch.
    pub epoch: u64,
    /// Random name of that.
    pub nonce: Uuid,
    /// When it began, in RFC 3339.
    pub since: String,
    /// The workers that are leased in it.
    pub workers: String,
    /// The store that the cell names.
    pub identity_in_cell: String,
    /// The store that was asked: what `--identity` has to say.
    pub identity: String,
    /// Why nothing is granted or renewed; none: the store is open.
    pub sealed: Option<String>,
    /// Who holds identities: an epoch other than the cell's is another side, which lasts until its leases run out.
    pub held: Vec<Side>,
    /// Every advance, oldest first.
    pub history: Vec<Change>,
    /// What `idgenctl epoch advance` would do now.
    pub advance: Advance,
    /// How many different people have to approve it; `None`: that was not asked.
    pub approvals_needed: Option<u32>,
}

/// The holders of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    /// The epoch of their tokens.
    pub epoch: u64,
    /// How many identities they hold.
    pub identities: usize,
    /// Their names.
    pub holders: Vec<String>,
}

/// An advance that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The epoch that began.
    pub epoch: u64,
    /// When, in RFC 3339.
    pub at: String,
    /// The store that it was made in.
    pub identity: String,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What an advance does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advance {
    /// The new epoch.
    pub to: Option<u64>,
    /// The workers that it leases.
    pub workers: Option<String>,
    /// From when on shards are leased, in RFC 3339.
    pub shards_from: Option<String>,
    /// How long it waits first, in ms, so that every daemon can tell the store what it knows.
    pub waits_ms: Option<u64>,
    /// The same of workers, where they are not leased at once.
    pub workers_from: Option<String>,
    /// The plan of formats that is brought back, where the store has lost a switch.
    pub formats: Option<String>,
    /// Why it would be refused now.
    pub refused: Option<String>,
}

impl EpochStatus {
    /// Is anything granted and renewed?
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.sealed.is_none()
    }

    pub(super) fn of(survey: &Survey, anchors: &[Anchor], times: Times) -> Self {
        let cell = &survey.cell;
        let wish = wish_for(survey.here.clone(), times, String::new(), String::new(), None);
        let advance = Advance::of(plan_advance(survey, anchors, wish), survey, times.grace_ms);
        Self {
            cell_id: Uuid::from_u128(cell.cell_id.0),
            epoch: cell.epoch.0,
            nonce: Uuid::from_u128(cell.epoch_nonce.0),
            since: rfc3339(cell.epoch_since),
            workers: workers_of(cell.epoch),
            identity_in_cell: cell.identity.to_string(),
            identity: survey.here.to_string(),
            sealed: survey.sealed_because(anchors),
            held: sides(survey),
            history: survey
                .history
                .iter()
                .map(|change| Change {
                    epoch: change.epoch.0,
                    at: rfc3339(change.at),
                    identity: change.identity.to_string(),
                    by: change.by.clone(),
                    reason: change.reason.clone(),
                })
                .collect(),
            advance,
            approvals_needed: None,
        }
    }
}

impl Advance {
    fn of(planned: std::result::Result<AdvancePlan, AdvanceRefused>, survey: &Survey, grace_ms: u64) -> Self {
        match planned {
            Ok(plan) => {
                let lead = survey.now.saturating_add(FLOOR_LEAD_MS);
                let later = Some(plan.worker_min_floor).filter(|floor| *floor > lead);
                Self {
                    to: Some(plan.to.0),
                    workers: Some(workers_of(plan.to)),
                    shards_from: Some(rfc3339(plan.shard_min_floor)),
                    waits_ms: Some(survey.unheard_ms(grace_ms, 0)),
                    workers_from: later.map(rfc3339),
                    formats: Some(plan.formats).filter(|formats| *formats != survey.cell.worker_format),
                    refused: None,
                }
            }
            Err(refused) => Self {
                to: None,
                workers: None,
                shards_from: None,
                waits_ms: None,
                workers_from: None,
                formats: None,
                refused: Some(refused.to_string()),
            },
        }
    }

    fn waits_s(&self) -> Option<u64> {
        self.waits_ms.filter(|ms| *ms > 0).map(|ms| ms.div_ceil(1_000))
    }
}

pub(super) fn workers_of(epoch: Epoch) -> String {
    let half = half(epoch);
    format!("{} to {}", half.start, half.end - 1)
}

fn sides(survey: &Survey) -> Vec<Side> {
    let mut sides: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
    for row in survey.workers.iter().chain(&survey.shards) {
        if let Some(holder) = row.holder.as_ref().filter(|holder| !holder.expired) {
            sides.entry(holder.token.epoch.0).or_default().push(row);
        }
    }
    let names = |rows: &[&Row]| {
        let mut names: Vec<String> = rows
            .iter()
            .filter_map(|row| row.holder.as_ref().map(|holder| holder.name.clone()))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    sides
        .into_iter()
        .map(|(epoch, rows)| Side {
            epoch,
            identities: rows.len(),
            holders: names(&rows),
        })
        .collect()
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "epoch {} at {} in {} by {}: {}",
            self.epoch,
            self.at,
            self.identity,
            printable(&self.by),
            printable(&self.reason)
        )
    }
}

impl fmt::Display for EpochStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cell      {}", self.cell_id)?;
        writeln!(
            f,
            "epoch     {} since {}, name {}",
            self.epoch, self.since, self.nonce
        )?;
        writeln!(f, "workers   {}", self.workers)?;
        writeln!(f, "store     {}", self.identity)?;
        if self.identity_in_cell != self.identity {
            writeln!(f, "          the cell belongs to {}", self.identity_in_cell)?;
        }
        for side in &self.held {
            let holders = printable(&side.holders.join(", "));
            writeln!(
                f,
                "held      {} identities of epoch {} by {holders}",
                side.identities, side.epoch
            )?;
        }
        for change in &self.history {
            writeln!(f, "history   {change}")?;
        }
        if let Some(needed) = self.approvals_needed {
            writeln!(f, "approvals {needed} needed for an advance")?;
        }
        match &self.sealed {
            None => return f.write_str("state     open"),
            Some(reason) => writeln!(f, "state     sealed: {reason}")?,
        }
        let advance = &self.advance;
        match (
            &advance.refused,
            advance.to,
            &advance.workers,
            &advance.shards_from,
        ) {
            (None, Some(to), Some(workers), Some(shards_from)) => {
                let when = advance.workers_from.as_ref();
                let when = when.map_or_else(|| "at once".to_owned(), |from| format!("from {from} on"));
                writeln!(
                    f,
                    "advance   to epoch {to}: workers {workers} {when}, shards from {shards_from} on"
                )?;
                if let Some(seconds) = advance.waits_s() {
                    writeln!(
                        f,
                        "          in {seconds} s, when every daemon has told the store what it knows"
                    )?;
                }
                if let Some(formats) = &advance.formats {
                    writeln!(
                        f,
                        "          formats: {}, which the store has lost",
                        printable(formats)
                    )?;
                }
                write!(
                    f,
                    "          idgenctl epoch advance --identity {} --reason TEXT",
                    self.identity
                )
            }
            (refused, ..) => write!(f, "advance   refused: {}", refused.as_deref().unwrap_or("-")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::clock::UnixMs;
    use idgen_core::lease::ledger::{Cell, Holder};
    use idgen_core::lease::{
        BootId, CellId, EpochChange, EpochNonce, Identity, InstanceId, Revision, StoreIdentity, Token, Told,
    };

    const NOW: UnixMs = UnixMs(1_795_910_400_000);
    const TIMES: Times = Times {
        worker_ms: 480_000,
        shard_ms: 10_000,
        grace_ms: 18_500,
    };

    fn identity(text: &str) -> StoreIdentity {
        StoreIdentity::new(text).unwrap()
    }

    fn held(worker: u16, epoch: u64, name: &str) -> Row {
        Row {
            identity: Identity(worker),
            generation: 1,
            ceiling: NOW,
            revision: Revision(1),
            holder: Some(Holder {
                instance: InstanceId(1),
                name: name.to_owned(),
                token: Token {
                    epoch: Epoch(epoch),
                    revision: Revision(1),
                },
                boot_id: BootId(1),
                expired: false,
            }),
        }
    }

    fn sealed() -> Survey {
        Survey {
            cell: Cell {
                cell_id: CellId(7),
                worker_format: "classic".to_owned(),
                epoch: Epoch(0),
                epoch_nonce: EpochNonce(9),
                epoch_since: NOW.saturating_sub(3_600_000),
                identity: identity("etcd/1"),
                min_floor: UnixMs(0),
            },
            shard_min_floor: UnixMs(0),
            here: identity("etcd/2"),
            sealed_reason: None,
            sealed_at: None,
            damage: None,
            known: Told::default(),
            revision: Revision(5),
            now: NOW,
            workers: vec![held(3, 0, "b"), held(4, 0, "a"), held(5, 0, "b")],
            shards: Vec::new(),
            history: Vec::new(),
        }
    }

    #[test]
    fn a_sealed_store_says_why_and_what_an_advance_does() {
        let mut survey = sealed();
        let later = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert!(later.contains("in 20 s, when every daemon"), "{later}");
        survey.sealed_at = Some(NOW.saturating_sub(19_500));
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert_eq!(
            shown,
            "cell      00000000-0000-0000-0000-000000000007\n\
             epoch     0 since 2026-11-28T23:00:00.000Z, name 00000000-0000-0000-0000-000000000009\n\
             workers   0 to 511\n\
             store     etcd/2\n\
             \x20         the cell belongs to etcd/1\n\
             held      3 identities of epoch 0 by a, b\n\
             state     sealed: the cell belongs to store etcd/1, this is etcd/2: a restore, a copy or a promoted standby\n\
             advance   to epoch 1: workers 512 to 1023 at once, shards from 2026-11-29T00:00:12.001Z on\n\
             \x20         idgenctl epoch advance --identity etcd/2 --reason TEXT"
        );
    }

    #[test]
    fn a_name_that_would_clear_the_screen_does_not() {
        let mut survey = sealed();
        survey.workers = vec![held(3, 0, "b\u{1b}[2J")];
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert!(shown.contains("by b\u{fffd}[2J"), "{shown}");
    }

    #[test]
    fn an_open_store_shows_its_history() {
        let mut survey = sealed();
        survey.here = identity("etcd/1");
        survey.workers.clear();
        survey.history.push(EpochChange {
            epoch: Epoch(1),
            at: NOW,
            identity: identity("etcd/1"),
            by: "root at db1".to_owned(),
            reason: "disk lost".to_owned(),
        });
        let status = EpochStatus::of(&survey, &[], TIMES);
        assert!(status.is_open());
        let shown = status.to_string();
        assert!(
            shown.ends_with(
                "history   epoch 1 at 2026-11-29T00:00:00.000Z in etcd/1 by root at db1: disk lost\nstate     open"
            ),
            "{shown}"
        );
    }

    #[test]
    fn a_switch_that_was_lost_is_said_to_come_back() {
        let switched = format!("classic; regional/1 from {}", NOW.0 + 60_000);
        let mut survey = sealed();
        survey.known.formats = vec![switched.clone()];
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        let line = format!("formats: {switched}, which the store has lost\n");
        assert!(
            shown.contains("512 to 1023 at once") && shown.contains(&line),
            "{shown}"
        );
        survey.workers[0].ceiling = NOW.saturating_add(61_000);
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert!(
            shown.contains("workers 512 to 1023 from 2026-11-29T00:01:01.001Z on"),
            "{shown}"
        );
        let contradicts = format!("classic; regional/2 from {}", NOW.0 + 60_000);
        survey.known.formats.push(contradicts);
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert!(
            shown.contains("advance   refused: it cannot be seen which plan"),
            "{shown}"
        );
    }

    #[test]
    fn an_advance_that_comes_too_soon_says_when() {
        let mut survey = sealed();
        survey.cell.epoch = Epoch(1);
        survey.cell.epoch_since = NOW;
        let shown = EpochStatus::of(&survey, &[], TIMES).to_string();
        assert!(
            shown.contains("advance   refused: the epoch was changed"),
            "{shown}"
        );
        assert!(shown.contains("try again in 483 s"), "{shown}");
    }
}
