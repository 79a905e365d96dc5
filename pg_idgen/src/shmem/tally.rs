//! What the place of a tag counts for those who look: refills and how long they took, ids that nobody gets, and
//! how fast it is drawn from. Nothing here decides about a grant.

use idgen_core::clock::BootMs;
use idgen_core::segment::fetches::{BUCKETS, Fetches, alerts_up};
use idgen_core::segment::pace::{pace, seconds_left};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Why ids go to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurnCause {
    /// What memory held when the server stopped (at most so many).
    Restart,
    /// What memory held when another tag was given its place (at most so many).
    Eviction,
    /// What memory held when the tag was moved.
    Seek,
    /// Granted and not published: the lease had ended, the anchor could not be written, the tag was moved meanwhile.
    Refill,
    /// Passed over before a grant, because it may have been granted elsewhere.
    Safety,
    /// Of a bulk request whose caller was gone.
    Bulk,
}

impl BurnCause {
    const ALL: [Self; 6] = [
        Self::Restart,
        Self::Eviction,
        Self::Seek,
        Self::Refill,
        Self::Safety,
        Self::Bulk,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Eviction => "eviction",
            Self::Seek => "seek",
            Self::Refill => "refill",
            Self::Safety => "safety",
            Self::Bulk => "bulk",
        }
    }
}

#[derive(Default)]
pub struct Tally {
    refills: AtomicU64,
    refill_failures: AtomicU64,
    refill_us_last: AtomicU64,
    refill_us_max: AtomicU64,
    refill_us_sum: AtomicU64,
    burned: [AtomicU64; BurnCause::ALL.len()],
    /// Bits of the pace in ids per second.
    pace: AtomicU64,
    /// When the pace was measured last, and how many ids had been drawn by then; 0: not yet.
    paced_boot_ms: AtomicU64,
    paced_ids: AtomicU64,
    fetches: FetchWords,
}

/// [`Fetches`] in shared memory. Written by the one worker of the database; others may see it half changed.
#[derive(Default)]
struct FetchWords {
    bucket: AtomicU64,
    counts: [AtomicU32; BUCKETS],
    alerts_up: AtomicU32,
}

/// A [`Tally`] as it stands.
#[derive(Clone, Copy)]
pub struct TallyView {
    pub refills: u64,
    pub refill_failures: u64,
    /// Last, highest, mean; `None`: no refill yet.
    pub refill_us: Option<[u64; 3]>,
    pub ids_per_s: f64,
    pub fetches: Fetches,
    /// How many alerts are up.
    pub alerts: usize,
}

impl TallyView {
    pub fn seconds_left(&self, remaining: u64) -> Option<f64> {
        seconds_left(remaining, self.ids_per_s)
    }
}

impl Tally {
    /// A range was taken in.
    pub fn refilled(&self, took_us: u64) {
        self.refills.fetch_add(1, Relaxed);
        self.refill_us_last.store(took_us, Relaxed);
        self.refill_us_max.fetch_max(took_us, Relaxed);
        self.refill_us_sum.fetch_add(took_us, Relaxed);
    }

    pub fn fetches(&self) -> Fetches {
        Fetches {
            bucket: self.fetches.bucket.load(Relaxed),
            counts: std::array::from_fn(|index| self.fetches.counts[index].load(Relaxed)),
        }
    }

    /// By the worker: a range was granted. How many have been in the last minute, if an alert has come up with it.
    pub fn fetched(&self, now: BootMs) -> Option<u32> {
        let mut fetches = self.fetches();
        fetches.note(now);
        self.fetches.bucket.store(fetches.bucket, Relaxed);
        for (word, count) in self.fetches.counts.iter().zip(fetches.counts) {
            word.store(count, Relaxed);
        }
        let per_minute = fetches.per_minute(now);
        self.look_for_alerts(per_minute).then_some(per_minute)
    }

    /// `true`: one more is up.
    fn look_for_alerts(&self, per_minute: u32) -> bool {
        let before = self.fetches.alerts_up.load(Relaxed) as usize;
        let up = alerts_up(before, per_minute);
        self.fetches.alerts_up.store(up as u32, Relaxed);
        up > before
    }

    pub fn failed(&self) {
        self.refill_failures.fetch_add(1, Relaxed);
    }

    pub fn burned(&self, cause: BurnCause, ids: u64) {
        self.burned[cause as usize].fetch_add(ids, Relaxed);
    }

    /// By the launcher alone, now and then; `drawn_ever`: a count that only rises.
    pub fn measure_pace(&self, drawn_ever: u64, now: BootMs) {
        self.look_for_alerts(self.fetches().per_minute(now));
        let before_ms = self.paced_boot_ms.swap(now.0, Relaxed);
        let before_ids = self.paced_ids.swap(drawn_ever, Relaxed);
        if before_ms == 0 {
            return;
        }
        let before = f64::from_bits(self.pace.load(Relaxed));
        let before = (before > 0.0).then_some(before);
        let drawn = drawn_ever.saturating_sub(before_ids);
        let pace = pace(before, drawn, now.0.saturating_sub(before_ms));
        self.pace.store(pace.to_bits(), Relaxed);
    }

    /// As it was when nothing had been counted.
    pub fn forget_all(&self) {
        let counts = [
            &self.refills,
            &self.refill_failures,
            &self.refill_us_last,
            &self.refill_us_max,
            &self.refill_us_sum,
            &self.pace,
            &self.paced_boot_ms,
            &self.paced_ids,
            &self.fetches.bucket,
        ];
        for word in counts.into_iter().chain(&self.burned) {
            word.store(0, Relaxed);
        }
        for word in self.fetches.counts.iter().chain([&self.fetches.alerts_up]) {
            word.store(0, Relaxed);
        }
    }

    pub fn view(&self) -> TallyView {
        let refills = self.refills.load(Relaxed);
        let mean = self.refill_us_sum.load(Relaxed).checked_div(refills);
        TallyView {
            refills,
            refill_failures: self.refill_failures.load(Relaxed),
            refill_us: mean.map(|mean| {
                [
                    self.refill_us_last.load(Relaxed),
                    self.refill_us_max.load(Relaxed),
                    mean,
                ]
            }),
            ids_per_s: f64::from_bits(self.pace.load(Relaxed)),
            fetches: self.fetches(),
            alerts: self.fetches.alerts_up.load(Relaxed) as usize,
        }
    }

    /// Ids by cause, as JSON; causes without ids are left out.
    pub fn burned_json(&self) -> String {
        let burned = BurnCause::ALL
            .iter()
            .map(|cause| (cause.name(), self.burned[*cause as usize].load(Relaxed)))
            .filter(|(_, ids)| *ids > 0)
            .map(|(cause, ids)| format!("\"{cause}\": {ids}"));
        format!("{{{}}}", burned.collect::<Vec<_>>().join(", "))
    }
}
