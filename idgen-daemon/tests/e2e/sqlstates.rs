//! Every SQLSTATE of the extension is explained to its users and met by a test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Those that no test can bring about, with the reason.
const OUT_OF_REACH: [(&str, &str); 2] = [
    ("53200", "16 bytes are always to be had"),
    (
        "XX000",
        "it means a fault of ours; a test that knew one would be a fix",
    ),
];

/// Still to be met; a line goes as soon as a test brings it about.
const NOT_YET: [&str; 1] = ["58030"];

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The string literals of the one table of errors that have the form of a SQLSTATE.
fn raised_by_the_extension() -> BTreeSet<String> {
    let source = fs::read_to_string(project("pg_idgen/src/error.rs")).expect("read error.rs");
    let is_sqlstate = |word: &&str| {
        word.len() == 5
            && word
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
            && word.bytes().any(|byte| byte.is_ascii_digit())
    };
    source.split('"').filter(is_sqlstate).map(str::to_owned).collect()
}

/// What the regression tests expect, and the sources of the end-to-end tests but this one.
fn text_of_the_tests() -> String {
    let read_all = |folder: &str| -> String {
        let entries = fs::read_dir(project(folder)).expect("list a folder of tests");
        entries
            .map(|entry| entry.expect("list a folder of tests").path())
            .filter(|path| path.is_file() && !path.ends_with("sqlstates.rs"))
            .map(|path| fs::read_to_string(path).expect("read a test"))
            .collect()
    };
    read_all("regress/expected") + &read_all("idgen-daemon/tests/e2e")
}

#[test]
fn every_sqlstate_is_documented_and_met_by_a_test() {
    let raised = raised_by_the_extension();
    assert!(
        raised.contains("IG001") && raised.len() > 25,
        "the table is read: {raised:?}"
    );
    let (document, tests) = (
        fs::read_to_string(project("docs/errors.md")).expect("read errors.md"),
        text_of_the_tests(),
    );
    let excused =
        |code: &str| OUT_OF_REACH.iter().any(|(known, _)| *known == code) || NOT_YET.contains(&code);
    for code in &raised {
        assert!(
            document.contains(code.as_str()),
            "docs/errors.md does not explain {code}"
        );
        assert!(
            excused(code) || tests.contains(code.as_str()),
            "no regression or end-to-end test meets {code}"
        );
    }
}
