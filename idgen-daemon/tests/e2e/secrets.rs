//! Nothing that our programs write has a password, a token of etcd or a key in it: whatever goes wrong, and at whatever level they log.

use std::fs;
use std::process::Command;

use crate::kit::daemon::{Answer, IDGENCTL, IDGEND, answer, idgenctl};
use crate::kit::{
    Authority, CertDir, Daemon, DaemonOptions, Etcd, EtcdOptions, PATIENCE, Scratch, Server, ServerOptions,
    Store, eventually_true, sql, users,
};

/// Each is told from the others, and from any word of ours.
const OF_POSTGRES: &str = "pgpw-tangerine";
const OF_STORE: &str = "storepw-kumquat";
const OF_ETCD: &str = "etcdpw-persimmon";
const WRONG: &str = "wrongpw-quince";
const IN_ENDPOINT: &str = "urlpw-medlar";
const ALL: [&str; 5] = [OF_POSTGRES, OF_STORE, OF_ETCD, WRONG, IN_ENDPOINT];

/// What was written, and by whom.
#[derive(Default)]
struct Written(Vec<(String, String)>);

impl Written {
    fn note(&mut self, who: &str, text: String) {
        self.0.push((who.to_owned(), text));
    }

    fn daemon(&mut self, what: &str, daemon: &mut Daemon) {
        for page in ["/metrics", "/readyz", "/livez"] {
            if let Some((_, text)) = daemon.get(page) {
                self.note(&format!("{page} of {what}"), text);
            }
        }
        self.note(&format!("log of {what}"), daemon.log());
    }

    fn answer(&mut self, what: &str, answer: Answer) {
        assert!(
            !answer.stdout.is_empty() || !answer.stderr.is_empty(),
            "{what} says nothing"
        );
        self.note(what, answer.stdout);
        self.note(what, answer.stderr);
    }

    /// Everything that idgenctl shows, by this configuration.
    fn idgenctl(&mut self, config: &str) {
        let commands: [&[&str]; 9] = [
            &["status"],
            &["format", "show"],
            &[
                "format",
                "switch",
                "--to",
                "regional",
                "--region",
                "1",
                "--dry-run",
            ],
            &["region", "show"],
            &["epoch", "show"],
            &[
                "epoch",
                "advance",
                "--identity",
                "etcd/1",
                "--reason",
                "no",
                "--yes",
            ],
            &["leases", "list"],
            &["stripes", "list"],
            &["lock", "list"],
        ];
        for command in commands {
            for output in ["table", "json"] {
                let args = [command, &["--config", config, "-o", output]].concat();
                self.answer(&format!("idgenctl {args:?}"), idgenctl(&args));
            }
        }
        let lock = [
            "lock", "run", "--config", config, "--class", "job", "--", "sh", "-c", "echo ran",
        ];
        self.answer("idgenctl lock run", idgenctl(&lock));
    }

    #[track_caller]
    fn assert_without(&self, secrets: &[&str]) {
        for (who, text) in &self.0 {
            for secret in secrets {
                assert!(!text.contains(secret), "{who} tells {secret}: {text}");
            }
            assert!(!has_etcd_token(text), "{who} tells a token of etcd: {text}");
            assert!(!text.contains("PRIVATE KEY"), "{who} tells a key: {text}");
        }
        let bytes: usize = self.0.iter().map(|(_, text)| text.len()).sum();
        println!(
            "{} texts, {bytes} bytes, none of {} secrets",
            self.0.len(),
            secrets.len()
        );
    }
}

/// etcd's simple tokens: 16 letters, a dot, a number.
fn has_etcd_token(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .any(|word| {
            let Some((name, number)) = word.split_once('.') else {
                return false;
            };
            let of_digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            name.len() == 16 && name.bytes().all(|b| b.is_ascii_alphabetic()) && of_digits
        })
}

fn locks() -> &'static str {
    "[locks.job]\nttl_ms = 5000\n"
}

