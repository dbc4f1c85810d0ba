//! `sluicegate replay`: the real program on small logs of every format, and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const CONFIG: &str = r#"
[[route]]
path = "/"
upstream = "echo:"
limits = ["per-ip", "per-key"]
deny = ["192.0.2.99"]

[limit.per-ip]
rate = "1/s"
burst = 2
key = "ip"

[limit.per-key]
algorithm = "fixed_window"
rate = "3/min"
key = "header:x-api-key"
missing = "skip"
"#;

const COMBINED: &str = r#"192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 5 "-" "curl/8"
192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 5 "-" "curl/8"
192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a?q HTTP/1.1" 200 5 "-" "curl/8"
192.0.2.2 - - [10/Oct/2000:13:55:37 -0700] "GET /b HTTP/1.1" 200 5 "-" "curl/8"
this is no line
192.0.2.1 - - [10/Oct/2000:13:55:38 -0700] "\x16\x03" 400 0 "-" "-"
192.0.2.99 - - [10/Oct/2000:13:55:38 -0700] "GET / HTTP/1.1" 403 0 "-" "-"
192.0.2.1 - - [10/Oct/2000:13:55:35 -0700] "GET /late HTTP/1.1" 200 0 "-" "-"
"#;

const TEXT: &str = "\
access.log: 8 lines, combined, 1 bad
  line 5: does not start with a client address
from 2000-10-10T20:55:36Z to 2000-10-10T20:55:38Z
5 requests: 4 admitted, 1 refused (20.0 %)
  1 more are on the deny list of their route
  1 lines hold no request
  6 requests have no host in the log: routes with a host do not take them; see --host
  1 lines are earlier than one before them, by 3 s at most
  times are whole seconds: requests of one second count as simultaneous

limit per-ip (token_bucket, 2 per 2 s)
  requests  5 of 2 keys
  refused   1 (20.0 %) of 1 keys
  tightest  burst 3 at 1 per 1 s would have refused nobody
  most refused
             1  ip=192.0.2.1

limit per-key (fixed_window, 3 per 1 min)
  requests  0 of 0 keys
  refused   0 (0.0 %) of 0 keys
  tightest  nothing was taken
  note      key part header:x-api-key is not in the log: 5 requests skipped
";

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        let dir = Dir(tempfile::tempdir().unwrap());
        dir.write("sluicegate.toml", CONFIG.as_bytes());
        dir
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Exit code and streams; runs inside the directory.
    fn replay(&self, args: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .arg("replay")
            .args(args)
            .current_dir(&self.0)
            .env_remove("SLUICEGATE_CONFIG")
            .env_remove("SLUICEGATE_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may end before it has read all.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn json(&self, args: &[&str], input: &[u8]) -> Value {
        let (code, stdout, stderr) = self.replay(&[&["--format", "json"], args].concat(), input);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// Three requests at once and one half a second later.
fn our_own() -> String {
    [0, 0, 0, 500]
        .map(|ms| {
            let line = json!({
                "time": format!("2026-01-02T03:04:05.{ms:03}Z"), "client": "192.0.2.1", "method": "GET",
                "host": "a.example", "path": "/", "route": "/", "status": 200, "bytes": 5, "duration_ms": 1.5,
                "refused_by": null,
            });
            format!("{line}\n")
        })
        .concat()
}

#[test]
fn a_combined_log_is_told_in_text() {
    let dir = Dir::new();
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.replay(&["access.log"], b""), (0, TEXT.to_owned(), String::new()));
}

#[test]
fn every_format_gives_the_same_json() {
    let dir = Dir::new();
    let common = COMBINED.lines().map(|line| line.split(" \"-\"").next().unwrap().to_owned() + "\n");
    dir.write("common.log", common.collect::<String>().as_bytes());
    dir.write("combined.gz", &gzip(COMBINED.as_bytes()));
    let common = dir.json(&["common.log"], b"");
    let combined = dir.json(&["combined.gz"], b"");
    let piped = dir.json(&["-"], &gzip(COMBINED.as_bytes()));
    for (answer, format) in [(&common, "common"), (&combined, "combined"), (&piped, "combined")] {
        let log = &answer["logs"][0];
        assert_eq!((&log["format"], &log["lines"], &log["bad"]), (&json!(format), &json!(8), &json!(1)));
        assert_eq!(answer["limits"], common["limits"]);
        assert_eq!(answer["requests"], common["requests"]);
    }
    let expected = json!({
        "name": "per-ip", "algorithm": "token_bucket", "quota": 2, "window_ms": 2000, "shadow": false,
        "requests": 5, "refused": 1, "keys": { "count": 2, "exact": true }, "refused_keys": { "count": 1, "exact": true },
        "tightest": { "kind": "burst", "value": 3, "lower_bound": false }, "absent": {}, "cost_absent": 0,
        "top": [{ "key": "ip=192.0.2.1", "refused": 1 }], "top_missed": 0,
    });
    assert_eq!(common["limits"][0], expected);
}

#[test]
fn our_own_log_has_milliseconds_and_hosts() {
    let dir = Dir::new();
    dir.write("own.log", our_own().as_bytes());
    let answer = dir.json(&["own.log"], b"");
    assert_eq!((&answer["whole_seconds"], &answer["requests"]["no_host"]), (&json!(false), &json!(0)));
    assert_eq!(answer["requests"]["refused"], 2);
    assert_eq!(answer["limits"][0]["tightest"]["value"], 4, "2.5 of three are left when the fourth comes, rounded up");
    assert_eq!(answer["to"], "2026-01-02T03:04:05.5Z");
}

#[test]
fn the_tightest_numbers_refuse_nobody_and_one_less_does() {
    let dir = Dir::new();
    dir.write("own.log", our_own().as_bytes());
    for (burst, refused) in [(4, 0), (3, 1)] {
        dir.write("sluicegate.toml", CONFIG.replace("burst = 2", &format!("burst = {burst}")).as_bytes());
        assert_eq!(dir.json(&["own.log"], b"")["requests"]["refused"], refused);
    }
    for (count, refused) in [(4, 0), (3, 1)] {
        let window = CONFIG.replace("burst = 2\n", "algorithm = \"fixed_window\"\n");
        dir.write("sluicegate.toml", window.replace("1/s", &format!("{count}/s")).as_bytes());
        let answer = dir.json(&["own.log"], b"");
        assert_eq!(
            (&answer["requests"]["refused"], &answer["limits"][0]["tightest"]["value"]),
            (&json!(refused), &json!(4))
        );
    }
}

#[test]
fn logs_are_merged_by_time() {
    let dir = Dir::new();
    let (early, late) = COMBINED.split_at(COMBINED.find("192.0.2.2").unwrap());
    dir.write("1.log", early.as_bytes());
    dir.write("2.log", late.as_bytes());
    let (one, other) = (dir.json(&["1.log", "2.log"], b""), dir.json(&["2.log", "1.log"], b""));
    assert_eq!((&one["limits"], &one["out_of_order"]), (&other["limits"], &other["out_of_order"]));
}

#[test]
fn a_host_can_be_lent() {
    let dir = Dir::new();
    dir.write("sluicegate.toml", CONFIG.replace("path = \"/\"", "host = \"a.example\"").as_bytes());
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.json(&["access.log"], b"")["requests"]["no_route"], 6);
    assert_eq!(dir.json(&["access.log", "--host", "A.example"], b"")["requests"]["no_route"], 0);
}

