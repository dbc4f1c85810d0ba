//! Charges that settle by the usage in the body of a response: every API, and every way in which a response can end.
//! The upstream server responds with what the request body contains.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::client::{Client, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// Tokens of the limit, of which each request reserves 100.
pub const ALL: i64 = 10_000;
pub const ESTIMATE: i64 = 100;

/// A server that sends the body of the request as its whole response, head included. `/cut` closes after it, `/hold`
/// waits for the client to leave.
pub fn mirror() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let target = request.target().to_owned();
            peer.send(&request.body)?;
            match target.as_str() {
                "/cut" => return Ok(()),
                "/hold" => return peer.wait_for_end(),
                _ => {}
            }
        }
        Ok(())
    })
}

pub fn config(upstream: &str, store: &str, limit: &str) -> String {
    format!(
        "{store}\n[[route]]\nname = \"llm\"\nupstream = \"{upstream}\"\nlimits = [\"tokens\"]\nmax_body = \"200MiB\"\n\
         max_cost_body = \"64KiB\"\nstream_timeout = \"60s\"\n[limit.tokens]\nrate = \"{ALL}/1000day\"\ndebt = 10000000\n\
         key = \"all\"\n{limit}\n"
    )
}

pub fn limited(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&config(&upstream.url(), "", &format!("cost = {ESTIMATE}\n{limit}")))
}

