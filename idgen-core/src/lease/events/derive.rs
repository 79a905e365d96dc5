//! What a commit did, from its keys before and after it.

use super::super::token::{Epoch, InstanceId};
use super::place::{HighWater, Holding, Ordered, Place, Value};
use super::record::{Detail, Finding, Kind};
use crate::clock::UnixMs;

/// Of a TTL that a store counts and somebody else adds up, so much must be left for a holder to be gone too early: their
/// clocks, and the way between.
const EARLY_MARGIN_OF_TTL: u64 = 5;
/// An etcd lease is granted by one request and the holder put on it by the next.
const EARLY_MARGIN_MS: u64 = 2_000;

/// What happened to one subject; nothing: it was renewed, or something of no interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) kind: Kind,
    pub(super) finding: Option<Finding>,
    pub(super) detail: Detail,
    /// It had happened before the commit: the version of the subject is the one before.
    pub(super) beforehand: bool,
    /// Whose holder was removed early, by nobody knows whom.
    pub(super) suspect: Option<InstanceId>,
}

impl Deed {
    pub(super) fn new(kind: Kind, detail: Detail) -> Self {
        Self {
            kind,
            finding: None,
            detail,
            beforehand: false,
            suspect: None,
        }
    }

    pub(super) fn found(self, finding: Option<Finding>) -> Self {
        Self {
            finding: self.finding.or(finding),
            ..self
        }
    }
}

/// One key in a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'c> {
    pub(super) before: Option<&'c Value>,
    /// `None`: it was deleted.
    pub(super) after: Option<&'c Value>,
}

/// The keys of an identity in a commit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityTurn<'c> {
    /// `None`: it did not change.
    pub(super) high_water: Option<Turn<'c>>,
    /// `None`: it did not change.
    pub(super) holder: Option<Turn<'c>>,
    /// As it is where it did not change.
    pub(super) resting_holder: Option<&'c Value>,
    /// An order that was given in the same commit.
    pub(super) order: Option<&'c Ordered>,
    /// The order is of a request that was used in the same commit.
    pub(super) approved: bool,
    /// When the holder was put last, as far as is known; where the store does not say when it ends.
    pub(super) put_at: Option<UnixMs>,
    /// Now.
    pub(super) now: UnixMs,
}

fn holding(value: Option<&Value>) -> Option<&Holding> {
    match value {
        Some(Value::Holding(holding)) => Some(holding),
        _ => None,
    }
}

fn high_water(value: Option<&Value>) -> Option<&HighWater> {
    match value {
        Some(Value::HighWater(high_water)) => Some(high_water),
        _ => None,
    }
}

/// So many ms before its time; `None`: its time is over, or nobody can tell.
pub(super) fn early_ms(held: &Holding, put_at: Option<UnixMs>, now: UnixMs) -> Option<u64> {
    let ends = match (held.expires_at, held.ttl_ms) {
        (Some(expires_at), _) => expires_at,
        (None, Some(ttl_ms)) => {
            // Whichever says less: clocks may be ahead, and what is read late was put earlier.
            let put_at = [put_at, held.put_at].into_iter().flatten().min()?;
            let margin = ttl_ms / EARLY_MARGIN_OF_TTL + EARLY_MARGIN_MS;
            put_at.saturating_add(ttl_ms.saturating_sub(margin))
        }
        (None, None) => return None,
    };
    (ends > now).then(|| ends.0 - now.0)
}

fn of_holder(held: &Holding) -> Detail {
    Detail::default()
        .text("holder", &held.name)
        .text("instance", &format!("{:032x}", held.instance.0))
        .text("token", &held.token.to_string())
}

fn with_high_water(detail: Detail, high_water: Option<&HighWater>) -> Detail {
    match high_water {
        Some(high_water) => detail
            .number("ceiling_ms", high_water.ceiling.0)
            .number("generation", high_water.generation),
        None => detail,
    }
}