#[test]
fn the_plot_is_drawn() {
    let dir = Dir::new();
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.replay(&["access.log", "--plot", "out.svg"], b"").0, 0);
    let svg = fs::read_to_string(dir.0.path().join("out.svg")).unwrap();
    for part in ["<svg ", "Requests per 1 s", "admitted (4)", "refused (1)", "20:55:36", "2000-10-10", "</svg>"] {
        assert!(svg.contains(part), "{part} is missing:\n{svg}");
    }
}

#[test]
fn exit_codes() {
    let dir = Dir::new();
    let (code, _, stderr) = dir.replay(&["missing.log"], b"");
    assert!(code == 1 && stderr.contains("missing.log"), "{code} {stderr}");
    let (code, _, stderr) = dir.replay(&["-"], b"nonsense\n\x00\xff\n");
    assert!(code == 1 && stderr.contains("standard input line 1"), "{code} {stderr}");
    let cut = gzip(COMBINED.repeat(100).as_bytes());
    let (code, _, stderr) = dir.replay(&["-"], &cut[..cut.len() - 20]);
    assert!(code == 1 && stderr.contains("cannot read standard input"), "{code} {stderr}");
    assert_eq!(dir.replay(&["-"], b"").0, 0, "a log may be empty");
    assert_eq!(dir.replay(&[], b"").0, 2);
    assert_eq!(dir.replay(&["-", "--host", "a b"], b"").0, 2);
    dir.write("sluicegate.toml", b"[limit.x]\n");
    assert_eq!(dir.replay(&["-"], b"").0, 2);
}

/// Run by hand for the speed: `cargo test --release --test replay -- --ignored --nocapture`.
#[test]
#[ignore = "takes long; LINES sets how many"]
fn many_lines() {
    let lines: u64 = std::env::var("LINES").map_or(1_000_000, |lines| lines.parse().unwrap());
    let dir = Dir::new();
    generate(&dir.0.path().join("big.log"), lines);
    let started = std::time::Instant::now();
    let (code, stdout, _) = dir.replay(&["big.log"], b"");
    let rate = u128::from(lines) * 1000 / started.elapsed().as_millis();
    println!("{stdout}\n{lines} lines in {:?}: {rate} lines/s", started.elapsed());
    assert_eq!(code, 0);
}

/// Two thousand lines a second of 100,000 clients, few of which ask often.
fn generate(path: &Path, lines: u64) {
    let mut out = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut seed = 1_u64;
    for i in 0..lines {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 33;
        let client = if random.is_multiple_of(4) { random % 64 } else { random % 100_000 };
        let second = i / 2000;
        let (hour, minute, second) = (second / 3600 % 24, second / 60 % 60, second % 60);
        writeln!(
            out,
            "10.{}.{}.{} - - [10/Oct/2000:{hour:02}:{minute:02}:{second:02} +0000] \"GET /item/{}?page=1 HTTP/1.1\" \
             200 5123 \"https://shop.example/list\" \"Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/120.0\"",
            client >> 16,
            client >> 8 & 255,
            client & 255,
            random % 5000,
        )
        .unwrap();
    }
}
