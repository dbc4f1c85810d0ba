//! Log lines about failures: the gateway's own log, which is sampled, and the access log.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::gateway::{Gateway, program};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::{WAIT_MAX, wait_until};

fn route_to(url: &str, more: &str) -> String {
    format!(
        "[upstream.app]\nservers = [\"{url}\"]\n[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"app\"\n{more}\n"
    )
}

#[test]
fn every_failure_of_an_upstream_is_logged_once_and_then_sampled() {
    let garbage = Upstream::fixed("nonsense\r\n\r\n");
    let aborting = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
    });
    let silent = Upstream::silent();
    let stalled = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")?;
        peer.wait_for_end()
    });
    let closed = format!("http://{}", closed_addr());
    for (url, more, kind, times) in [
        (closed, "", "connect", 30),
        (garbage.url(), "", "broken", 5),
        (silent.url(), "response_timeout = \"50ms\"", "timeout", 3),
        (aborting.url(), "", "cut_off", 5),
        (stalled.url(), "stream_timeout = \"50ms\"", "stalled", 3),
    ] {
        let gateway = Gateway::with("workers = 2", &route_to(&url, more));
        let server = url.strip_prefix("http://").unwrap();
        let words = ["WARN", "upstream=\"app\"", &format!("server=\"{server}\""), &format!("kind=\"{kind}\"")];
        for _ in 0..times {
            let mut client = gateway.client();
            client.send(get("/", ""));
            let _ = client.try_read_response("GET");
        }
        wait_until("the log says so", || gateway.log_lines(&words) > 0);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(gateway.log_lines(&words), 1, "{kind}: {}", gateway.log());
        assert_eq!(gateway.log_lines(&["upstream request failed"]), 1, "{kind}: {}", gateway.log());
    }
}

#[test]
fn invalid_requests_are_counted_by_kind_and_other_protocols_are_named() {
    let gateway = Gateway::with("http2 = false", "[[route]]\npath = \"/\"\nrespond = { }\n");
    let hello = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 and so on";
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(40_000));
    let cases: [(&str, &[u8], Option<&str>); 4] = [
        ("tls_hello", hello, Some("TLS")),
        ("http2_preface", preface, Some("HTTP/2")),
        ("malformed_head", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", None),
        ("head_too_large", large.as_bytes(), None),
    ];
    for (reason, bytes, named) in cases {
        for _ in 0..2 {
            let mut client = gateway.client();
            let _ = client.try_send(bytes);
            let _ = client.try_read_response("GET");
        }
        gateway.assert_metric("http_rejected_total", &[("reason", reason)], 2.0);
        let told = format!("reason=\"{reason}\" listener=\"127.0.0.1:0\" client=127.0.0.1");
        assert_eq!(gateway.log_lines(&["WARN", &told]), usize::from(named.is_some()), "{}", gateway.log());
        if let Some(named) = named {
            assert_eq!(gateway.log_lines(&[&told, &format!("a client speaks {named} on a listener without it")]), 1);
        }
    }
}

/// A gateway that writes its access log to a file; `more` are further keys of the log's table.
pub fn logged(server: &str, more: &str, config: &str) -> Gateway {
    Gateway::with(&format!("{server}\naccess_log = {{ to = \"access.log\"{more} }}"), config)
}

/// Returns the lines of its access log when there are `count`.
#[track_caller]
fn access(gateway: &Gateway, count: usize) -> Vec<String> {
    let path = gateway.dir.path().join("access.log");
    let read = || fs::read_to_string(&path).unwrap_or_default();
    wait_until("the lines are written", || read().lines().count() >= count);
    let lines: Vec<String> = read().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

/// Returns the lines as JSON.
#[track_caller]
pub fn entries(gateway: &Gateway, count: usize) -> Vec<Value> {
    access(gateway, count).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
pub fn assert_entry(entry: &Value, expected: Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&entry[name], value, "{name} in {entry}");
    }
}

