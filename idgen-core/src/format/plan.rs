//! Which format the ids of a cell's workers are in, over time.
//!
//! The format of an id is a function of the millisecond it carries: a cell has one format up to some moment T
//! and another from T on. Everybody who may mint at or after T knows the plan (the lease store grants no ceiling
//! at or above T to a daemon that does not, a server publishes the plan before it raises a ceiling), so no id
//! of the old format carries a time from T on, and none of the new one an earlier time. [`FormatPlan::switched_to`]
//! takes only formats whose first id at T is above the last id of the old one, so over the switch ids go on
//! rising and none comes twice.
//!
//! ```text
//! classic                                      one format
//! classic; regional/1 from 1790000000000       regional, with region 1, from that Unix ms on
//! ```

use super::register::FormatTextError;
use super::{Field, Format, FormatError, optional};
use crate::clock::UnixMs;
use crate::lease::Class;
use core::fmt;
use core::str::FromStr;

/// Bits that a worker number needs: the pool has 1,024.
pub const WORKER_BITS: u32 = 10;
const _: () = assert!(1 << WORKER_BITS == Class::Worker.size());

/// A worker format, and the region that all its ids carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellFormat {
    format: Format,
    region: Option<u64>,
}

/// Why a format cannot be the worker format of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellFormatError {
    /// Its nodes are shards.
    Shards,
    /// Too few bits for the numbers of the pool.
    NodeBits {
        /// What it has.
        bits: u32,
    },
    /// A region that is missing, too large, or that the format has no place for.
    Region(FormatError),
}

impl fmt::Display for CellFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shards => f.write_str("the format is for logical shards, not for workers"),
            Self::NodeBits { bits } => {
                write!(
                    f,
                    "the format has {bits} bits for the worker, {WORKER_BITS} are needed"
                )
            }
            Self::Region(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CellFormatError {}

impl CellFormat {
    /// `format` for the workers of a cell; `region` exactly where the format has one.
    ///
    /// # Errors
    /// [`CellFormatError`].
    pub const fn new(format: Format, region: Option<u64>) -> Result<Self, CellFormatError> {
        if format.is_shard {
            return Err(CellFormatError::Shards);
        }
        if format.node_bits < WORKER_BITS {
            return Err(CellFormatError::NodeBits {
                bits: format.node_bits,
            });
        }
        match optional(Field::Region, region, format.region_bits) {
            Ok(_) => Ok(Self { format, region }),
            Err(error) => Err(CellFormatError::Region(error)),
        }
    }

    /// The format.
    #[must_use]
    pub const fn format(&self) -> &Format {
        &self.format
    }

    /// The region of the cell; `None` where the format has none.
    #[must_use]
    pub const fn region(&self) -> Option<u64> {
        self.region
    }

    /// The bits that are the same in all ids: the region. The version is 0.
    #[must_use]
    pub const fn fixed_bits(&self) -> u64 {
        match self.region {
            Some(region) => region << self.format.region_shift(),
            None => 0,
        }
    }

    /// The first id that carries `at`, and the last one that carries a time before it; `None` where the format
    /// is not alive.
    fn first_id(&self, at: UnixMs) -> Option<i64> {
        self.format.tick(at).ok()?;
        Some(self.format.lowest_id_at(us(at)))
    }

    fn last_id_before(&self, at: UnixMs) -> Option<i64> {
        let last = at.saturating_sub(1);
        self.format.tick(last).ok()?;
        Some(self.format.highest_id_at(us(last)))
    }
}

/// Unix µs; formats live in a range that never saturates.
fn us(at: UnixMs) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX).saturating_mul(1_000)
}

