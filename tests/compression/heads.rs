//! Which responses are compressed, and what happens to their headers.

use http::Request;

use super::{accepting, gateway, page, response, route, text};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::http::Message;
use crate::support::upstream::Upstream;

/// Returns the headers of a response, except those of the connection and those that differ each time.
fn fields(message: &Message) -> Vec<(String, String)> {
    let passing = ["date", "connection", "content-length", "transfer-encoding"];
    let all = message.fields().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let mut kept: Vec<_> = all.filter(|(name, _)| !passing.contains(&name.as_str())).collect();
    kept.sort();
    kept
}

#[test]
fn the_client_gets_the_coding_that_it_prefers() {
    let body = page(100_000);
    let upstream = Upstream::fixed(response("etag: \"a\"\r\nvary: Origin\r\n", &body));
    let gateway = gateway(&upstream);
    for (codings, coding) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, deflate, br", Some("br")),
        ("gzip", Some("gzip")),
        ("gzip;q=1.0, br;q=0.5, zstd;q=0.9", Some("gzip")),
        ("*", Some("zstd")),
        ("*;q=0, br", Some("br")),
        ("identity;q=0, gzip", Some("gzip")),
        ("identity", None),
        ("deflate", None),
        ("gzip;q=0", None),
        ("", None),
    ] {
        let received = gateway.fetch(&get("/", &accepting(codings)));
        assert_eq!(received.get("content-encoding"), coding, "{codings}");
        assert_eq!(received.get("vary"), Some("Origin, Accept-Encoding"), "{codings}");
        assert_eq!(received.get("etag"), Some(if coding.is_some() { "W/\"a\"" } else { "\"a\"" }), "{codings}");
        assert_eq!(text(&received), body, "{codings}");
        assert!(coding.is_none() || received.body.len() < body.len() / 2, "{codings}: {} bytes", received.body.len());
        // The server gets the header as the client sent it, and may compress by itself.
        assert_eq!(upstream.request().get("accept-encoding"), Some(codings));
    }
    let received = gateway.get("/");
    assert_eq!((received.get("content-encoding"), received.get("vary")), (None, Some("Origin, Accept-Encoding")));
    assert_eq!(text(&received), body);
}

#[test]
fn headers_about_the_uncompressed_bytes_are_removed() {
    let described = "accept-ranges: bytes\r\ncontent-md5: Q2hlY2sgSW50ZWdyaXR5IQ==\r\ndigest: sha-256=x\r\n\
                     content-digest: sha-256=:x:\r\nrepr-digest: sha-256=:x:\r\nx-kept: 1\r\n";
    let upstream = Upstream::fixed(response(described, &page(3000)));
    let gateway = gateway(&upstream);
    let plain = gateway.get("/");
    let compressed = gateway.fetch(&get("/", &accepting("br")));
    for name in ["accept-ranges", "content-md5", "digest", "content-digest", "repr-digest"] {
        assert!(plain.get(name).is_some() && compressed.get(name).is_none(), "{name}");
    }
    assert_eq!(compressed.get("x-kept"), Some("1"));
    let length = compressed.get("content-length");
    assert!(length.is_none_or(|length| length == compressed.body.len().to_string()), "{length:?}");
}

#[test]
fn vary_and_weak_etags_stay_as_they_are() {
    for vary in ["*", "accept-encoding", "Origin, Accept-Encoding"] {
        let upstream = Upstream::fixed(response(&format!("vary: {vary}\r\netag: W/\"a\"\r\n"), &page(3000)));
        let received = gateway(&upstream).fetch(&get("/", &accepting("gzip")));
        assert_eq!((received.get("vary"), received.get("etag")), (Some(vary), Some("W/\"a\"")));
        assert_eq!(text(&received), page(3000));
    }
}

