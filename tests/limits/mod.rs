//! Limits in the running gateway: which requests they match, how keys are formed, what clients see of a decision,
//! and what attackers try in order to spend more than the limit.

mod bans;
mod body_keys;
mod cached_denials;
mod calls;
mod candidates;
mod client_view;
mod contract;
mod countries;
mod credentials;
mod decisions;
mod distinct;
mod fair;
mod graphql;
mod integers;
mod key_alternatives;
mod key_spellings;
mod matching;
mod matching_program;
mod outcome_doors;
mod over;
mod override_rows;
mod real_time;
mod repeated_keys;
mod repeated_tokens;
mod rolling_settings;
mod set_rows;
pub mod several_gateways;
mod stated_rates;
mod tiers;
mod unusual_keys;
mod wall_clock;
mod warm_up;
