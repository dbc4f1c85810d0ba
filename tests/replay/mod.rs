//! `sluicegate replay`: access logs of each format, the report, and the exit codes.

mod clients;
mod formats;
mod generated_log;
mod input;
mod keys;
mod models;
mod progress;
mod refunds;
mod reports;
mod speed;
mod tightest;
mod workdir;
