//! The status as tables.

use super::{AuthorityStatus, CertificateStatus, ClockStatus, PoolStatus, SlotStatus, Status};
use crate::plain_table::plain_table;
use comfy_table::{Cell, Color, Table};

/// Two tables; coloured only when standard output is a terminal.
pub fn table(status: &Status) -> String {
    let mut text = server(status).to_string();
    if !status.slots.is_empty() {
        text.push('\n');
        text.push_str(&slots(&status.slots).to_string());
    }
    text
}

fn server(status: &Status) -> Table {
    let (server, cell) = (&status.server, &status.cell);
    let mut table = plain_table();
    let mut line = |name: &str, value: Cell| {
        table.add_row([Cell::new(name), value]);
    };
    line("server", Cell::new(&server.url));
    line("postgres", Cell::new(&server.postgres));
    line(
        "extension",
        Cell::new(format!("{} (contract {})", server.extension, server.contract)),
    );
    line("state", state(&server.state));
    if let Some(why) = &server.drained {
        line("drained", Cell::new(why).fg(Color::Yellow));
    }
    line("boot id", Cell::new(or_dash(server.boot_id)));
    line(
        "daemon seen",
        Cell::new(
            server
                .daemon_seen_ms_ago
                .map_or_else(dash, |ms| format!("{ms} ms ago")),
        ),
    );
    line(
        "clock",
        server.clock.as_ref().map_or_else(|| Cell::new("-"), clock),
    );
    line("segments", authority(&server.authority));
    line("cell", Cell::new(or_dash(cell.id)));
    line("worker format", Cell::new(or_dash(cell.worker_format.as_ref())));
    if let Some(status) = &status.pool {
        line("pool of workers", pool(status));
    }
    for status in &status.certificates {
        line("certificate", certificate(status));
    }
    table
}

fn certificate(status: &CertificateStatus) -> Cell {
    let CertificateStatus {
        file,
        expires,
        expires_in_s,
        warning,
    } = status;
    let mut text = file.clone();
    if let (Some(expires), Some(left_s)) = (expires, expires_in_s) {
        text = format!("{file} until {expires}, {} days", left_s.div_euclid(86_400));
    }
    match warning {
        None => Cell::new(text).fg(Color::Green),
        Some(warning) => Cell::new(format!("{text}; {warning}")).fg(Color::Red),
    }
}

fn pool(status: &PoolStatus) -> Cell {
    match status {
        PoolStatus::Unknown(why) => Cell::new(format!("unknown: {why}")).fg(Color::Red),
        PoolStatus::Known(pool) => Cell::new(&pool.text).fg(match pool.pressure {
            "low" => Color::Green,
            "warn" => Color::Yellow,
            _ => Color::Red,
        }),
    }
}

fn slots(slots: &[SlotStatus]) -> Table {
    let mut table = plain_table();
    table.set_header([
        "kind",
        "identity",
        "state",
        "token",
        "to deadline",
        "ceiling lead",
    ]);
    for alike in slots.chunk_by(is_next_shard) {
        let [slot, ..] = alike else { continue };
        // Of a closed slot these two say nothing any more.
        let open = alike.iter().filter(|slot| slot.state == "open");
        let deadline_in_ms = open.clone().filter_map(|slot| slot.deadline_in_ms).min();
        let lead_ms = open.filter_map(|slot| slot.ceiling_lead_ms).min();
        let deadline_in = deadline_in_ms.map_or_else(dash, seconds);
        let lead = lead_ms.map_or_else(dash, |ms| format!("{ms} ms"));
        table.add_row([
            Cell::new(&slot.kind),
            Cell::new(identities(alike)),
            state(&slot.state),
            Cell::new(format!("{}/{}", slot.token.epoch, slot.token.revision)),
            Cell::new(deadline_in),
            Cell::new(lead),
        ]);
    }
    table
}

