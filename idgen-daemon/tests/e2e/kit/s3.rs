//! An S3 server (moto) with a proxy before it that does to requests what a test says, and a reader of Parquet that is not ours.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::daemon::answer;
use super::ports::free_ports;
use super::process::Process;
use super::{PATIENCE, Scratch, eventually_true, http};

const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/s3/bin");
/// A Python that starts on a busy machine.
const START: Duration = Duration::from_secs(90);
/// Of a read of a connection that nobody serves any more.
const QUIET: Duration = Duration::from_secs(60);

pub const BUCKET: &str = "events";

/// One server. What is in it is in memory, and gone with it.
pub struct S3 {
    _process: Process,
    addr: SocketAddr,
    proxy: Arc<Shared>,
    proxy_addr: SocketAddr,
    _scratch: Scratch,
}

/// What a request meets.
#[derive(Clone, Debug)]
pub enum Meets {
    /// It is not passed on; this comes back, with this code in the body.
    Answer(u16, &'static str),
    /// It is passed on, and the answer is lost: the connection ends.
    LostAnswer,
    /// It is under way for a tenth of a second for each so many bytes of it.
    Slow(usize),
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub bytes: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| value.as_str())
    }
}

struct Rule {
    method: &'static str,
    path_has: &'static str,
    /// How often still; `None`: until it is taken back.
    times: Option<usize>,
    meets: Meets,
}

