//! Breaking things, and mending them.

use std::thread;
use std::time::Duration;

use idgen_core::history::Moment;
use serde_json::Value;

use crate::arena::{Arena, minting_backend, store_sessions};
use crate::files::Record;
use crate::kit::daemon::idgenctl;
use crate::kit::fault::{Pause, SyncFault, SyncFaultGuard};
use crate::kit::process::{Signal, signal_pid};
use crate::kit::proxy::{Flow, Mode};
use crate::kit::{EtcdCluster, PATIENCE, eventually_true};
use crate::moment;
use crate::plan::{CLOCK_SERVER, Fault, Planned};

/// Longer than an election, so that the members choose another leader.
const SYNC_DELAY: Duration = Duration::from_secs(3);

impl Arena {
    /// Runs one fault from its beginning to its end, and writes it down. When it ended.
    pub fn suffer(&mut self, planned: &Planned) -> Moment {
        let begun = moment::now();
        let ended = self.hit(planned.fault, planned.hold);
        self.events.write(&Record::Fault {
            name: planned.to_string(),
            begun: begun.0,
            ended: ended.0,
        });
        ended
    }

    /// Whatever minting again took is judged beside how late the machine was meanwhile.
    pub fn was_late(&self, late: Duration) {
        let ms = u64::try_from(late.as_millis()).expect("ms");
        self.events.write(&Record::Late { ms });
    }

