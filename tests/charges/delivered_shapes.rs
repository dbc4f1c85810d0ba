//! The text of a response is charged once, in every shape and framing that servers use.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::usage_ends::{ALL, ESTIMATE, chunked, left, limited};
use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";

/// Bytes of text in a response, which are 1000 tokens.
const LENGTH: usize = 4000;
/// The tokens of the text, and of what is around it.
const DELIVERED: RangeInclusive<i64> = 1000..=1012;

/// A gateway whose limit reads the usage of one API, and what it has charged.
struct Charged {
    gateway: Gateway,
    /// The next response of the server.
    response: Arc<Mutex<Vec<u8>>>,
    used: i64,
    responses: f64,
    _upstream: Upstream,
}

impl Charged {
    fn new(api: &str) -> Charged {
        let response = Arc::new(Mutex::new(Vec::new()));
        let next = response.clone();
        let upstream = Upstream::start(move |peer| {
            while let Some(request) = peer.request()? {
                let response = next.lock().clone();
                peer.send(&response)?;
                if request.target() == "/cut" {
                    return Ok(());
                }
            }
            Ok(())
        });
        let gateway = limited(&upstream, &format!("settle = \"{api}\""));
        Charged { gateway, response, used: 0, responses: 0.0, _upstream: upstream }
    }

    /// Sends a request with this response, and checks what it costs. `is_cut`: the server closes instead of ending it.
    #[track_caller]
    fn check(&mut self, (content_type, body): (&str, &str), is_cut: bool, costs: RangeInclusive<i64>) {
        let (target, end) = if is_cut { ("/cut", "") } else { ("/", "0\r\n\r\n") };
        *self.response.lock() = chunked(content_type, body, end);
        let mut client = self.gateway.client();
        client.send(post(target, 0, ""));
        let _ = client.try_read_response("POST");
        self.responses += 1.0;
        let settled = |gateway: &Gateway| -> f64 {
            let of_result = |result| gateway.metric("usage_settlements_total", &[("result", result)]).unwrap_or(0.0);
            of_result("settled") + of_result("unproven")
        };
        wait_until("the response is settled", || settled(&self.gateway) >= self.responses);
        let start = &body[..body.len().min(100)];
        let what = format!("{content_type} {start}, cut {is_cut}: {costs:?}");
        wait_until(&what, || costs.contains(&(ALL - left(&self.gateway) - self.used)));
        self.used = ALL - left(&self.gateway);
    }
}

