//! Ids against the windows, deadlines and fences that they were minted under.

use super::grants::{Grant, Grants, Key};
use super::record::{Fence, History, Moment, Piece, fields};
use super::verdict::{Invariant, Verdict};
use crate::clock::{BootMs, UnixMs};
use crate::lease::{BootId, Class, Token};
use std::collections::HashMap;

/// Which grant each piece of ids was minted under; by the index of the piece.
#[derive(Debug)]
pub struct Minted {
    under: Vec<Option<usize>>,
    /// Lowest and highest time minted under each grant.
    spans: Vec<Option<(UnixMs, UnixMs)>>,
}

impl Minted {
    /// Finds them all.
    #[must_use]
    pub fn attribute(history: &History, grants: &Grants) -> Self {
        let mut spans: Vec<Option<(UnixMs, UnixMs)>> = vec![None; grants.all().len()];
        let under = history.pieces.iter().map(|piece| {
            let statement = history.statement(*piece);
            let (ms, identity) = fields(statement.class, piece.start);
            let grant = grants.of_id((statement.class, identity), statement.boot_id, ms)?;
            let span = spans[grant].get_or_insert((ms, ms));
            *span = (span.0.min(ms), span.1.max(ms));
            Some(grant)
        });
        let under = under.collect();
        Self { under, spans }
    }

    fn pieces<'a>(
        &'a self,
        history: &'a History,
        grants: &'a Grants,
    ) -> impl Iterator<Item = (Piece, Option<&'a Grant>)> + 'a {
        let grant = |index: &Option<usize>| index.map(|index| &grants.all()[index]);
        history.pieces.iter().copied().zip(self.under.iter().map(grant))
    }
}

/// I2: the time of every id lies in a window of its memory that was committed before the id was returned.
#[must_use]
pub fn inside_a_committed_window(history: &History, grants: &Grants, minted: &Minted) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Committed);
    for (piece, grant) in minted.pieces(history, grants) {
        let statement = history.statement(piece);
        let (ms, identity) = fields(statement.class, piece.start);
        let allowed = grant.and_then(|grant| grant.allowed(ms));
        let broken = match allowed {
            Some(raised) if raised.after <= statement.returned => None,
            Some(_) => Some("a window that was committed later"),
            None if grant.is_some() => Some("no window of its memory"),
            None => Some("no grant to its memory"),
        };
        verdict.keep(u64::from(piece.len) - 1);
        verdict.judge(broken.map(|why| {
            move || {
                format!(
                    "id {} ({} {identity}, {} ms) of server {} lies in {why}",
                    piece.start, statement.class, ms.0, statement.server
                )
            }
        }));
    }
    verdict
}

/// I3: what is minted of an identity under one grant lies above what was minted under those before.
#[must_use]
pub fn windows_in_turn(grants: &Grants, minted: &Minted) -> Verdict {
    let mut verdict = Verdict::new(Invariant::InTurn);
    let mut highest: HashMap<Key, (UnixMs, Token)> = HashMap::new();
    for (grant, span) in grants.all().iter().zip(&minted.spans) {
        let Some((low, high)) = *span else { continue };
        let before = highest.get(&grant.key).copied().filter(|(ms, _)| *ms >= low);
        verdict.judge(before.map(|(ms, token)| {
            move || {
                format!(
                    "{} {}: {} ms under token {}, after {} ms under token {token}",
                    grant.key.0, grant.key.1, low.0, grant.token, ms.0
                )
            }
        }));
        let entry = highest.entry(grant.key).or_insert((high, grant.token));
        if high >= entry.0 {
            *entry = (high, grant.token);
        }
    }
    verdict
}

/// I5: no id of a call that began after the deadline of its token. Judged where a daemon's log names the deadline.
#[must_use]
pub fn before_the_deadline(history: &History, grants: &Grants, minted: &Minted) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Deadline);
    let mut deadlines: HashMap<(Class, Token), BootMs> = HashMap::new();
    for told in &history.deadlines {
        let latest = deadlines.entry((told.class, told.token)).or_default();
        *latest = told.deadline.max(*latest);
    }
    for (piece, grant) in minted.pieces(history, grants) {
        let statement = history.statement(piece);
        let Some(deadline) = grant.and_then(|grant| deadlines.get(&(statement.class, grant.token))) else {
            continue;
        };
        let invoked = statement.invoked.boot_ms();
        let late = Some(invoked.since(*deadline)).filter(|late_ms| *late_ms > 0);
        verdict.judge(late.map(|late_ms| {
            move || {
                let (server, id) = (statement.server, piece.start);
                format!("id {id} of server {server}: called {late_ms} ms after the deadline")
            }
        }));
    }
    verdict
}

/// I6: no id of a call that began after its token was fenced, and none above what the fence or the release said.
#[must_use]
pub fn not_after_a_fence(history: &History, grants: &Grants, minted: &Minted) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Fenced);
    let mut fences: HashMap<(Key, BootId, Token), Fence> = HashMap::new();
    for fence in &history.fences {
        let key = ((fence.class, fence.identity), fence.boot_id, fence.token);
        // Asked twice, a server answers the same; the first answer binds.
        fences.entry(key).or_insert(*fence);
    }
    for (piece, grant) in minted.pieces(history, grants) {
        let Some(grant) = grant else { continue };
        let Some(fence) = fences.get(&(grant.key, grant.boot_id, grant.token)) else {
            continue;
        };
        let statement = history.statement(piece);
        let (ms, _) = fields(statement.class, piece.start);
        let broken = broken_fence(fence, ms, statement.invoked);
        verdict.judge(broken.map(|why| {
            move || {
                let (server, id) = (statement.server, piece.start);
                format!("id {id} of server {server}, token {}: {why}", grant.token)
            }
        }));
    }
    verdict
}

fn broken_fence(fence: &Fence, ms: UnixMs, invoked: Moment) -> Option<String> {
    if ms > fence.last {
        return Some(format!("{} ms, but the fence said {}", ms.0, fence.last.0));
    }
    (invoked > fence.at).then(|| format!("called {} ms after the fence", invoked.since_ms(fence.at)))
}
