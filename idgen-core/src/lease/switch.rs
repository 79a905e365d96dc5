//! Switching the format of a cell's worker ids, at a moment T.
//!
//! The cell names a plan (see [`crate::format::FormatPlan`]): ids that carry T or a later time are in the new
//! format. That is safe because nobody can mint at T without knowing:
//!
//! - T lies above every ceiling that was granted when the switch is committed, in one step with it;
//! - every later grant and renewal names the plan that it was planned with, and is refused when the cell has
//!   another; so a ceiling at or above T is granted only to a daemon that has read the switch;
//! - the server is told the plan with every window, and before the window is raised.
//!
//! A second switch drops the first one from the plan, as if the cell had always had the format between them.
//! Servers that lived through it remember (their shared memory keeps every format that they were told). So that
//! no other server mints the time *before* it in the later format, the cell's `min_floor` rises to that moment.

use super::ledger::Snapshot;
use super::token::Identity;
use super::window::FLOOR_LEAD_MS;
use crate::clock::UnixMs;
use crate::format::plan::{CellFormat, FormatPlan, PlanTextError, SwitchError};
use core::fmt;

/// How far T must lie beyond the window and lead of a grant that is made while the switch is: a round trip, and
/// the difference between the clocks of two servers.
pub const SWITCH_SLACK_MS: u64 = 2_000;

/// A switch that may be committed while the store is as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// The plan that the cell has; any other refuses the switch.
    pub seen: String,
    /// The plan that it gets.
    pub formats: String,
    /// The moment. A worker's ceiling at or above it refuses the switch.
    pub at: UnixMs,
    /// What the cell's `min_floor` is raised to.
    pub min_floor: UnixMs,
}

/// Why a cell cannot be switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchRefused {
    /// The cell's plan is not one that this release knows how to read.
    Unreadable {
        /// What the cell has.
        text: String,
        /// What is wrong with it.
        error: PlanTextError,
    },
    /// The plan cannot go on like that.
    Format(SwitchError),
    /// Grants that are under way could reach beyond the moment.
    TooSoon {
        /// The earliest moment that may be asked for now.
        earliest: UnixMs,
    },
    /// A worker may mint at that moment already, without knowing of the switch.
    Granted {
        /// The worker.
        worker: Identity,
        /// Its ceiling.
        ceiling: UnixMs,
    },
}

impl fmt::Display for SwitchRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { text, error } => {
                write!(f, "the cell's worker format \"{text}\" cannot be read: {error}")
            }
            Self::Format(error) => error.fmt(f),
            Self::TooSoon { earliest } => write!(
                f,
                "the moment of the switch is too near: it must be above every window that is being granted, \
                 Unix ms {} at the earliest",
                earliest.0
            ),
            Self::Granted { worker, ceiling } => write!(
                f,
                "worker {worker} may mint up to Unix ms {} already: choose a later moment",
                ceiling.0
            ),
        }
    }
}

impl core::error::Error for SwitchRefused {}