/// A document in each framing.
fn framings(document: &str) -> [(&'static str, String); 4] {
    [
        (JSON, document.to_owned()),
        (EVENTS, format!("data: {document}\n\n")),
        (EVENTS, format!("{document}\n")),
        (LINES, format!("{document}\n")),
    ]
}

#[test]
fn every_shape_counts_in_every_framing() {
    let long = "x".repeat(LENGTH);
    for (api, document) in [
        ("openai", r#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","content":"TEXT"}}]}"#),
        ("openai", r#"{"object":"chat.completion.chunk","choices":[{"delta":{"content":"TEXT"}}]}"#),
        ("openai", r#"{"choices":[{"message":{"content":null,"audio":{"data":"AAAA","transcript":"TEXT"}}}]}"#),
        ("openai", r#"{"choices":[{"text":"TEXT"}]}"#),
        ("openai", r#"{"object":"response","output":[{"type":"message","content":[{"text":"TEXT"}]}]}"#),
        ("openai", r#"{"output":[{"type":"apply_patch_call","operation":{"type":"a","diff":"TEXT"}}]}"#),
        ("openai", r#"{"type":"response.output_text.delta","delta":"TEXT"}"#),
        ("openai", r#"{"type":"response.output_text.done","text":"TEXT"}"#),
        ("openai", r#"{"type":"response.output_item.done","item":{"type":"function_call","arguments":"TEXT"}}"#),
        ("openai", r#"{"type":"response.completed","response":{"instructions":"abc","output":[{"content":"TEXT"}]}}"#),
        ("openai", r#"{"text":"TEXT"}"#),
        ("openai", r#"{"message":{"role":"assistant","content":"TEXT"},"done":false}"#),
        ("openai", r#"{"strange":{"words":["TEXT"]},"choices":[{"message":{"content":""}}]}"#),
        ("anthropic", r#"{"type":"message","content":[{"type":"text","text":"TEXT"}]}"#),
        ("anthropic", r#"{"type":"message","content":[{"type":"redacted_thinking","data":"TEXT"}]}"#),
        ("anthropic", r#"{"type":"content_block_start","content_block":{"type":"redacted_thinking","data":"TEXT"}}"#),
        ("anthropic", r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"TEXT"}}"#),
        ("anthropic", r#"{"type":"message_start","message":{"role":"assistant","content":[{"text":"TEXT"}]}}"#),
        ("gemini", r#"{"candidates":[{"content":{"parts":[{"text":"TEXT"}],"role":"model"}}]}"#),
        ("gemini", r#"[{"candidates":[{"content":{"parts":[{"text":"TEXT"}],"role":"model"}}]}]"#),
        ("bedrock", r#"{"output":{"message":{"content":[{"text":"TEXT"}]}}}"#),
        ("bedrock", r#"{"contentBlockDelta":{"delta":{"text":"TEXT"}}}"#),
    ] {
        let mut charged = Charged::new(api);
        for (content_type, body) in framings(document) {
            let body = body.replace("TEXT", &long);
            charged.check((content_type, &body), false, DELIVERED);
            let text_end = body.find(&long).unwrap() + LENGTH;
            charged.check((content_type, &body[..text_end]), true, DELIVERED);
        }
    }
}

/// Usage that is reported decides, in every framing, and texts of a document with a report are part of it.
#[test]
fn a_report_decides_in_every_framing() {
    let long = "x".repeat(LENGTH);
    for (api, document, used) in [
        (
            "openai",
            r#"{"choices":[{"message":{"content":"TEXT"}}],"usage":{"prompt_tokens":4,"completion_tokens":3}}"#,
            7,
        ),
        (
            "openai",
            r#"{"choices":[{"delta":{"content":"TEXT"}}],"usage":{"prompt_tokens":4e0,"completion_tokens":3}}"#,
            7,
        ),
        ("openai", r#"{"data":[{"b":"TEXT"}],"usage":{"prompt_tokens":1.2e1,"total_tokens":12}}"#, 12),
        (
            "openai",
            r#"{"type":"response.completed","response":{"output":[{"content":"TEXT"}],"usage":{"input_tokens":5,"output_tokens":4}}}"#,
            9,
        ),
        ("anthropic", r#"{"content":[{"text":"TEXT"}],"usage":{"input_tokens":5,"output_tokens":3}}"#, 8),
        (
            "gemini",
            r#"{"candidates":[{"content":{"parts":[{"text":"TEXT"}]}}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":4,"totalTokenCount":9}}"#,
            9,
        ),
        (
            "bedrock",
            r#"{"output":{"message":{"content":[{"text":"TEXT"}]}},"usage":{"inputTokens":5,"outputTokens":5}}"#,
            10,
        ),
    ] {
        let mut charged = Charged::new(api);
        for (content_type, body) in framings(document) {
            charged.check((content_type, &body.replace("TEXT", &long)), false, used..=used);
        }
    }
}

/// Pictures and lists of vectors are no text, nor are the names around a text that has not begun.
#[test]
fn what_is_no_text_leaves_the_estimate() {
    let long = "x".repeat(LENGTH);
    for (api, document) in [
        ("openai", r#"{"created":1,"data":[{"b64_json":"TEXT"}]}"#),
        ("openai", r#"{"object":"list","data":[{"object":"embedding","embedding":"TEXT"}]}"#),
        ("openai", r#"{"type":"response.created","response":{"instructions":"TEXT","output":[]}}"#),
        ("openai", r#"{"id":"TEXT","choices":[{"delta":{"role":"assistant","content":""}}]}"#),
        ("anthropic", r#"{"type":"message_start","message":{"id":"TEXT","content":[]}}"#),
        ("gemini", r#"{"candidates":[{"content":{"parts":[{"inlineData":{"mimeType":"image/png","data":"TEXT"}}]}}]}"#),
    ] {
        let mut charged = Charged::new(api);
        for (content_type, body) in framings(document) {
            charged.check((content_type, &body.replace("TEXT", &long)), true, ESTIMATE..=ESTIMATE);
        }
    }
}

/// Events that repeat what earlier ones delivered do not count again.
#[test]
fn a_repeated_text_counts_once() {
    let long = "x".repeat(LENGTH);
    let event = |document: &str| format!("data: {document}\n\n");
    let deltas = |shape: &str| event(&shape.replace("TEXT", &long[..400])).repeat(10);
    let whole = |shape: &str| event(&shape.replace("TEXT", &long));
    let responses = deltas(r#"{"type":"response.output_text.delta","delta":"TEXT"}"#)
        + &whole(r#"{"type":"response.output_text.done","text":"TEXT"}"#)
        + &whole(r#"{"type":"response.content_part.done","part":{"type":"output_text","text":"TEXT"}}"#)
        + &whole(r#"{"type":"response.output_item.done","item":{"content":[{"text":"TEXT"}]}}"#)
        + &whole(r#"{"type":"response.completed","response":{"output":[{"content":[{"text":"TEXT"}]}]}}"#);
    let chat = deltas(r#"{"choices":[{"delta":{"content":"TEXT"}}]}"#);
    let last = whole(r#"{"choices":[{"delta":{"content":""},"message":{"content":"TEXT"}}]}"#);
    let growing: String = (1..=10)
        .map(|count| {
            let (piece, all) = (&long[..400], &long[..400 * count]);
            event(&format!(r#"{{"choices":[{{"message":{{"content":"{all}"}},"delta":{{"content":"{piece}"}}}}]}}"#))
        })
        .collect();
    let claude = event(r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#)
        + &deltas(r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"TEXT"}}"#)
        + &event(r#"{"type":"content_block_stop","index":0}"#);
    for (api, stream) in
        [("openai", responses), ("openai", chat.clone() + &last), ("openai", growing), ("anthropic", claude)]
    {
        let mut charged = Charged::new(api);
        charged.check((EVENTS, &stream), false, DELIVERED);
        charged.check((EVENTS, &stream), true, DELIVERED);
        charged.check((LINES, &stream.replace("data: ", "").replace("\n\n", "\n")), true, DELIVERED);
    }
}