#[test]
fn a_line_contains_all_fields_of_a_request() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send(ok("hello"))?;
        }
        Ok(())
    });
    let limits = "[limit.burst]\nkey = \"ip\"\nrate = \"1/h\"\nburst = 1\n";
    let config = format!("{limits}{}", route_to(&upstream.url(), "limits = [\"burst\"]"));
    let gateway = logged("answer_request_id = true", "", &config);
    let fields = "user-agent: a \"b\"\r\nreferer: https://x/?a=1&token=y\r\n\
                  traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    let head = post("/p/../q?a=1&Api_Key=secret", 4, fields);
    let mut client = gateway.client();
    let response = client.fetch(&head, "body");
    assert_eq!((response.status(), client.fetch(&get("/", ""), "").status()), (200, 429));
    let [admitted, refused]: [Value; 2] = entries(&gateway, 2).try_into().unwrap();
    assert_entry(
        &admitted,
        json!({
            "request_id": response.get("x-request-id").unwrap(), "client": "127.0.0.1", "method": "POST", "host": "a.test",
            "path": "/q", "query": "a=1&Api_Key=***", "protocol": "HTTP/1.1", "tls": null, "status": 200,
            "reason": null, "setting": null, "limit": "burst", "decision": "allow", "refused_by": null,
            "upstream": "app", "server": upstream.url().strip_prefix("http://").unwrap(), "tries": 1, "bytes": 5,
            "bytes_in": 4, "bytes_uncompressed": null, "user_agent": "a \"b\"", "referer": "https://x/?a=1&token=***",
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        }),
    );
    assert!(admitted["upstream_ms"].as_f64().unwrap() <= admitted["duration_ms"].as_f64().unwrap(), "{admitted}");
    assert_entry(
        &refused,
        json!({ "status": 429, "reason": "exhausted", "limit": "burst", "decision": "deny", "refused_by": "burst",
                "server": null, "tries": 0, "upstream_ms": null, "user_agent": null }),
    );
    let told = upstream.request();
    assert_eq!(told.get("x-request-id"), response.get("x-request-id"));
}

