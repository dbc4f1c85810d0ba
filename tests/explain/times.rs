//! Conditions about the time and months with days of their own, at times that the commands state.

use std::fs;

use serde_json::Value;

use super::run;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;

const OFFICE: &str = "[[route]]\nname = \"r\"\nrespond = {}\nlimits = [\"office\"]\n[limit.office]\nalgorithm = \"fixed_window\"\nrate = \"1/h\"\n\
    when = { time = [\"08:00-12:00\", \"22:00-02:00\"], days = \"mon-fri\", zone = \"Europe/Berlin\" }\n";
const MONTHS: &str = "[[route]]\nname = \"r\"\nrespond = {}\nlimits = [\"months\"]\n[limit.months]\nalgorithm = \"calendar\"\n\
    rate = \"1/month\"\nkey = \"header:x-k\"\nresets_on = \"header:x-day\"\noverrides = [{ key = \"o\", resets_on = 31 }]\n";

fn explain_at(config: &str, time: &str, headers: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sluicegate.toml"), config).unwrap();
    let mut arguments = vec!["explain", "--format", "json", "--at", time, "GET", "http://x/"];
    headers.iter().for_each(|header| arguments.extend(["-H", header]));
    let (_, output, errors) = run(dir.path(), &arguments);
    serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}{errors}"))
}

#[test]
fn explain_shows_the_time_that_it_compared() {
    for (time, effect, local) in [
        ("2026-11-30T07:00:00Z", "admits", "mon 2026-11-30 08:00"),
        ("2026-11-30T12:00:00+01:00", "skipped", "mon 2026-11-30 12:00"),
        // Friday night, and the night of Sunday.
        ("2026-12-05T00:59:00Z", "admits", "sat 2026-12-05 01:59"),
        ("2026-11-30T00:30:00+01:00", "skipped", "mon 2026-11-30 00:30"),
    ] {
        let limit = &explain_at(OFFICE, time, &[])["limits"][0];
        assert_eq!(limit["effect"], effect, "{time}: {limit}");
        let condition = &limit["conditions"][0];
        assert_eq!(condition["source"], "time", "{limit}");
        assert!(condition["found"].as_str().unwrap().starts_with(local), "{condition}");
        assert!(condition["expected"].as_str().unwrap().contains("(Europe/Berlin)"), "{condition}");
    }
}

#[test]
fn cases_and_logs_have_their_own_time() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sluicegate.toml"), OFFICE).unwrap();
    let cases = "start = \"2026-11-30T11:30:00+01:00\"\n\
        [[case]]\nrequest = \"GET http://x/\"\nexpect = { decision = \"admit\" }\n\
        [[case]]\nrequest = \"GET http://x/\"\nexpect = { decision = \"refuse\" }\n\
        [[case]]\nrequest = \"GET http://x/\"\nat = \"+29m\"\nrepeat = 3\nexpect = { decision = \"refuse\" }\n\
        [[case]]\nrequest = \"GET http://x/\"\nat = \"+1m\"\nrepeat = 3\nexpect = { decision = \"admit\" }\n";
    fs::write(dir.path().join("cases.toml"), cases).unwrap();
    let (code, output, errors) = run(dir.path(), &["test", "cases.toml"]);
    assert_eq!(code, 0, "{output}{errors}");
    let line = |time: &str| format!("192.0.2.1 - - [30/Nov/2026:{time} +0100] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n");
    let log: String = ["11:58:00", "11:59:00", "11:59:59", "12:00:00", "12:00:01"].map(line).concat();
    fs::write(dir.path().join("access.log"), log).unwrap();
    let (code, output, errors) = run(dir.path(), &["replay", "--format", "json", "access.log"]);
    assert_eq!(code, 0, "{output}{errors}");
    let report: Value = serde_json::from_str(&output).unwrap();
    let limit = report["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "office").unwrap();
    assert_eq!(limit["refused"], 2, "{limit}");
}

#[test]
fn a_month_begins_on_the_day_of_its_key() {
    for (headers, window_days, end) in [
        (&["x-k: a", "x-day: 17"][..], 30, "2026-12-17"),
        (&["x-k: a"], 30, "2026-12-01"),
        (&["x-k: a", "x-day: 0"], 30, "2026-12-01"),
        (&["x-k: a", "x-day: 31"], 30, "2026-11-30"),
        (&["x-k: o", "x-day: 17"], 30, "2026-11-30"),
    ] {
        let limit = &explain_at(MONTHS, "2026-11-20T00:00:00Z", headers)["limits"][0];
        let state = &limit["state"];
        let now: jiff::Timestamp = "2026-11-20T00:00:00Z".parse().unwrap();
        let reset = now.as_millisecond() + state["reset_ms"].as_i64().unwrap();
        let reset = jiff::Timestamp::from_millisecond(reset).unwrap().to_string();
        assert!(reset.starts_with(end), "{headers:?}: {reset}, {limit}");
        assert_eq!(state["window_ms"].as_i64().unwrap() / 86_400_000, window_days, "{headers:?}");
    }
}

/// With Redis and in memory, `Retry-After` ends with the month of the key.
#[test]
fn the_wait_ends_with_the_month_of_the_key() {
    let redis = RedisServer::start(&[]);
    let store = redis.store();
    for store in [String::new(), store] {
        let gateway = Gateway::start(&format!("{store}{MONTHS}"));
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
        let day = if now.day() == 28 { 1 } else { now.day() + 1 }.clamp(1, 28);
        let fields = format!("x-k: a\r\nx-day: {day}\r\n");
        assert_eq!(gateway.fetch(&get("/", &fields)).status(), 200);
        let before = jiff::Timestamp::now();
        let refused = gateway.fetch(&get("/", &fields));
        let after = jiff::Timestamp::now();
        assert_eq!(refused.status(), 429);
        let wait = jiff::SignedDuration::from_secs(refused.get("retry-after").unwrap().parse().unwrap());
        let end = (after + wait).to_zoned(jiff::tz::TimeZone::UTC).start_of_day().unwrap();
        assert_eq!(end.day(), day, "{wait:?}");
        assert!(before + wait < end.timestamp() + jiff::SignedDuration::from_secs(1), "{wait:?} too long");
    }
}
