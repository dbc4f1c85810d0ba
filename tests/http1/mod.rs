//! HTTP/1.1 between the client, the gateway and the upstream server: messages, connections, timeouts, upgrades, and
//! comparisons of our parsers with those of hyper, and of what limits read with what servers get.

mod busy_connections;
mod connections;
mod early_refusals;
mod exchange;
mod fast_readers;
mod headers;
mod idle_connections;
mod messages;
mod mutations;
mod one_request;
mod request_differential;
mod response_differential;
mod slow_readers;
mod strict;
mod timeouts;
mod upgrades;
