//! What a response delivered is a floor of its charge, however its client, or its server, keeps its usage from being
//! read; and which ways there are to get a response that nobody reads.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::usage_ends::{assert_used, chunked, config, left, limited, mirror, whole};
use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, accept};

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const DIALECTS: &str = "settle = [\"openai\", \"anthropic\", \"gemini\", \"bedrock\"]";

/// A chunk of a stream of chat completions, with one word.
const CHUNK: &str = "data: {\"id\":\"chatcmpl-1234567890\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\
                     \"choices\":[{\"index\":0,\"delta\":{\"content\":\" a\"}}]}\n\n";

/// A document of a stream of Ollama's own API, and the last one.
const OLLAMA: &str = "{\"model\":\"m\",\"created_at\":\"2026-01-01T00:00:00.123456789Z\",\"message\":{\"role\":\"assistant\",\
                      \"content\":\" a\"},\"done\":false}\n";
const OLLAMA_LAST: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\
                           \"prompt_eval_count\":5,\"eval_count\":7}\n";

/// The last events of a stream whose server does not count.
const NOTHING_USED: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,\
                            \"total_tokens\":0}}\n\ndata: [DONE]\n\n";

/// The end of a stream.
const DONE: &str = "data: [DONE]\n\n";

/// Returns an event that reports usage.
fn report(input: u32, output: u32) -> String {
    let total = input + output;
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\
         \"total_tokens\":{total}}}}}\n\n"
    )
}

/// Adds a report of no usage to a JSON object.
fn zeros(object: &str) -> String {
    let usage = "\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,\"total_tokens\":0}";
    let rest = object.strip_prefix('{').unwrap();
    format!("{{{usage}{}{rest}", if rest == "}" { "" } else { "," })
}

/// Sends a request whose response is `response`, and leaves when it has arrived, if the server does not end it.
fn exchange(gateway: &Gateway, target: &str, response: &[u8]) {
    let mut client = gateway.client();
    client.send([post(target, response.len() as u64, "content-type: text/plain\r\n").as_bytes(), response].concat());
    receive(client, target, response);
}