#[test]
fn every_end_of_a_request_is_logged_with_its_setting() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.head()? {
            match request.target() {
                "/broken" => return Ok(()),
                "/cut" => return peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome"),
                "/stall" => {
                    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")?;
                    return peer.wait_for_end();
                }
                "/late" | "/upload" | "/leave" => return peer.wait_for_end(),
                _ => peer.send(ok("hello"))?,
            }
        }
        Ok(())
    });
    let server = "header_timeout = \"300ms\"\nbody_timeout = \"300ms\"\n\
                  stream_timeout = \"300ms\"\nmax_body = 1000\nhalf_close_timeout = \"0s\"";
    let late = "[[route]]\npath = \"/late\"\nupstream = \"app\"\nresponse_timeout = \"300ms\"\n";
    let full = "[[route]]\npath = \"/full\"\nrespond = { }\ndeny = [\"127.0.0.0/8\"]\n";
    let gateway = logged(server, "", &format!("{}{late}{full}", route_to(&upstream.url(), "")));
    let large = format!("GET /large HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(40_000));
    let upload = post("/upload", 100, "");
    let cases: [(&[u8], u64, Value, Value, &str); 16] = [
        (b"GET /ok HTTP/1.1\r\nhost: a\r\n\r\n", 200, Value::Null, Value::Null, "/ok"),
        (b"GET /a%2Fb HTTP/1.1\r\nhost: a\r\n\r\n", 400, "path_slash".into(), "encoded_slashes".into(), "/a%2Fb"),
        (b"GET /end HTTP/1.1\nhost: a\r\n\r\n", 400, "line_end".into(), "strictness".into(), "/end"),
        (b"GET /no HTTP/1.1\r\nno colon\r\n\r\n", 400, "malformed_head".into(), Value::Null, "/no"),
        (large.as_bytes(), 431, "head_too_large".into(), "max_header_bytes".into(), "/large"),
        (b"\x16\x03\x01\x02\x00\x01", 400, "tls_hello".into(), "tls".into(), ""),
        (b"GET /half HTTP/1.1\r\nhost", 408, "header_timeout".into(), "header_timeout".into(), ""),
        (
            b"POST /big HTTP/1.1\r\nhost: a\r\ncontent-length: 2000\r\n\r\n",
            413,
            "body_too_large".into(),
            "max_body".into(),
            "/big",
        ),
        (b"GET /full HTTP/1.1\r\nhost: a\r\n\r\n", 403, "denied".into(), "deny".into(), "/full"),
        (b"GET /late HTTP/1.1\r\nhost: a\r\n\r\n", 504, "upstream_timeout".into(), "response_timeout".into(), "/late"),
        (b"GET /broken HTTP/1.1\r\nhost: a\r\n\r\n", 502, "upstream_broken".into(), Value::Null, "/broken"),
        (b"GET /cut HTTP/1.1\r\nhost: a\r\n\r\n", 200, "upstream_cut_off".into(), Value::Null, "/cut"),
        (b"GET /stall HTTP/1.1\r\nhost: a\r\n\r\n", 200, "stream_timeout".into(), "stream_timeout".into(), "/stall"),
        (upload.as_bytes(), 408, "body_timeout".into(), "body_timeout".into(), "/upload"),
        (
            b"POST /upload HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            400,
            "body_malformed".into(),
            Value::Null,
            "/upload",
        ),
        (b"BREW /tea HTTP/3.7\r\nhost: a\r\n\r\n", 400, "malformed_head".into(), Value::Null, "/tea"),
    ];
    for (number, (bytes, status, reason, setting, path)) in cases.iter().enumerate() {
        let mut client = gateway.client();
        let _ = client.try_send(bytes);
        let _ = client.try_read_response("GET");
        let entry = entries(&gateway, number + 1).pop().unwrap();
        let expected = json!({ "status": status, "reason": reason, "setting": setting });
        assert_entry(&entry, expected);
        if !path.is_empty() {
            assert_eq!(entry["path"], *path, "{entry}");
        }
    }

    // A client that leaves: in its head, in its body, and before its response.
    let done = cases.len();
    for (number, sent) in ["GET /gone HTTP/1.1\r\nho", &post("/leave", 100, ""), &get("/leave", "")].iter().enumerate()
    {
        let mut client = gateway.client();
        client.send(sent);
        std::thread::sleep(Duration::from_millis(50));
        drop(client);
        let entry = entries(&gateway, done + number + 1).pop().unwrap();
        assert_entry(&entry, json!({ "status": 499, "reason": "client_left", "setting": null }));
    }
    let left = [("code", "499"), ("method", "POST"), ("route", "app")];
    gateway.assert_metric("requests_total", &left, 1.0);
}

