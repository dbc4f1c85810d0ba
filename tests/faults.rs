//! The faults that limiters are known for, and for each the tests that show that this one does not
//! have it. In brackets: who has, or once had it; posts are articles with code. Files are of this
//! folder. A test of the table that is gone or was renamed fails `every_test_of_the_table_exists`.
//!
//! What this limiter shares with others: a limit under another name, key or algorithm counts anew, and
//! a key that an operator pins in Redis stays until it is charged again.
//!
//! | fault | tests |
//! |---|---|
//! | **What is charged** |  |
//! | a refused request is counted, logged or prolongs the lock (zset posts, Lua counter, envoyproxy/ratelimit, Kong, APISIX windows, Tyk, Upstash, Spring) | `faults/charging.rs:refusals_and_peeks_leave_no_trace` |
//! | the test is `>` or looks one entry too far, so one more than the limit passes (INCR and list counters, Koala's leak) | `store.rs:two_gateways_admit_exactly_the_limit` `faults/gateways.rs:two_gateways_admit_exactly_the_limit_in_every_form` |
//! | a limit of 0 lets the first request through (Lua counter) | `limits/matching.rs:single_keys_have_numbers_of_their_own` |
//! | read, decide and write are separate steps, so callers at the same moment all pass (zset posts, INCR, Koala's browse, limitador, APISIX sliding) | `faults/gateways.rs:takes_at_the_same_moment_are_counted_one_by_one` `store.rs:two_gateways_admit_exactly_the_limit` |
//! | workers of one process, or nodes, each count for themselves | `faults/charging.rs:threads_admit_exactly_the_limit_in_every_form` `gateway/limits.rs:all_workers_and_connections_share_one_exact_budget` |
//! | any room left admits any cost: 9 and 9 of 10 (APISIX, Upstash) | `faults/charging.rs:a_cost_fits_as_a_whole_and_a_refused_one_blocks_nobody` |
//! | a refused cost digs a debt without end (Upstash) | `faults/charging.rs:a_refused_cost_digs_no_debt` `algorithms/bounds/parameters.rs:a_bucket_with_a_debt_admits_its_burst_its_debt_and_its_rate` |
//! | a large cost that was refused blocks small ones (the local cache of envoyproxy/ratelimit) | `faults/gateways.rs:a_large_cost_that_was_refused_blocks_no_small_one` `faults/charging.rs:a_cost_fits_as_a_whole_and_a_refused_one_blocks_nobody` |
//! | the cost is fixed at one (token bucket post) | `gateway/limits.rs:a_request_costs_what_it_says` |
//! | entries of one millisecond overwrite each other, so 100 pass a limit of 3 (annotation post) | `faults/charging.rs:requests_of_one_millisecond_all_count` |
//! | an idle bucket gives more than it holds: 21 of 10 (KrakenD) | `faults/charging.rs:an_idle_bucket_never_exceeds_its_burst` `faults/charging.rs:an_idle_key_saves_nothing_up` |
//! | an earlier limit is charged although a later one refuses (envoyproxy/ratelimit, Kong, APISIX, caddy) | `faults/charging.rs:a_later_refusal_charges_no_earlier_limit` `store.rs:several_limits_are_charged_together_or_not_at_all` `gateway/limits.rs:limits_are_charged_all_or_none` |
//! | clients on the exempt list are counted all the same (Koala) | `limits/matching.rs:a_set_exempts_its_clients_and_reloads_live` |
//! | a look charges, or a charge happens after the answer and for refused requests too (Koala) | `limits/admin.rs:decisions_charge_all_or_none_and_peeks_nothing` |
//! | feedback takes back whatever was newest, or is not there at all (Koala) | `limits/admin.rs:a_receipt_is_worth_one_refund` `after/outcome.rs:what_the_config_names_is_given_back` |
//! | giving back twice, or more than was taken, mints room | `faults/expiry.rs:nothing_is_given_back_beyond_what_was_charged` `faults/receipts.rs:a_receipt_counts_once_whatever_the_clocks_say` |
//! | several questions at once know one kind of limit only (Koala's multi browse) | `limits/admin.rs:a_thousand_keys_are_answered_in_order` |
//! | tiers (first so many a day, then one per two seconds) mix up their days (Koala's base) | `limits/matching.rs:a_limit_comes_after_another` |
//! | borrowing is described and not done (token bucket post) | `algorithms/bounds/parameters.rs:a_bucket_with_a_debt_admits_its_burst_its_debt_and_its_rate` |
//! | **How long keys live** |  |
//! | counter and expiry are two commands, and a crash between them makes a key that never ends (INCR counters, Koala, zuul, haraka) | `store.rs:decides_like_the_memory_store` `faults/gateways.rs:two_gateways_admit_exactly_the_limit_in_every_form` |
//! | no expiry at all, by omission or by a comparison that never holds (Lua log, Upstash's cached window) | `faults/expiry.rs:a_key_lives_until_it_is_whole_again` |
//! | a key that lost its expiry locks its owner out for ever | `faults/expiry.rs:a_key_made_to_stay_is_mended` |
//! | an expiry shorter than the time to full refills the burst: 300 for 107 (Traefik) | `faults/expiry.rs:a_burst_comes_back_at_its_rate_and_not_with_the_expiry` |
//! | a negative or zero expiry fails the command, so nothing is counted (Koala's last second, and eight hours a day) | `faults/clocks.rs:windows_end_where_they_say` `algorithms/twin.rs:every_algorithm_is_walked_beside_its_twin` |
//! | each hit sends the expiry again (envoyproxy/ratelimit), or refused ones do (zset post) | `store/shapes.rs:an_exhausted_key_is_only_read` `faults/charging.rs:refusals_and_peeks_leave_no_trace` |
//! | a decrement of a key that has expired makes an immortal negative counter | `faults/expiry.rs:nothing_is_given_back_to_a_key_that_is_gone` |
//! | one of two keys of a bucket is evicted, and the script fails from then on (token bucket post) | `faults/expiry.rs:a_key_that_was_evicted_is_new_and_the_others_are_not` `store.rs:state_of_another_form_counts_as_none` |
//! | two trimmers cut live entries of a list (Koala) | `store/shapes.rs:one_key_many_operations_a_call` |
//! | a log of a million entries per key | `config.rs:bounds_are_where_the_errors_say` `memory.rs:a_key_in_redis_is_as_small_as_it_can_be` |
//! | keys without bound in memory (Upstash's map of the blocked, caddy's logs) | `memory.rs:every_algorithm_stays_within_max_keys` `after/denials.rs:what_is_remembered_is_bounded` |
//! | a full table ends in errors (nginx), or forgets whoever it meets | `attack/evictions.rs:the_keys_of_one_limit_push_out_no_other` `attack/evictions.rs:what_is_used_up_outlives_what_is_used_once` `src/limit/store/partition.rs:a_spent_key_is_the_last_to_go` |
//! | **Clocks** |  |
//! | the caller's clock decides, and clocks 0.2 s apart switch the limit off (Traefik, APISIX limit-req, Upstash, the seeds) | `faults/gateways.rs:two_gateways_with_other_clocks_admit_exactly_the_limit_in_every_form` `faults/gateways.rs:clocks_apart_do_not_add_to_the_rate` |
//! | elapsed time without its sign: a clock set back refills (APISIX) | `faults/clocks.rs:a_clock_that_goes_back_mints_nothing` `attack/wall_clock.rs:a_step_of_the_clock_refills_nothing` `faults/clocks.rs:clocks_that_disagree_do_not_switch_a_limit_off` |
//! | a clock set back takes tokens away and mints them later (token bucket post) | `faults/clocks.rs:an_interval_keeps_its_phase_whatever_the_clock_does` `algorithms/bounds/parameters.rs:lumps_come_once_an_interval` |
//! | a clock set far back shuts everybody out until it is right again | `faults/clocks.rs:a_clock_set_back_shuts_nobody_out_for_long` |
//! | workers that race for a key decide by times out of order | `faults/clocks.rs:workers_that_meet_at_a_key_do_not_turn_its_clock_back` |
//! | milliseconds within the second taken for the time, so that nothing ever grows old (zset post) | `algorithms/logs.rs:a_sliding_log_admits_what_the_model_admits` |
//! | whole seconds only (Lua counter, Spring, Koala) | `gateway/client_view.rs:retry_after_is_exact_for_every_algorithm` |
//! | microseconds lose digits as text, or become exponents | `store.rs:decides_like_the_memory_store` `algorithms/twin.rs:every_algorithm_is_walked_beside_its_twin` |
//! | an interval rounded to microseconds is off by 1 to 11 % at high rates (GCRA in integers), doubles since 2017 wear out (redis_rate) | `algorithms/bounds.rs:gcra_is_exact` `algorithms/bounds.rs:gcra_decides_like_a_token_bucket` |
//! | lease scores by each node's clock (APISIX limit-conn) | `faults/gateways.rs:two_gateways_with_other_clocks_admit_exactly_the_limit_in_every_form` |
//! | **Windows** |  |
//! | days that end a second early, in the zone of the machine, or of UTC (Koala), and zones of the node (gubernator) | `faults/clocks.rs:windows_end_where_they_say` `faults/gateways.rs:gateways_in_other_zones_share_a_day` `faults/gateways.rs:a_gateway_hours_off_counts_in_the_windows_of_the_others` |
//! | months of 30 days (envoyproxy/ratelimit, Kong), weeks that begin on Thursday (envoyproxy/ratelimit), none at all (gubernator) | `faults/clocks.rs:windows_end_where_they_say` `algorithms/bounds/dates.rs:every_window_of_a_year_holds_its_limit` |
//! | days of 23 and 25 hours, midnights that do not exist, offsets of 45 and 30 minutes | `algorithms/bounds/dates.rs:every_window_of_a_year_holds_its_limit` `algorithms/bounds/dates.rs:windows_are_those_of_the_wall_clock` |
//! | 24 hours mean a natural day and nothing else (Koala) | `faults/clocks.rs:windows_end_where_they_say` |
//! | units of time are mixed up in long periods (gubernator) | `src/config/values.rs:rates_in_every_spelling` |
//! | twice the limit around the end of a window, with no other window to choose (counters) | `faults/clocks.rs:no_double_portion_around_the_end_of_a_window` `algorithms/bounds.rs:a_strict_sliding_window_admits_its_limit_in_any_window` |
//! | two weighted counters are said to be exact, and admit 199 of 100 | `algorithms/bounds.rs:a_weighted_sliding_window_admits_less_than_twice_its_limit` |
//! | how long to wait at a sliding counter is a guess (caddy-ext), 0 beside 106 ms (Traefik), or not said at all | `gateway/client_view.rs:retry_after_is_exact_for_every_algorithm` `algorithms/twin.rs:every_algorithm_is_walked_beside_its_twin` |
//! | a queue that lets requests out closer than its rate, or delays beyond its bound | `algorithms/logs.rs:a_queue_lets_nothing_out_faster_than_its_rate` `algorithms/bounds/parameters.rs:turns_are_never_closer_than_the_rate` |
//! | **Keys and numbers** |  |
//! | parts joined without escaping meet in one key (Koala's bar, the underscore of envoyproxy/ratelimit) | `faults/gateways.rs:key_parts_with_separators_in_them_have_budgets_of_their_own` `src/limit/key.rs:different_values_have_different_keys` |
//! | to leave a parameter out is to evade its rules (Koala), or falls back to another kind of key (Kong) | `gateway/limits.rs:a_missing_key_part_skips_shares_or_refuses` |
//! | a hyphen or star makes a range of a text, CIDR and IPv6 are not read (Koala) | `limits/matching.rs:conditions_say_which_requests_are_limited` |
//! | there is no `<=` and no `>=`, and an empty line of a list is an item (Koala) | `src/config/compile/when.rs:every_operator_has_a_form_and_every_text_too` `faults/gateways.rs:an_empty_line_of_a_set_is_no_item` |
//! | an edited limit resets all counters (APISIX), or a bought quota does not help (envoyproxy/ratelimit) | `limits/matching.rs:who_bought_more_is_not_blocked_any_more_and_a_reload_frees_nobody` `gateway/reload.rs:spent_budgets_and_counters_survive_and_a_raised_limit_applies_at_once` `algorithms/bounds.rs:a_changed_number_keeps_what_was_consumed` |
//! | a broken file takes effect, or the process stops (Koala) | `gateway/reload.rs:a_bad_save_changes_nothing_is_visible_and_the_fix_applies` |
//! | a limit or a policy that can never admit is accepted in silence | `config.rs:every_kind_of_mistake_is_explained` |
//! | key names made inside the script, or keys of one decision in several slots: CROSSSLOT | `outage/cluster.rs:a_cluster_decides_like_the_memory_store` |
//! | **Stores that fail** |  |
//! | every request fails, or waits for seconds, while Redis is away (Traefik, envoyproxy/ratelimit, throttled, zset post) | `outage.rs:a_stopped_server_delays_nobody_beyond_the_deadline` `limits/admin.rs:an_outage_is_answered_as_each_limit_says` |
//! | no local limit while the store is away (most) | `after/outage.rs:two_gateways_share_the_limits_while_the_store_is_away` |
//! | a charge repeated because its answer was lost | `outage.rs:what_timed_out_is_charged_once_at_most` |
//! | the script cache is gone and every call fails | `store.rs:a_forgotten_script_costs_nothing` |
//! | the full script with each call, one call per period or limit (Kong), a PING per call (Koala) | `faults/gateways.rs:three_limits_are_one_call` `store.rs:many_decisions_share_a_call` |
//! | AUTH is sent without a password, and refused (Koala) | `outage.rs:missing_and_wrong_passwords` |
//! | usage that was not synchronised is forgotten (Kong), or admitted N times (APISIX, limitador, caddy, gubernator) | `faults/gateways.rs:two_gateways_admit_exactly_the_limit_in_every_form` |
//! | counters divided by the number of nodes while the store is there (Tyk) | `faults/gateways.rs:two_gateways_admit_exactly_the_limit_in_every_form` |
//! | short interruptions or a failover give the slots of running requests to others (any lease that is not renewed again) | `after/leases.rs:short_interruptions_lose_no_slot` `after/leases.rs:an_outage_shorter_than_the_lease_loses_no_slot` |
//! | a crash keeps its slots for an hour, or for ever (APISIX limit-conn) | `after/turns.rs:a_killed_gateway_gives_its_slots_back_after_their_lifetime` `store/shapes.rs:a_dead_holder_returns_its_slots` |
//! | a slot leaks on some path | `after/turns.rs:slots_are_released_on_every_path` |
//! | a memory of refusals that refuses what the store would admit | `after/denials.rs:nothing_is_refused_that_the_store_would_admit` |
//! | a store out of memory stops the traffic, or the limits | `outage.rs:out_of_memory` |
//! | a replica answers, or is charged in vain | `outage.rs:a_replica_takes_no_charge` `outage/sentinel.rs:a_hanging_master_is_replaced_and_not_asked_when_it_comes_back` |
//! | **What clients and operators see** |  |
//! | an exception, 500 or 503 in place of 429 with the wait (annotation post, APISIX, throttled) | `gateway/limits.rs:a_token_bucket_is_spent_and_says_exactly_when_to_come_back` |
//! | fields of old drafts only (all) | `gateway/client_view.rs:draft_11_is_a_structured_field_on_every_answer` |
//! | the quota of a concurrency limit is shown as one of requests per time | `gateway/client_view.rs:a_concurrency_limit_says_its_unit` |
//! | keys in metric labels (caddy, envoyproxy/ratelimit's overrides) | `gateway/metrics.rs:no_host_path_or_method_makes_a_new_series` |
//! | no dry run (most) | `gateway/limits.rs:a_shadow_limit_counts_and_never_refuses` |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "a test fails by panicking, its helpers too"
)]

