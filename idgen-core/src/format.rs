//! Layouts of 64-bit ids, as data.
//!
//! From the highest bit: sign (always 0) or nothing, milliseconds since the format's epoch, region,
//! version, node (a worker, or a logical shard), sequence. A format is a one-way door: once ids of it
//! exist, nothing of it changes. Uniqueness holds within one cell and one format; one column takes one
//! format, since two formats give the same number to different ids.
//!
//! Every value that does not fit is refused, here, by type: a node that is too large is never XORed or
//! masked into its neighbour, and a time past the last millisecond never wraps.

pub mod layout;
pub mod name;
pub mod plan;
pub mod register;

use core::fmt;

use crate::clock::UnixMs;

pub use name::FormatName;
pub use plan::{CellFormat, FormatPlan};

/// 2020-01-01T00:00:00Z, the epoch of the compiled-in formats.
pub const EPOCH_2020: UnixMs = UnixMs(1_577_836_800_000);

const US_PER_MS: i64 = 1_000;

/// Most timestamp bits of any format: what the mint word holds beside its generation and sequence.
pub const TS_BITS_MAX: u32 = 41;
/// Most sequence bits of any format: what the mint word holds.
pub const SEQ_BITS_MAX: u32 = 12;
/// A format lives at least this long (366 days, in ms): a shorter one is a typing error.
pub const LIFE_MS_MIN: u64 = 366 * 86_400_000;

/// One layout. The widths sum to 64 with the sign; see [`Format::is_sound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// What SQL and the configuration call it.
    pub name: FormatName,
    /// The moment of tick 0.
    pub epoch: UnixMs,
    /// One bit at the top that is always 0.
    pub has_sign: bool,
    /// Width of the timestamp, in bits; its unit is 1 ms.
    pub ts_bits: u32,
    /// Width of the region, in bits; 0: the format has none.
    pub region_bits: u32,
    /// Width of the version, in bits; 0: the format has none.
    pub version_bits: u32,
    /// Width of the worker or shard number, in bits.
    pub node_bits: u32,
    /// Width of the sequence within one ms, in bits.
    pub seq_bits: u32,
    /// The last tick (ms since `epoch`) of the format's life; ids up to it are positive.
    pub last_tick: u64,
    /// The node is a logical shard, not a worker.
    pub is_shard: bool,
}

/// 1 sign, 41 ms, 10 worker, 12 sequence; ends 2089-09-06T15:47:35.551Z. The default.
pub const CLASSIC: Format = Format {
    name: FormatName::built_in("classic"),
    epoch: EPOCH_2020,
    has_sign: true,
    ts_bits: 41,
    region_bits: 0,
    version_bits: 0,
    node_bits: 10,
    seq_bits: 12,
    last_tick: (1 << 41) - 1,
    is_shard: false,
};

/// 1 sign, 41 ms, 2 region, 1 version, 10 worker, 9 sequence; ends 2089-09-06T15:47:35.551Z.
pub const REGIONAL: Format = Format {
    name: FormatName::built_in("regional"),
    epoch: EPOCH_2020,
    has_sign: true,
    ts_bits: 41,
    region_bits: 2,
    version_bits: 1,
    node_bits: 10,
    seq_bits: 9,
    last_tick: (1 << 41) - 1,
    is_shard: false,
};

/// 41 ms, 13 shard, 10 sequence, no sign bit: the layout Instagram published. Its top timestamp bit is
/// the sign of a bigint, so the format ends where that bit would be set: 2054-11-03T19:53:47.775Z.
pub const SHARDED: Format = Format {
    name: FormatName::built_in("sharded"),
    epoch: EPOCH_2020,
    has_sign: false,
    ts_bits: 41,
    region_bits: 0,
    version_bits: 0,
    node_bits: 13,
    seq_bits: 10,
    last_tick: (1 << 40) - 1,
    is_shard: true,
};

/// Every compiled-in format.
pub const ALL: &[Format] = &[CLASSIC, REGIONAL, SHARDED];

const _: () = assert!(CLASSIC.is_sound(), "classic");
const _: () = assert!(REGIONAL.is_sound(), "regional");
const _: () = assert!(SHARDED.is_sound(), "sharded");

/// The compiled-in format of that exact name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Format> {
    ALL.iter().find(|format| format.name.as_str() == name)
}

/// The fields of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    /// The millisecond the id carries.
    pub unix_ms: UnixMs,
    /// Region, in formats that have one; `None` in the others.
    pub region: Option<u64>,
    /// Version, in formats that have one; `None` in the others.
    pub version: Option<u64>,
    /// Worker or shard number.
    pub node: u64,
    /// Sequence within the millisecond, from 0.
    pub seq: u64,
    /// `node` is a logical shard, not a worker.
    pub is_shard: bool,
}