/// Each response reaches the client exactly as the server sent it.
#[test]
fn encoded_partial_and_small_responses_and_other_types_are_not_touched() {
    let (long, short) = (page(3000), page(1023));
    let head = |status: &str, fields: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\n{fields}etag: \"a\"\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    for (status, fields, body) in [
        ("200 OK", "content-type: text/html\r\ncontent-encoding: x-own\r\n", &long),
        ("200 OK", "content-type: text/html\r\ncache-control: public, no-transform\r\n", &long),
        ("206 Partial Content", "content-type: text/html\r\ncontent-range: bytes 0-2999/9000\r\n", &long),
        ("206 Partial Content", "content-type: multipart/byteranges; boundary=x\r\n", &long),
        ("200 OK", "content-type: text/html\r\n", &short),
        ("200 OK", "content-type: image/png\r\n", &long),
        ("200 OK", "content-type: text/event-stream\r\n", &long),
        ("200 OK", "content-type: application/grpc\r\n", &long),
        ("200 OK", "content-type: application/grpc-web+proto\r\n", &long),
        ("200 OK", "", &long),
        ("200 OK", "content-type: text/html\r\n", &String::new()),
    ] {
        let upstream = Upstream::fixed(head(status, fields, body));
        let gateway = gateway(&upstream);
        let response = gateway.fetch(&get("/", &format!("{}range: bytes=0-2999\r\n", accepting("gzip, br, zstd"))));
        assert_eq!(response.text(), **body, "{status} {fields}");
        assert_eq!(response.get("etag"), Some("\"a\""), "{status} {fields}");
        assert_eq!(response.get("vary"), None, "{status} {fields}");
        assert_eq!(upstream.request().get("range"), Some("bytes=0-2999"));
    }
}

#[test]
fn the_smallest_compressed_body_has_min_size() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(response("", &page(request.target()[1..].parse().unwrap())))?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&route(&upstream, "compress = { min_size = \"2KiB\" }"));
    for (length, coding) in [(2047, None), (2048, Some("gzip")), (2049, Some("gzip"))] {
        let received = gateway.fetch(&get(&format!("/{length}"), &accepting("gzip")));
        assert_eq!(received.get("content-encoding"), coding, "{length}");
        assert_eq!(text(&received), page(length));
    }
}

#[test]
fn errors_of_servers_are_compressed_and_small_ones_of_the_gateway_are_not() {
    let body = page(3000);
    let upstream = Upstream::fixed(format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let routes = route(&upstream, "compress = true")
        + "[[route]]\npath = \"/denied\"\nupstream = \"echo:\"\ncompress = true\ndeny = [\"127.0.0.0/8\"]\n";
    let gateway = Gateway::start(&routes);
    let response = gateway.fetch(&get("/", &accepting("gzip")));
    assert_eq!((response.status(), response.get("content-encoding"), text(&response)), (503, Some("gzip"), body));
    let response = gateway.fetch(&get("/denied", &accepting("gzip")));
    assert_eq!((response.status(), response.get("content-encoding")), (403, None));
    assert_eq!(response.json()["status"], 403);
}

#[test]
fn a_request_may_forbid_compression() {
    let upstream = Upstream::fixed(response("etag: \"a\"\r\n", &page(3000)));
    let gateway = gateway(&upstream);
    let received = gateway.fetch(&get("/", &format!("{}cache-control: no-transform\r\n", accepting("gzip"))));
    assert_eq!((received.get("content-encoding"), received.get("etag")), (None, Some("\"a\"")));
}

#[test]
fn the_head_of_head_is_that_of_get() {
    let body = page(100_000);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            let fields = "content-type: text/html\r\netag: \"a\"\r\naccept-ranges: bytes\r\nvary: Origin\r\n";
            let length = if request.target() == "/chunked" {
                "transfer-encoding: chunked\r\n".to_owned()
            } else {
                format!("content-length: {}\r\n", body.len())
            };
            peer.send(format!("HTTP/1.1 200 OK\r\n{fields}{length}\r\n"))?;
            match (request.start_line().starts_with("HEAD"), request.target() == "/chunked") {
                (true, _) => {}
                (false, true) => peer.send(super::chunk(&body) + "0\r\n\r\n")?,
                (false, false) => peer.send(&body)?,
            }
        }
        Ok(())
    });
    let gateway = gateway(&upstream);
    for target in ["/", "/chunked"] {
        for codings in ["zstd", "br", "gzip", "identity"] {
            let mut client = gateway.client();
            let got = client.fetch(&get(target, &accepting(codings)), "");
            let head = client.fetch(&get(target, &accepting(codings)).replacen("GET", "HEAD", 1), "");
            assert_eq!(fields(&head), fields(&got), "{target} {codings}");
            let is_plain = codings == "identity" && target == "/";
            assert_eq!(head.get("content-length"), is_plain.then_some("100000"), "{target} {codings}");
            // The connection is still usable: no body followed.
            assert_eq!(text(&client.fetch(&get(target, ""), "")), page(100_000));

            let request = |method| {
                let request = Request::builder().method(method).uri(format!("http://a.test{target}"));
                request.header("accept-encoding", codings).body(()).unwrap()
            };
            let mut h2 = H2Client::connect(gateway.addr);
            let responses = ["GET", "HEAD"].map(|method| h2.fetch(request(method), Sent::default()));
            let heads = responses.each_ref().map(|response| {
                let mut headers = response.head.headers().clone();
                ["date", "content-length"].iter().for_each(|name| drop(headers.remove(*name)));
                headers
            });
            assert_eq!(heads[0], heads[1], "{target} {codings}");
            assert_eq!(responses[1].field("content-length"), is_plain.then_some("100000"), "{target} {codings}");
        }
    }
}

