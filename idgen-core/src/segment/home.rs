//! Where a database lives: what it remembers of that, and what a difference means.
//!
//! A row is copied by everything that copies a database. What tells the copies apart is around the row: the
//! history of the cluster (system identifier, timeline) and the place of its files (machine, device, inode).
//! Another history has lost what the old one granted last, unless nothing was granted. The same history in
//! another place is a copy, or a move: nobody but a person can tell.

use core::fmt;

/// History and place of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Home {
    /// Of the cluster; new with initdb, hence with pg_upgrade.
    pub system_identifier: u64,
    /// Of the write-ahead log; new with a promotion and with a recovery to a point in time.
    pub timeline: u32,
    /// The machine's own name for itself (`/etc/machine-id`); `None`: it has none.
    pub machine: Option<String>,
    /// Of the running system, new with each of its starts; `None`: it does not tell.
    pub os_boot: Option<String>,
    /// Number of the device that the data directory is on. Numbers may be dealt anew when the system starts.
    pub device: u64,
    /// Of the data directory on that device.
    pub inode: u64,
}

/// Why ranges may have been granted that this database knows nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Another timeline: a promotion, or a recovery to a point in time.
    Timeline,
    /// Another system identifier: pg_upgrade, or files in another cluster.
    System,
    /// The anchor outside of the data directory has seen more: a snapshot was rolled back.
    RolledBack,
    /// The anchor outside of the data directory cannot be read.
    AnchorDoubtful,
    /// An administrator has said that this copy is the database now.
    Adopted,
    /// An administrator has made this logical replica the master.
    Promoted,
    /// The row came by COPY, restore or replication, or its count was set back.
    Arrived,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Timeline,
        Self::System,
        Self::RolledBack,
        Self::AnchorDoubtful,
        Self::Adopted,
        Self::Promoted,
        Self::Arrived,
    ];

    /// As it is written into tables and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeline => "another timeline",
            Self::System => "another system identifier",
            Self::RolledBack => "rolled back behind the anchor",
            Self::AnchorDoubtful => "anchor cannot be read",
            Self::Adopted => "adopted",
            Self::Promoted => "promoted",
            Self::Arrived => "row came from elsewhere",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is different about the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moved {
    /// Another machine.
    Machine,
    /// Another directory on the same machine.
    Directory,
    /// Another device, while the system has not started anew.
    Device,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "it is on another machine",
            Self::Directory => "it is another directory",
            Self::Device => "it is on another device",
        })
    }
}

/// What a database is to do about its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing: it is at home.
    Same,
    /// Remember anew: the system has started again, and numbers with it.
    Relabel,
    /// Burn first: another history.
    Burn(Cause),
    /// Refuse until an administrator decides: the same history in another place.
    Copy(Moved),
}

/// Compare what is remembered with what is found. History counts first: a standby that was promoted is in
/// another place by right.
#[must_use]
pub fn judge(remembered: &Home, found: &Home) -> Verdict {
    if remembered.system_identifier != found.system_identifier {
        return Verdict::Burn(Cause::System);
    }
    if remembered.timeline != found.timeline {
        return Verdict::Burn(Cause::Timeline);
    }
    if let Some(moved) = moved(remembered, found) {
        return Verdict::Copy(moved);
    }
    if remembered == found {
        Verdict::Same
    } else {
        Verdict::Relabel
    }
}

fn moved(remembered: &Home, found: &Home) -> Option<Moved> {
    // What is not known on one side says nothing.
    let differ = |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    let same_run = remembered.os_boot.is_some() && remembered.os_boot == found.os_boot;
    if differ(&remembered.machine, &found.machine) {
        Some(Moved::Machine)
    } else if remembered.inode != found.inode {
        Some(Moved::Directory)
    } else if same_run && remembered.device != found.device {
        Some(Moved::Device)
    } else {
        None
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn home() -> Home {
        Home {
            system_identifier: 7,
            timeline: 1,
            machine: Some("m".into()),
            os_boot: Some("b".into()),
            device: 10,
            inode: 100,
        }
    }

    fn found(change: impl FnOnce(&mut Home)) -> Verdict {
        let mut found = home();
        change(&mut found);
        judge(&home(), &found)
    }

    #[test]
    fn at_home_nothing_happens() {
        assert_eq!(judge(&home(), &home()), Verdict::Same);
    }

    #[test]
    fn another_history_burns_wherever_it_is() {
        assert_eq!(found(|home| home.timeline = 2), Verdict::Burn(Cause::Timeline));
        assert_eq!(
            found(|home| home.system_identifier = 8),
            Verdict::Burn(Cause::System)
        );
        let elsewhere = |home: &mut Home| {
            home.timeline = 2;
            home.machine = Some("n".into());
            home.inode = 5;
        };
        assert_eq!(
            found(elsewhere),
            Verdict::Burn(Cause::Timeline),
            "a promoted standby"
        );
    }

    #[test]
    fn the_same_history_in_another_place_is_a_copy() {
        assert_eq!(found(|home| home.inode = 101), Verdict::Copy(Moved::Directory));
        assert_eq!(
            found(|home| home.machine = Some("n".into())),
            Verdict::Copy(Moved::Machine)
        );
        assert_eq!(
            found(|home| home.device = 11),
            Verdict::Copy(Moved::Device),
            "a snapshot beside it"
        );
    }

    #[test]
    fn a_restart_of_the_system_may_deal_device_numbers_anew() {
        let restarted = |home: &mut Home| (home.os_boot, home.device) = (Some("c".into()), 11);
        assert_eq!(found(restarted), Verdict::Relabel);
        assert_eq!(
            found(|home| (home.os_boot, home.device) = (None, 11)),
            Verdict::Relabel
        );
        assert_eq!(
            found(|home| (home.os_boot, home.inode) = (Some("c".into()), 11)),
            Verdict::Copy(Moved::Directory)
        );
    }

    #[test]
    fn a_machine_without_a_name_is_told_by_its_directory() {
        assert_eq!(found(|home| home.machine = None), Verdict::Relabel);
        assert_eq!(
            found(|home| (home.machine, home.inode) = (None, 9)),
            Verdict::Copy(Moved::Directory)
        );
    }

    #[test]
    fn causes_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = Cause::ALL.map(Cause::name).into();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
