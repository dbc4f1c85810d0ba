//! Attacks on limits that settle by the usage in responses: servers that lie, streams without end, and a gateway that
//! crashes.

use std::time::{Duration, Instant};

use super::usage_ends::{assert_used, chunked, config, fetch, left, limited, mirror, whole};
use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::upstream::Upstream;

const EVENTS: &str = "text/event-stream";

#[test]
fn numbers_of_a_lying_server_stay_within_bounds() {
    let upstream = mirror();
    let usage = |value: &str| format!("data: {{\"usage\":{{\"total_tokens\":{value}}}}}\n\n");
    let done = "data: [DONE]\n\n";
    for (stream, used) in [
        // Repeated, decreasing and late values.
        (usage("50") + &usage("30") + done, 50),
        // With a negative, fractional or too large number, the usage is not known.
        (usage("50") + &usage("-900") + done, 100),
        (usage("1.5") + &usage("50") + done, 100),
        (usage("500") + &usage("9007199254740993") + done, 500),
        (usage("\"50\"") + &usage("[50]") + &usage("null") + done, 100),
        (usage("-1") + done, 100),
        (usage("0") + done, 0),
        (usage("99999999999999999999999") + done, 100),
        (usage("30") + done + &usage("5000"), 30),
        (done.to_owned() + &usage("70"), 70),
        // A thousand models, events without end, and members that repeat.
        (
            (0..1000).map(|model| format!("data: {{\"model\":\"{model}\"}}\n\n")).collect::<String>()
                + &usage("9")
                + done,
            9,
        ),
        ("data: ".repeat(10_000) + "\n\n" + &usage("9") + done, 9),
        (format!("data: {{\"a\":{}}}\n\n", "[".repeat(5000)) + &usage("9") + done, 9),
        (format!("data: {{\"{}\":1}}\n\n", "k".repeat(100_000)) + &usage("9") + done, 9),
        ("data: {\"usage\":{\"total_tokens\":7,\"total_tokens\":8}}\n\n".to_owned() + done, 8),
    ] {
        let gateway = limited(&upstream, "settle = \"openai\"");
        let (status, body) = fetch(&gateway, "/", &chunked(EVENTS, &stream, "0\r\n\r\n"));
        assert_eq!((status, body.len()), (200, stream.len()));
        assert_used(&gateway, used);
    }
    // The largest numbers are clamped like every cost, and never wrap.
    let gateway =
        limited(&upstream, "settle = \"openai\"\nweights = { default = { input = 1000000, output = 1000000 } }");
    fetch(
        &gateway,
        "/",
        &whole(
            "application/json",
            b"{\"usage\":{\"completion_tokens\":9007199254740992,\"prompt_tokens\":9007199254740992}}",
        ),
    );
    assert_eq!(left(&gateway), 0);
    assert_eq!(fetch(&gateway, "/", &whole("application/json", b"{}")).0, 429);
}