/// Of a worker or shard.
pub(super) fn identity(turn: &IdentityTurn<'_>) -> Vec<Deed> {
    let was = turn.high_water.and_then(|turn| high_water(turn.before));
    let is = turn.high_water.and_then(|turn| high_water(turn.after));
    if let Some(Turn { after: None, .. }) = turn.high_water {
        let detail = with_high_water(Detail::default(), was);
        return vec![Deed::new(Kind::Deleted, detail).found(Some(Finding::KeyDeleted))];
    }
    let turns = [turn.high_water, turn.holder];
    if turns
        .into_iter()
        .flatten()
        .any(|turn| turn.after == Some(&Value::Opaque))
    {
        return unreadable(&turns);
    }
    let held = match turn.holder {
        Some(turn) => holding(turn.before),
        None => holding(turn.resting_holder),
    };
    let holds = match turn.holder {
        Some(turn) => holding(turn.after),
        None => held,
    };
    match (held, holds) {
        (before, Some(new)) if before.is_none_or(|before| before.token != new.token) => {
            granted(turn, before, new, (was, is))
        }
        (_, Some(new)) => renewed(turn, new, (was, is)),
        (Some(old), None) => vec![left(turn, old, (was, is))],
        (None, None) => alone(turn, (was, is)),
    }
}

/// Told once: a later release may renew it so all the time.
fn unreadable(turns: &[Option<Turn<'_>>]) -> Vec<Deed> {
    let was_so = turns
        .iter()
        .flatten()
        .any(|turn| turn.before == Some(&Value::Opaque));
    if was_so {
        return Vec::new();
    }
    vec![Deed::new(Kind::Changed, Detail::default()).found(Some(Finding::Unreadable))]
}

type HighWaters<'c> = (Option<&'c HighWater>, Option<&'c HighWater>);

fn granted(turn: &IdentityTurn<'_>, held: Option<&Holding>, new: &Holding, hw: HighWaters<'_>) -> Vec<Deed> {
    let (was, is) = hw;
    let mut deeds: Vec<Deed> = held
        .into_iter()
        .flat_map(|held| overtaken(turn, held, new.instance))
        .collect();
    let robbed = held
        .is_some_and(|held| held.instance != new.instance && early_ms(held, turn.put_at, turn.now).is_some());
    let finding = match (was, is) {
        _ if robbed => Some(Finding::Robbed),
        (_, None) => Some(Finding::HolderAlone),
        (Some(was), Some(is)) if is.generation != was.generation + 1 => Some(Finding::GenerationSkipped),
        (Some(was), Some(is)) if is.ceiling <= was.ceiling => Some(Finding::CeilingFell),
        _ => None,
    };
    let detail = with_high_water(of_holder(new), is);
    // Where its window begins, at the earliest.
    let detail = match was {
        Some(was) => detail.number("above_ms", was.ceiling.0),
        None => detail,
    };
    deeds.push(Deed::new(Kind::Granted, detail).found(finding));
    deeds
}

/// A holder whose place another one takes: its time had ended before, unless it is the same daemon.
fn overtaken(turn: &IdentityTurn<'_>, held: &Holding, by: InstanceId) -> Option<Deed> {
    let early = early_ms(held, turn.put_at, turn.now);
    let kind = match early {
        None => Kind::Expired,
        Some(_) if held.instance == by => return None,
        Some(_) => Kind::Removed,
    };
    Some(Deed {
        beforehand: true,
        ..Deed::new(kind, of_holder(held))
    })
}

fn renewed(turn: &IdentityTurn<'_>, new: &Holding, (was, is): HighWaters<'_>) -> Vec<Deed> {
    let changed =
        |finding| vec![Deed::new(Kind::Changed, with_high_water(of_holder(new), is)).found(Some(finding))];
    match (turn.high_water, turn.holder) {
        (Some(_), None) => changed(Finding::HighWaterAlone),
        (None, _) => changed(Finding::HolderAlone),
        (Some(_), Some(_)) => match (was, is) {
            (Some(was), Some(is)) if is.ceiling < was.ceiling => changed(Finding::CeilingFell),
            (Some(was), Some(is)) if is.generation != was.generation => changed(Finding::GenerationSkipped),
            _ => Vec::new(),
        },
    }
}

/// Nobody holds it any more.
fn left(turn: &IdentityTurn<'_>, old: &Holding, (was, is): HighWaters<'_>) -> Deed {
    let early = early_ms(old, turn.put_at, turn.now);
    let detail = with_high_water(of_holder(old), is);
    let forced = turn
        .order
        .filter(|order| order.token == old.token && turn.approved);
    if let Some(order) = forced {
        let detail = detail
            .text("by", &order.by)
            .text("reason", &order.reason)
            .maybe("request", order.request.as_deref());
        return Deed::new(Kind::ForceReleased, detail);
    }
    if let Some(is) = is.filter(|is| is.exact) {
        let fell = was.is_some_and(|was| is.ceiling > was.ceiling || is.generation != was.generation);
        return Deed::new(Kind::Released, detail).found(fell.then_some(Finding::GenerationSkipped));
    }
    let Some(early) = early else {
        return Deed::new(Kind::Expired, detail);
    };
    let deed = Deed::new(Kind::Removed, detail.number("early_ms", early));
    Deed {
        // Where the holder alone goes, it may be that its own daemon takes a new lease at once.
        suspect: is.is_none().then_some(old.instance),
        ..deed.found(is.map(|_| Finding::RemovedEarly))
    }
}

/// Somebody has written the high water of an identity that nobody holds.
fn alone(turn: &IdentityTurn<'_>, (was, is): HighWaters<'_>) -> Vec<Deed> {
    let made = was.is_none() && is.is_some_and(|is| is.generation == 0);
    if made || turn.high_water.is_none() {
        return Vec::new();
    }
    let detail = with_high_water(Detail::default(), is);
    vec![Deed::new(Kind::Changed, detail).found(Some(Finding::HighWaterAlone))]
}

/// Of a name.
pub(super) fn name(turn: Turn<'_>, put_at: Option<UnixMs>, now: UnixMs) -> Vec<Deed> {
    let (held, holds) = (holding(turn.before), holding(turn.after));
    let early = held.and_then(|held| early_ms(held, put_at, now));
    match (held, holds) {
        (Some(old), Some(new)) if old.token == new.token => Vec::new(),
        (old, Some(new)) => {
            let robbed = early.is_some() && old.is_some_and(|old| old.instance != new.instance);
            let before = old.filter(|_| early.is_none()).map(|old| Deed {
                beforehand: true,
                ..Deed::new(Kind::Expired, of_holder(old))
            });
            let taken = Deed::new(Kind::Taken, of_holder(new)).found(robbed.then_some(Finding::Robbed));
            before.into_iter().chain([taken]).collect()
        }
        (Some(old), None) => {
            let known = old.expires_at.is_some() || old.ttl_ms.is_some();
            let kind = if known && early.is_none() {
                Kind::Expired
            } else {
                Kind::GivenBack
            };
            vec![Deed::new(kind, of_holder(old))]
        }
        (None, None) => Vec::new(),
    }
}

/// The cell in a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellTurn<'c> {
    pub(super) turn: Turn<'c>,
    /// The epochs that are recorded in the same commit: which, by whom, and why.
    pub(super) epochs: &'c [(Epoch, &'c str, &'c str)],
    /// It uses a request.
    pub(super) approved: bool,
}

