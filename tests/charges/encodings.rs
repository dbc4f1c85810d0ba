//! Requests and responses of language models in other encodings: texts that are not UTF-8, with byte order marks, and
//! compressed ones, whether their headers say so or not. None costs less than its content implies, and none hangs.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};

use super::usage_ends::{config, left};
use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const JSON: &str = "content-type: application/json\r\n";
const GZIP: &str = "content-type: application/json\r\ncontent-encoding: gzip\r\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The text in UTF-16 or UTF-32, in either byte order, with a mark if it begins with one.
fn wide(text: &str, size: usize, is_big: bool) -> Vec<u8> {
    let units: Vec<u32> = match size {
        2 => text.encode_utf16().map(u32::from).collect(),
        _ => text.chars().map(u32::from).collect(),
    };
    let bytes = units.into_iter().flat_map(|unit| match is_big {
        true => unit.to_be_bytes()[4 - size..].to_vec(),
        false => unit.to_le_bytes()[..size].to_vec(),
    });
    bytes.collect()
}

/// All encodings of a text in Unicode, but for UTF-8 itself.
fn encodings(text: &str) -> Vec<Vec<u8>> {
    let marked = format!("\u{feff}{text}");
    let of = |text: &str| [(2, false), (2, true), (4, false), (4, true)].map(|(size, big)| wide(text, size, big));
    of(text).into_iter().chain(of(&marked)).collect()
}

#[test]
fn no_encoding_of_a_request_hides_its_output() {
    let limit = "cost = { reserve = { add = [\"json:/max_tokens\"], default_add = 500, at_most = 3000 } }\n\
                 settle = \"openai\"\nask_usage = true";
    let upstream = Upstream::text("");
    let gateway = Gateway::start(&config(&upstream.url(), "", limit).replace("10000/", "900000/"));
    let body = "{\"messages\":[],\"max_tokens\":7}";
    let twice = gzip(&gzip(body.as_bytes()));
    let utf16 = "content-type: application/json; charset=utf-16\r\n";
    let mut requests: Vec<(String, Vec<u8>)> =
        encodings(body).into_iter().map(|body| (JSON.to_owned(), body)).collect();
    requests.extend(encodings(body).into_iter().map(|body| (utf16.to_owned(), body)));
    requests.push((JSON.to_owned(), format!("\u{feff}{body}").into_bytes()));
    for coding in
        ["gzip", "x-gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip", "unknown", "gzip;x", "none"]
    {
        for bytes in [body.as_bytes().to_vec(), gzip(body.as_bytes()), deflate(body.as_bytes()), twice.clone()] {
            requests.push((format!("{JSON}content-encoding: {coding}\r\n"), bytes));
        }
    }
    // The headers do not say that it is compressed, or it is cut off.
    requests.push((JSON.to_owned(), gzip(body.as_bytes())));
    requests.push((GZIP.to_owned(), twice[..10].to_vec()));
    for (fields, body) in requests {
        let before = left(&gateway);
        let head = post("/v1/chat/completions", body.len() as u64, &fields);
        assert_eq!(gateway.client().fetch(&head, &body).status(), 200, "{fields}");
        assert_eq!(upstream.request().body, body, "{fields}");
        wait_until(&format!("{fields} {body:?} costs the most"), || before - left(&gateway) == 3000);
    }
}

/// A response, its headers, and the least tokens that it costs. `Err`: the tokens that its usage reports.
type Case = (String, Vec<u8>, Result<i64, i64>);