/// A field that can be out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The cell's region.
    Region,
    /// The id's version bit.
    Version,
    /// The worker or shard number.
    Node,
    /// The sequence within one ms.
    Seq,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Region => "region",
            Field::Version => "version",
            Field::Node => "node",
            Field::Seq => "sequence",
        })
    }
}

/// Why a value has no place in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FormatError {
    /// The time lies before the format's epoch.
    BeforeEpoch {
        /// The time asked for.
        at: UnixMs,
        /// The format's first ms.
        epoch: UnixMs,
    },
    /// The time lies past the format's last millisecond.
    EndOfEpoch {
        /// The time asked for.
        at: UnixMs,
        /// The format's last ms.
        last: UnixMs,
    },
    /// A field is larger than its width holds.
    TooLarge {
        /// Which.
        field: Field,
        /// The value asked for.
        value: u64,
        /// The largest value the width holds.
        max: u64,
    },
    /// The format has the field and no value was given.
    Missing(Field),
    /// A value was given and the format has no such field.
    Unexpected(Field),
    /// A worker was given to a format of shards, or a shard to a format of workers.
    WrongKind,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::BeforeEpoch { at, epoch } => {
                write!(
                    f,
                    "time {} ms lies before the epoch of the format, {} ms",
                    at.0, epoch.0
                )
            }
            FormatError::EndOfEpoch { at, last } => {
                write!(
                    f,
                    "time {} ms lies past the last millisecond of the format, {} ms",
                    at.0, last.0
                )
            }
            FormatError::TooLarge { field, value, max } => {
                write!(f, "{field} {value} is larger than {max}")
            }
            FormatError::Missing(field) => write!(f, "the format needs a {field}"),
            FormatError::Unexpected(field) => write!(f, "the format has no {field}"),
            FormatError::WrongKind => f.write_str("the format is not of this kind of identity"),
        }
    }
}

