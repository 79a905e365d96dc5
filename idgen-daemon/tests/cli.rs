//! The two programs as a shell sees them: exit codes and where they say what. No server is needed.

#[cfg(test)]
mod programs {
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::process::{Command, Output};

    const IDGEND: &str = env!("CARGO_BIN_EXE_idgend");
    const IDGENCTL: &str = env!("CARGO_BIN_EXE_idgenctl");

    fn run(program: &str, args: &[&str]) -> Output {
        Command::new(program).args(args).output().expect("run it")
    }

    fn code(output: &Output) -> Option<i32> {
        output.status.code()
    }

    fn stderr(output: &Output) -> String {
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// A configuration file that goes with the test.
    struct ConfigFile(PathBuf);

    impl ConfigFile {
        fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("idgend-cli-{}-{name}.toml", std::process::id()));
            std::fs::write(&path, text).expect("write the file");
            Self(path)
        }

        fn path(&self) -> &str {
            self.0.to_str().expect("utf-8")
        }
    }

    impl Drop for ConfigFile {
        fn drop(&mut self) {
            let _gone = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for program in [IDGEND, IDGENCTL] {
            for flag in ["--help", "--version"] {
                let output = run(program, &[flag]);
                assert_eq!(code(&output), Some(0), "{program} {flag}");
                assert!(!output.stdout.is_empty());
            }
        }
    }

    #[test]
    fn wrong_usage_ends_with_2() {
        let cases: [(&str, &[&str]); 16] = [
            (IDGEND, &[]),
            (IDGEND, &["--config"]),
            (IDGEND, &["check-config"]),
            (IDGEND, &["check-config", "--config", "/nowhere/idgend.toml"]),
            (IDGENCTL, &[]),
            (IDGENCTL, &["status"]),
            (IDGENCTL, &["status", "--postgres", "nonsense without a key"]),
            (IDGENCTL, &["status", "--config", "/nowhere/idgend.toml"]),
            (IDGENCTL, &["status", "--config", "a", "--postgres", "b"]),
            (IDGENCTL, &["clock"]),
            (IDGENCTL, &["clock", "accept"]),
            (IDGENCTL, &["clock", "accept", "--http", "nowhere"]),
            (IDGENCTL, &["format", "show"]),
            (IDGENCTL, &["format", "show", "--config", "/nowhere/idgend.toml"]),
            (IDGENCTL, &["format", "switch", "--config", "a"]),
            (
                IDGENCTL,
                &["format", "switch", "--config", "a", "--to", "b", "--at", "soon"],
            ),
        ];
        for (program, args) in cases {
            let output = run(program, args);
            assert_eq!(code(&output), Some(2), "{program} {args:?}: {}", stderr(&output));
            assert!(!output.stderr.is_empty(), "{program} {args:?} says why");
        }
    }

    #[test]
    fn check_config_ends_with_0_or_with_2_and_the_place() {
        let good = ConfigFile::new("good", "[postgres]\nurl = \"host=/nowhere user=idgend\"\n");
        assert_eq!(
            code(&run(IDGEND, &["check-config", "--config", good.path()])),
            Some(0)
        );
        let bad = ConfigFile::new(
            "bad",
            "[postgres]\nurl = \"host=/nowhere user=idgend\"\n[worker]\ncount = 2\n",
        );
        let output = run(IDGEND, &["check-config", "--config", bad.path()]);
        assert_eq!(code(&output), Some(2));
        assert!(
            stderr(&output).contains(&format!("{}:3: ", bad.path())),
            "{}",
            stderr(&output)
        );
        assert!(stderr(&output).contains("worker"), "{}", stderr(&output));
    }

    #[test]
    fn a_server_out_of_reach_is_an_error_for_idgenctl() {
        let config = ConfigFile::new(
            "away",
            "[postgres]\nurl = \"host=/nowhere user=idgend password=secret\"\n",
        );
        for args in [
            &["status", "--config", config.path()][..],
            &[
                "status",
                "--output",
                "json",
                "--postgres",
                "host=/nowhere user=idgend password=secret",
            ][..],
        ] {
            let output = run(IDGENCTL, args);
            assert_eq!(code(&output), Some(1), "{}", stderr(&output));
            assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
            assert!(!stderr(&output).contains("secret"), "{}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }

    #[test]
    fn a_clock_can_be_accepted_only_where_idgend_can_be_asked() {
        let section =
            |http: &str| format!("[postgres]\nurl = \"host=/nowhere user=idgend\"\n[http]\n{http}\n");
        for (listen, why) in [
            ("listen = \"\"", "empty"),
            ("listen = \"127.0.0.1:0\"", "--http ADDR"),
        ] {
            let config = ConfigFile::new("unasked", &section(listen));
            let output = run(IDGENCTL, &["clock", "accept", "--config", config.path()]);
            assert_eq!(code(&output), Some(2), "{}", stderr(&output));
            assert!(stderr(&output).contains(why), "{}", stderr(&output));
        }
        let nobody = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = nobody.local_addr().expect("address").to_string();
        drop(nobody);
        let output = run(IDGENCTL, &["clock", "accept", "--http", &addr]);
        assert_eq!(code(&output), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(&addr), "{}", stderr(&output));
    }

    #[test]
    fn a_store_out_of_reach_is_an_error_for_format() {
        let text = "[postgres]\nurl = \"host=/nowhere user=idgend password=secret\"\n";
        let config = ConfigFile::new("no-store", text);
        for args in [
            &["format", "show"][..],
            &["format", "switch", "--yes", "--to", "regional", "--region", "1"],
        ] {
            let output = run(IDGENCTL, &[args, &["--config", config.path()]].concat());
            assert_eq!(code(&output), Some(1), "{}", stderr(&output));
            assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
            assert!(!stderr(&output).contains("secret"), "{}", stderr(&output));
        }
    }

    #[test]
    fn a_port_that_is_taken_is_a_runtime_failure() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = taken.local_addr().expect("address");
        let text = format!("[postgres]\nurl = \"host=/nowhere user=idgend\"\n[http]\nlisten = \"{addr}\"\n");
        let config = ConfigFile::new("taken", &text);
        let output = run(IDGEND, &["--config", config.path()]);
        assert_eq!(code(&output), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(&addr.to_string()), "{}", stderr(&output));
    }
}
