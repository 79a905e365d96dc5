//! What a daemon's log says that it told its server.

use std::time::SystemTime;

use serde_json::Value;

use crate::files::{ClassName, Lines, Record, TokenText};
use crate::moment;

const TARGET: &str = "idgen_daemon::lease::history";

/// Copies the events of one life of a daemon. A line that its end has cut off is left out.
pub fn copy(log: &str, told: &Lines) {
    let lines = log.lines().filter(|line| line.contains(TARGET));
    for line in lines.filter_map(|line| serde_json::from_str(line).ok()) {
        if let Some(record) = event(&line) {
            told.write(&record);
        }
    }
}

fn event(line: &Value) -> Option<Record> {
    let text = |name: &str| line[name].as_str();
    let number = |name: &str| line[name].as_u64();
    let wall: SystemTime = humantime::parse_rfc3339(text("timestamp")?).ok()?;
    let at = moment::of_wall(wall).0;
    let class = ClassName::of(text("class")?);
    let token = TokenText(text("token")?.to_owned());
    let message = text("message")?;
    if message == "publishing" {
        let deadline_ms = number("deadline_ms")?;
        return Some(Record::Deadline {
            at,
            class,
            token,
            deadline_ms,
        });
    }
    let boot_id = text("boot_id")?.parse().ok()?;
    let identity = u16::try_from(number("identity")?).ok()?;
    match message {
        "installed" => Some(Record::Install {
            at,
            boot_id,
            class,
            identity,
            token,
            floor_ms: number("floor_ms")?,
        }),
        "fenced" => Some(Record::Fence {
            at,
            boot_id,
            class,
            identity,
            token,
            last_ms: number("last_ms")?,
        }),
        _ => None,
    }
}

#[test]
fn lines_of_a_daemon_are_understood() {
    let line = r#"{"level":"DEBUG","message":"installed","class":"worker",
        "identity":7,"token":"0/12","boot_id":"8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a11","floor_ms":1800000000000}"#;
    let mut said: Value = serde_json::from_str(line).expect("JSON");
    // Moments are of this host's boot clock, which knows of none before it.
    let now = std::time::SystemTime::now();
    said["timestamp"] = Value::from(humantime::format_rfc3339_micros(now).to_string());
    let Some(Record::Install { identity, token, .. }) = event(&said) else {
        panic!("not understood: {said}");
    };
    assert_eq!((identity, token), (7, TokenText("0/12".to_owned())));
}
