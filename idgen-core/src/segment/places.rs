//! Which tag gives its place in shared memory away when another needs one and all are taken.
//!
//! The one that was used least recently, of those that nobody waits for or refills and that have not been used for a
//! minimum time. Without that time two tags in use would throw each other out in turn, each time at the cost of the
//! ranges in memory and a database write.

/// A place that is taken, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// For how long nobody has drawn from it, waited for it or looked it up.
    pub idle_ms: u64,
    /// A worker is just refilling it, or is asked to.
    pub is_busy: bool,
}

/// The place to give away. `None`: all are in use; ask again later.
pub fn idlest<P>(places: impl IntoIterator<Item = (P, Use)>, idle_ms_min: u64) -> Option<P> {
    places
        .into_iter()
        .filter(|(_, used)| !used.is_busy && used.idle_ms >= idle_ms_min)
        .max_by_key(|(_, used)| used.idle_ms)
        .map(|(place, _)| place)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MIN_MS: u64 = 60_000;

    fn idle(idle_ms: u64) -> Use {
        Use {
            idle_ms,
            is_busy: false,
        }
    }

    fn busy(idle_ms: u64) -> Use {
        Use {
            idle_ms,
            is_busy: true,
        }
    }

    #[test]
    fn the_least_recently_used_one_goes() {
        let places = [("a", idle(61_000)), ("b", idle(90_000)), ("c", idle(70_000))];
        assert_eq!(idlest(places, MIN_MS), Some("b"));
    }

    #[test]
    fn what_is_in_use_stays_whatever_it_costs() {
        assert_eq!(idlest([("a", idle(59_999)), ("b", idle(0))], MIN_MS), None);
        assert_eq!(idlest([("a", busy(u64::MAX)), ("b", idle(0))], MIN_MS), None);
        assert_eq!(
            idlest([("a", busy(u64::MAX)), ("b", idle(60_000))], MIN_MS),
            Some("b")
        );
        assert_eq!(idlest(Vec::<((), Use)>::new(), MIN_MS), None);
    }
}
