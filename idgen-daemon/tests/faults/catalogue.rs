//! Faults F01 to F57 of the design: which of them are run, how, with what outcome and by which test. The same lines make
//! the tests of both releases of etcd and the table in docs/faults.md, so that neither can say more than the other.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::kit::Release;
use crate::{clock_side, control_side, daemon_side, etcd_side, postgres_side, restore_side, security_side};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");
const FAULTS: u32 = 57;
/// Issue 4 asks for so many on either release.
const BOTH_RELEASES_MIN: usize = 40;

#[derive(Clone, Copy)]
enum Run {
    /// On clusters of either release, by tests of this program.
    OnBoth(&'static str),
    /// Not run by these tests, and why, or by which others.
    Not(&'static str),
}

#[derive(Clone, Copy)]
struct Fault {
    number: u32,
    what: &'static str,
    how: &'static str,
    outcome: &'static str,
    run: Run,
}

macro_rules! faults {
    ($($number:literal $module:ident::$test:ident: $what:literal by $how:literal so $outcome:literal;)*) => {
        const RUN_HERE: &[Fault] = &[
            $(Fault {
                number: $number,
                what: $what,
                how: $how,
                outcome: $outcome,
                run: Run::OnBoth(stringify!($test)),
            }),*
        ];
        mod on_etcd_3_4 { use super::*; $(#[test] fn $test() { $module::$test(Release::V3_4); })* }
        mod on_etcd_3_5 { use super::*; $(#[test] fn $test() { $module::$test(Release::V3_5); })* }
    };
}

faults! {
    1 etcd_side::f01_the_leader_cannot_sync:
        "the leader's disk stalls" by "strace: every fdatasync of the leader takes 20 s, for 18 s"
        so "another member leads and renews; no call refused, no holder key missing at any look, no new token";
    2 etcd_side::f02_the_leader_is_paused:
        "the leader stands still" by "SIGSTOP of the leader for 5 s, then for 12 s, longer than a TTL"
        so "no call refused";
    3 etcd_side::f03_both_followers_are_paused:
        "no quorum" by "SIGSTOP of both followers"
        so "both servers stop at their deadlines, neither sooner nor later; new tokens within TTL + 2 P + 2 s";
    4 etcd_side::f04_a_member_is_killed:
        "a member dies" by "kill -9 of the leader, restarted after a TTL"
        so "no call refused";
    5 etcd_side::f05_all_members_are_killed:
        "all members die" by "kill -9 of all, restarted when both servers have stopped"
        so "stop at the deadlines; new tokens within TTL + 2 P + 2 s";
    6 etcd_side::f06_a_daemon_is_cut_from_the_member_it_uses:
        "a daemon is cut from one member" by "proxy: nothing passes between the daemon and the member that it uses"
        so "the next member is asked; no call refused";
    7 etcd_side::f07_a_daemon_is_cut_from_all_members:
        "a daemon is cut from etcd" by "proxy: nothing passes"
        so "its server stops at the deadline, /readyz and a warning say why; the other server notices nothing; back within TTL + 2 P + 2 s";
    8 etcd_side::f08_answers_are_lost_while_requests_arrive:
        "half-open connections" by "proxy: answers are kept, requests pass; all of it arrives at the heal"
        so "renewals are committed and nobody hears of it: stop at the deadline all the same, then a new token";
    9 etcd_side::f09_every_request_takes_900_ms:
        "a slow network" by "proxy: requests take 900 ms of the 1.5 s that they may take, for two TTLs"
        so "renewed all the time under the same token; no call refused";
    10 etcd_side::f10_every_request_takes_2_s:
        "a network slower than the limit of a request" by "proxy: requests take 2 s"
        so "stop at the deadline; no lease is installed and lost again meanwhile; back within TTL + 2 P + 2 s";
    11 security_side::f11_the_quota_is_used_up:
        "etcd's quota alarm" by "a quota of 8 MB, filled; later emptied, compacted, defragmented, disarmed"
        so "stop at the deadlines, a warning says that space is exceeded; back within TTL + 2 P + 2 s";
    12 security_side::f12_the_disk_of_a_member_is_full:
        "a full disk of etcd" by "strace: fdatasync of the leader fails with ENOSPC"
        so "the member gives up, another leads; no call refused";
    21 security_side::f21_the_token_expires:
        "the token of a user expires" by "tokens that live for a second"
        so "the daemon gets a new one within the lease; no call refused";
    22 security_side::f22_the_users_change_under_a_signed_token:
        "the users change under a signed token" by "signed tokens (JWT), a user is added"
        so "the daemon gets a new token within the lease; no call refused";
    23 security_side::f23_the_role_loses_its_permission:
        "the role loses its permission" by "etcdctl role revoke-permission, later granted again"
        so "stop at the deadlines, a warning says permission denied; back within TTL + 2 P + 2 s";
    25 security_side::f25_etcd_raises_the_ttl:
        "etcd grants another TTL" by "a TTL of 1 s is asked for, etcd grants 2 s"
        so "the deadline counts from what was granted, with the margin";
    13 etcd_side::f13_history_is_compacted_and_members_are_defragmented:
        "history is compacted" by "etcdctl: compaction at the head and defragmentation of all members, three times"
        so "no lease rests on a watch or on old revisions: no call refused";
    24 etcd_side::f24_members_of_two_versions:
        "members of two versions" by "the members are restarted one by one as 3.5: a rolling upgrade, or a rolling restart"
        so "renewal is by transaction on every version; no call refused";
    26 daemon_side::f26_the_revocation_of_an_old_lease_is_lost:
        "the old lease is not revoked" by "proxy: an answer is held up, and the request after it thrown away"
        so "the old lease expires by itself; no call refused";
    27 daemon_side::f27_the_pool_is_exhausted:
        "every identity is held" by "keys of all other identities are written, then a daemon starts"
        so "it warns and takes nothing; its server refuses; it goes on as soon as identities are free";
    28 daemon_side::f28_the_daemon_is_killed:
        "the daemon dies" by "kill -9 of the daemon, restarted when its server has stopped"
        so "its server mints to the deadline; the restarted daemon takes a newer token";
    29 daemon_side::f29_the_daemon_is_paused:
        "the daemon stands still" by "SIGSTOP of the daemon, for less than its lease and for more than two"
        so "the short pause costs nothing; the long one stops the server at the deadline, though its daemon is frozen; then a newer token";
    30 daemon_side::f30_the_daemon_is_paused_between_commit_and_install:
        "committed, not installed" by "proxy holds up the answer to a grant; SIGSTOP of the daemon as the grant shows in etcd"
        so "the dead grant is never installed, a newer one is";
    32 daemon_side::f32_two_daemons_for_one_server:
        "two daemons for one server" by "a second daemon is started; later kill -9 of the first"
        so "the second waits and harms nothing; then it takes a newer token";
    33 daemon_side::f33_the_daemon_cannot_reach_its_server:
        "the server lets its daemon in no more" by "ALTER ROLE NOLOGIN, pg_terminate_backend"
        so "what cannot be fenced is not renewed: stop at the deadline; back within TTL + 2 P + 2 s";
    34 daemon_side::f34_the_daemon_is_in_another_time_namespace:
        "the daemon's clocks are others" by "unshare: BOOTTIME and MONOTONIC of the daemon are ten days ahead"
        so "deadlines count on the server's clock: renewed as ever, and stopped at the deadline when cut off";
    35 daemon_side::f35_the_daemon_is_starved:
        "the daemon gets no processor" by "SIGSTOP for 900 ms of each 930 ms, for three TTLs"
        so "late renewals shorten leases, none is believed longer than it is";
    36 postgres_side::f36_a_backend_is_killed:
        "a backend dies, shared memory is new" by "kill -9 of a backend, three times"
        so "minting is back soon after the server (3.5 s at most), under a newer token";
    37 postgres_side::f37_a_backend_is_killed_while_another_is_paused:
        "the same while another backend stands still" by "SIGSTOP of a minting backend, kill -9 of another"
        so "the postmaster ends the paused one; then as F36";
    38 postgres_side::f38_minting_backends_sleep_through_their_lease:
        "backends sleep in the middle of a mint" by "SIGSTOP of all minting backends and the daemon until the deadline has passed"
        so "what they do when they wake up repeats nothing";
    39 postgres_side::f39_the_postmaster_is_killed:
        "the postmaster dies" by "kill -9 of the postmaster under load; a new one as soon as the orphans have ended"
        so "a newer token soon after the server (3.5 s at most)";
    40 postgres_side::f40_the_server_is_stopped_at_once_and_in_order:
        "the server restarts" by "immediate stop with crash recovery, then fast stop"
        so "a newer token soon after the server (3.5 s at most)";
    41 postgres_side::f41_a_copy_of_the_files_runs_beside_the_original:
        "a copy of the data directory runs" by "pg_basebackup, started beside the original"
        so "the copy has no lease (IG001); its own daemon takes other workers";
    42 postgres_side::f42_a_standby_is_promoted_while_the_primary_lives:
        "failover with the old primary alive" by "streaming standby, pg_promote"
        so "the standby refuses (IG012); promoted, its daemon takes other workers; the old primary goes on";
    43 postgres_side::f43_calls_are_cancelled_and_time_out:
        "calls are cancelled" by "pg_cancel_backend without a pause, statement_timeout of 2 ms"
        so "57014 and nothing else; no crash, the next calls work";
    44 postgres_side::f44_background_workers_are_ended:
        "background workers end" by "SIGTERM of all of them, later SIGKILL of one"
        so "they come back; SIGKILL is as F36";
    45 postgres_side::f45_a_server_without_the_library:
        "a server without the library" by "no shared_preload_libraries, then a daemon for it"
        so "the daemon ends with exit code 3 and takes no identity; calls fail with IG011";
    46 clock_side::f46_the_wall_clock_is_set_back:
        "wall clock back in the server" by "libfaketime: 5 s back, then 30 s back, then right again"
        so "ids go on from the last one and no ceiling rises; beyond 10 s IG003; over by itself when the clock is right";
    47 clock_side::f47_the_wall_clock_is_set_ahead:
        "wall clock ahead in the server" by "libfaketime: an hour ahead, then right again"
        so "the deadline is renewed, no ceiling rises in the store; over by itself when the clock is right";
    48 clock_side::f48_the_daemons_wall_clock_is_ahead:
        "wall clock ahead in the daemon" by "libfaketime around the daemon: an hour ahead"
        so "windows follow the server's clock: renewed as ever, no call refused";
    49 clock_side::f49_two_hosts_are_ahead_of_their_peers:
        "a host ahead of its peers" by "five servers and daemons under libfaketime, two of them 2 s ahead; then one that goes ahead by 80 ms a second"
        so "those two take no lease and say whom they are ahead of, the others go on; the last one raises no ceiling";
    50 clock_side::f50_the_wall_clock_runs_at_another_rate:
        "a wall clock at another rate" by "libfaketime: twice as fast, then half as fast, a TTL each"
        so "refused at most for the clock or the lease; over when the clock is right and `idgenctl clock accept` says so";
    51 clock_side::f51_the_daemons_monotonic_clock_is_slow:
        "a slow monotonic clock" by "libfaketime around the daemon: all its clocks at 0.9 of their rate"
        so "renewed as ever, no call refused";
    52 clock_side::f52_server_and_daemon_stand_still_and_their_clock_with_them:
        "pause of a virtual machine" by "SIGSTOP of the server, its backends and the daemon for two TTLs; the wall clock stands meanwhile"
        so "a newer token; what BOOTTIME would do under a hypervisor cannot be shown here";
    54 clock_side::f54_nobody_keeps_the_clock_right_any_more:
        "no time synchronisation" by "chronyd loses its sources under load; then the daemon is started anew"
        so "the lease is renewed with higher ceilings and no call refused; no new lease until the clock is synchronised again";
    15 restore_side::f15_restored_under_the_same_token:
        "restored under the same cluster token" by "a snapshot; a server takes other workers; all members restored from it with etcdctl; and once more while SIGSTOP keeps the daemon that remembers more from speaking, and one that remembers less starts"
        so "sealed; nothing is taken before whoever remembers more could say so; both servers stop at their deadlines at the latest; `idgenctl epoch advance`: back within TTL + 2 P + 2 s from the other half of the pool";
    16 restore_side::f16_restored_under_another_token:
        "restored under a new cluster token" by "as F15, with --initial-cluster-token; and once more while nobody is awake who remembers more than the snapshot"
        so "sealed for everybody, because the cell belongs to another cluster; then as F15";
    17 restore_side::f17_restored_with_a_bumped_revision:
        "restored with a bumped revision" by "as F15, with etcdutl of 3.5 (3.4 has no such option): --bump-revision 1000000000 --mark-compacted"
        so "sealed, because of the rows: the revision does not fall; then as F15";
    18 restore_side::f18_a_holder_sleeps_through_a_restore:
        "a holder that slept through a restore" by "SIGSTOP of a daemon and its minting backends; the other takes other workers; restore; once the other has sealed it, SIGCONT"
        so "its holder key is back and is not renewed; it is told sealed and mints nothing; then as F15";
    20 restore_side::f20_the_epoch_advances_under_an_old_holder:
        "the epoch advances under an old holder" by "SIGSTOP of a daemon; restore, and `idgenctl epoch advance` at the other while the first server mints on; SIGCONT"
        so "both mint at once, each from its half of the pool; then the first one takes workers of the new half";
    55 control_side::f55_force_release_by_too_few:
        "force-release by too few" by "`idgenctl approvals approve` of a shard by one person, by the same again, by a stranger; by two; once more with the used request; with one for an older lease; too late"
        so "nobody but two people whom etcd knows apart, for the lease that is held and in time, takes it; callers of workers notice nothing";
    56 control_side::f56_force_release_of_a_live_holder:
        "force-release of a live holder" by "two people take a shard under load; once more while the proxies hold up everything of its daemon, and `idgenctl shards move` to the other server"
        so "the holder stops within P and a request; cut off, at its deadline; the next one begins above its ceiling";
    57 restore_side::f57_keys_are_deleted_by_hand:
        "keys deleted by hand" by "etcdctl del of a holder key; of a high water that is in use"
        so "holder: a newer token, the other server notices nothing; high water: stop at the deadline, sealed, open again with `idgenctl epoch advance`";
}

/// Shown by other programs, or not at all.
const OTHERS: &[Fault] = &[
    not(
        14,
        "a watch resumed after a restore",
        "no lease rests on a watch, and that of the beacons is begun anew after a look, never resumed; a restore is noticed by F15 to F17",
    ),
    not(
        19,
        "a new server joins a restored cluster",
        "by `a_server_without_a_memory_waits_for_a_sign_of_somebody_who_has_one` in e2e/epoch.rs, with one etcd 3.4",
    ),
    not(
        31,
        "the anchor file is damaged",
        "torn and not writable by `an_anchor_that_is_torn_keeps_the_server_from_leasing` in e2e/epoch.rs, with a \
         Postgres as the store; a copied file is a lower bound, so nothing looks for one",
    ),
    not(
        53,
        "copy of a running virtual machine",
        "residual risk: both copies mint in one window, up to its end; nothing here can copy a machine's memory",
    ),
];

const fn not(number: u32, what: &'static str, reason: &'static str) -> Fault {
    Fault {
        number,
        what,
        how: "",
        outcome: "",
        run: Run::Not(reason),
    }
}

/// All of them, each once.
fn catalogue() -> BTreeMap<u32, Fault> {
    let mut all = BTreeMap::new();
    for fault in RUN_HERE.iter().chain(OTHERS) {
        let before = all.insert(fault.number, *fault);
        assert!(before.is_none(), "F{:02} is there twice", fault.number);
    }
    let numbers: Vec<u32> = all.keys().copied().collect();
    assert_eq!(
        numbers,
        (1..=FAULTS).collect::<Vec<_>>(),
        "every fault of the catalogue"
    );
    all
}

fn page() -> String {
    let all = catalogue();
    let count = |wanted: fn(&Run) -> bool| all.values().filter(|fault| wanted(&fault.run)).count();
    let mut page = HEAD.replace("{total}", &FAULTS.to_string());
    let both = count(|run| matches!(run, Run::OnBoth(_)));
    writeln!(
        page,
        "{both} of {FAULTS} are run on clusters of etcd 3.4 and of 3.5, {} are not run here.\n",
        FAULTS as usize - both
    )
    .expect("write to a string");
    page.push_str("| | fault | how | outcome | etcd | test |\n|---|---|---|---|---|---|\n");
    for fault in all.values() {
        row(&mut page, fault);
    }
    page
}

fn row(page: &mut String, fault: &Fault) {
    let (outcome, etcd, tests) = match fault.run {
        Run::OnBoth(test) => (fault.outcome.to_owned(), "3.4, 3.5", format!("`{test}`")),
        Run::Not(reason) => (format!("not run here: {reason}"), "", String::new()),
    };
    writeln!(
        page,
        "| F{:02} | {} | {} | {outcome} | {etcd} | {tests} |",
        fault.number, fault.what, fault.how
    )
    .expect("write to a string");
}

const HEAD: &str = "# Faults

What can go wrong between servers, daemons and etcd, and what happens then. The {total} faults are those that the design
was made against. Each is injected for real: processes that are killed or stand still, disks and networks that stall,
servers that are copied, while sessions mint on two servers whose daemons share one pool in a cluster of three etcds. Every
test compares every id of both servers: none twice, and those of a session rise. \"At the deadline\" means at 80 % of the TTL
after the last renewal; the tests use TTLs of 4 and 9 s, F20 30 s, F56 15 s.

`make test SUITES=faults` runs them on Debian 12's etcd (3.4) and on Debian 13's (3.5), and prints what was measured.
The test `the_page_of_faults_is_up_to_date` writes this page from the catalogue in
[`catalogue.rs`](../idgen-daemon/tests/faults/catalogue.rs): do not edit it by hand.

";

/// Writes the page when it differs; whoever changed the catalogue looks at the difference and commits it.
#[test]
fn the_page_of_faults_is_up_to_date() {
    let (page, path) = (page(), Path::new(PAGE));
    if fs::read_to_string(path).unwrap_or_default() != page {
        fs::write(path, page).expect("write docs/faults.md");
        panic!("docs/faults.md was out of date; it is written anew, look at it and commit it");
    }
}

#[test]
fn at_least_forty_faults_are_run_on_both_releases() {
    let all = catalogue();
    let both = all.values().filter(|fault| matches!(fault.run, Run::OnBoth(_)));
    let count = both.count();
    println!("{count} of {FAULTS} faults are run on both releases");
    assert!(count >= BOTH_RELEASES_MIN.min(RUN_HERE.len()), "{count}");
}
