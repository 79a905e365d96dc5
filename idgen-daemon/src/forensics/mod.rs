//! After an incident: `idgenctl whois` says what an id is and which grant it comes from, `idgenctl impact` which tables and ids
//! something that went wrong may have touched.
//!
//! What Postgres still has is asked there; what has left it is asked of the archive. What did not answer is said.

mod impact;
#[cfg(feature = "outbox")]
mod in_archive;
mod in_tables;
mod in_trail;
mod show;

pub use self::impact::{Impact, ImpactWish, Touched, impact};
pub use self::show::{impact_text, whois_text};

use self::in_tables::Databases;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::host_clock;
use idgen_core::clock::UnixMs;
use idgen_core::forensics::{Asked, Held, Tenure, held_at, tenures};
use idgen_core::format::Format;
use idgen_core::utc::show_us;
use idgen_core::uuid as rfc9562;
use serde::Serialize;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Clocks may be ahead by so much; an id of later is none yet.
const AHEAD_MS: u64 = 3_600_000;
/// A number whose time lies so soon behind the epoch of its format is as a rule no snowflake: it is a small number.
const SMALL_MS: u64 = 86_400_000;

/// What is wished for.
#[derive(Clone, Debug, Default)]
pub struct WhoisWish {
    /// It is a value of this tag.
    pub tag: Option<String>,
    /// It is a snowflake of this format.
    pub format: Option<String>,
    /// Look at every event of the tables and of the archive, and not only where an index leads: then a second grant is found too.
    pub whole: bool,
}

/// All that is known of an id.
#[derive(Clone, Debug, Serialize)]
pub struct Whois {
    /// As it was asked for.
    pub id: String,
    /// What it may be. Nothing in a 64-bit number says whether it is a snowflake or a value of a segment.
    pub readings: Vec<Reading>,
    /// Where was looked, and what came of it.
    pub looked: Vec<Looked>,
    /// What it comes to.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is known where it comes from, or it is of a kind that needs no grant.
    Found,
    /// It was granted twice, or minted without a lease.
    Finding,
    /// It is not known where it comes from.
    Inconclusive,
}

/// A place that was asked.
#[derive(Clone, Debug, Serialize)]
pub struct Looked {
    /// Which.
    pub place: String,
    /// What it said.
    pub outcome: String,
    /// It did not answer: what it has is not known.
    pub failed: bool,
}

impl Looked {
    fn new(place: impl Into<String>, outcome: impl std::fmt::Display) -> Self {
        Self {
            place: place.into(),
            outcome: outcome.to_string(),
            failed: false,
        }
    }

    fn failed(place: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self {
            failed: true,
            ..Self::new(place, why)
        }
    }

    /// What a place has answered, and `tell` makes of it.
    fn at<A, T>(
        place: impl Into<String>,
        answer: Result<A>,
        tell: impl FnOnce(A) -> (String, T),
    ) -> (Self, Option<T>) {
        match answer {
            Ok(answer) => {
                let (outcome, told) = tell(answer);
                (Self::new(place, outcome), Some(told))
            }
            Err(error) => (Self::failed(place, error), None),
        }
    }
}

/// What an id may be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Reading {
    /// A snowflake.
    Snowflake(Box<Snowflake>),
    /// A value of a segment.
    Segment(Box<Range>),
    /// A UUID.
    Uuid {
        /// Its version; `None`: none of RFC 9562.
        version: Option<u8>,
        /// The time in it.
        at: Option<String>,
    },
    /// A public id, or a sealed one that no key here opens.
    Public {
        /// What it begins with.
        prefix: String,
        /// Who has registered that, in which database.
        registered: Vec<String>,
        /// Why it was not opened.
        not_opened: Vec<String>,
    },
    /// A sealed id.
    Sealed {
        /// What it begins with.
        prefix: String,
        /// What is in it.
        id: i64,
        /// Which server has opened it: its key file.
        database: String,
    },
}

/// A number read as a snowflake.
#[derive(Clone, Debug, Serialize)]
pub struct Snowflake {
    /// In which format.
    pub format: String,
    /// The time in it.
    pub at: String,
    /// `worker 5` or `shard 7`.
    pub identity: String,
    /// Within the millisecond.
    pub sequence: u64,
    /// Where the format has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<u64>,
    /// Where the format has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Whose it was.
    pub held: HeldBy,
}