/// Passwords are really asked for.
fn server(password: &str) -> Server {
    let server = Server::with(ServerOptions {
        tcp: true,
        own_identity: true,
        ..Default::default()
    });
    sql::run(
        &mut server.connect(),
        &format!("ALTER ROLE idgend PASSWORD '{password}'"),
    );
    let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    fs::write(server.data_dir().join("pg_hba.conf"), rules).expect("write pg_hba.conf");
    server.reload();
    server
}

fn url(server: &Server, password: &str) -> String {
    format!("postgres://idgend:{password}@{}/postgres", server.addr())
}

/// Launched, and given the time to fail as it says it does.
fn fails(options: &DaemonOptions, why: &str, what: &str, written: &mut Written) {
    let mut daemon = options.launch();
    eventually_true(PATIENCE, &format!("{what}: {why}"), || {
        daemon.log().contains(why) || daemon.exited().is_some()
    });
    assert!(daemon.log().contains(why), "{what}: {}", daemon.log());
    written.daemon(what, &mut daemon);
    written.idgenctl(&daemon.config_path().display().to_string());
}

#[test]
fn passwords_of_postgres_are_told_nowhere() {
    let (server_, store) = (server(OF_POSTGRES), server(OF_STORE));
    let mut written = Written::default();
    let mut good = DaemonOptions::new(&server_)
        .store(Store::Postgres(url(&store, OF_STORE)))
        .locks(locks())
        .log_level("trace");
    good.postgres_url = url(&server_, OF_POSTGRES);
    let mut daemon = good.start();
    written.daemon("a daemon that serves", &mut daemon);
    written.idgenctl(&daemon.config_path().display().to_string());
    daemon.terminate();

    let mut wrong = good.clone();
    wrong.postgres_url = url(&server_, WRONG);
    fails(
        &wrong,
        "password authentication failed",
        "a wrong password",
        &mut written,
    );
    let wrong = good.clone().store(Store::Postgres(url(&store, WRONG)));
    fails(
        &wrong,
        "password authentication failed",
        "a wrong password of the store",
        &mut written,
    );
    let mut away = good.clone();
    away.postgres_url = format!("postgres://idgend:{OF_POSTGRES}@127.0.0.1:1/postgres");
    fails(
        &away,
        "connect to postgres",
        "a server that is away",
        &mut written,
    );
    let pairs = format!("host=127.0.0.1 port=1 user=idgend dbname=postgres password={OF_STORE}");
    fails(
        &good.clone().store(Store::Postgres(pairs)),
        "lease store",
        "a store that is away",
        &mut written,
    );

    written.note("log of the server", server_.log());
    written.note("log of the store", store.log());
    written.assert_without(&ALL);
}

#[test]
fn passwords_and_tokens_of_etcd_are_told_nowhere() {
    let mut etcd = Etcd::with(EtcdOptions::default().args(&["--bcrypt-cost", "4"]));
    let (server, files) = (Server::start(), Scratch::new("secrets"));
    users::add_users(&etcd, OF_ETCD);
    etcd.ctl_ok(&["auth", "enable"]);
    let mut written = Written::default();
    let base = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .locks(locks())
        .workers_more("period_ms = 500")
        .log_level("trace");
    let good = base.clone().store_more(&users::store_lines(&files, OF_ETCD));
    let mut daemon = good.start();
    written.daemon("a daemon that serves", &mut daemon);
    written.idgenctl(&daemon.config_path().display().to_string());

    // While it runs: another password, which is wrong; the member goes away and comes back.
    users::write_password(&files, WRONG);
    eventually_true(PATIENCE, "the password is noticed", || {
        daemon.log().contains("password")
    });
    users::write_password(&files, OF_ETCD);
    etcd.kill();
    daemon.wait_log(&["lease store"]);
    etcd.run();
    daemon.wait_ready();
    written.daemon("a daemon with trouble", &mut daemon);
    daemon.terminate();

    let mut given = base.clone().store_more("username = \"idgend\"");
    given.env = vec![("IDGEND_STORE__PASSWORD".to_owned(), WRONG.to_owned())];
    fails(
        &given,
        "invalid user ID or password",
        "a wrong password",
        &mut written,
    );
    written.assert_without(&ALL);
}

