//! `GET /-/live`: events that agree with the metrics, for many viewers, and without harm by those who do not read.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config};
use crate::support::wait_until;

const ROUTES: &str = r#"
[limit.one]
rate = "1/h"
burst = 1
key = "ip"

[limit.watched]
rate = "1/h"
burst = 1
key = "ip"
mode = "shadow"

[[route]]
name = "api"
path = "/"
upstream = "echo:"
limits = ["one", "watched"]
"#;

/// Streams at once of one peer, without tokens.
const STREAMS: usize = 8;

/// An open stream.
struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Opens the stream; the response has the status `status`.
    #[track_caller]
    fn open(gateway: &Gateway, fields: &str, status: u16) -> Stream {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET /-/live HTTP/1.1\r\nhost: {}\r\n{fields}\r\n", gateway.admin));
        let stream = client.into_stream();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut stream = Stream(BufReader::new(stream));
        let head = stream.line();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// The next event; `None` at the end of the stream.
    fn event(&mut self) -> Option<Value> {
        loop {
            let line = self.line();
            if line.is_empty() || line == "0\r\n" {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                assert!(data.len() <= 16 * 1024, "{} bytes", data.len());
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }

    /// The first event for which `wanted` is true.
    #[track_caller]
    fn read_until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..20 {
            let event = self.event().expect("the stream ended");
            if wanted(&event) {
                return event;
            }
        }
        panic!("no such event");
    }
}

#[test]
fn events_have_the_numbers_of_the_metrics() {
    let gateway = Gateway::start(ROUTES);
    let mut stream = Stream::open(&gateway, "", 200);
    stream.event();
    for status in [200, 429, 429] {
        assert_eq!(gateway.get("/").status(), status);
    }
    let event = stream.read_until(|event| event["requests"]["total"] == 3);
    let requests = &event["requests"];
    assert_eq!((&requests["refused_total"], &requests["failed_total"]), (&2.into(), &0.into()), "{event}");
    assert!(requests["per_second"].as_f64().unwrap() > 0.0 && requests["p50_ms"].as_f64().unwrap() > 0.0, "{event}");
    gateway.assert_metric("rejections_total", &[("limit", "one"), ("reason", "exhausted"), ("route", "api")], 2.0);
    let limit =
        |name: &str| event["limits"]["list"].as_array().unwrap().iter().find(|one| one["limit"] == name).unwrap();
    assert_eq!((&limit("one")["refused_total"], &limit("one")["mode"]), (&2.into(), &"enforce".into()), "{event}");
    assert!(limit("one")["refused_per_second"].as_f64().unwrap() > 0.0, "{event}");
    assert_eq!(limit("watched")["mode"], "shadow");
    assert_eq!(
        (&event["store"]["up"], &event["generation"], &event["lifecycle"]),
        (&true.into(), &1.into(), &"ready".into())
    );
    assert_eq!(event["last_reload"], Value::Null);
}

/// Whoever opens the dashboard after something happened sees what it was.
#[test]
fn the_past_is_there_before_anybody_looks() {
    let gateway = Gateway::with_config(&config("", ROUTES));
    for _ in 0..8 {
        gateway.fetch(&get("/", ""));
    }
    let past = || gateway.admin("/-/history?minutes=5").json();
    wait_until("a sample of the requests", || {
        past()["requests_per_second"].as_array().is_some_and(|rates| rates.iter().any(|rate| rate.as_f64() > Some(0.0)))
    });
    let found = past();
    assert_eq!((&found["step_seconds"], &found["marks"][0]["kind"]), (&json!(5), &json!("start")));
    let refused = found["refused_per_second"].as_array().unwrap().iter().filter_map(Value::as_f64).sum::<f64>();
    assert!(refused > 0.0, "{found}");
    let now = gateway.admin("/-/traffic").json();
    let route = now["routes"].as_array().unwrap().iter().find(|route| route["requests_total"] == 8).unwrap();
    assert!(route["too_many_per_second"].as_f64() > Some(0.0), "{now}");
    assert_eq!(gateway.admin("/-/history?minutes=61").status(), 400);
}

#[test]
fn a_rejected_config_is_in_the_event_and_a_new_one_ends_the_stream() {
    let gateway = Gateway::start(ROUTES);
    let mut stream = Stream::open(&gateway, "", 200);
    stream.event();
    let valid = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.write_config(&valid.replace("1/h", "1/hour-or-so"));
    assert_eq!(gateway.admin_request("POST", "/-/reload", "", "").status(), 422);
    let event = stream.read_until(|event| event["last_reload"]["result"] == "failure");
    let mistakes = event["last_reload"]["diagnostics"].as_array().unwrap();
    assert!(mistakes[0]["line"].is_u64() && mistakes[0]["message"].is_string(), "{event}");
    // Access is checked again after the config changed.
    assert_eq!(gateway.reload(&valid.replace("burst = 1", "burst = 2")).status(), 200);
    while stream.event().is_some() {}
    assert_eq!(Stream::open(&gateway, "", 200).event().unwrap()["generation"], 2);
}

#[test]
fn only_authorized_clients_get_a_stream() {
    let gateway = Gateway::with_config(&config("", ROUTES).replace("[admin]\n", "[admin]\ntoken = \"hush\"\n"));
    Stream::open(&gateway, "", 401);
    Stream::open(&gateway, "authorization: Bearer hush\r\n", 200).event().unwrap();
    let open = Gateway::start(ROUTES);
    // A page of another site would occupy the slots.
    Stream::open(&open, "sec-fetch-site: cross-site\r\n", 403);
    Stream::open(&open, "origin: http://evil.example\r\n", 403);
}

#[test]
fn viewers_that_do_not_read_harm_nobody() {
    let gateway = Gateway::start(ROUTES);
    let silent: Vec<Stream> = (1..STREAMS).map(|_| Stream::open(&gateway, "", 200)).collect();
    let mut reads = Stream::open(&gateway, "", 200);
    let refused = gateway.admin_request("GET", "/-/live", "", "");
    assert_eq!((refused.status(), refused.get("retry-after")), (503, Some("1")), "{}", refused.text());
    for _ in 0..3 {
        reads.event().unwrap();
    }
    assert_eq!(gateway.admin("/livez").status(), 200);
    // Their slots are free once they leave.
    drop(silent);
    wait_until("a slot is free", || {
        let mut client = Client::connect(gateway.admin);
        client.send(format!("GET /-/live HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.admin));
        client.try_read_head().is_ok_and(|head| head.status() == 200)
    });
}

#[test]
fn an_event_is_small_however_large_the_config_is() {
    let long = "n".repeat(60);
    let mut routes = String::new();
    for number in 0..200 {
        routes.push_str(&format!(
            "[limit.{long}-{number}]\nrate = \"1/s\"\n\n[upstream.{long}-{number}]\nservers = [\"http://127.0.0.1:1/\"]\n\
             health = {{ path = \"/\", every = \"1s\", unhealthy_after = 1 }}\n\n[[route]]\npath = \"/{number}\"\n\
             upstream = \"{long}-{number}\"\nlimits = [\"{long}-{number}\"]\n\n"
        ));
    }
    let gateway = Gateway::start(&routes);
    let mut stream = Stream::open(&gateway, "", 200);
    let event = stream.read_until(|event| event["servers"]["unhealthy_count"] == 200);
    assert_eq!((&event["limits"]["count"], &event["servers"]["fail_open_count"]), (&200.into(), &200.into()));
    assert!(!event["limits"]["list"].as_array().unwrap().is_empty());
    assert!(!event["servers"]["unhealthy"].as_array().unwrap().is_empty());
}
