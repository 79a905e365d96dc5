//! The clock monitor: what is known of a server's wall clock, and what may be done by it.
//!
//! | found | a lease is taken | ceilings are raised |
//! |---|---|---|
//! | the clock was set ([`super::step`]) | no | no |
//! | most peers show another time ([`super::peers`]) | no | no |
//! | nobody keeps it right ([`super::sync`]) | no | yes, of leases that are held |
//! | peers are there and have not been heard yet | not yet | yes |
//!
//! The first is always so; the others as far as the [`Gate`] is kept. Deadlines are renewed in any case. An operator
//! may accept whatever is found; that holds until it is over, so that the next time counts again.

use super::peers::{Apart, Peers};
use super::step::{ClockVerdict, StepGuard};
use super::sync::{SAME_CLOCK_MS_MAX, Source, Sync, SyncVerdict};
use crate::clock::{ClockReading, UnixMs};
use core::fmt;

/// What is done about a clock that nobody vouches for, or that the peers contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No lease is taken by it.
    Refuse,
    /// It is said.
    Warn,
    /// Nothing; nobody is asked.
    Off,
}

/// What is known of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockState {
    /// Somebody keeps it right.
    Good,
    /// Somebody does, but it may be off by this many µs.
    Loose(u64),
    /// Nobody disciplines it, says this one.
    Unsynchronised(Source),
    /// It may be off by this many µs, which is too much.
    TooLoose(u64),
    /// It is ahead (positive) of the clock of the daemon's host by this many ms, so whatever is said of that one says
    /// nothing of it.
    Elsewhere(i64),
    /// It was set by this many ms.
    Stepped(i64),
    /// Most peers show another time.
    Apart(Apart),
    /// That many peers are there, and are listened for.
    Listening(usize),
    /// Nobody has been asked, or nobody can tell.
    Unchecked,
}

impl ClockState {
    /// As views, metrics and logs name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Loose(_) => "warn",
            Self::Unsynchronised(_) | Self::TooLoose(_) | Self::Elsewhere(_) => "unsynchronised",
            Self::Stepped(_) => "stepped",
            Self::Apart(_) => "apart from peers",
            Self::Listening(_) => "listening",
            Self::Unchecked => "unchecked",
        }
    }

    /// Every name there is.
    pub const NAMES: [&'static str; 7] = [
        "good",
        "warn",
        "unsynchronised",
        "stepped",
        "apart from peers",
        "listening",
        "unchecked",
    ];
}

/// The reason of the state, for people.
impl fmt::Display for ClockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us.div_ceil(1_000);
        match *self {
            Self::Good => f.write_str("the clock is synchronised"),
            Self::Loose(us) => write!(f, "the clock may be off by {} ms, above 100 ms", ms(us)),
            Self::TooLoose(us) => write!(f, "the clock may be off by {} ms, above 500 ms", ms(us)),
            Self::Unsynchronised(source) => {
                write!(f, "the clock is not synchronised, says {}", source.name())
            }
            Self::Elsewhere(by_ms) => {
                let (ms, side) = sides(by_ms);
                write!(f, "the clock is {ms} ms {side} that of the daemon's host")
            }
            Self::Stepped(by_ms) => write!(f, "the clock was set by {by_ms} ms"),
            Self::Apart(Apart { by_ms, peers }) => {
                let (ms, side) = sides(by_ms);
                write!(f, "the clock is {ms} ms {side} most of {peers} peers")
            }
            Self::Listening(0) => f.write_str("the store is asked for peers"),
            Self::Listening(peers) => write!(f, "listening for the clocks of {peers} peers"),
            Self::Unchecked => f.write_str("nobody was asked about the clock"),
        }
    }
}

fn sides(by_ms: i64) -> (u64, &'static str) {
    (
        by_ms.unsigned_abs(),
        if by_ms > 0 { "ahead of" } else { "behind" },
    )
}

/// What is known of the clock besides its readings.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// What is said of the clock of the daemon's host; `None`: nobody says anything.
    pub sync: Option<Sync>,
    /// What that clock showed when the server's was read.
    pub host: UnixMs,
    /// The clocks of the other servers.
    pub peers: &'a Peers,
}

