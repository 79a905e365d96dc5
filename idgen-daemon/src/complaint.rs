//! Trouble that lasts is logged when it begins, when it changes, every half minute, and when it ends.

use std::time::{Duration, Instant};

/// Often enough that whoever looks at the log sees it, rare enough that it does not fill the disk.
const REPEAT: Duration = Duration::from_secs(30);

/// One kind of trouble.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    last: Option<(String, Instant)>,
}

impl Complaint {
    /// Logs `text`, unless that was done just now.
    pub(crate) fn raise(&mut self, text: String, now: Instant) {
        if let Some((last, at)) = &self.last
            && *last == text
            && now.duration_since(*at) < REPEAT
        {
            return;
        }
        tracing::warn!("{text}");
        self.last = Some((text, now));
    }

    /// Logs `text` if there was trouble.
    pub(crate) fn settle(&mut self, text: &str) {
        if self.last.take().is_some() {
            tracing::info!("{text}");
        }
    }

    /// What is wrong.
    pub(crate) fn text(&self) -> Option<&str> {
        self.last.as_ref().map(|(text, _)| text.as_str())
    }
}
