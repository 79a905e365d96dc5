//! What the servers of a cell show each other of their clocks, by way of the lease store.
//!
//! A keeper says what its server's clock shows ([`Shown`]); the store puts that beside the lease, or a listener does.
//! One listener per daemon hears what the others show ([`Heard`]), all the time: so whoever needs to know it, knows
//! it already.

use idgen_core::clock::UnixMs;
use idgen_core::lease::peers::{HEARD_MS_MAX, LISTEN_MS_MAX, PEERS_ENOUGH, PEERS_MIN};
use idgen_core::lease::{BootId, InstanceId, Peers};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least late one of a few readings counts: one that was held up must not make a peer look as if it were behind.
const SAMPLES: usize = 3;

/// A server's clock at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// The server's shared memory: its daemon may be another one by now.
    pub boot_id: BootId,
    /// What its wall clock showed.
    pub wall: UnixMs,
}

/// What our server's clock shows.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Option<(Beacon, Instant)>>>);

impl Shown {
    /// It showed this at `at`.
    pub fn set(&self, beacon: Beacon, at: Instant) {
        *locked(&self.0) = Some((beacon, at));
    }

    /// What it shows now, if it was read a short while ago.
    #[must_use]
    pub fn at(&self, now: Instant) -> Option<Beacon> {
        let (beacon, at) = (*locked(&self.0))?;
        let age_ms = ms(now.saturating_duration_since(at));
        let wall = beacon.wall.saturating_add(age_ms);
        (age_ms < HEARD_MS_MAX).then_some(Beacon { wall, ..beacon })
    }
}

/// What the others' clocks show.
#[derive(Clone, Debug)]
pub struct Heard(Arc<Mutex<Listening>>);

#[derive(Debug)]
struct Listening {
    began: Instant,
    /// When the store was first looked at.
    looked_at: Option<Instant>,
    /// Who was there then, or came since.
    present: BTreeMap<InstanceId, BootId>,
    /// How late readings are, the last few times.
    delays: VecDeque<Duration>,
    voices: BTreeMap<InstanceId, Voice>,
}

/// One that was heard: what it showed and when, the last few times.
#[derive(Debug)]
struct Voice {
    boot_id: BootId,
    samples: VecDeque<(UnixMs, Instant)>,
}

impl Heard {
    /// Nobody yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Listening {
            began: now,
            looked_at: None,
            present: BTreeMap::new(),
            delays: VecDeque::new(),
            voices: BTreeMap::new(),
        })))
    }

    /// The store was looked at; these are there.
    pub(super) fn looked(&self, now: Instant, present: BTreeMap<InstanceId, BootId>) {
        let mut listening = locked(&self.0);
        listening.looked_at.get_or_insert(now);
        listening.present = present;
    }

    /// Readings were this late just now.
    pub(super) fn late_by(&self, delay: Duration) {
        keep(&mut locked(&self.0).delays, delay);
    }

    /// It showed this at `at`, or a little earlier.
    pub(super) fn hear(&self, instance: InstanceId, beacon: Beacon, at: Instant) {
        let mut listening = locked(&self.0);
        listening.present.insert(instance, beacon.boot_id);
        let voice = listening.voices.entry(instance).or_insert_with(|| Voice {
            boot_id: beacon.boot_id,
            samples: VecDeque::new(),
        });
        voice.boot_id = beacon.boot_id;
        keep(&mut voice.samples, (beacon.wall, at));
    }

    /// It has left.
    pub(super) fn forget(&self, instance: InstanceId) {
        let mut listening = locked(&self.0);
        listening.present.remove(&instance);
        listening.voices.remove(&instance);
    }

    /// The others' clocks beside ours, which showed `own` at `read_at`.
    pub(super) fn peers(&self, own: Beacon, read_at: Instant, now: Instant) -> Peers {
        let listening = locked(&self.0);
        let is_fresh = |at: Instant| ms(now.saturating_duration_since(at)) < HEARD_MS_MAX;
        let mut ahead_ms = BTreeMap::new();
        for voice in listening
            .voices
            .values()
            .filter(|voice| voice.boot_id != own.boot_id)
        {
            let samples = voice.samples.iter().filter(|(_, at)| is_fresh(*at));
            let ahead = samples
                .map(|(wall, at)| ahead_of(own.wall, read_at, *wall, *at))
                .max();
            if let Some(ahead) = ahead {
                // A daemon that was started again is still the same server.
                ahead_ms.insert(voice.boot_id, ahead);
            }
        }
        let delay = listening.delays.iter().max().copied().unwrap_or_default();
        Peers {
            awaited: listening.awaited(own.boot_id, ahead_ms.len(), now),
            ahead_ms: ahead_ms.into_values().collect(),
            allowance_ms: ms(delay),
        }
    }
}

impl Listening {
    /// How many are worth waiting for.
    fn awaited(&self, own: BootId, heard: usize, now: Instant) -> Option<usize> {
        let waiting = |since: Instant| ms(now.saturating_duration_since(since)) < LISTEN_MS_MAX;
        let Some(looked_at) = self.looked_at else {
            return waiting(self.began).then_some(0);
        };
        let servers: BTreeSet<BootId> = self.present.values().copied().collect();
        let others = servers.into_iter().filter(|boot_id| *boot_id != own).count();
        let enough = others < PEERS_MIN || heard >= others.min(PEERS_ENOUGH);
        (!enough && waiting(looked_at)).then_some(others)
    }
}

