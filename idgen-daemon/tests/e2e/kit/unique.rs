//! The one promise everything else serves: no id twice.

use std::fmt::Debug;

/// Collects ids from many sessions, servers and lives of one cell.
#[derive(Default)]
pub struct UniquenessRecorder<T> {
    ids: Vec<T>,
}

impl<T: Ord + Debug> UniquenessRecorder<T> {
    pub fn new() -> Self {
        UniquenessRecorder { ids: Vec::new() }
    }

    pub fn extend(&mut self, ids: impl IntoIterator<Item = T>) {
        self.ids.extend(ids);
    }

    /// Fails when an id was seen twice, or when there are too few for the test to mean anything.
    pub fn assert_unique(mut self, what: &str, at_least: usize) {
        assert!(
            self.ids.len() >= at_least,
            "{what}: only {} ids, {at_least} expected",
            self.ids.len()
        );
        self.ids.sort_unstable();
        let twice: Vec<&T> = self
            .ids
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| &pair[0])
            .take(10)
            .collect();
        assert!(
            twice.is_empty(),
            "{what}: {} ids, seen twice: {twice:?}",
            self.ids.len()
        );
    }
}

#[test]
fn the_recorder_itself_sees_a_duplicate() {
    let seen = std::panic::catch_unwind(|| {
        let mut recorder = UniquenessRecorder::new();
        recorder.extend([3, 1, 2]);
        recorder.extend([1]);
        recorder.assert_unique("numbers", 4);
    });
    assert!(seen.is_err(), "a recorder that cannot fail proves nothing");
}