struct CellFields<'c> {
    epoch: Epoch,
    formats: &'c str,
    sealed: Option<&'c str>,
    approvals: Option<u32>,
}

fn cell_fields(value: Option<&Value>) -> Option<CellFields<'_>> {
    match value {
        Some(Value::Cell {
            epoch,
            formats,
            sealed,
            approvals,
        }) => Some(CellFields {
            epoch: *epoch,
            formats,
            sealed: sealed.as_deref(),
            approvals: *approvals,
        }),
        _ => None,
    }
}

/// Of the cell.
pub(super) fn cell(of: CellTurn<'_>) -> Vec<Deed> {
    let turn = of.turn;
    let (was, is) = (cell_fields(turn.before), cell_fields(turn.after));
    let Some(is) = is else {
        return gone(turn, true);
    };
    let detail = Detail::default()
        .number("epoch", is.epoch.0)
        .text("formats", is.formats);
    let Some(was) = was else {
        return vec![Deed::new(Kind::CellMade, detail)];
    };
    let mut deeds = Vec::new();
    deeds.extend(gate(&was, &is, of.approved));
    if is.epoch != was.epoch {
        deeds.push(advanced(of, &was, &is, detail));
        return deeds;
    }
    if is.formats != was.formats {
        deeds.push(Deed::new(
            Kind::FormatsSwitched,
            detail.clone().text("before", was.formats),
        ));
    }
    match (was.sealed, is.sealed) {
        (None, Some(reason)) => deeds.push(Deed::new(Kind::Sealed, detail.text("reason", reason))),
        (Some(_), None) => deeds.push(Deed::new(Kind::Changed, detail).found(Some(Finding::Unsealed))),
        _ => {}
    }
    deeds
}

/// How many people have to approve is changed by its own gate only.
fn gate(was: &CellFields<'_>, is: &CellFields<'_>, approved: bool) -> Option<Deed> {
    if was.approvals == is.approvals {
        return None;
    }
    let mut detail = Detail::default();
    for (name, approvals) in [("before", was.approvals), ("now", is.approvals)] {
        if let Some(approvals) = approvals {
            detail = detail.number(name, u64::from(approvals));
        }
    }
    let deed = Deed::new(Kind::ApprovalsSet, detail);
    Some(deed.found((!approved).then_some(Finding::Unapproved)))
}

