//! TLS to etcd and to Postgres: only to the right server, only with the right files, never in plain text instead; and
//! other files are taken up without a restart.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::kit::daemon::{answer, idgenctl};
use crate::kit::page;
use crate::kit::pki::Leaf;
use crate::kit::{
    Authority, CertDir, DaemonOptions, Etcd, EtcdOptions, Load, PATIENCE, Server, ServerOptions, Store,
    eventually, eventually_true, sql, within,
};

const SHORT_TTL_MS: u64 = 9_000;
const SHORT_PERIOD: &str = "period_ms = 500";
/// The clocks of peers are listened for, and no machine that runs tests is refused for its own.
pub const CLOCK: &str = "check = \"warn\"";

/// An etcd that wants certificates, a server, and a daemon that has them.
struct Secured {
    authority: Authority,
    certs: CertDir,
    server: Server,
    etcd: Etcd,
}

impl Secured {
    fn new() -> Secured {
        let authority = Authority::new("the right one");
        let certs = CertDir::of(&authority);
        let etcd = Etcd::with(EtcdOptions::default().certs(&certs));
        Secured {
            authority,
            certs,
            server: Server::start(),
            etcd,
        }
    }

    fn daemon(&self) -> DaemonOptions {
        DaemonOptions::new(&self.server)
            .store(Store::etcd(&self.etcd))
            .store_more(&self.certs.store_lines())
            .workers_more(SHORT_PERIOD)
    }

    fn good_client(&self) {
        self.certs.put("client", &self.authority.client("idgend"));
    }
}

fn mints(server: &Server) {
    let id: i64 = sql::value(&mut server.connect(), "SELECT idgen_snowflake()");
    assert!(id > 0);
}

fn mints_nothing(server: &Server) {
    let mut client = server.connect();
    sql::run(&mut client, "SET idgen.lease_wait_ms = 0");
    sql::refusal(&mut client, "SELECT idgen_snowflake()", "IG001");
}

/// Neither the key nor what looks like one.
fn assert_not_told(log: &str, secret: &Leaf) {
    assert!(!log.contains("PRIVATE KEY"), "{log}");
    let body = secret.key.lines().find(|line| line.len() > 40).expect("a key");
    assert!(!log.contains(body), "{log}");
}

#[test]
fn with_the_right_certificates_an_etcd_with_tls_serves() {
    let secured = Secured::new();
    let mut daemon = secured.daemon().start();
    mints(&secured.server);
    let (_, metrics) = daemon.get("/metrics").expect("metrics");
    let client = secured.certs.join("client.pem");
    let name = format!(
        "idgen_certificate_expiry_timestamp_seconds{{file=\"{}\"}}",
        client.display()
    );
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&name))
        .expect("the metric");
    let seconds: f64 = line
        .rsplit(' ')
        .next()
        .expect("a value")
        .parse()
        .expect("a number");
    assert!(seconds > 1.8e9, "{line}");
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());

    let certificate = || {
        let config = daemon.config_path().display().to_string();
        let answer = idgenctl(&["status", "--config", &config, "--output", "json"]);
        let status: Value = serde_json::from_str(&answer.stdout).expect("JSON");
        status["certificates"][0].clone()
    };
    let shown = certificate();
    assert_eq!(shown["file"], client.display().to_string());
    assert!(shown["expires_in_s"].as_i64() > Some(0), "{shown}");
    assert_eq!(shown["warning"], Value::Null, "{shown}");
    secured
        .certs
        .put("client", &secured.authority.expired_client("idgend"));
    let shown = certificate();
    assert_eq!(shown["expires"], "2020-12-31T00:00:00Z", "{shown}");
    assert!(
        shown["warning"]
            .as_str()
            .is_some_and(|warning| warning.contains("expired"))
    );
    daemon.kill();
}

