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
///
/// One subscriber of the process for all tests: with one of each thread, a place that logs for the first time just as
/// another thread sets or drops its own can be taken for one that nobody listens to.
#[cfg(test)]
pub(crate) fn logged(work: impl FnOnce()) -> String {
    use std::cell::RefCell;
    use std::sync::Once;
    thread_local! {
        static KEPT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
    }
    struct OfThisThread;
    impl std::io::Write for OfThisThread {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            KEPT.with_borrow_mut(|kept| kept.as_mut().map_or(Ok(text.len()), |kept| kept.write(text)))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        let layer = fmt::layer().with_ansi(false).with_writer(|| OfThisThread);
        registry().with(layer).init();
    });
    KEPT.set(Some(Vec::new()));
    work();
    String::from_utf8(KEPT.take().unwrap()).unwrap()
}
