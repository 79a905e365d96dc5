//! Formats beyond the compiled-in ones: what may be registered, and their text form.
//!
//! A format is registered once and never changed: ids of it exist. Its text form carries the whole layout,
//! so that every server and daemon of a cell means the same by it:
//!
//! ```text
//! classic                                                     compiled in: the name says all
//! mine(1704067200000,1,41,0,0,10,12)                          epoch (Unix ms), sign, timestamp, region,
//!                                                             version, node and sequence bits
//! ours(1704067200000,1,40,0,0,13,10,shard)                    the node is a logical shard
//! ```

use super::{Format, FormatName, LIFE_MS_MIN, SEQ_BITS_MAX, TS_BITS_MAX, by_name, mask};
use crate::clock::UnixMs;
use core::fmt;
use core::str::FromStr;

/// Bits of each field, as an operator gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Widths {
    /// 1: the top bit is always 0. 0: the top bit belongs to the timestamp, which halves its life.
    pub sign: u32,
    /// Timestamp, in ms.
    pub ts: u32,
    /// Region.
    pub region: u32,
    /// Version.
    pub version: u32,
    /// Worker or shard number.
    pub node: u32,
    /// Sequence within one ms.
    pub seq: u32,
}

/// Why a layout cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// The name is taken by a compiled-in format.
    BuiltIn,
    /// Not a name: see [`FormatName`].
    Name,
    /// Neither 0 nor 1.
    SignBits(u32),
    /// More than [`TS_BITS_MAX`], or none.
    TsBits(u32),
    /// More than [`SEQ_BITS_MAX`], or none.
    SeqBits(u32),
    /// No node, or more bits than a node number has (16).
    NodeBits(u32),
    /// The widths do not sum to 64.
    Sum(u32),
    /// Its positive life is shorter than [`LIFE_MS_MIN`].
    Life {
        /// How long it would live.
        life_ms: u64,
    },
    /// The epoch is so late that it must be in another unit.
    Epoch(UnixMs),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("a compiled-in format has this name"),
            Self::Name => write!(
                f,
                "a name is a lower-case letter, then letters, digits or underscores, {} in all at the most",
                super::name::NAME_LEN_MAX
            ),
            Self::SignBits(bits) => write!(f, "{bits} sign bits, not 0 or 1"),
            Self::TsBits(bits) => write!(f, "{bits} timestamp bits, not 1 to {TS_BITS_MAX}"),
            Self::SeqBits(bits) => write!(f, "{bits} sequence bits, not 1 to {SEQ_BITS_MAX}"),
            Self::NodeBits(bits) => write!(f, "{bits} node bits, not 1 to {NODE_BITS_MAX}"),
            Self::Sum(bits) => write!(f, "the widths sum to {bits} bits, not to 64"),
            Self::Life { life_ms } => write!(
                f,
                "ids would be positive for {} days only, not for 366",
                life_ms / (LIFE_MS_MIN / 366)
            ),
            Self::Epoch(epoch) => write!(f, "the epoch, {} ms, lies after the beginning of 2100", epoch.0),
        }
    }
}

impl core::error::Error for RegisterError {}

/// Widest node: numbers are kept in 16 bits.
pub const NODE_BITS_MAX: u32 = 16;

/// 2100-01-01T00:00:00Z. A later epoch is a mistake of the unit (µs for ms).
const EPOCH_MS_MAX: u64 = 4_102_444_800_000;

impl Format {
    /// A format of this layout, if it may be one.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(
        name: &str,
        epoch: UnixMs,
        widths: Widths,
        is_shard: bool,
    ) -> Result<Self, RegisterError> {
        if by_name(name).is_some() {
            return Err(RegisterError::BuiltIn);
        }
        let name = FormatName::new(name).ok_or(RegisterError::Name)?;
        widths.check()?;
        if epoch.0 > EPOCH_MS_MAX {
            return Err(RegisterError::Epoch(epoch));
        }
        let life_ms = mask(widths.ts - (1 - widths.sign)) + 1;
        if life_ms < LIFE_MS_MIN {
            return Err(RegisterError::Life { life_ms });
        }
        let format = Self {
            name,
            epoch,
            has_sign: widths.sign == 1,
            ts_bits: widths.ts,
            region_bits: widths.region,
            version_bits: widths.version,
            node_bits: widths.node,
            seq_bits: widths.seq,
            last_tick: life_ms - 1,
            is_shard,
        };
        debug_assert!(format.is_sound());
        Ok(format)
    }

    /// The widths of the fields.
    #[must_use]
    pub const fn widths(&self) -> Widths {
        Widths {
            sign: self.has_sign as u32,
            ts: self.ts_bits,
            region: self.region_bits,
            version: self.version_bits,
            node: self.node_bits,
            seq: self.seq_bits,
        }
    }
}

