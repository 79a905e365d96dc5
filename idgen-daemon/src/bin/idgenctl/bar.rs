//! How far something has come: a line on the terminal, where stderr is one. Nowhere else: what is written to a file has an end
//! by itself.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// One line; it is gone when this is dropped.
pub struct Bar(ProgressBar);

impl Bar {
    /// Of so many steps of something. More may be added.
    pub fn of(what: &str, steps: u64) -> Self {
        let target = if stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(steps), target).with_style(style);
        Self(bar.with_prefix(what.to_owned()))
    }

    /// So many steps more are to be done.
    pub fn more(&self, steps: u64) {
        self.0.inc_length(steps);
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// So many steps are done, and nobody knows how many there are.
    pub fn reached(&self, steps: u64) {
        self.0.set_length(steps);
        self.0.set_position(steps);
    }

    /// So many of so many steps are done.
    pub fn at(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }

    /// So many steps are done, all in all.
    pub fn done(&self, steps: u64) {
        self.0.set_position(steps);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