impl core::error::Error for FormatError {}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl Format {
    /// True for a layout that can be used: widths sum to 64, at most [`TS_BITS_MAX`] and
    /// [`SEQ_BITS_MAX`], every id of its life positive and inside its timestamp, life at least
    /// [`LIFE_MS_MIN`]. Checked at compile time for [`ALL`].
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let fields = [
            self.ts_bits,
            self.region_bits,
            self.version_bits,
            self.node_bits,
            self.seq_bits,
        ];
        let mut sum = self.has_sign as u32;
        let mut i = 0;
        while i < fields.len() {
            sum = sum.saturating_add(fields[i]);
            i += 1;
        }
        let fits = sum == u64::BITS
            && self.ts_bits >= 1
            && self.ts_bits <= TS_BITS_MAX
            && self.seq_bits <= SEQ_BITS_MAX
            && self.node_bits >= 1
            && self.seq_bits >= 1;
        // `fits` first: it keeps every shift below within 64 bits.
        fits && self.last_tick <= mask(self.ts_bits)
            && self.last_tick <= (i64::MAX as u64) >> self.ts_shift()
            && self.last_tick + 1 >= LIFE_MS_MIN
            && self.epoch.0 <= u64::MAX - self.last_tick
    }

    /// Largest sequence within one ms.
    #[inline]
    #[must_use]
    pub const fn seq_max(&self) -> u64 {
        mask(self.seq_bits)
    }

    /// Largest worker or shard number.
    #[inline]
    #[must_use]
    pub const fn node_max(&self) -> u64 {
        mask(self.node_bits)
    }

    /// Ids that one node can mint in one ms.
    #[inline]
    #[must_use]
    pub const fn capacity_per_ms(&self) -> u64 {
        self.seq_max() + 1
    }

    /// Bits below the node.
    #[inline]
    #[must_use]
    pub const fn node_shift(&self) -> u32 {
        self.seq_bits
    }

    /// Bits below the version.
    #[inline]
    #[must_use]
    pub const fn version_shift(&self) -> u32 {
        self.node_shift() + self.node_bits
    }

    /// Bits below the region.
    #[inline]
    #[must_use]
    pub const fn region_shift(&self) -> u32 {
        self.version_shift() + self.version_bits
    }

    /// Bits below the timestamp.
    #[inline]
    #[must_use]
    pub const fn ts_shift(&self) -> u32 {
        self.region_shift() + self.region_bits
    }

    /// The last millisecond that an id can carry.
    #[inline]
    #[must_use]
    pub const fn last_ms(&self) -> UnixMs {
        self.unix_ms(self.last_tick)
    }

    /// Milliseconds from the epoch to `at`: what the id carries.
    ///
    /// # Errors
    /// [`FormatError::BeforeEpoch`] and [`FormatError::EndOfEpoch`]; never a wrap.
    #[inline]
    pub const fn tick(&self, at: UnixMs) -> Result<u64, FormatError> {
        if at.0 < self.epoch.0 {
            return Err(FormatError::BeforeEpoch {
                at,
                epoch: self.epoch,
            });
        }
        let tick = at.0 - self.epoch.0;
        if tick > self.last_tick {
            return Err(FormatError::EndOfEpoch {
                at,
                last: self.last_ms(),
            });
        }
        Ok(tick)
    }

    /// The moment of a tick. Ticks past [`Format::last_tick`] give a time, but no id has them.
    #[inline]
    #[must_use]
    pub const fn unix_ms(&self, tick: u64) -> UnixMs {
        self.epoch.saturating_add(tick)
    }

    /// The smallest id whose time is at or after `at_us` (Unix µs): a lower bound for range scans and
    /// partitions, so that `id >= lowest_id_at(t)` holds exactly where `time(id) >= t` does.
    ///
    /// Clamped: before the epoch it is 0, after the end the largest bigint, above which there is nothing.
    #[must_use]
    pub const fn lowest_id_at(&self, at_us: i64) -> i64 {
        // Up, because an id of a started millisecond carries its beginning.
        let ms = at_us.div_euclid(US_PER_MS) + (at_us.rem_euclid(US_PER_MS) > 0) as i64;
        if ms <= self.epoch.0 as i64 {
            return 0;
        }
        let tick = ms as u64 - self.epoch.0;
        if tick > self.last_tick {
            return i64::MAX;
        }
        (tick << self.ts_shift()) as i64
    }

    /// The largest id whose time is at or before `at_us` (Unix µs): `id <= highest_id_at(t)` holds exactly
    /// where `time(id) <= t` does.
    ///
    /// Clamped: before the epoch it is -1, below every id, after the end the last id.
    #[must_use]
    pub const fn highest_id_at(&self, at_us: i64) -> i64 {
        let ms = at_us.div_euclid(US_PER_MS);
        if ms < self.epoch.0 as i64 {
            return -1;
        }
        let tick = ms as u64 - self.epoch.0;
        let tick = if tick > self.last_tick {
            self.last_tick
        } else {
            tick
        };
        (tick << self.ts_shift() | mask(self.ts_shift())) as i64
    }

    /// The id of these parts; never negative.
    ///
    /// # Errors
    /// A time outside the format's life, a value too large for its field, a region or version that is
    /// missing or that the format has no place for, a worker where a shard belongs or the reverse.
    pub const fn compose(&self, parts: Parts) -> Result<i64, FormatError> {
        if parts.is_shard != self.is_shard {
            return Err(FormatError::WrongKind);
        }
        // `?` is not yet allowed in a const fn.
        let tick = match self.tick(parts.unix_ms) {
            Ok(tick) => tick,
            Err(error) => return Err(error),
        };
        let region = match optional(Field::Region, parts.region, self.region_bits) {
            Ok(region) => region,
            Err(error) => return Err(error),
        };
        let version = match optional(Field::Version, parts.version, self.version_bits) {
            Ok(version) => version,
            Err(error) => return Err(error),
        };
        if let Err(error) = fit(Field::Node, parts.node, self.node_bits) {
            return Err(error);
        }
        if let Err(error) = fit(Field::Seq, parts.seq, self.seq_bits) {
            return Err(error);
        }
        let id = tick << self.ts_shift()
            | region << self.region_shift()
            | version << self.version_shift()
            | parts.node << self.node_shift()
            | parts.seq;
        // Not a wrap: `is_sound` keeps the top bit of every tick up to `last_tick` clear.
        Ok(id as i64)
    }

    /// The parts of an id; `None` for a number that is no id of this format (negative, or past the end
    /// of its life), instead of a made-up date. Any other number has parts, whoever made it.
    #[must_use]
    pub const fn parse(&self, id: i64) -> Option<Parts> {
        if id < 0 {
            return None;
        }
        let id = id as u64;
        let tick = id >> self.ts_shift();
        if tick > self.last_tick {
            return None;
        }
        let region = (id >> self.region_shift()) & mask(self.region_bits);
        let version = (id >> self.version_shift()) & mask(self.version_bits);
        Some(Parts {
            unix_ms: self.unix_ms(tick),
            region: if self.region_bits > 0 { Some(region) } else { None },
            version: if self.version_bits > 0 {
                Some(version)
            } else {
                None
            },
            node: (id >> self.node_shift()) & self.node_max(),
            seq: id & self.seq_max(),
            is_shard: self.is_shard,
        })
    }
}

const fn fit(field: Field, value: u64, bits: u32) -> Result<u64, FormatError> {
    if value > mask(bits) {
        return Err(FormatError::TooLarge {
            field,
            value,
            max: mask(bits),
        });
    }
    Ok(value)
}

const fn optional(field: Field, value: Option<u64>, bits: u32) -> Result<u64, FormatError> {
    match value {
        Some(_) if bits == 0 => Err(FormatError::Unexpected(field)),
        Some(value) => fit(field, value, bits),
        None if bits == 0 => Ok(0),
        None => Err(FormatError::Missing(field)),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
