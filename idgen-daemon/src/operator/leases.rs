//! `idgenctl leases`: who has which identity, as the lease store says it, sealed or not.

use super::server::{self, Drained};
use super::store::{anchors_of, of_store, open, printable, rfc3339};
use crate::config::Config;
use crate::error::Result;
use crate::lease::{AnyStore, CellStore};
use crate::plain_table::plain_table;
use comfy_table::Table;
use idgen_core::clock::UnixMs;
use idgen_core::lease::ledger::{Holder, Row};
use idgen_core::lease::{Anchor, Class, Epoch, Memory, Occupancy, Pressure, Snapshot, Survey};
use serde::Serialize;
use std::fmt::{self, Write};
use uuid::Uuid;

/// The identities of a cell that are not free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leases {
    /// The cell; `None`: the store is new.
    pub cell_id: Option<Uuid>,
    /// Its epoch.
    pub epoch: u64,
    /// Why nothing is granted or renewed; `None`: the store is open.
    pub sealed: Option<String>,
    /// Why what the server remembers was not asked for: `sealed` is by the store's own word then, and `epoch show` may
    /// know better. `None`: it was asked, or there was nothing to ask.
    pub server_not_asked: Option<String>,
    /// The pool of workers.
    pub pool: Option<Pool>,
    /// Servers that take nothing, by somebody's order.
    pub drained: Vec<Drained>,
    /// Workers, then shards, each in their order.
    pub leases: Vec<Lease>,
}

/// How full the half of the pool is that the epoch leases from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// All of it.
    pub size: usize,
    /// Held by somebody.
    pub held: usize,
    /// Held by nobody, but granted up to a time that has not come yet.
    pub cooling: usize,
    /// What can be leased.
    pub free: usize,
    /// `low`, `warn` or `page`.
    pub pressure: &'static str,
    /// The same for people.
    pub text: String,
}

/// An identity that is not free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// worker or shard.
    pub class: &'static str,
    /// The number that ids carry.
    pub identity: u16,
    /// What the store says of it.
    pub state: State,
    /// Whoever has it, or had it.
    pub holder: Option<Held>,
    /// Highest timestamp that was ever granted, in Unix ms.
    pub ceiling_ms: u64,
    /// The same for people, in RFC 3339.
    pub ceiling: String,
}

/// What the store says of an identity that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Somebody holds it.
    Held,
    /// Whoever held it has not renewed in time; the next daemon that needs it takes it when it has cooled.
    Expired,
    /// Nobody holds it, but it was granted up to a time that has not come yet.
    Cooling,
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The name of its daemon.
    pub name: String,
    /// The run of its daemon.
    pub instance: Uuid,
    /// The shared memory that mints.
    pub boot_id: Uuid,
    /// First part of the token.
    pub epoch: u64,
    /// Second part.
    pub revision: u64,
    /// The epoch is not the cell's: another side, which this store does not renew.
    pub other_epoch: bool,
}

/// Everything that is not free; of one class only where one is given.
pub async fn list(config: &Config, only: Option<Class>) -> Result<Leases> {
    // Asked first, as `epoch show` does: what the server writes down after a look at the store is newer than the look.
    // Who holds what is told whether or not it is within reach.
    let anchors = anchors_of(config).await.map_err(|error| error.to_string());
    let Some(survey) = survey(config).await? else {
        return Ok(Leases::of_new_store());
    };
    let drained = server::drained(config).await?;
    Ok(Leases {
        drained,
        ..Leases::of(&survey, &anchors, only)
    })
}

/// The pool of workers; `None`: the store is new.
pub async fn pool(config: &Config) -> Result<Option<Pool>> {
    Ok(survey(config).await?.map(|survey| Pool::of(&survey)))
}

async fn survey(config: &Config) -> Result<Option<Survey>> {
    let surveyed = match open(config) {
        AnyStore::Postgres(mut store) => store.survey().await,
        AnyStore::Etcd(mut store) => store.survey().await,
    };
    surveyed.map_err(of_store)
}

