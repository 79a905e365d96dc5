//! `idgenctl lock list`: who has which lock.

use super::super::store::{anchors_of, of_store, open, printable};
use super::{Wish, class_of, name_of};
use crate::config::Config;
use crate::error::Result;
use crate::lease::{AnyStore, NamedStore, Pinned};
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

/// What taking the lock and running its command would do: the lock as it is, and a sentence. The inner error: why the
/// lock is not to be had now.
pub async fn look(config: &Config, wish: &Wish) -> Result<std::result::Result<(Locks, String), String>> {
    class_of(config, &wish.class)?;
    let name = name_of(wish)?;
    let anchors = anchors_of(config).await?;
    let look = match open(config) {
        AnyStore::Postgres(store) => Pinned::new(*store).look_at(&name, &anchors).await,
        AnyStore::Etcd(store) => Pinned::new(*store).look_at(&name, &anchors).await,
    };
    let row = look.map_err(of_store)?.row;
    let locks = Locks {
        locks: row.iter().map(Lock::of).collect(),
    };
    let holder = row.and_then(|row| row.occupant).map(|occupant| occupant.holder);
    if let Some(holder) = holder.filter(|holder| !holder.expired) {
        let why = format!("held by {} under token {}", printable(&holder.name), holder.token);
        return Ok(Err(why));
    }
    let command: Vec<_> = wish.command.iter().map(|word| word.to_string_lossy()).collect();
    let would = format!(
        "The lock {} is free now: it would be taken, and under it run: {}",
        name.of_lock().unwrap_or(name.as_str()),
        printable(&command.join(" "))
    );
    Ok(Ok((locks, would)))
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