impl fmt::Display for CellFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.format.fmt(f)?;
        match self.region {
            Some(region) => write!(f, "/{region}"),
            None => Ok(()),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FormatPlan {
    first: CellFormat,
    then: Option<(UnixMs, CellFormat)>,
}

/// Why a cell cannot switch like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchError {
    /// Another switch is still to come.
    Pending {
        /// When it takes place.
        at: UnixMs,
    },
    /// The cell has this format already.
    Same,
    /// The cell has claimed a region, and the new format would have another, or none.
    Region {
        /// The region of the cell.
        claimed: u64,
    },
    /// The moment is not in the future.
    Past,
    /// The new format is not alive at that moment.
    NotAlive(FormatError),
    /// The first id of the new format would not be above the last one of the old.
    NotAbove {
        /// Last id of the old format.
        last: i64,
        /// First id of the new format.
        first: i64,
    },
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending { at } => write!(f, "a switch is pending already, for {} ms", at.0),
            Self::Same => f.write_str("the cell has this format already"),
            Self::Region { claimed } => write!(
                f,
                "the cell has claimed region {claimed}, for good: every later format of it has that region"
            ),
            Self::Past => f.write_str("the moment of a switch must be in the future"),
            Self::NotAlive(error) => error.fmt(f),
            Self::NotAbove { last, first } => write!(
                f,
                "the first id of the new format, {first}, is not above the last one of the old, {last}: ids would \
                 go back and could come twice"
            ),
        }
    }
}

impl core::error::Error for SwitchError {}

/// From `at` on ids of `to` come after those of `first`: both are alive there, and no number is of both.
fn rises(first: &CellFormat, to: &CellFormat, at: UnixMs) -> Result<(), SwitchError> {
    to.format.tick(at).map_err(SwitchError::NotAlive)?;
    let (Some(last_id), Some(first_id)) = (first.last_id_before(at), to.first_id(at)) else {
        // The old format ends before, or begins after: nobody could mint until then.
        return Err(SwitchError::NotAlive(FormatError::EndOfEpoch {
            at,
            last: first.format.last_ms(),
        }));
    };
    if first_id <= last_id {
        return Err(SwitchError::NotAbove {
            last: last_id,
            first: first_id,
        });
    }
    Ok(())
}

/// Why a server cannot go on by a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRefused {
    /// It contradicts what the server was told before.
    Other,
    /// Ids of the old format may have been granted from the switch on.
    TooLate,
    /// There is no room to note another switch.
    Full,
}

/// What a server that follows a plan has to note beside what it knows, oldest first: formats, and from when.
pub type Notes = [Option<(UnixMs, CellFormat)>; 2];

impl FormatPlan {
    /// How a server goes on by this plan. `latest`: the last format that it knows, and from when; `None`: it was told
    /// of none yet. `highest_ceiling`: of all windows that are open there, asked for a new switch only.
    ///
    /// # Errors
    /// [`PlanRefused::Other`] and [`PlanRefused::TooLate`]; nothing is to be noted then.
    pub fn followed_from(
        &self,
        latest: Option<(UnixMs, &CellFormat)>,
        highest_ceiling: impl FnOnce() -> UnixMs,
    ) -> Result<Notes, PlanRefused> {
        let Some((since, latest)) = latest else {
            return Ok([Some((UnixMs(0), self.first)), self.then]);
        };
        match self.then {
            None if self.first == *latest => Ok([None; 2]),
            None => Err(PlanRefused::Other),
            Some((at, then)) if at == since && then == *latest => Ok([None; 2]),
            Some((at, _)) if self.first != *latest || at <= since => Err(PlanRefused::Other),
            Some((at, _)) if at <= highest_ceiling() => Err(PlanRefused::TooLate),
            new => Ok([new, None]),
        }
    }

    /// One format for all time.
    #[must_use]
    pub const fn of(format: CellFormat) -> Self {
        Self {
            first: format,
            then: None,
        }
    }

    /// The format of ids that carry `at`.
    #[must_use]
    pub fn at(&self, at: UnixMs) -> &CellFormat {
        match &self.then {
            Some((from, then)) if at >= *from => then,
            _ => &self.first,
        }
    }

    /// The format before any switch of this plan.
    #[must_use]
    pub const fn first(&self) -> &CellFormat {
        &self.first
    }

    /// The switch of this plan: the moment of the first ids of the second format, and it. Pending or past.
    #[must_use]
    pub const fn switch(&self) -> Option<(UnixMs, &CellFormat)> {
        match &self.then {
            Some((from, then)) => Some((*from, then)),
            None => None,
        }
    }

