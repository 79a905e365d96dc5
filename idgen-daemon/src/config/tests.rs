use super::*;
use crate::error::ErrorKind;
use crate::lease::Password;
use crate::tls::ClientFiles;

const MINIMAL: &str = "[postgres]\nurl = \"host=/tmp user=idgend dbname=app\"\n";

fn parse(text: &str) -> Result<Config> {
    Config::parse("idgend.toml", text, [])
}

fn refusal(text: &str) -> String {
    let error = parse(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    error.to_string()
}

fn with_env(name: &str, value: &str) -> Result<Config> {
    Config::parse("idgend.toml", MINIMAL, [(name.to_owned(), value.to_owned())])
}

/// What is leased of a class.
fn leases(config: &Config, class: Class) -> &ClassConfig {
    let found = config.classes.iter().find(|leases| leases.class == class);
    found.expect("configured")
}

fn times(leases: &ClassConfig) -> (u64, u64, u64) {
    let timing = leases.timing;
    (timing.ttl_ms(), timing.window_ms(), timing.period_ms())
}

fn shards(ids: &[u16]) -> Wanted {
    Wanted::Listed(ids.iter().copied().map(Identity).collect())
}

#[test]
fn an_empty_file_says_what_is_missing() {
    assert_eq!(refusal(""), "idgend.toml: postgres.url is missing");
}

/// dotnetcore/CAP#1322 (10 bits of a MAC address), mybatis-plus#1053, #3077, #6177 (addresses that differ, shifted to one
/// number; a process number that is 1 in every container): nothing about a host is an identity, and nobody can say one.
#[test]
fn incident_31_and_32_no_worker_number_is_configured_or_derived() {
    for key in [
        "id",
        "ids",
        "worker_id",
        "machine_id",
        "datacenter_id",
        "from_mac",
        "from_ip",
        "from_pid",
        "random",
    ] {
        let refused = refusal(&format!("{MINIMAL}[workers]\n{key} = 5\n"));
        assert!(refused.contains(&format!("unknown field `{key}`")), "{refused}");
    }
    for name in [
        "IDGEND_WORKERS__ID",
        "IDGEND_WORKERS__WORKER_ID",
        "IDGEND_WORKER_ID",
    ] {
        let refused = with_env(name, "5").unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
    }
}

#[test]
fn a_minimal_file_takes_the_defaults() {
    let config = parse(MINIMAL).unwrap();
    assert!(!config.name.is_empty(), "the host's name");
    assert_eq!(config.classes.len(), 1, "no shards unless they are named");
    let workers = leases(&config, Class::Worker);
    assert_eq!(workers.wanted, Wanted::Any(2));
    assert_eq!(times(workers), (600_000, 480_000, 10_000));
    assert_eq!(config.postgres.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.postgres.poll, Duration::from_millis(500));
    assert!(config.clock.accept_synchronised);
    assert_eq!(config.http_listen, Some("127.0.0.1:9787".parse().unwrap()));
    assert!(!config.log.json);
    let StoreConfig::Postgres {
        url, request_timeout, ..
    } = config.store
    else {
        panic!("not embedded")
    };
    assert_eq!(
        url.get_dbname(),
        Some("app"),
        "the store is the server's own database"
    );
    assert_eq!(request_timeout, Duration::from_secs(1));
}

#[test]
fn a_full_file_sets_everything() {
    let config = parse(
        r#"
        name = "server-a"
        [postgres]
        url = "postgresql://idgend:secret@127.0.0.1:6543/app"
        connect_timeout_ms = 1500
        poll_ms = 250
        [store]
        kind = "etcd"
        endpoints = ["http://127.0.0.1:2379", "http://10.0.0.2:2379"]
        prefix = "/ids/eu"
        request_timeout_ms = 700
        [workers]
        count = 8
        ttl_ms = 60000
        window_ms = 40000
        period_ms = 5000
        [shards]
        ids = [40, "16-18", 0]
        ttl_ms = 20000
        window_ms = 8000
        period_ms = 1500
        [clock]
        accept_synchronised = false
        [http]
        listen = ""
        [log]
        format = "json"
        level = "debug"
        "#,
    )
    .unwrap();
    assert_eq!(config.name, "server-a");
    let workers = leases(&config, Class::Worker);
    assert_eq!(workers.wanted, Wanted::Any(8));
    assert_eq!(times(workers), (60_000, 40_000, 5_000));
    let listed = leases(&config, Class::Shard);
    assert_eq!(listed.wanted, shards(&[0, 16, 17, 18, 40]), "in rising order");
    assert_eq!(times(listed), (20_000, 8_000, 1_500));
    assert_eq!(config.postgres.poll, Duration::from_millis(250));
    assert!(!config.clock.accept_synchronised);
    assert_eq!(config.http_listen, None);
    assert!(config.log.json);
    assert!(
        !format!("{:?}", config.postgres).contains("secret"),
        "Debug hides the password"
    );
    let StoreConfig::Etcd {
        endpoints,
        prefix,
        request_timeout,
        ..
    } = config.store
    else {
        panic!("not etcd")
    };
    assert_eq!((endpoints.len(), prefix.as_str()), (2, "/ids/eu"));
    assert_eq!(request_timeout, Duration::from_millis(700));
}

#[test]
fn an_etcd_with_larger_transactions_takes_more_identities() {
    let etcd = "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n";
    for fits in [
        "[workers]\ncount = 63\n[shards]\nids = [\"0-62\"]\n",
        "max_txn_ops = 130\n[workers]\ncount = 64\n[shards]\nids = [\"0-63\"]\n",
        "max_txn_ops = 4096\n[shards]\nids = [\"0-2046\"]\n",
    ] {
        let parsed = parse(&format!("{MINIMAL}{etcd}{fits}"));
        assert!(parsed.is_ok(), "{fits}: {:?}", parsed.err());
    }
}

#[test]
fn shards_have_times_of_their_own() {
    let config = parse(&format!("{MINIMAL}[shards]\nids = [7]\n")).unwrap();
    assert_eq!(times(leases(&config, Class::Shard)), (30_000, 10_000, 2_000));
    let config = parse(&format!("{MINIMAL}[shards]\nids = [7]\nttl_ms = 4000\n")).unwrap();
    assert_eq!(
        times(leases(&config, Class::Shard)),
        (4_000, 3_200, 1_333),
        "what fits into a short TTL"
    );
}

#[test]
fn a_server_may_have_shards_only() {
    let config = parse(&format!(
        "{MINIMAL}[workers]\ncount = 0\n[shards]\nids = [\"0-8191\"]\n"
    ))
    .unwrap();
    assert_eq!(config.classes.len(), 1);
    assert_eq!(leases(&config, Class::Shard).wanted.count(), 8_192);
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let text = refusal("[postgres]\nurl = \"host=/tmp user=a\"\nurll = \"x\"\n");
    assert!(text.starts_with("idgend.toml:3: "), "{text}");
    assert!(text.contains("urll"), "{text}");
    let text = refusal(&format!("{MINIMAL}[surprise]\n"));
    assert!(text.contains("surprise"), "{text}");
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_line_and_without_its_text() {
    let text = refusal("[workers]\ncount = \"two\"\n");
    assert!(text.starts_with("idgend.toml:2: count: "), "{text}");
    let text = refusal("[shards]\nids = [\n  1.5]\n");
    assert!(text.contains("a number or a range such as \"16-31\""), "{text}");
    let text = refusal("[postgres]\nurl = \"postgresql://a:secret@b/c\n");
    assert!(text.starts_with("idgend.toml:2: "), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// Each text is refused with a message that names the file and the mistake.
fn assert_refused(cases: &[(&str, &str)]) {
    for (text, named) in cases {
        let refused = refusal(&format!("{MINIMAL}{text}"));
        assert!(refused.starts_with("idgend.toml: "), "{refused}");
        assert!(
            refused.contains(named),
            "`{named}` is not named for\n{text}\n{refused}"
        );
    }
}

#[test]
fn bad_values_are_named() {
    assert_refused(&[
        ("[workers]\ncount = 0\n", "there is nothing to lease"),
        ("[workers]\ncount = 65\n", "workers.count = 65"),
        (
            "[workers]\nttl_ms = 1000\nwindow_ms = 2000\n",
            "workers.window_ms = 2000",
        ),
        (
            "[workers]\nttl_ms = 10000\nperiod_ms = 9000\n",
            "workers.period_ms = 9000",
        ),
        ("[workers]\nttl_ms = 10\n", "workers.ttl_ms = 10"),
        ("[store]\nkind = \"redis\"\n", "store.kind = \"redis\""),
        ("[store]\nkind = \"etcd\"\n", "store.endpoints is missing"),
        (
            "[store]\nkind = \"etcd\"\nendpoints = []\n",
            "store.endpoints is empty",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"127.0.0.1:2379\"]\n",
            "127.0.0.1:2379",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\nprefix = \"/a/\"\n",
            "store.prefix",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\nurl = \"x\"\n",
            "store.url",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[workers]\ncount = 64\n",
            "workers.count = 64: etcd leases them in one transaction",
        ),
        ("[workers]\ncount = 65\n", "0 to 64"),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\nmax_txn_ops = 4097\n",
            "store.max_txn_ops = 4097 is not in 64 to 4096",
        ),
        (
            "[store]\nmax_txn_ops = 128\n",
            "store.max_txn_ops is for kind = \"etcd\" only",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[workers]\nttl_ms = 2500\n",
            "whole seconds",
        ),
        ("[store]\nendpoints = [\"http://a:1\"]\n", "store.endpoints"),
        ("[store]\nurl = \"nonsense without a key\"\n", "store.url"),
        (
            "[store]\nrequest_timeout_ms = 0\n",
            "store.request_timeout_ms = 0",
        ),
        (
            "[http]\nlisten = \"everywhere\"\n",
            "http.listen = \"everywhere\"",
        ),
        ("[log]\nlevel = \"loud\"\n", "log.level = \"loud\""),
        ("[log]\nformat = \"xml\"\n", "log.format = \"xml\""),
    ]);
}

const SECURE: &str = "[store]\nkind = \"etcd\"\nendpoints = [\"https://a:1\", \"https://b:1\"]\n";
const PLAIN: &str = "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n";

fn security(text: &str, vars: &[(&str, &str)]) -> EtcdSecurity {
    let vars = vars
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let config = Config::parse("idgend.toml", &format!("{MINIMAL}{text}"), vars).unwrap();
    match config.store {
        StoreConfig::Etcd { security, .. } => security,
        StoreConfig::Postgres { .. } => panic!("not etcd"),
    }
}

#[test]
fn certificates_and_a_user_of_etcd() {
    let client = "ca_file = \"/ca\"\ncert_file = \"/c\"\nkey_file = \"/k\"\n";
    let both = security(
        &format!("{SECURE}{client}username = \"u\"\npassword_file = \"/p\"\n"),
        &[],
    );
    let files = TlsFiles {
        ca: "/ca".into(),
        client: Some(ClientFiles {
            cert: "/c".into(),
            key: "/k".into(),
        }),
    };
    assert_eq!(both.tls, Some(files));
    assert_eq!(
        both.user.map(|user| user.password),
        Some(Password::File("/p".into()))
    );
    let plain = security(
        PLAIN,
        &[
            ("IDGEND_STORE__USERNAME", "u"),
            ("IDGEND_STORE__PASSWORD", "secret"),
        ],
    );
    assert_eq!(plain.tls, None);
    assert_eq!(
        plain.user.clone().map(|user| user.password),
        Some(Password::given("secret".to_owned()))
    );
    assert!(
        !format!("{plain:?}").contains("secret"),
        "Debug hides the password"
    );
    let from_environment = security(
        SECURE,
        &[
            ("IDGEND_STORE__CA_FILE", "/ca"),
            ("IDGEND_STORE__CERT_FILE", "/c"),
            ("IDGEND_STORE__KEY_FILE", "/k"),
            ("IDGEND_STORE__USERNAME", "u"),
            ("IDGEND_STORE__PASSWORD_FILE", "/p"),
        ],
    );
    assert_eq!(
        from_environment.tls.and_then(|files| files.client).map(|c| c.key),
        Some("/k".into())
    );
}

/// Whatever would end in plain text, or in a server that nobody checks, is no configuration.
#[test]
fn there_is_no_tls_by_halves() {
    let with = |base: &str, more: &str| format!("{base}{more}");
    let cases = [
        (with(SECURE, ""), "https://a:1 needs store.ca_file"),
        (with(PLAIN, "ca_file = \"/ca\"\n"), "http://a:1 is not https://"),
        (
            SECURE.replace("https://b", "http://b") + "ca_file = \"/ca\"\n",
            "http://b:1 is not https://",
        ),
        (SECURE.replace("https://b:1", "b:1"), "\"b:1\" is not of the form"),
        (
            with(SECURE, "ca_file = \"/ca\"\ncert_file = \"/c\"\n"),
            "belong together",
        ),
        (
            with(PLAIN, "cert_file = \"/c\"\nkey_file = \"/k\"\n"),
            "needs store.ca_file",
        ),
        (with(PLAIN, "username = \"u\"\n"), "needs store.password_file"),
        (with(PLAIN, "password_file = \"/p\"\n"), "needs store.username"),
        (with(PLAIN, "password = \"secret\"\n"), "password"),
        (
            "[store]\nca_file = \"/ca\"\n".to_owned(),
            "store.ca_file is for kind = \"etcd\" only",
        ),
    ];
    for (text, why) in cases {
        let refused = refusal(&format!("{MINIMAL}{text}"));
        assert!(
            refused.contains(why),
            "`{why}` is not said for\n{text}\n{refused}"
        );
        assert!(!refused.contains("secret"), "{refused}");
    }
}

#[test]
fn bad_shards_are_named() {
    assert_refused(&[
        (
            "[workers]\ncount = 0\n[shards]\nids = []\n",
            "there is nothing to lease",
        ),
        (
            "[shards]\nids = [8192]\n",
            "\"8192\" is not a number or range within 0 to 8191",
        ),
        ("[shards]\nids = [-1]\n", "\"-1\" is not"),
        ("[shards]\nids = [\"9-\"]\n", "\"9-\" is not"),
        ("[shards]\nids = [\"9-7\"]\n", "\"9-7\" ends before it begins"),
        ("[shards]\nids = [7, \"5-9\"]\n", "shard 7 is named twice"),
        (
            "[shards]\nids = [7]\nwindow_ms = 25000\n",
            "shards.window_ms = 25000",
        ),
        (
            "[shards]\nids = [7]\nperiod_ms = 10000\n",
            "shards.window_ms = 10000 is not above period_ms",
        ),
        ("[shards]\nids = [7]\nttl_ms = 1\n", "shards.ttl_ms = 1"),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[shards]\nids = [\"0-63\"]\n",
            "names 64 shards: etcd leases them in one transaction, and in one of 128 operations there is room for 63 \
             (hint: set --max-txn-ops of every member to 130",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\nmax_txn_ops = 130\n[shards]\nids = [\"0-64\"]\n",
            "there is room for 64",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n[shards]\nttl_ms = 2500\n",
            "shards.ttl_ms = 2500: etcd keeps leases by whole seconds",
        ),
    ]);
}

#[test]
fn a_url_needs_host_and_user_and_is_never_shown() {
    let cases = [
        ("user=idgend", "names no host"),
        ("host=/tmp", "names no user"),
        (
            "postgresql://u:secret@h/d?sslmode=require",
            "sslmode=require is not supported",
        ),
        ("postgresql://u:secret@h:port/d", "not a libpq URL"),
    ];
    for (url, why) in cases {
        let refused = refusal(&format!("[postgres]\nurl = \"{url}\"\n"));
        assert!(
            refused.contains("postgres.url") && refused.contains(why),
            "{refused}"
        );
        assert!(!refused.contains("secret"), "{refused}");
    }
}

#[test]
fn every_setting_can_come_from_the_environment() {
    let vars = [
        ("IDGEND_NAME", "b"),
        ("IDGEND_POSTGRES__URL", "postgresql://u@h/d"),
        ("IDGEND_POSTGRES__CONNECT_TIMEOUT_MS", "11"),
        ("IDGEND_POSTGRES__POLL_MS", "12"),
        ("IDGEND_STORE__KIND", "etcd"),
        ("IDGEND_STORE__ENDPOINTS", "http://a:1, http://b:2"),
        ("IDGEND_STORE__PREFIX", "/p"),
        ("IDGEND_STORE__REQUEST_TIMEOUT_MS", "13"),
        ("IDGEND_WORKERS__COUNT", "3"),
        ("IDGEND_WORKERS__TTL_MS", "20000"),
        ("IDGEND_WORKERS__WINDOW_MS", "15000"),
        ("IDGEND_WORKERS__PERIOD_MS", "4000"),
        ("IDGEND_SHARDS__IDS", "9, 3-4"),
        ("IDGEND_SHARDS__TTL_MS", "15000"),
        ("IDGEND_SHARDS__WINDOW_MS", "7000"),
        ("IDGEND_SHARDS__PERIOD_MS", "1000"),
        ("IDGEND_CLOCK__ACCEPT_SYNCHRONISED", "false"),
        ("IDGEND_CLOCK__CHECK", "off"),
        ("IDGEND_CLOCK__CHRONY", ""),
        ("IDGEND_HTTP__LISTEN", "[::1]:0"),
        ("IDGEND_LOG__FORMAT", "json"),
        ("IDGEND_LOG__LEVEL", "warn"),
    ];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = Config::parse("f", "", vars).unwrap();
    assert_eq!(config.name, "b");
    let workers = leases(&config, Class::Worker);
    assert_eq!(workers.wanted, Wanted::Any(3));
    assert_eq!(times(workers), (20_000, 15_000, 4_000));
    let listed = leases(&config, Class::Shard);
    assert_eq!(listed.wanted, shards(&[3, 4, 9]));
    assert_eq!(times(listed), (15_000, 7_000, 1_000));
    assert_eq!(config.postgres.connect_timeout, Duration::from_millis(11));
    assert_eq!(config.postgres.poll, Duration::from_millis(12));
    assert!(!config.clock.accept_synchronised);
    assert_eq!(config.clock.chrony, None);
    assert_eq!(config.clock.gate, idgen_core::lease::Gate::Off);
    assert_eq!(config.http_listen, Some("[::1]:0".parse().unwrap()));
    let StoreConfig::Etcd {
        endpoints,
        prefix,
        request_timeout,
        ..
    } = config.store
    else {
        panic!("not etcd")
    };
    assert_eq!(endpoints, ["http://a:1", "http://b:2"]);
    assert_eq!(
        (prefix.as_str(), request_timeout),
        ("/p", Duration::from_millis(13))
    );
    let url = with_env("IDGEND_STORE__URL", "postgresql://u@other/d").unwrap();
    assert!(matches!(url.store, StoreConfig::Postgres { url, .. } if url.get_user() == Some("u")));
}

#[test]
fn the_environment_is_as_strict_as_the_file() {
    for (name, value, why) in [
        ("IDGEND_WORKERS__COUNT", "many", "\"many\" is not a whole number"),
        ("IDGEND_WORKERS__COUNT", "0", "workers.count = 0"),
        ("IDGEND_SHARDS__IDS", "1,x", "shards.ids: \"x\" is not"),
        ("IDGEND_SHARDS__IDS", "1,1", "shard 1 is named twice"),
        ("IDGEND_CLOCK__ACCEPT_SYNCHRONISED", "1", "neither true nor false"),
        ("IDGEND_NO_SUCH_KEY", "1", "there is no such setting"),
        ("IDGEND_WORKERS__NO_SUCH_KEY", "1", "there is no such setting"),
        ("IDGEND_STORE__KIND", "redis", "redis"),
    ] {
        let error = with_env(name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains(why), "{name}={value}: {error}");
    }
    for name in [
        "IDGEND_SERVICE_HOST",
        "IDGEND_PORT",
        "IDGEND_PORT_9787_TCP",
        "OTHER",
    ] {
        assert!(
            with_env(name, "tcp://10.0.0.1:9787").is_ok(),
            "{name} is not ours"
        );
    }
}
