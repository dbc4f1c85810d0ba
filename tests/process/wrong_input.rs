//! Input that commands refuse because it would silently have no effect: log levels and environment variables.

use std::fs;
use std::path::Path;

use crate::support::gateway::program;

/// Runs `check` with a config in which a header must have this value. Returns the exit code and the messages.
fn check(dir: &Path, log: &str, value: &str) -> (Option<i32>, String) {
    let file = dir.join("a.toml");
    let text = format!("[[route]]\nupstream = \"echo:\"\nheader = {{ x-secret = \"{value}\" }}\n");
    fs::write(&file, text).unwrap();
    let mut command = program();
    let checked = command.args(["--log", log, "check", "-c"]).arg(&file).env("EMPTY_SECRET", "").output().unwrap();
    (checked.status.code(), String::from_utf8(checked.stderr).unwrap())
}

/// A word that is no level would be taken for a module, and nothing else would be logged.
#[test]
fn log_levels_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    for wrong in ["warning", "inof", "info,verbose"] {
        let (code, stderr) = check(dir.path(), wrong, "x");
        assert!(code == Some(2) && stderr.contains("is not a level"), "{wrong}: {code:?} {stderr}");
    }
    for right in ["", "off", "WARN", "info,sluicegate::control=debug", "error,h2=off"] {
        let (code, stderr) = check(dir.path(), right, "x");
        assert_eq!(code, Some(0), "{right}: {stderr}");
    }
}

/// An empty secret would protect nothing.
#[test]
fn an_empty_environment_variable_is_a_mistake_unless_it_may_be_empty() {
    let dir = tempfile::tempdir().unwrap();
    for (value, code) in [("${EMPTY_SECRET}", 2), ("${EMPTY_SECRET:-}", 0), ("${EMPTY_SECRET:-x}", 0)] {
        let (found, stderr) = check(dir.path(), "info", value);
        assert_eq!(found, Some(code), "{value}: {stderr}");
        assert_eq!(code == 2, stderr.contains("the environment variable `EMPTY_SECRET` is empty"), "{value}: {stderr}");
    }
}
