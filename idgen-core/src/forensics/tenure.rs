//! Who held an identity at a time, as the trail of its leases says.
//!
//! Between two grants of an identity lies its high water: the earlier holder has minted times up to it, the later one times
//! above (`idgen-core/src/lease/window.rs`). So not the moment of the grant tells whose an id is, but the ceiling.

use crate::clock::UnixMs;

/// Clocks of daemons, of a store and of whoever wrote the trail may differ by so much.
const CLOCKS_MS: u64 = 10_000;

/// What happened to an identity, of what matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStep {
    /// Number of the event.
    pub seq: i64,
    /// When it was recorded.
    pub at: UnixMs,
    /// What.
    pub kind: StepKind,
    /// High water that it left: of a grant how far it reached at first.
    pub ceiling: Option<UnixMs>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// It was granted.
    Granted {
        /// Name of the daemon.
        holder: String,
        /// Its run.
        instance: String,
        /// Its fencing token.
        token: String,
        /// Nobody had it before.
        is_first: bool,
    },
    /// It was given back, taken, or has expired.
    Ended {
        /// How the trail calls it: released, expired, revoked, …
        how: String,
    },
}

/// One holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// Name of the daemon.
    pub holder: String,
    /// Its run.
    pub instance: String,
    /// Its fencing token.
    pub token: String,
    /// Number of the grant in the trail.
    pub seq: i64,
    /// When the grant was recorded.
    pub granted_at: UnixMs,
    /// Its times are above this: the high water of those before; 0: there was nobody before. `None`: not known.
    pub above: Option<UnixMs>,
    /// Its times are up to this; `None`: not known, or it is held.
    pub up_to: Option<UnixMs>,
    /// How and when it ended; `None`: it has not, as far as the trail goes.
    pub ended: Option<(String, UnixMs)>,
}

/// The holders of one identity, by its events in the order of the trail.
#[must_use]
pub fn tenures(steps: &[LeaseStep]) -> Vec<Tenure> {
    let mut found: Vec<Tenure> = Vec::new();
    let mut high_water = None;
    for step in steps {
        match &step.kind {
            StepKind::Granted {
                holder,
                instance,
                token,
                is_first,
            } => {
                // A grant over a lease that nobody has seen the end of: how far that had come is not known.
                let is_over = found.last().is_some_and(|before| before.up_to.is_none());
                let above = if *is_first { Some(UnixMs(0)) } else { high_water };
                found.push(Tenure {
                    above: above.filter(|_| !is_over),
                    holder: holder.clone(),
                    instance: instance.clone(),
                    token: token.clone(),
                    seq: step.seq,
                    granted_at: step.at,
                    up_to: None,
                    ended: None,
                });
            }
            StepKind::Ended { how } => {
                high_water = step.ceiling;
                if let Some(last) = found.last_mut().filter(|last| last.ended.is_none()) {
                    last.ended = Some((how.clone(), step.at));
                    last.up_to = step.ceiling;
                }
            }
        }
    }
    found
}

