//! From an event to what the rules in `idgen_core::audit` want to know of it, and from their alarms to findings.

use super::super::finding::{Finding, FindingKind, Issuer};
use crate::event::{Event, LEASE_KIND, LeaseDetail};
use idgen_core::audit::{
    Alarm, Damaged, Heard, Ids, LeaseAlarm, LeaseDeed, Leased, Leases, Limits, Origin, Party, Probe, Span,
    Subject, Told,
};
use idgen_core::lease::{Class, Epoch, Identity, InstanceId, Revision, Token};
use idgen_core::utc::{parse_us, show_us};
use serde::Deserialize;
use uuid::Uuid;

/// Workers and shards of a few cells. Of those beyond it nothing is known.
const IDENTITIES: usize = 50_000;

/// An earlier record that an alarm does not name, or of which it does not know everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// All is known, or there is none.
    Settled,
    /// It was read there.
    At(i32, i64),
    /// Some grant of ids of these.
    GrantOf(i64, i64),
    /// The event that had this number of this source first.
    Number(i64),
}

/// What cannot be, and what is still to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// As far as it is known.
    pub finding: Finding,
    /// What its first issuer lacks.
    pub earlier: Earlier,
}

impl Hit {
    /// Nothing is to be looked up.
    #[must_use]
    pub const fn settled(finding: Finding) -> Self {
        Self {
            finding,
            earlier: Earlier::Settled,
        }
    }
}

/// What became of an event.
#[derive(Clone, Debug, Default)]
pub struct Became {
    /// Its content is new.
    pub is_news: bool,
    /// Gaps in its stream that it has shown: lines for the log.
    pub gaps: Vec<String>,
    /// What cannot be.
    pub hits: Vec<Hit>,
}

/// Everything that the probe knows.
pub struct Mind {
    /// Streams and ranges.
    pub probe: Probe,
    /// Leases.
    pub leases: Leases,
}

impl Mind {
    /// One that knows nothing, and may take so much.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            probe: Probe::new(limits),
            leases: Leases::new(IDENTITIES),
        }
    }

    /// Hands on everything that it knows.
    pub fn save(&self, to: &mut dyn FnMut(&[u8])) {
        self.probe.save(&self.leases, to);
    }

    /// The one that was saved.
    ///
    /// # Errors
    /// [`Damaged`]: these bytes are none.
    pub fn load(bytes: &[u8], limits: Limits) -> Result<Self, Damaged> {
        let (probe, leases) = Probe::load(bytes, limits, IDENTITIES)?;
        Ok(Self { probe, leases })
    }

    /// Tells it of the next event of the log; `None`: its time cannot be read, so it is no event.
    pub fn hear(&mut self, event: &Event, (partition, offset): (i32, i64)) -> Option<Became> {
        let at_us = parse_us(&event.at)?;
        let origin = Origin {
            source: event.source.as_u128(),
            event_id: event.event_id,
            partition,
            offset,
        };
        let told = Told {
            origin,
            space: event.space.as_u128(),
            tag: &event.tag,
            tag_seq: event.tag_seq,
            at_us,
            print: print(event),
            ids: ids(event),
        };
        let Heard {
            is_news,
            is_whole,
            alarms,
        } = self.probe.tell(told);
        let mut became = Became {
            is_news,
            ..Became::default()
        };
        for alarm in alarms {
            became.note(alarm, event, (partition, offset));
        }
        if is_news && event.is_of_lease() {
            let alarms = self.hear_lease(event, (origin, at_us), is_whole);
            let hits = alarms.iter().map(|alarm| Hit::settled(of_leases(alarm, event)));
            became.hits.extend(hits);
        }
        Some(became)
    }

    fn hear_lease(
        &mut self,
        event: &Event,
        (origin, at_us): (Origin, i64),
        is_whole: bool,
    ) -> Vec<LeaseAlarm> {
        let cell = event.space.as_u128();
        match lease_deed(event) {
            LeaseNews::Nothing => Vec::new(),
            LeaseNews::Unknown => {
                self.leases.forget(cell, None);
                Vec::new()
            }
            LeaseNews::Deed(class, identity, deed) => {
                let subject = Subject {
                    cell,
                    class,
                    identity,
                };
                let at_ms = u64::try_from(at_us / 1_000).unwrap_or(0);
                self.leases.tell(subject, (origin, at_ms), deed, is_whole)
            }
        }
    }
}