struct Shared {
    to: SocketAddr,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    /// Held by a conditional create: this server looks first and writes then, and S3 does both at once.
    creating: Mutex<()>,
    /// ETags so far.
    etags: AtomicU64,
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl S3 {
    /// A server with the bucket [`BUCKET`].
    pub fn start() -> S3 {
        let [port] = free_ports();
        let scratch = Scratch::new("s3");
        let program = PathBuf::from(BUILD).join("moto_server");
        assert!(
            program.exists(),
            "{} is missing: run make/s3.sh",
            program.display()
        );
        let mut command = Command::new(program);
        command
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .current_dir(scratch.path());
        let process = Process::spawn("s3", command, scratch.join("s3.log"));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind the proxy");
        let proxy_addr = listener.local_addr().expect("the proxy's address");
        let proxy = Arc::new(Shared {
            to: addr,
            rules: Mutex::default(),
            seen: Mutex::default(),
            creating: Mutex::default(),
            etags: AtomicU64::default(),
        });
        let accepting = Arc::clone(&proxy);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                thread::spawn(move || {
                    let _ = serve(&shared, stream);
                });
            }
        });
        let s3 = S3 {
            _process: process,
            addr,
            proxy,
            proxy_addr,
            _scratch: scratch,
        };
        eventually_true(START, "the S3 server answers", || http::get(addr, "/").is_some());
        s3.make_bucket();
        s3
    }

    pub fn make_bucket(&self) {
        let (status, body) = self.request("PUT", &format!("/{BUCKET}"));
        assert_eq!(status, 200, "{body}");
    }

    /// An upload in parts that nobody ends.
    pub fn begin_upload(&self, key: &str) {
        let (status, body) = self.request("POST", &format!("/{BUCKET}/{key}?uploads"));
        assert_eq!(status, 200, "{body}");
    }

    /// With everything that is in it.
    pub fn remove_bucket(&self) {
        for key in self.keys("") {
            self.request("DELETE", &format!("/{BUCKET}/{key}"));
        }
        let (status, body) = self.request("DELETE", &format!("/{BUCKET}"));
        assert_eq!(status, 204, "{body}");
    }

    /// Signed by somebody: whom, this server does not look at.
    fn request(&self, method: &str, path: &str) -> (u16, String) {
        let signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let mut stream = TcpStream::connect_timeout(&self.addr, PATIENCE).expect("connect to the S3 server");
        stream.set_read_timeout(Some(QUIET)).expect("a limit");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {signed}\r\nConnection: close\r\n\r\n",
            self.addr
        )
        .expect("ask the S3 server");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the S3 server answers");
        let status = answer
            .split_whitespace()
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.expect("a status"), body.to_owned())
    }

    /// Names with this prefix.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        loop {
            let after = keys.last().map_or("", String::as_str);
            let (status, body) = self.request(
                "GET",
                &format!(
                    "/{BUCKET}?list-type=2&prefix={}&start-after={}",
                    escaped(prefix),
                    escaped(after)
                ),
            );
            assert_eq!(status, 200, "{body}");
            let before = keys.len();
            let found = body.split("<Key>").skip(1);
            keys.extend(found.filter_map(|rest| Some(rest.split_once("</Key>")?.0.to_owned())));
            if keys.len() == before {
                return keys;
            }
        }
    }

    /// An object that is text.
    pub fn get(&self, key: &str) -> Option<String> {
        let (status, body) = self.request("GET", &format!("/{BUCKET}/{}", escaped(key)));
        (status == 200).then_some(body)
    }

    /// Lines of `[archive]` by way of the environment; what idgend asks goes through the proxy.
    pub fn env(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://{}", self.proxy_addr);
        [
            ("IDGEND_ARCHIVE__KIND", "s3"),
            ("IDGEND_ARCHIVE__BUCKET", BUCKET),
            ("IDGEND_ARCHIVE__REGION", "us-east-1"),
            ("IDGEND_ARCHIVE__ENDPOINT", &endpoint),
            ("IDGEND_ARCHIVE__FORCE_PATH_STYLE", "true"),
            ("IDGEND_ARCHIVE__KMS_KEY_ID", "alias/events"),
            ("IDGEND_ARCHIVE__CUT_SECONDS", "1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// The next `times` requests of this method whose path has this in it meet that.
    pub fn next(&self, times: usize, method: &'static str, path_has: &'static str, meets: Meets) {
        lock(&self.proxy.rules).push(Rule {
            method,
            path_has,
            times: Some(times),
            meets,
        });
    }

    /// All such requests, until [`S3::heal`].
    pub fn always(&self, method: &'static str, path_has: &'static str, meets: Meets) {
        lock(&self.proxy.rules).push(Rule {
            method,
            path_has,
            times: None,
            meets,
        });
    }

    pub fn heal(&self) {
        lock(&self.proxy.rules).clear();
    }

    /// Rules that have not been used up.
    pub fn rules_left(&self) -> usize {
        lock(&self.proxy.rules).len()
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.proxy.seen).clone()
    }

    /// ETags that the proxy has made up: no object has had the one that it was answered with.
    pub fn false_etags(&self) -> u64 {
        self.proxy.etags.load(Ordering::Relaxed)
    }

    /// Rows of all committed files, as pyarrow reads them.
    pub fn rows(&self) -> Vec<ArchivedRow> {
        let source = format!(
            "from pyarrow import fs\nf = fs.S3FileSystem(access_key='t', secret_key='t', endpoint_override='{}', scheme='http', \
             region='us-east-1')\nroot = '{BUCKET}/'\n",
            self.addr
        );
        rows(&source)
    }
}

/// Rows of all committed files of a folder, as pyarrow reads them.
pub fn rows_in(folder: &std::path::Path) -> Vec<ArchivedRow> {
    rows(&format!(
        "from pyarrow import fs\nf = fs.LocalFileSystem()\nroot = '{}/'\n",
        folder.display()
    ))
}

/// A row of the archive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArchivedRow {
    pub source: String,
    pub event_id: i64,
    pub tag: String,
    pub tag_seq: i64,
    pub partition: i32,
    pub offset: i64,
    pub kind: String,
}

/// What the commits name, and nothing else; it fails where a file has another number of rows than its commit says, or one of an
/// offset that its commit does not cover.
const READ: &str = r#"
import json, pyarrow.parquet as pq
for one in sorted(f.get_file_info(fs.FileSelector(root + 'audit/v1/_commits', recursive=True, allow_not_found=True)), key=lambda i: i.path):
    if one.type != fs.FileType.File: continue
    commit = json.loads(f.open_input_stream(one.path).read())
    covered = {r['p']: range(r['start'], r['end']) for r in commit['ranges']}
    for file in commit['files']:
        if 'service=_foreign' in file['key']: continue
        table = pq.ParquetFile(f.open_input_file(root + file['key'])).read()
        assert table.num_rows == file['rows'], file
        for r in table.to_pylist():
            assert commit['source'] != 'kafka' or r['kafka_offset'] in covered[r['kafka_partition']], (one.path, r)
            print('\t'.join(str(r[c]) for c in ('source','event_id','tag','tag_seq','kafka_partition','kafka_offset','kind')))
