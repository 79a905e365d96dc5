//! What idgenctl asks before it changes something that cannot be taken back.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::kit::daemon::{Answer, IDGENCTL, IDGEND, answer, idgenctl};
use crate::kit::{Daemon, DaemonOptions, Scratch, Server};

/// On a terminal, at which somebody types this.
fn typed(args: &[&str], keys: &str) -> Answer {
    typed_with("", args, keys)
}

/// `no_color`: what the variable of that name says.
fn typed_with(no_color: &str, args: &[&str], keys: &str) -> Answer {
    let words: Vec<String> = args.iter().map(|word| format!("'{word}'")).collect();
    let mut terminal = Command::new("script")
        .args(["-qec", &format!("{IDGENCTL} {}", words.join(" ")), "/dev/null"])
        .env("NO_COLOR", no_color)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a terminal");
    let mut keyboard = terminal.stdin.take().expect("a keyboard");
    keyboard.write_all(keys.as_bytes()).expect("type");
    let output = terminal.wait_with_output().expect("its end");
    drop(keyboard);
    Answer {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn shown(daemon: &Daemon) -> String {
    let config = daemon.config_path().display().to_string();
    idgenctl(&["format", "show", "--config", &config]).stdout
}

#[test]
fn a_person_is_asked_in_a_plain_sentence_and_a_script_is_refused() {
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).start();
    let config = daemon.config_path().display().to_string();
    let switch = [
        "format", "switch", "--config", &config, "--to", "regional", "--region", "1", "--at", "+15m",
    ];
    let before = shown(&daemon);

    let refused = idgenctl(&switch);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    for keys in ["n\n", "\n", "yep\n"] {
        let no = typed(&switch, keys);
        assert_eq!(no.code, Some(1), "{}", no.stdout);
        for part in [
            "mints worker ids in the format regional/1 from",
            "cannot be taken back",
            "[y/N]",
            "nothing was changed",
        ] {
            assert!(no.stdout.contains(part), "{part}: {}", no.stdout);
        }
    }
    assert_eq!(shown(&daemon), before, "nobody has said yes");
    let tried = typed(&[&switch[..], &["--dry-run"]].concat(), "");
    assert_eq!(tried.code, Some(0), "{}", tried.stdout);
    assert!(!tried.stdout.contains("[y/N]"), "{}", tried.stdout);
    assert_eq!(shown(&daemon), before, "a dry run");

    let yes = typed(&switch, "y\n");
    assert_eq!(yes.code, Some(0), "{}", yes.stdout);
    assert!(yes.stdout.contains("[y/N]"), "{}", yes.stdout);
    assert_ne!(shown(&daemon), before);
    let again = typed(&switch, "y\n");
    assert_eq!(again.code, Some(3), "refused, and not asked: {}", again.stdout);
    assert!(!again.stdout.contains("[y/N]"), "{}", again.stdout);
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let server = Server::start();
    let daemon = DaemonOptions::new(&server).start();
    let config = daemon.config_path().display().to_string();
    let commands: [&[&str]; 4] = [
        &["status", "--config", &config],
        &["epoch", "show", "--config", &config],
        &["status", "--no-such-option"],
        &["format", "switch", "--help"],
    ];
    for command in commands {
        let coloured = typed(command, "").stdout;
        assert!(coloured.contains("\u{1b}["), "{command:?}: {coloured}");
        let plain = typed_with("1", command, "").stdout;
        assert!(
            !plain.contains("\u{1b}[3"),
            "{command:?} with NO_COLOR: {plain:?}"
        );
        let piped = idgenctl(command);
        let piped = format!("{}{}", piped.stdout, piped.stderr);
        assert!(!piped.contains('\u{1b}'), "{command:?} into a pipe: {piped:?}");
    }
}

/// From a file: the script is longer than one argument may be.
fn bash(script: &str) -> Answer {
    let scratch = Scratch::new("completions");
    let file = scratch.path().join("complete.sh");
    std::fs::write(&file, script).expect("write the script");
    let mut shell = Command::new("bash");
    shell.arg(file);
    answer(shell)
}

#[test]
fn completions_are_scripts_that_their_shells_take() {
    for program in ["idgenctl", "idgend"] {
        let made = match program {
            "idgenctl" => idgenctl(&["completions", "bash"]),
            _ => {
                let mut command = Command::new(IDGEND);
                command.args(["completions", "bash"]);
                answer(command)
            }
        };
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let complete = format!(
            "{}\nCOMP_WORDS=({program} c) COMP_CWORD=1 COMP_LINE='{program} c' COMP_POINT={point}\n_{program} {program} c {program}\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            made.stdout,
            point = program.len() + 2
        );
        let completed = bash(&complete);
        assert!(
            completed.stdout.contains("completions"),
            "{program}: {}{}",
            completed.stdout,
            completed.stderr
        );
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let made = idgenctl(&["completions", shell]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        assert!(made.stdout.contains("stripes"), "{shell}");
    }
}