/// Returns the tokens that are left.
pub fn left(gateway: &Gateway) -> i64 {
    let state = gateway.admin("/-/limits/tokens/state").text();
    let rest = state.split("\"remaining\":").nth(1).unwrap_or_else(|| panic!("{state}"));
    rest.split(|sign: char| !sign.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[track_caller]
pub fn assert_used(gateway: &Gateway, used: i64) {
    wait_until(&format!("{used} used"), || ALL - left(gateway) == used);
}

/// A complete response with this content type.
pub fn whole(content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n", body.len())
            .into_bytes();
    response.extend_from_slice(body);
    response
}

/// The start of a response that ends with its connection or with an empty chunk.
pub fn chunked(content_type: &str, body: &str, end: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n{end}"
    )
    .into_bytes()
}

pub fn fetch(gateway: &Gateway, target: &str, response: &[u8]) -> (u16, Vec<u8>) {
    let mut client = gateway.client();
    let message = client.fetch(&post(target, response.len() as u64, "content-type: text/plain\r\n"), response);
    (message.status(), message.body)
}

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

#[test]
fn every_api_reports_its_usage() {
    let chat = r#"{"id":"x","model":"large-1","choices":[{"message":{"content":"\"usage\":{"}}],"usage":{"prompt_tokens":50,"completion_tokens":7,"total_tokens":57,"prompt_tokens_details":{"cached_tokens":20},"completion_tokens_details":{"reasoning_tokens":3}}}"#;
    let embedding = r#"{"model":"small","data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    let responses = r#"{"model":"large-1","usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":20},"output_tokens":7,"total_tokens":57}}"#;
    let message = r#"{"type":"message","model":"large-1","usage":{"input_tokens":30,"cache_creation_input_tokens":4,"cache_read_input_tokens":20,"output_tokens":7}}"#;
    let gemini = r#"{"candidates":[],"usageMetadata":{"promptTokenCount":50,"cachedContentTokenCount":20,"candidatesTokenCount":4,"thoughtsTokenCount":3,"totalTokenCount":57},"modelVersion":"large-1"}"#;
    let converse = r#"{"output":{},"usage":{"inputTokens":30,"outputTokens":7,"totalTokens":37}}"#;
    let chat_stream = "data: {\"model\":\"large-1\",\"choices\":[{}],\"usage\":null}\n\ndata: {\"model\":\"large-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":7,\"total_tokens\":57}}\n\ndata: [DONE]\n\n";
    let responses_stream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"large-1\",\"usage\":{\"input_tokens\":50,\"output_tokens\":7}}}\n\n";
    let message_stream = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"large-1\",\"usage\":{\"input_tokens\":50,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let gemini_stream = "data: {\"usageMetadata\":{\"promptTokenCount\":50,\"totalTokenCount\":50},\"modelVersion\":\"large-1\"}\r\n\r\ndata: {\"usageMetadata\":{\"promptTokenCount\":50,\"candidatesTokenCount\":7,\"totalTokenCount\":57},\"modelVersion\":\"large-1\"}\r\n\r\n";
    let gemini_array = format!("[{gemini},\n{gemini}]");
    let upstream = mirror();
    let weights = "weights = { \"large*\" = { input = 3, cached = 1, cache_write = 4, output = 10 } }";
    // Input, cached, output: 30 x 3 + 20 x 1 + 7 x 10.
    let cached = 90 + 20 + 70;
    for (api, content_type, body, used) in [
        ("openai", JSON, chat, cached),
        ("openai", JSON, embedding, 5),
        ("openai", "application/json; charset=utf-8", responses, cached),
        ("openai", EVENTS, chat_stream, 150 + 70),
        ("openai", EVENTS, responses_stream, 150 + 70),
        ("anthropic", JSON, message, cached + 16),
        ("anthropic", EVENTS, message_stream, 150 + 70),
        ("gemini", JSON, gemini, cached),
        ("gemini", JSON, &gemini_array, cached),
        ("gemini", EVENTS, gemini_stream, 150 + 70),
        // It names no model, so the largest weights count.
        ("bedrock", JSON, converse, 90 + 70),
    ] {
        let gateway = limited(&upstream, &format!("settle = \"{api}\"\n{weights}"));
        let (status, read) = fetch(&gateway, "/", &whole(content_type, body.as_bytes()));
        assert_eq!((status, read.as_slice()), (200, body.as_bytes()), "{api} {body}");
        assert_used(&gateway, used);
        gateway.assert_metric("usage_settlements_total", &[("result", "settled")], 1.0);
        // In one piece, and in the smallest pieces that a server can send.
        let gateway =
            limited(&upstream, &format!("settle = [\"openai\", \"anthropic\", \"gemini\", \"bedrock\"]\n{weights}"));
        let pieces: String = body.chars().map(|sign| format!("{:x}\r\n{sign}\r\n", sign.len_utf8())).collect();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
        let (_, read) = fetch(&gateway, "/", format!("{head}{pieces}0\r\n\r\n").as_bytes());
        assert_eq!(read, body.as_bytes());
        assert_used(&gateway, used);
    }
}

#[test]
fn pointers_headers_and_gzip_settle_too() {
    let upstream = mirror();
    let gateway = limited(
        &upstream,
        "settle = [\"json:/meta/units\", \"sse:/meta/units\", \"header:x-units\", \"bedrock\"]\nweights = { default = { output = 2 } }",
    );
    let mut used = 0;
    let mut check = |response: &[u8], units: i64| {
        assert_eq!(fetch(&gateway, "/", response).0, 200);
        used += units;
        assert_used(&gateway, used);
    };
    check(&whole(JSON, br#"{"meta":{"units":7}}"#), 14);
    check(&whole(EVENTS, b"data: {\"meta\":{\"units\":4}}\n\ndata: {\"meta\":{\"units\":9}}\n\n"), 18);
    check(b"HTTP/1.1 200 OK\r\nx-units: 11\r\ncontent-length: 0\r\n\r\n", 11);
    let headers = "x-amzn-bedrock-input-token-count: 30\r\nx-amzn-bedrock-output-token-count: 7\r\n";
    check(format!("HTTP/1.1 200 OK\r\n{headers}content-length: 2\r\n\r\n{{}}").as_bytes(), 44);
    let gzip = |text_length: usize| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let body = format!("{{\"p\":\"{}\",\"meta\":{{\"units\":6}}}}", "x".repeat(text_length));
        encoder.write_all(body.as_bytes()).unwrap();
        whole(&format!("{JSON}\r\ncontent-encoding: gzip"), &encoder.finish().unwrap())
    };
    check(&gzip(100_000), 12);
    // A response that cannot be read keeps its estimate.
    for (response, reason) in [
        (whole("text/html", b"{\"meta\":{\"units\":7}}"), "content_type"),
        (whole(&format!("{JSON}\r\ncontent-encoding: br"), b"{\"meta\":{\"units\":7}}"), "encoding"),
        (whole(&format!("{JSON}\r\ncontent-encoding: gzip"), b"{\"meta\":{\"units\":7}}"), "gzip"),
        (gzip(20_000_000), "too_large"),
        (whole(JSON, b"{\"meta\":{\"units\":-7}}"), "not_integer"),
        (whole(JSON, b"{\"meta\":{\"units\":7}"), "malformed"),
    ] {
        check(&response, ESTIMATE);
        gateway.assert_metric("usage_scan_failures_total", &[("reason", reason)], 1.0);
    }
    gateway.assert_metric("usage_settlements_total", &[("result", "unproven")], 6.0);
}

#[test]
fn unproven_usage_is_not_refunded() {
    let upstream = mirror();
    let server = RedisServer::start(&[]);
    let start = r#"data: {"type":"message_start","message":{"usage":{"input_tokens":"#;
    let stream = |input: u64| format!("{start}{input},\"output_tokens\":1}}}}}}\n\n");
    let end =
        "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":2}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    for store in [String::new(), server.store()] {
        let limit = format!("cost = {ESTIMATE}\nsettle = \"anthropic\"\nrefund_on = [\"5xx\", \"client_abort\"]");
        let gateway = Gateway::start(&config(&upstream.url(), &store, &limit));
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let mut used = 0;
        let mut check = |target: &str, response: Vec<u8>, units: i64| {
            if target == "/hold" {
                leave(&gateway, target, &response);
            } else {
                let mut client = gateway.client();
                client.send([post(target, response.len() as u64, "").as_bytes(), &response].concat());
                let _ = client.try_read_response("POST");
            }
            used += units;
            assert_used(&gateway, used);
        };
        // The server aborts its response: before the usage, after a part of it, and after all of it.
        check("/cut", chunked(EVENTS, ": ping\n\n", ""), ESTIMATE);
        check("/cut", chunked(EVENTS, &stream(5), ""), ESTIMATE);
        check("/cut", chunked(EVENTS, &stream(700), ""), 701);
        check("/cut", chunked(EVENTS, &(stream(5) + end), ""), 7);
        // A server, or a proxy before it, completes a response without its last event.
        check("/", chunked(EVENTS, &stream(5), "0\r\n\r\n"), ESTIMATE);
        check("/cut", chunked(JSON, "{\"usage\":{\"input_tokens\":5,\"output_tokens\":2", ""), ESTIMATE);
        check("/cut", chunked(JSON, "{\"usage\":{\"input_tokens\":500,\"output_tokens\":20}", ""), 520);
        // The client leaves: before the end, and after it.
        check("/hold", chunked(EVENTS, &stream(5), ""), ESTIMATE);
        check("/hold", chunked(EVENTS, &stream(600), ""), 601);
        check("/hold", chunked(EVENTS, &(stream(5) + end), ""), 7);
        check("/hold", chunked(JSON, "{\"usage\":{\"input_tokens\":5,\"output_tokens\":2}}", ""), 7);
        // Errors follow `refund_on`, also those with usage.
        check("/", b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(), 0);
        check(
            "/",
            b"HTTP/1.1 400 No\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
            ESTIMATE,
        );
        check("/", b"HTTP/1.1 206 Part\r\ncontent-type: application/json\r\ncontent-length: 48\r\n\r\n{\"usage\":{\"input_tokens\":5,\"output_tokens\":2}}  ".to_vec(), ESTIMATE);
        check("/", b"HTTP/1.1 204 None\r\n\r\n".to_vec(), ESTIMATE);
    }
}

/// Sends a request and leaves once the whole response has arrived.
fn leave(gateway: &Gateway, target: &str, response: &[u8]) {
    let mut client: Client = gateway.client();
    client.send(post(target, response.len() as u64, ""));
    client.send(response);
    let body = response.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    client.try_read_head().unwrap();
    client.bytes(response.len() - body);
}
