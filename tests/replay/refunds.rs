//! Refunds at the end of a request on the time line of the log, and the report where the log lacks the data.

use std::collections::HashMap;

use serde_json::Value;

use super::generated_log::{ReplayedRequest, config, log, traffic};
use super::reports::COMBINED;
use super::workdir::Dir;

/// Counts of each client: charged at the start, refunded at the end.
struct Window {
    start_ms: i64,
    count: i64,
}

const WINDOW_MS: i64 = 5000;

/// The limit has six units in five seconds from the first request on; `keeps` returns true for statuses that are
/// charged.
fn agree(limit: &str, keeps: fn(u16) -> bool) {
    let limit = format!("algorithm = \"fixed_window\"\nrate = \"6/5s\"\n{limit}");
    let (text, asked) = log(traffic(11, 1500, 900), true);
    let verdicts = Dir::new(&config(&limit)).verdicts(&text);
    let mut windows: HashMap<u32, Window> = HashMap::new();
    let mut under_way: Vec<(i64, i64, ReplayedRequest)> = Vec::new();
    let mut refused = 0;
    for (line, asked) in asked {
        let now = asked.at_ms;
        under_way.retain(|(end_ms, start_ms, ended)| {
            let window = windows.get_mut(&ended.client).unwrap();
            let same = window.start_ms == *start_ms && *end_ms < start_ms + WINDOW_MS;
            if *end_ms <= now && same && !keeps(ended.status) {
                window.count -= ended.cost;
            }
            *end_ms > now
        });
        let window = windows.entry(asked.client).or_insert(Window { start_ms: now, count: 0 });
        if now >= window.start_ms + WINDOW_MS {
            *window = Window { start_ms: now, count: 0 };
        }
        let admitted = window.count + asked.cost <= 6;
        assert_eq!(!verdicts.contains_key(&line), admitted, "{limit}: line {line}: {asked:?} after {}", window.count);
        if admitted {
            window.count += asked.cost;
            under_way.push((now + asked.duration_ms, window.start_ms, asked));
        } else {
            refused += 1;
        }
    }
    assert!((100..1400).contains(&refused), "{refused}");
}

#[test]
fn charge_on_refunds_at_the_end() {
    // A client that left stays charged.
    agree("charge_on = [401]", |status| matches!(status, 401 | 499));
}

#[test]
fn refund_on_refunds_at_the_end() {
    agree("refund_on = [\"5xx\", \"client_abort\"]", |status| !matches!(status, 503 | 499));
}