/// How far a clock that showed `wall` at `at` is ahead of one that showed `own` at `read_at`.
fn ahead_of(own: UnixMs, read_at: Instant, wall: UnixMs, at: Instant) -> i64 {
    let since = |earlier: Instant, later: Instant| ms(later.saturating_duration_since(earlier));
    // Both at the later of the two moments.
    let (wall, own) = (
        wall.saturating_add(since(at, read_at)),
        own.saturating_add(since(read_at, at)),
    );
    wall.ahead_of_ms(own)
}

fn keep<T>(samples: &mut VecDeque<T>, sample: T) {
    samples.push_back(sample);
    if samples.len() > SAMPLES {
        samples.pop_front();
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Nobody panics while holding it; and what is in it would be whole all the same.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: BootId = BootId(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn beacon(boot_id: BootId, wall_ms: u64) -> Beacon {
        Beacon {
            boot_id,
            wall: UnixMs(wall_ms),
        }
    }

    fn present(servers: &[u128]) -> BTreeMap<InstanceId, BootId> {
        let of = |server: &u128| (InstanceId(*server), BootId(*server));
        servers.iter().map(of).collect()
    }

    #[test]
    fn clocks_are_compared_at_one_moment_and_the_least_late_reading_counts() {
        let start = Instant::now();
        let heard = Heard::new(start);
        // 2 s behind ours, which showed 100 s at the start; the second reading was held up for 3 s.
        heard.hear(InstanceId(2), beacon(BootId(2), 103_000), start + 5 * SECOND);
        heard.hear(InstanceId(2), beacon(BootId(2), 105_000), start + 10 * SECOND);
        let later = start + 20 * SECOND;
        let peers = heard.peers(beacon(OWN, 120_000), later, later);
        assert_eq!(peers.ahead_ms, [-2_000]);
        let earlier = heard.peers(beacon(OWN, 100_000), start, later);
        assert_eq!(earlier.ahead_ms, [-2_000], "whenever ours was read");
        assert_eq!(
            heard
                .peers(beacon(OWN, 200_000), start + 100 * SECOND, start + 100 * SECOND)
                .ahead_ms,
            [0; 0],
            "what was heard a minute ago is gone"
        );
    }

    #[test]
    fn a_server_is_one_peer_whoever_speaks_for_it_and_we_are_none() {
        let start = Instant::now();
        let heard = Heard::new(start);
        for (instance, boot_id) in [(2, BootId(2)), (3, BootId(2)), (4, BootId(4)), (5, OWN)] {
            heard.hear(InstanceId(instance), beacon(boot_id, 1_000), start);
        }
        assert_eq!(heard.peers(beacon(OWN, 1_000), start, start).ahead_ms, [0, 0]);
        heard.forget(InstanceId(4));
        assert_eq!(heard.peers(beacon(OWN, 1_000), start, start).ahead_ms, [0]);
    }

    #[test]
    fn peers_that_are_there_are_waited_for_but_not_for_ever() {
        let start = Instant::now();
        let heard = Heard::new(start);
        let awaited = |now| heard.peers(beacon(OWN, 1_000), start, now).awaited;
        assert_eq!(awaited(start), Some(0), "the store was not looked at");
        assert_eq!(awaited(start + 12 * SECOND), None, "it cannot be reached");
        heard.looked(start + SECOND, present(&[1, 2]));
        assert_eq!(awaited(start + SECOND), None, "one other tells nothing");
        heard.looked(start + 2 * SECOND, present(&[1, 2, 3]));
        assert_eq!(awaited(start + 2 * SECOND), Some(2));
        heard.hear(InstanceId(2), beacon(BootId(2), 1_000), start);
        assert_eq!(awaited(start + 2 * SECOND), Some(2));
        assert_eq!(awaited(start + 13 * SECOND), None, "the other one is silent");
        heard.hear(InstanceId(3), beacon(BootId(3), 1_000), start);
        assert_eq!(awaited(start + 2 * SECOND), None, "all were heard");
    }

    /// pd#8806: slow I/O of etcd looked like a clock that is off. Everything arrives 3 s late here, ours as well.
    #[test]
    fn incident_75_slow_writes_of_the_store_are_no_difference_of_clocks() {
        let start = Instant::now();
        let heard = Heard::new(start);
        for peer in [2, 3] {
            heard.hear(InstanceId(peer), beacon(BootId(peer), 1_000), start + 3 * SECOND);
        }
        let apart = || {
            heard
                .peers(beacon(OWN, 4_000), start + 3 * SECOND, start + 3 * SECOND)
                .apart()
        };
        assert!(apart().is_some(), "that is how it looks");
        heard.late_by(3 * SECOND);
        assert_eq!(apart(), None, "but that is how late readings are");
    }

    #[test]
    fn readings_that_are_late_are_allowed_for() {
        let start = Instant::now();
        let heard = Heard::new(start);
        let allowance_ms = || heard.peers(beacon(OWN, 0), start, start).allowance_ms;
        for (delay_ms, longest_ms) in [(700, 700), (5, 700), (6, 700), (7, 7)] {
            heard.late_by(Duration::from_millis(delay_ms));
            assert_eq!(allowance_ms(), longest_ms);
        }
    }

    #[test]
    fn what_is_shown_goes_on_until_nobody_reads_the_clock_any_more() {
        let (shown, start) = (Shown::default(), Instant::now());
        assert_eq!(shown.at(start), None);
        shown.set(beacon(OWN, 1_000), start);
        assert_eq!(shown.at(start + 3 * SECOND), Some(beacon(OWN, 4_000)));
        assert_eq!(shown.at(start + 60 * SECOND), None);
    }
}
