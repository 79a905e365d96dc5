//! Is an answer as new as those before it, and of the same cluster?
//!
//! Whether the *store* is what it was is judged by `idgen_core::lease::Pins`, from what is read. Here are only
//! single answers: those that must not be used, and those of a member that is behind.

use super::super::store::{StoreError, StoreErrorKind};

/// What every answer is compared with.
#[derive(Debug, Default)]
pub(super) struct Pins {
    cluster_id: Option<u64>,
    revision: i64,
    strikes: u32,
}

/// A member that was paused may answer once with an old revision (etcd #20418): such an answer is
/// dropped and another member asked. A restored cluster goes on doing it.
const STRIKES_MAX: u32 = 2;

impl Pins {
    pub(super) fn cluster_id(&self) -> u64 {
        self.cluster_id.unwrap_or_default()
    }

    /// A look at the whole store. What is let through may be another cluster, or older than what was seen: that is
    /// said by the snapshot.
    pub(super) fn judge_look(&mut self, cluster_id: u64, revision: i64) -> Result<(), StoreError> {
        let same = self.cluster_id == Some(cluster_id);
        if same && revision < self.revision && self.strikes + 1 < STRIKES_MAX {
            self.strikes += 1;
            let what = format!("its revision {revision} is behind {}", self.revision);
            return Err(StoreError::new(StoreErrorKind::Unreachable, what));
        }
        *self = Self {
            cluster_id: Some(cluster_id),
            revision,
            strikes: 0,
        };
        Ok(())
    }

    /// The answer to a write that was planned on the last look. One from elsewhere, or from before it, counts for
    /// nothing: the next look tells.
    pub(super) fn judge_write(&mut self, cluster_id: u64, revision: i64) -> Result<(), StoreError> {
        let unknown = |what| Err(StoreError::new(StoreErrorKind::Unknown, what));
        if self.cluster_id != Some(cluster_id) {
            return unknown(format!(
                "an answer of cluster {cluster_id:x}, not {:x}",
                self.cluster_id()
            ));
        }
        if revision < self.revision {
            return unknown(format!(
                "an answer at revision {revision}, which is behind {}",
                self.revision
            ));
        }
        self.revision = revision;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: Result<(), StoreError>) -> StoreErrorKind {
        result.unwrap_err().kind
    }

    #[test]
    fn one_old_look_is_dropped_and_a_second_one_is_let_through() {
        let mut pins = Pins::default();
        pins.judge_look(7, 10).unwrap();
        assert_eq!(kind(pins.judge_look(7, 9)), StoreErrorKind::Unreachable);
        pins.judge_look(7, 10).unwrap();
        assert_eq!(
            kind(pins.judge_look(7, 9)),
            StoreErrorKind::Unreachable,
            "a good look in between forgives"
        );
        pins.judge_look(7, 8).unwrap();
        pins.judge_look(7, 8).unwrap();
    }

    #[test]
    fn another_cluster_is_seen_at_once() {
        let mut pins = Pins::default();
        pins.judge_look(7, 10).unwrap();
        pins.judge_look(8, 3).unwrap();
        assert_eq!(pins.cluster_id(), 8);
    }

    #[test]
    fn a_write_counts_only_in_the_store_that_was_looked_at() {
        let mut pins = Pins::default();
        assert_eq!(kind(pins.judge_write(7, 10)), StoreErrorKind::Unknown);
        pins.judge_look(7, 10).unwrap();
        pins.judge_write(7, 11).unwrap();
        assert_eq!(kind(pins.judge_write(8, 12)), StoreErrorKind::Unknown);
        assert_eq!(kind(pins.judge_write(7, 10)), StoreErrorKind::Unknown);
    }
}
