//! Minting goes on.

use super::record::{History, Moment, Times};
use super::verdict::{Invariant, Verdict};
use crate::lease::Class;

/// What a healthy machine may add: a connection, a crash recovery, a statement.
const SLACK_MS: u64 = 2_000;

/// How soon after a fault every server must mint again.
#[must_use]
pub fn back_within_ms(times: &Times) -> u64 {
    times.ttl_ms + 2 * times.period_ms + SLACK_MS
}

/// How long after the end of a fault a server minted again, for each fault and server. `None`: not before the next
/// fault or the end of the record.
#[must_use]
pub fn recoveries(history: &History) -> Vec<Vec<Option<u64>>> {
    let servers: Vec<_> = (0..history.servers)
        .map(|server| calls_of(history, server))
        .collect();
    let mut recoveries = Vec::new();
    for (index, fault) in history.faults.iter().enumerate() {
        let until = history
            .faults
            .get(index + 1)
            .map_or(Moment(u64::MAX), |next| next.begun);
        let after = servers.iter().map(|calls| {
            let first = calls.partition_point(|(invoked, _)| *invoked < fault.ended);
            let (_, returned) = *calls.get(first)?;
            (returned <= until).then(|| returned.since_ms(fault.ended))
        });
        recoveries.push(after.collect());
    }
    recoveries
}

/// Calls of a server that minted, by their beginning; beside each the first end of all calls that began no earlier.
fn calls_of(history: &History, server: u8) -> Vec<(Moment, Moment)> {
    let mut calls: Vec<(Moment, Moment)> = history
        .statements
        .iter()
        .filter(|call| call.server == server && call.class == Class::Worker && call.succeeded)
        .filter(|call| !call.pieces.is_empty())
        .map(|call| (call.invoked, call.returned))
        .collect();
    calls.sort_unstable();
    let mut first_end = Moment(u64::MAX);
    for (_, returned) in calls.iter_mut().rev() {
        first_end = first_end.min(*returned);
        *returned = first_end;
    }
    calls
}

/// I13: after a fault has ended every server mints again within TTL + 2 P + 2 s.
#[must_use]
pub fn minting_is_back(history: &History) -> Verdict {
    let mut verdict = Verdict::new(Invariant::Alive);
    let limit_ms = back_within_ms(&history.times);
    for (fault, after) in history.faults.iter().zip(recoveries(history)) {
        let limit_ms = limit_ms + fault.late_ms;
        for (server, after_ms) in after.into_iter().enumerate() {
            let late = after_ms.is_none_or(|ms| ms > limit_ms);
            verdict.judge(late.then_some(|| {
                let after = after_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
                format!(
                    "{}: server {server} was back {after}, {limit_ms} ms are allowed",
                    fault.name
                )
            }));
        }
    }
    verdict
}