    /// Between faults everything is whole.
    pub fn mend(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.wait_healthy();
        }
    }

    fn hit(&mut self, fault: Fault, hold: Duration) -> Moment {
        match fault {
            Fault::DaemonKilled(n) => self.daemon_away(n, Signal::KILL, hold),
            Fault::DaemonRestarted(n) => self.daemon_away(n, Signal::TERM, hold),
            Fault::DaemonPaused(n) => {
                self.daemon(n).signal(Signal::STOP);
                thread::sleep(hold);
                self.daemon(n).signal(Signal::CONT);
                moment::now()
            }
            Fault::BackendKilled(n) => {
                signal_pid(minting_backend(&self.servers[n]), Signal::KILL);
                moment::now()
            }
            Fault::BackendPaused(n) => pause([minting_backend(&self.servers[n])], hold),
            Fault::ServerStopped(n) => {
                self.servers[n].stop_at_once();
                self.server_back(n, hold)
            }
            Fault::PostmasterKilled(n) => {
                self.servers[n].kill_postmaster();
                thread::sleep(hold);
                self.servers[n].wait_orphans_gone();
                self.server_back(n, Duration::ZERO)
            }
            Fault::PowerCut(n) => {
                self.servers[n].kill_everything();
                self.server_back(n, hold)
            }
            Fault::ServerRestarted(n) => {
                self.servers[n].stop();
                self.server_back(n, hold)
            }
            Fault::ClockSet(by_ms) => {
                self.servers[CLOCK_SERVER].clock().set_offset_ms(by_ms);
                thread::sleep(hold);
                self.servers[CLOCK_SERVER].clock().set_offset_ms(0);
                moment::now()
            }
            Fault::StoreSessionsPaused => pause(store_sessions(self.store_server()), hold),
            Fault::StoreSessionsEnded => {
                for pid in store_sessions(self.store_server()) {
                    signal_pid(pid, Signal::TERM);
                }
                moment::now()
            }
            Fault::DaemonCutOff(n) => self.net(|server, _| server == n, Mode::Stall(Flow::Both), hold),
            Fault::AnswersLost(n) => self.net(|server, _| server == n, Mode::Lose(Flow::Replies), hold),
            Fault::MemberCutOff(m) => self.net(|_, member| member == m, Mode::Stall(Flow::Both), hold),
            Fault::StoreSlow(ms) => self.net(
                |_, _| true,
                Mode::Delay(Flow::Requests, Duration::from_millis(ms)),
                hold,
            ),
            Fault::StandbyPromoted { behind, killed } => self.promote_standby(behind, killed, hold),
            Fault::StoreRestored { new_token } => self.restore_store(new_token, hold),
            of_etcd => self.hit_cluster(of_etcd, hold),
        }
    }

    fn cluster(&mut self) -> &mut EtcdCluster {
        self.cluster.as_mut().expect("a store in etcd")
    }

    fn hit_cluster(&mut self, fault: Fault, hold: Duration) -> Moment {
        match fault {
            Fault::MemberKilled(m) => self.member_away(m, hold),
            Fault::LeaderKilled => {
                let leader = self.cluster().leader();
                self.member_away(leader, hold)
            }
            Fault::MemberPaused(m) => pause([self.cluster().members[m].pid()], hold),
            Fault::LeaderPaused => {
                let leader = self.cluster().leader();
                pause([self.cluster().members[leader].pid()], hold)
            }
            Fault::LeaderMoved => {
                self.cluster().move_leader();
                moment::now()
            }
            Fault::LeaderSyncStalls => {
                let leader = self.cluster().leader();
                let pid = self.cluster().members[leader].pid();
                let stalled = SyncFaultGuard::on(pid, SyncFault::Delay(SYNC_DELAY));
                thread::sleep(hold);
                drop(stalled);
                moment::now()
            }
            Fault::AllMembersKilled => {
                self.cluster().kill_all();
                thread::sleep(hold);
                self.cluster()
                    .members
                    .iter_mut()
                    .for_each(crate::kit::Etcd::spawn);
                moment::now()
            }
            other => panic!("not a fault of a cluster: {other:?}"),
        }
    }

    /// A daemon takes other workers than the snapshot knows of, then the store is put back to it. Nobody may be granted
    /// anything until an operator has advanced the epoch, however long that takes.
    fn restore_store(&mut self, new_token: bool, hold: Duration) -> Moment {
        let snapshot = self.cluster().members[0].save("snapshot.db");
        let restarted = self.daemon_away(1, Signal::TERM, Duration::ZERO);
        self.wait_minting(restarted, PATIENCE)
            .expect("everybody mints beyond the snapshot");
        // What is recorded must be complete: nobody commits any more, and the recorder catches up.
        self.set_net(|_, _| true, Mode::Reset);
        self.trail().catch_up();
        let token = format!("restored-{}", moment::now().0);
        self.trail().shared.replace(true);
        self.cluster()
            .restore(&snapshot, new_token.then_some(token.as_str()));
        self.trail().catch_up();
        self.set_net(|_, _| true, Mode::Pass);
        thread::sleep(hold);
        let ended = moment::now();
        self.advance_epoch(0);
        ended
    }

    /// As an operator does, by the configuration of this daemon. Refused for a while when the epoch was advanced just
    /// before.
    pub fn advance_epoch(&self, n: usize) {
        let config = self.daemon(n).config_path().display().to_string();
        let epoch = |command: &str, more: &[&str]| {
            let mut args = vec!["epoch", command, "--config", &config, "--output", "json"];
            args.extend(more);
            idgenctl(&args)
        };
        eventually_true(PATIENCE, "the epoch is advanced", || {
            let shown: Value = serde_json::from_str(&epoch("show", &[]).stdout).unwrap_or_default();
            let identity = shown["identity"].as_str().unwrap_or_default();
            let advanced = epoch(
                "advance",
                &[
                    "--yes",
                    "--identity",
                    identity,
                    "--reason",
                    "the soak has done it",
                ],
            );
            advanced.code == Some(0)
        });
    }

    fn daemon_away(&mut self, n: usize, signal: Signal, hold: Duration) -> Moment {
        self.end_daemon(n, signal);
        thread::sleep(hold);
        let ended = moment::now();
        self.launch(n);
        ended
    }

    fn server_back(&mut self, n: usize, hold: Duration) -> Moment {
        thread::sleep(hold);
        let ended = moment::now();
        self.servers[n].run();
        ended
    }

    fn member_away(&mut self, m: usize, hold: Duration) -> Moment {
        self.cluster().members[m].kill();
        thread::sleep(hold);
        self.cluster().members[m].spawn();
        moment::now()
    }

    /// For a while.
    fn net(&self, chosen: impl Fn(usize, usize) -> bool, mode: Mode, hold: Duration) -> Moment {
        self.set_net(&chosen, mode);
        thread::sleep(hold);
        self.set_net(&chosen, Mode::Pass);
        moment::now()
    }

    /// Sets the proxies (of a server, to a member) that are chosen.
    fn set_net(&self, chosen: impl Fn(usize, usize) -> bool, mode: Mode) {
        for (server, proxies) in self.proxies.iter().enumerate() {
            for (member, proxy) in proxies.iter().enumerate() {
                if chosen(server, member) {
                    proxy.set(mode);
                }
            }
        }
    }
}

fn pause(pids: impl IntoIterator<Item = u32>, hold: Duration) -> Moment {
    let paused = Pause::of(pids);
    thread::sleep(hold);
    paused.resume();
    moment::now()
}