/// Reads a response, and leaves when it has arrived, if the server does not end it.
fn receive(mut client: Client, target: &str, response: &[u8]) {
    if target == "/hold" {
        client.try_read_head().unwrap();
        let body = response.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        client.bytes(response.len() - body);
    } else {
        let _ = client.try_read_response("POST");
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn what_was_delivered_is_charged() {
    let gemini =
        |text: &str| format!("data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}}}]}}\n\n");
    let anthropic = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":70,\"output_tokens\":1}}}\n\n\
                     data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"";
    let long = "x".repeat(4000);
    let message = format!(
        "{{\"id\":\"{long}\",\"choices\":[{{\"message\":{{\"role\":\"assistant\",\"content\":\"{long}\"}}}}]}}"
    );
    let delta = format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{long}\"}}}}]}}");
    let thoughts =
        format!("{{\"type\":\"message\",\"content\":[{{\"type\":\"redacted_thinking\",\"data\":\"{long}\"}}]}}");
    let repeating = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\" a\"}},\"message\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(100)
    );
    let counting = CHUNK.replace("\"model\"", "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4},\"model\"");
    let coded = |kind: &str, coding: &str, body: &[u8]| whole(&format!("{kind}\r\ncontent-encoding: {coding}"), body);
    for (name, target, response, used) in [
        // One token for each event, whoever ends the stream.
        ("the client leaves", "/hold", chunked(EVENTS, &CHUNK.repeat(300), ""), 300),
        ("the server fails", "/cut", chunked(EVENTS, &CHUNK.repeat(300), ""), 300),
        ("no usage at the end", "/", chunked(EVENTS, &(CHUNK.repeat(300) + "data: [DONE]\n\n"), "0\r\n\r\n"), 300),
        (
            "comments and the end are no events",
            "/",
            chunked(EVENTS, &(": ping\n\n".repeat(900) + CHUNK), "0\r\n\r\n"),
            100,
        ),
        // Or one for each four bytes of text.
        ("long events", "/cut", chunked(EVENTS, &gemini(&long), ""), 1000),
        ("reported input", "/cut", chunked(EVENTS, &format!("{anthropic}{long}\"}}}}\n\n"), ""), 1070),
        ("within an event", "/hold", chunked(EVENTS, &format!("{anthropic}{long}"), ""), 1070),
        ("broken events", "/cut", chunked(EVENTS, &format!("data: {{oh {long}\n\n"), ""), 1001),
        ("JSON without usage", "/", whole(JSON, message.as_bytes()), 1000),
        // Some servers mix the formats.
        ("a message as an event", "/cut", chunked(EVENTS, &format!("data: {message}\n\n"), ""), 1000),
        ("a document under the type of a stream", "/", whole(EVENTS, message.as_bytes()), 1000),
        ("a delta as JSON", "/", whole(JSON, delta.as_bytes()), 1000),
        ("deltas in lines", "/cut", chunked(LINES, &format!("{delta}\n").repeat(3), ""), 3000),
        ("a message of Anthropic as an event", "/", whole(EVENTS, format!("data: {thoughts}\n\n").as_bytes()), 1000),
        ("hidden thoughts", "/", whole(JSON, thoughts.as_bytes()), 1000),
        (
            "spoken words",
            "/",
            whole(JSON, delta.replace("\"content\":", "\"audio\":{\"transcript\":").replace("}}]", "}}}]").as_bytes()),
            1000,
        ),
        ("a transcription", "/", whole(JSON, format!("{{\"text\":\"{long}\"}}").as_bytes()), 1000),
        (
            "a patch",
            "/",
            whole(JSON, format!("{{\"output\":[{{\"operation\":{{\"diff\":\"{long}\"}}}}]}}").as_bytes()),
            1000,
        ),
        // Others repeat in each event what they have sent.
        ("events with the message so far", "/cut", chunked(EVENTS, &repeating.repeat(300), ""), 300),
        ("JSON that breaks off", "/cut", chunked(JSON, &message[..message.len() - 5], ""), 1000),
        ("a member that is no content", "/", whole(JSON, format!("{{\"id\":\"{long}\"}}").as_bytes()), 100),
        // Documents in lines, of Ollama: one token for each, or for each four bytes of text.
        ("lines", "/hold", chunked(LINES, &OLLAMA.repeat(300), ""), 300),
        ("lines with usage", "/", chunked(LINES, &(OLLAMA.repeat(300) + OLLAMA_LAST), "0\r\n\r\n"), 12),
        ("the client leaves after the last line", "/hold", chunked(LINES, &(OLLAMA.repeat(300) + OLLAMA_LAST), ""), 12),
        ("long lines", "/cut", chunked(LINES, &format!("{{\"response\":\"{long}\"}}\n"), ""), 1000),
        // Other formats.
        ("text", "/", whole("text/plain", long.as_bytes()), 1000),
        ("no JSON", "/", whole(JSON, format!("oh {long}").as_bytes()), 1001),
        ("sound", "/", whole("audio/mpeg", long.as_bytes()), 100),
        ("text without a type", "/", whole("application/octet-stream", long.as_bytes()), 1000),
        ("sound without a type", "/", whole("application/octet-stream", &[0xff, 0xfb, 0x90, 0].repeat(1000)), 100),
        ("zeros for usage", "/", whole(JSON, zeros(&message).as_bytes()), 1000),
        ("zeros at the end", "/", chunked(EVENTS, &(CHUNK.repeat(300) + NOTHING_USED), "0\r\n\r\n"), 300),
        ("input alone", "/", chunked(EVENTS, &(CHUNK.repeat(300) + &report(9, 0) + DONE), "0\r\n\r\n"), 310),
        // A report tells of what was sent before it.
        ("a report before", "/", chunked(EVENTS, &(report(1, 1) + &CHUNK.repeat(300) + DONE), "0\r\n\r\n"), 302),
        ("a report in each event", "/", chunked(EVENTS, &(counting.repeat(300) + DONE), "0\r\n\r\n"), 7),
        // No events, but under their type.
        ("text for events", "/", chunked(EVENTS, &format!("{long}\n\n"), "0\r\n\r\n"), 1000),
        ("JSON for events", "/cut", chunked(EVENTS, &CHUNK.replace("data: ", "").repeat(300), ""), 300),
        ("zeros, and nothing delivered", "/", whole(JSON, zeros("{}").as_bytes()), 0),
        ("another coding", "/", coded(EVENTS, "br", &[7; 500]), 500),
        ("coded text", "/", coded("text/plain", "gzip", &[7; 500]), 500),
        ("damaged gzip", "/", coded(JSON, "gzip", &[7; 500]), 500),
        (
            "a partial response",
            "/",
            [b"HTTP/1.1 206 Part\r\ncontent-length: 4000\r\n\r\n", long.as_bytes()].concat(),
            1000,
        ),
        // Errors deliver nothing.
        ("an error", "/", [b"HTTP/1.1 500 No\r\ncontent-length: 4000\r\n\r\n", long.as_bytes()].concat(), 100),
        // Repetition that compresses a thousandfold, with usage: it is read.
        (
            "gzip",
            "/",
            coded(
                EVENTS,
                "gzip",
                &gzip(&(CHUNK.repeat(20_000) + "data: {\"usage\":{\"total_tokens\":900}}\n\ndata: [DONE]\n\n")),
            ),
            900,
        ),
        (
            "gzip in several members",
            "/",
            coded(JSON, "gzip", &[gzip(&message[..50]), gzip(""), gzip(&message[50..])].concat()),
            1000,
        ),
    ] {
        let upstream = answering(response.clone());
        let gateway = limited(&upstream, DIALECTS);
        let mut client = gateway.client();
        client.send(post(target, 0, ""));
        receive(client, target, &response);
        assert_used_by(&gateway, name, used);
    }
}

