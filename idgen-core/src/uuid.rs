//! What any UUID of RFC 9562 says about itself, read as PostgreSQL 18 reads it.

const VARIANT_SHIFT: u32 = 62;
/// The two bits `10` of RFC 9562, 4.1.
const VARIANT: u64 = 0b10;
const VERSION_SHIFT: u32 = 12;

/// From the first day of the Gregorian calendar, 1582-10-15, to 1970-01-01, in µs: 141,427 days.
const GREGORIAN_TO_UNIX_US: i64 = 141_427 * 86_400_000_000;
/// Version 1 counts in 100 ns.
const TICKS_PER_US: u64 = 10;
const US_PER_MS: u64 = 1_000;

const fn halves(uuid: &[u8; 16]) -> (u64, u64) {
    let bits = u128::from_be_bytes(*uuid);
    ((bits >> u64::BITS) as u64, bits as u64)
}

/// The version; `None` for another variant, the nil and the max UUID among them.
#[must_use]
pub const fn version(uuid: &[u8; 16]) -> Option<u8> {
    let (high, low) = halves(uuid);
    if low >> VARIANT_SHIFT != VARIANT {
        return None;
    }
    Some((high >> VERSION_SHIFT & 0xf) as u8)
}

/// Unix time in µs of a version 1 (before 1970 it is negative) or version 7 UUID (whole ms); `None` for others.
#[must_use]
pub const fn timestamp_us(uuid: &[u8; 16]) -> Option<i64> {
    let (high, _) = halves(uuid);
    match version(uuid) {
        Some(1) => {
            // time_low (32 bits) | time_mid (16) | version (4) | time_hi (12): at most 60 bits.
            let ticks = (high & 0xfff) << 48 | (high >> 16 & 0xffff) << 32 | high >> 32;
            Some((ticks / TICKS_PER_US) as i64 - GREGORIAN_TO_UNIX_US)
        }
        Some(7) => Some((high >> 16) as i64 * US_PER_MS as i64),
        _ => None,
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::uuidv7;
    use proptest::prelude::*;

    /// RFC 9562, A.1 and A.6, of one moment: 2022-02-22 19:22:22 UTC.
    const V1: [u8; 16] = 0xc232_ab00_9414_11ec_b3c8_9f6b_dece_d846_u128.to_be_bytes();
    const V7: [u8; 16] = 0x017f_22e2_79b0_7cc3_98c4_dc0c_0c07_398f_u128.to_be_bytes();
    const MOMENT_US: i64 = 1_645_557_742_000_000;

    #[test]
    fn the_examples_of_the_rfc() {
        assert_eq!((version(&V1), timestamp_us(&V1)), (Some(1), Some(MOMENT_US)));
        assert_eq!((version(&V7), timestamp_us(&V7)), (Some(7), Some(MOMENT_US)));
    }

    #[test]
    fn others_have_no_time_and_other_variants_no_version() {
        for other in [0, 2, 3, 4, 5, 6, 8, 15_u8] {
            let mut uuid = V7;
            uuid[6] = other << 4 | uuid[6] & 0xf;
            assert_eq!((version(&uuid), timestamp_us(&uuid)), (Some(other), None));
        }
        for variant in [0x00, 0x40, 0xc0_u8] {
            for mut uuid in [V1, V7] {
                uuid[8] = variant | uuid[8] & 0x3f;
                assert_eq!((version(&uuid), timestamp_us(&uuid)), (None, None));
            }
        }
        assert_eq!(version(&[0; 16]), None);
        assert_eq!(version(&[0xff; 16]), None);
    }

    #[test]
    fn the_first_and_the_last_moment_of_version_1() {
        let mut uuid = [0; 16];
        (uuid[6], uuid[8]) = (0x10, 0x80);
        assert_eq!(timestamp_us(&uuid), Some(-GREGORIAN_TO_UNIX_US));
        uuid = [0xff; 16];
        (uuid[6], uuid[8]) = (0x1f, 0xbf);
        let ticks = (1_i64 << 60) - 1;
        assert_eq!(timestamp_us(&uuid), Some(ticks / 10 - GREGORIAN_TO_UNIX_US));
    }

    proptest! {
        #[test]
        fn version_7_is_read_as_the_generator_reads_it(uuid in any::<[u8; 16]>()) {
            let ms = uuidv7::timestamp_ms(&uuid);
            prop_assert_eq!(ms.is_some(), version(&uuid) == Some(7));
            if let Some(ms) = ms {
                prop_assert_eq!(timestamp_us(&uuid), i64::try_from(ms * 1_000).ok());
            }
        }
    }
}