impl Leases {
    fn of_new_store() -> Self {
        Self {
            cell_id: None,
            epoch: 0,
            sealed: None,
            server_not_asked: None,
            pool: None,
            drained: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// `anchors`: what the server remembers, or why that is not known.
    fn of(survey: &Survey, anchors: &std::result::Result<Vec<Anchor>, String>, only: Option<Class>) -> Self {
        let rows = |class| match class {
            Class::Worker => &survey.workers,
            Class::Shard => &survey.shards,
        };
        let classes = Class::ALL
            .into_iter()
            .filter(|class| only.is_none_or(|only| only == *class));
        let leases = classes.flat_map(|class| {
            let lease = move |row| Lease::of(class, row, survey.cell.epoch, survey.now);
            rows(class).iter().filter_map(lease)
        });
        Self {
            cell_id: Some(Uuid::from_u128(survey.cell.cell_id.0)),
            epoch: survey.cell.epoch.0,
            sealed: survey.sealed_because(anchors.as_deref().unwrap_or_default()),
            server_not_asked: anchors.as_ref().err().cloned(),
            pool: Some(Pool::of(survey)),
            drained: Vec::new(),
            leases: leases.collect(),
        }
    }

    /// For people. Neighbours that are alike share a line.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = match self.cell_id {
            None => return "the lease store is new: nothing was ever leased".to_owned(),
            Some(cell_id) => format!("cell {cell_id}, epoch {}", self.epoch),
        };
        if let Some(reason) = &self.sealed {
            let _ = write!(text, "\nsealed, nothing is granted or renewed: {reason}");
        }
        if let Some(reason) = &self.server_not_asked {
            let word = if self.sealed.is_some() { "sealed" } else { "open" };
            let _ = write!(
                text,
                "\n{word} by the store's own word; what the server remembers is not known: {reason}"
            );
        }
        if let Some(pool) = &self.pool {
            let _ = write!(text, "\nworker pool: {}", pool.text);
        }
        for drained in &self.drained {
            let _ = write!(text, "\nserver {}", drained.text());
        }
        if !self.leases.is_empty() {
            let _ = write!(text, "\n{}", self.lines());
        }
        text
    }

    fn lines(&self) -> Table {
        let mut table = plain_table();
        table.set_header([
            "class", "identity", "state", "holder", "token", "ceiling", "boot id",
        ]);
        for alike in self.leases.chunk_by(Lease::is_followed_by) {
            let [first, ..] = alike else { continue };
            let identities = match alike {
                [first, .., last] => format!("{}-{}", first.identity, last.identity),
                _ => first.identity.to_string(),
            };
            let of_holder = |text: fn(&Held) -> String| first.holder.as_ref().map_or("-".to_owned(), text);
            table.add_row([
                first.class.to_owned(),
                identities,
                first.state_text(),
                of_holder(|held| printable(&held.name)),
                of_holder(|held| format!("{}/{}", held.epoch, held.revision)),
                first.ceiling.clone(),
                of_holder(|held| held.boot_id.to_string()),
            ]);
        }
        table
    }
}

impl Lease {
    /// `None`: it is free.
    fn of(class: Class, row: &Row, epoch: Epoch, now: UnixMs) -> Option<Self> {
        Some(Self {
            class: class.name(),
            identity: row.identity.0,
            state: State::of(row, now)?,
            holder: row.holder.as_ref().map(|holder| Held::of(holder, epoch)),
            ceiling_ms: row.ceiling.0,
            ceiling: rfc3339(row.ceiling),
        })
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        let alike = Self {
            identity: next.identity,
            ..self.clone()
        };
        next.identity == self.identity + 1 && alike == *next
    }

    fn state_text(&self) -> String {
        let state = self.state;
        match &self.holder {
            Some(held) if held.other_epoch => format!("{state}, in another epoch"),
            _ => state.to_string(),
        }
    }
}

impl State {
    /// `None`: it is free.
    pub(super) fn of(row: &Row, now: UnixMs) -> Option<Self> {
        match &row.holder {
            Some(holder) if holder.expired => Some(Self::Expired),
            Some(_) => Some(Self::Held),
            None if row.ceiling >= now => Some(Self::Cooling),
            None => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held",
            Self::Expired => "expired",
            Self::Cooling => "cooling until the ceiling",
        })
    }
}

impl Held {
    /// `epoch`: that of the cell.
    pub(super) fn of(holder: &Holder, epoch: Epoch) -> Self {
        Self {
            name: holder.name.clone(),
            instance: Uuid::from_u128(holder.instance.0),
            boot_id: Uuid::from_u128(holder.boot_id.0),
            epoch: holder.token.epoch.0,
            revision: holder.token.revision.0,
            other_epoch: holder.token.epoch != epoch,
        }
    }
}

