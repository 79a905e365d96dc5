//! How full the half of the pool that is in use is, and who fills it.
//!
//! A pool that runs full is noticed long before: every crash leaves identities behind that nobody can have
//! for a while, so what counts is how many are *not free*, whoever has them.

use super::ledger::Snapshot;
use super::pool::{Candidate, Memory, half};
use super::token::Identity;
use crate::clock::UnixMs;
use crate::utc::Utc;
use core::fmt;
use std::collections::BTreeMap;

/// From here on somebody should look, in percent of the half.
pub const WARN_PERCENT: usize = 80;
/// From here on somebody must be woken.
pub const PAGE_PERCENT: usize = 95;

/// Of one identity of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Somebody has it.
    Held,
    /// Nobody has, but it was granted up to a time that has not come yet.
    Cooling,
    /// It can be leased.
    Free,
}

impl Availability {
    pub(super) fn of(candidate: &Candidate<'_>, wall: UnixMs) -> Self {
        let holder = candidate.row.and_then(|row| row.holder.as_ref());
        if holder.is_some_and(|holder| !holder.expired) {
            Self::Held
        } else if candidate.high_water.is_some_and(|ms| ms >= wall) {
            Self::Cooling
        } else {
            Self::Free
        }
    }
}

/// How many identities of the half are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// All of the half.
    pub size: usize,
    /// Held by somebody.
    pub held: usize,
    /// Held by nobody, but granted up to a time that has not come yet.
    pub cooling: usize,
}

/// How urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// There is room.
    Low,
    /// At least [`WARN_PERCENT`] are taken.
    Warn,
    /// At least [`PAGE_PERCENT`] are taken.
    Page,
}

impl Pressure {
    /// As the metric shows it.
    #[must_use]
    pub fn level(self) -> u8 {
        match self {
            Self::Low => 0,
            Self::Warn => 1,
            Self::Page => 2,
        }
    }
}

impl Occupancy {
    /// As one daemon sees it, with what it remembers itself.
    #[must_use]
    pub fn of(snapshot: &Snapshot, memory: &Memory, wall: UnixMs) -> Self {
        let half = half(snapshot.cell.epoch);
        let mut occupancy = Self {
            size: half.len(),
            held: 0,
            cooling: 0,
        };
        for identity in half.map(Identity) {
            match Availability::of(&Candidate::new(snapshot, memory, identity), wall) {
                Availability::Held => occupancy.held += 1,
                Availability::Cooling => occupancy.cooling += 1,
                Availability::Free => {}
            }
        }
        occupancy
    }

    /// Not free.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.held + self.cooling
    }

    /// Can be leased now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.size.saturating_sub(self.taken())
    }

    /// How urgent it is.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let at_least = |percent| self.taken() * 100 >= self.size * percent;
        if at_least(PAGE_PERCENT) {
            Pressure::Page
        } else if at_least(WARN_PERCENT) {
            Pressure::Warn
        } else {
            Pressure::Low
        }
    }
}

impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, held, cooling } = self;
        let percent = self.taken() * 100 / size.max(&1);
        write!(
            f,
            "{} of {size} identities taken ({percent} %): {held} held, {cooling} cooling",
            self.taken()
        )
    }
}

/// What one daemon holds of the half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub name: String,
    /// How many.
    pub count: usize,
    /// Up to when it may mint from them as things stand; it goes on renewing.
    pub until: UnixMs,
}

/// Too few workers of the half are free, and who has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Identities asked for.
    pub wanted: usize,
    /// The half.
    pub occupancy: Occupancy,
    /// Whoever holds some, most first.
    pub holders: Vec<Share>,
    /// When the first that is cooling can be leased.
    pub first_cooled: Option<UnixMs>,
}

/// So many holders are named; `idgenctl leases list` names all.
const NAMED_MAX: usize = 8;

