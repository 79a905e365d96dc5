//! A real chronyd that leaves the machine's clock alone, on ports of its own.

use std::fs;
use std::process::Command;

use super::ports::free_ports;
use super::process::Process;
use super::{PATIENCE, Scratch, eventually_true};

/// Where its time comes from.
#[derive(Clone, Copy)]
pub enum TimeSource {
    /// The clock itself: chronyd counts as synchronised.
    Local,
    /// Nobody: it is not synchronised.
    Nobody,
    /// The chronyd that serves time on this port.
    Server(u16),
}

pub struct Chrony {
    process: Option<Process>,
    command_port: u16,
    time_port: u16,
    scratch: Scratch,
}

impl Chrony {
    /// One that has found its time, where there is one.
    pub fn with(source: TimeSource) -> Chrony {
        let [command_port, time_port] = free_ports();
        let mut chrony = Chrony {
            process: None,
            command_port,
            time_port,
            scratch: Scratch::new("chrony"),
        };
        chrony.set_source(source);
        chrony
    }

    pub fn time_port(&self) -> u16 {
        self.time_port
    }

    /// For section `[clock]` of a daemon that asks it.
    pub fn lines(&self) -> String {
        format!("chrony = \"127.0.0.1:{}\"", self.command_port)
    }

    /// Starts it anew, at the same place.
    pub fn set_source(&mut self, source: TimeSource) {
        self.process = None;
        let source_line = match source {
            TimeSource::Local => "local stratum 5\n".to_owned(),
            TimeSource::Nobody => String::new(),
            TimeSource::Server(port) => {
                format!("server 127.0.0.1 port {port} iburst minpoll 0 maxpoll 0\n")
            }
        };
        let config = self.scratch.join("chrony.conf");
        let text = format!(
            "{source_line}port {}\nallow 127.0.0.1\ncmdport {}\nbindaddress 127.0.0.1\nbindcmdaddress 127.0.0.1\n\
             bindcmdaddress /\npidfile {}\n",
            self.time_port,
            self.command_port,
            self.scratch.join("chronyd.pid").display()
        );
        fs::write(&config, text).expect("write the configuration");
        let whoami = Command::new("id").arg("-un").output().expect("run id").stdout;
        let user = String::from_utf8(whoami).expect("a name");
        let mut command = Command::new("/usr/sbin/chronyd");
        command
            .args(["-x", "-U", "-d", "-u", user.trim(), "-f"])
            .arg(&config);
        self.process = Some(Process::spawn(
            "chronyd",
            command,
            self.scratch.join("chronyd.log"),
        ));
        let synchronised = !matches!(source, TimeSource::Nobody);
        eventually_true(PATIENCE, "chronyd answers as it is meant to", || {
            let tracking = self.tracking();
            tracking
                .last()
                .is_some_and(|leap| (leap == "Normal") == synchronised)
        });
    }

    /// Fields of its tracking report, as its own client shows them; none while it does not answer.
    pub fn tracking(&self) -> Vec<String> {
        let port = self.command_port.to_string();
        let output = Command::new("chronyc")
            .args(["-n", "-c", "-h", "127.0.0.1", "-p", &port, "tracking"])
            .output()
            .expect("run chronyc: apt-get install chrony (make test does it on Debian)");
        if !output.status.success() {
            return Vec::new();
        }
        let line = String::from_utf8_lossy(&output.stdout);
        line.trim().split(',').map(str::to_owned).collect()
    }

    /// One number of it, in seconds: 4 is the offset, 10 the root delay, 11 the root dispersion.
    pub fn seconds(&self, field: usize) -> f64 {
        self.tracking()[field].parse().expect("a number")
    }
}
