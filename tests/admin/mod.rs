//! The admin listener: its API, keys given by the hash of a log or by other texts, live overrides of limits, the commands of operators, the most refused keys,
//! the list of gateways, the last refusals, estimates of changed limits, malformed requests, floods, and the effective config.

mod api;
mod effective_config;
mod floods;
mod hashed_keys;
mod key_texts;
mod live_list;
mod malformed_requests;
mod operators;
mod overrides;
mod peers;
mod refusals;
mod refused_requests;
mod top;
mod usage_days;
mod what_if;