/// Of what a copy has in common with the event: not the payload, which may be a stub the first time.
fn print(event: &Event) -> u64 {
    // FNV-1a: against accidents, not against forgers, who would have to be in the topic for that.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ 0xff).wrapping_mul(0x0100_0000_01b3);
    };
    add(event.kind.as_bytes());
    add(&event.event_id.to_le_bytes());
    add(event.at.as_bytes());
    for number in [event.lo, event.hi] {
        add(&number.map_or([0; 9], with_mark));
    }
    let token = event.token.map(|token| (token.epoch, token.revision));
    for number in [token.map(|token| token.0), token.map(|token| token.1)] {
        add(&number.map_or([0; 9], with_mark));
    }
    add(event.tx.as_deref().unwrap_or_default().as_bytes());
    hash
}

fn with_mark(number: i64) -> [u8; 9] {
    let mut bytes = [1; 9];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn ids(event: &Event) -> Ids {
    let span = match (event.lo, event.hi) {
        (None, None) => None,
        (Some(lo), Some(hi)) => match Span::new(lo, hi) {
            None => return Ids::Malformed,
            span => span,
        },
        _ => return Ids::Malformed,
    };
    match (event.kind.as_str(), span) {
        ("segment.grant", None) => Ids::Malformed,
        ("segment.grant", Some(span)) => Ids::Granted(span),
        // Nothing of them is given back: what was granted, burned or skipped is granted to nobody again.
        ("segment.burn" | "segment.seek" | "segment.drop", Some(span)) => Ids::PassedOver(span),
        _ => Ids::None,
    }
}

/// Who has written an event.
pub(super) fn issuer(event: &Event, place: Option<(i32, i64)>) -> Issuer {
    Issuer {
        source: event.source.to_string(),
        service: Some(event.service.clone()),
        event_id: Some(event.event_id),
        at: Some(event.at.clone()),
        lo: event.lo,
        hi: event.hi,
        token: event.token.map(|token| token.to_string()),
        partition: place.map(|(partition, _)| partition),
        offset: place.map(|(_, offset)| offset),
    }
}

/// Where it lies is all that is known of it.
pub(super) fn at(origin: Origin, span: Option<Span>) -> Issuer {
    Issuer {
        source: Uuid::from_u128(origin.source).to_string(),
        event_id: Some(origin.event_id),
        lo: span.map(Span::lo),
        hi: span.map(Span::hi),
        partition: Some(origin.partition),
        offset: Some(origin.offset),
        ..Issuer::default()
    }
}

impl Became {
    fn note(&mut self, alarm: Alarm, event: &Event, place: (i32, i64)) {
        let tag = format!("tag \"{}\" of space {}", event.tag, event.space);
        let later = issuer(event, Some(place));
        let finding = |kind, common: Option<Span>, first, second, detail| Finding {
            kind,
            space: Some(event.space),
            tag: Some(event.tag.clone()),
            common: common.map(|span| (span.lo(), span.hi())),
            first,
            second,
            detail,
        };
        match alarm {
            Alarm::Missing {
                numbers,
                out_of_sight,
                ..
            } => self.gaps.push(match out_of_sight {
                false => format!("{tag}: events {numbers} have not come, and event {} has", event.tag_seq),
                true => format!("{tag}: events {numbers} were in a part of the topic that is gone, and so they are not judged"),
            }),
            Alarm::Malformed(_) => {
                let detail = format!("{} with tag_seq {}, and a range that cannot be", event.kind, event.tag_seq);
                let found = finding(FindingKind::Malformed, None, Some(later), None, detail);
                self.hits.push(Hit::settled(found));
            }
            Alarm::Overlap {
                earlier,
                common,
                ranges,
                ..
            } => {
                let first = earlier.map(|(span, origin)| at(origin, Some(span)));
                let detail = match ranges {
                    1 => format!("{}: ids {common} were granted before", event.kind),
                    _ => format!("{}: {ranges} more ranges of the ids {common} were granted before", event.kind),
                };
                self.hits.push(Hit {
                    earlier: match earlier {
                        Some((_, origin)) => Earlier::At(origin.partition, origin.offset),
                        None => Earlier::GrantOf(common.lo(), common.hi()),
                    },
                    finding: finding(FindingKind::Overlap, Some(common), first, Some(later), detail),
                });
            }
            Alarm::Rewritten { first, .. } => {
                let detail = format!("event {} of its stream has another content than before", event.tag_seq);
                self.hits.push(Hit {
                    earlier: match first {
                        Some(origin) => Earlier::At(origin.partition, origin.offset),
                        None => Earlier::Number(event.tag_seq),
                    },
                    finding: finding(
                        FindingKind::Rewritten,
                        None,
                        first.map(|origin| at(origin, None)),
                        Some(later),
                        detail,
                    ),
                });
            }
        }
    }
}

/// What the trail tells of an identity.
enum LeaseNews {
    /// It is of no interest here.
    Nothing,
    /// What is live in the cell, nobody knows.
    Unknown,
    /// This.
    Deed(Class, Identity, LeaseDeed),
}

#[derive(Deserialize)]
struct LeasePayload {
    subject: String,
    #[serde(default)]
    finding: Option<String>,
    #[serde(default)]
    detail: LeaseDetail,
}

fn lease_deed(event: &Event) -> LeaseNews {
    let kind = event.kind.strip_prefix(LEASE_KIND).unwrap_or_default();
    if matches!(kind, "began" | "gap" | "store_replaced") {
        return LeaseNews::Unknown;
    }
    let tells = [
        "granted",
        "released",
        "expired",
        "removed",
        "force_released",
        "deleted",
        "lost",
        "unexplained",
    ];
    if !tells.contains(&kind) {
        return LeaseNews::Nothing;
    }
    let Ok(payload) = serde_json::from_str::<LeasePayload>(event.payload.get()) else {
        // A stub, say.
        return LeaseNews::Unknown;
    };
    let Some((class, identity)) = identity_of(&payload.subject) else {
        return LeaseNews::Nothing;
    };
    let deed = match kind {
        "granted" => granted(&payload),
        "deleted" | "lost" | "unexplained" => None,
        ending => token_of(&payload).map(|token| LeaseDeed::Ended {
            token,
            ceiling_ms: payload.detail.ceiling_ms,
            exact: ending == "released",
            early_ms: payload.detail.early_ms,
        }),
    };
    LeaseNews::Deed(class, identity, deed.unwrap_or(LeaseDeed::Unknown))
}

fn identity_of(subject: &str) -> Option<(Class, Identity)> {
    let (class, identity) = subject.split_once(' ')?;
    let class = match class {
        "worker" => Class::Worker,
        "shard" => Class::Shard,
        _ => return None,
    };
    Some((class, Identity(identity.parse().ok()?)))
}

fn token_of(payload: &LeasePayload) -> Option<Token> {
    let (epoch, revision) = payload.detail.token.as_deref()?.split_once('/')?;
    Some(Token {
        epoch: Epoch(epoch.parse().ok()?),
        revision: Revision(revision.parse().ok()?),
    })
}

fn granted(payload: &LeasePayload) -> Option<LeaseDeed> {
    let detail = &payload.detail;
    let instance = u128::from_str_radix(detail.instance.as_deref()?, 16).ok()?;
    let lease = Leased {
        holder: detail.holder.clone().unwrap_or_default(),
        instance: InstanceId(instance),
        token: token_of(payload)?,
        generation: detail.generation?,
        ceiling_ms: detail.ceiling_ms?,
        above_ms: detail.above_ms,
    };
    Some(LeaseDeed::Granted {
        lease,
        robbed: payload.finding.as_deref() == Some("granted_while_held"),
    })
}

fn party(party: &Party, service: Option<&str>) -> Issuer {
    let at_us = i64::try_from(party.at_ms)
        .unwrap_or(i64::MAX)
        .saturating_mul(1_000);
    Issuer {
        service: service.map(str::to_owned),
        at: Some(show_us(at_us)),
        token: Some(party.lease.token.to_string()),
        ..at(party.origin, Some(party.window))
    }
}

fn of_leases(alarm: &LeaseAlarm, event: &Event) -> Finding {
    let Subject { class, identity, .. } = alarm.subject;
    let mut what = Vec::new();
    if alarm.same_grant {
        what.push(format!(
            "grant {} of it was made twice: the lease store has two histories",
            alarm.later.lease.generation
        ));
    }
    if alarm.both_live {
        what.push("the first lease had not ended when the second was granted".to_owned());
    }
    if let Some(common) = alarm.windows {
        what.push(format!("both may mint in the ms {common}"));
    }
    let name = |party: &Party| {
        let Leased { holder, instance, .. } = &party.lease;
        format!("{holder} ({})", Uuid::from_u128(instance.0))
    };
    let (earlier, later) = (name(&alarm.earlier), name(&alarm.later));
    Finding {
        kind: FindingKind::LeaseOverlap,
        space: None,
        tag: Some(format!("{class}/{identity}")),
        common: alarm.windows.map(|span| (span.lo(), span.hi())),
        first: Some(party(&alarm.earlier, None)),
        second: Some(party(&alarm.later, Some(&event.service))),
        detail: format!(
            "{class} {identity} of {earlier} and of {later}: {}",
            what.join("; ")
        ),
    }
}

#[cfg(test)]
mod tests;
