//! The ids by themselves.

use super::grants::Key;
use super::record::{History, Moment, Piece, Statement, fields};
use super::verdict::{Invariant, Verdict};
use crate::lease::{BootId, Class};
use std::collections::HashMap;

/// I1: no id twice, over all servers, sessions and restores.
#[must_use]
pub fn no_id_twice(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Unique);
    for class in Class::ALL {
        let mut pieces: Vec<Piece> = history.pieces.clone();
        pieces.retain(|piece| history.statement(*piece).class == class);
        pieces.sort_unstable_by_key(|piece| piece.start);
        verdict.keep(pieces.iter().map(|piece| u64::from(piece.len)).sum());
        let mut highest: Option<Piece> = None;
        for piece in pieces {
            match highest.filter(|before| before.last() >= piece.start) {
                Some(before) => {
                    let twice = before.last().min(piece.last()) - piece.start + 1;
                    verdict.violate(|| describe_twice(history, class, before, piece));
                    verdict.violations += twice - 1;
                    if piece.last() > before.last() {
                        highest = Some(piece);
                    }
                }
                None => highest = Some(piece),
            }
        }
    }
    verdict
}

fn describe_twice(history: &History, class: Class, one: Piece, other: Piece) -> String {
    let (ms, identity) = fields(class, other.start);
    let who = |piece| {
        let Statement {
            server,
            session,
            invoked,
            ..
        } = history.statement(piece);
        format!("server {server} session {session} at {} us", invoked.0)
    };
    format!(
        "id {} ({class} {identity}, {} ms) twice: {} and {}",
        other.start,
        ms.0,
        who(one),
        who(other)
    )
}

/// I4: ids rise within a session, and what a call mints of an identity lies above what calls that had ended before
/// it began minted of it in the same shared memory.
#[must_use]
pub fn ids_rise(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Rising);
    in_sessions(history, &mut verdict);
    over_sessions(history, &mut verdict);
    verdict
}

fn in_sessions(history: &History, verdict: &mut Verdict) {
    let mut last: HashMap<(u32, Class), u64> = HashMap::new();
    for statement in &history.statements {
        for piece in &history.pieces[statement.pieces.clone()] {
            let key = (statement.session, statement.class);
            let before = last.insert(key, piece.last());
            let fell = before.filter(|before| *before >= piece.start);
            verdict.judge(fell.map(|before| {
                move || {
                    format!(
                        "session {} of server {}: {} after {before}",
                        statement.session, statement.server, piece.start
                    )
                }
            }));
        }
    }
}

/// What one statement minted of one identity.
#[derive(Clone, Copy)]
struct Span {
    invoked: Moment,
    returned: Moment,
    lowest: u64,
    highest: u64,
}

fn over_sessions(history: &History, verdict: &mut Verdict) {
    let mut spans: HashMap<(Key, BootId), Vec<Span>> = HashMap::new();
    for statement in &history.statements {
        for piece in &history.pieces[statement.pieces.clone()] {
            let (_, identity) = fields(statement.class, piece.start);
            let key = ((statement.class, identity), statement.boot_id);
            let spans = spans.entry(key).or_default();
            match spans
                .last_mut()
                .filter(|span| (span.invoked, span.returned) == (statement.invoked, statement.returned))
            {
                Some(span) => {
                    span.lowest = span.lowest.min(piece.start);
                    span.highest = span.highest.max(piece.last());
                }
                None => spans.push(Span {
                    invoked: statement.invoked,
                    returned: statement.returned,
                    lowest: piece.start,
                    highest: piece.last(),
                }),
            }
        }
    }
    for (((class, identity), _), spans) in spans {
        sweep(spans, verdict, |span, before| {
            format!(
                "{class} {identity}: {} by a call that began after {before} was returned",
                span.lowest
            )
        });
    }
}

/// Calls in the order of their beginning, beside those that have ended by then.
fn sweep(mut spans: Vec<Span>, verdict: &mut Verdict, describe: impl Fn(Span, u64) -> String) {
    let mut ended = spans.clone();
    ended.sort_unstable_by_key(|span| span.returned);
    spans.sort_unstable_by_key(|span| span.invoked);
    let mut ended = ended.into_iter().peekable();
    let mut highest = None;
    for span in spans {
        while let Some(before) = ended.next_if(|before| before.returned < span.invoked) {
            highest = highest.max(Some(before.highest));
        }
        let fell = highest.filter(|before| *before >= span.lowest);
        verdict.judge(fell.map(|before| {
            let describe = &describe;
            move || describe(span, before)
        }));
    }
}
