//! Reports of the gateway about itself: access log, log, metrics, and spans.

mod access_log;
mod headroom;
mod keys;
mod logs;
mod metrics;
mod openmetrics;
mod spans;
mod warnings;
