//! Users, roles and tokens of etcd: whatever changes about them, the daemon takes up by itself, or says what to do.

use std::time::{Duration, Instant};

use crate::kit::{
    Authority, CertDir, DaemonOptions, Etcd, EtcdOptions, Load, PATIENCE, Scratch, Server, Store,
    eventually_true, pace, sql, users,
};
use crate::tls::{CLOCK, ON_ETCD};

const PASSWORD: &str = "correct horse battery staple";
/// Longer than what must not be noticed takes on a busy machine.
const LONG_TTL_MS: u64 = 60_000;
/// Minting ends 7.2 s after the last renewal.
const SHORT_TTL_MS: u64 = 9_000;
/// For a machine that is busy.
const SLACK: Duration = Duration::from_secs(3);

/// An etcd that knows the user `idgend`, not (yet) asking for it.
struct Guarded {
    etcd: Etcd,
    server: Server,
    files: Scratch,
}

impl Guarded {
    fn new(options: EtcdOptions) -> Guarded {
        let guarded = Guarded {
            // A password must not cost a tenth of a second of a busy processor here.
            etcd: Etcd::with(options.args(&["--bcrypt-cost", "4"])),
            server: Server::start(),
            files: Scratch::new("auth"),
        };
        users::add_users(&guarded.etcd, PASSWORD);
        guarded
    }

    /// From now on nobody gets in without a user.
    fn switch_on(&self) {
        self.etcd.ctl_ok(&["auth", "enable"]);
    }

    fn as_root(&self, args: &[&str]) -> String {
        users::as_root(&self.etcd, args)
    }

    fn anonymous(&self) -> DaemonOptions {
        DaemonOptions::new(&self.server)
            .store(Store::etcd(&self.etcd))
            .ttl_ms(SHORT_TTL_MS)
            .workers_more("period_ms = 500")
    }

    fn daemon(&self) -> DaemonOptions {
        self.daemon_with(PASSWORD)
    }

    fn daemon_with(&self, password: &str) -> DaemonOptions {
        self.anonymous()
            .store_more(&users::store_lines(&self.files, password))
    }

    fn open_workers(&self) -> i64 {
        let open = "SELECT count(*) FROM idgen.slots WHERE state = 'open'";
        sql::value(&mut self.server.connect(), open)
    }

    /// Minting ends with the lease that nobody renews since.
    fn wait_fenced(&self, fault: Instant) {
        eventually_true(PATIENCE, "minting ends", || self.open_workers() == 0);
        pace::assert_within(fault, Duration::from_millis(SHORT_TTL_MS) + SLACK, "minting ends");
    }

    fn holders(&self) -> usize {
        let keys = self.as_root(&["get", "--prefix", "--keys-only", "/"]);
        keys.lines().filter(|key| key.ends_with("/holder")).count()
    }

    fn mints(&self) {
        let id: i64 = sql::value(&mut self.server.connect(), "SELECT idgen_snowflake()");
        assert!(id > 0);
    }
}

#[test]
fn a_user_with_a_password_from_a_file_or_the_environment_serves_and_the_password_is_never_told() {
    let guarded = Guarded::new(EtcdOptions::default());
    guarded.switch_on();
    let mut daemon = guarded.daemon().start();
    guarded.mints();
    let (_, metrics) = daemon.get("/metrics").expect("metrics");
    let (_, ready) = daemon.get("/readyz").expect("readyz");
    let told = format!("{metrics}{ready}{}", daemon.log());
    assert!(!told.contains("horse"), "{told}");
    daemon.terminate();
    assert_eq!(guarded.holders(), 0, "given back");

    let mut options = guarded.anonymous().store_more("username = \"idgend\"");
    options
        .env
        .push(("IDGEND_STORE__PASSWORD".to_owned(), PASSWORD.to_owned()));
    let daemon = options.start();
    guarded.mints();
    assert!(!daemon.log().contains("horse"), "{}", daemon.log());
    daemon.terminate();
}

#[test]
fn a_wrong_password_gives_no_lease_and_the_right_one_is_taken_up_without_a_restart() {
    let guarded = Guarded::new(EtcdOptions::default());
    guarded.switch_on();
    let mut daemon = guarded.daemon_with("wrong").launch();
    let said = daemon.wait_unready_with("invalid user ID or password");
    assert!(said.contains("compare store.username and the password"), "{said}");
    assert_eq!((guarded.open_workers(), guarded.holders()), (0, 0));
    users::write_password(&guarded.files, PASSWORD);
    daemon.wait_ready();
    guarded.mints();
    daemon.terminate();
}

/// Whoever only listens takes it up as well.
#[test]
fn a_password_that_is_exchanged_is_taken_up_by_everybody() {
    let guarded = Guarded::new(EtcdOptions::default());
    guarded.switch_on();
    let options = guarded.daemon().ttl_ms(LONG_TTL_MS).shards("1").clock(CLOCK);
    let mut daemon = options.start();
    let load = Load::start(&guarded.server, 2);
    load.wait_statements(20);
    daemon.wait_connections(&guarded.etcd, ON_ETCD);
    daemon.wait_reconnected(&guarded.etcd, "the new password is taken up", || {
        guarded.as_root(&["user", "delete", "idgend"]);
        guarded.as_root(&["user", "add", "idgend:something else"]);
        guarded.as_root(&["user", "grant-role", "idgend", "idgend"]);
        users::write_password(&guarded.files, "something else");
    });
    daemon.wait_renewals(3);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(400);
    daemon.terminate();
}