/// A server may have thousands of shards; neighbours of one lease share a line.
fn is_next_shard(slot: &SlotStatus, next: &SlotStatus) -> bool {
    let of = |slot: &SlotStatus| {
        (
            slot.kind.clone(),
            slot.state.clone(),
            slot.token.epoch,
            slot.token.revision,
        )
    };
    slot.kind == "shard" && next.identity == slot.identity + 1 && of(slot) == of(next)
}

fn identities(alike: &[SlotStatus]) -> String {
    match alike {
        [first, .., last] => format!("{}-{}", first.identity, last.identity),
        _ => alike.iter().map(|slot| slot.identity.to_string()).collect(),
    }
}

fn state(name: &str) -> Cell {
    let color = match name {
        "serving" | "open" => Color::Green,
        "fenced" | "drained" => Color::Yellow,
        _ => Color::Red,
    };
    Cell::new(name).fg(color)
}

/// State, reason and numbers, as far as they are known.
fn clock(clock: &ClockStatus) -> Cell {
    let ms = |us: i64| {
        format!(
            "{}.{:03} ms",
            us.unsigned_abs() / 1_000,
            us.unsigned_abs() % 1_000
        )
    };
    let mut text = clock.state.clone();
    if let Some(reason) = clock.reason.as_ref().filter(|_| clock.state != "good") {
        text.push_str(&format!(": {reason}"));
    }
    if let Some(us) = clock.offset_us {
        let side = if us < 0 { "behind" } else { "ahead" };
        text.push_str(&format!("; {} {side}", ms(us)));
    }
    if let Some(us) = clock.error_us {
        text.push_str(&format!("; off by {} at the most", ms(us)));
    }
    let color = match clock.state.as_str() {
        "good" => Color::Green,
        "unsynchronised" | "stepped" | "apart from peers" => Color::Red,
        _ => Color::Yellow,
    };
    Cell::new(text).fg(color)
}

/// Who may grant ranges here, and for how long.
fn authority(authority: &AuthorityStatus) -> Cell {
    let AuthorityStatus {
        kind,
        state,
        deadline_in_ms,
    } = authority;
    let left = deadline_in_ms.map(|ms| format!(", {} to deadline", seconds(ms)));
    let text = format!("authority {kind}: {state}{}", left.unwrap_or_default());
    Cell::new(text).fg(match state.as_str() {
        "granting" => Color::Green,
        "fenced" => Color::Yellow,
        _ => Color::Red,
    })
}