    /// The region that the cell has claimed, by the first format that has one; from the moment on that the switch is
    /// known, for a plan goes on with it. `None`: none yet.
    #[must_use]
    pub const fn region(&self) -> Option<u64> {
        match &self.then {
            Some((_, then)) => then.region(),
            None => self.first.region(),
        }
    }

    /// This plan with a switch to `to` at `at`; a switch that lies behind `now` is made the beginning.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn switched_to(&self, to: CellFormat, at: UnixMs, now: UnixMs) -> Result<Self, SwitchError> {
        if let Some((from, _)) = self.then
            && from > now
        {
            return Err(SwitchError::Pending { at: from });
        }
        let first = *self.at(now);
        if first == to {
            return Err(SwitchError::Same);
        }
        if at <= now {
            return Err(SwitchError::Past);
        }
        if let Some(claimed) = first.region()
            && to.region() != first.region()
        {
            return Err(SwitchError::Region { claimed });
        }
        rises(&first, &to, at)?;
        Ok(Self {
            first,
            then: Some((at, to)),
        })
    }
}

impl fmt::Display for FormatPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        match &self.then {
            Some((from, then)) => write!(f, "; {then} from {}", from.0),
            None => Ok(()),
        }
    }
}

/// Why a text is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanTextError {
    /// Not of the form that a [`FormatPlan`] is written in.
    Syntax,
    /// One of its formats is none.
    Format(FormatTextError),
    /// One of its formats cannot be the worker format of a cell.
    Cell(CellFormatError),
    /// Its switch would let ids go back, or come twice.
    Switch(SwitchError),
}

impl fmt::Display for PlanTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str("not of the form FORMAT or FORMAT; FORMAT from UNIXMS"),
            Self::Format(error) => error.fmt(f),
            Self::Cell(error) => error.fmt(f),
            Self::Switch(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanTextError {}

impl FromStr for CellFormat {
    type Err = PlanTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (format, region) = match text.split_once('/') {
            Some((format, region)) => (format, Some(number(region)?)),
            None => (text, None),
        };
        let format = format.parse().map_err(PlanTextError::Format)?;
        Self::new(format, region).map_err(PlanTextError::Cell)
    }
}

impl FromStr for FormatPlan {
    type Err = PlanTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((first, then)) = text.split_once("; ") else {
            return Ok(Self::of(text.parse()?));
        };
        let (then, from) = then.split_once(" from ").ok_or(PlanTextError::Syntax)?;
        let (first, then, from) = (first.parse()?, then.parse()?, UnixMs(number(from)?));
        // Whoever wrote it has checked; whoever reads it mints by it.
        rises(&first, &then, from).map_err(PlanTextError::Switch)?;
        Ok(Self {
            first,
            then: Some((from, then)),
        })
    }
}

