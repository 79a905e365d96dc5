//! `idgenctl region`: the region of a cell. It is claimed by the first switch to a format that has one, for good; the rule is
//! in `idgen_core::format::plan`.

use super::format::Wish;
use super::store::{of_store, open};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, LeaseStore};
use idgen_core::format::{CellFormat, Format, FormatPlan};
use idgen_core::lease::ledger::Cell;
use serde::Serialize;
use std::fmt;
use uuid::Uuid;

/// The region of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegionStatus {
    /// The cell.
    pub cell_id: Uuid,
    /// What it has claimed; `None`: nothing yet.
    pub region: Option<u64>,
    /// Its formats over time, as the lease store has them.
    pub formats: String,
}

impl fmt::Display for RegionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cell_id,
            region,
            formats,
        } = self;
        match region {
            Some(region) => write!(f, "cell {cell_id} has region {region}, for good: {formats}"),
            None => write!(f, "cell {cell_id} has claimed no region: {formats}"),
        }
    }
}

impl RegionStatus {
    pub(super) fn of(cell: &Cell) -> Result<Self> {
        let text = &cell.worker_format;
        let plan: FormatPlan = text.parse().map_err(|error| {
            Error::refused(format!(
                "the cell's worker format \"{text}\" cannot be read: {error}"
            ))
            .with_hint("use the idgenctl of the release that has written it")
        })?;
        Ok(Self {
            cell_id: Uuid::from_u128(cell.cell_id.0),
            region: plan.region(),
            formats: plan.to_string(),
        })
    }

    /// The format that the cell is to have: in the region that is asked for, or that it has. That of no other cell.
    pub(super) fn format(&self, format: Format, wish: &Wish, others: &[Self]) -> Result<CellFormat> {
        let claimed = self.region.filter(|_| format.region_bits > 0);
        let to = CellFormat::new(format, wish.region.or(claimed))
            .map_err(|error| Error::refused(format!("switch to {}: {error}", wish.to)))?;
        match others
            .iter()
            .find(|other| to.region().is_some() && other.region == to.region())
        {
            Some(other) if other.cell_id == self.cell_id => {
                Err(Error::usage("--beside names a configuration of this very cell"))
            }
            Some(other) => Err(Error::refused(format!(
                "region {} belongs to cell {} already",
                other.region.unwrap_or_default(),
                other.cell_id
            ))),
            None => Ok(to),
        }
    }
}

/// The region of the cell.
pub async fn show(config: &Config) -> Result<RegionStatus> {
    let snapshot = match open(config) {
        AnyStore::Postgres(mut store) => store.read().await,
        AnyStore::Etcd(mut store) => store.read().await,
    };
    RegionStatus::of(&snapshot.map_err(of_store)?.cell)
}

/// Those of other cells. All of them must answer: one that is not seen may have the region.
pub(super) async fn others(configs: &[Config]) -> Result<Vec<RegionStatus>> {
    let mut others = Vec::with_capacity(configs.len());
    for config in configs {
        others.push(show(config).await?);
    }
    Ok(others)
}
