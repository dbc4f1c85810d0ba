//! `hsts` of a listener: every response over TLS has the header, and none over plain HTTP.

use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;

const HSTS: &str = "strict-transport-security";

fn start(ca: &Ca, hsts: &str, upstream: &Upstream) -> Gateway {
    Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "a");
        let config = format!(
            "[server]\nworkers = 1\nlisten = [\"127.0.0.2:0\"]\nredirect_http = \"127.0.0.3:0\"\n[admin]\nlisten = \
             \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n{hsts}\ntls = {{ certificates = [{{ cert = \
             \"a.pem\", key = \"a.key\" }}] }}\n[[route]]\npath = \"/app\"\nupstream = \"{}\"\n[[route]]\npath = \
             \"/moved\"\nredirect = \"https://a.test/new\"\n[[route]]\npath = \"/none\"\nupstream = \
             \"http://127.0.0.1:1\"\n",
            upstream.url()
        );
        config_arguments(dir, &config)
    })
}

fn listener(gateway: &Gateway, ip: &str) -> std::net::SocketAddr {
    *gateway.listeners().iter().find(|addr| addr.ip().to_string() == ip).unwrap()
}

#[test]
fn every_response_over_tls_has_the_header_once() {
    let own = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nstrict-transport-security: max-age=1\r\n\
               strict-transport-security: max-age=2\r\n\r\n";
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send(own)?;
        }
        Ok(())
    });
    let ca = Ca::new("test");
    let gateway = start(&ca, "hsts = \"1y\"", &upstream);
    let trust = Trust::in_ca(&ca);
    let tls = listener(&gateway, "127.0.0.1");
    for (head, status) in [
        (get("/app", ""), 200),
        (get("/moved", ""), 308),
        (get("/none", ""), 502),
        (get("/nowhere", ""), 404),
        (get("/a%00", ""), 400),
        ("GET / HTTP/1.1\r\nbad\r\n\r\n".to_owned(), 400),
    ] {
        let response = trust.connect(tls, "a.test").fetch(&head, "");
        assert_eq!((response.status(), response.get(HSTS)), (status, Some("max-age=31536000")), "{head}");
    }
    for ip in ["127.0.0.2", "127.0.0.3"] {
        let response = Client::connect(listener(&gateway, ip)).fetch(&get("/moved", ""), "");
        assert_eq!((response.status(), response.get(HSTS)), (308, None), "{ip}");
    }
    let plain = Client::connect(listener(&gateway, "127.0.0.2")).fetch(&get("/app", ""), "");
    assert_eq!(plain.all(HSTS).len(), 2, "the upstream's own header is not touched over plain HTTP");
    // A change applies to new connections.
    gateway.reload_with("hsts = \"1y\"", "hsts = { max_age = \"2y\", include_subdomains = true, preload = true }");
    let response = trust.connect(tls, "a.test").fetch(&get("/moved", ""), "");
    assert_eq!(response.get(HSTS), Some("max-age=63072000; includeSubDomains; preload"));
    gateway.reload_with("hsts = { max_age = \"2y\", include_subdomains = true, preload = true }", "hsts = \"0s\"");
    let response = trust.connect(tls, "a.test").fetch(&get("/app", ""), "");
    assert_eq!(response.get(HSTS), Some("max-age=0"));
}
