//! Response compression: negotiation, headers, streaming, broken and hostile peers. Real decoders read what the gateway
//! sends.

mod heads;
mod limits;
mod settings;
mod streams;

use std::io::{self, Read};

use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::upstream::Upstream;

/// Text of this length that compresses like a page.
fn page(length: usize) -> String {
    let words = ["<div class=\"row\">", "item", "price: ", "</div>\n", "<a href=\"/item/", "\">more</a>", "stock"];
    let mut text = String::with_capacity(length + 64);
    let mut state: u64 = 7;
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(words[(state >> 33) as usize % words.len()]);
        text.push_str(&(state >> 52).to_string());
    }
    text.truncate(length);
    text
}

/// A response with a body of known length. Each line of `fields` ends with CRLF.
fn response(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n{fields}content-length: {}\r\n\r\n{body}", body.len())
}

/// A chunk of a chunked body.
fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

fn route(upstream: &Upstream, more: &str) -> String {
    format!("[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\n{more}\n", upstream.url())
}

/// A gateway that compresses the responses of `upstream`, and logs.
fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::with("access_log = true\n", &route(upstream, "compress = true"))
}

fn accepting(codings: &str) -> String {
    format!("accept-encoding: {codings}\r\n")
}

/// Decodes a complete body. An error if it has no proper end or something follows it.
fn decode(coding: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (text, is_whole) = decode_so_far(coding, bytes);
    if is_whole { Ok(text) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Decodes the bytes that have arrived, and returns whether they are the whole body.
fn decode_so_far(coding: &str, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut text = Vec::new();
    let is_whole = match coding {
        "gzip" => {
            let mut decoder = flate2::bufread::GzDecoder::new(bytes);
            decoder.read_to_end(&mut text).is_ok() && decoder.into_inner().is_empty()
        }
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut text).is_ok(),
        "zstd" => {
            let (mut decoder, mut source) = (zstd_safe::DCtx::create(), zstd_safe::InBuffer::around(bytes));
            let mut missing = 1;
            loop {
                let start = text.len();
                text.reserve(1 << 20);
                let mut target = zstd_safe::OutBuffer::around_pos(&mut text, start);
                missing = decoder.decompress_stream(&mut target, &mut source).unwrap_or(missing);
                let written = target.pos() - start;
                if source.pos() == bytes.len() && written == 0 || missing == 0 {
                    break;
                }
            }
            missing == 0 && source.pos() == bytes.len()
        }
        other => panic!("not a coding: {other}"),
    };
    (text, is_whole)
}

/// The decoded text of a response.
#[track_caller]
fn text(message: &Message) -> String {
    let bytes = match message.get("content-encoding") {
        Some(coding) => decode(coding, &message.body).unwrap_or_else(|error| panic!("{error}:\n{}", message.head)),
        None => message.body.clone(),
    };
    String::from_utf8(bytes).unwrap()
}