#[test]
fn authentication_that_is_switched_on_under_load_is_not_noticed_with_a_user() {
    let guarded = Guarded::new(EtcdOptions::default());
    let mut daemon = guarded.daemon().ttl_ms(LONG_TTL_MS).start();
    let load = Load::start(&guarded.server, 2);
    load.wait_statements(20);
    guarded.switch_on();
    daemon.wait_log(&["WARN", "user name is empty"]);
    daemon.wait_renewals(3);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(400);
    daemon.terminate();
    assert_eq!(guarded.holders(), 0, "given back");
}

#[test]
fn authentication_that_is_switched_on_without_a_user_ends_the_minting_at_the_deadline() {
    let guarded = Guarded::new(EtcdOptions::default());
    let mut daemon = guarded.anonymous().start();
    let load = Load::start(&guarded.server, 2);
    load.wait_statements(20);
    let fault = Instant::now();
    guarded.switch_on();
    daemon.wait_log(&["WARN", "authentication was switched on: set store.username"]);
    assert_eq!(guarded.open_workers(), 2, "minting goes on to the deadline");
    load.wait_statements(50);
    let said = daemon.wait_unready_with("authentication was switched on");
    guarded.wait_fenced(fault);
    assert!(said.contains(&guarded.etcd.endpoint()), "{said}");
    daemon.kill();
    let daemon = guarded.daemon().start();
    load.wait_statements(20);
    load.finish().assert_unique(400);
    daemon.terminate();
}

/// LEASES.md F23.
#[test]
fn a_role_that_loses_its_permission_is_named_and_gets_the_lease_back_with_it() {
    let guarded = Guarded::new(EtcdOptions::default());
    guarded.switch_on();
    let mut daemon = guarded.daemon().start();
    let load = Load::start(&guarded.server, 2);
    load.wait_statements(20);
    let fault = Instant::now();
    guarded.as_root(&["role", "revoke-permission", "--prefix", "idgend", users::PREFIX]);
    daemon.wait_log(&["WARN", "permission denied", "etcdctl role grant-permission"]);
    load.wait_statements(50);
    guarded.wait_fenced(fault);
    daemon.wait_unready_with("permission denied");
    users::permit(&guarded.etcd, &["--user", users::ROOT]);
    daemon.wait_ready();
    load.wait_statements(20);
    load.finish().assert_unique(400);
    daemon.terminate();
}

/// LEASES.md F21.
#[test]
fn an_expired_token_is_replaced_before_the_lease_ends() {
    let guarded = Guarded::new(EtcdOptions::default().args(&["--auth-token-ttl", "1"]));
    guarded.switch_on();
    let mut daemon = guarded
        .daemon()
        .ttl_ms(LONG_TTL_MS)
        .workers_more("period_ms = 2500")
        .start();
    let load = Load::start(&guarded.server, 2);
    daemon.wait_log(&["WARN", "invalid auth token"]);
    daemon.wait_renewals(3);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(400);
    daemon.terminate();
}

/// LEASES.md F22: tokens that say how old the users are.
#[test]
fn a_token_from_before_a_change_of_users_is_replaced_before_the_lease_ends() {
    let keys = Scratch::new("jwt");
    let [option, tokens] = users::signed_tokens(&keys);
    let guarded = Guarded::new(EtcdOptions::default().args(&[&option, &tokens]));
    guarded.switch_on();
    let mut daemon = guarded.daemon().ttl_ms(LONG_TTL_MS).start();
    let load = Load::start(&guarded.server, 2);
    load.wait_statements(20);
    guarded.as_root(&["user", "add", "somebody:else"]);
    daemon.wait_log(&["WARN", "revision of auth store is old"]);
    daemon.wait_renewals(3);
    let report = load.finish();
    report.assert_no_refusal();
    report.assert_unique(400);
    daemon.terminate();
}

#[test]
fn the_common_name_of_the_certificate_is_the_user() {
    let authority = Authority::new("the right one");
    let certs = CertDir::of(&authority);
    let etcd = Etcd::with(EtcdOptions::default().certs(&certs));
    let server = Server::start();
    users::add_users(&etcd, "unused");
    etcd.ctl_ok(&["auth", "enable"]);
    let daemon = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .store_more(&certs.store_lines())
        .workers_more("period_ms = 500");
    certs.put("client", &authority.client("nobody"));
    let mut running = daemon.launch();
    running.wait_unready_with("permission denied");
    certs.put("client", &authority.client("idgend"));
    running.wait_ready();
    let id: i64 = sql::value(&mut server.connect(), "SELECT idgen_snowflake()");
    assert!(id > 0);
    running.terminate();
}