/// Who held an identity.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum HeldBy {
    /// Proved by the ceilings of both sides.
    Holder(HolderShown),
    /// By the moments of grants: a bound is not in the trail.
    Probably(HolderShown),
    /// No lease covers that time.
    Nobody {
        /// Who held it before.
        before: HolderShown,
    },
    /// The trail does not reach so far back, or there is none.
    Unknown,
}

impl HeldBy {
    /// What says most comes first.
    const fn rank(&self) -> u8 {
        match self {
            Self::Holder(_) => 0,
            Self::Probably(_) => 1,
            Self::Nobody { .. } => 2,
            Self::Unknown => 3,
        }
    }
}

/// A holder as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct HolderShown {
    /// Name of the daemon.
    pub name: String,
    /// Its run.
    pub instance: String,
    /// Its fencing token.
    pub token: String,
    /// Number of the grant in the trail.
    pub event: i64,
    /// When it was granted.
    pub granted_at: String,
    /// Its times are above this; 1970: nobody had it before.
    pub above: Option<String>,
    /// Its times are up to this.
    pub up_to: Option<String>,
    /// How it ended; `None`: it has not, as far as is known.
    pub ended: Option<String>,
    /// Where that is written.
    pub found_in: String,
}

impl HolderShown {
    fn of(tenure: &Tenure, found_in: &str) -> Self {
        Self {
            name: tenure.holder.clone(),
            instance: tenure.instance.clone(),
            token: tenure.token.clone(),
            event: tenure.seq,
            granted_at: show_ms(tenure.granted_at),
            above: tenure.above.map(show_ms),
            up_to: tenure.up_to.map(show_ms),
            ended: tenure
                .ended
                .as_ref()
                .map(|(how, at)| format!("{how} at {}", show_ms(*at))),
            found_in: found_in.to_owned(),
        }
    }
}

/// An event that is about an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The tag.
    pub tag: String,
    /// Its space.
    pub space: String,
    /// `segment.grant`: the id was granted. Others have passed over it.
    pub event: String,
    /// First id.
    pub lo: i64,
    /// Last id.
    pub hi: i64,
    /// When it was recorded.
    pub at: String,
    /// The database that recorded it,
    pub source: String,
    /// ... and its number there.
    pub event_id: i64,
    /// Fencing token; `None`: the authority was local.
    pub token: Option<String>,
    /// Transaction.
    pub tx: Option<String>,
    /// What else is known.
    pub payload: serde_json::Value,
    /// Where that is written.
    pub found_in: String,
}

impl Range {
    fn is_grant(&self) -> bool {
        self.event == "segment.grant"
    }

    /// What makes it this event: a database that has lost commits gives a number again.
    fn key(&self) -> (String, i64, String) {
        (self.source.clone(), self.event_id, self.at.clone())
    }
}

fn show_ms(at: UnixMs) -> String {
    let us = i64::try_from(at.0).unwrap_or(i64::MAX).saturating_mul(1_000);
    let text = show_us(us);
    // Of six digits the last three are zeros.
    format!("{}Z", text.trim_end_matches("000Z"))
}

/// Tells all that is known of an id.
///
/// # Errors
/// It is none, or the configuration reaches nothing at all.
pub async fn whois(config: &Config, text: &str, wish: &WhoisWish) -> Result<Whois> {
    let asked = Asked::parse(text).map_err(|error| {
        Error::usage(format!("\"{text}\": {error}")).with_hint(
            "ids are decimal numbers, UUIDs, 13 characters of idgen_encode(), or PREFIX_ and 22 characters",
        )
    })?;
    let mut looking = Looking {
        config,
        wish,
        databases: Databases::open(config).await?,
        #[cfg(feature = "outbox")]
        archive: tokio::sync::OnceCell::new(),
        looked: Vec::new(),
        readings: Vec::new(),
    };
    let verdict = match asked {
        Asked::Number(id) => looking.number(id).await?,
        Asked::Uuid(bytes) => looking.uuid(bytes),
        Asked::Outside { prefix, .. } => looking.outside(text.trim(), &prefix).await?,
    };
    Ok(Whois {
        id: text.trim().to_owned(),
        readings: looking.readings,
        looked: looking.looked,
        verdict: verdict.0,
        reason: verdict.1,
    })
}

struct Looking<'c> {
    config: &'c Config,
    wish: &'c WhoisWish,
    databases: Databases,
    #[cfg(feature = "outbox")]
    archive: tokio::sync::OnceCell<Option<in_archive::Search>>,
    looked: Vec<Looked>,
    readings: Vec<Reading>,
}