#[test]
fn no_client_writes_a_line_of_its_own() {
    let fields = "user-agent: a\tb\u{e9} \"x\" - - [\r\nreferer: \u{9b}2J\\\r\n";
    let head = format!("GET /a?b=%0a&c=' HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
    let rest = "[[route]]\npath = \"/\"\nrespond = { body = \"hello\" }\n";
    let json = logged("", "", rest);
    assert_eq!(json.fetch(&head).status(), 200);
    assert_entry(&entries(&json, 1)[0], json!({ "query": "b=%0a&c='", "referer": "\u{9b}2J\\", "status": 200 }));

    let combined = logged("", ", format = \"combined\"", rest);
    assert_eq!(combined.fetch(&head).status(), 200);
    let line = access(&combined, 1).remove(0);
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    let told = r#"] "GET /a?b=%0a&c=' HTTP/1.1" 200 5 "\xC2\x9B2J\x5C" "a\x09b\xC3\xA9 \x22x\x22 - - [""#;
    assert!(line.ends_with(told), "{line}");

    let own = logged("", ", format = \"{{{status}}} {user_agent} {upstream}\", mask = []", rest);
    assert_eq!(own.fetch(&head).status(), 200);
    assert_eq!(access(&own, 1), [r#"{200} a\x09b\xC3\xA9\x20\x22x\x22\x20-\x20-\x20[ -"#]);
}

#[test]
fn the_log_file_is_reopened_on_the_signal_and_its_loss_costs_no_request() {
    let rest = "[[route]]\npath = \"/\"\nrespond = { }\n";
    let gateway = logged("", "", rest);
    assert_eq!(gateway.get("/1").status(), 200);
    access(&gateway, 1);
    let (file, moved) = (gateway.dir.path().join("access.log"), gateway.dir.path().join("access.log.1"));
    fs::rename(&file, &moved).unwrap();
    gateway.signal("USR1");
    // The new file is created at once, before a line is written.
    wait_until("the file exists again", || file.exists());
    assert_eq!(gateway.get("/2").status(), 200);
    assert_eq!(entries(&gateway, 1)[0]["path"], "/2");
    assert_eq!(fs::read_to_string(&moved).unwrap().lines().count(), 1);

    // A full disk, which a reload selects.
    gateway.reload_with("\"access.log\"", "\"/dev/full\"");
    for _ in 0..3 {
        assert_eq!(gateway.get("/3").status(), 200);
    }
    gateway.assert_metric("access_log_write_errors_total", &[], 3.0);
    assert_eq!(gateway.log_lines(&["ERROR", "cannot write the access log", "to=\"/dev/full\""]), 1);
    gateway.reload_with("\"/dev/full\"", "\"access.log\"");
    assert_eq!(gateway.get("/4").status(), 200);
    assert_eq!(entries(&gateway, 2)[1]["path"], "/4");

    // The option without a table: JSON on standard output.
    gateway.reload_with("{ to = \"access.log\" }", "true");
    assert_eq!(gateway.get("/5").status(), 200);
    wait_until("it is on standard output", || gateway.stdout().contains("\"path\":\"/5\""));
}

#[test]
fn a_file_that_is_rotated_under_load_loses_no_line() {
    let gateway = logged("", "", "[[route]]\npath = \"/\"\nrespond = { }\n");
    let (file, mut moved) = (gateway.dir.path().join("access.log"), Vec::new());
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = gateway.client();
            for number in 0..100 {
                client.send(get(&format!("/{number}"), "").repeat(20));
                for _ in 0..20 {
                    assert_eq!(client.read_response("GET").status(), 200);
                }
            }
        });
        while !load.is_finished() {
            let away = gateway.dir.path().join(format!("access.log.{}", moved.len()));
            if fs::rename(&file, &away).is_ok() {
                moved.push(away);
                gateway.signal("USR1");
            }
            wait_until("the file exists again", || file.exists());
        }
    });
    assert!(moved.len() > 1, "{moved:?}");
    moved.push(file);
    let read = || moved.iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect::<String>();
    wait_until("all lines are written", || read().lines().count() >= 2000);
    let mut paths = std::collections::HashMap::<String, usize>::new();
    for line in read().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        *paths.entry(line["path"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert!(paths.len() == 100 && paths.values().all(|count| *count == 20), "{paths:?}");
}

#[test]
fn a_problem_shows_its_setting_only_to_authorized_clients() {
    let rest = "[[route]]\npath = \"/\"\nrespond = { }\nmax_body = 10\n";
    let gateway = Gateway::with("trusted_proxies = [\"127.0.0.1\"]", rest);
    let refused = |fields: &str| gateway.fetch(&post("/", 11, fields)).json();
    assert_eq!(refused("")["setting"], "max_body");
    assert_eq!(refused("x-forwarded-for: 192.0.2.1\r\n")["setting"], Value::Null);
    assert_eq!(gateway.get("/a%2fb").json()["setting"], "encoded_slashes");
    gateway.reload_with("trusted_proxies", "hints = true\ntrusted_proxies");
    assert_eq!(refused("x-forwarded-for: 192.0.2.1\r\n")["setting"], "max_body");
    gateway.reload_with("hints = true", "hints = false");
    assert_eq!(refused("")["setting"], Value::Null);
}

#[test]
fn a_trace_continues_and_starts_here_if_configured() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let upstream = Upstream::text("hello");
    let gateway = logged("", "", &route_to(&upstream.url(), ""));
    let told = |fields: &str| {
        assert_eq!(gateway.fetch(&get("/", fields)).status(), 200);
        upstream.request().get("traceparent").map(str::to_owned)
    };
    let came = format!("traceparent: {TRACE}\r\n");
    assert_eq!((told(&came).as_deref(), told("")), (Some(TRACE), None));
    assert_eq!(told("traceparent: odd\r\n").as_deref(), Some("odd"));
    gateway.reload_with("access_log", "traceparent = \"make\"\naccess_log");
    assert_eq!(told(&came).as_deref(), Some(TRACE));
    let made = [told("").unwrap(), told("traceparent: odd\r\ntracestate: a=b\r\n").unwrap()];
    let ids = made.iter().map(|made| made.strip_prefix("00-").unwrap().strip_suffix("-01").unwrap()[..32].to_owned());
    let ids: Vec<String> = ids.collect();
    assert_ne!(ids[0], ids[1]);
    let logged = entries(&gateway, 6);
    assert_eq!(logged[0]["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((&logged[2]["trace_id"], &logged[4]["trace_id"]), (&Value::Null, &Value::from(ids[0].as_str())));
}

#[test]
fn a_replay_reads_the_own_log_format() {
    let limit = "[limit.by-query]\nkey = [\"query:user\"]\nrate = \"1/h\"\nburst = 1\n";
    let config = format!("{limit}[[route]]\npath = \"/\"\nrespond = {{ }}\nlimits = [\"by-query\"]\n");
    for format in ["json", "combined"] {
        let gateway = logged("", &format!(", format = \"{format}\""), &config);
        let statuses = ["/?user=a", "/?user=b", "/?user=a"].map(|target| gateway.get(target).status());
        assert_eq!(statuses, [200, 200, 429]);
        let mut client = gateway.client();
        let _ = client.try_send("no request\r\n\r\n");
        let _ = client.try_read_response("GET");
        access(&gateway, 4);
        let replayed = program()
            .current_dir(gateway.dir.path())
            .args(["replay", "-c", "sluicegate.toml", "--format", "json", "access.log"])
            .output()
            .unwrap();
        let told: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        assert_eq!((&told["logs"][0]["format"], &told["logs"][0]["bad"]), (&json!(format), &json!(0)), "{told}");
        let counts = &told["requests"];
        let counts = ["admitted", "refused", "no_request"].map(|what| counts[what].as_u64().unwrap());
        assert_eq!(counts, [2, 1, 1], "{told}");
    }
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("log");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let admin = crate::support::ports::ReservedPort::new();
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:{}\"\n[[route]]\nrespond = {{ }}\n",
        admin.port()
    );
    let config = dir.path().join("sluicegate.toml");
    fs::write(&config, text).unwrap();
    let log = fs::File::options().write(true).open(&fifo).unwrap();
    let mut child = program().arg("run").arg(config).stderr(log).spawn().unwrap();
    let live = || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", admin.port())).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        std::io::Write::write_all(&mut stream, get("/livez", "").as_bytes()).ok()?;
        let mut status = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut status).ok()?;
        Some(status == *b"HTTP/1.1 200")
    };
    // Nothing is logged after that line.
    let (mut log, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&log).contains(" ready ") {
        let count = std::io::Read::read(&mut reader, &mut piece).unwrap();
        log.extend_from_slice(&piece[..count]);
    }
    // Fills the same pipe through another descriptor.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut filler = fs::File::options().write(true).custom_flags(flags).open(&fifo).unwrap();
    while std::io::Write::write(&mut filler, &[b'x'; 64]).is_ok() {}
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    // The line about the first reload waits for the reader; the signals of the others interrupt the write.
    for _ in 0..30 {
        signal("-HUP");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(live(), Some(true));
    signal("-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(reader);
}
