//! UUID version 7 (RFC 9562, 5.7), strictly increasing within one [`Generator`].
//!
//! ```text
//! bits   0 ..  47   unix_ts_ms  Unix time in ms
//! bits  48 ..  51   version     0111
//! bits  52 ..  63   rand_a      fraction of the ms, in 1/4096 (244 ns): method 3 of RFC 9562, 6.2
//! bits  64 ..  65   variant     10
//! bits  66 ..  83   rand_b      counter, 18 bits
//! bits  84 .. 127   rand_b      random, 44 bits
//! ```
//!
//! `unix_ts_ms` and `rand_a` are one number, the *tick*, as PostgreSQL 18 does it.
//! - The tick advances with the clock: the counter starts at a random value with its top bit clear, so 61
//!   bits of the id are random. (The clear bit leaves room to count: RFC 9562, 6.2, "fixed-length
//!   dedicated counter seeding".)
//! - It does not (two ids within 244 ns, a clock that stands or went back): the counter goes up by one and
//!   44 bits are random, drawn anew.
//! - The counter is full: the tick goes up by one, and the counter starts at random again.
//!
//! So the ids of one generator rise whatever the clock does, and never repeat. The tick runs ahead of a
//! clock that does not go back by one per 131,072 ids of one reading or more, which is 1 ms after 2^29 of
//! them: while a clock moves at all, an id is never a millisecond ahead of it. After a clock went back,
//! ids go on from the last one until the clock has caught up. Ids of two generators rest on the random
//! bits. A generator belongs to one process: two copies of one (a fork) would count the same counter.

/// Bits of the tick below the millisecond.
const FRACTION_BITS: u32 = 12;
const FRACTION_MASK: u64 = (1 << FRACTION_BITS) - 1;
const COUNTER_BITS: u32 = 18;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;
/// A fresh counter lies in the lower half.
const COUNTER_SEED_MASK: u64 = COUNTER_MAX >> 1;
const RANDOM_BITS: u32 = 44;
const RANDOM_MASK: u64 = (1 << RANDOM_BITS) - 1;

const RAND_B_BITS: u32 = 62;
const _: () = assert!(COUNTER_BITS + RANDOM_BITS == RAND_B_BITS);
const RAND_B_MAX: u64 = (1 << RAND_B_BITS) - 1;

const VERSION: u64 = 7;
/// The two bits `10` of RFC 9562, 4.1.
const VARIANT: u64 = 0b10;

const NS_PER_MS: u64 = 1_000_000;

/// What makes the next id larger than the last. One per process; start anew after a fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generator {
    /// ms and fraction of the last id.
    tick: u64,
    /// Counter of the last id.
    counter: u64,
}

impl Generator {
    /// A generator that has made no id yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { tick: 0, counter: 0 }
    }

    /// The next id, in network byte order; larger than every id before it, compared bytewise.
    ///
    /// `now_ns` is `CLOCK_REALTIME` in ns since 1970 (any value is taken); `random` holds 62 bits from a
    /// cryptographically strong source, fresh for every call (the top two are not used).
    #[inline]
    #[must_use]
    pub fn next(&mut self, now_ns: u64, random: u64) -> [u8; 16] {
        let now_tick = tick_at(now_ns);
        if now_tick > self.tick {
            self.open(now_tick, random);
        } else if self.counter < COUNTER_MAX {
            self.counter += 1;
        } else {
            self.open(self.tick + 1, random);
        }
        compose(self.tick, (self.counter << RANDOM_BITS) | (random & RANDOM_MASK))
    }

    #[inline]
    fn open(&mut self, tick: u64, random: u64) {
        self.tick = tick;
        self.counter = (random >> RANDOM_BITS) & COUNTER_SEED_MASK;
    }
}

/// At most 60 bits: 2^64 ns are 2^44.1 ms.
const fn tick_at(now_ns: u64) -> u64 {
    let fraction = ((now_ns % NS_PER_MS) << FRACTION_BITS) / NS_PER_MS;
    ((now_ns / NS_PER_MS) << FRACTION_BITS) | fraction
}

const fn compose(tick: u64, rand_b: u64) -> [u8; 16] {
    let high = ((tick >> FRACTION_BITS) << 16) | (VERSION << FRACTION_BITS) | (tick & FRACTION_MASK);
    let low = (VARIANT << RAND_B_BITS) | rand_b;
    (((high as u128) << 64) | low as u128).to_be_bytes()
}

/// Unix time in ms that a UUID carries; `None` unless it is version 7 of the RFC's variant.
#[must_use]
pub const fn timestamp_ms(uuid: &[u8; 16]) -> Option<u64> {
    let bits = u128::from_be_bytes(*uuid);
    let (high, low) = ((bits >> 64) as u64, bits as u64);
    if (high >> FRACTION_BITS) & 0xf != VERSION || low >> RAND_B_BITS != VARIANT {
        return None;
    }
    Some(high >> 16)
}

/// Largest `unix_ts_ms`.
const MS_MAX: u64 = (1 << 48) - 1;
const US_PER_MS: u64 = 1_000;