/// What a wrong file of the daemon looks like, and what is said about it.
#[test]
fn wrong_files_for_etcd_are_told_apart_give_no_lease_and_are_mended_in_place() {
    let secured = Secured::new();
    let stranger = Authority::new("somebody else");
    let good_ca = || secured.certs.put_ca(&[&secured.authority]);
    let no_certificate = secured.certs.ca_line();
    let with_certificate = secured.certs.store_lines();
    type Step<'a> = Box<dyn Fn() + 'a>;
    let cases: [(&str, &str, Step, Step); 4] = [
        (
            "was not issued by an authority in the configured CA file",
            &with_certificate,
            Box::new(|| secured.certs.put_ca(&[&stranger])),
            Box::new(good_ca),
        ),
        (
            "client.pem expired on 2020-12-31T00:00:00Z",
            &with_certificate,
            Box::new(|| {
                secured
                    .certs
                    .put("client", &secured.authority.expired_client("idgend"))
            }),
            Box::new(|| secured.good_client()),
        ),
        (
            "the server refuses the connection",
            &with_certificate,
            Box::new(|| secured.certs.put("client", &stranger.client("idgend"))),
            Box::new(|| secured.good_client()),
        ),
        (
            "the server refuses the connection",
            &no_certificate,
            Box::new(good_ca),
            Box::new(good_ca),
        ),
    ];
    for (reason, lines, spoil, mend) in cases {
        spoil();
        let mut daemon = secured.daemon().store_more(lines).launch();
        let said = daemon.wait_unready_with(reason);
        assert!(said.contains(&secured.etcd.endpoint()), "{said}");
        assert!(said.contains("hint: "), "{said}");
        mints_nothing(&secured.server);
        let keys = secured.etcd.ctl_ok(&["get", "--prefix", "--keys-only", "/"]);
        assert!(
            !keys.contains("/holder"),
            "a lease without the right certificate: {keys}"
        );
        assert_eq!(daemon.exited(), None, "it waits for the right files");
        mend();
        if lines == with_certificate {
            daemon.wait_ready();
            mints(&secured.server);
        }
        let log = daemon.log();
        daemon.terminate();
        assert_not_told(&log, &secured.authority.client("idgend"));
    }
}

/// What a wrong server looks like.
#[test]
fn a_wrong_etcd_gets_no_request_and_is_named_with_what_is_wrong() {
    let secured = Secured::new();
    let plain = Etcd::start();
    let cases = [
        (
            secured.authority.expired_server(),
            "the server's certificate expired on 2020-12-31T00:00:00Z",
        ),
        (
            secured.authority.server_for("elsewhere.example"),
            "the server's certificate is not for 127.0.0.1 but for",
        ),
    ];
    for (leaf, reason) in cases {
        // etcd reads its certificate with every handshake.
        secured.certs.put("server", &leaf);
        let mut daemon = secured.daemon().launch();
        daemon.wait_unready_with(reason);
        mints_nothing(&secured.server);
        secured.certs.put("server", &secured.authority.server());
        daemon.wait_ready();
        mints(&secured.server);
        daemon.terminate();
    }
    let address = plain.endpoint().replace("http://", "https://");
    let mut daemon = secured.daemon().store(Store::Etcd(vec![address])).launch();
    daemon.wait_unready_with("the server hung up within the TLS handshake");
    mints_nothing(&secured.server);
    let keys = plain.ctl_ok(&["get", "--prefix", "--keys-only", "/"]);
    assert_eq!(keys.trim(), "", "something was sent in plain text");
    daemon.terminate();
}

#[test]
fn files_that_cannot_be_used_are_refused_at_the_start_with_exit_code_2() {
    let secured = Secured::new();
    let check = |why: &str| {
        let mut daemon = secured.daemon().launch();
        let status = daemon.wait_exit();
        assert_eq!(status.code(), Some(2), "{}", daemon.log());
        assert!(daemon.log().contains(why), "{}", daemon.log());
    };
    let key = secured.certs.join("client.key");
    std::fs::remove_file(&key).expect("remove the key");
    check(&format!("read {}: No such file", key.display()));
    secured
        .certs
        .write("client.key", &secured.authority.client("other").key);
    check("do not fit together");
    secured.certs.write("client.key", "nonsense");
    check("client.key has no private key in PEM form");
}

/// Those that hold a connection to etcd: the keepers of workers and of shards, and who listens for the clocks of peers, orders
/// of operators, shards that move, and the log; with the lease of the trail.
pub const ON_ETCD: usize = 7;