fn seconds(ms: i64) -> String {
    let tenths = ms.unsigned_abs() / 100;
    let sign = if ms < 0 { "-" } else { "" };
    format!("{sign}{}.{} s", tenths / 10, tenths % 10)
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(dash, |value| value.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{CellStatus, ServerStatus, TokenStatus};
    use super::*;

    fn status(slots: Vec<SlotStatus>) -> Status {
        Status {
            server: ServerStatus {
                url: "idgend@/tmp:5432/postgres".to_owned(),
                postgres: "15.20".to_owned(),
                extension: "0.2.0".to_owned(),
                contract: 1,
                state: "serving".to_owned(),
                drained: None,
                boot_id: None,
                daemon_seen_ms_ago: Some(120),
                open_slots: 1,
                deadline_in_ms: Some(400_050),
                clock: None,
                authority: AuthorityStatus {
                    kind: "leased".to_owned(),
                    state: "granting".to_owned(),
                    deadline_in_ms: Some(21_300),
                },
            },
            cell: CellStatus {
                id: None,
                worker_format: Some("classic".to_owned()),
            },
            pool: Some(PoolStatus::Unknown("store away".to_owned())),
            certificates: Vec::new(),
            slots,
        }
    }

    fn slot(state: &str) -> SlotStatus {
        SlotStatus {
            kind: "worker".to_owned(),
            identity: 17,
            state: state.to_owned(),
            token: TokenStatus {
                epoch: 2,
                revision: 91,
            },
            floor_ms: Some(1),
            last_ms: Some(2),
            ceiling_ms: Some(3),
            deadline_in_ms: Some(400_050),
            ceiling_lead_ms: Some(479_000),
        }
    }

    #[test]
    fn a_table_says_token_deadline_and_lead_of_open_slots() {
        let text = table(&status(vec![slot("open")]));
        for part in [
            "idgend@/tmp:5432/postgres",
            "serving",
            "120 ms ago",
            "17",
            "2/91",
            "400.0 s",
            "479000 ms",
            "unknown: store away",
            "authority leased: granting, 21.3 s to deadline",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "no colours when this is not a terminal");
        let text = table(&status(vec![slot("fenced")]));
        assert!(!text.contains("400.0 s"), "a closed slot has no deadline\n{text}");
    }

    #[test]
    fn the_clock_is_shown_with_its_reason_and_what_is_known_of_it() {
        let shown = |clock| {
            let mut status = status(vec![]);
            status.server.clock = clock;
            let text = table(&status);
            let line = text.lines().find(|line| line.contains(" clock "));
            line.expect("a line about the clock").to_owned()
        };
        assert!(shown(None).contains(" - "));
        let good = ClockStatus {
            state: "good".to_owned(),
            reason: Some("the clock is synchronised".to_owned()),
            offset_us: Some(-70),
            error_us: Some(12_345),
        };
        let line = shown(Some(good.clone()));
        assert!(
            line.contains("good; 0.070 ms behind; off by 12.345 ms at the most"),
            "{line}"
        );
        let alone = ClockStatus {
            state: "unsynchronised".to_owned(),
            reason: Some("says the kernel".to_owned()),
            offset_us: None,
            error_us: None,
        };
        let line = shown(Some(alone));
        assert!(line.contains("unsynchronised: says the kernel "), "{line}");
    }

    #[test]
    fn each_certificate_has_a_line_with_its_end_and_what_is_wrong_with_it() {
        let mut status = status(vec![]);
        let good = CertificateStatus {
            file: "/etc/a.pem".to_owned(),
            expires: Some("2027-02-01T00:00:00Z".to_owned()),
            expires_in_s: Some(63 * 86_400 + 5),
            warning: None,
        };
        let gone = CertificateStatus {
            file: "/etc/b.pem".to_owned(),
            expires: None,
            expires_in_s: None,
            warning: Some("no such file".to_owned()),
        };
        status.certificates = vec![good, gone];
        let text = table(&status);
        for line in [
            "/etc/a.pem until 2027-02-01T00:00:00Z, 63 days",
            "/etc/b.pem; no such file",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn neighbouring_shards_of_one_lease_share_a_line_with_the_nearest_end() {
        let shard = |identity, deadline_in_ms| SlotStatus {
            kind: "shard".to_owned(),
            identity,
            deadline_in_ms: Some(deadline_in_ms),
            ..slot("open")
        };
        let mut other = shard(19, 9_000);
        other.token.revision = 92;
        let worker = |identity| SlotStatus {
            identity,
            ..slot("open")
        };
        let slots = vec![
            worker(1),
            worker(2),
            shard(16, 8_000),
            shard(17, 7_000),
            shard(18, 9_000),
            other,
        ];
        let text = table(&status(slots));
        let line = text
            .lines()
            .find(|line| line.contains("16-18"))
            .expect("one line for three shards");
        assert!(line.contains("7.0 s"), "{line}");
        assert_eq!(
            text.lines().filter(|line| line.contains("worker ")).count(),
            3,
            "each worker, and its format\n{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.contains("19") && line.contains("2/92")),
            "{text}"
        );
    }

    #[test]
    fn no_slots_is_one_table() {
        assert!(!table(&status(vec![])).contains("identity"));
        assert_eq!(seconds(-1_250), "-1.2 s");
    }
}
