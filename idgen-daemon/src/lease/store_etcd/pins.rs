//! Is this the cluster, and the history of it, that was there before?

use super::super::store::{StoreError, StoreErrorKind};

/// What every answer is compared with.
#[derive(Debug, Default)]
pub(super) struct Pins {
    cluster_id: Option<u64>,
    revision: i64,
    strikes: u32,
    sealed: Option<String>,
}

/// A member that was paused may answer once with an old revision (etcd #20418): such an answer is
/// dropped and another member asked. A restored cluster goes on doing it.
const STRIKES_MAX: u32 = 2;

impl Pins {
    pub(super) fn cluster_id(&self) -> u64 {
        self.cluster_id.unwrap_or_default()
    }

    /// Judges the header of an answer about keys. Another cluster, or a revision that keeps falling,
    /// seals for good: the store was restored, and must not be used before its epoch was advanced.
    pub(super) fn judge(&mut self, cluster_id: u64, revision: i64) -> Result<(), StoreError> {
        if let Some(reason) = &self.sealed {
            return Err(StoreError::new(StoreErrorKind::Sealed, reason.clone()));
        }
        if *self.cluster_id.get_or_insert(cluster_id) != cluster_id {
            return Err(self.seal(format!(
                "sealed: the etcd cluster has id {cluster_id:x}, it had {:x} before",
                self.cluster_id()
            )));
        }
        if revision < self.revision {
            self.strikes += 1;
            let what = format!("etcd's revision fell from {} to {revision}", self.revision);
            if self.strikes >= STRIKES_MAX {
                return Err(self.seal(format!("sealed: {what}: it was restored")));
            }
            return Err(StoreError::new(StoreErrorKind::Unknown, what));
        }
        self.strikes = 0;
        self.revision = revision;
        Ok(())
    }

    /// The cell names the cluster it was made in.
    pub(super) fn judge_cell(&mut self, made_in: u64) -> Result<(), StoreError> {
        if made_in == self.cluster_id() {
            return Ok(());
        }
        let here = self.cluster_id();
        Err(self.seal(format!(
            "sealed: the cell was made in etcd cluster {made_in:x}, this is {here:x}: it was restored"
        )))
    }

    fn seal(&mut self, reason: String) -> StoreError {
        self.sealed = Some(reason.clone());
        StoreError::new(StoreErrorKind::Sealed, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: Result<(), StoreError>) -> StoreErrorKind {
        result.unwrap_err().kind
    }

    #[test]
    fn another_cluster_seals_for_good() {
        let mut pins = Pins::default();
        pins.judge(7, 10).unwrap();
        assert_eq!(kind(pins.judge(8, 11)), StoreErrorKind::Sealed);
        assert_eq!(
            kind(pins.judge(7, 12)),
            StoreErrorKind::Sealed,
            "also when the old one answers again"
        );
    }

    #[test]
    fn one_old_answer_is_dropped_and_a_second_one_seals() {
        let mut pins = Pins::default();
        pins.judge(7, 10).unwrap();
        assert_eq!(kind(pins.judge(7, 9)), StoreErrorKind::Unknown);
        pins.judge(7, 10).unwrap();
        assert_eq!(
            kind(pins.judge(7, 9)),
            StoreErrorKind::Unknown,
            "a good answer in between forgives"
        );
        assert_eq!(kind(pins.judge(7, 8)), StoreErrorKind::Sealed);
        assert_eq!(kind(pins.judge(7, 11)), StoreErrorKind::Sealed);
    }

    #[test]
    fn a_cell_of_another_cluster_seals() {
        let mut pins = Pins::default();
        pins.judge(7, 10).unwrap();
        pins.judge_cell(7).unwrap();
        assert_eq!(kind(pins.judge_cell(6)), StoreErrorKind::Sealed);
    }
}