/// What may be done by the clock as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is known.
    pub state: ClockState,
    /// A lease may be taken.
    pub may_acquire: bool,
    /// Ceilings may be raised, and readings are anchors.
    pub may_raise: bool,
    /// An operator has accepted the state.
    pub accepted: bool,
    /// How far the clock is ahead (positive) of the true time, or where nobody tells that or the peers contradict it,
    /// of the peers.
    pub offset_us: Option<i64>,
    /// How far it is off at the most.
    pub error_us_max: Option<u64>,
}

impl Judgement {
    /// Before the first reading.
    pub const NONE: Self = Self {
        state: ClockState::Unchecked,
        may_acquire: false,
        may_raise: true,
        accepted: false,
        offset_us: None,
        error_us_max: None,
    };
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ClockMonitor {
    gate: Gate,
    steps: StepGuard,
    sync_accepted: bool,
    peers_accepted: bool,
}

impl ClockMonitor {
    /// One that has seen nothing.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self {
            gate,
            steps: StepGuard::new(),
            sync_accepted: false,
            peers_accepted: false,
        }
    }

    /// By how much the clock was set; `None` while it is believed.
    #[must_use]
    pub fn stepped_by_ms(&self) -> Option<i64> {
        self.steps.stepped_by_ms()
    }

    /// Somebody who knows says that the step was right.
    pub fn accept_step(&mut self) {
        self.steps.accept();
    }

    /// An operator says that the clock is right, whatever was found.
    pub fn accept(&mut self) {
        self.steps.accept();
        self.sync_accepted = true;
        self.peers_accepted = true;
    }

    /// Judges a reading of the server's clocks, with what is known of it just now.
    pub fn observe(&mut self, reading: ClockReading, known: Known<'_>) -> Judgement {
        let Known { sync, host, peers } = known;
        let stepped = self.steps.observe(reading);
        let apart = peers.apart().filter(|_| self.gate != Gate::Off);
        let vouched = sync_state(sync, reading.wall.ahead_of_ms(host));
        self.peers_accepted &= apart.is_some();
        self.sync_accepted &= !is_good(vouched);
        let state = match (stepped, apart) {
            (ClockVerdict::Stepped { by_ms }, _) => ClockState::Stepped(by_ms),
            (ClockVerdict::Good, _) if self.gate == Gate::Off => ClockState::Unchecked,
            (ClockVerdict::Good, Some(apart)) => ClockState::Apart(apart),
            (ClockVerdict::Good, None) => self.unless_listening(vouched, peers),
        };
        let (may_acquire, may_raise) = self.permits(state);
        let ahead_of_median_us = || peers.ahead_of_median_ms()?.checked_mul(1_000);
        let sync = sync.filter(|sync| sync.synchronised && self.gate != Gate::Off);
        Judgement {
            state,
            may_acquire,
            may_raise,
            accepted: self.is_accepted(state),
            offset_us: match state {
                ClockState::Apart(_) => ahead_of_median_us(),
                _ => sync.and_then(|sync| sync.offset_us).or_else(ahead_of_median_us),
            },
            error_us_max: sync.map(|sync| sync.error_us_max),
        }
    }

    /// A clock that is refused anyhow is not listened for.
    fn unless_listening(&self, state: ClockState, peers: &Peers) -> ClockState {
        match peers.awaited {
            Some(awaited) if self.gate == Gate::Refuse && (self.sync_accepted || is_good(state)) => {
                ClockState::Listening(awaited)
            }
            _ => state,
        }
    }

    fn is_accepted(&self, state: ClockState) -> bool {
        match state {
            ClockState::Apart(_) => self.peers_accepted,
            ClockState::Unsynchronised(_)
            | ClockState::TooLoose(_)
            | ClockState::Elsewhere(_)
            | ClockState::Unchecked => self.sync_accepted && self.gate != Gate::Off,
            ClockState::Good | ClockState::Loose(_) | ClockState::Stepped(_) | ClockState::Listening(_) => {
                false
            }
        }
    }

    /// (A lease may be taken, ceilings may be raised.)
    fn permits(&self, state: ClockState) -> (bool, bool) {
        if let ClockState::Stepped(_) = state {
            return (false, false);
        }
        if self.gate != Gate::Refuse || is_good(state) || self.is_accepted(state) {
            return (true, true);
        }
        (false, !matches!(state, ClockState::Apart(_)))
    }
}