fn advanced(of: CellTurn<'_>, was: &CellFields<'_>, is: &CellFields<'_>, detail: Detail) -> Deed {
    let recorded = of.epochs.iter().find(|(epoch, ..)| *epoch == is.epoch);
    let detail = detail
        .maybe("by", recorded.map(|(_, by, _)| *by))
        .maybe("reason", recorded.map(|(.., reason)| *reason));
    // Lowered in the same commit it is not lower for that.
    let needed = was.approvals.max(is.approvals).unwrap_or(1);
    let finding = match () {
        () if recorded.is_none() || is.epoch < was.epoch => Some(Finding::EpochUnrecorded),
        () if needed > 1 && !of.approved => Some(Finding::Unapproved),
        () => None,
    };
    Deed::new(Kind::EpochAdvanced, detail).found(finding)
}

/// Of anything else.
pub(super) fn other(place: &Place, turn: Turn<'_>) -> Vec<Deed> {
    let Some(value) = turn.after else {
        return gone(turn, !matches!(place, Place::Other(_) | Place::Order(..)));
    };
    match (value, turn.before) {
        (Value::Stripe { .. }, before) => stripe(before, value),
        (Value::Order(order), _) => ordered(order),
        // A row that is told as two keys, of which one has changed.
        (value, Some(before)) if value == before && *value != Value::Opaque => Vec::new(),
        (Value::Asked { by, reason, act }, None) => {
            let detail = Detail::default().text("by", by).text("reason", reason);
            vec![Deed::new(Kind::Asked, detail.text("act", act))]
        }
        (Value::Used { outcome, approved_by }, None) => {
            let detail = Detail::default().text("outcome", outcome);
            let detail = detail.text("approved_by", &approved_by.join(", "));
            vec![Deed::new(Kind::Used, detail)]
        }
        (Value::Assigned { server, by, reason }, _) => {
            let detail = Detail::default().text("server", server).text("by", by);
            vec![Deed::new(Kind::Assigned, detail.text("reason", reason))]
        }
        (Value::Drain { drained, by, reason }, _) => {
            let kind = if *drained { Kind::Drained } else { Kind::Resumed };
            let detail = Detail::default().text("by", by).text("reason", reason);
            vec![Deed::new(kind, detail)]
        }
        (Value::Ceiling(is), Some(Value::Ceiling(was))) if is < was => {
            vec![Deed::new(Kind::Changed, Detail::default()).found(Some(Finding::CeilingFell))]
        }
        (Value::Ceiling(_) | Value::Epoch { .. }, _) => Vec::new(),
        _ if matches!(place, Place::Bookkeeping(_)) => Vec::new(),
        _ => vec![Deed::new(Kind::Changed, Detail::default())],
    }
}

/// A part of a force-release is told with that.
fn ordered(order: &Ordered) -> Vec<Deed> {
    let detail = Detail::default()
        .text("token", &order.token.to_string())
        .text("by", &order.by)
        .text("reason", &order.reason)
        .maybe("request", order.request.as_deref());
    vec![Deed::new(Kind::Revoked, detail)]
}

fn gone(turn: Turn<'_>, stays: bool) -> Vec<Deed> {
    if turn.before.is_none() && turn.after.is_none() {
        return Vec::new();
    }
    vec![Deed::new(Kind::Deleted, Detail::default()).found(stays.then_some(Finding::KeyDeleted))]
}

fn stripe(before: Option<&Value>, after: &Value) -> Vec<Deed> {
    let Value::Stripe {
        server,
        by,
        joined,
        released,
    } = after
    else {
        return Vec::new();
    };
    let (was_joined, was_released) = match before {
        Some(Value::Stripe { joined, released, .. }) => (*joined, released.is_some()),
        _ => (false, true),
    };
    let detail = Detail::default().text("server", server).text("by", by);
    let kind = match released {
        Some(reason) if !was_released => {
            return vec![Deed::new(Kind::StripeReleased, detail.text("reason", reason))];
        }
        None if was_released => Kind::StripeClaimed,
        None if *joined && !was_joined => Kind::StripeJoined,
        // Claimed by the same server again, or joined anew.
        _ => Kind::Changed,
    };
    vec![Deed::new(kind, detail)]
}
