use super::*;
use crate::error::ErrorKind;

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

#[test]
fn an_empty_file_says_what_is_missing() {
    assert_eq!(refusal(""), "idgend.toml: postgres.url is missing");
}

#[test]
fn a_minimal_file_takes_the_defaults() {
    let config = parse(MINIMAL).unwrap();
    assert!(!config.name.is_empty(), "the host's name");
    assert_eq!(config.workers_count, 2);
    assert_eq!(config.timing.ttl_ms(), 600_000);
    assert_eq!(
        (config.timing.window_ms(), config.timing.period_ms()),
        (480_000, 10_000)
    );
    assert_eq!(config.postgres.connect_timeout, Duration::from_secs(3));
    assert_eq!(config.postgres.poll, Duration::from_millis(500));
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
        [http]
        listen = ""
        [log]
        format = "json"
        level = "debug"
        "#,
    )
    .unwrap();
    assert_eq!((config.name.as_str(), config.workers_count), ("server-a", 8));
    assert_eq!(
        (config.timing.window_ms(), config.timing.period_ms()),
        (40_000, 5_000)
    );
    assert_eq!(config.postgres.poll, Duration::from_millis(250));
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
    } = config.store
    else {
        panic!("not etcd")
    };
    assert_eq!((endpoints.len(), prefix.as_str()), (2, "/ids/eu"));
    assert_eq!(request_timeout, Duration::from_millis(700));
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
    let text = refusal("[postgres]\nurl = \"postgresql://a:secret@b/c\n");
    assert!(text.starts_with("idgend.toml:2: "), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn bad_values_are_named() {
    let cases = [
        ("[workers]\ncount = 0\n", "workers.count = 0"),
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
            "[store]\nkind = \"etcd\"\nendpoints = [\"https://a:1\"]\n",
            "TLS is not supported",
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
            "1 to 63",
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
    ];
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
fn a_url_needs_host_and_user_and_is_never_shown() {
    let cases = [
        ("user=idgend", "names no host"),
        ("host=/tmp", "names no user"),
        ("postgresql://u:secret@h/d?sslmode=require", "sslmode=require"),
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
        ("IDGEND_HTTP__LISTEN", "[::1]:0"),
        ("IDGEND_LOG__FORMAT", "json"),
        ("IDGEND_LOG__LEVEL", "warn"),
    ];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = Config::parse("f", "", vars).unwrap();
    assert_eq!((config.name.as_str(), config.workers_count), ("b", 3));
    assert_eq!(config.postgres.connect_timeout, Duration::from_millis(11));
    assert_eq!(config.postgres.poll, Duration::from_millis(12));
    assert_eq!(config.timing.ttl_ms(), 20_000);
    assert_eq!(
        (config.timing.window_ms(), config.timing.period_ms()),
        (15_000, 4_000)
    );
    assert_eq!(config.http_listen, Some("[::1]:0".parse().unwrap()));
    let StoreConfig::Etcd {
        endpoints,
        prefix,
        request_timeout,
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