impl Looking<'_> {
    fn uuid(&mut self, bytes: [u8; 16]) -> (Verdict, String) {
        self.readings.push(Reading::Uuid {
            version: rfc9562::version(&bytes),
            at: rfc9562::timestamp_us(&bytes).map(show_us),
        });
        let id = Uuid::from_bytes(bytes);
        (
            Verdict::Found,
            format!("{id} rests on its random bits: nobody was granted it"),
        )
    }

    async fn outside(&mut self, text: &str, prefix: &str) -> Result<(Verdict, String)> {
        let opened = self.databases.open_sealed(text, prefix, &mut self.looked).await;
        let Some((id, database)) = opened.found else {
            let registered = self.databases.registered(prefix, &mut self.looked).await;
            let is_known = !registered.is_empty();
            self.readings.push(Reading::Public {
                prefix: prefix.to_owned(),
                registered,
                not_opened: opened.refused,
            });
            return Ok(match is_known {
                true => (
                    Verdict::Found,
                    format!(
                        "a public id with the prefix {prefix} rests on 128 random bits: nobody was granted it"
                    ),
                ),
                false => (
                    Verdict::Inconclusive,
                    format!("no database here has registered the prefix {prefix}, and no key here opens it"),
                ),
            });
        };
        self.readings.push(Reading::Sealed {
            prefix: prefix.to_owned(),
            id,
            database,
        });
        self.number(id).await
    }

    async fn number(&mut self, id: i64) -> Result<(Verdict, String)> {
        let grants = self.grants(id).await?;
        let mut seen = BTreeSet::new();
        let granted: Vec<_> = grants
            .iter()
            .filter(|range| range.is_grant() && seen.insert(range.key()))
            .map(|range| (range.space.clone(), range.tag.clone()))
            .collect();
        let twice = granted
            .iter()
            .find(|axis| granted.iter().filter(|other| other == axis).count() > 1)
            .cloned();
        self.readings
            .extend(grants.into_iter().map(|range| Reading::Segment(Box::new(range))));
        let held = match self.wish.tag.is_some() {
            true => None,
            false => self.snowflakes(id, !granted.is_empty()).await?,
        };
        if let Some((space, tag)) = twice {
            let reason = format!("the tag {tag} of space {space} has granted it more than once");
            return Ok((Verdict::Finding, reason));
        }
        Ok(match &granted[..] {
            [] => self.judged(held),
            [(_, tag)] => (Verdict::Found, format!("it was granted to the tag {tag}")),
            many => (
                Verdict::Found,
                format!(
                    "as a value of a segment it was granted to {}: say which with --tag",
                    tags_text(many)
                ),
            ),
        })
    }

    /// What a number comes to that is no value of a segment.
    fn judged(&self, held: Option<HeldBy>) -> (Verdict, String) {
        let failed = self.looked.iter().any(|looked| looked.failed);
        match held {
            Some(HeldBy::Holder(holder)) => (
                Verdict::Found,
                format!(
                    "it was minted under the lease {} of {}",
                    holder.token, holder.name
                ),
            ),
            Some(HeldBy::Probably(holder)) => (
                Verdict::Found,
                format!(
                    "by the moments of grants it was minted under the lease {} of {}",
                    holder.token, holder.name
                ),
            ),
            Some(HeldBy::Nobody { .. }) if !failed => (
                Verdict::Finding,
                "as a snowflake it has a time that no lease of its identity covers".to_owned(),
            ),
            _ if failed => (
                Verdict::Inconclusive,
                "not everything that may know it has answered".to_owned(),
            ),
            _ => (
                Verdict::Inconclusive,
                "neither a grant nor a lease is known that it could come from".to_owned(),
            ),
        }
    }

    async fn grants(&mut self, id: i64) -> Result<Vec<Range>> {
        let sought = (id, self.wish.tag.as_deref());
        let found = self
            .databases
            .grants(sought, self.wish.whole, &mut self.looked)
            .await;
        #[cfg(feature = "outbox")]
        let found = self.with_archived(id, found).await;
        Ok(found)
    }

    /// Asks the archive too, where Postgres knows of no grant, or where everything is to be read.
    #[cfg(feature = "outbox")]
    async fn with_archived(&mut self, id: i64, mut found: Vec<Range>) -> Vec<Range> {
        let is_enough = !self.wish.whole && found.iter().any(Range::is_grant);
        if !is_enough && let Some(archive) = self.archive().await {
            let there = archive
                .grants(id, self.wish.tag.as_deref(), self.wish.whole)
                .await;
            let known: BTreeSet<_> = found.iter().map(Range::key).collect();
            let there = self.take(there).unwrap_or_default();
            found.extend(there.into_iter().filter(|range| !known.contains(&range.key())));
        }
        found
    }

    /// Opened when somebody wants it.
    #[cfg(feature = "outbox")]
    async fn archive(&self) -> Option<&in_archive::Search> {
        let open = || in_archive::Search::open(self.config);
        self.archive.get_or_init(open).await.as_ref()
    }

    /// What a place has said, or nothing.
    fn take<T>(&mut self, outcome: (Looked, Option<T>)) -> Option<T> {
        self.looked.push(outcome.0);
        outcome.1
    }

    /// Reads the number in every format that it may be in, and keeps the readings that say most: where one of them leads to a
    /// holder, those that lead nowhere are chance. Returns who held the best of them. `is_value`: it is a value of a segment,
    /// so a strange time says nothing.
    async fn snowflakes(&mut self, id: i64, is_value: bool) -> Result<Option<HeldBy>> {
        let formats = self.databases.formats(self.wish.format.as_deref()).await?;
        let mut read: Vec<Snowflake> = Vec::new();
        for format in formats {
            let Some(parts) = format
                .parse(id)
                .filter(|parts| self.may_be(&format, parts.unix_ms))
            else {
                continue;
            };
            let class = if parts.is_shard { "shard" } else { "worker" };
            let identity = format!("{class} {}", parts.node);
            let held = self.held(&identity, parts.unix_ms).await?;
            read.push(Snowflake {
                format: format.name.as_str().to_owned(),
                at: show_ms(parts.unix_ms),
                identity,
                sequence: parts.seq,
                region: parts.region,
                version: parts.version,
                held,
            });
        }
        let is_held = |of: &Snowflake| matches!(of.held, HeldBy::Holder(_) | HeldBy::Probably(_));
        if is_value || read.iter().any(is_held) {
            read.retain(is_held);
        }
        // The proved one first; where there is none, that which nobody has held.
        read.sort_by_key(|of| of.held.rank());
        let best = read.first().map(|of| of.held.clone());
        let read = read.into_iter().map(|of| Reading::Snowflake(Box::new(of)));
        self.readings.extend(read);
        Ok(best)
    }

    fn may_be(&self, format: &Format, at: UnixMs) -> bool {
        let is_asked = self.wish.format.is_some();
        let is_small = at.0 < format.epoch.0.saturating_add(SMALL_MS);
        is_asked || (!is_small && at.0 <= host_clock().0.saturating_add(AHEAD_MS))
    }

    async fn held(&mut self, identity: &str, at: UnixMs) -> Result<HeldBy> {
        let trail = in_trail::read(self.config, identity).await;
        let steps = self.take(trail).unwrap_or_default();
        let found = tenures(&steps);
        let held = shown(held_at(&found, at), "idgen.lease_event");
        #[cfg(feature = "outbox")]
        if matches!(held, HeldBy::Unknown)
            && let Some(archive) = self.archive().await
        {
            let there = archive.steps(identity, at, self.wish.whole).await;
            let steps = self.take(there).unwrap_or_default();
            return Ok(shown(held_at(&tenures(&steps), at), "the archive"));
        }
        Ok(held)
    }
}

/// Small numbers are values of many tags.
fn tags_text(axes: &[(String, String)]) -> String {
    let count = match axes.len() {
        in_tables::EVENTS_MAX.. => format!("{} tags or more", in_tables::EVENTS_MAX),
        count => format!("{count} tags"),
    };
    let named: Vec<&str> = axes.iter().map(|(_, tag)| tag.as_str()).take(3).collect();
    let more = if axes.len() > named.len() { ", …" } else { "" };
    format!("{count} ({}{more})", named.join(", "))
}

fn shown(held: Held<'_>, found_in: &str) -> HeldBy {
    match held {
        Held::By(tenure) => HeldBy::Holder(HolderShown::of(tenure, found_in)),
        Held::Probably(tenure) => HeldBy::Probably(HolderShown::of(tenure, found_in)),
        Held::Nobody { before } => HeldBy::Nobody {
            before: HolderShown::of(before, found_in),
        },
        Held::Unknown => HeldBy::Unknown,
    }
}