#[test]
fn keys_are_told_nowhere() {
    let certs = CertDir::of(&Authority::new("the right one"));
    let (server, etcd) = (Server::start(), Etcd::with(EtcdOptions::default().certs(&certs)));
    let options = DaemonOptions::new(&server)
        .store(Store::etcd(&etcd))
        .store_more(&certs.store_lines())
        .locks(locks())
        .log_level("trace");
    let mut written = Written::default();
    let mut daemon = options.start();
    written.daemon("a daemon that serves", &mut daemon);
    written.idgenctl(&daemon.config_path().display().to_string());
    // What is no key any more is not quoted either.
    let key = fs::read_to_string(certs.join("client.key")).expect("the key");
    let body = key.lines().find(|line| line.len() > 40).expect("a key");
    fs::write(certs.join("client.key"), key.replace("PRIVATE", "PRIVAT")).expect("spoil it");
    fails(&options, "client.key", "a broken key", &mut written);
    written.assert_without(&[body]);
}

/// The command line, the environment and the file, each of them wrong.
#[test]
fn what_is_put_in_the_wrong_place_is_not_quoted() {
    let mut written = Written::default();
    let files = Scratch::new("secrets");
    let url = format!("postgres://me:{OF_POSTGRES}@nowhere/db");
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("IDGEND_STORE__PASSWORD", OF_ETCD);
        answer(command)
    };
    for args in [
        &["status", url.as_str()][..],
        &["status", "--postgres", &url, "--no-such-option"],
        &["status", "--config", &url],
        &["status", "--output", &url, "--postgres", &url],
        &["status", "--postgres", &url],
        &[url.as_str()],
        &["clock", "accept", "--http", &url],
        &["--help"],
        &["status", "--help"],
        &["--version"],
    ] {
        written.answer(&format!("idgenctl {args:?}"), run(IDGENCTL, args));
    }
    for args in [
        &[url.as_str()][..],
        &["--config", &url],
        &["--help"],
        &["check-config", "--config", &url],
    ] {
        written.answer(&format!("idgend {args:?}"), run(IDGEND, args));
    }
    let sections = [
        format!(
            "[postgres]\nurl = \"{url}\"\n[store]\nkind = \"etcd\"\nendpoints = [\"http://root:{IN_ENDPOINT}@h:1\"]\n"
        ),
        format!("postgres = \"{url}\"\n"),
        format!("[postgres]\nurl = \"{url}\n"),
        format!("[postgres]\nurl = \"\"\"\n{url}?a=b\n"),
        format!("[postgres]\nurl = \"{url}\"\npoll_ms = \"{OF_STORE}\"\n"),
        format!("[postgres]\nurl = \"{url}\"\n[store]\npassword = \"{OF_ETCD}\"\n"),
        format!("[postgres]\nurl = \"host=h user=u password={OF_STORE} nonsense\"\n"),
        format!("[postgres]\nurl \"{url}\"\n"),
    ];
    for (n, text) in sections.iter().enumerate() {
        let file = files.join(&format!("{n}.toml"));
        fs::write(&file, text).expect("write the file");
        let file = file.display().to_string();
        let checked = run(IDGEND, &["check-config", "--config", &file]);
        assert_eq!(
            checked.code,
            Some(2),
            "{text}: {}{}",
            checked.stdout,
            checked.stderr
        );
        written.answer(&format!("check-config of {text}"), checked);
        written.answer(
            &format!("status by {text}"),
            run(IDGENCTL, &["status", "--config", &file]),
        );
    }
    written.assert_without(&ALL);
}
