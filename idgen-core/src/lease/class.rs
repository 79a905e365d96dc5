//! The two kinds of identity that are leased, and what differs between them.
//!
//! | | worker | shard |
//! |---|---|---|
//! | chosen by | the pool: whichever is free | the configuration: exactly these |
//! | after a crash | another one is taken | the same one is waited for |
//! | hence its lease | is long, to ride out outages of the store | is short, to change hands fast |
//! | epochs | have half of the pool each | share all shards |

use super::timing::TimingSpec;
use core::fmt;

/// A kind of identity. Each has its own rows in the store, its own lease, and its own slots in a
/// server's shared memory: worker 7 and shard 7 have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Worker numbers, which a server takes from the cell's pool.
    Worker,
    /// Logical shards, which the configuration of a server names.
    Shard,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Shard];

    /// What SQL (`kind`), metrics and logs call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Shard => "shard",
        }
    }

    /// How many there are; numbers begin at 0. Ids carry 10 bits of a worker and 13 of a shard.
    #[must_use]
    pub const fn size(self) -> u16 {
        match self {
            Self::Worker => 1 << 10,
            Self::Shard => 1 << 13,
        }
    }

    /// Its times, where nothing else is asked for. The window and period of a shard are short because
    /// whoever takes it over waits for the end of the window; that of a worker costs nobody anything.
    #[must_use]
    pub fn timing(self, ttl_ms: Option<u64>) -> TimingSpec {
        const SHARD_WINDOW_MS: u64 = 10_000;
        const SHARD_PERIOD_MS: u64 = 2_000;
        match self {
            Self::Worker => TimingSpec::of_ttl(ttl_ms.unwrap_or(600_000)),
            Self::Shard => {
                let spec = TimingSpec::of_ttl(ttl_ms.unwrap_or(30_000));
                TimingSpec {
                    window_ms: Some(spec.usable_ms().min(SHARD_WINDOW_MS)),
                    period_ms: Some((spec.ttl_ms / 3).min(SHARD_PERIOD_MS)),
                    ..spec
                }
            }
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::timing::{TTL_MS_MAX, TTL_MS_MIN, Timing};
    use super::*;
    use crate::format::{CLASSIC, SHARDED};

    #[test]
    fn there_are_as_many_as_ids_can_carry() {
        assert_eq!(u32::from(Class::Worker.size()), 1 << CLASSIC.node_bits);
        assert_eq!(u32::from(Class::Shard.size()), 1 << SHARDED.node_bits);
    }

    #[test]
    fn shards_change_hands_faster_than_workers() {
        let times = |class: Class| {
            let timing = Timing::new(class.timing(None)).unwrap();
            (
                timing.ttl_ms(),
                timing.window_ms(),
                timing.period_ms(),
                timing.margin_ms(),
            )
        };
        assert_eq!(times(Class::Worker), (600_000, 480_000, 10_000, 120_000));
        assert_eq!(times(Class::Shard), (30_000, 10_000, 2_000, 6_000));
    }

    #[test]
    fn every_ttl_has_times_that_fit_it() {
        for class in Class::ALL {
            for ttl_ms in [TTL_MS_MIN, 4_000, 12_500, 40_000, TTL_MS_MAX] {
                let timing = Timing::new(class.timing(Some(ttl_ms)));
                assert!(timing.is_ok(), "{class} {ttl_ms}: {timing:?}");
            }
        }
    }
}
