//! Requests whose cost only their response reports: the estimate that they reserve, the usage that the gateway requests
//! from servers, and the errors that clients of LLM APIs get when a limit refuses.

use serde_json::{Value, json};

use super::usage_ends::{assert_used, config, left, limited, mirror, whole};
use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::upstream::{Upstream, ok};

const JSON: &str = "content-type: application/json\r\n";

fn send(gateway: &Gateway, body: &str, fields: &str) -> Message {
    gateway.client().fetch(&post("/v1/chat/completions", body.len() as u64, fields), body)
}

#[test]
fn a_request_reserves_its_announced_usage() {
    let upstream = Upstream::text("no usage");
    let reserve = "cost = { reserve = { base = 10, add = [\"json:/max_tokens\", \"json:/max_completion_tokens\"], \
                   default_add = 500, at_most = 3000 } }\nsettle = \"openai\"\n";
    let prices = "weights = { small = { input = 1, output = 2 }, large = { input = 2, output = 3 } }";
    for (fields, body, units) in [
        (JSON, r#"{"model":"small","max_tokens":30}"#, 10 + 9 + 60),
        (JSON, r#"{"model":"large","max_tokens":30}"#, 38 + 90),
        (JSON, r#"{"model":"small","max_tokens":30,"max_completion_tokens":40}"#, 10 + 15 + 80),
        (JSON, r#"{"model":"small","max_tokens":30000}"#, 6000),
        (JSON, r#"{"model":"other"}"#, 10 + 5 + 500),
        // A body that cannot be read costs as much as the most expensive model.
        (JSON, r#"{"max_tokens":30}"#, 30 + 90),
        // Some servers read it all the same, so it hides no output.
        ("content-type: text/plain\r\n", r#"{"model":"small","max_tokens":30}"#, 3000 * 3),
        ("content-type: application/json; charset=iso-8859-1\r\n", r#"{"model":"small","max_tokens":30}"#, 3000 * 3),
        ("content-type: application/json; charset=utf8\r\n", r#"{"model":"small","max_tokens":30}"#, 10 + 9 + 60),
        (JSON, "{", 3000 * 3),
        (JSON, r#"{"model":"small","max_tokens":30,"x":NaN}"#, 3000 * 3),
        (JSON, &format!(r#"{{"max_tokens":30,"x":{}1{}}}"#, "[".repeat(200), "]".repeat(200)), 3000 * 3),
    ] {
        let gateway = Gateway::start(&config(&upstream.url(), "", &format!("{reserve}{prices}")));
        assert_eq!(send(&gateway, body, fields).status(), 200);
        assert_used(&gateway, units);
    }
    // A compressed body hides its length and its output.
    let gateway = Gateway::start(&config(&upstream.url(), "", &format!("{reserve}{prices}")));
    assert_eq!(send(&gateway, "compressed", &format!("{JSON}content-encoding: gzip\r\n")).status(), 200);
    assert_used(&gateway, 3000 * 3);
    let gateway = Gateway::start(&config(&upstream.url(), "", &format!("{reserve}{prices}")));
    for (body, status) in [
        (r#"{"max_tokens":-5}"#.to_owned(), 400),
        (r#"{"max_tokens":1,"max_tokens":5}"#.to_owned(), 400),
        (r#"{"max_tokens":1,"Max_Tokens":5}"#.to_owned(), 400),
        (r#"{"max_tokens":"many"}"#.to_owned(), 400),
        // A body beyond `max_key_body` hides neither its length nor its output.
        (format!("{{\"max_tokens\":1,\"x\":\"{}\"}}", "x".repeat(70_000)), 200),
    ] {
        assert_eq!(send(&gateway, &body, JSON).status(), status, "{}", body.len());
    }
    assert_used(&gateway, 3000 * 3);
    // A body without an announced length that is read before the decision costs what it contains.
    let gateway = Gateway::start(&config(&upstream.url(), "", &format!("{reserve}{prices}")));
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{JSON}transfer-encoding: chunked\r\n\r\n");
    let chunks = "11\r\n{\"model\":\"small\",\r\n10\r\n\"max_tokens\":30}\r\n0\r\nx-last: 1\r\n\r\n";
    assert_eq!(gateway.client().fetch(&head, chunks).status(), 200);
    assert_used(&gateway, 10 + 9 + 60);
    // A body of unknown length costs the largest estimate.
    let gateway = Gateway::start(&config(&upstream.url(), "", &format!("{reserve}{prices}")));
    let chunks = format!("{:x}\r\n{}\r\n0\r\n\r\n", 70_000, "x".repeat(70_000));
    assert_eq!(gateway.client().fetch(&head, chunks).status(), 200);
    assert_eq!(left(&gateway), 10_000 - (2500 * 2 + 500 * 3));
}

#[test]
fn parallel_requests_cannot_pass_a_nearly_empty_budget() {
    let upstream = mirror();
    let limit = "cost = { reserve = { default_add = 900 } }\nsettle = \"openai\"";
    let gateway = Gateway::start(&config(&upstream.url(), "", limit));
    // Each response takes the whole reservation until it ends, however many requests start at once.
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let mut client = gateway.client();
            client.send([post("/hold", stream.len() as u64, ""), stream.to_owned()].concat());
            client
        })
        .collect();
    let statuses: Vec<u16> =
        clients.into_iter().map(|mut client| client.try_read_head().map_or(0, |head| head.status())).collect();
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!((10..=11).contains(&admitted), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
}

#[test]
fn the_usage_of_streams_is_requested_from_servers() {
    let upstream = mirror_of_requests();
    let gateway = limited(&upstream, "settle = \"openai\"\nask_usage = true");
    for (body, forwarded) in [
        (
            json!({ "messages": [], "stream": true }),
            json!({ "messages": [], "stream": true, "stream_options": { "include_usage": true } }),
        ),
        (json!({ "messages": [] }), json!({ "messages": [] })),
        (json!({ "input": "x", "stream": true }), json!({ "input": "x", "stream": true })),
    ] {
        for chunked in [false, true] {
            let digests = "digest: md5=a\r\ncontent-digest: sha-256=:YQ==:\r\nrepr-digest: sha-256=:YQ==:\r\n";
            let (is_changed, body) = (body != forwarded, body.to_string());
            let fields = format!("{JSON}{digests}accept-encoding: br, gzip\r\n");
            let response = if chunked {
                let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}transfer-encoding: chunked\r\n\r\n");
                gateway.client().fetch(&head, format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
            } else {
                send(&gateway, &body, &fields)
            };
            assert_eq!(response.status(), 200);
            let seen = upstream.request();
            assert_eq!(serde_json::from_slice::<Value>(&seen.body).unwrap(), forwarded);
            assert_eq!(seen.get("accept-encoding"), Some("gzip, identity"));
            // A digest of the client's body would be wrong.
            let has_digest = ["digest", "content-digest", "repr-digest"].map(|name| seen.get(name).is_some());
            assert_eq!(has_digest, [!is_changed; 3]);
            if let Some(length) = seen.get("content-length") {
                assert_eq!(length, seen.body.len().to_string());
            }
        }
    }
    // Bodies that are not JSON, or too long, stay as they are.
    for (fields, body) in [
        ("content-type: text/plain\r\n", r#"{"messages":[],"stream":true}"#.to_owned()),
        (JSON, format!("{{\"messages\":\"{}\",\"stream\":true}}", "x".repeat(70_000))),
        (JSON, "{\"messages\":[],\"stream\":true".to_owned()),
    ] {
        // Without usage, the response costs at least its input, and the longest body has more than the limit.
        let gateway = limited(&upstream, "settle = \"openai\"\nask_usage = true");
        assert_eq!(send(&gateway, &body, fields).status(), 200);
        assert_eq!(upstream.request().text(), body);
    }
    // Claude on Vertex AI refuses the option. The path says so, not what the client writes.
    let gateway = limited(&upstream, "settle = \"openai\"\nask_usage = true");
    let body = json!({ "anthropic_version": "v", "messages": [], "stream": true }).to_string();
    for (path, is_asked) in [
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict", false),
        ("/v1/chat/completions", true),
    ] {
        let head = post(path, body.len() as u64, JSON);
        assert_eq!(gateway.client().fetch(&head, &body).status(), 200);
        assert_eq!(upstream.request().text().contains("stream_options"), is_asked, "{path}");
    }
    // A route whose limits read no usage forwards the header as it is.
    let gateway = limited(&upstream, "settle = \"header:x-cost\"");
    send(&gateway, "{}", "accept-encoding: br, gzip\r\n");
    assert_eq!(upstream.request().get("accept-encoding"), Some("br, gzip"));
}

fn mirror_of_requests() -> Upstream {
    Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send(ok("in"))?;
        }
        Ok(())
    })
}

#[test]
fn compression_and_http2_clients_change_nothing() {
    let upstream = mirror();
    let body =
        format!("{{\"text\":\"{}\",\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":2}}}}", "x".repeat(5000));
    let plain = config(&upstream.url(), "", "cost = 100\nsettle = \"openai\"");
    let gateway = Gateway::start(&plain.replace("name = \"llm\"", "name = \"llm\"\ncompress = true"));
    let response = whole("application/json", body.as_bytes());
    let head = post("/", response.len() as u64, "accept-encoding: gzip\r\n");
    let message = gateway.client().fetch(&head, &response);
    assert_eq!(message.get("content-encoding"), Some("gzip"));
    assert_used(&gateway, 7);
    let head = "HEAD / HTTP/1.1\r\nhost: a\r\ncontent-length: 67\r\n\r\n";
    let bare = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n";
    assert_eq!(gateway.client().fetch(&head.replace("67", &bare.len().to_string()), bare).status(), 200);
    assert_used(&gateway, 107);
}

#[test]
fn refusals_have_the_format_of_the_api() {
    let upstream = Upstream::text("in");
    for (api, rate, expected) in [
        (
            "openai",
            "1/h",
            json!({ "error": { "message": "request quota exceeded", "type": "insufficient_quota", "param": null, "code": "insufficient_quota" } }),
        ),
        (
            "openai",
            "1/30s",
            json!({ "error": { "message": "request quota exceeded", "type": "rate_limit_exceeded", "param": null, "code": "rate_limit_exceeded" } }),
        ),
        (
            "anthropic",
            "1/30s",
            json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "request quota exceeded" } }),
        ),
        (
            "gemini",
            "1/30s",
            json!({ "error": { "code": 429, "message": "request quota exceeded", "status": "RESOURCE_EXHAUSTED" } }),
        ),
        ("bedrock", "1/30s", json!({ "message": "request quota exceeded" })),
    ] {
        let gateway = Gateway::start(&format!(
            "[[route]]\nupstream = \"{}\"\nlimits = [\"one\"]\n[limit.one]\nalgorithm = \"fixed_window\"\nrate = \"{rate}\"\nkey = \"all\"\n\
             refuse = {{ dialect = \"{api}\" }}\n",
            upstream.url()
        ));
        assert_eq!(gateway.get("/").status(), 200);
        let refusal = gateway.get("/");
        assert_eq!((refusal.status(), refusal.get("content-type")), (429, Some("application/json")));
        let wait: u64 = refusal.get("retry-after").unwrap().parse().unwrap();
        let wait_ms: u64 = refusal.get("retry-after-ms").unwrap().parse().unwrap();
        assert!(wait_ms.div_ceil(1000) == wait, "{wait_ms} {wait}");
        assert_eq!(refusal.get("x-should-retry"), (rate == "1/h").then_some("false"));
        assert_eq!(refusal.get("x-amzn-errortype"), (api == "bedrock").then_some("ThrottlingException"));
        let mut body = refusal.json();
        if api == "gemini" {
            let details = body["error"].as_object_mut().unwrap().remove("details").unwrap();
            assert_eq!(details[0]["retryDelay"], format!("{wait}s"));
        }
        assert_eq!(body, expected);
    }
}
