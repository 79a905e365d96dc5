//! `idgenctl lock list`: who has which lock.

use super::super::store::{of_store, open, printable};
use crate::config::Config;
use crate::error::Result;
use crate::lease::{AnyStore, NamedStore};
use crate::plain_table::plain_table;
use idgen_core::lease::named::{LeaseName, NamedRow};
use serde::Serialize;

/// Every lock that was ever taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Locks {
    /// By name.
    pub locks: Vec<Lock>,
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lock {
    /// CLASS or CLASS/NAME.
    pub name: String,
    /// How often it was taken.
    pub generation: u64,
    /// held, expired (nobody has given it back, and anybody may take it) or free.
    pub state: &'static str,
    /// Who has it, or had it at the expiry.
    pub holder: Option<String>,
    /// The fencing token, EPOCH/REVISION.
    pub token: Option<String>,
}

/// All locks of the cell.
pub async fn list(config: &Config) -> Result<Locks> {
    let rows = match open(config) {
        AnyStore::Postgres(mut store) => store.list(LeaseName::LOCKS).await,
        AnyStore::Etcd(mut store) => store.list(LeaseName::LOCKS).await,
    };
    let rows = rows.map_err(of_store)?;
    Ok(Locks {
        locks: rows.iter().map(Lock::of).collect(),
    })
}

impl Lock {
    fn of(row: &NamedRow) -> Self {
        let holder = row.occupant.as_ref().map(|occupant| &occupant.holder);
        Self {
            name: row.name.of_lock().unwrap_or(row.name.as_str()).to_owned(),
            generation: row.generation,
            state: match holder {
                None => "free",
                Some(holder) if holder.expired => "expired",
                Some(_) => "held",
            },
            holder: holder.map(|holder| holder.name.clone()),
            token: holder.map(|holder| holder.token.to_string()),
        }
    }
}

impl Locks {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        if self.locks.is_empty() {
            return "no lock was ever taken".to_owned();
        }
        let mut table = plain_table();
        table.set_header(["lock", "state", "holder", "token", "times taken"]);
        for lock in &self.locks {
            let text = |value: &Option<String>| value.as_deref().map_or_else(|| "-".to_owned(), printable);
            table.add_row([
                printable(&lock.name),
                lock.state.to_owned(),
                text(&lock.holder),
                text(&lock.token),
                lock.generation.to_string(),
            ]);
        }
        table.to_string()
    }
}
