//! One number out of another: neighbours come out far apart.

/// The finaliser of MurmurHash3 (Austin Appleby, public domain): a bijection in which every bit of the input sways
/// every bit of the output. Spreads; keeps no secret.
#[must_use]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::mix;

    #[test]
    fn neighbours_differ_in_about_half_of_their_bits() {
        for x in 0..1_000_u64 {
            let differing = (mix(x) ^ mix(x + 1)).count_ones();
            assert!((12..=52).contains(&differing), "{x}: {differing}");
        }
    }
}
