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

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The string literals of the one table of errors that have the form of a SQLSTATE: of its reports, and of the list of
/// those that `idgen.stats` counts.
fn raised_by_the_extension() -> (BTreeSet<String>, BTreeSet<String>) {
    let read = |path: &str| fs::read_to_string(project(path)).expect("read the table of errors");
    let source = ["error.rs", "error/snowflakes.rs", "error/tags.rs"]
        .map(|file| read(&format!("pg_idgen/src/{file}")))
        .concat();
    let (counted, reported) = source
        .split_once("struct Report {")
        .expect("the list of counted codes stands before the reports");
    let is_sqlstate = |word: &&str| {
        word.len() == 5
            && word
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
            && word.bytes().any(|byte| byte.is_ascii_digit())
    };
    let codes =
        |text: &str| -> BTreeSet<String> { text.split('"').filter(is_sqlstate).map(str::to_owned).collect() };
    (codes(reported), codes(counted))
}

/// What the regression tests expect, and the sources of the end-to-end tests but this one.
fn text_of_the_tests() -> String {
    let read_all = |folder: &str| -> String {
        let entries = fs::read_dir(project(folder)).expect("list a folder of tests");
        entries
            .map(|entry| entry.expect("list a folder of tests").path())
            .filter(|path| path.is_file() && !path.ends_with("sqlstates.rs"))
            .map(|path| fs::read_to_string(path).expect("read a test"))
            .map(|text| without_comments(&text))
            .collect()
    };
    read_all("regress/expected") + &read_all("idgen-daemon/tests/e2e")
}

/// A comment that names a code meets nothing.
fn without_comments(text: &str) -> String {
    let is_comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("--") || line.starts_with("//")
    };
    let lines = text.lines().filter(|line| !is_comment(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn a_comment_meets_no_sqlstate() {
    let text = "-- IG021\n  // IG022\nIG023 is met\n";
    assert_eq!(without_comments(text), "IG023 is met\n");
}

#[test]
fn every_sqlstate_is_documented_and_met_by_a_test() {
    let (raised, counted) = raised_by_the_extension();
    let own: BTreeSet<String> = raised
        .iter()
        .filter(|code| code.starts_with("IG"))
        .cloned()
        .collect();
    assert_eq!(counted, own, "idgen.stats counts every code of class IG");
    assert!(
        raised.contains("IG001") && raised.len() > 25,
        "the table is read: {raised:?}"
    );
    let (document, tests) = (
        fs::read_to_string(project("docs/errors.md")).expect("read errors.md"),
        text_of_the_tests(),
    );
    let excused = |code: &str| OUT_OF_REACH.iter().any(|(known, _)| *known == code);
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