impl Widths {
    fn check(&self) -> Result<(), RegisterError> {
        let &Self {
            sign,
            ts,
            region,
            version,
            node,
            seq,
        } = self;
        if sign > 1 {
            return Err(RegisterError::SignBits(sign));
        }
        if ts == 0 || ts > TS_BITS_MAX {
            return Err(RegisterError::TsBits(ts));
        }
        if seq == 0 || seq > SEQ_BITS_MAX {
            return Err(RegisterError::SeqBits(seq));
        }
        if node == 0 || node > NODE_BITS_MAX {
            return Err(RegisterError::NodeBits(node));
        }
        let sum = [ts, region, version, node, seq]
            .iter()
            .fold(sign, |sum, bits| sum.saturating_add(*bits));
        if sum != u64::BITS {
            return Err(RegisterError::Sum(sum));
        }
        Ok(())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)?;
        if by_name(self.name.as_str()).is_some() {
            return Ok(());
        }
        let w = self.widths();
        let shard = if self.is_shard { ",shard" } else { "" };
        write!(
            f,
            "({},{},{},{},{},{},{}{shard})",
            self.epoch.0, w.sign, w.ts, w.region, w.version, w.node, w.seq
        )
    }
}

/// Why a text is no format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatTextError {
    /// Not of the form that [`Format`] is written in.
    Syntax,
    /// A name alone, and no compiled-in format has it.
    Unknown,
    /// The layout is not one that may be registered.
    Layout(RegisterError),
}

impl fmt::Display for FormatTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => {
                f.write_str("not of the form NAME or NAME(epoch,sign,ts,region,version,node,seq[,shard])")
            }
            Self::Unknown => f.write_str("no compiled-in format has this name, and no layout is given"),
            Self::Layout(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FormatTextError {}

impl FromStr for Format {
    type Err = FormatTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((name, layout)) = text.split_once('(') else {
            return by_name(text).copied().ok_or(FormatTextError::Unknown);
        };
        let layout = layout.strip_suffix(')').ok_or(FormatTextError::Syntax)?;
        let (numbers, is_shard) = match layout.strip_suffix(",shard") {
            Some(numbers) => (numbers, true),
            None => (layout, false),
        };
        let mut fields = numbers.split(',');
        let epoch = UnixMs(number(fields.next())?);
        let mut width = || {
            number(fields.next()).and_then(|bits| u32::try_from(bits).map_err(|_| FormatTextError::Syntax))
        };
        let widths = Widths {
            sign: width()?,
            ts: width()?,
            region: width()?,
            version: width()?,
            node: width()?,
            seq: width()?,
        };
        if fields.next().is_some() {
            return Err(FormatTextError::Syntax);
        }
        Self::register(name, epoch, widths, is_shard).map_err(FormatTextError::Layout)
    }
}