fn is_good(state: ClockState) -> bool {
    matches!(state, ClockState::Good | ClockState::Loose(_))
}

fn sync_state(sync: Option<Sync>, ahead_of_host_ms: i64) -> ClockState {
    let Some(sync) = sync else {
        return ClockState::Unchecked;
    };
    match sync.verdict() {
        SyncVerdict::Unsynchronised => ClockState::Unsynchronised(sync.source),
        SyncVerdict::TooLoose => ClockState::TooLoose(sync.error_us_max),
        _ if ahead_of_host_ms.unsigned_abs() > SAME_CLOCK_MS_MAX => ClockState::Elsewhere(ahead_of_host_ms),
        SyncVerdict::Good => ClockState::Good,
        SyncVerdict::Loose => ClockState::Loose(sync.error_us_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootMs, UnixMs};

    fn at(wall: u64, boot: u64) -> ClockReading {
        ClockReading {
            wall: UnixMs(wall),
            boot: BootMs(boot),
        }
    }

    const RIGHT: Option<Sync> = Some(Sync {
        source: Source::Chrony,
        synchronised: true,
        offset_us: Some(-70),
        error_us_max: 3_000,
    });

    const ALONE: Option<Sync> = Some(Sync {
        source: Source::Kernel,
        synchronised: false,
        offset_us: None,
        error_us_max: 16_000_000,
    });

    fn peers(ahead_ms: &[i64]) -> Peers {
        Peers {
            ahead_ms: ahead_ms.to_vec(),
            ..Peers::default()
        }
    }

    /// Of a clock that shows the same as that of the daemon's host.
    fn known(sync: Option<Sync>, peers: &Peers, wall: u64) -> Known<'_> {
        Known {
            sync,
            host: UnixMs(wall),
            peers,
        }
    }

    fn judged(gate: Gate, sync: Option<Sync>, peers: &Peers) -> (&'static str, bool, bool) {
        let judged = ClockMonitor::new(gate).observe(at(100_000, 0), known(sync, peers, 100_000));
        (judged.state.name(), judged.may_acquire, judged.may_raise)
    }

    #[test]
    fn a_clock_that_nobody_keeps_takes_no_lease_but_keeps_the_one_it_has() {
        let none = Peers::default();
        assert_eq!(judged(Gate::Refuse, RIGHT, &none), ("good", true, true));
        assert_eq!(
            judged(Gate::Refuse, ALONE, &none),
            ("unsynchronised", false, true)
        );
        assert_eq!(judged(Gate::Warn, ALONE, &none), ("unsynchronised", true, true));
        assert_eq!(judged(Gate::Off, ALONE, &none), ("unchecked", true, true));
        assert_eq!(judged(Gate::Refuse, None, &none), ("unchecked", false, true));
    }

    #[test]
    fn a_clock_apart_from_most_peers_raises_nothing_however_synchronised_it_is() {
        let behind = peers(&[-2_000, -2_000]);
        assert_eq!(
            judged(Gate::Refuse, RIGHT, &behind),
            ("apart from peers", false, false)
        );
        assert_eq!(
            judged(Gate::Warn, RIGHT, &behind),
            ("apart from peers", true, true)
        );
        assert_eq!(judged(Gate::Off, RIGHT, &behind), ("unchecked", true, true));
    }

    #[test]
    fn a_step_counts_whatever_the_gate() {
        for gate in [Gate::Refuse, Gate::Warn, Gate::Off] {
            let mut monitor = ClockMonitor::new(gate);
            let none = Peers::default();
            monitor.observe(at(100_000, 0), known(RIGHT, &none, 100_000));
            let judged = monitor.observe(at(200_000, 100), known(RIGHT, &none, 200_000));
            assert_eq!(judged.state, ClockState::Stepped(99_900));
            assert!(!judged.may_acquire && !judged.may_raise);
        }
    }

    #[test]
    fn peers_that_may_be_heard_are_waited_for_by_a_good_clock() {
        let awaited = Peers {
            awaited: Some(3),
            ..peers(&[0])
        };
        assert_eq!(judged(Gate::Refuse, RIGHT, &awaited), ("listening", false, true));
        assert_eq!(
            judged(Gate::Refuse, ALONE, &awaited),
            ("unsynchronised", false, true)
        );
        assert_eq!(judged(Gate::Warn, RIGHT, &awaited), ("good", true, true));
    }

    #[test]
    fn what_an_operator_accepts_holds_until_it_is_over() {
        let mut monitor = ClockMonitor::new(Gate::Refuse);
        let (none, far) = (Peers::default(), peers(&[-2_000, -2_000]));
        let mut may = |accept: bool, sync, peers: &Peers| {
            if accept {
                monitor.accept();
            }
            let judged = monitor.observe(at(100_000, 0), known(sync, peers, 100_000));
            (judged.may_acquire, judged.may_raise, judged.accepted)
        };
        assert_eq!(may(false, ALONE, &none), (false, true, false));
        assert_eq!(may(true, ALONE, &none), (true, true, true));
        assert_eq!(may(false, RIGHT, &none), (true, true, false));
        assert_eq!(
            may(false, ALONE, &none),
            (false, true, false),
            "the next time counts again"
        );
        assert_eq!(may(true, ALONE, &far), (true, true, true));
        assert_eq!(
            may(false, ALONE, &none),
            (true, true, true),
            "the other thing is still as it was"
        );
        assert_eq!(may(false, ALONE, &far), (false, false, false));
    }

    #[test]
    fn the_offset_is_that_of_the_time_source_or_else_of_the_peers() {
        let mut monitor = ClockMonitor::new(Gate::Warn);
        let near = peers(&[-200, -200]);
        let judged = monitor.observe(at(100_000, 0), known(RIGHT, &near, 100_000));
        assert_eq!((judged.offset_us, judged.error_us_max), (Some(-70), Some(3_000)));
        let judged = monitor.observe(at(100_000, 0), known(RIGHT, &peers(&[-900, -900]), 100_000));
        assert_eq!(judged.offset_us, Some(900_000), "whom the peers contradict");
        let judged = monitor.observe(at(100_000, 0), known(ALONE, &near, 100_000));
        assert_eq!((judged.offset_us, judged.error_us_max), (Some(200_000), None));
    }

    #[test]
    fn what_is_said_of_another_clock_says_nothing() {
        let none = Peers::default();
        let judge = |host| {
            let judged = ClockMonitor::new(Gate::Refuse).observe(at(100_000, 0), known(RIGHT, &none, host));
            (judged.state, judged.may_acquire, judged.may_raise)
        };
        assert_eq!(judge(99_000), (ClockState::Good, true, true));
        assert_eq!(judge(98_999), (ClockState::Elsewhere(1_001), false, true));
        assert_eq!(judge(101_001).0, ClockState::Elsewhere(-1_001));
    }

    #[test]
    fn every_state_has_a_listed_name_and_a_reason() {
        let apart = Apart { by_ms: -7, peers: 2 };
        for state in [
            ClockState::Good,
            ClockState::Loose(100_001),
            ClockState::Unsynchronised(Source::Kernel),
            ClockState::TooLoose(500_001),
            ClockState::Elsewhere(1_001),
            ClockState::Stepped(-3),
            ClockState::Apart(apart),
            ClockState::Listening(2),
            ClockState::Unchecked,
        ] {
            assert!(ClockState::NAMES.contains(&state.name()), "{state:?}");
            assert!(!state.to_string().is_empty());
        }
        assert_eq!(
            ClockState::Apart(apart).to_string(),
            "the clock is 7 ms behind most of 2 peers"
        );
    }
}