#[test]
fn a_refused_request_gives_a_shadow_limit_back_by_its_refusal() {
    let dir = Dir::new(
        "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"hard\", \"soft\"]\n[limit.hard]\nrate = \"1/h\"\n\
         [limit.soft]\nalgorithm = \"fixed_window\"\nrate = \"2/h\"\nmode = \"shadow\"\nrefund_on = [429]\n",
    );
    let line = COMBINED.lines().next().unwrap().to_owned() + "\n";
    dir.write("access.log", line.repeat(5).as_bytes());
    let response = dir.json(&["access.log"], b"");
    let limits: Vec<(i64, i64)> = response["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| (limit["refused"].as_i64().unwrap(), limit["returned"].as_i64().unwrap()))
        .collect();
    assert_eq!(limits, [(4, 0), (0, 4)], "four are refused, and their charges to the other limit are refunded");
    assert_eq!(response["limits"][1]["tightest"]["value"], 5, "if nothing had been refused");
}

#[test]
fn nginx_logs_the_end_and_request_time_tells_the_start() {
    // Two requests start at 13:55:34, and the third at half past 35, when both have run for longer than a lease.
    let line = |second: u32, seconds: &str| {
        format!("192.0.2.1 - - [10/Oct/2000:13:55:{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"{seconds}\n")
    };
    let log = line(36, " 2.000") + &line(37, " 3.000") + &line(38, " 2.500");
    let concurrency = |limit: &str| config(limit).replace("cost = \"query:cost\"\n", "");
    let dir = Dir::new(&concurrency("algorithm = \"concurrency\"\nin_flight = 1\nlease = \"1s\""));
    let response = dir.json(&["-"], log.as_bytes());
    let counts = |response: &Value| {
        (response["requests"]["refused"].clone(), response["limits"][0]["tightest"]["value"].clone())
    };
    assert_eq!(counts(&response), (2.into(), 3.into()), "{response}");
    assert_eq!(
        (&response["from"], &response["to"]),
        (&"2000-10-10T13:55:34Z".into(), &"2000-10-10T13:55:35.5Z".into())
    );
    let plain = dir.json(&["-"], (line(36, "") + &line(36, "")).as_bytes());
    assert_eq!(counts(&plain), (0.into(), Value::Null), "taken as ended at once: {plain}");
}

#[test]
fn missing_log_fields_are_reported() {
    let config = |limit: &str| config(limit).replace("cost = \"query:cost\"\n", "");
    let line = |status: u16, end: &str| {
        format!("192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" {status} 5 \"-\" \"-\"{end}\n")
    };
    let plain = line(200, "");
    for (limit, log, note) in [
        (
            "algorithm = \"concurrency\"\nin_flight = 2",
            &plain,
            "  tightest  none: the log contains no durations\n  \
             note      the log contains no durations: every request was treated as ending immediately\n",
        ),
        (
            "algorithm = \"concurrency\"\nin_flight = 2",
            &(line(200, " 1.100") + &plain),
            "  note      1 requests without a duration were treated as ending immediately\n",
        ),
        (
            "rate = \"1/s\"\nsettle = \"header:x-actual-cost\"",
            &plain,
            "  note      settle: the log does not contain the response (header:x-actual-cost): costs stay as requested\n",
        ),
        (
            "rate = \"1/s\"\nrefund_on = [\"connect_error\"]",
            &line(502, ""),
            "  note      1 requests with a response 502 to 504 stay charged: the log does not show whether connect_error was the cause\n",
        ),
        (
            "rate = \"1/s\"\ncharge_on = [401]",
            &line(0, "").replace(" 0 5", " 000 5"),
            "  note      1 requests without status stay charged\n",
        ),
        ("rate = \"1/s\"\ncharge_on = [401]", &plain, "  returned  1 charges, by the status logged\n"),
        (
            "algorithm = \"leaky_bucket\"\nrate = \"1/s\"\nqueue = \"5s\"",
            &plain.repeat(3),
            "  delayed   2, by 2 s at most\n",
        ),
    ] {
        let (code, stdout, stderr) = Dir::new(&config(limit)).replay(&["-"], log.as_bytes());
        assert!(code == 0 && stdout.contains(note), "{limit}: {stdout}{stderr}");
    }
}

/// Forty requests of 20 ms, one after the other: never two at once, which milliseconds show and seconds do not.
#[test]
fn concurrency_is_not_evaluated_on_whole_seconds() {
    let limit = config("algorithm = \"concurrency\"\nin_flight = 1").replace("cost = \"query:cost\"\n", "");
    let dir = Dir::new(&limit);
    let at = |i: i64| 971_186_136_000 + i * 25;
    let stamped = |i: i64, seconds: &str, end: &str| {
        let stamp = if seconds.is_empty() {
            format!("10/Oct/2000:13:55:{} +0000", at(i) / 1000 % 60)
        } else {
            seconds.to_owned()
        };
        format!("192.0.2.1 - - [{stamp}] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\" 0.020{end}\n")
    };
    let msec = |i: i64| format!("{}.{:03}", at(i) / 1000, at(i) % 1000);
    let log = |line: &dyn Fn(i64) -> String| (0..40).map(line).collect::<String>();
    for fine in [log(&|i| stamped(i, &msec(i), "")), log(&|i| stamped(i, "", &format!(" {}", msec(i))))] {
        let response = dir.json(&["-"], fine.as_bytes());
        let limit = &response["limits"][0];
        assert_eq!((&limit["refused"], &limit["tightest"]["value"]), (&0.into(), &1.into()), "{response}");
        assert_eq!((&response["whole_seconds"], &limit["not_in_log"]["blurred"]), (&false.into(), &0.into()));
    }
    let coarse = log(&|i| stamped(i, "", ""));
    let response = dir.json(&["-"], coarse.as_bytes());
    assert_eq!(
        (&response["requests"]["refused"], &response["limits"][0]["refused"]),
        (&0.into(), &Value::Null),
        "{response}"
    );
    let (_, stdout, _) = dir.replay(&["-"], coarse.as_bytes());
    for line in [
        "  refused   unknown: the log does not show which requests ran at the same time\n",
        "  tightest  none: the log has whole seconds, and requests were shorter\n",
        "  note      40 requests took less than the second that their time stamps can tell apart",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    // A few short requests among long ones do not prevent the evaluation, but are reported.
    let long = "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\" 2.500\n";
    let (_, stdout, _) = dir.replay(&["-"], (long.repeat(9) + &stamped(0, "", "")).as_bytes());
    assert!(
        stdout.contains("  refused   8 (88.9 %)") && stdout.contains("  tightest  at least in_flight 9,"),
        "{stdout}"
    );
}
