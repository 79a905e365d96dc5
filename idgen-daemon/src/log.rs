//! Logs go to standard error, as text or as one JSON object per line.

use crate::command_line::wants_colours;
use crate::config::LogConfig;
use crate::error::{Error, Result};
use crate::secret::Redacting;
use std::io::stderr;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// Sets the process's subscriber.
pub fn init(config: &LogConfig) -> Result<()> {
    let layer = fmt::layer().with_writer(|| Redacting(stderr()));
    let layer = if config.json {
        layer.json().flatten_event(true).boxed()
    } else {
        layer
            .with_ansi(wants_colours(&stderr()))
            .with_target(false)
            .boxed()
    };
    registry()
        .with(layer.with_filter(config.filter.clone()))
        .try_init()
        .map_err(|error| Error::runtime(format!("set up logging: {error}")))
}

/// What `work` logs on this thread.
#[cfg(test)]
pub(crate) fn logged(work: impl FnOnce()) -> String {
    use std::sync::{Arc, Mutex};
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Kept {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let kept = Kept::default();
    let writer = kept.clone();
    let layer = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
    tracing::subscriber::with_default(registry().with(layer), work);
    let text = kept.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}
