//! Attackers try to choose where a redirect leads. The parsers of Node (WHATWG, as in browsers) and of Python decide
//! where each `Location` leads.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::gateway::Gateway;

const ROUTES: &str = r#"
[[route]]
host = ["www.example.com", "*.wild.example.com"]
path = "/host/"
redirect = "{scheme}://{host}:8443{path}?next={path}&q={query}"

[[route]]
path = "/plain/"
rewrite = { strip_prefix = "/plain" }
redirect = "https://example.com{path}"

[[route]]
path = "/relative/"
rewrite = { strip_prefix = "/relative" }
redirect = "{path}"

[[route]]
path = "/query"
redirect = "/{query}"

[[route]]
path = "/segment/{id}/{rest}"
encoded_slashes = "keep"
redirect = "/{id}/{rest}"

[[route]]
path = "/fragment/{id}"
redirect = "https://example.com/#{id}"
"#;

/// Paths and queries with which a client tries to redirect to another host.
const PAYLOADS: [&str; 30] = [
    "//evil.com",
    "///evil.com",
    "/%2Fevil.com",
    "/%5Cevil.com",
    "/\\evil.com",
    "\\/evil.com",
    "/\\/evil.com",
    "@evil.com",
    "/@evil.com",
    "/.evil.com",
    ".evil.com",
    ":@evil.com",
    ":8443@evil.com",
    "/https://evil.com",
    "/https:evil.com",
    "/javascript:alert(1)",
    "/data:text/html,x",
    "/..//evil.com",
    "/.//evil.com",
    "/x/..//evil.com",
    "/x/../..//evil.com",
    "/%2e%2e//evil.com",
    "/%09/evil.com",
    "/%0d%0aLocation:%20https://evil.com",
    "/%0D%0A%0D%0A<script>",
    "/?//evil.com",
    "/#//evil.com",
    "/;@evil.com",
    "/%E3%80%82evil.com",
    "/\u{3002}evil.com",
];

const NODE: &str = "const lines = JSON.parse(require('fs').readFileSync(0)); \
                    console.log(JSON.stringify(lines.map(([base, to]) => new URL(to, base).hostname)))";
const PYTHON: &str = "import json, sys\nfrom urllib.parse import urljoin, urlsplit\n\
                      print(json.dumps([urlsplit(urljoin(base, to)).hostname for base, to in json.load(sys.stdin)]))";

/// Returns the hosts to which a parser resolves the locations.
fn resolve(program: &str, arguments: &[&str], pairs: &Value) -> Vec<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; install it: apt-get install nodejs python3"));
    child.stdin.take().unwrap().write_all(pairs.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn no_client_chooses_the_host() {
    let gateway = Gateway::with("strictness = \"monitor\"", ROUTES);
    let (mut pairs, mut asked) = (Vec::new(), Vec::new());
    for payload in PAYLOADS {
        for (host, prefix) in [
            ("www.example.com", "/host"),
            ("a.wild.example.com", "/host"),
            ("a.test", "/plain"),
            ("a.test", "/relative"),
            ("a.test", "/query?"),
            ("a.test", "/segment"),
            ("a.test", "/segment/x"),
            ("a.test", "/fragment"),
        ] {
            let target = format!("{prefix}{payload}");
            let mut client = gateway.client();
            client.send(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
            let response = client.read_response("GET");
            let locations = response.all("location");
            assert!(locations.len() <= 1, "{target}: {}", response.head);
            let Some(location) = locations.first() else {
                assert!((400..500).contains(&response.status()), "{target}: {}", response.head);
                continue;
            };
            assert!(location.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\'), "{target}: {location}");
            pairs.push(json!([format!("https://{host}{}", prefix.trim_end_matches('?')), location]));
            asked.push((host, target, (*location).to_owned()));
        }
    }
    assert!(asked.len() > 120, "{}", asked.len());
    let pairs = Value::Array(pairs);
    for (program, arguments) in [("node", ["-e", NODE]), ("python3", ["-c", PYTHON])] {
        let hosts = resolve(program, &arguments, &pairs);
        assert_eq!(hosts.len(), asked.len());
        for (found, (host, target, location)) in hosts.iter().zip(&asked) {
            assert!(found == host || found == "example.com", "{program}: {target} leads to {found}: {location}");
        }
    }
}

#[test]
fn a_host_that_the_route_does_not_list_is_not_repeated() {
    let gateway = Gateway::start(ROUTES);
    for host in [
        "evil.com",
        "www.example.com.evil.com",
        "evil.com#www.example.com",
        "evil.com/www.example.com",
        "wild.example.com",
    ] {
        let response = gateway.fetch(&format!("GET /host/ HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        assert!(response.get("location").is_none() && response.status() >= 400, "{host}: {}", response.head);
    }
    for host in ["a'b.wild.example.com", "a;b=c.wild.example.com", "A.Wild.Example.Com.:1"] {
        let response = gateway.fetch(&format!("GET /host/ HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        let location = response.get("location").unwrap();
        let authority = location.trim_start_matches("http://").split('/').next().unwrap();
        assert!(authority.ends_with(".wild.example.com:8443"), "{location}");
    }
}

/// A client that the gateway does not trust cannot choose the scheme either.
#[test]
fn forwarding_headers_of_clients_change_nothing() {
    let gateway = Gateway::start(ROUTES);
    let fields = "x-forwarded-proto: https\r\nx-forwarded-host: evil.com\r\nforwarded: host=evil.com;proto=https\r\n";
    let response = gateway.fetch(&format!("GET /host/ HTTP/1.1\r\nhost: www.example.com\r\n{fields}\r\n"));
    assert_eq!(response.get("location"), Some("http://www.example.com:8443/host/?next=/host/&q="));
}
