//! The head of a request as it is sent.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// What most heads fit in.
const HEAD_SIZE: usize = 1024;

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

/// A head, whole but for a `Host` that is the server's own.
#[derive(Debug)]
pub struct RequestHead {
    bytes: Vec<u8>,
    /// Where that goes.
    host_at: Option<usize>,
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
        RequestHead { bytes, host_at }
    }

    /// The bytes for a server whose authority is `host`; without them nothing is left of a head that is
    /// the same for every server.
    pub fn take_for(&mut self, host: &HeaderValue) -> Vec<u8> {
        self.take_again_for(host).unwrap_or_else(|| std::mem::take(&mut self.bytes))
    }

    /// The bytes for another server, if they are others.
    pub fn take_again_for(&self, host: &HeaderValue) -> Option<Vec<u8>> {
        let (before, after) = self.bytes.split_at(self.host_at?);
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
                head.take_again_for(&server).map(|bytes| String::from_utf8(bytes).unwrap())
            });
            let last = String::from_utf8(head.take_for(&HeaderValue::from_static("server:80"))).unwrap();
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
