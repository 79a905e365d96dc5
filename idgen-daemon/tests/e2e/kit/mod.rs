//! Real servers for tests: started in temp dirs, stopped on drop, their logs shown when a test fails.

pub mod chrony;
pub mod daemon;
pub mod disk;
pub mod etcd;
pub mod fake_clock;
pub mod fault;
pub mod fleet;
pub mod http;
pub mod kafka;
pub mod load;
pub mod pace;
pub mod page;
pub mod pki;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod s3;
pub mod scratch;
pub mod seal;
pub mod server;
pub mod sql;
pub mod unique;
pub mod users;
pub mod wait;

pub use chrony::{Chrony, TimeSource};
pub use daemon::{Daemon, DaemonOptions, Store};
pub use disk::SmallDisk;
pub use etcd::{Etcd, EtcdCluster, EtcdOptions, Release};
pub use fake_clock::FakeClock;
pub use fault::{Pause, SyncFault, SyncFaultGuard};
pub use load::{Load, LoadOptions};
pub use pki::{Authority, CertDir};
pub use proxy::{Flow, Mode, Proxy};
pub use scratch::Scratch;
pub use server::{Server, ServerOptions};
pub use wait::{eventually, eventually_true, within};

use std::time::Duration;

/// Long enough for any step of a healthy system on a busy two-core machine; only a broken one meets it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A number that a benchmark is told by its environment.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => default,
    }
}
