//! What every command has.

use crate::Arguments;
use clap::{Command, CommandFactory};
use idgen_daemon::error::Exit;

/// What only shows. Everything else changes something.
const SHOWING: [&str; 12] = [
    "status",
    "show",
    "list",
    "ls",
    "map",
    "log",
    "verify",
    "cat",
    "doctor",
    "whois",
    "impact",
    "completions",
];

/// Every command that can be run, by its words.
fn commands() -> Vec<(String, Command)> {
    fn walk(words: &str, command: &Command, found: &mut Vec<(String, Command)>) {
        if command.get_subcommands().next().is_none() {
            found.push((words.to_owned(), command.clone()));
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            walk(&format!("{words} {}", sub.get_name()), sub, found);
        }
    }
    let mut found = Vec::new();
    walk("idgenctl", &Arguments::command(), &mut found);
    assert!(found.len() > 10);
    found
}

fn has(command: &Command, option: &str) -> bool {
    command
        .get_arguments()
        .any(|argument| argument.get_long() == Some(option))
}

/// The words of a line as a shell sees them: single quotes, and no more than that.
fn words(line: &str) -> Vec<String> {
    let quoted = line.split('\'').enumerate();
    let words = quoted.flat_map(|(n, part)| match n % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.take_while(|word| !word.starts_with('>')).collect()
}

#[test]
fn every_command_has_an_example_that_is_a_line_of_it() {
    for (name, command) in commands() {
        let help = command
            .get_after_help()
            .unwrap_or_else(|| panic!("{name} has no example"))
            .to_string();
        let Some(example) = help.strip_prefix("Example:") else {
            panic!("{name}: {help}")
        };
        let example = example.trim_start().lines().next().unwrap_or_default();
        assert!(example.starts_with(&format!("{name} ")), "{name}: {example}");
        if let Err(error) = Arguments::command().try_get_matches_from(words(example)) {
            panic!("{example}: {error}");
        }
    }
}

#[test]
fn what_changes_has_a_dry_run_and_what_shows_has_an_output() {
    for (name, command) in commands() {
        // An audit writes down what it has found, and changes nothing of what it looks at.
        let shows = SHOWING.contains(&command.get_name())
            || matches!(name.as_str(), "idgenctl audit run" | "idgenctl audit table");
        assert_eq!(has(&command, "dry-run"), !shows, "{name} --dry-run");
        // The script of a shell is what it is.
        let is_script = command.get_name() == "completions";
        assert_eq!(has(&command, "output"), !is_script, "{name} --output");
        if has(&command, "yes") {
            assert!(has(&command, "dry-run"), "{name} asks, so it can be tried");
        }
    }
}

#[test]
fn the_tree_is_sound() {
    Arguments::command().debug_assert();
}

/// One table for both programs, one row for each code.
#[test]
fn the_exit_codes_of_the_documentation_are_those_of_the_programs() {
    let page = include_str!("../../../../docs/operations.md");
    let section = page
        .split("### Exit codes and signals")
        .nth(1)
        .expect("the section");
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let codes: Vec<u8> = rows
        .filter_map(|row| row.split('|').nth(1)?.trim().parse().ok())
        .collect();
    let all = [
        Exit::Ok,
        Exit::Error,
        Exit::Usage,
        Exit::Finding,
        Exit::Inconclusive,
    ];
    assert_eq!(codes, all.map(|exit| exit as u8));
    let help = Arguments::command().get_after_help().expect("a help").to_string();
    for code in codes {
        assert!(help.contains(&format!("{code} ")), "{code}: {help}");
    }
}