#[test]
fn no_encoding_of_a_response_makes_it_cheaper() {
    let content = |text: &str| format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]}}");
    let with_usage = format!(
        "{{\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":2000,\"total_tokens\":2005}},{}",
        &content("yes")[1..]
    );
    let marked = format!("\u{feff}{with_usage}").into_bytes();
    let (text, chinese) = ("some words ".repeat(100), "\u{4f60}\u{597d}".repeat(500));
    let mut cases: Vec<Case> = vec![
        (JSON.to_owned(), marked.clone(), Err(2005)),
        (GZIP.to_owned(), gzip(&marked), Err(2005)),
        (GZIP.replace("gzip", "identity, x-gzip"), gzip(&marked), Err(2005)),
        (JSON.replace("application/json", "application/x-ndjson"), marked, Err(2005)),
    ];
    for text in [&text, &chinese] {
        let least = text.len() as i64 / 4;
        for body in encodings(&content(text)) {
            cases.push((JSON.to_owned(), body.clone(), Ok(least)));
            cases.push((JSON.replace("json", "json; charset=utf-16"), body.clone(), Ok(least)));
            cases.push((GZIP.to_owned(), gzip(&body), Ok(least)));
        }
    }
    // Of what cannot be decoded, each byte is a token. Its content cannot be compressed much.
    let random: String =
        (0..4000_u32).map(|n| char::from(b'a' + (n.wrapping_mul(n ^ 0x9e37) >> 7) as u8 % 26)).collect();
    let plain = content(&random).into_bytes();
    let least = random.len() as i64 / 4;
    for (fields, body) in [
        (JSON.to_owned(), gzip(&plain)),
        (JSON.replace("application/json", "text/event-stream"), gzip(&plain)),
        (JSON.replace("application/json", "text/plain"), gzip(&plain)),
        (GZIP.to_owned(), plain.clone()),
        (GZIP.to_owned(), gzip(&gzip(&plain))),
        (GZIP.to_owned(), deflate(&plain)),
        (GZIP.replace("gzip", "gzip, gzip"), gzip(&gzip(&plain))),
        (GZIP.replace("gzip", "deflate"), deflate(&plain)),
        (GZIP.replace("gzip", "br"), deflate(&plain)),
        (GZIP.replace("gzip", "zstd"), plain.clone()),
        (GZIP.replace("gzip", "unknown"), plain.clone()),
        (GZIP.replace("\r\ncontent-encoding", "\r\ncontent-encoding: gzip\r\ncontent-encoding"), gzip(&gzip(&plain))),
    ] {
        cases.push((fields, body, Ok(least)));
    }
    let cases: Vec<(Case, bool)> = cases.into_iter().flat_map(|case| [(case.clone(), false), (case, true)]).collect();
    let responses: Vec<Vec<u8>> =
        cases.iter().map(|((fields, body, _), is_cut)| response(fields, body, *is_cut)).collect();
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            let number = request.target().rsplit('=').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let response: &Vec<u8> = &responses[number];
            peer.send(response)?;
        }
        Ok(())
    });
    let text = config(&upstream.url(), "", "cost = 1\nsettle = \"openai\"").replace("10000/", "900000/");
    let gateway = Gateway::start(&text);
    for (number, ((fields, body, cost), is_cut)) in cases.into_iter().enumerate() {
        let before = left(&gateway);
        let message = gateway.client().fetch(&post(&format!("/v1/chat/completions?n={number}"), 0, ""), "");
        assert_eq!(message.body, sent_part(&body, is_cut));
        let is_paid = |used: i64| match cost {
            Err(reported) if !is_cut => used == reported,
            // Cut off after the report, or before it.
            Err(_) => used >= 1,
            Ok(least) if is_cut => used >= least * 3 / 4,
            Ok(least) => used >= least && used <= 10 * least,
        };
        wait_until(&format!("{fields} {cost:?}, cut: {is_cut}"), || is_paid(before - left(&gateway)));
    }
}

/// The part of a body that the server sends.
fn sent_part(body: &[u8], is_cut: bool) -> &[u8] {
    if is_cut { &body[..body.len() - body.len() / 8] } else { body }
}

fn response(fields: &str, body: &[u8], is_cut: bool) -> Vec<u8> {
    let body = sent_part(body, is_cut);
    let head = format!("HTTP/1.1 200 OK\r\n{fields}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
