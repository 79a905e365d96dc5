//! What a set of events comes to, whatever the order they are seen in.

/// The output step of SplitMix64 (Guy Steele, Doug Lea, Christine Flood; public domain): a bijection in which every bit of
/// the input sways every bit of the output. `idgen.mix_id()` is the same in SQL.
#[must_use]
pub const fn mix_id(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An event within its source: its number, and when it was recorded, in microseconds since 1970. The number alone is not enough:
/// a database that has lost commits gives it to another event.
pub type EventKey = (i64, i64);

/// How many, and the XOR and wrapping sum of [`mix_id`] of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdDigest {
    /// How many.
    pub rows: u64,
    /// XOR.
    pub xor: u64,
    /// Sum, modulo 2^64.
    pub sum: u64,
}

impl IdDigest {
    /// One more.
    pub fn add(&mut self, id: i64) {
        let mixed = mix_id(id.cast_unsigned());
        self.rows += 1;
        self.xor ^= mixed;
        self.sum = self.sum.wrapping_add(mixed);
    }

    /// One more event. `idgen.event_digest()` does the same in SQL.
    pub fn add_event(&mut self, (id, at_us): EventKey) {
        self.add((mix_id(id.cast_unsigned()) ^ at_us.cast_unsigned()).cast_signed());
    }

    /// Of these events.
    #[must_use]
    pub fn of(events: impl IntoIterator<Item = EventKey>) -> Self {
        let mut digest = Self::default();
        events.into_iter().for_each(|event| digest.add_event(event));
        digest
    }
}
