//! What a keeper knows of its server's wall clock.

use super::kernel::{host_clock, kernel_clock};
use super::source::SyncSeen;
use crate::complaint::Complaint;
use crate::lease::beacons::{Beacon, Heard, Shown};
use idgen_core::clock::ClockReading;
use idgen_core::lease::{BootId, ClockMonitor, ClockState, Gate, Judgement, Known};
use std::time::{Duration, Instant};

/// Numbers in a state change all the time; what is said of it is said anew this often.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Time after which the server is told again: a view that shows nothing for longer knows that nobody looks.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// What a keeper is given to judge its server's clock by.
#[derive(Clone, Debug)]
pub struct ClockInputs {
    /// How strictly.
    pub gate: Gate,
    /// A wall clock that was set is believed again when the kernel says that it is synchronised.
    pub accept_synchronised: bool,
    /// Whether the clock of this host is synchronised.
    pub sync: SyncSeen,
    /// Where the server's clock is shown to the other servers.
    pub shown: Shown,
    /// What the clocks of the others show; with the gate off nobody listens.
    pub heard: Heard,
    /// This keeper is the one that tells the server.
    pub tells_server: bool,
}

impl ClockInputs {
    /// Nobody is asked, and nobody is told; a clock that is set is noticed all the same.
    #[must_use]
    pub fn unchecked() -> Self {
        let (_, sync) = tokio::sync::watch::channel(None);
        Self {
            gate: Gate::Off,
            accept_synchronised: false,
            sync,
            shown: Shown::default(),
            heard: Heard::new(Instant::now()),
            tells_server: false,
        }
    }
}

/// See the module.
pub(in crate::lease) struct ClockWatch {
    inputs: ClockInputs,
    monitor: ClockMonitor,
    judged: Judgement,
    trouble: Complaint,
    /// The state that was complained of, and when it was put in words.
    said: Option<(&'static str, Instant)>,
    told: Option<(Judgement, Instant)>,
}

impl ClockWatch {
    pub(in crate::lease) fn new(inputs: ClockInputs) -> Self {
        Self {
            monitor: ClockMonitor::new(inputs.gate),
            inputs,
            judged: Judgement::NONE,
            trouble: Complaint::default(),
            said: None,
            told: None,
        }
    }

    /// What was found last.
    pub(in crate::lease) fn judged(&self) -> Judgement {
        self.judged
    }

    /// What is wrong with the clock, or may be.
    pub(in crate::lease) fn trouble(&self) -> Option<&str> {
        self.trouble.text()
    }

    /// Judges a reading of the server's clocks.
    pub(in crate::lease) fn judge(&mut self, reading: ClockReading, boot_id: BootId) -> Judgement {
        let now = Instant::now();
        let own = Beacon {
            boot_id,
            wall: reading.wall,
        };
        self.inputs.shown.set(own, now);
        let peers = self.inputs.heard.peers(own, now, now);
        let known = Known {
            sync: *self.inputs.sync.borrow(),
            host: host_clock(),
            peers: &peers,
        };
        self.judged = self.monitor.observe(reading, known);
        if let ClockState::Stepped(by_ms) = self.judged.state
            && self.inputs.accept_synchronised
            && kernel_clock().is_some_and(|kernel| kernel.proves(reading.wall))
        {
            tracing::warn!(
                by_ms,
                "the server's wall clock was set; the kernel says that it is right now"
            );
            self.monitor.accept_step();
            self.judged = self.monitor.observe(reading, known);
        }
        self.say(now);
        self.judged
    }

    /// An operator says that the clock is right. What was wrong with it; `None`: nothing.
    pub(in crate::lease) fn accept(&mut self) -> Option<String> {
        let was_wrong = self.would_accept()?;
        tracing::warn!("{was_wrong}; an operator says that it is right");
        self.monitor.accept();
        Some(was_wrong)
    }

    /// What is wrong with the clock, and would be accepted; `None`: nothing.
    pub(in crate::lease) fn would_accept(&self) -> Option<String> {
        let is_believed = self.judged.may_acquire || self.judged == Judgement::NONE;
        (!is_believed).then(|| self.judged.state.to_string())
    }

    /// What the server is to be told now.
    pub(in crate::lease) fn news(&mut self, now: Instant) -> Option<Judgement> {
        let same = |(told, at): (Judgement, Instant)| {
            told.state.name() == self.judged.state.name()
                && told.accepted == self.judged.accepted
                && now.duration_since(at) < TELL_AGAIN
        };
        if !self.inputs.tells_server || self.told.is_some_and(same) {
            return None;
        }
        self.told = Some((self.judged, now));
        Some(self.judged)
    }

    /// What it was told may be gone: shared memory is new.
    pub(in crate::lease) fn forget_told(&mut self) {
        self.told = None;
    }

