//! What every lease store must do, tried on a real Postgres, a real etcd, and the store in memory that the daemon's
//! simulation uses: what that finds counts only if it does as the real ones do.
//!
//! Each rule is a function over any [`rules::Place`]; the modules of the two stores run all of them.
//! Postgres needs no extension here: the store is tables and one SQL function.

#[cfg(test)]
mod assignments;
#[cfg(test)]
mod drains;
#[cfg(test)]
#[path = "../e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared; these tests need its servers only"
)]
mod kit;
#[cfg(test)]
mod names;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod rules;

/// All rules for one kind of place.
#[cfg(test)]
macro_rules! conformance {
    ($place:expr) => {
        #[test]
        fn everybody_sees_one_cell() {
            rules::everybody_sees_one_cell(&$place);
        }

        #[test]
        fn a_grant_is_made_once_and_as_a_whole() {
            rules::a_grant_is_made_once_and_as_a_whole(&$place);
        }

        #[test]
        fn a_grant_needs_the_row_free_and_as_it_was_seen() {
            rules::a_grant_needs_the_row_free_and_as_it_was_seen(&$place);
        }

        #[test]
        fn racing_daemons_never_share_an_identity() {
            rules::racing_daemons_never_share_an_identity(&$place);
        }

        #[test]
        fn a_renewal_keeps_the_token_and_needs_the_guard() {
            rules::a_renewal_keeps_the_token_and_needs_the_guard(&$place);
        }

        #[test]
        fn a_lost_answer_is_settled_by_reading() {
            rules::a_lost_answer_is_settled_by_reading(&$place);
        }

        #[test]
        fn what_is_not_renewed_expires_and_goes_to_others_above_its_ceiling() {
            rules::what_is_not_renewed_expires_and_goes_to_others_above_its_ceiling(&$place);
        }

        #[test]
        fn a_release_leaves_the_exact_high_water_and_is_free_at_once() {
            rules::a_release_leaves_the_exact_high_water_and_is_free_at_once(&$place);
        }

        #[test]
        fn a_sealed_cell_grants_and_renews_nothing() {
            rules::a_sealed_cell_grants_and_renews_nothing(&$place);
        }

        #[test]
        fn an_older_epoch_grants_and_renews_nothing() {
            rules::an_older_epoch_grants_and_renews_nothing(&$place);
        }

        #[test]
        fn an_epoch_is_advanced_once_and_opens_what_was_sealed() {
            rules::an_epoch_is_advanced_once_and_opens_what_was_sealed(&$place);
        }

        #[test]
        fn workers_of_a_new_epoch_begin_above_its_floor() {
            rules::workers_of_a_new_epoch_begin_above_its_floor(&$place);
        }

        #[test]
        fn a_switch_that_sealers_know_of_is_in_the_next_epoch() {
            rules::a_switch_that_sealers_know_of_is_in_the_next_epoch(&$place);
        }

        #[test]
        fn a_seal_that_comes_after_the_advance_leaves_the_new_epoch_open() {
            rules::a_seal_that_comes_after_the_advance_leaves_the_new_epoch_open(&$place);
        }

        #[test]
        fn a_store_that_is_wiped_gets_a_new_cell_from_strangers_only() {
            rules::a_store_that_is_wiped_gets_a_new_cell_from_strangers_only(&$place);
        }

        #[test]
        fn what_expires_goes_to_others_with_a_higher_generation_and_token() {
            rules::what_expires_goes_to_others_with_a_higher_generation_and_token(&$place);
        }

        #[test]
        fn revisions_rise_and_every_answered_write_is_seen() {
            rules::revisions_rise_and_every_answered_write_is_seen(&$place);
        }

        #[test]
        fn ceilings_fall_only_to_an_exact_high_water() {
            rules::ceilings_fall_only_to_an_exact_high_water(&$place);
        }

        #[test]
        fn a_shard_that_two_servers_name_goes_to_one_and_workers_never_notice() {
            rules::a_shard_that_two_servers_name_goes_to_one_and_workers_never_notice(&$place);
        }

        #[test]
        fn records_are_written_together_and_only_over_what_was_seen() {
            crate::assignments::records_are_written_together_and_only_over_what_was_seen(&$place);
        }

        #[test]
        fn shards_come_and_go_one_by_one_under_tokens_of_their_own() {
            rules::shards_come_and_go_one_by_one_under_tokens_of_their_own(&$place);
        }

        #[test]
        fn a_shard_moves_at_once_and_above_its_exact_high_water() {
            rules::a_shard_moves_at_once_and_above_its_exact_high_water(&$place);
        }

        #[test]
        fn what_a_daemon_left_behind_is_replaced_by_itself_only() {
            rules::what_a_daemon_left_behind_is_replaced_by_itself_only(&$place);
        }

        #[test]
        fn a_switch_is_made_once_and_every_daemon_must_know_it() {
            rules::a_switch_is_made_once_and_every_daemon_must_know_it(&$place);
        }

        #[test]
        fn a_switch_is_refused_when_a_grant_slips_in_between() {
            rules::a_switch_is_refused_when_a_grant_slips_in_between(&$place);
        }

        #[test]
        fn a_second_switch_raises_the_floor_of_the_cell() {
            rules::a_second_switch_raises_the_floor_of_the_cell(&$place);
        }

        #[test]
        fn a_store_that_does_not_answer_is_given_up_and_found_again() {
            rules::a_store_that_does_not_answer_is_given_up_and_found_again(&mut $place);
        }

        #[test]
        fn what_is_ordered_to_end_is_not_renewed_and_is_given_back_exactly() {
            crate::orders::what_is_ordered_to_end_is_not_renewed_and_is_given_back_exactly(&$place);
        }

        #[test]
        fn an_order_is_against_whoever_holds_the_token() {
            crate::orders::an_order_is_against_whoever_holds_the_token(&$place);
        }

        #[test]
        fn an_order_against_another_lease_changes_nothing() {
            crate::orders::an_order_against_another_lease_changes_nothing(&$place);
        }

        #[test]
        fn a_drained_server_is_granted_nothing_until_it_is_resumed() {
            crate::drains::a_drained_server_is_granted_nothing_until_it_is_resumed(&$place);
        }

        #[test]
        fn what_is_said_of_a_server_is_written_over_what_was_seen_only() {
            crate::drains::what_is_said_of_a_server_is_written_over_what_was_seen_only(&$place);
        }

        #[test]
        fn what_people_have_approved_is_done_once_and_leaves_the_ceiling() {
            crate::requests::what_people_have_approved_is_done_once_and_leaves_the_ceiling(&$place);
        }

        #[test]
        fn how_many_are_needed_is_kept_by_the_cell() {
            crate::requests::how_many_are_needed_is_kept_by_the_cell(&$place);
        }

        #[test]
        fn names_need_a_cell_that_somebody_has_made() {
            crate::names::names_need_a_cell_that_somebody_has_made(&$place);
        }

        #[test]
        fn a_name_has_one_holder() {
            crate::names::a_name_has_one_holder(&$place);
        }

        #[test]
        fn racing_daemons_never_share_a_name() {
            crate::names::racing_daemons_never_share_a_name(&$place);
        }

        #[test]
        fn a_name_is_renewed_under_its_token_and_guard() {
            crate::names::a_name_is_renewed_under_its_token_and_guard(&$place);
        }

        #[test]
        fn a_name_that_is_not_renewed_goes_to_others() {
            crate::names::a_name_that_is_not_renewed_goes_to_others(&$place);
        }

        #[test]
        fn a_name_is_given_up_by_its_token_and_free_at_once() {
            crate::names::a_name_is_given_up_by_its_token_and_free_at_once(&$place);
        }

        #[test]
        fn ceilings_only_rise_and_all_or_none() {
            crate::names::ceilings_only_rise_and_all_or_none(&$place);
        }

        #[test]
        fn a_hundred_ceilings_rise_at_once() {
            crate::names::a_hundred_ceilings_rise_at_once(&$place);
        }

        #[test]
        fn a_sealed_cell_grants_and_raises_no_names() {
            crate::names::a_sealed_cell_grants_and_raises_no_names(&$place);
        }

        #[test]
        fn an_older_epoch_grants_and_raises_no_names() {
            crate::names::an_older_epoch_grants_and_raises_no_names(&$place);
        }

        #[test]
        fn a_stripe_is_claimed_once_and_stays_after_its_release() {
            crate::names::a_stripe_is_claimed_once_and_stays_after_its_release(&$place);
        }

        #[test]
        fn a_stripe_is_joined_under_its_claim_and_that_stays_known() {
            crate::names::a_stripe_is_joined_under_its_claim_and_that_stays_known(&$place);
        }
    };
}

#[cfg(test)]
mod etcd_store;
#[cfg(test)]
mod memory_place;
#[cfg(test)]
mod postgres_store;
#[cfg(test)]
#[path = "../../src/lease/store_memory/mod.rs"]
#[allow(dead_code, reason = "the simulation of the daemon uses all of it")]
mod store_memory;