/// Digits only: `u64::from_str` would take a sign too, and one format would have two texts.
pub(super) fn number(field: Option<&str>) -> Result<u64, FormatTextError> {
    let field = field.ok_or(FormatTextError::Syntax)?;
    let plain = field.bytes().all(|byte| byte.is_ascii_digit()) && (field == "0" || !field.starts_with('0'));
    if !plain {
        return Err(FormatTextError::Syntax);
    }
    field.parse().map_err(|_| FormatTextError::Syntax)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::{ALL, CLASSIC, EPOCH_2020, Parts};
    use super::*;
    use proptest::prelude::*;

    const TWITTER: UnixMs = UnixMs(1_288_834_974_657);

    fn widths(sign: u32, ts: u32, region: u32, version: u32, node: u32, seq: u32) -> Widths {
        Widths {
            sign,
            ts,
            region,
            version,
            node,
            seq,
        }
    }

    fn refusal(name: &str, epoch: UnixMs, widths: Widths) -> RegisterError {
        Format::register(name, epoch, widths, false).unwrap_err()
    }

    #[test]
    fn what_does_not_hold_together_is_refused_by_name() {
        let good = widths(1, 41, 0, 0, 10, 12);
        assert_eq!(refusal("classic", EPOCH_2020, good), RegisterError::BuiltIn);
        for name in ["", "Mine", "1st", "a-b", "naive\u{e9}", &"x".repeat(32)] {
            assert_eq!(refusal(name, EPOCH_2020, good), RegisterError::Name, "{name:?}");
        }
        let of = |widths| refusal("mine", EPOCH_2020, widths);
        assert_eq!(of(widths(2, 41, 0, 0, 9, 12)), RegisterError::SignBits(2));
        assert_eq!(of(widths(1, 42, 0, 0, 10, 11)), RegisterError::TsBits(42));
        assert_eq!(of(widths(1, 0, 30, 11, 10, 12)), RegisterError::TsBits(0));
        assert_eq!(of(widths(1, 40, 0, 0, 10, 13)), RegisterError::SeqBits(13));
        assert_eq!(of(widths(1, 41, 0, 0, 22, 0)), RegisterError::SeqBits(0));
        assert_eq!(of(widths(1, 41, 10, 0, 0, 12)), RegisterError::NodeBits(0));
        assert_eq!(of(widths(1, 34, 0, 0, 17, 12)), RegisterError::NodeBits(17));
        assert_eq!(of(widths(1, 41, 0, 0, 10, 11)), RegisterError::Sum(63));
        assert_eq!(
            of(widths(0, 41, u32::MAX, 1, 10, 12)),
            RegisterError::Sum(u32::MAX)
        );
        let life_ms = 1 << 34;
        assert_eq!(of(widths(1, 34, 2, 1, 14, 12)), RegisterError::Life { life_ms });
        // The sign bit is the timestamp's: half the life.
        assert!(matches!(
            of(widths(0, 35, 2, 1, 14, 12)),
            RegisterError::Life { .. }
        ));
        let in_us = UnixMs(EPOCH_2020.0 * 1_000);
        assert_eq!(refusal("mine", in_us, good), RegisterError::Epoch(in_us));
    }

    /// bwmarrin and Twitter's first: an id whose moment is published.
    #[test]
    fn a_foreign_layout_reads_foreign_ids() {
        let twitter = Format::register("twitter", TWITTER, widths(1, 41, 0, 0, 10, 12), false).unwrap();
        let parts = twitter.parse(1_541_815_603_606_036_480).unwrap();
        assert_eq!(parts.unix_ms, UnixMs(1_656_432_460_105));
        assert_eq!(twitter.to_string(), "twitter(1288834974657,1,41,0,0,10,12)");
    }

    #[test]
    fn texts_that_are_no_format_are_refused() {
        use FormatTextError::{Layout, Syntax, Unknown};
        for (text, error) in [
            ("", Unknown),
            ("mine", Unknown),
            ("mine(", Syntax),
            ("mine()", Syntax),
            ("mine(1,1,41,0,0,10)", Syntax),
            ("mine(1,1,41,0,0,10,12,0)", Syntax),
            ("mine(1,1,41,0,0,10,+12)", Syntax),
            ("mine(01,1,41,0,0,10,12)", Syntax),
            ("mine(99999999999999999999,1,41,0,0,10,12)", Syntax),
            (
                "classic(1577836800000,1,41,0,0,10,12)",
                Layout(RegisterError::BuiltIn),
            ),
            ("mine(1,1,41,0,0,10,11)", Layout(RegisterError::Sum(63))),
        ] {
            assert_eq!(text.parse::<Format>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn compiled_in_formats_are_their_names() {
        for format in ALL {
            assert_eq!(format.to_string(), format.name.as_str());
            assert_eq!(format.to_string().parse(), Ok(*format));
        }
        assert_eq!(CLASSIC.widths(), widths(1, 41, 0, 0, 10, 12));
    }

    proptest! {
        #[test]
        fn whatever_is_registered_is_sound_and_reads_its_own_text(
            epoch in 0u64..=4_102_444_800_000,
            sign in 0u32..3, ts in 30u32..43, region in 0u32..6, version in 0u32..4, seq in 0u32..14,
            is_shard: bool,
        ) {
            let node = 64u32.saturating_sub(sign + ts + region + version + seq);
            let widths = widths(sign, ts, region, version, node, seq);
            if let Ok(format) = Format::register("mine", UnixMs(epoch), widths, is_shard) {
                prop_assert!(format.is_sound());
                prop_assert_eq!(format.to_string().parse(), Ok(format));
                let last = Parts {
                    unix_ms: format.last_ms(),
                    region: (region > 0).then_some(0),
                    version: (version > 0).then_some(0),
                    node: format.node_max(),
                    seq: format.seq_max(),
                    is_shard,
                };
                prop_assert!(format.compose(last).is_ok_and(|id| id > 0));
            }
        }
    }
}