/// A server that sends `response` to every request. `/cut` closes after it, `/hold` waits for the client to leave.
fn answering(response: Vec<u8>) -> Upstream {
    Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            peer.send(&response)?;
            match request.target() {
                "/cut" => return Ok(()),
                "/hold" => return peer.wait_for_end(),
                _ => {}
            }
        }
        Ok(())
    })
}

/// A number that the report leaves out is not free.
#[test]
fn a_report_of_one_side_leaves_the_other_at_its_floor() {
    let long = "x".repeat(400);
    let document = |usage: &str| {
        format!("{{\"choices\":[{{\"message\":{{\"content\":\"{long}\"}}}}],\"usage\":{{{usage}}}}}").into_bytes()
    };
    let stream = |usage: &str| {
        // The bytes of `[DONE]` count, too.
        let text = &long[DONE.len() - "data: \n\n".len()..];
        let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        chunked(EVENTS, &format!("{event}data: {{\"usage\":{{{usage}}}}}\n\n{DONE}"), "0\r\n\r\n")
    };
    // 2000 bytes of input, which the gateway takes for 500 tokens.
    let body = "y".repeat(2000);
    let prices = "weights = { default = { input = 2, output = 3 } }";
    let reserve = "cost = { reserve = { default_add = 2000 } }";
    for (usage, tokens, reserved) in [
        ("\"prompt_tokens\":7,\"completion_tokens\":5", 14 + 15, 14 + 15),
        ("\"completion_tokens\":5", 1000 + 15, 1000 + 15),
        ("\"prompt_tokens\":0,\"completion_tokens\":5", 1000 + 15, 1000 + 15),
        ("\"prompt_tokens\":0,\"completion_tokens\":5,\"total_tokens\":5", 1000 + 15, 1000 + 15),
        ("\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens\":5", 1000 + 15, 1000 + 15),
        // A total may contain it. It costs as much as output could.
        ("\"completion_tokens\":5,\"total_tokens\":9", 4 * 3 + 15, 4 * 3 + 15),
        // Without output, the report is not believed, so nothing is refunded.
        ("\"prompt_tokens\":7", 14 + 300, 1000 + 6000),
        ("\"prompt_tokens\":7,\"total_tokens\":7", 14 + 300, 1000 + 6000),
        ("\"input_tokens\":2000,\"output_tokens\":0", 4000 + 300, 1000 + 6000),
    ] {
        for response in [whole(JSON, &document(usage)), stream(usage)] {
            let upstream = answering(response);
            for (cost, used) in [("cost = 1", tokens), (reserve, reserved)] {
                let limit = format!("{cost}\nsettle = \"openai\"\n{prices}");
                let gateway = Gateway::start(&config(&upstream.url(), "", &limit));
                let head = post("/", body.len() as u64, "");
                assert_eq!(gateway.client().fetch(&head, &body).status(), 200);
                crate::support::wait_until(&format!("{usage} {cost}: {used}"), || 10_000 - left(&gateway) == used);
            }
        }
    }
}

/// Like `assert_used`, with a name and some room: the last event may be read in part.
fn assert_used_by(gateway: &Gateway, name: &str, used: i64) {
    crate::support::wait_until(&format!("{name}: {used} used"), || (10_000 - left(gateway) - used).abs() <= 1);
}

