//! Writes the head of a request as bytes of HTTP/1.1.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};

use crate::proxy::words::spelling::SpelledNames;

/// Initial capacity for a head; most heads fit.
const HEAD_SIZE: usize = 1024;
/// Hexadecimal digits of a span id.
const SPAN_ID: usize = 16;

/// How the end of a request body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body. The head states a length of 0 if the client stated one.
    None,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Returns the framing of a request without a body. Over HTTP/1.1, requests whose method usually has a body state a length
    /// even without one (RFC 9110, section 8.6), for which HTTP/2 and HTTP/3 end the stream.
    pub fn of_bodiless(version: Version, method: &Method) -> Framing {
        let has_usual_body = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
        let is_on_stream = matches!(version, Version::HTTP_2 | Version::HTTP_3);
        if is_on_stream && has_usual_body { Framing::Length(0) } else { Framing::None }
    }
}

/// Which `Host` the server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// The `Host` of the request, or the server's own if it has none.
    Received,
    /// The server's own host.
    Server,
}

/// A head, complete except for what depends on the attempt: the server's own `Host`, and the span id.
#[derive(Debug)]
pub struct RequestHead {
    bytes: Vec<u8>,
    /// Offset at which the server's own `Host` is inserted.
    host_at: Option<usize>,
    /// Offset of the span id that each attempt replaces.
    span_at: Option<usize>,
}

