//! Logs go to standard error, as text or as one JSON object per line.

use crate::config::LogConfig;
use crate::error::{Error, Result};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// Sets the process's subscriber.
pub fn init(config: &LogConfig) -> Result<()> {
    let layer = fmt::layer().with_writer(stderr);
    let layer = if config.json {
        layer.json().flatten_event(true).boxed()
    } else {
        layer.with_ansi(stderr().is_terminal()).with_target(false).boxed()
    };
    registry()
        .with(layer.with_filter(config.filter.clone()))
        .try_init()
        .map_err(|error| Error::runtime(format!("set up logging: {error}")))
}
