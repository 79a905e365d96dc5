//! Events are written while everything that carries them is killed, paused and restarted, in an order that a seed says. In the
//! end the topic has what the table has, and each tag's events in order at first sight.
//!
//! `make soak SUITE=outbox SEED= ROUNDS=200` takes other seeds, and more rounds.

use crate::kit::kafka::Kafka;
use crate::kit::process::Signal;
use crate::kit::sql::{self, value};
use crate::kit::{Daemon, DaemonOptions, PATIENCE, ServerOptions, eventually};
use crate::scene::{Scene, write};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Of `make test`: every fault is among these rounds.
const SEED: u64 = 17;
const ROUNDS: u32 = 10;
/// Backlogs of several faults on a busy machine.
const DRAINED: Duration = Duration::from_secs(240);
/// The topic is read whole so often.
const CHECK_EVERY: u32 = 25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillDaemon(usize),
    StopDaemon(usize),
    PauseDaemon(usize),
    KillBroker,
    RestartBroker,
    CrashPostgres,
    TakeLease,
    None,
}

/// Xorshift: the same faults for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn fault(&mut self) -> Fault {
        let daemon = self.below(2) as usize;
        match self.below(10) {
            0..=2 => Fault::KillDaemon(daemon),
            3 => Fault::StopDaemon(daemon),
            4 => Fault::PauseDaemon(daemon),
            5 => Fault::KillBroker,
            6 => Fault::RestartBroker,
            7 => Fault::CrashPostgres,
            8 => Fault::TakeLease,
            _ => Fault::None,
        }
    }
}

struct Soak {
    scene: Scene,
    options: [DaemonOptions; 2],
    daemons: [Option<Daemon>; 2],
}

impl fmt::Debug for Soak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Soak")
    }
}

impl Soak {
    fn new() -> Soak {
        let scene = Scene::on(Arc::new(Kafka::start()), ServerOptions::default());
        let options = ["one", "two"].map(|name| {
            let mut options = scene.options().name(name);
            options.sections = options
                .sections
                .replace("topic =", "ack_timeout_ms = 5000\ntopic =");
            options
        });
        let daemons = [0, 1].map(|n| Some(options[n].launch()));
        Soak {
            scene,
            options,
            daemons,
        }
    }

    fn kafka(&mut self, act: impl FnOnce(&mut Kafka)) {
        act(Arc::get_mut(&mut self.scene.kafka).expect("nobody else has it"));
    }

    fn write(&self, tags: u32, events: u32) {
        let mut client = eventually(PATIENCE, "the server answers", || {
            self.scene.server.try_connect().ok()
        });
        write(&mut client, tags, events, "'{\"soak\": true}'");
    }

    /// Something happens while events are written and sent.
    fn act(&mut self, fault: Fault, dice: &mut Dice) {
        let nap = Duration::from_millis(dice.below(300));
        match fault {
            Fault::KillDaemon(n) => {
                self.daemons[n].take().expect("it runs").kill();
                self.daemons[n] = Some(self.options[n].launch());
            }
            Fault::StopDaemon(n) => {
                self.daemons[n].take().expect("it runs").terminate();
                self.daemons[n] = Some(self.options[n].launch());
            }
            Fault::PauseDaemon(n) => {
                let daemon = self.daemons[n].as_ref().expect("it runs");
                daemon.signal(Signal::STOP);
                self.write(7, 200);
                std::thread::sleep(nap);
                daemon.signal(Signal::CONT);
            }
            Fault::KillBroker => {
                self.kafka(Kafka::kill);
                self.write(7, 200);
                self.kafka(Kafka::run);
            }
            Fault::RestartBroker => self.kafka(Kafka::restart),
            Fault::CrashPostgres => {
                self.scene.server.stop_at_once();
                std::thread::sleep(nap);
                self.scene.server.run();
            }
            Fault::TakeLease => {
                let mut client = self.scene.server.connect();
                sql::run(
                    &mut client,
                    "UPDATE idgen.drain_lease SET epoch = epoch + 1, holder = gen_random_uuid(), expires = clock_timestamp() + interval '1 s'",
                );
            }
            Fault::None => {}
        }
    }

    fn run(mut self, seed: u64, rounds: u32) {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for round in 1..=rounds {
            let fault = dice.fault();
            println!("round {round}: {fault:?}");
            self.write(7 + dice.below(20) as u32, 100 + dice.below(900) as u32);
            std::thread::sleep(Duration::from_millis(dice.below(400)));
            self.act(fault, &mut dice);
            if round % CHECK_EVERY == 0 {
                self.scene.wait_drained_within(DRAINED);
                self.scene.check();
            }
        }
        self.scene.wait_drained_within(DRAINED);
        let messages = self.scene.check();
        let mut client = self.scene.server.connect();
        let events: i64 = value(&mut client, "SELECT count(*) FROM idgen.audit_event");
        let epoch: i64 = value(
            &mut client,
            "SELECT epoch FROM idgen.drain_lease WHERE stream = 'segment'",
        );
        println!(
            "seed {seed}: {rounds} rounds, {events} events, {} messages, epoch {epoch}",
            messages.len()
        );
    }
}

fn of_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn soak(seed: u64, rounds: u32) {
    let seed = of_environment("SOAK_SEED").unwrap_or(seed);
    let rounds = of_environment("SOAK_ROUNDS").unwrap_or(rounds);
    println!("soak: SUITE=outbox SEED={seed} ROUNDS={rounds}");
    Soak::new().run(seed, rounds);
}

#[test]
fn events_come_through_whatever_is_killed() {
    soak(SEED, ROUNDS);
}

#[test]
fn the_fixed_seed_has_every_fault() {
    let mut dice = Dice(SEED.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let fault = dice.fault();
        let kind = format!("{fault:?}")
            .chars()
            .take_while(|c| c.is_alphabetic())
            .collect::<String>();
        seen.push(kind);
        // As a round does.
        dice.below(20);
        dice.below(900);
        dice.below(400);
        dice.below(300);
    }
    for kind in [
        "KillDaemon",
        "StopDaemon",
        "PauseDaemon",
        "KillBroker",
        "RestartBroker",
        "CrashPostgres",
        "TakeLease",
    ] {
        assert!(seen.iter().any(|have| have == kind), "{kind} is not in {seen:?}");
    }
}
