//! A TCP proxy that a test can make slow, deaf, dumb or hostile while connections run through it.
//!
//! What a real network loses, TCP sends again; so a direction that is *stalled* delivers everything once it is
//! healed, late and in one go, as after a black hole. A direction that *loses* breaks its connections when it is
//! healed: a stream with a hole in it does not exist.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// How often a quiet connection looks at the mode, and a delay is kept to about this.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From the client.
    Requests,
    /// From the server.
    Replies,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// What flows this way arrives this much later.
    Delay(Flow, Duration),
    /// What flows this way is kept until the proxy is healed.
    Stall(Flow),
    /// What flows this way is thrown away; its connection ends when the proxy is healed.
    Lose(Flow),
    /// Connections are reset (RST), and new ones as soon as they are made.
    Reset,
    /// The replies of connections that the marker has gone through are kept until the proxy is healed.
    StallMarked,
}

impl Mode {
    fn stalls(self, way: Flow, marked: bool) -> bool {
        let is_dumb = self == Mode::StallMarked && marked && way == Flow::Replies;
        is_dumb || matches!(self, Mode::Stall(flow) if flow == way || flow == Flow::Both)
    }

    fn loses(self, way: Flow) -> bool {
        matches!(self, Mode::Lose(flow) if flow == way || flow == Flow::Both)
    }

    fn delay(self, way: Flow) -> Duration {
        match self {
            Mode::Delay(flow, delay) if flow == way || flow == Flow::Both => delay,
            _ => Duration::ZERO,
        }
    }
}

struct Shared {
    mode: Mutex<Mode>,
    ended: AtomicBool,
    /// Bytes that were passed on, both ways: whether anything gets through.
    passed: AtomicU64,
    /// Those of them that were replies of marked connections.
    passed_to_marked: AtomicU64,
    to: SocketAddr,
    /// A request with this in it marks its connection.
    marker: Option<&'static [u8]>,
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

pub struct Proxy {
    shared: Arc<Shared>,
    addr: SocketAddr,
}

impl Proxy {
    /// Listens on a free loopback port for connections to `to`.
    pub fn to(to: SocketAddr) -> Proxy {
        Proxy::new(to, None)
    }

    /// The same; connections are marked once this has gone to the server.
    pub fn marking(to: SocketAddr, marker: &'static [u8]) -> Proxy {
        Proxy::new(to, Some(marker))
    }

    fn new(to: SocketAddr, marker: Option<&'static [u8]>) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind the proxy");
        listener
            .set_nonblocking(true)
            .expect("a listener that can be asked");
        let addr = listener.local_addr().expect("the proxy's address");
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Pass),
            ended: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            passed_to_marked: AtomicU64::new(0),
            to,
            marker,
        });
        let accepting = shared.clone();
        thread::spawn(move || accept(&listener, &accepting));
        Proxy { shared, addr }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From the next byte on, for connections that are open as well.
    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    pub fn heal(&self) {
        self.set(Mode::Pass);
    }

    pub fn bytes_passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// What clients have got over marked connections.
    pub fn bytes_passed_to_marked(&self) -> u64 {
        self.shared.passed_to_marked.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.ended() {
        match listener.accept() {
            Ok((client, _)) => {
                // A member that is down: the client sees its connection end, as it would without us.
                if let Ok(server) = TcpStream::connect(shared.to) {
                    join(client, server, shared);
                }
            }
            Err(_) => thread::sleep(TICK),
        }
    }
}

fn join(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    for stream in [&client, &server] {
        stream.set_nonblocking(false).expect("blocking reads");
        stream.set_read_timeout(Some(TICK)).expect("reads end");
        stream.set_nodelay(true).expect("no waiting for more");
    }
    let back = (
        server.try_clone().expect("clone the socket"),
        client.try_clone().expect("clone the socket"),
    );
    let (there_shared, back_shared) = (shared.clone(), shared.clone());
    let marked = Arc::new(AtomicBool::new(false));
    let there_marked = marked.clone();
    thread::spawn(move || pump(client, server, Flow::Requests, &there_shared, &there_marked));
    thread::spawn(move || pump(back.0, back.1, Flow::Replies, &back_shared, &marked));
}

/// Marks the connection if the marker is in what was read; `last` is the end of what was read before.
fn mark(read: &[u8], last: &mut Vec<u8>, marker: &[u8], marked: &AtomicBool) {
    last.extend_from_slice(read);
    if last.windows(marker.len()).any(|part| part == marker) {
        marked.store(true, Ordering::SeqCst);
    }
    last.drain(..last.len().saturating_sub(marker.len()));
}

