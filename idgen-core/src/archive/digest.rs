//! What a set of event ids comes to, whatever the order they are seen in.

/// The output step of SplitMix64 (Guy Steele, Doug Lea, Christine Flood; public domain): a bijection in which every bit of
/// the input sways every bit of the output. `idgen.mix_id()` is the same in SQL.
#[must_use]
pub const fn mix_id(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How many ids, and the XOR and wrapping sum of [`mix_id`] of each.
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

    /// Of these.
    #[must_use]
    pub fn of(ids: impl IntoIterator<Item = i64>) -> Self {
        let mut digest = Self::default();
        ids.into_iter().for_each(|id| digest.add(id));
        digest
    }
}
