//! `clear_on` and `distinct` at the doors beside the proxy: decide with its receipts, `test` and `replay`.

use std::fmt::Write;
use std::path::Path;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};

const CLEARS: &str =
    "[limit.q]\nalgorithm = \"fixed_window\"\nrate = \"3/h\"\nkey = \"host\"\ncharge_on = [401]\nclear_on = [200]\n";
const DISTINCT: &str = "[limit.q]\nalgorithm = \"fixed_window\"\nrate = \"2/h\"\nkey = \"host\"\ndistinct = \"ip\"\n";
const ROUTE: &str = "[[route]]\nupstream = \"http://127.0.0.1:9\"\nlimits = [\"q\"]\n";

#[test]
fn a_receipt_with_a_success_clears_the_key_once() {
    let gateway = Gateway::with_config(&format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.0/26\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\n[decide.d]\nlimits = [\"q\"]\n{CLEARS}"
    ));
    let ask = || {
        let question = "x-forwarded-method: GET\r\nx-forwarded-uri: /\r\nx-forwarded-host: a.test\r\n";
        gateway.fetch(&get("/decide/d", question))
    };
    let settle = |receipt: &str, status: u16| {
        let fields = format!("x-limit-receipt: {receipt}\r\nx-limit-status: {status}\r\ncontent-length: 0\r\n");
        let request = get("/settle/d", &fields).replacen("GET", "POST", 1);
        gateway.fetch(&request).status()
    };
    let receipts = [ask(), ask(), ask()].map(|answer| answer.get("x-limit-receipt").unwrap().to_owned());
    assert_eq!(ask().status(), 429);
    assert_eq!((settle(&receipts[0], 401), ask().status()), (200, 429), "a failure stays charged");
    assert_eq!(settle(&receipts[1], 200), 200);
    assert_eq!([ask(), ask(), ask(), ask()].map(|answer| answer.status()), [200, 200, 200, 429]);
    assert_eq!((settle(&receipts[1], 200), ask().status()), (409, 429), "a receipt clears once");
}

fn run(command: &str, config: &str, input: &str, dir: &Path) -> (i32, String) {
    let (file, other) = (dir.join("c.toml"), dir.join("input"));
    std::fs::write(&file, config).unwrap();
    std::fs::write(&other, input).unwrap();
    let output = program().args([command, "-c"]).arg(&file).arg(&other).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

/// Cases of one host: address, status of the server, and the decision.
fn cases(steps: &[(u8, u16, &str)]) -> String {
    let case = |(host, status, decision): &(u8, u16, &str)| {
        format!(
            "[[case]]\nrequest = \"GET http://a.test/\"\nfrom = \"192.0.2.{host}\"\nresponse = {status}\n\
             expect = {{ decision = \"{decision}\" }}\n"
        )
    };
    steps.iter().map(case).collect()
}

fn log(steps: &[(u8, u16)]) -> String {
    let mut text = String::new();
    for (second, (host, status)) in steps.iter().enumerate() {
        writeln!(
            text,
            "{{\"time\":\"2026-01-01T00:00:{second:02}Z\",\"method\":\"GET\",\"path\":\"/\",\"host\":\"a.test\",\
             \"client\":\"192.0.2.{host}\",\"status\":{status},\"duration_ms\":5}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn test_and_replay_clear_keys() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("{ROUTE}{CLEARS}");
    let mut steps = vec![(1, 401, "admit"), (1, 401, "admit"), (1, 200, "admit")];
    steps.extend([(1, 401, "admit"); 3]);
    steps.push((1, 401, "refuse"));
    let (code, text) = run("test", &config, &cases(&steps), dir.path());
    assert_eq!(code, 0, "{text}");
    let lines: Vec<(u8, u16)> = steps.iter().map(|(host, status, _)| (*host, *status)).collect();
    let (code, text) = run("replay", &config, &log(&lines), dir.path());
    assert!(code == 0 && text.contains("6 admitted, 1 refused"), "{text}");
    let without = config.replace("clear_on = [200]\n", "");
    let (_, text) = run("replay", &without, &log(&lines), dir.path());
    assert!(text.contains("4 admitted, 3 refused"), "{text}");
}

#[test]
fn test_and_replay_count_different_values() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("{ROUTE}{DISTINCT}");
    let steps = [
        (1, 200, "admit"),
        (1, 200, "admit"),
        (2, 200, "admit"),
        (3, 200, "refuse"),
        (1, 200, "admit"),
        (3, 200, "refuse"),
    ];
    let (code, text) = run("test", &config, &cases(&steps), dir.path());
    assert_eq!(code, 0, "{text}");
    let lines = steps.map(|(host, status, _)| (host, status));
    let (code, text) = run("replay", &config, &log(&lines), dir.path());
    assert!(code == 0 && text.contains("4 admitted, 2 refused"), "{text}");
    assert!(text.contains("ip=192.0.2.3"), "{text}");
}
