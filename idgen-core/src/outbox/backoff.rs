//! Waiting longer each time, up to a limit.

/// Doubles from `first_ms` to `last_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first_ms: u64,
    last_ms: u64,
    next_ms: u64,
}

impl Backoff {
    /// One that begins.
    #[must_use]
    pub const fn new(first_ms: u64, last_ms: u64) -> Self {
        Self {
            first_ms,
            last_ms,
            next_ms: first_ms,
        }
    }

    /// Between looks at a queue that is empty: an event waits for 25 ms in the mean, and looking costs little.
    #[must_use]
    pub const fn idle() -> Self {
        Self::new(5, 50)
    }

    /// Between tries of what has failed.
    #[must_use]
    pub const fn trouble() -> Self {
        Self::new(200, 30_000)
    }

    /// How long to wait now; `chance` of 0 to 255 takes up to a quarter off, so that those who failed together do not come
    /// back together.
    pub fn wait_ms(&mut self, chance: u8) -> u64 {
        let wait = self.next_ms;
        self.next_ms = (wait * 2).min(self.last_ms);
        wait - wait * u64::from(chance) / 1_024
    }

    /// It went well: the next wait is short again.
    pub fn settle(&mut self) {
        self.next_ms = self.first_ms;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_begin_anew() {
        let mut backoff = Backoff::new(5, 50);
        let waits: [u64; 6] = core::array::from_fn(|_| backoff.wait_ms(0));
        assert_eq!(waits, [5, 10, 20, 40, 50, 50]);
        backoff.settle();
        assert_eq!(backoff.wait_ms(0), 5);
    }

    #[test]
    fn chance_takes_at_most_a_quarter_off() {
        let mut backoff = Backoff::new(1_024, 1_024);
        assert_eq!(backoff.wait_ms(0), 1_024);
        assert_eq!(backoff.wait_ms(255), 1_024 - 255);
    }
}
