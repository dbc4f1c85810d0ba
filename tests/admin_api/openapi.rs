//! The description of the API: it is valid OpenAPI 3.1, and the gateway keeps to it under requests that a tester makes
//! up from it, with a token of each role and without one.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{ROLES, bearer, fetch_as, secret, start};
use crate::support::app::api_venv;
use crate::support::gateway::Gateway;

/// Requests per operation and phase, and whether to run with every role; `make admin-api-test` sets it.
fn examples() -> (String, bool) {
    match std::env::var("ADMIN_API_EXAMPLES") {
        Ok(count) => (count, true),
        Err(_) => ("4".to_owned(), false),
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(api_venv().join("bin").join(program));
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_COLOR", "1");
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

#[track_caller]
fn assert_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Sends requests generated from the description, with the token of `role`, or without one.
fn explore(gateway: &Gateway, role: Option<&str>) {
    let dir = tempfile::tempdir().unwrap();
    let description = dir.path().join("openapi.json");
    std::fs::write(&description, fetch_as(gateway, "read", "GET", "/-/openapi.json", "").body).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/admin_api/schemathesis.toml");
    let url = format!("--url=http://{}", gateway.admin);
    let (config, count) = (format!("--config-file={}", config.display()), format!("--max-examples={}", examples().0));
    let header = role.map(|role| format!("--header=Authorization: Bearer {}", secret(role)));
    let description = description.display().to_string();
    let mut arguments = vec![config.as_str(), "run", &url, &count, "--seed=1", "--warnings=off"];
    arguments.extend(header.as_deref());
    arguments.push(&description);
    assert_success(&run("schemathesis", &arguments, dir.path()));
}

#[test]
fn the_description_is_valid() {
    let gateway = start();
    let served = fetch_as(&gateway, "read", "GET", "/-/openapi.json", "");
    assert_eq!(served.text(), std::fs::read_to_string("docs/reference/openapi.json").unwrap());
    assert_success(&run("openapi-spec-validator", &["docs/reference/openapi.json"], Path::new(".")));
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.json");
    std::fs::write(&wrong, served.text().replace("\"summary\": ", "\"sumary\": ")).unwrap();
    assert!(!run("openapi-spec-validator", &[&wrong.display().to_string()], Path::new(".")).status.success());
}

#[test]
fn made_up_requests_find_no_fault() {
    let gateway = start();
    std::thread::scope(|scope| {
        let gateway = &gateway;
        scope.spawn(move || explore(gateway, None));
        for role in ROLES.iter().filter(|role| examples().1 || **role == "edit") {
            scope.spawn(move || explore(gateway, Some(role)));
        }
    });
    assert_eq!(gateway.admin("/livez").status(), 200);
    assert_eq!(gateway.admin_request("GET", "/-/status", &bearer(&secret("edit")), "").status(), 200);
    let log = gateway.log();
    assert!(!log.contains("panicked") && !log.contains("token-0123456789"), "{log}");
}