/// The authority, the certificate of the server and that of the client, one after the other, as people do it. Whoever only
/// listens takes them up as well.
#[test]
fn all_certificates_of_an_etcd_are_exchanged_under_load_without_a_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let certs = CertDir::of(&old);
    // What etcd itself trusts is read at its start only.
    certs.put_server_ca(&[&old, &new]);
    let mut etcd = Etcd::with(EtcdOptions::default().certs(&certs));
    let server = Server::start();
    let mut daemon = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .store_more(&certs.store_lines())
        .workers_more(SHORT_PERIOD)
        .ttl_ms(SHORT_TTL_MS)
        .shards("1")
        .clock(CLOCK)
        .start();
    let load = Load::start(&server, 2);
    load.wait_statements(20);

    daemon.wait_connections(&etcd, ON_ETCD);
    daemon.wait_reconnected(&etcd, "the new authority is taken up", || {
        certs.put_ca(&[&old, &new]);
    });
    certs.put("server", &new.server());
    daemon.wait_reconnected(&etcd, "the new certificate is taken up", || {
        let client = new.client("idgend");
        certs.write("client.pem", &client.cert);
        daemon.wait_log(&["WARN", "do not fit together", "go on with what was there before"]);
        certs.write("client.key", &client.key);
    });
    certs.put("admin", &new.client("root"));
    daemon.wait_reconnected(&etcd, "the old authority is forgotten", || {
        certs.put_ca(&[&new]);
    });
    // From here on it trusts the new authority alone, so nothing of the old one is in use any more.
    certs.put_server_ca(&[&new]);
    etcd.kill();
    etcd.run();
    daemon.wait_renewals(3);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(4_000);
    daemon.terminate();
}

/// The block of commands in docs/operations.md, as it is written there.
#[test]
fn the_openssl_commands_of_the_documentation_make_certificates_that_work() {
    let page = page::operations();
    let section = page::section(&page, "### Certificates with openssl");
    let commands = &page::blocks(section, "sh")[0];
    let certs = CertDir::new();
    let mut shell = Command::new("bash");
    shell.current_dir(certs.path()).args(["-ec", commands]);
    let made = answer(shell);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for (name, from) in [
        ("server-ca.pem", "ca.pem"),
        ("admin.pem", "client.pem"),
        ("admin.key", "client.key"),
    ] {
        std::fs::copy(certs.join(from), certs.join(name)).expect("copy");
    }
    let etcd = Etcd::with(EtcdOptions::default().certs(&certs));
    let server = Server::start();
    let daemon = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .store_more(&certs.store_lines())
        .start();
    mints(&server);
    daemon.terminate();
}

// --- Postgres ---

fn secured_server(certs: &CertDir, own_identity: bool) -> Server {
    Server::with(ServerOptions {
        certs: Some(certs.path().to_owned()),
        own_identity,
        ..Default::default()
    })
}

/// What the daemon's sessions are called that are always there. Whoever only listens is among them.
const SESSIONS: [&str; 7] = [
    "idgend",
    "idgend beacons",
    "idgend events",
    "idgend orders",
    "idgend shard map",
    "idgend shards",
    "idgend store",
];

#[test]
fn a_server_and_a_store_with_tls_are_reached_with_verify_full_and_a_certificate() {
    let authority = Authority::new("the right one");
    let certs = CertDir::of(&authority);
    let servers = [secured_server(&certs, true), secured_server(&certs, false)];
    let [store, server] = &servers;
    let url = |server: &Server| server.tcp_url("127.0.0.1", &certs.url_parameters());
    let options = DaemonOptions::new(server).store(Store::Postgres(url(store)));
    let mut options = options.workers_more(SHORT_PERIOD).clock(CLOCK).shards("1");
    options.postgres_url = url(server);
    let mut daemon = options.start();
    mints(server);
    let load = Load::start(server, 2);

    let mut clients = servers.each_ref().map(Server::connect);
    let mut sessions = || -> Vec<(String, bool, Option<String>)> {
        let asked = "SELECT a.application_name, coalesce(s.ssl AND s.client_dn = '/CN=idgend', false), s.client_serial::text
                       FROM pg_stat_activity a LEFT JOIN pg_stat_ssl s USING (pid) WHERE a.usename = 'idgend'";
        let rows = clients
            .iter_mut()
            .flat_map(|client| client.query(asked, &[]).expect("sessions"));
        rows.map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    };
    let missing = |sessions: &[(String, bool, Option<String>)]| -> Vec<&str> {
        let is_there = |name: &str| sessions.iter().any(|(there, ..)| there == name);
        SESSIONS.into_iter().filter(|name| !is_there(name)).collect()
    };
    let serials = |sessions: &[(String, bool, Option<String>)]| -> BTreeSet<Option<String>> {
        sessions.iter().map(|(.., serial)| serial.clone()).collect()
    };
    let before = eventually(PATIENCE, "everybody has a session", || {
        Some(sessions()).filter(|sessions| missing(sessions).is_empty())
    });
    assert!(before.iter().all(|(_, encrypted, _)| *encrypted), "{before:?}");
    let old = serials(&before);
    assert_eq!(old.len(), 1, "{before:?}");

    load.wait_statements(20);
    // Whoever writes the trail has nothing to do from here on.
    eventually_true(PATIENCE, "the trail is written", || {
        let written = "SELECT (SELECT max(cursor) FROM idgen.lease_trail) = (SELECT max(position) FROM idgen.lease_change)";
        sql::value::<Option<bool>>(&mut store.connect(), written) == Some(true)
    });
    certs.put("client", &authority.client("idgend"));
    let mut now = Vec::new();
    let all = within(PATIENCE, || {
        now = sessions();
        // Whoever writes the trail comes back with the next thing to write.
        missing(&now).iter().all(|name| *name == "idgend events") && serials(&now).is_disjoint(&old)
    });
    assert!(all, "all sessions have another certificate than {old:?}: {now:?}");
    daemon.wait_renewals(2);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(400);
    daemon.terminate();
}