impl Pool {
    fn of(survey: &Survey) -> Self {
        let snapshot = Snapshot::new(survey.cell.clone(), survey.revision, survey.workers.clone());
        let occupancy = Occupancy::of(&snapshot, &Memory::new(), survey.now);
        Self {
            size: occupancy.size,
            held: occupancy.held,
            cooling: occupancy.cooling,
            free: occupancy.free(),
            pressure: match occupancy.pressure() {
                Pressure::Low => "low",
                Pressure::Warn => "warn",
                Pressure::Page => "page",
            },
            text: occupancy.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::lease::ledger::Cell;
    use idgen_core::lease::{
        BootId, CellId, EpochNonce, Identity, InstanceId, Revision, StoreIdentity, Token, Told,
    };

    /// 2026-11-29T22:40:06Z.
    const NOW: UnixMs = UnixMs(1_795_992_006_000);

    fn row(identity: u16, ceiling: UnixMs, holder: Option<(&str, u64, bool)>) -> Row {
        Row {
            identity: Identity(identity),
            generation: 1,
            ceiling,
            revision: Revision(9),
            holder: holder.map(|(name, epoch, expired)| Holder {
                instance: InstanceId(5),
                name: name.to_owned(),
                token: Token {
                    epoch: Epoch(epoch),
                    revision: Revision(9),
                },
                boot_id: BootId(6),
                expired,
            }),
        }
    }

    /// A store whose standby was promoted: the old side's holders are still there.
    fn survey(sealed: Option<&str>) -> Survey {
        let store = StoreIdentity::new("test/1").expect("a name");
        let (past, soon) = (NOW.saturating_sub(1), NOW.saturating_add(60_000));
        Survey {
            cell: Cell {
                cell_id: CellId(1),
                worker_format: "classic".to_owned(),
                epoch: Epoch(1),
                epoch_nonce: EpochNonce(1),
                epoch_since: past,
                identity: store.clone(),
                min_floor: UnixMs(0),
            },
            shard_min_floor: UnixMs(0),
            here: store,
            sealed_reason: sealed.map(str::to_owned),
            sealed_at: None,
            damage: None,
            known: Told::default(),
            revision: Revision(9),
            now: NOW,
            workers: vec![
                row(4, soon, Some(("old-primary", 0, false))),
                row(5, past, Some(("old-standby", 0, true))),
                row(600, soon, Some(("promoted", 1, false))),
                row(601, soon, None),
                row(602, past, None),
            ],
            shards: (16..20)
                .map(|n| row(n, soon, Some(("promoted\u{1b}[2J", 1, false))))
                .collect(),
            history: Vec::new(),
        }
    }

    #[test]
    fn both_sides_of_a_promotion_are_named_and_what_is_free_is_not() {
        let leases = Leases::of(&survey(None), &Ok(vec![]), Some(Class::Worker));
        let seen: Vec<_> = leases
            .leases
            .iter()
            .map(|lease| {
                let holder = lease.holder.as_ref();
                (
                    lease.identity,
                    lease.state,
                    holder.map(|held| (held.name.as_str(), held.other_epoch)),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (4, State::Held, Some(("old-primary", true))),
                (5, State::Expired, Some(("old-standby", true))),
                (600, State::Held, Some(("promoted", false))),
                (601, State::Cooling, None),
            ]
        );
        let pool = leases.pool.expect("a pool");
        assert_eq!((pool.size, pool.held, pool.cooling, pool.free), (512, 1, 1, 510));
        assert_eq!(pool.pressure, "low");
    }

    #[test]
    fn a_table_says_what_json_says_and_neighbours_share_a_line() {
        let text = Leases::of(&survey(Some("restored")), &Ok(vec![]), None).table();
        for part in [
            "epoch 1",
            "sealed, nothing is granted or renewed: restored",
            "worker pool: 2 of 512 identities taken (0 %): 1 held, 1 cooling",
            "old-primary",
            "held, in another epoch",
            "expired, in another epoch",
            "cooling until the ceiling",
            "16-19",
            "1/9",
            "2026-11-29T22:41:06.000Z",
            "00000000-0000-0000-0000-000000000006",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("602"), "free\n{text}");
        assert!(
            !text.contains('\u{1b}'),
            "a name that would clear the screen\n{text}"
        );
        let json =
            serde_json::to_value(Leases::of(&survey(None), &Ok(vec![]), Some(Class::Shard))).expect("JSON");
        assert_eq!(json["leases"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["leases"][0]["state"], "held");
    }

    #[test]
    fn what_the_server_remembers_seals_and_a_server_that_is_away_is_named() {
        let survey = survey(None);
        let later = Anchor::of(&survey.cell, Revision(survey.revision.0 + 1));
        let anchors = vec![later];
        let sealed = Leases::of(&survey, &Ok(anchors.clone()), None);
        assert_eq!(
            sealed.sealed,
            survey.sealed_because(&anchors),
            "as epoch show says it"
        );
        assert!(sealed.table().contains("it was restored"), "{}", sealed.table());
        assert!(!sealed.table().contains("own word"), "{}", sealed.table());
        let text = Leases::of(&survey, &Err("postgres is away".to_owned()), None).table();
        let told = "open by the store's own word; what the server remembers is not known: postgres is away";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn a_new_store_has_nothing_to_show() {
        let new = Leases::of_new_store();
        assert_eq!(new.table(), "the lease store is new: nothing was ever leased");
    }
}
