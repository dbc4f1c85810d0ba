//! `sluicegate explain`, `POST /-/explain` and `sluicegate test`: they decide as the running gateway does.

mod api;
mod commands;
mod doors;
mod random_requests;
mod times;

use std::path::Path;
use std::process::Output;

use crate::support::gateway::program;

/// Runs the program in `dir`. Returns its exit code, standard output and standard error.
fn run(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = program().current_dir(dir).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}
