//! What the keeper tells the rest of the daemon about itself.

use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::lease::{BootId, Claim, Judgement, Occupancy, Pressure, Token, keeper::Held};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One look at the keeper.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its phase.
    pub phase: &'static str,
    /// Identities wanted.
    pub wanted: usize,
    /// False: who has which shard was not read yet, so nothing is wanted so far.
    pub list_known: bool,
    /// Time between renewals.
    pub period: Duration,
    /// The lease that the server mints from.
    pub lease: Option<LeaseReport>,
    /// The shared memory of the server, as far as it is known.
    pub boot_id: Option<BootId>,
    /// The shards that it mints from; of workers nobody asks.
    pub shards: Arc<[Claim]>,
    /// How full the pool was when the store was last read; shards have none.
    pub pool: Option<Occupancy>,
    /// The last reading of the server's clocks, and when it was made by ours.
    pub reading: Option<(ClockReading, Instant)>,
    /// What is known of the wall clock of that reading.
    pub clock: Judgement,
    /// The server answers.
    pub server_up: bool,
    /// What is wrong.
    pub trouble: Option<String>,
}

/// An installed lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseReport {
    /// Its newest token.
    pub token: Token,
    /// Identities that are open.
    pub open: usize,
    /// When minting stops.
    pub deadline: BootMs,
    /// The lowest ceiling.
    pub ceiling: UnixMs,
}

impl LeaseReport {
    pub(super) fn of(held: &Held) -> Self {
        let ceilings = held.leased.iter().map(|leased| leased.window.ceiling);
        Self {
            token: held
                .leased
                .iter()
                .map(|tenancy| tenancy.token)
                .max()
                .unwrap_or_default(),
            open: held.leased.len(),
            deadline: held.deadline,
            ceiling: ceilings.min().unwrap_or_default(),
        }
    }
}

impl Report {
    /// Before anything has happened.
    pub fn starting(wanted: usize, period: Duration) -> Self {
        Self {
            phase: "away",
            wanted,
            list_known: true,
            period,
            lease: None,
            boot_id: None,
            shards: Arc::default(),
            pool: None,
            reading: None,
            clock: Judgement::NONE,
            server_up: false,
            trouble: None,
        }
    }

    /// Time until minting stops; zero when it has.
    pub fn to_deadline(&self, now: Instant) -> Option<Duration> {
        let (lease, (clock, at)) = (self.lease?, self.reading?);
        let left = Duration::from_millis(lease.deadline.since(clock.boot));
        Some(left.saturating_sub(now.saturating_duration_since(at)))
    }

    /// How far the ceiling reaches beyond the wall clock, in ms; negative when the clock has passed it.
    pub fn ceiling_lead_ms(&self, now: Instant) -> Option<i64> {
        let (lease, (clock, at)) = (self.lease?, self.reading?);
        let elapsed = i128::try_from(now.saturating_duration_since(at).as_millis()).ok()?;
        let lead = i128::from(lease.ceiling.0) - i128::from(clock.wall.0) - elapsed;
        i64::try_from(lead).ok()
    }

    /// Time until minting stops unless the lease is renewed: at the deadline, or where the clock meets the
    /// ceiling. Of a clock that is not believed the latter cannot be told.
    fn to_end(&self, now: Instant) -> Option<Duration> {
        let to_deadline = self.to_deadline(now)?;
        let lead_ms = self.ceiling_lead_ms(now).filter(|_| self.clock.may_raise);
        let to_ceiling = lead_ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        Some(to_ceiling.map_or(to_deadline, |to_ceiling| to_deadline.min(to_ceiling)))
    }

    /// What somebody should look at though the server mints: trouble that may outlast the lease, and a pool that runs
    /// full.
    pub fn warnings(&self, now: Instant) -> Vec<String> {
        let ends = self.trouble.as_ref().map(|trouble| match self.to_end(now) {
            Some(left) => format!("the lease lasts {} s more: {trouble}", left.as_secs()),
            None => trouble.clone(),
        });
        let pool = self.pool.filter(|pool| pool.pressure() > Pressure::Low);
        let pool = pool.map(|pool| format!("the pool runs full: {pool}"));
        ends.into_iter().chain(pool).collect()
    }