mod stores;
mod support;

mod faults {
    use sluicegate::limit::algo::NAMES;
    use sluicegate::limit::decision::Check;

    use crate::stores::check;
    use crate::stores::forms::{Form, forms};

    mod charging;
    mod clocks;
    mod expiry;
    mod gateways;
    mod receipts;

    /// In the middle of hours, days, weeks, months and years.
    const NOW: i64 = 1_781_531_234_567;

    /// One unit of a form's limit.
    fn one(form: &Form) -> Check {
        check(&form.limit(), "all", 1)
    }

    #[test]
    fn every_algorithm_has_its_forms() {
        let forms = forms(10);
        for name in NAMES {
            assert!(forms.iter().any(|form| form.algorithm() == *name), "{name} has no form");
        }
        for form in forms {
            assert_eq!(form.limit().rule.name(), form.algorithm());
        }
    }

    /// The table above: each name is that of a test in the file it stands with.
    #[test]
    fn every_test_of_the_table_exists() {
        let table = include_str!("faults.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let rows: Vec<&str> = table.filter(|row| !row.starts_with("fault") && !row.starts_with("**")).collect();
        assert!(rows.len() > 60, "only {} faults are read", rows.len());
        for row in rows {
            let tests = row.rsplit(" | ").next().unwrap().trim_end_matches(" |");
            let mut names = tests.split('`').filter(|name| !name.trim().is_empty()).peekable();
            assert!(names.peek().is_some(), "no test: {row}");
            for name in names {
                let (file, function) = name.split_once(':').unwrap_or_else(|| panic!("{name} in {row}"));
                let folder = if file.starts_with("src/") { "" } else { "tests/" };
                let path = format!("{}/{folder}{file}", env!("CARGO_MANIFEST_DIR"));
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
                let start = text.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{file} has no {function}"));
                let before = text[..start].trim_end().lines().last().unwrap();
                assert_eq!(before.trim(), "#[test]", "{function} of {file} is no test");
            }
        }
    }
}
