//! The head of a request as it is sent.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// What most heads fit in.
const HEAD_SIZE: usize = 1024;
/// Digits of the id of a span.
const SPAN_ID: usize = 16;

/// How the end of a request body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none. `announced`: the client said so itself, by a length of 0.
    None {
        announced: bool,
    },
    Length(u64),
    Chunked,
}

/// Which `Host` the upstream reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostField {
    /// The request's, and the server's own only where it has none.
    Received,
    /// The server's own.
    OfServer,
}

/// A head, whole but for a `Host` that is the server's own, and the span that its sending is.
#[derive(Debug)]
pub struct RequestHead {
    bytes: Vec<u8>,
    /// Where that goes.
    host_at: Option<usize>,
    /// Where the id of that span stands.
    span_at: Option<usize>,
}

impl RequestHead {
    /// The length or coding of the body is written from `framing`, whatever `headers` say. `tell` appends
    /// further lines.
    pub fn write(
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        host: HostField,
        framing: Framing,
        tell: impl FnOnce(&mut Vec<u8>),
    ) -> RequestHead {
        let mut bytes = Vec::with_capacity(HEAD_SIZE);
        bytes.extend_from_slice(method.as_str().as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(target.as_bytes());
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        let host_at = match headers.get(HOST).filter(|_| host == HostField::Received) {
            Some(host) => {
                write_field(&mut bytes, &HOST, host);
                None
            }
            None => Some(bytes.len()),
        };
        for (name, value) in headers {
            if *name != HOST && *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING {
                write_field(&mut bytes, name, value);
            }
        }
        tell(&mut bytes);
        match framing {
            Framing::None { announced: false } => {}
            Framing::None { announced: true } => bytes.extend_from_slice(b"content-length: 0\r\n"),
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

    /// `parent` is its `traceparent`, if no edit has changed that: the id of a span in it is replaced.
    pub fn find_parent(&mut self, parent: &str) {
        let id_at = parent.rfind('-').and_then(|flags| flags.checked_sub(SPAN_ID));
        let found = memchr::memmem::find(&self.bytes, format!("\r\ntraceparent: {parent}\r\n").as_bytes());
        self.span_at = found.zip(id_at).map(|(line, id)| line + "\r\ntraceparent: ".len() + id);
    }

    /// The bytes for a server whose authority is `host`, in a span of that id; without them nothing is left of a head
    /// that is the same for every server.
    pub fn take_for(&mut self, host: &HeaderValue, span: Option<u64>) -> Vec<u8> {
        self.take_again_for(host, span).unwrap_or_else(|| std::mem::take(&mut self.bytes))
    }

    /// The bytes for another server, if they are others.
    pub fn take_again_for(&mut self, host: &HeaderValue, span: Option<u64>) -> Option<Vec<u8>> {
        if let (Some(at), Some(span)) = (self.span_at, span) {
            self.bytes[at..at + SPAN_ID].copy_from_slice(format!("{span:016x}").as_bytes());
        }
        let Some(host_at) = self.host_at else { return self.span_at.map(|_| self.bytes.clone()) };
        let (before, after) = self.bytes.split_at(host_at);
        let mut bytes = Vec::with_capacity(HEAD_SIZE);
        bytes.extend_from_slice(before);
        write_field(&mut bytes, &HOST, host);
        bytes.extend_from_slice(after);
        Some(bytes)
    }
}

pub fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
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
    fn each_server_is_told_of_a_span_of_its_own() {
        let host = HeaderValue::from_static("server:80");
        let id = |span: u64| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01");
        for of in [HostField::Received, HostField::OfServer] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("a"));
            headers.insert("traceparent", HeaderValue::try_from(id(1)).unwrap());
            let framing = Framing::None { announced: false };
            let mut head = RequestHead::write(&Method::GET, "/", &headers, of, framing, |_| {});
            head.find_parent(&id(1));
            for span in [2, u64::MAX] {
                let bytes = String::from_utf8(head.take_for(&host, Some(span))).unwrap();
                assert!(bytes.contains(&format!("\r\ntraceparent: {}\r\n", id(span))), "{bytes}");
                assert!(bytes.contains(if of == HostField::Received { "host: a\r\n" } else { "host: server:80\r\n" }));
            }
            // An edit has changed it: what was written stays.
            let mut head = RequestHead::write(&Method::GET, "/", &headers, of, framing, |_| {});
            head.find_parent(&id(3));
            assert!(String::from_utf8(head.take_for(&host, Some(2))).unwrap().contains(&id(1)));
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
            let tell = |out: &mut Vec<u8>| out.extend_from_slice(b"x-told: 1\r\n");
            let mut head = RequestHead::write(&Method::POST, "/x?y", headers, host, framing, tell);
            let written = ["first:1", "server:80"].map(|server| {
                let server = HeaderValue::from_static(server);
                head.take_again_for(&server, None).map(|bytes| String::from_utf8(bytes).unwrap())
            });
            let last = String::from_utf8(head.take_for(&HeaderValue::from_static("server:80"), None)).unwrap();
            if let [Some(first), Some(again)] = written {
                assert_eq!((first.replace("first:1", "server:80"), again), (last.clone(), last.clone()));
            }
            last
        };
        let line = "POST /x?y HTTP/1.1\r\n";
        for (host, framing, rest) in [
            (HostField::Received, Framing::Length(5), "content-length: 5\r\n\r\n"),
            (HostField::OfServer, Framing::Chunked, "transfer-encoding: chunked\r\n\r\n"),
            (HostField::Received, Framing::None { announced: true }, "content-length: 0\r\n\r\n"),
            (HostField::OfServer, Framing::None { announced: false }, "\r\n"),
        ] {
            let name = if host == HostField::OfServer { "server:80" } else { "a.test" };
            assert_eq!(head(&headers, host, framing), format!("{line}host: {name}\r\nx-told: 1\r\n{rest}"));
            assert_eq!(head(&HeaderMap::new(), host, framing), format!("{line}host: server:80\r\nx-told: 1\r\n{rest}"));
        }
    }
}