/// A version 7 UUID of a moment in the past (or the future): for history that gets its ids late.
///
/// `at_us` is Unix µs; `rand_a` is its fraction of the ms. Two of one microsecond differ by their 62 random
/// bits only, in no order. `None`: before 1970 or past 48 bits of ms (the year 10889).
#[must_use]
pub const fn at(at_us: i64, random: u64) -> Option<[u8; 16]> {
    if at_us < 0 {
        return None;
    }
    let (ms, us) = (at_us as u64 / US_PER_MS, at_us as u64 % US_PER_MS);
    if ms > MS_MAX {
        return None;
    }
    let fraction = (us << FRACTION_BITS) / US_PER_MS;
    Some(compose(ms << FRACTION_BITS | fraction, random & RAND_B_MAX))
}

/// The same id, `delta_us` µs later (or earlier).
///
/// Ids that rise still do when they are moved by one and the same delta. `None`: before 1970 or past 48 bits
/// of ms.
#[must_use]
pub const fn shifted(uuid: &[u8; 16], delta_us: i64) -> Option<[u8; 16]> {
    let bits = u128::from_be_bytes(*uuid);
    let high = (bits >> u64::BITS) as u64;
    let tick = high >> 16 << FRACTION_BITS | high & FRACTION_MASK;
    let delta = ((delta_us as i128) << FRACTION_BITS).div_euclid(US_PER_MS as i128);
    let moved = tick as i128 + delta;
    if moved < 0 || moved > (MS_MAX << FRACTION_BITS | FRACTION_MASK) as i128 {
        return None;
    }
    Some(compose(moved as u64, bits as u64 & RAND_B_MAX))
}

/// The smallest version 7 UUID whose time (in ms, as [`timestamp_ms`] reads it) is at or after `at_us` (Unix
/// µs), whoever made it. Clamped to the first and the last millisecond of the format.
#[must_use]
pub const fn lowest_at(at_us: i64) -> [u8; 16] {
    // Up, because an id of a started millisecond carries its beginning.
    let us_per_ms = US_PER_MS as i64;
    let ms = at_us.div_euclid(us_per_ms) + (at_us.rem_euclid(us_per_ms) > 0) as i64;
    if ms > MS_MAX as i64 {
        return compose(MS_MAX << FRACTION_BITS | FRACTION_MASK, RAND_B_MAX);
    }
    compose((if ms < 0 { 0 } else { ms as u64 }) << FRACTION_BITS, 0)
}

/// The largest version 7 UUID whose time is at or before `at_us` (Unix µs). Clamped as [`lowest_at`]; before
/// 1970 it is the smallest one.
#[must_use]
pub const fn highest_at(at_us: i64) -> [u8; 16] {
    let ms = at_us.div_euclid(US_PER_MS as i64);
    if ms < 0 {
        return compose(0, 0);
    }
    let ms = if ms > MS_MAX as i64 { MS_MAX } else { ms as u64 };
    compose(ms << FRACTION_BITS | FRACTION_MASK, RAND_B_MAX)
}

/// Bytes in a [`RandomPool`]: 512 ids per call of the server's strong source, whose fixed cost (about a
/// microsecond: locks, a reseed check) is then a few per cent of an id's.
pub const RANDOM_POOL_LEN: usize = 4096;

const WORD_LEN: usize = size_of::<u64>();
const _: () = assert!(RANDOM_POOL_LEN.is_multiple_of(WORD_LEN));

/// Random bytes drawn ahead. Each is given out once and wiped at that moment, so that a later look at
/// the memory tells nothing about ids that exist. After a fork: [`RandomPool::clear`].
#[derive(Clone)]
pub struct RandomPool {
    bytes: [u8; RANDOM_POOL_LEN],
    /// Unused bytes, at the front.
    left: usize,
}

impl core::fmt::Debug for RandomPool {
    /// Never the bytes.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RandomPool")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Default for RandomPool {
    fn default() -> Self {
        Self::new()
    }
}

impl RandomPool {
    /// An empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: [0; RANDOM_POOL_LEN],
            left: 0,
        }
    }

    /// 64 random bits, used for the first and last time; `None`: refill first.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Option<u64> {
        // An array of known length: one load and one store instead of a loop over bytes.
        let (rest, word) = self
            .bytes
            .get_mut(..self.left)?
            .split_last_chunk_mut::<WORD_LEN>()?;
        let random = u64::from_be_bytes(*word);
        *word = [0; WORD_LEN];
        self.left = rest.len();
        Some(random)
    }

    /// Fill the pool from a source that cannot fail; the closure must write every byte.
    pub fn refill(&mut self, fill: impl FnOnce(&mut [u8])) {
        fill(&mut self.bytes);
        self.left = RANDOM_POOL_LEN;
    }

    /// Fill the pool from a source that can fail.
    ///
    /// # Errors
    /// That of the source; the pool is empty then, whatever the source has written.
    pub fn try_refill<E>(&mut self, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let filled = fill(&mut self.bytes);
        match filled {
            Ok(()) => self.left = RANDOM_POOL_LEN,
            Err(_) => self.clear(),
        }
        filled
    }

    /// Wipe what is left: after a fork, or the child would draw the parent's bytes.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
        self.left = 0;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