/// Plans a switch to `to` at `at`. `now` is the store's clock, `window_ms` the longest window of any daemon of
/// the cell.
///
/// # Errors
/// [`SwitchRefused`].
pub fn plan_switch(
    snapshot: &Snapshot,
    to: CellFormat,
    at: UnixMs,
    now: UnixMs,
    window_ms: u64,
) -> Result<SwitchPlan, SwitchRefused> {
    let seen = snapshot.cell.worker_format.clone();
    let plan: FormatPlan = match seen.parse() {
        Ok(plan) => plan,
        Err(error) => return Err(SwitchRefused::Unreadable { text: seen, error }),
    };
    let switched = plan.switched_to(to, at, now).map_err(SwitchRefused::Format)?;
    let earliest = now.saturating_add(window_ms + FLOOR_LEAD_MS + SWITCH_SLACK_MS);
    if at < earliest {
        return Err(SwitchRefused::TooSoon { earliest });
    }
    if let Some(row) = snapshot.rows().iter().find(|row| row.ceiling >= at) {
        return Err(SwitchRefused::Granted {
            worker: row.identity,
            ceiling: row.ceiling,
        });
    }
    let dropped = plan.switch().map_or(UnixMs(0), |(from, _)| from);
    Ok(SwitchPlan {
        seen,
        formats: switched.to_string(),
        at,
        min_floor: snapshot.cell.min_floor.max(dropped),
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Cell, Row};
    use super::super::token::Revision;
    use super::*;
    use crate::format::{CLASSIC, REGIONAL};

    const NOW: UnixMs = UnixMs(1_790_000_000_000);
    const WINDOW_MS: u64 = 480_000;
    const EARLIEST: UnixMs = UnixMs(NOW.0 + WINDOW_MS + 3_000);

    fn snapshot(formats: &str, ceilings: &[u64]) -> Snapshot {
        let cell = Cell {
            worker_format: formats.to_owned(),
            min_floor: UnixMs(7),
            ..Cell::example()
        };
        let rows = ceilings.iter().zip(0..).map(|(ceiling, worker)| Row {
            identity: Identity(worker),
            generation: 1,
            ceiling: UnixMs(*ceiling),
            revision: Revision(1),
            holder: None,
        });
        Snapshot::new(cell, Revision(1), rows.collect())
    }

    const WIDE: &str = "wide(1577836800000,1,41,2,0,11,9)";

    fn wide(region: u64) -> CellFormat {
        CellFormat::new(WIDE.parse().unwrap(), Some(region)).unwrap()
    }

    fn regional(region: u64) -> CellFormat {
        CellFormat::new(REGIONAL, Some(region)).unwrap()
    }

    fn plan(snapshot: &Snapshot, to: CellFormat, at: UnixMs) -> Result<SwitchPlan, SwitchRefused> {
        plan_switch(snapshot, to, at, NOW, WINDOW_MS)
    }

    #[test]
    fn a_switch_names_what_it_was_planned_on() {
        let planned = plan(&snapshot("classic", &[5, EARLIEST.0 - 1]), regional(1), EARLIEST).unwrap();
        assert_eq!(
            planned,
            SwitchPlan {
                seen: "classic".to_owned(),
                formats: format!("classic; regional/1 from {}", EARLIEST.0),
                at: EARLIEST,
                min_floor: UnixMs(7),
            }
        );
    }

    #[test]
    fn the_moment_lies_above_all_that_is_being_granted() {
        let early = EARLIEST.saturating_sub(1);
        let refused = plan(&snapshot("classic", &[]), regional(1), early).unwrap_err();
        assert_eq!(refused, SwitchRefused::TooSoon { earliest: EARLIEST });
    }

    #[test]
    fn the_moment_lies_above_all_that_was_granted() {
        let refused = plan(&snapshot("classic", &[5, EARLIEST.0]), regional(1), EARLIEST).unwrap_err();
        let worker = Identity(1);
        assert_eq!(
            refused,
            SwitchRefused::Granted {
                worker,
                ceiling: EARLIEST
            }
        );
    }

    #[test]
    fn a_plan_goes_on_only_as_the_formats_allow() {
        let pending = format!("classic; regional/1 from {}", EARLIEST.0);
        for (formats, to) in [
            ("classic", CellFormat::new(CLASSIC, None).unwrap()),
            (&pending, regional(2)),
        ] {
            let refused = plan(&snapshot(formats, &[]), to, EARLIEST.saturating_add(1)).unwrap_err();
            assert!(matches!(refused, SwitchRefused::Format(_)), "{refused:?}");
        }
        let refused = plan(&snapshot("klassisch", &[]), regional(1), EARLIEST).unwrap_err();
        assert!(matches!(refused, SwitchRefused::Unreadable { .. }), "{refused:?}");
    }

    #[test]
    fn a_second_switch_lets_nobody_begin_before_the_first() {
        let first = NOW.saturating_sub(5_000);
        let formats = format!("classic; regional/1 from {}", first.0);
        let planned = plan(&snapshot(&formats, &[]), wide(1), EARLIEST).unwrap();
        assert_eq!(
            planned.formats,
            format!("regional/1; {}/1 from {}", WIDE, EARLIEST.0)
        );
        assert_eq!(planned.min_floor, first);
    }
}
