//! Do the other servers of the cell show the same time?
//!
//! A clock that was wrong from the start is not stepped, and a host that follows a wrong time server is synchronised.
//! What is left to compare with are the clocks of the others. Ours counts as one of them: it is apart when it is far
//! from the median of all, so when a majority shows another time. Where one half shows one time and one another, nobody
//! can tell who is right, and nobody is refused.
//!
//! A reading that came late makes a peer look as if it were behind; how late readings can be is the allowance.

/// Difference to the median that is tolerated, in ms, on top of the allowance.
pub const APART_MS_MAX: u64 = 500;

/// Fewer peers tell nothing: of two clocks nobody knows which one is wrong.
pub const PEERS_MIN: usize = 2;

/// So many are enough to go by when a lease is to be taken.
pub const PEERS_ENOUGH: usize = 5;

/// How long a lease waits for peers that are there but have not been heard, in ms: each speaks with its renewals, by
/// default every 10 s plus 10 %, and a renewal takes its time.
pub const LISTEN_MS_MAX: u64 = 12_000;

/// Age up to which a reading counts, in ms: a few missed renewals.
pub const HEARD_MS_MAX: u64 = 60_000;

/// What is known of the peers' clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// How far each is ahead (positive) of our server's clock, in ms.
    pub ahead_ms: Vec<i64>,
    /// It is worth waiting for more: that many are there, and may be heard any moment.
    pub awaited: Option<usize>,
    /// How late readings can be.
    pub allowance_ms: u64,
}

/// Our clock is not where most others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// How far it is ahead (positive) of the median.
    pub by_ms: i64,
    /// Of how many peers.
    pub peers: usize,
}

impl Peers {
    /// How far our clock is ahead of the median of all, ours included; `None`: too few to tell.
    #[must_use]
    pub fn ahead_of_median_ms(&self) -> Option<i64> {
        if self.ahead_ms.len() < PEERS_MIN {
            return None;
        }
        let mut all: Vec<i64> = self.ahead_ms.iter().copied().chain([0]).collect();
        all.sort_unstable();
        // Of an even number any value between the two in the middle is a median; the nearest to ours is taken.
        let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
        Some(0_i64.clamp(low, high).saturating_neg())
    }

    /// Is it too far?
    #[must_use]
    pub fn apart(&self) -> Option<Apart> {
        let by_ms = self.ahead_of_median_ms()?;
        let allowed = APART_MS_MAX.saturating_add(self.allowance_ms);
        (by_ms.unsigned_abs() > allowed).then_some(Apart {
            by_ms,
            peers: self.ahead_ms.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn peers(ahead_ms: &[i64]) -> Peers {
        Peers {
            ahead_ms: ahead_ms.to_vec(),
            ..Peers::default()
        }
    }

    #[test]
    fn two_hosts_ahead_of_three_are_apart_and_the_three_are_not() {
        let apart = peers(&[0, -2_000, -2_000, -2_000]).apart().unwrap();
        assert_eq!((apart.by_ms, apart.peers), (2_000, 4));
        assert_eq!(peers(&[0, 0, 2_000, 2_000]).apart(), None);
    }

    #[test]
    fn one_of_three_is_apart_and_the_others_are_not() {
        assert_eq!(peers(&[900, 800]).apart().map(|apart| apart.by_ms), Some(-800));
        assert_eq!(peers(&[0, 900]).apart(), None);
    }

    #[test]
    fn nobody_is_refused_where_nobody_can_tell() {
        assert_eq!(peers(&[]).apart(), None);
        assert_eq!(peers(&[5_000]).apart(), None, "of two one is wrong, but which?");
        assert_eq!(peers(&[0, 5_000, 5_000]).apart(), None, "two against two");
    }

    #[test]
    fn half_a_second_and_the_allowance_are_tolerated() {
        assert_eq!(peers(&[-500, -500]).apart(), None);
        assert!(peers(&[-501, -501]).apart().is_some());
        let late = Peers {
            allowance_ms: 300,
            ..peers(&[-800, -800])
        };
        assert_eq!(late.apart(), None);
    }

    proptest! {
        /// Who is apart has a majority against it: never can two clocks that agree with each other, and are together
        /// the majority, both be refused.
        #[test]
        fn a_clock_that_is_apart_has_the_majority_on_one_side(ahead_ms in prop::collection::vec(-3_000_i64..3_000, 0..9)) {
            if let Some(apart) = peers(&ahead_ms).apart() {
                let limit = i64::try_from(APART_MS_MAX).unwrap();
                let against = ahead_ms.iter().filter(|ahead| if apart.by_ms > 0 { **ahead < -limit } else { **ahead > limit });
                prop_assert!(against.count() * 2 > ahead_ms.len() + 1);
            }
        }

        #[test]
        fn extremes_do_not_overflow(ahead_ms in prop::collection::vec(any::<i64>(), 0..5), allowance_ms: u64) {
            let _ = Peers { allowance_ms, ..peers(&ahead_ms) }.apart();
        }
    }
}
