//! A real etcd with one member.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use super::http;
use super::process::{Process, Signal, free_ports};
use super::{PATIENCE, Scratch, eventually_true};

pub struct Etcd {
    process: Option<Process>,
    client_port: u16,
    peer_port: u16,
    scratch: Scratch,
}

impl Etcd {
    pub fn start() -> Etcd {
        let mut etcd = Etcd::reserve();
        etcd.run();
        etcd
    }

    /// A place for an etcd that does not run yet: its endpoint is known and refuses connections.
    pub fn reserve() -> Etcd {
        let [client_port, peer_port] = free_ports();
        Etcd {
            process: None,
            client_port,
            peer_port,
            scratch: Scratch::new("etcd"),
        }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub fn run(&mut self) {
        let client = self.endpoint();
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new("etcd");
        command
            .current_dir(self.scratch.path())
            .args(["--name", "e2e", "--data-dir"])
            .arg(self.scratch.join("data"))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("e2e={peer}")]);
        self.process = Some(Process::spawn("etcd", command, self.scratch.join("etcd.log")));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port));
        eventually_true(PATIENCE, "etcd is healthy", || {
            http::get(addr, "/health").is_some_and(|(status, body)| status == 200 && body.contains("true"))
        });
    }

    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("etcd runs").signal(signal);
    }

    /// kill -9; the data stays for the next [`Etcd::run`].
    pub fn kill(&mut self) {
        self.process = None;
    }
}