#[test]
fn a_wrong_postgres_or_a_wrong_certificate_is_told_apart_and_gives_no_lease() {
    let authority = Authority::new("the right one");
    let stranger = Authority::new("somebody else");
    let certs = CertDir::of(&authority);
    let server = secured_server(&certs, false);
    let (full, ca_only) = (certs.url_parameters(), certs.ca_parameters());
    let good_server = || {
        certs.put("server", &authority.server());
        server.reload();
    };
    type Step<'a> = Box<dyn Fn() + 'a>;
    let cases: [(&str, &str, &str, Step); 6] = [
        (
            "127.0.0.1",
            &full,
            "was not issued by an authority",
            Box::new(|| certs.put_ca(&[&stranger])),
        ),
        (
            "127.0.0.1",
            &full,
            "the server's certificate expired on 2020-12-31T00:00:00Z",
            Box::new(|| {
                certs.put_ca(&[&authority]);
                certs.put("server", &authority.expired_server());
                server.reload();
            }),
        ),
        (
            "localhost",
            &full,
            "is not for localhost but for",
            Box::new(good_server),
        ),
        (
            "127.0.0.1",
            &full,
            "client.pem expired on 2020-12-31T00:00:00Z",
            Box::new(|| certs.put("client", &authority.expired_client("idgend"))),
        ),
        (
            "127.0.0.1",
            &ca_only,
            "connection requires a valid client certificate",
            Box::new(|| certs.put("client", &authority.client("idgend"))),
        ),
        (
            "127.0.0.1",
            &full,
            "certificate authentication failed for user",
            Box::new(|| certs.put("client", &authority.client("somebody"))),
        ),
    ];
    let mut options = DaemonOptions::new(&server).workers_more(SHORT_PERIOD);
    for (host, tls, reason, spoil) in cases {
        spoil();
        options.postgres_url = server.tcp_url(host, tls);
        let mut daemon = options.launch();
        daemon.wait_unready_with(reason);
        mints_nothing(&server);
        assert_not_told(&daemon.log(), &authority.client("idgend"));
        daemon.terminate();
    }
    // The last of them is mended in place.
    let mut daemon = options.launch();
    daemon.wait_unready();
    certs.put("client", &authority.client("idgend"));
    daemon.wait_ready();
    mints(&server);
    daemon.terminate();
}

#[test]
fn a_postgres_without_tls_is_not_spoken_to_in_plain_text() {
    let authority = Authority::new("the right one");
    let certs = CertDir::of(&authority);
    let mut servers = [secured_server(&certs, true), Server::start()];
    let [store, server] = &mut servers;
    store.set("ssl", "off");
    std::fs::write(
        store.data_dir().join("pg_hba.conf"),
        "local all all trust\nhost all all 127.0.0.1/32 trust\n",
    )
    .expect("let everybody in");
    store.restart();
    let url = store.tcp_url("127.0.0.1", &certs.url_parameters());
    let mut daemon = DaemonOptions::new(server).store(Store::Postgres(url)).launch();
    daemon.wait_unready_with("server does not support TLS");
    mints_nothing(server);
    let cells: i64 = sql::value(&mut store.connect(), "SELECT count(*) FROM idgen.cell");
    assert_eq!(cells, 0, "something was written without TLS");
    store.set("ssl", "on");
    store.restart();
    daemon.wait_ready();
    mints(server);
    daemon.terminate();
}