/// Carries one direction of one connection until either side or the proxy ends.
fn pump(mut from: TcpStream, mut to: TcpStream, way: Flow, shared: &Shared, marked: &AtomicBool) {
    let mut last = Vec::new();
    let mut kept: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 64 * 1024];
    let (mut open, mut lost) = (true, false);
    while !shared.ended() {
        if shared.mode() == Mode::Reset {
            // Closed without a word: the other direction does the same, and the last one sends RST.
            reset_when_closed(&from);
            reset_when_closed(&to);
            return;
        }
        if lost && !shared.mode().loses(way) {
            break;
        }
        let arrived = if open { from.read(&mut buffer) } else { Ok(0) };
        if let (Some(marker), Flow::Requests, Ok(length)) = (shared.marker, way, &arrived) {
            mark(&buffer[..*length], &mut last, marker, marked);
        }
        // Asked anew: the read may have waited under the mode before.
        let mode = shared.mode();
        match arrived {
            Ok(0) if open => open = false,
            Ok(0) => thread::sleep(TICK),
            Ok(_) if mode.loses(way) => lost = true,
            Ok(length) => kept.push_back((Instant::now() + mode.delay(way), buffer[..length].to_vec())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        if !deliver(&mut kept, &mut to, way, shared, marked) || (!open && kept.is_empty()) {
            break;
        }
    }
    // Each direction ends both: a half-closed connection is nothing that gRPC would use.
    let _ended = from.shutdown(Shutdown::Both);
    let _ended = to.shutdown(Shutdown::Both);
}

/// Passes on what is due; false when the other side is gone.
fn deliver(
    kept: &mut VecDeque<(Instant, Vec<u8>)>,
    to: &mut TcpStream,
    way: Flow,
    shared: &Shared,
    marked: &AtomicBool,
) -> bool {
    loop {
        let marked = marked.load(Ordering::SeqCst);
        let is_due = kept.front().is_some_and(|(due, _)| *due <= Instant::now());
        if !is_due || shared.mode().stalls(way, marked) {
            return true;
        }
        let Some((_, bytes)) = kept.pop_front() else {
            return true;
        };
        // Counted before: what has been got asks for more, and that may be what marks the connection.
        let passed = bytes.len() as u64;
        shared.passed.fetch_add(passed, Ordering::Relaxed);
        if way == Flow::Replies && marked {
            shared.passed_to_marked.fetch_add(passed, Ordering::Relaxed);
        }
        if to.write_all(&bytes).is_err() {
            return false;
        }
    }
}

/// Closing a socket that lingers for no time sends RST.
fn reset_when_closed(stream: &TcpStream) {
    let _set = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says everything back.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let addr = listener.local_addr().expect("address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut back = stream.try_clone().expect("clone");
                thread::spawn(move || std::io::copy(&mut &stream, &mut back));
            }
        });
        addr
    }

    fn connect(proxy: &Proxy, limit: Duration) -> TcpStream {
        let stream = TcpStream::connect(proxy.addr()).expect("connect");
        stream.set_read_timeout(Some(limit)).expect("limit");
        stream
    }

    fn say(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(text)?;
        let mut heard = vec![0; text.len()];
        stream.read_exact(&mut heard)?;
        Ok(heard)
    }

    #[test]
    fn what_stalls_arrives_after_the_heal_and_what_is_lost_ends_the_connection() {
        let proxy = Proxy::to(echo());
        let mut stream = connect(&proxy, Duration::from_millis(300));
        assert_eq!(say(&mut stream, b"one").expect("passes"), b"one");
        proxy.set(Mode::Stall(Flow::Replies));
        assert!(say(&mut stream, b"two").is_err(), "the answer is kept");
        proxy.heal();
        let mut heard = [0; 3];
        stream.read_exact(&mut heard).expect("the answer arrives late");
        assert_eq!(&heard, b"two");
        proxy.set(Mode::Lose(Flow::Requests));
        assert!(say(&mut stream, b"three").is_err(), "nothing arrives");
        proxy.heal();
        assert_eq!(
            stream.read(&mut heard).unwrap_or(0),
            0,
            "and the connection has ended"
        );
    }

    #[test]
    fn a_marked_connection_gets_no_replies_and_another_one_does() {
        let proxy = Proxy::marking(echo(), b"marker");
        let mut streams = [(); 2].map(|()| connect(&proxy, Duration::from_millis(300)));
        assert_eq!(say(&mut streams[0], b"the mar").expect("passes"), b"the mar");
        assert_eq!(say(&mut streams[0], b"ker").expect("passes"), b"ker");
        assert_eq!(proxy.bytes_passed_to_marked(), 3);
        proxy.set(Mode::StallMarked);
        assert!(say(&mut streams[0], b"kept").is_err());
        assert_eq!(say(&mut streams[1], b"passes").expect("passes"), b"passes");
        assert_eq!(proxy.bytes_passed_to_marked(), 3);
    }

    #[test]
    fn a_delay_delays_and_a_reset_resets() {
        let proxy = Proxy::to(echo());
        let mut stream = connect(&proxy, Duration::from_secs(5));
        proxy.set(Mode::Delay(Flow::Requests, Duration::from_millis(200)));
        let asked = Instant::now();
        assert_eq!(say(&mut stream, b"late").expect("passes"), b"late");
        assert!(asked.elapsed() >= Duration::from_millis(200));
        proxy.set(Mode::Reset);
        let mut heard = [0; 1];
        let error = stream.read(&mut heard).expect_err("a reset, not an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
