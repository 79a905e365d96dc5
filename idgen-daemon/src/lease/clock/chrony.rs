//! Asks chronyd how far the clock may be off: the tracking report, by the UDP protocol of chronyc.
//!
//! One packet there and one back. chronyd answers it to anybody on its own host; where none runs, the kernel refuses
//! the packet at once. The bound is that of ClockBound: the offset, the root dispersion and half the root delay.

use idgen_core::lease::sync::{Source, Sync};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;

/// chronyd answers from memory. One that is stopped does not answer at all, and the kernel is asked instead.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);

/// Version of the protocol: chrony 2.2 of 2015 and later.
const VERSION: u8 = 6;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const TRACKING: u16 = 33;
const TRACKING_REPLY: u16 = 5;
/// Length of the reply. A request is as long: chronyd answers no shorter one, so that nobody can use it to multiply
/// traffic.
const PACKET_BYTES: usize = 104;
/// No source has been selected.
const LEAP_UNSYNCHRONISED: u16 = 3;

/// What the chronyd at `addr` says; `None`: nobody answers there.
pub async fn ask(addr: SocketAddr) -> Option<Sync> {
    tokio::time::timeout(ANSWER_LIMIT, exchange(addr)).await.ok()?
}

async fn exchange(addr: SocketAddr) -> Option<Sync> {
    let from: SocketAddr = match addr {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(from).await.ok()?;
    // Only what comes from there is received from now on.
    socket.connect(addr).await.ok()?;
    let sequence = uuid::Uuid::new_v4().as_fields().0;
    socket.send(&request(sequence)).await.ok()?;
    let mut packet = [0; PACKET_BYTES + 1];
    loop {
        let length = socket.recv(&mut packet).await.ok()?;
        if let Some(sync) = packet.get(..length).and_then(|packet| tracking(packet, sequence)) {
            return Some(sync);
        }
    }
}

fn request(sequence: u32) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    packet[0] = VERSION;
    packet[1] = REQUEST;
    packet[4..6].copy_from_slice(&TRACKING.to_be_bytes());
    packet[8..12].copy_from_slice(&sequence.to_be_bytes());
    packet
}

/// Reads the reply to our request; `None`: it is something else.
fn tracking(packet: &[u8], sequence: u32) -> Option<Sync> {
    let short = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
    let ours = packet.len() == PACKET_BYTES
        && packet.starts_with(&[VERSION, REPLY])
        && short(4)? == TRACKING
        && short(6)? == TRACKING_REPLY
        && short(8)? == 0
        && long(16)? == sequence;
    if !ours {
        return None;
    }
    let leap = short(54)?;
    // Positive: the clock is slow.
    let correction_us = microseconds(float(long(68)?));
    let [root_delay_us, root_dispersion_us] = [long(92)?, long(96)?].map(|bits| microseconds(float(bits)));
    let error_us = i128::from(correction_us.unsigned_abs())
        + i128::from(root_dispersion_us)
        + i128::from(root_delay_us.div_euclid(2));
    Some(Sync {
        source: Source::Chrony,
        synchronised: leap != LEAP_UNSYNCHRONISED,
        offset_us: Some(correction_us.saturating_neg()),
        error_us_max: u64::try_from(error_us.max(0)).unwrap_or(u64::MAX),
    })
}

/// chrony's own format: 7 bits of exponent, 25 bits of coefficient, both signed.
fn float(bits: u32) -> f64 {
    const COEFFICIENT_BITS: u32 = 25;
    const EXPONENT_BITS: u32 = 7;
    let coefficient = (bits << EXPONENT_BITS).cast_signed() >> EXPONENT_BITS;
    let exponent = bits.cast_signed() >> COEFFICIENT_BITS;
    f64::from(coefficient) * 2_f64.powi(exponent - COEFFICIENT_BITS.cast_signed())
}

/// Rounded up, away from zero; saturates.
#[expect(clippy::cast_possible_truncation, reason = "a cast from a float saturates")]
fn microseconds(seconds: f64) -> i64 {
    let us = seconds * 1e6;
    if us < 0.0 {
        us.floor() as i64
    } else {
        us.ceil() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a chronyd 4.3 with `local stratum 5` answered, to the sequence 0x12345678.
    const LOCAL: [(usize, &[u8]); 4] = [
        (0, &[6, 2, 0, 0, 0, 0x21, 0, 5]),
        (16, &[0x12, 0x34, 0x56, 0x78]),
        (28, &[0x7f, 0x7f, 1, 1]),
        (53, &[5]),
    ];

    fn packet(parts: &[(usize, &[u8])]) -> [u8; PACKET_BYTES] {
        let mut packet = [0; PACKET_BYTES];
        for (at, bytes) in LOCAL.iter().chain(parts) {
            packet[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        packet
    }

    fn read(parts: &[(usize, &[u8])]) -> Option<Sync> {
        tracking(&packet(parts), 0x1234_5678)
    }

    #[test]
    fn a_reply_is_a_bound() {
        let local = read(&[]).unwrap();
        assert!(local.synchronised);
        assert_eq!((local.offset_us, local.error_us_max), (Some(0), 0));
        assert!(!read(&[(55, &[3])]).unwrap().synchronised);
        // Half a second slow, root delay 0.25 s, root dispersion 0.125 s.
        let far = read(&[
            (68, &[0x02, 0x80, 0, 0]),
            (92, &[0, 0x80, 0, 0]),
            (96, &[0, 0x40, 0, 0]),
        ])
        .unwrap();
        assert_eq!((far.offset_us, far.error_us_max), (Some(-500_000), 750_000));
    }

    #[test]
    fn floats_are_read_with_both_signs() {
        for (bits, value) in [
            (0x0080_0000, 0.25),
            (0x0200_0000 | 0x0080_0000, 0.5),
            (0xfe80_0000, 0.125),
            (0x0180_0000, -0.25),
        ] {
            assert!((float(bits) - value).abs() < 1e-12, "{bits:x}: {}", float(bits));
        }
    }

    #[test]
    fn what_is_not_the_reply_to_our_request_is_dropped() {
        assert!(tracking(&packet(&[]), 1).is_none(), "another sequence");
        assert!(tracking(&packet(&[])[..103], 0x1234_5678).is_none(), "too short");
        for other in [(0, &[5][..]), (1, &[1]), (5, &[32]), (7, &[6]), (9, &[1])] {
            assert!(read(&[other]).is_none(), "{other:?}");
        }
    }

    #[tokio::test]
    async fn where_no_chronyd_runs_nobody_is_waited_for() {
        let free = UdpSocket::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        assert_eq!(ask(free).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_silent_is_not_waited_for_for_ever() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(ask(silent.local_addr().unwrap()).await, None);
    }
}