#[test]
fn a_head_of_a_fixed_response_states_no_wrong_length() {
    let gateway = Gateway::start(&format!(
        "[[route]]\ncompress = true\nrespond = {{ body = '''{}''', content_type = \"text/html\" }}\n",
        page(5000)
    ));
    let mut client = gateway.client();
    for method in ["GET", "HEAD"] {
        let response = client.fetch(&get("/", &accepting("gzip")).replacen("GET", method, 1), "");
        assert_eq!(response.get("content-encoding"), Some("gzip"));
        let length = response.body.len().to_string();
        assert_eq!(response.get("content-length"), (method == "GET").then_some(length.as_str()));
    }
}

#[test]
fn a_compressed_copy_can_be_revalidated() {
    let body = page(5000);
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            // Compares weakly, as RFC 9110 demands for If-None-Match.
            let known = request.get("if-none-match").unwrap_or_default().replace("W/", "");
            let received = match known.split(", ").any(|tag| tag == "\"a\"") {
                true => "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\ncache-control: max-age=60\r\n\r\n".to_owned(),
                false => response("etag: \"a\"\r\n", &body),
            };
            peer.send(received)?;
        }
        Ok(())
    });
    let gateway = gateway(&upstream);
    let mut client = gateway.client();
    for (codings, tag) in [("gzip", "W/\"a\""), ("identity", "\"a\"")] {
        let first = client.fetch(&get("/", &accepting(codings)), "");
        assert_eq!(first.get("etag"), Some(tag));
        upstream.request();
        let fields = format!("{}if-none-match: {tag}\r\n", accepting(codings));
        let second = client.fetch(&get("/", &fields), "");
        assert_eq!(upstream.request().get("if-none-match"), Some(tag), "the server gets the tag that the client sent");
        assert_eq!((second.status(), second.get("etag")), (304, Some(tag)));
        assert_eq!((second.get("vary"), second.get("content-encoding")), (Some("Accept-Encoding"), None));
        assert_eq!(second.get("cache-control"), Some("max-age=60"));
    }
    let third = client.fetch(&get("/", &format!("{}if-none-match: W/\"b\"\r\n", accepting("gzip"))), "");
    assert_eq!((third.status(), third.get("content-encoding")), (200, Some("gzip")));
}

#[test]
fn http2_clients_get_compressed_responses() {
    let body = page(300_000);
    let upstream = Upstream::fixed(response("etag: \"a\"\r\n", &body));
    let gateway = gateway(&upstream);
    let mut h2 = H2Client::connect(gateway.addr);
    for coding in ["zstd", "br", "gzip"] {
        let request = Request::get("http://a.test/").header("accept-encoding", coding).body(()).unwrap();
        let received = h2.fetch(request, Sent::default());
        assert_eq!((received.field("content-encoding"), received.field("content-length")), (Some(coding), None));
        assert_eq!(received.field("etag"), Some("W/\"a\""));
        assert_eq!(super::decode(coding, &received.body).unwrap(), body.as_bytes());
    }
}

#[test]
fn upgrades_and_responses_without_body_are_not_touched() {
    for head in [
        "HTTP/1.1 204 No Content\r\ncontent-type: text/html\r\netag: \"a\"\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\ncontent-type: text/html\r\netag: \"a\"\r\nconnection: upgrade\r\n\
         upgrade: x\r\n\r\n",
    ] {
        let upstream = Upstream::fixed(head);
        let gateway = gateway(&upstream);
        let mut client = gateway.client();
        client.send(get("/", &format!("{}connection: upgrade\r\nupgrade: x\r\n", accepting("gzip"))));
        let response = client.try_read_head().unwrap();
        assert_eq!((response.get("content-encoding"), response.get("etag")), (None, Some("\"a\"")), "{head}");
        assert_eq!(response.get("vary"), None, "{head}");
    }
}