    fn say(&mut self, now: Instant) {
        let judged = self.judged;
        let Some(consequence) = consequence(&judged) else {
            self.said = None;
            self.trouble.settle("the wall clock is believed again");
            return;
        };
        let name = judged.state.name();
        let fresh = |(said, at): (&'static str, Instant)| said == name && now.duration_since(at) < SAY_AGAIN;
        if !self.said.is_some_and(fresh) {
            self.said = Some((name, now));
            self.trouble
                .raise(format!("{}: {consequence}", judged.state), now);
        }
    }
}

/// What follows for leases, and what to do; `None`: nothing worth a word.
fn consequence(judged: &Judgement) -> Option<&'static str> {
    let refused = match judged.state {
        ClockState::Good | ClockState::Unchecked if judged.may_acquire => return None,
        _ if judged.accepted => return Some("an operator has accepted it"),
        ClockState::Stepped(_) => {
            return Some(
                "no new lease and no higher ceiling until it comes back (if it is right now: idgenctl clock accept)",
            );
        }
        ClockState::Apart(_) => {
            "no new lease and no higher ceiling (hint: compare the clocks of the hosts; if this one is right: idgenctl \
             clock accept)"
        }
        ClockState::Listening(_) => "no new lease yet",
        _ => {
            "no new lease (hint: run chrony or another NTP client; where there is none, set [clock] check = \"off\")"
        }
    };
    Some(if judged.may_acquire {
        "leases are taken all the same (hint: run chrony or another NTP client; [clock] check says how strict to be)"
    } else {
        refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::clock::{BootMs, UnixMs};
    use idgen_core::lease::InstanceId;
    use idgen_core::lease::sync::{Source, Sync};
    use std::collections::BTreeMap;
    use tokio::sync::watch;

    const BOOT: BootId = BootId(1);

    fn sync(synchronised: bool) -> Option<Sync> {
        Some(Sync {
            source: Source::Chrony,
            synchronised,
            offset_us: Some(0),
            error_us_max: 1_000,
        })
    }

    fn reading() -> ClockReading {
        ClockReading {
            wall: host_clock(),
            boot: BootMs(1),
        }
    }

    fn watch_of(gate: Gate, said: Option<Sync>) -> (watch::Sender<Option<Sync>>, ClockWatch) {
        let (say, seen) = watch::channel(said);
        let heard = Heard::new(Instant::now());
        heard.looked(Instant::now(), BTreeMap::new());
        let inputs = ClockInputs {
            gate,
            accept_synchronised: false,
            sync: seen,
            shown: Shown::default(),
            heard,
            tells_server: true,
        };
        (say, ClockWatch::new(inputs))
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_what_to_do_and_can_be_accepted() {
        let (say, mut clock) = watch_of(Gate::Refuse, sync(false));
        assert!(!clock.judge(reading(), BOOT).may_acquire);
        let trouble = clock.trouble().unwrap();
        for part in ["not synchronised, says chrony", "no new lease", "check = \"off\""] {
            assert!(trouble.contains(part), "{trouble}");
        }
        assert!(clock.would_accept().unwrap().contains("chrony"));
        assert!(clock.would_accept().is_some(), "to ask accepts nothing");
        assert!(clock.accept().unwrap().contains("chrony"));
        assert!(clock.judge(reading(), BOOT).may_acquire);
        assert!(clock.accept().is_none(), "it is believed already");
        say.send_replace(sync(true));
        clock.judge(reading(), BOOT);
        assert_eq!(clock.trouble(), None);
    }

    #[test]
    fn what_most_peers_contradict_is_refused_until_an_operator_accepts_it() {
        let (_say, mut clock) = watch_of(Gate::Refuse, sync(true));
        for peer in [2, 3] {
            let beacon = Beacon {
                boot_id: BootId(peer),
                wall: UnixMs(host_clock().0 - 2_000),
            };
            clock.inputs.heard.hear(InstanceId(peer), beacon, Instant::now());
        }
        let judged = clock.judge(reading(), BOOT);
        assert!(!judged.may_acquire && !judged.may_raise);
        let trouble = clock.trouble().unwrap();
        assert!(trouble.contains("ms ahead of most of 2 peers"), "{trouble}");
        assert_eq!(clock.inputs.shown.at(Instant::now()).unwrap().boot_id, BOOT);
        assert!(clock.accept().is_some());
        assert!(clock.judge(reading(), BOOT).may_raise);
    }

    #[test]
    fn a_warning_names_the_setting_and_refuses_nothing() {
        let (_say, mut clock) = watch_of(Gate::Warn, sync(false));
        assert!(clock.judge(reading(), BOOT).may_acquire);
        assert!(clock.trouble().unwrap().contains("all the same"));
        let (_say, mut clock) = watch_of(Gate::Off, None);
        assert!(clock.judge(reading(), BOOT).may_acquire);
        assert_eq!(clock.trouble(), None);
    }

    #[test]
    fn the_server_is_told_what_changes_and_now_and_then() {
        let (say, mut clock) = watch_of(Gate::Refuse, sync(true));
        let start = Instant::now();
        clock.judge(reading(), BOOT);
        assert!(clock.news(start).is_some());
        assert!(clock.news(start).is_none());
        assert!(clock.news(start + TELL_AGAIN).is_some());
        say.send_replace(sync(false));
        clock.judge(reading(), BOOT);
        let news = clock.news(start + TELL_AGAIN).unwrap();
        assert_eq!(news.state.name(), "unsynchronised");
        clock.forget_told();
        assert!(clock.news(start + TELL_AGAIN).is_some());
        let far = ClockReading {
            wall: UnixMs(1),
            ..reading()
        };
        clock.judge(far, BOOT);
        assert!(clock.trouble().unwrap().contains("was set"));
    }
}
