//! A wall clock that a test can set while the server runs.
//!
//! The server is started under libfaketime, which every process of it asks for the offset at every clock
//! read (no cache), so a new offset counts at once and for all. `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` stay
//! true; [`FakeClock::assert_boot_time_is_true`] checks the one that deadlines rest on. A read takes some
//! 25 us instead of 50 ns: such a server is for order and outcome, not for speed.
//!
//! Timers of Postgres itself (statement_timeout and the like) compare wall times, so after a step back they
//! come late: tests have limits of their own.
//!
//! Background workers have the true time: until PostgreSQL 15 the postmaster forks them in a signal handler, inside of a
//! call for which libfaketime has switched itself off.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;

use super::{Scratch, sql};

/// Debian keeps it in a folder named after the machine's architecture.
const LIBRARY_DIRS: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketime.so.1";
/// `/proc/uptime` has two decimals, and counts the same clock.
const UPTIME_RESOLUTION_MS: i64 = 10;

pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// A clock that is right, for a server in this dir.
    pub fn new(scratch: &Scratch) -> FakeClock {
        let clock = FakeClock {
            file: scratch.join("clock"),
        };
        clock.set_offset_ms(0);
        clock
    }

    /// What the program has to be started with.
    pub fn preload_into(&self, command: &mut Command) {
        command.envs(self.settings());
    }

    /// A program that runs another one with this clock, as on the same host.
    pub fn wrapper(&self) -> Vec<String> {
        let settings = self.settings().map(|(name, value)| format!("{name}={value}"));
        ["env".to_owned()].into_iter().chain(settings).collect()
    }

    fn settings(&self) -> [(&'static str, String); 6] {
        [
            ("LD_PRELOAD", library().display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
            // For a clock that stands: seconds since 1970, whatever the time zone.
            ("FAKETIME_FMT", "%s".to_owned()),
        ]
    }

    /// Sets the clock this far from the true one; it runs on from there, at the true rate.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        let (sign, ms) = (if offset_ms < 0 { '-' } else { '+' }, offset_ms.unsigned_abs());
        // libfaketime keeps a rate until it reads another one; without one it does not reckon with fractions.
        let had_rate = fs::read_to_string(&self.file).is_ok_and(|text| text.contains('x'));
        let rate = if had_rate { " x1" } else { "" };
        self.write(&format!("{sign}{}.{:03}{rate}", ms / 1_000, ms % 1_000));
    }

    /// Lets it run at another rate from now on, such as 2 for twice as fast.
    pub fn set_rate(&self, rate: f64) {
        self.write(&format!("+0 x{rate}"));
    }

    /// Stops the clock at a whole second.
    pub fn freeze_at(&self, unix_s: i64) {
        self.write(&unix_s.to_string());
    }

    /// In one step: no process may see half a line.
    fn write(&self, text: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, text).expect("write the clock");
        fs::rename(next, &self.file).expect("set the clock");
    }

    /// A library that moved the other clock as well would make every test of a step prove nothing.
    pub fn assert_boot_time_is_true(client: &mut Client) {
        let before = uptime_ms();
        let said: i64 = sql::value(client, "SELECT boottime_ms FROM idgen.server_clock()");
        let after = uptime_ms() + UPTIME_RESOLUTION_MS;
        assert!(
            (before..=after).contains(&said),
            "CLOCK_BOOTTIME is not the host's: {said} is not in {before} to {after}"
        );
    }
}

fn uptime_ms() -> i64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("read /proc/uptime");
    let seconds = uptime.split_whitespace().next().expect("two numbers");
    let (whole, hundredths) = seconds.split_once('.').expect("two decimals");
    let number = |text: &str| text.parse::<i64>().expect("a number");
    number(whole) * 1_000 + number(hundredths) * 10
}

/// What is preloaded.
pub fn library() -> PathBuf {
    let dirs = fs::read_dir(LIBRARY_DIRS).into_iter().flatten().flatten();
    let mut found = dirs
        .map(|dir| dir.path().join(LIBRARY))
        .filter(|path| path.exists());
    found
        .next()
        .or_else(|| Some(Path::new(LIBRARY_DIRS).join(LIBRARY)).filter(|path| path.exists()))
        .expect("libfaketime is not installed: apt-get install libfaketime (make test does it on Debian)")
}
