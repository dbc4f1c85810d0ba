//! Certificates from an ACME server. A Pebble server issues them; a relay in front of it simulates unusual servers.

pub mod certificates;
mod dns;
mod failures;
mod reloads;
mod renewal_info;
mod unusual_servers;