/// What the decoder does not reach has as many tokens for each byte as what it read.
#[test]
fn gzip_beyond_the_bounds_is_extrapolated() {
    let upstream = mirror();
    let gateway = limited(&upstream, DIALECTS);
    let long = "x".repeat(40 << 20);
    let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{long}\"}}}}]}}\n\n");
    let response = whole(&format!("{EVENTS}\r\ncontent-encoding: gzip"), &gzip(&event));
    exchange(&gateway, "/", &response);
    gateway.assert_metric("usage_scan_failures_total", &[("reason", "too_large")], 1.0);
    assert_eq!(left(&gateway), 0, "more than the whole budget");
}

#[test]
fn the_input_is_charged_beside_the_delivered_output() {
    let upstream = mirror();
    let limit = "cost = { reserve = { default_add = 5, bytes_per_token = 100 } }\nsettle = \"openai\"\n\
                 weights = { m = { input = 2, output = 3 } }";
    let gateway = Gateway::start(&config(&upstream.url(), "", limit));
    let response = chunked(EVENTS, &CHUNK.repeat(30), "");
    exchange(&gateway, "/cut", &response);
    let input = response.len().div_ceil(100) as i64;
    assert_used(&gateway, input * 2 + 30 * 3);
}

/// The gateway reads nothing in tunnels, so a route whose limit reads usage opens none.
#[test]
fn a_route_with_usage_opens_no_tunnels_unless_it_lists_them() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.head()? {
            match request.get("upgrade") {
                Some(_) => {
                    peer.send(format!(
                        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-accept: {}\r\n\r\n",
                        accept(&request)
                    ))?;
                    return peer.wait_for_end();
                }
                None => peer.send("HTTP/1.1 426 No\r\ncontent-length: 0\r\n\r\n")?,
            }
        }
        Ok(())
    });
    for (settle, upgrades, status) in [
        ("settle = \"openai\"", "", 403),
        ("settle = \"openai\"", "upgrades = [\"websocket\"]\n", 101),
        ("settle = \"json:/units\"", "", 403),
        ("settle = \"header:x-cost\"", "", 101),
        ("", "", 101),
        // What refuses nothing does not refuse tunnels either.
        ("settle = \"openai\"\nmode = \"shadow\"", "", 101),
        (
            "[limit.next]\nrate = \"1000/s\"\nkey = \"all\"\ncost = 100\nsettle = \"openai\"\ncandidate_of = \"tokens\"",
            "",
            101,
        ),
    ] {
        let text = config(&upstream.url(), "", &format!("cost = 100\n{settle}"));
        let gateway = Gateway::start(&text.replace("name = \"llm\"\n", &format!("name = \"llm\"\n{upgrades}")));
        for offer in ["websocket", "websocket,", "WebSocket", "h2c, websocket"] {
            let mut client = gateway.client();
            client.send(get(
                "/v1/realtime",
                &format!("connection: Upgrade\r\nupgrade: {offer}\r\nsec-websocket-key: x\r\n"),
            ));
            assert_eq!(client.try_read_head().unwrap().status(), status, "{settle} {upgrades} {offer}");
        }
    }
}

