//! A server with tags, perhaps a replica, and `idgenctl audit` for them.

use crate::kit::daemon::{Answer, answer};
use crate::kit::sql::{self, value};
use crate::kit::{DaemonOptions, PATIENCE, Scratch, Server, ServerOptions, eventually_true};
use postgres::Client;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

const IDGENCTL: &str = env!("CARGO_BIN_EXE_idgenctl");

pub struct Scene {
    pub server: Server,
    scratch: Scratch,
    pub options: DaemonOptions,
}

impl Scene {
    /// `tags` tags with `grants` grants each, and an `[audit]` section with these lines.
    pub fn new(tags: u32, grants: u32) -> Scene {
        let server = Server::with(ServerOptions {
            settings: vec!["wal_keep_size = 128MB".to_owned()],
            ..ServerOptions::default()
        });
        grant(&mut server.connect(), tags, grants);
        Scene {
            options: DaemonOptions::new(&server),
            scratch: Scratch::new("audit"),
            server,
        }
    }

    pub fn client(&self) -> Client {
        self.server.connect()
    }

    /// A standby that runs.
    pub fn standby(&self) -> Server {
        let mut standby = Server::backup_of(&self.server, true);
        standby.run();
        standby
    }

    pub fn replica(&self, standby: &Server, more: &str) -> DaemonOptions {
        let url = standby.daemon_url();
        self.audited(&format!("replica = \"{url}\"\n{more}"))
    }

    pub fn audited(&self, lines: &str) -> DaemonOptions {
        self.options.clone().sections(&format!("[audit]\n{lines}\n"))
    }

    pub fn ctl(&self, options: &DaemonOptions, args: &[&str]) -> Answer {
        let config = self.scratch.join("idgend.toml");
        fs::write(&config, options.config()).expect("write the configuration");
        let mut command = Command::new(IDGENCTL);
        command.arg("audit").args(args).arg("--config").arg(config);
        answer(command)
    }

    /// Audits, and says what it came to: exit code, verdict, and why.
    pub fn run(&self, options: &DaemonOptions, args: &[&str]) -> (Option<i32>, String, String) {
        let mut all = vec!["run", "--output", "json"];
        all.extend(args);
        let answer = self.ctl(options, &all);
        let runs: Value = serde_json::from_str(&answer.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", answer.stdout, answer.stderr));
        let run = &runs.as_array().expect("a list")[0];
        (
            answer.code,
            run["verdict"].as_str().unwrap_or_default().to_owned(),
            run["reason"].as_str().unwrap_or_default().to_owned(),
        )
    }
}

/// Real grants, each of ten ids.
pub fn grant(client: &mut Client, tags: u32, grants: u32) {
    sql::run(
        client,
        &format!("SELECT idgen_create_segment('t' || n) FROM generate_series(1, {tags}) n"),
    );
    more_grants(client, tags, grants);
}

pub fn more_grants(client: &mut Client, tags: u32, grants: u32) {
    for tag in 1..=tags {
        sql::run(
            client,
            &format!("SELECT idgen_segment_range('t{tag}', 10) FROM generate_series(1, {grants})"),
        );
    }
}

/// A grant that nobody has made: of these ids of a tag, numbered as the next.
pub fn forge(scene: &Scene, tag: &str, ids: &str) -> i64 {
    value(
        &mut scene.client(),
        &format!(
            "INSERT INTO idgen.audit_event (source_id, kind, space_id, tag, tag_seq, lo, hi)
             SELECT p.source_id, 'segment.grant', p.space_id, '{tag}', s.tag_seq + 1, {ids} FROM idgen.space p, idgen.segment s
              WHERE s.tag = '{tag}' RETURNING event_id"
        ),
    )
}

/// As if everything so far had been three days ago: those days have a table of their own, `idgen.aged`.
pub fn age(client: &mut Client) {
    sql::run(
        client,
        "DO $$ BEGIN EXECUTE format('CREATE TABLE idgen.aged PARTITION OF idgen.audit_event FOR VALUES FROM (%L) TO (%L)',
             date_trunc('day', now(), 'UTC') - interval '4 days', date_trunc('day', now(), 'UTC') - interval '1 day'); END $$;
         UPDATE idgen.audit_event SET at = at - interval '3 days';
         UPDATE idgen.segment SET created_at = created_at - interval '3 days', granted_at = granted_at - interval '3 days'",
    );
}

/// What was found, as KIND TAG LO-HI FIRST SECOND, in order.
pub fn findings(client: &mut Client) -> Vec<String> {
    sql::column(
        client,
        "SELECT concat_ws(' ', kind, tag, lo || '-' || hi, first ->> 'event_id', second ->> 'event_id')
           FROM idgen.audit_finding ORDER BY 1",
    )
}

pub fn wait_replayed(primary: &mut Client, standby: &mut Client) {
    let here: String = value(primary, "SELECT pg_current_wal_insert_lsn()::text");
    eventually_true(PATIENCE, "the standby has replayed", || {
        value(
            standby,
            &format!("SELECT pg_last_wal_replay_lsn() >= '{here}'::pg_lsn"),
        )
    });
}

/// Somebody between the audits and servers: the first connection goes to the first of them, the next to the next, and all others to
/// the last.
pub fn balancer(folder: &Scratch, servers: &[&Server]) -> String {
    let mut to: VecDeque<_> = servers.iter().map(|server| server.socket()).collect();
    let listener = UnixListener::bind(folder.join(".s.PGSQL.5432")).expect("listen");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let next = if to.len() > 1 {
                to.pop_front()
            } else {
                to.front().cloned()
            };
            let Some(Ok(server)) = next.map(UnixStream::connect) else {
                continue;
            };
            for (mut from, mut to) in [
                (
                    client.try_clone().expect("a socket"),
                    server.try_clone().expect("a socket"),
                ),
                (server, client),
            ] {
                std::thread::spawn(move || {
                    // Whichever side ends it, both are over.
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(std::net::Shutdown::Both));
                });
            }
        }
    });
    format!(
        "host={} port=5432 user=idgend dbname=postgres",
        folder.path().display()
    )
}