    /// Can the server mint, and will it go on? The error says why not.
    pub fn readiness(&self, now: Instant) -> Result<(), String> {
        let because = |what: String| match &self.trouble {
            Some(trouble) => format!("{what}: {trouble}"),
            None => what,
        };
        if !self.server_up {
            return Err(because("no contact with the postgres server".to_owned()));
        }
        if !self.list_known {
            return Err(because("who has which shard is not known yet".to_owned()));
        }
        if self.wanted == 0 {
            return Ok(());
        }
        let Some(left) = self.to_end(now) else {
            return Err(because(format!("no lease is installed ({})", self.phase)));
        };
        let open = self.lease.map_or(0, |lease| lease.open);
        if open < self.wanted {
            return Err(because(format!("{open} of {} identities are open", self.wanted)));
        }
        if left <= self.period {
            return Err(because(format!("the lease ends in {} ms", left.as_millis())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::lease::{Epoch, Revision};

    fn report(at: Instant) -> Report {
        let token = Token {
            epoch: Epoch(0),
            revision: Revision(1),
        };
        Report {
            lease: Some(LeaseReport {
                token,
                open: 2,
                deadline: BootMs(50_000),
                ceiling: UnixMs(1_040_000),
            }),
            reading: Some((
                ClockReading {
                    wall: UnixMs(1_000_000),
                    boot: BootMs(10_000),
                },
                at,
            )),
            server_up: true,
            ..Report::starting(2, Duration::from_secs(10))
        }
    }

    #[test]
    fn time_goes_on_between_two_readings() {
        let at = Instant::now();
        let later = at + Duration::from_secs(15);
        assert_eq!(report(at).to_deadline(later), Some(Duration::from_secs(25)));
        assert_eq!(report(at).ceiling_lead_ms(later), Some(25_000));
        assert_eq!(
            report(at).ceiling_lead_ms(at + Duration::from_secs(41)),
            Some(-1_000)
        );
        assert_eq!(
            report(at).to_deadline(at + Duration::from_secs(41)),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn trouble_is_told_while_the_lease_is_still_good() {
        let at = Instant::now();
        assert_eq!(report(at).warnings(at), Vec::<String>::new());
        let sealed = Report {
            trouble: Some("lease store: sealed: restored".to_owned()),
            pool: Some(Occupancy {
                size: 10,
                held: 10,
                cooling: 0,
            }),
            ..report(at)
        };
        assert_eq!(sealed.readiness(at), Ok(()), "it mints");
        let told = sealed.warnings(at + Duration::from_secs(3));
        assert_eq!(
            told[0],
            "the lease lasts 37 s more: lease store: sealed: restored"
        );
        assert!(told[1].starts_with("the pool runs full: "), "{told:?}");
    }

    #[test]
    fn ready_means_every_identity_open_and_more_than_a_period_left() {
        let at = Instant::now();
        assert_eq!(report(at).readiness(at + Duration::from_millis(29_999)), Ok(()));
        let late = report(at).readiness(at + Duration::from_secs(30)).unwrap_err();
        assert_eq!(late, "the lease ends in 10000 ms");
        let low = Report {
            lease: report(at).lease.map(|lease| LeaseReport {
                ceiling: UnixMs(1_012_000),
                ..lease
            }),
            ..report(at)
        };
        let used_up = low.readiness(at + Duration::from_secs(2)).unwrap_err();
        assert_eq!(
            used_up, "the lease ends in 10000 ms",
            "the window is shorter than the deadline"
        );
        let doubtful = Report {
            clock: Judgement {
                may_raise: false,
                ..Judgement::NONE
            },
            ..low
        };
        assert_eq!(doubtful.readiness(at + Duration::from_secs(2)), Ok(()));
        let few = Report {
            wanted: 3,
            ..report(at)
        }
        .readiness(at)
        .unwrap_err();
        assert_eq!(few, "2 of 3 identities are open");
        let trouble = Some("store away".to_owned());
        let none = Report {
            lease: None,
            trouble,
            ..report(at)
        }
        .readiness(at)
        .unwrap_err();
        assert_eq!(none, "no lease is installed (away): store away");
        assert!(
            Report {
                server_up: false,
                ..report(at)
            }
            .readiness(at)
            .is_err()
        );
    }
}
