//! The headers in which trusted proxies name the client (`client_address`), and IPv4 clients behind translators (`nat64`).

use serde_json::Value;

use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// A gateway that trusts 127.0.0.1, with one request for each client under `/once`.
fn gateway(upstream: &Upstream, server: &str) -> Gateway {
    Gateway::with(
        &format!("workers = 1\naccess_log = true\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n{server}"),
        &format!(
            "[[route]]\npath = \"/\"\nupstream = \"{url}\"\ndeny = [\"198.51.100.0/24\"]\n\
             [[route]]\npath = \"/once\"\nupstream = \"{url}\"\nlimits = [\"once\"]\n\n[limit.once]\nrate = \"1/day\"\n",
            url = upstream.url()
        ),
    )
}

fn fetch(gateway: &Gateway, target: &str, fields: &[(&str, &str)]) -> u16 {
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    gateway.fetch(&get(target, &lines)).status()
}

#[test]
fn each_client_that_a_configured_header_names_has_its_own_budget() {
    let upstream = Upstream::text("in");
    for (written, header) in [
        ("\"x-real-ip\"", "X-Real-IP"),
        ("\"CF-Connecting-IP\"", "CF-Connecting-IP"),
        ("[\"true-client-ip\"]", "True-Client-IP"),
        ("\"x-client-ip\"", "X-Client-IP"),
        ("\"x-acme-client\"", "X-Acme-Client"),
        ("\"cloudflare\"", "CF-Connecting-IP"),
        ("\"fly\"", "Fly-Client-IP"),
        ("\"azure\"", "X-Azure-ClientIP"),
        ("\"aws-alb\"", "X-Forwarded-For"),
        ("\"forwarded\"", "X-Unused"),
    ] {
        let gateway = gateway(&upstream, &format!("client_address = {written}"));
        for client in [1, 2, 3] {
            let (ip, other) = (format!("203.0.113.{client}"), format!("for=203.0.113.{client}"));
            let fields = match header {
                "X-Unused" => [("forwarded", other.as_str())],
                _ => [(header, ip.as_str())],
            };
            assert_eq!([(); 2].map(|()| fetch(&gateway, "/once", &fields)), [200, 429], "{written}");
            let sent = upstream.requests().pop().unwrap();
            assert_eq!(sent.get("x-real-ip"), Some(ip.as_str()), "{written}");
            assert_eq!(sent.get("x-forwarded-for"), Some(format!("{ip}, 127.0.0.1").as_str()), "{written}");
            // The log has the same client.
            wait_until("the log has the client", || gateway.stdout().contains(&format!("\"client\":\"{ip}\"")));
        }
        let denied = if header == "X-Unused" { ("forwarded", "for=198.51.100.9") } else { (header, "198.51.100.9") };
        assert_eq!(fetch(&gateway, "/", &[denied]), 403, "{written}");
        gateway.assert_metric("client_unnamed_total", &[("listener", "127.0.0.1:0")], 0.0);
    }
}

/// With fewer hops than there are proxies, the client is the last address that is read, even that of a trusted proxy.
#[test]
fn only_as_many_addresses_of_a_list_are_read_as_configured() {
    let upstream = Upstream::text("in");
    for (server, client) in [
        ("", "203.0.113.9"),
        ("max_forwarded_hops = 3", "203.0.113.9"),
        ("max_forwarded_hops = 2", "10.0.0.1"),
        ("max_forwarded_hops = 1", "10.0.0.2"),
    ] {
        let gateway = gateway(&upstream, server);
        for fields in [
            ("x-forwarded-for", "203.0.113.9, 10.0.0.1, 10.0.0.2"),
            ("forwarded", "for=203.0.113.9, for=10.0.0.1, for=10.0.0.2"),
        ] {
            assert_eq!(fetch(&gateway, "/", &[fields]), 200);
            assert_eq!(upstream.requests().pop().unwrap().get("x-real-ip"), Some(client), "{server} {fields:?}");
        }
        // An address that is not one ends the list.
        assert_eq!(fetch(&gateway, "/", &[("x-forwarded-for", "203.0.113.9, unknown")]), 200);
        assert_eq!(upstream.requests().pop().unwrap().get("x-real-ip"), Some("127.0.0.1"), "{server}");
        assert_eq!(fetch(&gateway, "/", &[("x-forwarded-for", "203.0.113.9, 198.51.100.1")]), 403, "{server}");
    }
}

