//! Which fault is run where.
use crate::daemon_side::*;
use crate::etcd_side::*;
use crate::kit::Release;
use crate::postgres_side::*;

macro_rules! on_both {
    ($($test:ident)*) => {
        mod on_etcd_3_4 { use super::*; $(#[test] fn $test() { super::$test(Release::V3_4); })* }
        mod on_etcd_3_5 { use super::*; $(#[test] fn $test() { super::$test(Release::V3_5); })* }
    };
}
on_both! {
    f01_the_leader_cannot_sync
    f02_the_leader_is_paused
    f03_both_followers_are_paused
    f04_a_member_is_killed
    f05_all_members_are_killed
    f06_a_daemon_is_cut_from_the_member_it_uses
    f07_a_daemon_is_cut_from_all_members
    f08_answers_are_lost_while_requests_arrive
    f09_every_request_takes_900_ms
    f10_every_request_takes_2_s
    f13_history_is_compacted_and_members_are_defragmented
    f24_members_of_two_versions
    f26_the_revocation_of_an_old_lease_is_lost
    f27_the_pool_is_exhausted
    f28_the_daemon_is_killed
    f29_the_daemon_is_paused
    f30_the_daemon_is_paused_between_commit_and_install
    f32_two_daemons_for_one_server
    f33_the_daemon_cannot_reach_its_server
    f34_the_daemon_is_in_another_time_namespace
    f35_the_daemon_is_starved
    f36_a_backend_is_killed
    f37_a_backend_is_killed_while_another_is_paused
    f38_minting_backends_sleep_through_their_lease
    f39_the_postmaster_is_killed
    f40_the_server_is_stopped_at_once_and_in_order
    f41_a_copy_of_the_files_runs_beside_the_original
    f42_a_standby_is_promoted_while_the_primary_lives
    f43_calls_are_cancelled_and_time_out
    f44_background_workers_are_ended
    f45_a_server_without_the_library
}