fn number(text: &str) -> Result<u64, PlanTextError> {
    super::register::number(Some(text)).map_err(|_| PlanTextError::Syntax)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::{CLASSIC, REGIONAL, SHARDED};
    use super::*;
    use proptest::prelude::*;

    const NOW: UnixMs = UnixMs(1_790_000_000_000);
    const LATER: UnixMs = UnixMs(NOW.0 + 900_000);

    fn classic() -> CellFormat {
        CellFormat::new(CLASSIC, None).unwrap()
    }

    fn regional() -> CellFormat {
        CellFormat::new(REGIONAL, Some(1)).unwrap()
    }

    #[test]
    fn only_formats_of_enough_workers_and_with_their_region_serve_a_cell() {
        assert_eq!(CellFormat::new(SHARDED, None), Err(CellFormatError::Shards));
        assert_eq!(
            CellFormat::new(CLASSIC, Some(1)),
            Err(CellFormatError::Region(FormatError::Unexpected(Field::Region)))
        );
        assert_eq!(
            CellFormat::new(REGIONAL, None),
            Err(CellFormatError::Region(FormatError::Missing(Field::Region)))
        );
        assert!(matches!(
            CellFormat::new(REGIONAL, Some(4)),
            Err(CellFormatError::Region(FormatError::TooLarge { .. }))
        ));
        let small: Format = "small(1577836800000,1,41,4,0,6,12)".parse().unwrap();
        assert_eq!(
            CellFormat::new(small, Some(0)),
            Err(CellFormatError::NodeBits { bits: 6 })
        );
    }

    #[test]
    fn the_format_of_an_id_follows_its_time() {
        let plan = FormatPlan::of(classic())
            .switched_to(regional(), LATER, NOW)
            .unwrap();
        assert_eq!(plan.at(UnixMs(LATER.0 - 1)), &classic());
        assert_eq!(plan.at(LATER), &regional());
        assert_eq!(plan.to_string(), "classic; regional/1 from 1790000900000");
        assert_eq!(plan.to_string().parse(), Ok(plan));
    }

    #[test]
    fn a_region_is_claimed_once() {
        let other = CellFormat::new(REGIONAL, Some(2)).unwrap();
        let wide: Format = "wide(1577836800000,1,41,2,0,11,9)".parse().unwrap();
        let wide = |region| CellFormat::new(wide, Some(region)).unwrap();
        let plan = FormatPlan::of(classic());
        assert_eq!(plan.region(), None);
        let plan = plan.switched_to(regional(), LATER, NOW).unwrap();
        assert_eq!(plan.region(), Some(1), "before its first id too");
        let (now, later) = (LATER.saturating_add(1), LATER.saturating_add(900_000));
        for to in [other, classic(), wide(2)] {
            let refused = plan.switched_to(to, later, now).unwrap_err();
            assert_eq!(refused, SwitchError::Region { claimed: 1 }, "{to}");
        }
        let plan = plan.switched_to(wide(1), later, now).unwrap();
        assert_eq!(plan.region(), Some(1));
        let after = later.saturating_add(900_000);
        let refused = plan.switched_to(other, after, later).unwrap_err();
        assert_eq!(
            refused,
            SwitchError::Region { claimed: 1 },
            "the plan has dropped the first switch"
        );
    }

    #[test]
    fn over_a_switch_ids_rise() {
        let plan = FormatPlan::of(classic())
            .switched_to(regional(), LATER, NOW)
            .unwrap();
        let (at, then) = plan.switch().unwrap();
        let last = CLASSIC.highest_id_at(us(UnixMs(at.0 - 1)));
        let first = then.format().lowest_id_at(us(at));
        assert!(first > last);
    }

    #[test]
    fn a_second_switch_waits_for_the_first_and_then_starts_from_it() {
        let other: CellFormat = "other(1577836800000,1,41,0,1,10,11)".parse().unwrap();
        let plan = FormatPlan::of(classic()).switched_to(other, LATER, NOW).unwrap();
        assert_eq!(
            plan.switched_to(classic(), UnixMs(LATER.0 + 1), NOW),
            Err(SwitchError::Pending { at: LATER })
        );
        let back_at = UnixMs(LATER.0 + 900_000);
        let back = plan.switched_to(classic(), back_at, LATER).unwrap();
        assert_eq!(back.to_string(), format!("{other}; classic from 1790001800000"));
    }

    #[test]
    fn a_server_notes_what_it_did_not_know_and_refuses_what_contradicts_it() {
        let now = FormatPlan::of(classic());
        let later = now.switched_to(regional(), LATER, NOW).unwrap();
        let known = Some((UnixMs(0), classic()));
        let from = |plan: &FormatPlan, latest: Option<(UnixMs, CellFormat)>, ceiling: u64| {
            let latest = latest.as_ref().map(|(from, format)| (*from, format));
            plan.followed_from(latest, || UnixMs(ceiling))
        };
        let switch = Some((LATER, regional()));
        assert_eq!(from(&later, None, 0), Ok([known, switch]));
        assert_eq!(from(&now, known, 0), Ok([None; 2]));
        assert_eq!(from(&later, known, LATER.0 - 1), Ok([switch, None]));
        assert_eq!(from(&later, known, LATER.0), Err(PlanRefused::TooLate));
        assert_eq!(
            from(&later, switch, u64::MAX),
            Ok([None; 2]),
            "it is known already"
        );
        assert_eq!(
            from(&now, switch, 0),
            Err(PlanRefused::Other),
            "it takes the switch back"
        );
        assert_eq!(from(&FormatPlan::of(regional()), switch, 0), Ok([None; 2]));
        assert_eq!(
            from(&FormatPlan::of(regional()), known, 0),
            Err(PlanRefused::Other)
        );
        let other_time = now.switched_to(regional(), UnixMs(LATER.0 + 1), NOW).unwrap();
        assert_eq!(from(&other_time, switch, 0), Err(PlanRefused::Other));
    }

    #[test]
    fn switches_that_could_repeat_an_id_are_refused() {
        // An epoch later by an hour: its ids at LATER lie where classic's were an hour ago.
        let late: Format = "late(1577840400000,1,41,0,0,10,12)".parse().unwrap();
        let late = CellFormat::new(late, None).unwrap();
        assert!(matches!(
            FormatPlan::of(classic()).switched_to(late, LATER, NOW),
            Err(SwitchError::NotAbove { .. })
        ));
        // The other way it jumps ahead, which is no danger.
        assert!(FormatPlan::of(late).switched_to(classic(), LATER, NOW).is_ok());
        let plan = FormatPlan::of(classic());
        assert_eq!(plan.switched_to(classic(), LATER, NOW), Err(SwitchError::Same));
        assert_eq!(plan.switched_to(regional(), NOW, NOW), Err(SwitchError::Past));
        let unborn: Format = "unborn(1800000000000,1,41,0,0,10,12)".parse().unwrap();
        let unborn = CellFormat::new(unborn, None).unwrap();
        assert!(matches!(
            plan.switched_to(unborn, LATER, NOW),
            Err(SwitchError::NotAlive(_))
        ));
    }

    #[test]
    fn texts_that_are_no_plan_are_refused() {
        for text in [
            "",
            "; ",
            "classic;regional/1 from 1",
            "classic; regional/1",
            "classic; regional/1 from",
            "classic; regional/1 from -1",
            "classic; regional/1 from 01",
            "classic; regional from 1790000000000",
            "classic/0",
            "sharded",
            "small(1577836800000,1,41,0,0,10,12,)",
            "regional/",
            "Classic",
            // Ids would go back; the second is not alive yet; the first has ended.
            "classic; late(1577840400000,1,41,0,0,10,12) from 1790000000000",
            "classic; young(1830000000000,1,41,0,0,10,12) from 1790000000000",
            "short(1577836800000,1,35,0,0,16,12); classic from 1790000000000",
        ] {
            assert!(text.parse::<FormatPlan>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_is_its_own_form(text in "[a-z0-9(),;/ ]{0,60}") {
            if let Ok(plan) = text.parse::<FormatPlan>() {
                prop_assert_eq!(plan.to_string(), text);
            }
        }

        /// Whatever is accepted keeps every id of the new format above every id of the old one.
        #[test]
        fn accepted_switches_never_let_formats_meet(
            epoch in 1_288_834_974_657u64..1_790_000_000_000,
            (ts, seq) in (38u32..=41, 8u32..=12),
            ahead in 1u64..10_000_000_000,
        ) {
            let node = 63 - ts - seq;
            prop_assume!((10..=16).contains(&node));
            let text = format!("other({epoch},1,{ts},0,0,{node},{seq})");
            let Ok(format) = text.parse::<Format>() else { return Ok(()) };
            let (to, at) = (CellFormat::new(format, None).unwrap(), UnixMs(NOW.0 + ahead));
            if let Ok(plan) = FormatPlan::of(classic()).switched_to(to, at, NOW) {
                prop_assert!(plan.to_string().parse() == Ok(plan));
                let before = CLASSIC.highest_id_at(us(UnixMs(at.0 - 1)));
                prop_assert!(format.lowest_id_at(us(at)) > before);
            }
        }
    }
}
