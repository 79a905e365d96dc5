//! `idgenctl clock accept`: tells a running idgend that its server's wall clock is right as it is.

use super::consent::Change;
use crate::error::{Error, Result};
use crate::http::{ACCEPT_CLOCK, ASKED_BY};
use crate::lease::ANSWER_LIMIT;
use idgen_core::lease::Class;
use serde::Serialize;
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Above the time that idgend itself takes at the most: it asks the keeper of each class in turn.
const LIMIT: Duration = ANSWER_LIMIT.saturating_mul(1 + Class::ALL.len() as u32);

/// Answers are a few lines; whatever listens there may send more.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// What an idgend says of its server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clocks {
    /// A line for each class: what was wrong with its clock, if anything was.
    pub clock: Vec<String>,
}

impl fmt::Display for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clock.join("\n"))
    }
}

/// Tells the idgend that listens at `addr` that the clock is right; of a dry run, asks what it would accept.
pub fn accept(addr: SocketAddr, dry_run: bool) -> Result<Change<Clocks>> {
    let (method, or_older) = match dry_run {
        true => ("GET", "or one that cannot tell without doing it"),
        false => ("POST", "or an older one"),
    };
    let said = ask(addr, method, or_older)?;
    let lines = said.lines().map(str::to_owned).collect();
    let clocks = Clocks { clock: lines };
    Ok(match dry_run {
        true => {
            let would = format!("idgend at {addr} says:\n{clocks}");
            Change::tried(clocks, would)
        }
        false => Change::made(clocks),
    })
}

fn ask(addr: SocketAddr, method: &str, or_older: &str) -> Result<String> {
    let failed = |error: std::io::Error| Error::runtime(format!("ask idgend at {addr}: {error}"));
    let mut stream = TcpStream::connect_timeout(&addr, LIMIT).map_err(failed)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    stream.set_write_timeout(Some(LIMIT)).map_err(failed)?;
    let request = format!(
        "{method} {ACCEPT_CLOCK} HTTP/1.1\r\nHost: {addr}\r\n{ASKED_BY}: idgenctl\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_string(&mut answer)
        .map_err(failed)?;
    let (status, body) = parse(&answer)
        .ok_or_else(|| Error::runtime(format!("what listens at {addr} does not speak HTTP")))?;
    match status {
        200 => Ok(body.to_owned()),
        404 | 405 => Err(Error::runtime(format!(
            "what listens at {addr} is no idgend, {or_older}"
        ))),
        _ => Err(Error::runtime(format!("idgend at {addr}: {}", body.trim_end()))),
    }
}

/// Status and body.
fn parse(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    Some((status.parse().ok()?, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        assert_eq!(
            parse("HTTP/1.1 200 OK\r\na: b\r\n\r\nyes\n"),
            Some((200, "yes\n"))
        );
        for nonsense in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 2\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }
}