/// A member that the API of the path does not know announces nothing.
#[test]
fn only_members_of_the_api_are_announced() {
    let upstream = Upstream::text("");
    let limit = "cost = { reserve = { add = [\"json:/max_tokens\", \"json:/max_completion_tokens\", \
                 \"json:/max_output_tokens\"], default_add = 500, at_most = 3000 } }\nsettle = \"openai\"";
    for (path, member, output) in [
        ("/v1/chat/completions", "max_tokens", 7),
        ("/v1/chat/completions", "max_completion_tokens", 7),
        ("/v1/chat/completions", "max_output_tokens", 500),
        ("/v1/Chat/Completions/", "max_output_tokens", 500),
        ("/v1/completions", "max_completion_tokens", 500),
        ("/v1/responses", "max_output_tokens", 7),
        ("/v1/responses", "max_tokens", 500),
        ("/v1/messages", "max_tokens", 7),
        ("/own", "max_tokens", 500),
    ] {
        let gateway = Gateway::start(&config(&upstream.url(), "", limit));
        let body = format!("{{\"{member}\":7}}");
        let head = post(path, body.len() as u64, "content-type: application/json\r\n");
        assert_eq!(gateway.client().fetch(&head, &body).status(), 200);
        assert_used(&gateway, (body.len().div_ceil(4)) as i64 + output);
    }
    // The usage of a response in the background is in no response to its request.
    for (body, output) in
        [("{\"background\":true}", 2995), ("{\"background\":false}", 500), ("{\"background\":1}", 2996)]
    {
        let gateway = Gateway::start(&config(&upstream.url(), "", limit));
        let head = post("/v1/responses", body.len() as u64, "content-type: application/json\r\n");
        assert_eq!(gateway.client().fetch(&head, body).status(), 200);
        assert_used(&gateway, (body.len().div_ceil(4) as i64 + output).min(3000));
    }
    // The gateway finds that out also if it reads no bodies otherwise.
    let limit = "cost = { reserve = { default_add = 500, at_most = 3000 } }\nsettle = \"openai\"";
    for (path, fields, body, used) in [
        // A run continues after its response, and when the client leaves a stream. Counting generates nothing.
        ("/v1/threads/t1/runs", "application/json", "{}", 3000),
        ("/v1/threads/t1/runs", "application/json", "{\"stream\":false}", 3000),
        ("/v1/threads/t1/runs", "application/json", "{\"stream\":true}", 3000),
        ("/v1beta/interactions", "application/json", "{\"background\":true}", 3000),
        ("/v1/messages/count_tokens", "application/json", "{\"max_tokens\":50}", 0),
        ("/v1/responses/input_tokens", "text/plain", "{}", 0),
        ("/v1beta/models/gemini:countTokens", "application/json", "{}", 0),
        ("/v1/responses", "application/json", "{\"background\":true}", 3000),
        ("/v1/responses", "application/json; charset=latin1", "{\"background\":true}", 3000),
        ("/v1/responses", "application/json", "{}", 501),
        ("/v1/chat/completions", "application/json", "{}", 501),
    ] {
        let gateway = Gateway::start(&config(&upstream.url(), "", limit));
        let head = post(path, body.len() as u64, &format!("content-type: {fields}\r\n"));
        assert_eq!(gateway.client().fetch(&head, body).status(), 200);
        assert_used(&gateway, used);
    }
}

/// Requests with pictures and long conversations are read like others, within memory that all of them share.
#[test]
fn large_bodies_are_asked_for_their_usage() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let text = config(&upstream.url(), "", "cost = 100\nsettle = \"openai\"\nask_usage = true");
    let gateway = Gateway::start(&text.replace("max_cost_body = \"64KiB\"\n", ""));
    for (length, asked) in [(900_000, true), (1_100_000, false)] {
        let body = format!("{{\"stream\":true,\"messages\":\"{}\"}}", "x".repeat(length));
        let head = post("/v1/chat/completions", body.len() as u64, "content-type: application/json\r\n");
        assert_eq!(gateway.client().fetch(&head, &body).status(), 200);
        assert_eq!(upstream.request().text().contains("include_usage"), asked, "{length}");
    }
}

#[test]
fn batches_are_refused_where_responses_state_the_cost() {
    let upstream = mirror();
    let gateway = limited(&upstream, DIALECTS);
    let body = "{\"input_file_id\":\"f\"}";
    for path in [
        "/v1/batches",
        "/v1/Batches/",
        "/v1/messages/batches",
        "/v1/batch/jobs",
        "/v1/b%61tches",
        "/v1/batches;x=1",
        "/v1/realtime/client_secrets",
        "/v1/models/o/m/predictions",
        "/v2/e1/run",
    ] {
        let response =
            gateway.client().fetch(&post(path, body.len() as u64, "content-type: application/json\r\n"), body);
        assert_eq!(response.status(), 403, "{path}");
        assert!(response.text().contains("no response to it reports its tokens"), "{}", response.text());
    }
    let refused = [("route", "llm"), ("limit", "tokens"), ("reason", "llm_batch")];
    gateway.assert_metric("rejections_total", &refused, 9.0);
    assert_eq!(left(&gateway), 10_000, "a refused request costs nothing");
    // Other APIs name their paths like that, too.
    let gateway = limited(&upstream, "settle = [\"json:/cost\"]");
    let response = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"cost\": 7}";
    let head = post("/v1/batches", response.len() as u64, "content-type: text/plain\r\n");
    assert_eq!(gateway.client().fetch(&head, response).status(), 200);
    crate::support::wait_until("the cost is charged", || left(&gateway) == 9_993);
    // A limit that exempts the path does not refuse it.
    let exempt = format!("{DIALECTS}\nwhen = {{ path = \"!~ ^/v1/batches$\" }}");
    let gateway = limited(&upstream, &exempt);
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let head = post("/v1/batches", response.len() as u64, "content-type: text/plain\r\n");
    assert_eq!(gateway.client().fetch(&head, response).status(), 200);
}