/// Whose a time was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held<'t> {
    /// Of this holder: the time lies between both its bounds, or it holds the identity still.
    By(&'t Tenure),
    /// Of this holder by the moments of grants: a bound that would prove it is not in the trail.
    Probably(&'t Tenure),
    /// Of nobody: it lies above what one holder had, and before what the next one has. No lease of this trail covers it.
    Nobody {
        /// The holder before.
        before: &'t Tenure,
    },
    /// The trail begins later.
    Unknown,
}

/// Who held the identity at a time that an id carries.
#[must_use]
pub fn held_at(tenures: &[Tenure], at: UnixMs) -> Held<'_> {
    let began = |tenure: &Tenure| match tenure.above {
        Some(above) => above < at,
        None => tenure.granted_at.0 <= at.0.saturating_add(CLOCKS_MS),
    };
    let Some(tenure) = tenures.iter().rev().find(|tenure| began(tenure)) else {
        return Held::Unknown;
    };
    // Above the high water of those before, and still before it was granted: nobody's.
    let is_early = tenure.granted_at.0 > at.0.saturating_add(CLOCKS_MS);
    match (is_early, tenure.up_to) {
        (true, _) => match tenures.iter().rev().find(|before| before.seq < tenure.seq) {
            Some(before) => Held::Nobody { before },
            None => Held::Unknown,
        },
        (false, Some(up_to)) if at > up_to => Held::Nobody { before: tenure },
        (false, Some(_)) if tenure.above.is_some() => Held::By(tenure),
        (false, None) if tenure.above.is_some() && tenure.ended.is_none() => Held::By(tenure),
        (false, _) => Held::Probably(tenure),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn granted(seq: i64, at: u64, holder: &str) -> LeaseStep {
        LeaseStep {
            seq,
            at: UnixMs(at),
            kind: StepKind::Granted {
                holder: holder.to_owned(),
                instance: format!("run of {holder}"),
                token: format!("0/{seq}"),
                is_first: false,
            },
            ceiling: Some(UnixMs(at + 480_000)),
        }
    }

    fn ended(seq: i64, at: u64, how: &str, ceiling: Option<u64>) -> LeaseStep {
        LeaseStep {
            seq,
            at: UnixMs(at),
            kind: StepKind::Ended { how: how.to_owned() },
            ceiling: ceiling.map(UnixMs),
        }
    }

    const HOUR: u64 = 3_600_000;

    /// `a` held it and gave it back at once, `b` expired with a ceiling in the future, `c` holds it.
    fn trail() -> Vec<Tenure> {
        tenures(&[
            granted(1, HOUR, "a"),
            ended(2, 2 * HOUR, "released", Some(2 * HOUR)),
            granted(3, 3 * HOUR, "b"),
            ended(4, 4 * HOUR, "expired", Some(4 * HOUR + 300_000)),
            granted(5, 5 * HOUR, "c"),
        ])
    }

    #[test]
    fn each_time_has_the_holder_whose_window_it_lies_in() {
        let trail = trail();
        assert!(
            matches!(held_at(&trail, UnixMs(HOUR + 5)), Held::Probably(a) if a.holder == "a"),
            "what was before its grant is not known"
        );
        assert!(matches!(held_at(&trail, UnixMs(3 * HOUR + 5)), Held::By(b) if b.holder == "b"));
        assert!(
            matches!(held_at(&trail, UnixMs(4 * HOUR + 299_000)), Held::By(b) if b.holder == "b"),
            "after it had expired, and below its ceiling"
        );
        assert!(matches!(held_at(&trail, UnixMs(9 * HOUR)), Held::By(c) if c.holder == "c"));
    }

    #[test]
    fn a_time_that_no_lease_covers_is_nobodys() {
        let trail = trail();
        for (at, whose) in [(2 * HOUR + 1, "a"), (4 * HOUR + 300_001, "b")] {
            assert!(
                matches!(held_at(&trail, UnixMs(at)), Held::Nobody { before } if before.holder == whose),
                "{at}"
            );
        }
        assert_eq!(held_at(&trail, UnixMs(5)), Held::Unknown);
        assert_eq!(held_at(&[], UnixMs(5)), Held::Unknown);
    }

    #[test]
    fn a_grant_over_another_one_proves_nothing() {
        let over = tenures(&[granted(1, HOUR, "a"), granted(2, 2 * HOUR, "b")]);
        assert!(matches!(held_at(&over, UnixMs(3 * HOUR)), Held::Probably(b) if b.holder == "b"));
        assert!(matches!(held_at(&over, UnixMs(HOUR + 1)), Held::Probably(a) if a.holder == "a"));
        let silent = tenures(&[
            granted(1, HOUR, "a"),
            ended(2, 2 * HOUR, "expired", None),
            granted(3, 3 * HOUR, "b"),
        ]);
        assert!(matches!(held_at(&silent, UnixMs(4 * HOUR)), Held::Probably(b) if b.holder == "b"));
    }

    #[test]
    fn the_first_holder_of_all_has_nobody_before() {
        let mut first = granted(1, HOUR, "a");
        let StepKind::Granted { is_first, .. } = &mut first.kind else {
            panic!("it is granted");
        };
        *is_first = true;
        let first = tenures(&[first]);
        assert!(matches!(held_at(&first, UnixMs(HOUR + 1)), Held::By(a) if a.holder == "a"));
        assert_eq!(
            held_at(&first, UnixMs(5)),
            Held::Unknown,
            "an hour before it was granted"
        );
    }

    #[test]
    fn clocks_that_differ_a_little_change_nothing() {
        let trail = trail();
        assert!(
            matches!(held_at(&trail, UnixMs(5 * HOUR - 9_000)), Held::By(c) if c.holder == "c"),
            "the trail was written 9 s later"
        );
    }

    proptest! {
        /// A made-up history of leases, each of whose windows lies above the one before: every time in a window is its holder's.
        #[test]
        fn every_time_of_a_window_is_its_holders(
            stays in prop::collection::vec((1_u64..HOUR, 0_u64..HOUR), 1..20),
            (which, part) in (any::<prop::sample::Index>(), 0.0..1.0_f64),
        ) {
            let (mut steps, mut windows) = (Vec::new(), Vec::new());
            // The trail is complete: it knows the high water before the first grant.
            let mut now = HOUR;
            steps.push(ended(1, now, "expired", Some(now)));
            for (n, (lasts, pause)) in stays.into_iter().enumerate() {
                let floor = now + 1;
                let ceiling = floor + lasts;
                let seq = 2 * n as i64 + 2;
                steps.push(granted(seq, floor, &n.to_string()));
                steps.push(ended(seq + 1, ceiling, "released", Some(ceiling)));
                windows.push((floor, ceiling));
                now = ceiling + pause;
            }
            let found = tenures(&steps);
            let n = which.index(windows.len());
            let (floor, ceiling) = windows[n];
            let at = floor + ((ceiling - floor) as f64 * part) as u64;
            let wanted = n.to_string();
            prop_assert!(
                matches!(held_at(&found, UnixMs(at)), Held::By(tenure) if tenure.holder == wanted),
                "{at} of {windows:?}: {:?}", held_at(&found, UnixMs(at))
            );
        }
    }
}