"#;

fn rows(source: &str) -> Vec<ArchivedRow> {
    let mut command = Command::new(PathBuf::from(BUILD).join("python"));
    command.args(["-c", &format!("{source}{READ}")]);
    let said = answer(command);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let row = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        ArchivedRow {
            source: fields[0].to_owned(),
            event_id: fields[1].parse().expect("a number"),
            tag: fields[2].to_owned(),
            tag_seq: fields[3].parse().expect("a number"),
            partition: fields[4].parse().expect("a number"),
            offset: fields[5].parse().expect("a number"),
            kind: fields[6].to_owned(),
        }
    };
    said.stdout.lines().map(row).collect()
}

/// As a path of a URL has it.
fn escaped(key: &str) -> String {
    key.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"/._-=".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// One connection: request after request.
fn serve(shared: &Shared, client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(QUIET))?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut client = client;
    while let Some((seen, head)) = request_head(&mut reader)? {
        if seen.header("expect").is_some() {
            client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = vec![0; seen.bytes];
        reader.read_exact(&mut body)?;
        let meets = take(shared, &seen);
        let conditional = seen.header("if-none-match").is_some();
        lock(&shared.seen).push(seen);
        if let Some(Meets::Answer(status, code)) = meets {
            let body = format!("<Error><Code>{code}</Code><Message>scripted</Message></Error>");
            let length = body.len();
            write!(
                client,
                "HTTP/1.1 {status} Scripted\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\r\n{body}"
            )?;
            continue;
        }
        if let Some(Meets::Slow(step)) = meets {
            let pauses = u32::try_from(body.len() / step).unwrap_or(u32::MAX);
            thread::sleep(Duration::from_millis(100) * pauses);
        }
        let answer = pass_on(shared, conditional, &[head, body].concat())?;
        if matches!(meets, Some(Meets::LostAnswer)) {
            return client.shutdown(Shutdown::Both);
        }
        client.write_all(&answer)?;
        return client.shutdown(Shutdown::Both);
    }
    Ok(())
}

/// The answer to a request, with another ETag than the server has given.
fn pass_on(shared: &Shared, conditional: bool, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let _creating = conditional.then(|| lock(&shared.creating));
    let mut server = TcpStream::connect_timeout(&shared.to, PATIENCE)?;
    server.write_all(request)?;
    // The server ends the connection after its answer, because it was told so.
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    const ETAG: &[u8] = b"\r\netag: \"";
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let head = &mut answer[..head.unwrap_or(0)];
    let found = head
        .windows(ETAG.len())
        .position(|part| part.eq_ignore_ascii_case(ETAG));
    if let Some(at) = found {
        let number = shared.etags.fetch_add(1, Ordering::Relaxed);
        let other = format!("{:032x}", u128::from(number) << 64 | 0xe7a6);
        let from = at + ETAG.len();
        let there = &mut head[from..];
        let length = other.len().min(there.len());
        there[..length].copy_from_slice(&other.as_bytes()[..length]);
    }
    Ok(answer)
}

fn take(shared: &Shared, seen: &Seen) -> Option<Meets> {
    let mut rules = lock(&shared.rules);
    let at = rules
        .iter()
        .position(|rule| rule.method == seen.method && seen.path.contains(rule.path_has))?;
    let meets = rules[at].meets.clone();
    if let Some(times) = &mut rules[at].times {
        *times -= 1;
        if *times == 0 {
            rules.remove(at);
        }
    }
    Some(meets)
}

/// A request up to its body, and what is passed on of it: a connection of its own each.
fn request_head(reader: &mut impl BufRead) -> std::io::Result<Option<(Seen, Vec<u8>)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let mut seen = Seen {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        headers: Vec::new(),
        bytes: 0,
    };
    let mut head = line.into_bytes();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            head.extend_from_slice(b"Connection: close\r\n\r\n");
            return Ok(Some((seen, head)));
        };
        let name = name.to_ascii_lowercase();
        if name == "content-length" {
            seen.bytes = value.parse().unwrap_or(0);
        }
        if name != "connection" && name != "expect" {
            head.extend_from_slice(line.as_bytes());
        }
        seen.headers.push((name, value.to_owned()));
    }
}
