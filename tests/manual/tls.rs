//! The configs of docs/reference/tls.md, run unchanged except for the ports.

use crate::acme::certificates::until_served;
use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::manual::{Page, changed};
use crate::support::pebble::Pebble;
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;

/// The heading of the one that orders its certificates.
const ACME: &str = "Certificates from an ACME server (Let's Encrypt)";
/// The heading of the one with a local CA.
const DEVELOPMENT: &str = "Development certificates";

/// A gateway with the config under a heading; every name that the page says has its certificate.
fn start(title: &str, app: &Upstream, ca: &Ca, clients: &Ca, pebble: &Pebble) -> Gateway {
    let page = Page::read("docs/reference/tls.md");
    let part = page.under(title)[0];
    Gateway::launch(&[], |dir| {
        ca.issue(&["www.example.com"], "").save(dir, "www");
        ca.issue(&["*.example.net"], "").save(dir, "wildcard");
        std::fs::write(dir.join("clients-ca.pem"), clients.pem()).unwrap();
        let mut config = part.config.replace("127.0.0.1:3000", &app.addr.to_string());
        if title == ACME {
            let server = format!("[acme]\ndirectory = \"{}\"\nca = \"{}\"", pebble.directory(), pebble.ca_file());
            config = changed(&config, "[acme]", &server);
            config = changed(&config, "/var/lib/sluicegate", &dir.display().to_string());
            config = changed(&config, "0.0.0.0:443", &pebble.tls.addr().to_string());
            config = changed(&config, "0.0.0.0:80", &pebble.http.addr().to_string());
        }
        if title == DEVELOPMENT {
            let state = format!("internal = {{ state = \"{}\",", dir.join("ca").display());
            config = changed(&config, "internal = {", &state);
            config = changed(&config, "127.0.0.1:8443", "127.0.0.1:0");
        }
        for (i, address) in ["0.0.0.0:443", "0.0.0.0:8443", "0.0.0.0:80"].iter().enumerate() {
            config = config.replace(address, &format!("127.0.0.{}:0", i + 1));
        }
        config_arguments(dir, &format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"))
    })
}

#[test]
fn every_config_of_the_page_serves() {
    let (ca, clients, app) = (Ca::new("test"), Ca::new("clients"), Upstream::text("in"));
    let pebble = Pebble::start();
    let mut started = 0;
    for title in [
        "A TLS listener",
        "Several certificates (SNI)",
        ACME,
        DEVELOPMENT,
        "Client certificates (mTLS)",
        "Redirect HTTP to HTTPS",
    ] {
        let gateway = start(title, &app, &ca, &clients, &pebble);
        let addr = *gateway.listeners().last().unwrap();
        let fetch = |host: &str| {
            let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let trust = if title == ACME { pebble.trust() } else { Trust::in_ca(&ca) };
            trust.connect(addr, host).fetch(&head, "").status()
        };
        if title == ACME {
            for name in ["www.example.com", "example.com"] {
                until_served(&gateway, &pebble.trust(), name);
            }
        }
        if title == DEVELOPMENT {
            let trust = Trust::in_pem(&std::fs::read_to_string(gateway.dir.path().join("ca/ca.pem")).unwrap());
            for name in ["localhost", "127.0.0.1", "app.localhost", "a.dev.test"] {
                let head = format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n");
                assert_eq!(trust.connect(addr, name).fetch(&head, "").status(), 200, "{name}");
            }
            started += 1;
            continue;
        }
        assert_eq!(fetch("www.example.com"), 200, "{title}");
        match title {
            "Several certificates (SNI)" => assert_eq!(fetch("a.example.net"), 200),
            "Client certificates (mTLS)" => {
                let partner = Trust::with(&ca, Some(&clients.issue(&["p.example"], "partner")), rustls::ALL_VERSIONS);
                let mut partner = partner.connect(addr, "www.example.com");
                let head = "GET / HTTP/1.1\r\nhost: www.example.com\r\n\r\n";
                assert_eq!([0; 4].map(|_| partner.fetch(head, "").status()), [200; 4]);
                assert_eq!([0; 2].map(|_| fetch("www.example.com")), [200, 429]);
            }
            "Redirect HTTP to HTTPS" => {
                let response = Client::connect(gateway.listeners()[0]).fetch(&get("/x?y", ""), "");
                assert_eq!(response.get("location"), Some("https://a.test/x?y"));
            }
            _ => {}
        }
        started += 1;
    }
    let page = Page::read("docs/reference/tls.md");
    // `acme::dns` tries the one that needs a name server.
    let others = page.parts.iter().filter(|part| part.title != "DNS-01 and wildcards").count();
    assert_eq!(started, others, "a config of the page is not tried here");
}