impl RequestHead {
    /// Writes a head. The framing headers come from `framing`, whatever `headers` say. `write_more` appends further
    /// lines.
    pub fn encode(
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        host: HostSource,
        framing: Framing,
        write_more: impl FnOnce(&mut Vec<u8>),
    ) -> RequestHead {
        let mut bytes = Vec::with_capacity(HEAD_SIZE);
        bytes.extend_from_slice(method.as_str().as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(target.as_bytes());
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        let host_at = match headers.get(HOST).filter(|_| host == HostSource::Received) {
            Some(host) => {
                write_header(&mut bytes, &HOST, host);
                None
            }
            None => Some(bytes.len()),
        };
        let mut states_length = false;
        for (name, value) in headers {
            if *name == CONTENT_LENGTH {
                states_length = true;
            } else if *name != HOST && *name != TRANSFER_ENCODING {
                write_header(&mut bytes, name, value);
            }
        }
        write_more(&mut bytes);
        match framing {
            Framing::None if !states_length => {}
            Framing::None => bytes.extend_from_slice(b"content-length: 0\r\n"),
            Framing::Length(length) => {
                bytes.extend_from_slice(b"content-length: ");
                bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        bytes.extend_from_slice(b"\r\n");
        RequestHead { bytes, host_at, span_at: None }
    }

    /// Finds the span id that each attempt replaces: that of the `traceparent` header with the value `parent`, unless
    /// an edit has changed it.
    pub fn find_span_id(&mut self, parent: &str) {
        let id_at = parent.rfind('-').and_then(|flags| flags.checked_sub(SPAN_ID));
        let position = memchr::memmem::find(&self.bytes, format!("\r\ntraceparent: {parent}\r\n").as_bytes());
        self.span_at = position.zip(id_at).map(|(line, id)| line + "\r\ntraceparent: ".len() + id);
    }

    /// Writes names of headers as the client has written them. The lines that depend on the attempt keep theirs.
    pub fn respell(&mut self, names: &SpelledNames) {
        names.respell_head(&mut self.bytes);
    }

    /// Takes the bytes for a server with the host `host`, and with this span id. A head that is the same for all
    /// servers is empty afterwards.
    pub fn take_bytes_for(&mut self, host: &HeaderValue, span: Option<u64>) -> Vec<u8> {
        self.bytes_for_retry(host, span).unwrap_or_else(|| std::mem::take(&mut self.bytes))
    }

    /// Returns the bytes for another server, or `None` if they are the same for all servers.
    pub fn bytes_for_retry(&mut self, host: &HeaderValue, span: Option<u64>) -> Option<Vec<u8>> {
        if let (Some(at), Some(span)) = (self.span_at, span) {
            self.bytes[at..at + SPAN_ID].copy_from_slice(format!("{span:016x}").as_bytes());
        }
        let Some(host_at) = self.host_at else { return self.span_at.map(|_| self.bytes.clone()) };
        let (before, after) = self.bytes.split_at(host_at);
        let mut bytes = Vec::with_capacity(HEAD_SIZE);
        bytes.extend_from_slice(before);
        write_header(&mut bytes, &HOST, host);
        bytes.extend_from_slice(after);
        Some(bytes)
    }
}

/// Appends a header line.
pub fn write_header(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_on_a_stream_states_that_it_has_no_body_if_its_method_usually_has_one() {
        for (version, is_on_stream) in [(Version::HTTP_11, false), (Version::HTTP_2, true), (Version::HTTP_3, true)] {
            let states_length = |method| matches!(Framing::of_bodiless(version, &method), Framing::Length(0));
            assert_eq!([Method::POST, Method::PUT, Method::PATCH].map(states_length), [is_on_stream; 3], "{version:?}");
            assert_eq!([Method::GET, Method::DELETE].map(states_length), [false; 2], "{version:?}");
        }
    }

    #[test]
    fn each_server_is_told_of_a_span_of_its_own() {
        let host = HeaderValue::from_static("server:80");
        let id = |span: u64| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01");
        for of in [HostSource::Received, HostSource::Server] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("a"));
            headers.insert("traceparent", HeaderValue::try_from(id(1)).unwrap());
            let framing = Framing::None;
            let mut head = RequestHead::encode(&Method::GET, "/", &headers, of, framing, |_| {});
            head.find_span_id(&id(1));
            for span in [2, u64::MAX] {
                let bytes = String::from_utf8(head.take_bytes_for(&host, Some(span))).unwrap();
                assert!(bytes.contains(&format!("\r\ntraceparent: {}\r\n", id(span))), "{bytes}");
                assert!(bytes.contains(if of == HostSource::Received { "host: a\r\n" } else { "host: server:80\r\n" }));
            }
            // An edit has changed the header, which then stays.
            let mut head = RequestHead::encode(&Method::GET, "/", &headers, of, framing, |_| {});
            head.find_span_id(&id(3));
            assert!(String::from_utf8(head.take_bytes_for(&host, Some(2))).unwrap().contains(&id(1)));
        }
    }

    #[test]
    fn a_head_has_one_host_and_one_framing_whatever_its_fields_say() {
        let headers: HeaderMap =
            [(CONTENT_LENGTH, "9"), (TRANSFER_ENCODING, "gzip"), (HOST, "a.test"), (HOST, "b.test")]
                .into_iter()
                .map(|(name, value)| (name, HeaderValue::from_static(value)))
                .collect();
        let head = |headers: &HeaderMap, host, framing| {
            let write_more = |out: &mut Vec<u8>| out.extend_from_slice(b"x-told: 1\r\n");
            let mut head = RequestHead::encode(&Method::POST, "/x?y", headers, host, framing, write_more);
            let written = ["first:1", "server:80"].map(|server| {
                let server = HeaderValue::from_static(server);
                head.bytes_for_retry(&server, None).map(|bytes| String::from_utf8(bytes).unwrap())
            });
            let last = String::from_utf8(head.take_bytes_for(&HeaderValue::from_static("server:80"), None)).unwrap();
            if let [Some(first), Some(again)] = written {
                assert_eq!((first.replace("first:1", "server:80"), again), (last.clone(), last.clone()));
            }
            last
        };
        let line = "POST /x?y HTTP/1.1\r\n";
        for (host, framing, rest) in [
            (HostSource::Received, Framing::Length(5), "content-length: 5\r\n\r\n"),
            (HostSource::Server, Framing::Chunked, "transfer-encoding: chunked\r\n\r\n"),
            (HostSource::Received, Framing::None, "content-length: 0\r\n\r\n"),
        ] {
            let name = if host == HostSource::Server { "server:80" } else { "a.test" };
            assert_eq!(head(&headers, host, framing), format!("{line}host: {name}\r\nx-told: 1\r\n{rest}"));
            let rest = if framing == Framing::None { "\r\n" } else { rest };
            assert_eq!(head(&HeaderMap::new(), host, framing), format!("{line}host: server:80\r\nx-told: 1\r\n{rest}"));
        }
    }
}
