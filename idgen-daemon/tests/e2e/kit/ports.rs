//! Loopback ports that nobody else takes, also while their server is down.
//!
//! The system gives ports of its ephemeral range to every connection that goes out, between our look and the
//! server's bind, and again whenever a test stops its server: so ours lie below that range. Test programs that run
//! at the same time keep out of each other's way by locks on files, one per port, held until the process ends.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// Well-known services of a developer's machine mostly lie below.
const FIRST: u16 = 10_000;
/// The lowest ephemeral port where the system does not say.
const EPHEMERAL_DEFAULT: u16 = 32_768;

/// How many ports this process has looked at.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// Ports that are free, and this process's own until it ends.
pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn free_port() -> u16 {
    let count = ephemeral_from().saturating_sub(FIRST).max(1);
    // Processes start far apart, so that they seldom try the same.
    let start = (std::process::id() % u32::from(count)) as u16;
    (0..count)
        .map(|_| {
            FIRST
                + (start
                    .wrapping_mul(7)
                    .wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)))
                    % count
        })
        .find(|port| is_free(*port) && lock(*port))
        .expect("a free port below the ephemeral range")
}

fn ephemeral_from() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_DEFAULT)
}

fn is_free(port: u16) -> bool {
    let addr = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(addr).is_ok() && UdpSocket::bind(addr).is_ok()
}

/// Whoever cannot open the file (another user's) has lost the port as well.
fn lock(port: u16) -> bool {
    let locked = || {
        let file = File::create(lock_dir().join(port.to_string())).ok()?;
        file.try_lock().ok()?;
        Some(file)
    };
    // The lock is for as long as the process lives.
    locked().map(std::mem::forget).is_some()
}

fn lock_dir() -> PathBuf {
    let dir = std::env::temp_dir().join("pg_idgen-test-ports");
    fs::create_dir_all(&dir).expect("a directory for the locks of ports");
    dir
}