#[test]
fn a_forged_copy_neither_counts_nor_reaches_the_server() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "client_address = [\"cf-connecting-ip\", \"x-client-ip\", \"x-forwarded-for\"]");
    let once = |fields: &str, source| {
        let status = gateway.client_from(source).fetch(&get("/once", fields), "").status();
        (status, upstream.requests())
    };
    let mut untrusted = 0;
    for name in ["CF-Connecting-IP", "X-Client-IP", "X-Forwarded-For", "CF_Connecting_IP", "cf.connecting.ip"] {
        untrusted += 1;
        let (status, sent) = once(&format!("{name}: 203.0.113.66\r\n"), [127, 0, 1, untrusted]);
        assert_eq!(status, 200, "{name}");
        assert!(!sent[0].head.contains("203.0.113.66"), "{}", sent[0].head);
        assert_eq!(once(&format!("{name}: 203.0.113.67\r\n"), [127, 0, 1, untrusted]).0, 429, "{name}");
    }
    gateway.assert_metric("forwarding_ignored_total", &[("listener", "127.0.0.1:0")], 6.0);
    // A trusted proxy that writes one header passes on what its client wrote in the others.
    for (fields, chain) in [
        ("CF-Connecting-IP: 192.0.2.1\r\nX-Client-IP: 203.0.113.66\r\n", "192.0.2.1, 127.0.0.1"),
        ("X-Client-IP: 192.0.2.2\r\nX-Forwarded-For: 203.0.113.66\r\n", "192.0.2.2, 127.0.0.1"),
        ("X-Forwarded-For: 192.0.2.3, 10.0.0.1\r\nForwarded: for=203.0.113.66\r\n", "192.0.2.3, 10.0.0.1, 127.0.0.1"),
        (
            "CF-Connecting-IP: 192.0.2.4\r\nCF-Connecting-IP: 203.0.113.66\r\nX-Forwarded-For: 203.0.113.66\r\n",
            "127.0.0.1",
        ),
        ("CF-Connecting-IP: 203.0.113.66, 192.0.2.5\r\n", "127.0.0.1"),
    ] {
        let status = gateway.fetch(&get("/", fields)).status();
        let sent = upstream.requests().pop().unwrap();
        assert_eq!((status, sent.get("x-forwarded-for")), (200, Some(chain)), "{fields}");
        assert!(!sent.head.contains("203.0.113.66"), "{fields}{}", sent.head);
        assert_eq!(sent.get("x-real-ip"), chain.split(", ").next(), "{fields}");
    }
    let sent = || upstream.requests().pop().unwrap();
    gateway.fetch(&get("/", "CF-Connecting-IP: 192.0.2.1\r\n"));
    assert_eq!(sent().get("cf-connecting-ip"), Some("192.0.2.1"), "the header that names the client stays");
}

#[test]
fn a_trusted_proxy_that_names_no_client_is_logged_once_and_counted() {
    let upstream = Upstream::text("in");
    let cloudflare = "client_address = \"cloudflare\"\n";
    for (config, fields, remedy) in [
        ("", "X-Real-IP: 203.0.113.1\r\n", "client_address = \\\"x-real-ip\\\""),
        ("", "True-Client-IP: 203.0.113.1\r\n", "client_address = \\\"true-client-ip\\\""),
        ("", "", "Have it send X-Forwarded-For"),
        ("", "X-Forwarded-For: unknown\r\n", "Have it send X-Forwarded-For"),
        (cloudflare, "X-Forwarded-For: 203.0.113.1\r\n", "client_address = \\\"x-forwarded-for\\\""),
        (cloudflare, "", "does not name one in the headers of `client_address` (cf-connecting-ip)"),
        (cloudflare, "CF-Connecting-IP: 203.0.113.1, 203.0.113.2\r\n", "cf-connecting-ip is not exactly one address"),
    ] {
        let gateway = gateway(&upstream, config);
        for _ in 0..3 {
            gateway.fetch(&get("/", fields));
        }
        gateway.assert_metric("client_unnamed_total", &[("listener", "127.0.0.1:0")], 3.0);
        let lines = gateway.log_lines(&["WARN", "a trusted proxy names no client", "127.0.0.1"]);
        assert_eq!(lines, 1, "{}", gateway.log());
        assert!(gateway.log().replace("\\\"", "\"").contains(&remedy.replace("\\\"", "\"")), "{}", gateway.log());
    }
}

