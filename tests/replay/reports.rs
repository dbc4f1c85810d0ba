//! Small logs in every format, and their reports.

use std::fs;

use serde_json::json;

use super::workdir::{Dir, gzip};

pub const CONFIG: &str = r#"
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

pub const COMBINED: &str = r#"192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 5 "-" "curl/8"
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
from 2000-10-10T20:55:35Z to 2000-10-10T20:55:38Z
5 requests: 0 admitted, 1 refused (20.0 %), 4 not evaluated
  not evaluated: a limit reads what the log does not hold, and no other limit refuses the request
  1 more are on the deny list of their route
  1 lines contain no request
  6 requests have no host in the log, so routes with a host do not match them; see --host
  times are whole seconds: requests of one second count as simultaneous, so fewer would be refused live

limit per-ip (token_bucket, 2 per 2 s)
  requests  5 of 2 keys
  refused   1 (20.0 %) of 1 keys
  tightest  burst 3 at 1 per 1 s, as the only limit, would have refused nobody
  most refused
             1  ip=192.0.2.1

limit per-key (fixed_window, 3 per 1 min)
  requests  0 of 0 keys
  refused   not evaluated
  tightest  none: no request could be evaluated
  note      5 requests not evaluated: header:x-api-key is not in the log
";

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
fn a_replay_of_a_combined_log_is_reported_as_text() {
    let dir = Dir::new(CONFIG);
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.replay(&["access.log"], b""), (0, TEXT.to_owned(), String::new()));
}

#[test]
fn every_format_gives_the_same_json() {
    let dir = Dir::new(CONFIG);
    let common = COMBINED.lines().map(|line| line.split(" \"-\"").next().unwrap().to_owned() + "\n");
    dir.write("common.log", common.collect::<String>().as_bytes());
    dir.write("combined.gz", &gzip(COMBINED.as_bytes()));
    let common = dir.json(&["common.log"], b"");
    let combined = dir.json(&["combined.gz"], b"");
    let piped = dir.json(&["-"], &gzip(COMBINED.as_bytes()));
    for (response, format) in [(&common, "common"), (&combined, "combined"), (&piped, "combined")] {
        let log = &response["logs"][0];
        assert_eq!((&log["format"], &log["lines"], &log["bad"]), (&json!(format), &json!(8), &json!(1)));
        assert_eq!(response["limits"], common["limits"]);
        assert_eq!(response["requests"], common["requests"]);
    }
    let expected = json!({
        "name": "per-ip", "algorithm": "token_bucket", "quota": 2, "window_ms": 2000, "candidate_of": null, "compared": null, "shadow": false, "over": "refuse",
        "requests": 5, "not_evaluated": { "requests": 0, "sources": {} }, "refused": 1, "refused_by_others": 0, "delayed": 0, "longest_delay_ms": 0, "returned": 0,
        "keys": { "count": 2, "exact": true }, "refused_keys": { "count": 1, "exact": true },
        "tightest": { "kind": "burst", "value": 3, "none_because": null, "lower_bound": false },
        "not_in_log": {
            "key_parts": {}, "cost": 0, "duration": 0, "status": 0, "unreachable": 0, "limited": 0, "blurred": 0,
            "settle": false, "overrides": 0,
        },
        "by_logged_keys": {},
        "top": [{ "key": "ip=192.0.2.1", "refused": 1 }], "top_missed": 0,
    });
    assert_eq!(common["limits"][0], expected);
}

#[test]
fn our_own_log_has_milliseconds_and_hosts() {
    let dir = Dir::new(CONFIG);
    dir.write("own.log", our_own().as_bytes());
    let response = dir.json(&["own.log"], b"");
    assert_eq!((&response["whole_seconds"], &response["requests"]["no_host"]), (&json!(false), &json!(0)));
    assert_eq!(response["requests"]["refused"], 2);
    assert_eq!(
        response["limits"][0]["tightest"]["value"], 4,
        "2.5 of three are left when the fourth comes, rounded up"
    );
    assert_eq!(response["to"], "2026-01-02T03:04:05.5Z");
}

