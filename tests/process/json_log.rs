//! With `--log-format json`, every line on standard error is JSON, also if the program cannot start. And what the line
//! `ready` says.

use serde_json::Value;

use crate::support::gateway::{Gateway, program};

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(parse).collect()
}

#[test]
fn a_program_that_cannot_start_says_why_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluicegate.toml");
    std::fs::write(&file, "[server]\nworkres = 2\n[[route]]\nupstream = \"echo:\"\nlimits = [\"none\"]\n").unwrap();
    let (config, taken) = (file.to_str().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let busy = dir.path().join("busy.toml");
    let addr = taken.local_addr().unwrap();
    std::fs::write(
        &busy,
        format!("[server]\nlisten = \"{addr}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[[route]]\nupstream = \"echo:\"\n"),
    )
    .unwrap();
    for (arguments, code, words) in [
        (&["run", "-c", config][..], 2, "did you mean `workers`?"),
        (&["run", "-c", "/nonexistent/x.toml"], 2, "/nonexistent/x.toml"),
        (&["run", "--bogus"], 2, "--bogus"),
        (&["run", "-c", config, "--log", "loud"], 2, "is not a level"),
        (&["run", "-c", busy.to_str().unwrap()], 1, "in use"),
        // Even if the log is off, the reason is not.
        (&["run", "-c", config, "--log", "off"], 2, "did you mean `workers`?"),
    ] {
        let output = program().args(arguments).args(["--log-format", "json"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        let lines = lines(&text);
        assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()), "{text}");
        let has_words = |line: &Value| line["message"].as_str().is_some_and(|message| message.contains(words));
        assert!(lines.iter().any(has_words), "{arguments:?}: {text}");
    }
    // By the environment, and in text by default.
    let of_variable = program().args(["run", "--bogus"]).env("SLUICEGATE_LOG_FORMAT", "json").output().unwrap();
    assert_eq!(lines(&String::from_utf8(of_variable.stderr).unwrap()).len(), 1);
    let text = program().args(["run", "-c", config]).output().unwrap();
    assert!(String::from_utf8(text.stderr).unwrap().starts_with("error: "));
}

#[test]
fn every_command_that_fails_says_why_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluicegate.toml");
    let none = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(&file, format!("[admin]\nlisten = \"{none}\"\n[[route]]\nupstream = \"echo:\"\n")).unwrap();
    let config = file.to_str().unwrap();
    let url = format!("http://{none}/");
    for arguments in [
        &["reload", "-c", config][..],
        &["ui", "-c", config],
        &["top", "-c", config],
        &["tap", "-c", config],
        &["healthcheck", "-c", config],
        &["healthcheck", "--url", &url],
        &["healthcheck", "--url", "x"],
        &["import", "nginx", "/nonexistent/nginx.conf"],
        &["explain", "::", "-c", config],
        &["help", "nosuch"],
        &["replay", "/nonexistent/access.log", "-c", config],
        &["test", "/nonexistent/cases.toml", "-c", config],
        &["contract", "--limit", "nosuch", "-c", config],
        &["diff", config, "/nonexistent/x.toml"],
        &["key", "list", "-c", config],
        &["status", "-c", config],
        &["rollback", "-c", config],
    ] {
        let output = program().args(arguments).args(["--log-format", "json"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?}: {text}");
        let lines = lines(&text);
        assert!(
            lines.iter().any(|line| line["level"] == "ERROR" && line["message"].is_string()),
            "{arguments:?}: {text}"
        );
    }
}

#[test]
fn the_line_ready_names_the_dashboard() {
    let gateway = Gateway::start("[[route]]\nupstream = \"echo:\"\n");
    let wanted = format!("dashboard=\"http://{}/\"", gateway.admin);
    assert!(gateway.log().contains(&wanted), "{}", gateway.log());
}