#[test]
fn an_ipv4_client_behind_nat64_is_the_same_client_everywhere() {
    let upstream = Upstream::text("in");
    let gateway = gateway(&upstream, "nat64 = [\"2001:db8:64::/96\"]");
    let once = |client: &str| fetch(&gateway, "/once", &[("x-forwarded-for", client)]);
    let clients = [
        "64:ff9b::203.0.113.1",
        "64:ff9b::203.0.113.2",
        "203.0.113.1",
        "2001:db8:64::203.0.113.2",
        "2001:db8:64::203.0.113.3",
    ];
    assert_eq!(clients.map(once), [200, 200, 429, 429, 200]);
    let sent = upstream.requests();
    assert_eq!(sent[0].get("x-real-ip"), Some("203.0.113.1"));
    assert_eq!(fetch(&gateway, "/", &[("x-forwarded-for", "64:ff9b::198.51.100.7")]), 403, "`deny` has IPv4 networks");
    // A private address behind the well-known prefix is forged.
    assert_eq!([once("64:ff9b::192.168.0.1"), once("192.168.0.1")], [200, 200]);
}

#[test]
fn connections_of_clients_behind_nat64_count_for_each_client() {
    let gateway = Gateway::launch(&[], |dir| {
        let config = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\nmax_connections_per_ip = 1\n\
                      [admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\n\
                      [[route]]\nupstream = \"echo:\"\n";
        config_arguments(dir, config)
    });
    let mut open = Vec::new();
    for client in [1, 2] {
        let mut connection = gateway.client_from([127, 0, 0, 1]);
        connection.send(format!("PROXY TCP6 64:ff9b::cb00:710{client} ::1 1 443\r\n{}", get("/", "")));
        let echoed = connection.read_response("GET");
        assert!(echoed.text().contains(&format!("203.0.113.{client}")), "{}", echoed.text());
        open.push(connection);
    }
}

#[test]
fn other_doors_find_the_same_client() {
    let config = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\nclient_address = [\"x-real-ip\"]\n\
                  [admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\n\
                  [decide.once]\nlimits = [\"once\"]\n[limit.once]\nrate = \"1/day\"\n";
    let gateway = Gateway::with_config(config);
    let facts = "x-forwarded-for: 203.0.113.66\r\nx-forwarded-method: GET\r\nx-forwarded-host: a.test\r\nx-forwarded-uri: /\r\n";
    let ask = |client: &str| gateway.fetch(&get("/decide/once", &format!("x-real-ip: {client}\r\n{facts}"))).status();
    assert_eq!(["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(ask), [200, 200, 429]);

    let dir = tempfile::tempdir().unwrap();
    let config = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\nclient_address = [\"x-real-ip\", \"forwarded\"]\n\
                  [[route]]\nupstream = \"echo:\"\nlimits = [\"once\"]\n[limit.once]\nrate = \"1/day\"\n";
    let path = dir.path().join("sluicegate.toml");
    std::fs::write(&path, config).unwrap();
    let explain = |headers: &[&str]| -> Value {
        let mut command = program();
        command.args(["explain", "--format", "json", "-c"]).arg(&path).args(["GET", "http://a.test/"]);
        for header in headers {
            command.args(["-H", header]);
        }
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    };
    for (headers, client, words) in [
        (&["X-Real-IP: 64:ff9b::192.0.2.9", "Forwarded: for=203.0.113.66"][..], "192.0.2.9", "names the client"),
        (&["Forwarded: for=192.0.2.8"], "192.0.2.8", "not a trusted proxy"),
        (&["X-Real-IP: 192.0.2.9", "X-Real-IP: 192.0.2.9"], "127.0.0.1", "not exactly one address"),
        (&["X-Forwarded-For: 203.0.113.66"], "127.0.0.1", "no forwarding header names a client"),
    ] {
        let client_report = &explain(headers)["client"];
        assert_eq!(client_report["address"], client, "{headers:?}");
        assert!(client_report["detail"].as_str().unwrap().contains(words), "{client_report}");
    }
}
