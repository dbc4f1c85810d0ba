//! Converts the head of a request from HTTP/1.1 to HTTP/2.

use h2::ext::Protocol;
use http::header::{CONNECTION, HOST, SEC_WEBSOCKET_KEY, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

use crate::proxy::head::upgrade::UpgradeOffer;

/// Connection-specific headers, which HTTP/2 does not allow.
const CONNECTION_HEADERS: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Converts a head. `secure`: the connection uses TLS. `host` replaces an empty or missing `Host`. Returns `None` if
/// the head has no HTTP/2 equivalent.
pub fn convert_head(head: &[u8], secure: bool, host: &HeaderValue) -> Option<Request<()>> {
    let mut lines = head_lines(head);
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let method = Method::from_bytes(words.next()?).ok()?;
    let target = words.next()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = memchr::memmem::find(line, b": ")?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(&line[colon + 2..]).ok()?;
        if !CONNECTION_HEADERS.contains(&name) && (name != TE || value.as_bytes().eq_ignore_ascii_case(b"trailers")) {
            headers.append(name, value);
        }
    }
    let authority = headers.remove(HOST).filter(|host| !host.is_empty()).unwrap_or_else(|| host.clone());
    let uri = Uri::builder()
        .scheme(if secure { "https" } else { "http" })
        .authority(authority.as_bytes())
        .path_and_query(target)
        .build()
        .ok()?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Some(request)
}

/// Turns an upgrade request into the extended CONNECT (RFC 8441) that opens the same tunnel. Returns the
/// `Sec-WebSocket-Key`, which only HTTP/1.1 has.
pub fn convert_to_connect(request: &mut Request<()>, offer: &UpgradeOffer) -> Option<HeaderValue> {
    *request.method_mut() = Method::CONNECT;
    if let Ok(protocol) = offer.header_value().to_str() {
        request.extensions_mut().insert(Protocol::from(protocol));
    }
    request.headers_mut().remove(SEC_WEBSOCKET_KEY)
}

/// Returns the lines before the empty line.
fn head_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Only the end of line is removed: an empty value ends with a space.
    let lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.take_while(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_fields_and_those_of_a_connection_go() {
        let head =
            b"POST /x?y=1 HTTP/1.1\r\nhost: a.test:8080\r\nconnection: keep-alive\r\nte: trailers\r\nx: \xff\r\n\
                     transfer-encoding: chunked\r\nempty: \r\nx: 2\r\n\r\n";
        let request = convert_head(head, true, &HeaderValue::from_static("server")).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().to_string().as_str()),
            ("POST", "https://a.test:8080/x?y=1")
        );
        let mut fields: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        fields.sort_by_key(|(name, _)| *name);
        assert_eq!(fields, [("empty", &b""[..]), ("te", b"trailers"), ("x", b"\xff"), ("x", b"2")]);
    }

    #[test]
    fn a_request_without_a_host_is_for_the_server() {
        for (line, authority) in [("host: \r\n", "server:80"), ("", "server:80"), ("host: b\r\n", "b")] {
            let head = format!("OPTIONS * HTTP/1.1\r\n{line}te: gzip\r\n\r\n");
            let request = convert_head(head.as_bytes(), false, &HeaderValue::from_static("server:80")).unwrap();
            assert_eq!(request.uri().authority().unwrap().as_str(), authority);
            assert!(request.headers().is_empty());
        }
    }
}