#[test]
fn logs_are_merged_by_time() {
    let dir = Dir::new(CONFIG);
    let (early, late) = COMBINED.split_at(COMBINED.find("192.0.2.2").unwrap());
    dir.write("1.log", early.as_bytes());
    dir.write("2.log", late.as_bytes());
    let (one, other) = (dir.json(&["1.log", "2.log"], b""), dir.json(&["2.log", "1.log"], b""));
    assert_eq!((&one["limits"], &one["late"]), (&other["limits"], &other["late"]));
}

#[test]
fn a_host_can_be_lent() {
    let dir = Dir::new(CONFIG);
    dir.write("sluicegate.toml", CONFIG.replace("path = \"/\"", "host = \"a.example\"").as_bytes());
    dir.write("access.log", COMBINED.as_bytes());
    let (code, _, stderr) = dir.replay(&["access.log"], b"");
    assert!(code == 1 && stderr.contains("--host"), "{code} {stderr}");
    assert_eq!(dir.json(&["access.log", "--host", "A.example"], b"")["requests"]["no_route"], 0);
}

#[test]
fn header_fields_that_the_log_holds_are_seen() {
    // No other limit reads this header.
    let plain = CONFIG.replace("header:x-api-key", "ip");
    for (limit, requests, parts, cost) in [
        ("key = \"header:user-agent\"", 5, json!({ "header:user-agent": 1 }), 0),
        ("when = { header = { user-agent = \"curl/*\" } }", 3, json!({}), 0),
        ("when = { header = { user-agent = \"~i ^CURL/[0-9]\" } }", 3, json!({}), 0),
        ("when = { header = { user-agent = \"~ ^CURL\" } }", 0, json!({}), 0),
        ("when = { header = { referer = \"a\" } }", 0, json!({}), 0),
        ("cost = \"header:user-agent\"", 5, json!({}), 1),
    ] {
        let dir = Dir::new(&format!(
            "{}\n[limit.per-agent]\nrate = \"1/s\"\n{limit}\n",
            plain.replace("per-key\"]", "per-agent\"]")
        ));
        let log = COMBINED.replacen("curl/8", "wget", 1);
        let response = dir.json(&["-"], log.as_bytes());
        let own = &response["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "per-agent").unwrap();
        assert_eq!((&own["requests"], &own["not_in_log"]["key_parts"]), (&json!(requests), &parts), "{limit}");
        assert_eq!(own["not_in_log"]["cost"], cost);
    }
    let dir = Dir::new(&plain.replace("path = \"/\"", "path = \"/\"\nheader = { user-agent = \"curl/8\" }"));
    assert_eq!(dir.json(&["-"], COMBINED.as_bytes())["requests"]["no_route"], 2, "two have no agent");
}

#[test]
fn a_key_is_missed_only_where_its_limit_applies() {
    let dir = Dir::new(&CONFIG.replace("missing = \"skip\"", "missing = \"skip\"\nwhen = { method = [\"POST\"] }"));
    let log = COMBINED.replacen("GET", "POST", 1);
    assert_eq!(
        dir.json(&["-"], log.as_bytes())["limits"][1]["not_evaluated"],
        json!({ "requests": 1, "sources": { "header:x-api-key": 1 } })
    );
}

#[test]
fn the_plot_is_drawn() {
    let dir = Dir::new(&CONFIG.replace(", \"per-key\"", ""));
    let plot = |log: &str| {
        dir.write("access.log", log.as_bytes());
        let code = i32::from(log.is_empty());
        assert_eq!(dir.replay(&["access.log", "--plot", "out.svg"], b"").0, code);
        fs::read_to_string(dir.0.path().join("out.svg")).unwrap()
    };
    let svg = plot(COMBINED);
    for part in [
        "<svg ",
        ">requests per 1 s</text>",
        ">admitted: 4 (80.0 %)</text>",
        ">refused: 1 (20.0 %)</text>",
        ">10 Oct 2000 20:55:35 to 10 Oct 2000 20:55:38 UTC</text>",
        ">20:55:35</text>",
        ">10 Oct 2000</text>",
        "<title>2000-10-10T20:55:36Z: 2 admitted, 1 refused</title>",
        // A third of the height, above two thirds.
        " 220.00v-96.00h",
        "</svg>",
    ] {
        assert!(svg.contains(part), "{part} is missing:\n{svg}");
    }
    // The plot of a log with milliseconds has bins of 10 ms.
    assert!(plot(&our_own()).contains(">requests per 10 ms</text>"));
    assert!(plot("").contains("no request"));
}

/// A limit that refuses nobody might need a larger number without the others, because another limit refused first.
#[test]
fn tightest_numbers_are_those_of_a_limit_alone() {
    let narrow = "\n[limit.narrow]\nalgorithm = \"fixed_window\"\nrate = \"1/min\"\nkey = \"ip\"\n";
    let dir = Dir::new(&(CONFIG.replace("\"per-ip\", \"per-key\"", "\"narrow\", \"per-ip\"") + narrow));
    let (code, stdout, _) = dir.replay(&["-"], COMBINED.as_bytes());
    let expected = "  requests  5 of 2 keys\n  refused   0 (0.0 %) of 0 keys\n  \
                tightest  burst 3 at 1 per 1 s, as the only limit, would have refused nobody\n  \
                note      3 requests were refused by other limits only: tightest counts them, too\n";
    assert!(code == 0 && stdout.contains(expected), "{stdout}");
    assert_eq!(dir.json(&["-"], COMBINED.as_bytes())["limits"][0]["refused_by_others"], 3);
}

#[test]
fn an_empty_log_is_reported() {
    let dir = Dir::new(CONFIG);
    dir.write("access.log", b"");
    let expected = "access.log: empty\nno requests, so no result for the limits\n";
    let error = "error: the logs contain no requests\n";
    assert_eq!(dir.replay(&["access.log"], b""), (1, expected.to_owned(), error.to_owned()));
    dir.write("full.log", COMBINED.as_bytes());
    let (_, stdout, _) = dir.replay(&["access.log", "full.log"], b"");
    assert!(stdout.starts_with("access.log: empty\nfull.log: 8 lines, combined, 1 bad\n"), "{stdout}");
}

/// Limits of each kind that a log of the gateway's own cannot tell, or only for some requests.
#[test]
fn limits_without_their_values_in_the_log_are_not_evaluated() {
    let plain =
        "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [LIMITS]\n\n[limit.own]\nrate = \"1/h\"\nburst = 1\n";
    let line = |method: &str, query: &str| {
        json!({
            "time": "2026-01-02T03:04:05.000Z", "client": "192.0.2.1", "method": method, "host": "a.example",
            "path": "/", "query": query, "route": "/", "status": 200, "duration_ms": 1.5,
        })
        .to_string()
            + "\n"
    };
    let log = [line("GET", "k=1"), line("GET", "k=***"), line("POST", "k=1"), line("POST", "k=***")].concat();
    // Lines of the limit, evaluated requests, refusals, and requests that are not evaluated, by the value that the log
    // lacks.
    for (lines, counted, refused, unknown) in [
        ("key = \"header:authorization\"", 0, 0, json!({ "header:authorization": 4 })),
        ("key = \"header:authorization\"\nmissing = \"refuse\"", 0, 0, json!({ "header:authorization": 4 })),
        ("key = \"header:authorization\"\nmissing = \"skip\"", 0, 0, json!({ "header:authorization": 4 })),
        ("key = [\"ip\", \"cookie:sid\"]", 0, 0, json!({ "cookie:sid": 4 })),
        ("key = [\"form:user\", \"json:/user\"]", 0, 0, json!({ "form:user": 4 })),
        ("key = \"ip\"\nwhen = { header = { upgrade = \"websocket\" } }", 0, 0, json!({ "header:upgrade": 4 })),
        ("key = \"ip\"\nwhen = { header = { upgrade = \"!websocket\" } }", 0, 0, json!({ "header:upgrade": 4 })),
        // If another condition fails, the limit does not apply, whatever the header is.
        (
            "key = \"ip\"\nwhen = { method = \"POST\", header = { upgrade = \"websocket\" } }",
            0,
            0,
            json!({ "header:upgrade": 2 }),
        ),
        ("key = \"ip\"\nwhen = { method = \"POST\" }", 2, 1, json!({})),
        // A masked value is unknown; a query without the parameter is known.
        ("key = \"query:k\"", 2, 1, json!({ "query:k": 2 })),
        ("key = \"query:other\"", 4, 3, json!({})),
        ("key = \"header:user-agent\"", 4, 3, json!({})),
    ] {
        let dir = Dir::new(&(plain.replace("LIMITS", "\"own\"") + lines + "\n"));
        let (code, stdout, stderr) = dir.replay(&["-", "--format", "json", "--verdicts", "out"], log.as_bytes());
        let response: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let (own, requests) = (&response["limits"][0], &response["requests"]);
        let skipped: u64 = unknown.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(own["not_evaluated"], json!({ "requests": skipped, "sources": unknown }), "{lines}");
        assert_eq!((&own["requests"], &own["refused"]), (&json!(counted), &json!(refused)), "{lines}");
        let expected = (json!(4 - skipped - refused), json!(refused), json!(skipped));
        assert_eq!(
            (&requests["admitted"], &requests["refused"], &requests["not_evaluated"]),
            (&expected.0, &expected.1, &expected.2),
            "{lines}"
        );
        let verdicts = fs::read_to_string(dir.0.path().join("out")).unwrap();
        let named = verdicts.lines().filter(|line| line.contains("\"not_evaluated\":[\"own\"]")).count() as u64;
        assert_eq!((named, verdicts.lines().count() as u64), (skipped, skipped + refused), "{lines}: {verdicts}");
        let nothing = skipped == 4;
        assert_eq!(code, i32::from(nothing), "{lines}: {stderr}");
        assert_eq!(stderr.contains("no request could be evaluated: limits read "), nothing, "{stderr}");
    }

    // Beside another limit, or in shadow mode, it leaves the decision to the limits that can be evaluated.
    let second = "key = \"header:x\"\n[limit.per-ip]\nrate = \"1/h\"\nburst = 3\nkey = \"ip\"\n";
    let beside = Dir::new(&(plain.replace("LIMITS", "\"own\", \"per-ip\"") + second));
    let (code, stdout, _) = beside.replay(&["-", "--plot", "out.svg"], log.as_bytes());
    assert!(code == 0 && stdout.contains("4 requests: 0 admitted, 1 refused (25.0 %), 3 not evaluated\n"), "{stdout}");
    let svg = fs::read_to_string(beside.0.path().join("out.svg")).unwrap();
    assert!(
        svg.contains(">not evaluated, not drawn: 3</text>") && svg.contains(">refused: 1 (25.0 %)</text>"),
        "{svg}"
    );
    let shadow = plain.replace("LIMITS", "\"own\", \"per-ip\"") + "mode = \"shadow\"\n" + second;
    let (code, stdout, _) = Dir::new(&shadow).replay(&["-"], log.as_bytes());
    assert!(code == 0 && stdout.contains("4 requests: 3 admitted, 1 refused (25.0 %)\n"), "{stdout}");
    assert!(stdout.contains("  note      4 requests not evaluated: header:x is not in the log\n"), "{stdout}");

    // A dependent limit would decide in place of its base, so neither can be evaluated.
    let after = plain.replace("LIMITS", "\"per-ip\", \"own\"") + "after = \"per-ip\"\n" + second;
    let (code, stdout, stderr) = Dir::new(&after).replay(&["-"], log.as_bytes());
    assert!(
        code == 1 && stdout.contains("4 requests: 0 admitted, 0 refused (0.0 %), 4 not evaluated\n"),
        "{stdout}{stderr}"
    );
}
