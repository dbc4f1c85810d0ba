//! What depends on the listener: the certificate of a connection, redirects to HTTPS, and questions of other proxies.
//! Explanations find the listener by the port of the URL, and agree with the running gateway.

use serde_json::Value;

use super::run;
use crate::support::ca::Ca;
use crate::support::client::Client;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::ports::ReservedPort;
use crate::support::tls::Trust;

const ROUTES: &str = "
[[route]]
host = [\"a.test\", \"c.test\", \"x.b.test\"]
upstream = \"echo:\"
deny = [\"192.0.2.66\"]
[[route]]
path = \"/any\"
upstream = \"echo:\"
";

#[test]
fn listeners_of_all_kinds_give_the_explained_status() {
    let (ca, plain, redirecting, tls) =
        (Ca::new("test"), ReservedPort::new(), ReservedPort::new(), ReservedPort::new());
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test", "*.b.test", "127.0.0.1"], "gateway").save(dir, "one");
        ca.issue(&["c.test"], "gateway").save(dir, "two");
        let config = format!(
            "[server]\nworkers = 1\nredirect_http = {{ listen = \"{}\", https_port = 8443 }}\n[admin]\nlisten = \
             \"127.0.0.1:0\"\n[[listener]]\naddress = \"{}\"\n[[listener]]\naddress = \"{}\"\ntls = {{ certificates = [{{ cert = \"one.pem\", key = \"one.key\" }}, \
             {{ cert = \"two.pem\", key = \"two.key\" }}] }}\n{ROUTES}",
            redirecting.addr(),
            plain.addr(),
            tls.addr()
        );
        config_arguments(dir, &config)
    });
    let mut statuses = Vec::new();
    for (listener, name, host, target) in [
        (&plain, "a.test", "a.test", "/"),
        (&plain, "a.test", "none.test", "/"),
        (&plain, "a.test", "none.test", "/any"),
        (&redirecting, "a.test", "a.test", "/?x=1"),
        (&redirecting, "a.test", "none.test", "/"),
        // The rules for ambiguous heads come first.
        (&redirecting, "a.test", "a.test", "/%2e%2e"),
        (&redirecting, "a.test", "a_b", "/"),
        (&tls, "a.test", "a.test", "/"),
        (&tls, "A.Test", "a.test:8443", "/"),
        (&tls, "a.test", "x.b.test", "/"),
        (&tls, "x.b.test", "y.b.test", "/"),
        (&tls, "a.test", "c.test", "/"),
        (&tls, "c.test", "a.test", "/any"),
        (&tls, "a.test", "none.test", "/any"),
        (&tls, "a.test", "a.test", "/%zz"),
        // The head is checked before the certificate.
        (&tls, "a.test", "c.test", "/%2e%2e"),
        // A client that connects to an address sends no server name.
        (&tls, "127.0.0.1", "a.test", "/"),
        (&tls, "127.0.0.1", "127.0.0.1", "/any"),
        (&tls, "127.0.0.1", "c.test", "/"),
        (&tls, "127.0.0.1", "none.test", "/any"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let scheme = if std::ptr::eq(listener, &tls) { "https" } else { "http" };
        let response = match scheme {
            "https" => Trust::in_ca(&ca).connect(listener.addr(), name).fetch(&head, ""),
            _ => Client::connect(listener.addr()).fetch(&head, ""),
        };
        let url = format!("{scheme}://{name}:{}{target}", listener.port());
        let header = format!("host: {host}");
        let (_, explained, stderr) =
            run(gateway.dir.path(), &["explain", "GET", &url, "-H", &header, "--format", "json"]);
        let explained: Value = serde_json::from_str(&explained).unwrap_or_else(|_| panic!("{url}: {stderr}"));
        assert_eq!(explained["verdict"]["status"], response.status(), "{url} for {host}: {explained:#}");
        if let Some(location) = response.get("location") {
            assert_eq!(explained["action"]["location"], location, "{url} for {host}");
        }
        statuses.push(response.status());
    }
    for status in [200, 308, 400, 404, 421] {
        assert!(statuses.contains(&status), "no request gets {status}: {statuses:?}");
    }
}
