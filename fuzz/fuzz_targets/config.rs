//! The daemon's configuration: any text is a configuration or a refusal, and a password is in neither's words.
#![no_main]

use idgen_daemon::config::Config;
use libfuzzer_sys::fuzz_target;

const SECRET: &str = "hunter2Xq7";

fn outcome(text: &str, vars: &[(String, String)]) -> String {
    match Config::parse("fuzz.toml", text, vars.iter().cloned()) {
        Ok(config) => {
            assert!(
                !config.name.is_empty() || text.contains("name"),
                "a name by default"
            );
            format!("{config:?}")
        }
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty());
            error
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    assert_eq!(
        outcome(&text, &[]),
        outcome(&text, &[]),
        "the same text, the same answer"
    );

    // Behind a line with a password, and as an override of it.
    let url = format!("postgres://idgend:{SECRET}@127.0.0.1/db");
    let with_secret = format!("[postgres]\nurl = \"{url}\"\n{text}");
    let vars = [("IDGEND_POSTGRES__URL".to_owned(), format!("{url}{text}"))];
    for said in [outcome(&with_secret, &[]), outcome(&text, &vars)] {
        assert!(!said.contains(SECRET), "tells the password: {said}");
    }
    if let Some((name, value)) = text.split_once('\n') {
        outcome("", &[(format!("IDGEND_{name}"), value.to_owned())]);
    }
});