impl Exhausted {
    pub(super) fn new(
        snapshot: &Snapshot,
        memory: &Memory,
        wall: UnixMs,
        wanted: usize,
        occupancy: Occupancy,
    ) -> Self {
        let mut shares: BTreeMap<&str, (usize, UnixMs)> = BTreeMap::new();
        let mut first_cooled: Option<UnixMs> = None;
        for identity in half(snapshot.cell.epoch).map(Identity) {
            let candidate = Candidate::new(snapshot, memory, identity);
            let until = candidate.high_water.unwrap_or_default();
            match Availability::of(&candidate, wall) {
                Availability::Held => {
                    let holder = candidate.row.and_then(|row| row.holder.as_ref());
                    let name = holder.map_or("", |holder| holder.name.as_str());
                    let share = shares.entry(name).or_default();
                    *share = (share.0 + 1, share.1.max(until));
                }
                Availability::Cooling => {
                    let cooled = until.saturating_add(1);
                    first_cooled = Some(first_cooled.map_or(cooled, |first| first.min(cooled)));
                }
                Availability::Free => {}
            }
        }
        let share = |(name, (count, until)): (&str, (usize, UnixMs))| Share {
            name: name.to_owned(),
            count,
            until,
        };
        let mut holders: Vec<Share> = shares.into_iter().map(share).collect();
        // Stable: those with as many stay in the order of their names.
        holders.sort_by_key(|share| core::cmp::Reverse(share.count));
        Self {
            wanted,
            occupancy,
            holders,
            first_cooled,
        }
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Occupancy { size, held, cooling } = self.occupancy;
        let free = self.occupancy.free();
        write!(
            f,
            "the worker pool is exhausted: {} wanted, {free} of {size} free; {held} held",
            self.wanted
        )?;
        for (n, share) in self.holders.iter().take(NAMED_MAX).enumerate() {
            let before = if n == 0 { ": " } else { ", " };
            let Share { name, count, until } = share;
            write!(f, "{before}{count} by {name} (granted up to {})", Utc(*until))?;
        }
        if let Some(more @ 1..) = self.holders.len().checked_sub(NAMED_MAX) {
            write!(f, " and those of {more} more daemons")?;
        }
        write!(f, "; {cooling} cooling")?;
        if let Some(first) = self.first_cooled {
            write!(f, ", the first is free at {}", Utc(first))?;
        }
        f.write_str("; lower workers.count, or stop daemons that need none (idgenctl leases list)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Cell, Holder, Row};
    use super::super::token::{BootId, InstanceId, Revision, Token};
    use super::*;

    /// 2026-11-29T22:40:06Z.
    const WALL: u64 = 1_795_992_006_000;

    fn row(identity: u16, ceiling: u64, holder: Option<&str>) -> Row {
        Row {
            identity: Identity(identity),
            generation: 1,
            ceiling: UnixMs(ceiling),
            revision: Revision(1),
            holder: holder.map(|name| Holder {
                instance: InstanceId(1),
                name: name.to_owned(),
                token: Token::default(),
                boot_id: BootId(1),
                expired: false,
            }),
        }
    }

    fn snapshot(rows: Vec<Row>) -> Snapshot {
        Snapshot::new(Cell::example(), Revision(0), rows)
    }

    fn taken(count: u16) -> Occupancy {
        let rows = (0..count).map(|n| {
            let holder = n.is_multiple_of(2).then_some("somebody");
            row(n, WALL, holder)
        });
        // Of the other half, and so of no account.
        let others = (600..700).map(|n| row(n, WALL, Some("somebody")));
        Occupancy::of(
            &snapshot(rows.chain(others).collect()),
            &Memory::new(),
            UnixMs(WALL),
        )
    }

    #[test]
    fn pressure_rises_at_80_and_95_percent_of_the_half_whoever_has_them() {
        for (count, pressure) in [
            (0, Pressure::Low),
            (409, Pressure::Low),
            (410, Pressure::Warn),
            (486, Pressure::Warn),
            (487, Pressure::Page),
            (512, Pressure::Page),
        ] {
            let occupancy = taken(count);
            assert_eq!(
                (occupancy.pressure(), occupancy.taken(), occupancy.free()),
                (pressure, usize::from(count), 512 - usize::from(count))
            );
        }
        assert_eq!(
            taken(410).to_string(),
            "410 of 512 identities taken (80 %): 205 held, 205 cooling"
        );
        assert_eq!(
            [Pressure::Low, Pressure::Warn, Pressure::Page].map(Pressure::level),
            [0, 1, 2]
        );
    }

    #[test]
    fn what_the_daemon_itself_remembers_is_taken_too() {
        let mut memory = Memory::new();
        memory.note_ceiling(Identity(4), UnixMs(WALL + 9));
        let occupancy = Occupancy::of(&snapshot(vec![]), &memory, UnixMs(WALL));
        assert_eq!((occupancy.held, occupancy.cooling), (0, 1));
    }

    fn exhausted(rows: Vec<Row>) -> String {
        let (snapshot, memory) = (snapshot(rows), Memory::new());
        let occupancy = Occupancy::of(&snapshot, &memory, UnixMs(WALL));
        Exhausted::new(&snapshot, &memory, UnixMs(WALL), 2, occupancy).to_string()
    }

    #[test]
    fn an_exhausted_pool_says_who_has_it_and_until_when() {
        let rows = (0..512).map(|n| match n {
            0..300 => row(n, WALL + 470_000 + u64::from(n), Some("server-a")),
            300..500 => row(n, WALL + 10_000, Some("server-b")),
            500..511 => row(n, WALL + 1_000 * u64::from(n), None),
            _ => row(n, WALL - 1, None),
        });
        assert_eq!(
            exhausted(rows.collect()),
            "the worker pool is exhausted: 2 wanted, 1 of 512 free; 500 held: 300 by server-a (granted up to \
             2026-11-29T22:47:56Z), 200 by server-b (granted up to 2026-11-29T22:40:16Z); 11 cooling, the first is \
             free at 2026-11-29T22:48:26Z; lower workers.count, or stop daemons that need none (idgenctl leases list)"
        );
    }

    #[test]
    fn a_long_list_of_holders_is_cut_short() {
        let rows = (0..512).map(|n| row(n, WALL, Some(&format!("server-{:03}", n / 8))));
        let text = exhausted(rows.collect());
        assert!(text.contains("8 by server-007 (granted"), "{text}");
        assert!(
            text.contains(" and those of 56 more daemons; 0 cooling; lower"),
            "{text}"
        );
    }
}
