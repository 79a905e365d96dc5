//! Incidents of worker numbers elsewhere: what made two servers or processes have one.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::kit::daemon::{DaemonOptions, IDGEND};
use crate::kit::process::Process;
use crate::kit::unique::UniquenessRecorder;
use crate::kit::{Etcd, PATIENCE, Scratch, Server, Store, eventually_true, sql};

fn workers_of(server: &Server) -> Vec<i32> {
    sql::column(
        &mut server.connect(),
        "SELECT identity FROM idgen.slots WHERE state = 'open' AND kind = 'worker'",
    )
}

/// Four identities on two servers, and no id twice.
fn assert_apart(servers: &[Server]) {
    let workers: Vec<i32> = servers.iter().flat_map(workers_of).collect();
    let distinct: BTreeSet<i32> = workers.iter().copied().collect();
    assert_eq!((workers.len(), distinct.len()), (4, 4), "{workers:?}");
    let mut recorder = UniquenessRecorder::new();
    for server in servers {
        let mint = "SELECT idgen_snowflake() FROM generate_series(1, 20000)";
        recorder.extend(sql::column::<i64>(&mut server.connect(), mint));
    }
    recorder.assert_unique("snowflakes of two servers", 40_000);
}

/// zitadel#9075, #10484: equal addresses gave one machine id, and a user got another user's session. Kubernetes: a pod
/// that was deleted by force runs beside its successor, with one ordinal. Both daemons here run on one host, at one
/// address, under one name; none of that is an identity.
#[test]
fn incident_29_and_30_two_daemons_with_one_host_and_one_name_get_different_workers() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    let start = |server| {
        DaemonOptions::new(server)
            .store(Store::etcd(&etcd))
            .name("pod-0")
            .launch()
    };
    let mut daemons: Vec<_> = servers.iter().map(start).collect();
    daemons.iter_mut().for_each(|daemon| daemon.wait_ready());
    assert_apart(&servers);
}

/// rs/xid#29, #70: in containers every process has the same number. Each daemon here is the first process of its own.
#[test]
fn incident_38_two_daemons_with_one_process_number_get_different_workers() {
    let (servers, etcd) = (Server::several(2), Etcd::start());
    let contained: Vec<(Scratch, Process)> = servers
        .iter()
        .map(|server| {
            let scratch = Scratch::new("contained");
            let config = scratch.join("idgend.toml");
            let options = DaemonOptions::new(server).store(Store::etcd(&etcd)).name("pod-0");
            fs::write(&config, options.config()).expect("write config");
            let mut command = Command::new("unshare");
            // A user namespace, so that whoever runs the tests may do it; killing unshare kills what is inside.
            command
                .args([
                    "--user",
                    "--map-root-user",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    IDGEND,
                    "--config",
                ])
                .arg(&config);
            let process = Process::spawn("idgend in a namespace", command, scratch.join("idgend.log"));
            (scratch, process)
        })
        .collect();
    eventually_true(PATIENCE, "both have their workers", || {
        servers.iter().all(|server| workers_of(server).len() == 2)
    });
    assert_apart(&servers);
    drop(contained);
}

/// mongoid/moped#176, mongo-php-driver#1104: state that a fork inherits. Every backend is a fork of the postmaster.
#[test]
fn incident_39_the_first_ids_of_five_hundred_forked_backends_differ() {
    let server = Server::start();
    let _daemon = DaemonOptions::new(&server).start();
    let (mut snowflakes, mut uuids) = (UniquenessRecorder::new(), UniquenessRecorder::new());
    for _ in 0..500 {
        let mut client = server.connect();
        let first = "SELECT idgen_snowflake(), idgen_uuidv7()::text";
        let row = client.query_one(first, &[]).expect("the first ids of a backend");
        snowflakes.extend([row.get::<_, i64>(0)]);
        uuids.extend([row.get::<_, String>(1)]);
    }
    snowflakes.assert_unique("first snowflakes", 500);
    uuids.assert_unique("first uuids", 500);
}