/// A part of the usage that cannot be read is not free.
#[test]
fn usage_that_is_read_in_part_refunds_nothing() {
    let upstream = mirror();
    let sources = "settle = [\"openai\", \"anthropic\", \"gemini\", \"bedrock\"]";
    for (usage, used) in [
        (r#"{"prompt_tokens":5,"completion_tokens":900.0}"#, 905),
        (r#"{"prompt_tokens":5,"completion_tokens":900.5}"#, 100),
        (r#"{"prompt_tokens":5,"completion_tokens":9E2}"#, 905),
        (r#"{"prompt_tokens":5,"completion_tokens":9005e-1}"#, 100),
        (r#"{"prompt_tokens":5,"completion_tokens":"900"}"#, 100),
        (r#"{"prompt_tokens":500,"completion_tokens":-1}"#, 500),
        (r#"{"prompt_tokens":5,"completion_tokens":9007199254740993}"#, 100),
        (r#"{"prompt_tokens_details":{"cached_tokens":0}}"#, 100),
        (r#"{"cache_read_input_tokens":5,"cache_creation_input_tokens":0}"#, 100),
        (r#"{"cacheReadInputTokens":5}"#, 100),
    ] {
        for stream in [false, true] {
            let gateway = limited(&upstream, sources);
            let response = match stream {
                true => chunked(EVENTS, &format!("data: {{\"usage\":{usage}}}\n\ndata: [DONE]\n\n"), "0\r\n\r\n"),
                false => whole("application/json", format!("{{\"usage\":{usage}}}").as_bytes()),
            };
            assert_eq!(fetch(&gateway, "/", &response).0, 200);
            let result = if used == 905 { "settled" } else { "unproven" };
            gateway.assert_metric("usage_settlements_total", &[("result", result)], 1.0);
            // An event is at least a token of output.
            assert_used(&gateway, if stream && used == 500 { 501 } else { used });
        }
    }
}

/// If a response ends with its connection, a lost server looks like one that has finished.
#[test]
fn a_stream_that_breaks_off_silently_refunds_nothing() {
    let upstream = mirror();
    let closed = |kind: &str, body: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n{body}").into_bytes();
    let usage = "data: {\"usage\":{\"total_tokens\":5}}\n\n";
    let gemini = "data: {\"usageMetadata\":{\"totalTokenCount\":5}}\n\n";
    let all = |body: String| chunked(EVENTS, &body, "0\r\n\r\n");
    for (response, used) in [
        (closed(EVENTS, usage), 100),
        (closed(EVENTS, gemini), 100),
        (closed(EVENTS, &format!("{usage}data: [DONE]\n\n")), 5),
        (closed("application/json", "{\"usage\":{\"total_tokens\":5}}"), 5),
        (all(format!("{gemini}data: {{\"usageMet")), 100),
        (all(format!("{gemini}da")), 100),
        (all(format!("{usage}data: [DO")), 100),
        (all(gemini.to_owned()), 5),
        // Some servers omit the last empty line.
        (all(format!("{usage}data: [DONE]")), 5),
        (all(format!("{usage}data: [DONE]\n")), 5),
        (all(gemini.trim_end().to_owned()), 5),
    ] {
        let gateway = limited(&upstream, "settle = [\"openai\", \"gemini\"]");
        assert_eq!(fetch(&gateway, "/cut", &response).0, 200);
        let result = if used == 5 { "settled" } else { "unproven" };
        gateway.assert_metric("usage_settlements_total", &[("result", result)], 1.0);
        assert_used(&gateway, used);
    }
}

#[test]
fn memory_does_not_grow_with_the_stream() {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 100;
    let event = format!(
        "data: {{\"model\":\"m\",\"choices\":[{{\"delta\":\"{}\"}}],\"usage\":null}}\n\n",
        "x".repeat(PIECE - 80)
    );
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
            for _ in 0..PIECES {
                peer.send(format!("{:x}\r\n{event}\r\n", event.len()))?;
            }
            let last = "data: {\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n";
            peer.send(format!("{:x}\r\n{last}\r\n0\r\n\r\n", last.len()))?;
        }
        Ok(())
    });
    let gateway = limited(&upstream, "settle = \"openai\"");
    let mut client = gateway.client();
    let watch = gateway.watch_memory();
    let mut read = 0;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.stream_response("GET", |piece| read += piece.len()).unwrap();
    assert!(read > PIECES * (PIECE - 80), "{read}");
    assert_used(&gateway, 5);
    assert!(watch.peak() < 3 << 20, "{} bytes", watch.peak());
}

#[test]
fn events_pass_at_once() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {\"us")?;
            // The server sends the rest only after the client has received the first part.
            peer.wait_for_end()?;
        }
        Ok(())
    });
    let gateway = limited(&upstream, "settle = \"openai\"");
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.try_read_head().unwrap();
    let begun = Instant::now();
    assert!(String::from_utf8(client.bytes(14)).unwrap().contains("data: {\"us"));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_estimate_survives_a_crash_and_the_end_of_its_window() {
    let upstream = mirror();
    let server = RedisServer::start(&[]);
    let store = server.store();
    let settle = "cost = 100\nsettle = \"openai\"";
    let text = config(&upstream.url(), &store, settle);
    let mut gateway = Gateway::start(&text);
    gateway.wait_for_store();
    let stream = chunked(EVENTS, "data: {\"usage\":{\"completion_tokens\":700}}\n\n", "");
    let mut client = gateway.client();
    client.send([post("/hold", stream.len() as u64, "").as_bytes(), &stream].concat());
    client.try_read_head().unwrap();
    assert_used(&gateway, 100);
    gateway.signal("KILL");
    let _ = gateway.exit();
    let gateway = Gateway::start(&text);
    gateway.wait_for_store();
    assert_eq!(left(&gateway), 9900, "the estimate remains in the store");
    // A stream outlives windows: the excess over its estimate is charged to the current window, and the estimate
    // applies until then.
    std::thread::scope(|scope| {
        for algorithm in ["fixed_window", "sliding_log", "sliding_window", "token_bucket"] {
            let window = text.replace(
                "rate = \"10000/1000day\"\ndebt = 10000000\n",
                &format!("algorithm = \"{algorithm}\"\nrate = \"1000/1s\"\n"),
            );
            let (window, stream) = (window.replace("[store]", &format!("[store]\nprefix = \"{algorithm}\"")), &stream);
            scope.spawn(move || {
                let gateway = Gateway::start(&window);
                gateway.wait_for_store();
                let mut client = gateway.client();
                client.send([post("/hold", stream.len() as u64, "").as_bytes(), stream].concat());
                client.try_read_head().unwrap();
                std::thread::sleep(Duration::from_millis(1200));
                drop(client);
                gateway.assert_metric("usage_settlements_total", &[("result", "unproven")], 1.0);
            });
        }
    });
}
