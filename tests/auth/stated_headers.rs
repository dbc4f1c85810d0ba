//! Headers and fields of the access log in which the gateway states who the client is: `request_headers.set`, `format`
//! and `add` with placeholders.

use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::DnType;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{basic, bcrypt, start};
use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::tls::Trust;
use crate::support::token::{SECRET, hs256};
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const CERTIFICATE: &str = "request_headers.set = { x-client-dn = \"{tls_subject}\", x-client-san = \"san={tls_san}\", \
                           x-fingerprint = \"{tls_fingerprint}\", Client-Cert = \"{tls_cert}\", x-pem = \"{tls_cert_pem}\", \
                           x-ip = \"{client_ip}\", x-id = \"{request_id}\", x-json = '{\"a\": { user }}' }\n";

/// Forged copies of the headers, in every spelling that servers treat as the same.
const FORGED: &str = "X-Client-DN: CN=root\r\nx_client_dn: CN=root\r\nX.Client.DN: CN=root\r\nclient-cert: :eA==:\r\n\
                      Client_Cert: root\r\nClient-Cert-Chain: root\r\nX-Fingerprint: root\r\nx-pem: root\r\nX_Client-San: root\r\n";

#[test]
fn the_server_gets_the_certificate_of_the_client_and_never_a_forged_one() {
    let (ca, clients, upstream) = (Ca::new("test"), Ca::new("clients"), Upstream::text("in"));
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "0");
        std::fs::write(dir.join("ca.pem"), clients.pem()).unwrap();
        let config = format!(
            "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
             tls = {{ certificates = [{{ cert = \"0.pem\", key = \"0.key\" }}], client_ca = \"ca.pem\", client_auth = \
             \"optional\" }}\n[[route]]\npath = \"/\"\nupstream = \"{url}\"\n{CERTIFICATE}\
             [[route]]\npath = \"/other\"\nupstream = \"{url}\"\n",
            url = upstream.url()
        );
        config_arguments(dir, &config)
    });
    let pair = clients.issue_with(&["app.test"], "J\u{fc}rgen, admin%", |params| {
        params.distinguished_name.push(DnType::OrganizationName, "a\r\nx-admin: 1");
    });
    let der = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    let fetch = |trust: &Trust, target: &str, fields: &str| {
        assert_eq!(trust.connect(gateway.addr, "a.test").fetch(&get(target, fields), "").status(), 200);
        upstream.requests().pop().unwrap()
    };
    let known = Trust::with(&ca, Some(&pair), rustls::ALL_VERSIONS);
    for fields in ["", FORGED, "connection: close\r\n"] {
        let sent = fetch(&known, "/", fields);
        assert_eq!(sent.all("x-client-dn"), ["O=a\\0d\\0ax-admin: 1,CN=J%C3%BCrgen\\, admin%25"], "{}", sent.head);
        assert_eq!(sent.all("x-client-san"), ["san=app.test"]);
        assert_eq!(sent.all("client-cert"), [format!(":{}:", BASE64_STANDARD.encode(&der))]);
        let pem: String =
            percent_encoding::percent_decode_str(sent.get("x-pem").unwrap()).decode_utf8().unwrap().into();
        assert_eq!(pem.lines().collect::<Vec<_>>(), pair.cert.lines().collect::<Vec<_>>());
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sent.all("x-fingerprint"), [hex]);
        assert_eq!((sent.get("x-ip"), sent.get("x-id")), (Some("127.0.0.1"), sent.get("x-request-id")));
        assert_eq!(sent.get("x-json"), Some("{\"a\": { user }}"));
        assert!(!sent.head.contains("root") && sent.get("x-admin").is_none(), "{}", sent.head);
    }
    // Without a certificate, and on a route that states nothing, the server gets no such header.
    for (trust, target) in [(&Trust::in_ca(&ca), "/"), (&known, "/other"), (&Trust::in_ca(&ca), "/other")] {
        let sent = fetch(trust, target, FORGED);
        for name in ["x-client-dn", "x-client-san", "x-fingerprint", "client-cert", "x-pem"] {
            assert!(sent.get(name).is_none(), "{name}: {}", sent.head);
        }
        assert!(!sent.head.contains("root"), "{}", sent.head);
    }
}

#[test]
fn the_server_gets_the_user_and_verified_claims() {
    let upstream = Upstream::text("in");
    let route = |path: &str, auth: &str| {
        format!(
            "[[route]]\npath = \"{path}\"\nupstream = \"{}\"\n{auth}request_headers.set = {{ x-user = \"{{user}}\", \
             x-sub = \"sub {{jwt:sub}}\", x-both = \"{{jwt:plan}}/{{user}}\" }}\n",
            upstream.url()
        )
    };
    let config = [
        route("/basic", "auth = { basic = \"users\" }\n"),
        route("/jwt", "auth = { jwt = true }\n"),
        route("/open", ""),
        format!("[jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n"),
    ];
    let gateway = start(&bcrypt("alice", "a"), &config.concat());
    let token = |secret: &str, claims: &str| format!("authorization: Bearer {}\r\n", hs256(secret, claims));
    let claims = "{\"sub\":\"bob \u{e9}\",\"plan\":\"go\\nld\"}";
    let forged = "x-user: root\r\nX_Sub: root\r\nx-both: root\r\n";
    for (target, fields, [user, sub, both]) in [
        ("/basic", basic("alice", "a"), [Some("alice"), None, None]),
        ("/jwt", token(SECRET, claims), [Some("bob %C3%A9"), Some("sub bob %C3%A9"), Some("go%0Ald/bob %C3%A9")]),
        ("/open", token(SECRET, claims), [None, Some("sub bob %C3%A9"), None]),
        ("/open", token("0123456789abcdef0123456789abcdeX", claims), [None; 3]),
        ("/open", String::new(), [None; 3]),
    ] {
        let status = gateway.fetch(&get(target, &format!("{forged}{fields}"))).status();
        let sent = upstream.requests().pop().unwrap_or_else(|| panic!("{target} {status}"));
        assert_eq!([sent.get("x-user"), sent.get("x-sub"), sent.get("x-both")], [user, sub, both], "{target} {fields}");
        assert!(!sent.head.contains("root"), "{}", sent.head);
    }
}

/// The values of placeholders in headers and in the log are the same facts.
#[test]
fn the_log_has_the_facts_that_headers_state() {
    let (ca, clients, upstream) = (Ca::new("test"), Ca::new("clients"), Upstream::text("in"));
    let facts = ["tls_san", "tls_fingerprint", "jwt:plan", "jwt:/roles", "user", "tls_subject", "client_ip"];
    let connection = ["method", "host", "path", "query", "route", "protocol", "tls", "tls_cipher", "tls_name"];
    let template: String = facts.iter().map(|name| format!("{name}=\\\"{{{name}}}\\\" ")).collect();
    let headers: Vec<String> = facts
        .iter()
        .chain(&connection)
        .chain(&["target"])
        .enumerate()
        .map(|(at, name)| format!("x-{at} = \"{{{name}}}\""))
        .collect();
    let start = |log: &str| {
        Gateway::launch(&[], |dir| {
            ca.issue(&["a.test"], "gateway").save(dir, "0");
            std::fs::write(dir.join("ca.pem"), clients.pem()).unwrap();
            let config = format!(
                "[server]\nworkers = 1\naccess_log = {{ {log} }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\n\
                 address = \"127.0.0.1:0\"\ntls = {{ certificates = [{{ cert = \"0.pem\", key = \"0.key\" }}], \
                 client_ca = \"ca.pem\", client_auth = \"optional\" }}\n[jwt]\nkey = \"{SECRET}\"\n\
                 algorithms = [\"HS256\"]\n[[route]]\nname = \"in\"\npath = \"/in\"\nupstream = \"{url}\"\n\
                 auth = {{ jwt = true }}\nlimits = [\"two\"]\nrequest_headers.set = {{ {headers} }}\n\
                 [[route]]\nname = \"open\"\npath = \"/open\"\nrespond = {{ }}\n[[route]]\npath = \"/denied\"\n\
                 respond = {{ }}\ndeny = [\"127.0.0.1\"]\n[limit.two]\nrate = \"2/day\"\nkey = \"all\"\n",
                url = upstream.url(),
                headers = headers.join(", "),
            );
            config_arguments(dir, &config)
        })
    };
    let pair = clients.issue_with(&["app \"x\" 1.test"], "app", |_| {});
    let claims = "{\"sub\":\"bob \\u00e9\",\"plan\":\"go\\n\\\" ld\",\"roles\":[\"a,b\",\"c\"]}";
    let token = format!("authorization: Bearer {}\r\n", hs256(SECRET, claims));
    let forged = format!("authorization: Bearer {}\r\n", hs256("0123456789abcdef0123456789abcdeX", claims));
    let fetch = |gateway: &Gateway, pair, target: &str, fields: &str| {
        let trust = Trust::with(&ca, pair, rustls::ALL_VERSIONS);
        trust.connect(gateway.addr, "a.test").fetch(&get(target, fields), "").status()
    };
    let gateway = start("add = [\"tls_san\", \"{tls_fingerprint}\", \"jwt:plan\", \"jwt:/roles\"]");
    let requests = [
        (Some(&pair), "/in?a=%20b", &*token, 200, true, true),
        (None, "/in", &token, 200, false, true),
        // Refused by the limit, which comes after the token.
        (Some(&pair), "/in", &token, 429, true, true),
        (Some(&pair), "/in", &forged, 401, true, false),
        (Some(&pair), "/denied", &token, 403, true, false),
        (Some(&pair), "/nowhere", "", 404, true, false),
        (None, "/open", &token, 200, false, true),
        (None, "/open", "", 200, false, false),
    ];
    for (pair, target, fields, status, ..) in requests {
        assert_eq!(fetch(&gateway, pair, target, fields), status, "{target}");
    }
    wait_until("the log is written", || gateway.stdout().lines().count() == requests.len());
    let digest = aws_lc_rs::digest::digest(
        &aws_lc_rs::digest::SHA256,
        &CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap(),
    );
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let log = gateway.stdout();
    for (line, (_, target, _, status, has_certificate, has_claims)) in log.lines().zip(requests) {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["status"], status, "{line}");
        let expected = [
            ("tls_san", has_certificate.then_some("app \"x\" 1.test")),
            ("tls_fingerprint", has_certificate.then_some(&*hex)),
            ("jwt:plan", has_claims.then_some("go\n\" ld")),
            ("jwt:/roles", has_claims.then_some("a%2Cb,c")),
        ];
        for (name, value) in expected {
            assert_eq!(entry[name].as_str(), value, "{name} of {target}: {line}");
        }
    }
    // The server gets the same values, with other escapes.
    let sent = upstream.requests().into_iter().next().unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    for (at, name) in facts.iter().chain(&connection).enumerate() {
        let value = sent.get(&format!("x-{at}")).unwrap_or_else(|| panic!("{name}: {}", sent.head));
        let own = if *name == "client_ip" { "client" } else { name };
        let (is_url, logged) = (["path", "query"].contains(name), first[own].as_str().unwrap());
        let decoded = percent_encoding::percent_decode_str(value).decode_utf8().unwrap();
        let is_list = *name == "jwt:/roles";
        assert_eq!(if is_url || is_list { value } else { &*decoded }, logged, "{name}");
    }
    assert_eq!(sent.get(&format!("x-{}", facts.len() + connection.len())), Some("/in?a=%20b"));

    let gateway = start(&format!("format = \"{template}\""));
    assert_eq!(fetch(&gateway, Some(&pair), "/in", &token), 200);
    wait_until("the log is written", || gateway.stdout().lines().count() == 1);
    let line = gateway.stdout();
    let expected = format!(
        "tls_san=\"app \\x22x\\x22 1.test\" tls_fingerprint=\"{hex}\" jwt:plan=\"go\\x0A\\x22 ld\" \
         jwt:/roles=\"a%2Cb,c\" user=\"bob \\xC3\\xA9\" tls_subject=\"CN=app\" client_ip=\"127.0.0.1\" \n"
    );
    assert_eq!(line, expected);
}

#[test]
fn check_knows_the_facts_of_the_log() {
    let log = |log: &str| check(&format!("[server]\naccess_log = {{ {log} }}\n[[route]]\nupstream = \"echo:\"\n"));
    for (option, words) in [
        ("format = \"{tls_cert}\"", &["{tls_fingerprint}"][..]),
        ("format = \"{tls_cert_pem} {time}\"", &["{tls_fingerprint}"]),
        ("format = \"{target}\"", &["{path} and {query}"]),
        ("format = \"{jwt:}\"", &["claim"]),
        ("format = \"{tls-san}\"", &["did you mean {tls_san}?"]),
        ("format = \"$remote_addr $status\"", &["{status}"]),
        ("format = \"{time} $ssl_client_s_dn\"", &["{tls_subject}"]),
        ("format = \"%START_TIME% %PROTOCOL%\"", &["{time}"]),
        ("add = [\"status\"]", &["has the field `status` already"]),
        ("add = [\"client_ip\"]", &["has the field `client` already"]),
        ("add = [\"tls_dn\"]", &["unknown field `tls_dn`"]),
        ("add = [\"tls_san\", \"{tls_san}\"]", &["listed twice"]),
        ("add = [\"tls_san\"], format = \"combined\"", &["only JSON lines", "`format`"]),
    ] {
        let (code, text) = log(option);
        assert!(code == 2 && words.iter().all(|word| text.contains(word)), "{option}: {text}");
    }
    for option in ["format = \"{tls_san} {jwt:sub}\"", "add = [\"tls_fingerprint\"]"] {
        let (code, text) = log(option);
        assert!(code == 0 && text.contains("SG0216") && text.contains("no line has a value"), "{option}: {text}");
    }
    for (value, words) in [
        ("{status}", "only after the server has got the request"),
        ("{client}", "{client_ip}"),
        ("{user_agent}", "header of the client"),
        ("{limit}", "x-limit-exceeded"),
    ] {
        let route = format!("[[route]]\nupstream = \"echo:\"\nrequest_headers.set = {{ x-a = \"{value}\" }}\n");
        let (code, text) = check(&route);
        assert!(code == 2 && text.contains("field of the access log only") && text.contains(words), "{value}: {text}");
    }
}

/// Servers that map headers to variables take `X-Plan` for `X_Plan`.
#[test]
fn a_client_cannot_send_another_spelling_of_a_header_that_the_route_sets() {
    let upstream = Upstream::text("in");
    let config = format!(
        "[[route]]\nupstream = \"{}\"\nrequest_headers.set = {{ X_Plan = \"free\", x_client = \"{{client_ip}}\", \
         x-zone = \"eu\", x_user = \"{{user}}\" }}\n",
        upstream.url()
    );
    let gateway = Gateway::with("", &config);
    let forged = "X-Plan: root\r\nX-Client: root\r\nx_plan: root\r\nX-Zone: root\r\nX-User: root\r\nx-user: root\r\n";
    assert_eq!(gateway.fetch(&get("/", forged)).status(), 200);
    let sent = upstream.request();
    assert!(!sent.head.contains("root"), "{}", sent.head);
    let own = ["x_plan", "x_client", "x-zone", "x_user"].map(|name| sent.get(name));
    assert_eq!(own, [Some("free"), Some("127.0.0.1"), Some("eu"), None]);
}

fn check(config: &str) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sluicegate.toml");
    std::fs::write(&path, config).unwrap();
    let mut command: Command = program();
    let output = command.args(["check", "-c"]).arg(&path).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn check_knows_every_placeholder() {
    for (value, words) in [
        ("{tls_dn}", &["unknown placeholder `{tls_dn}`", "{tls_subject}", "{jwt:CLAIM}"][..]),
        ("{clientip}", &["did you mean `{client_ip}`?"]),
        ("{header:x}", &["unknown placeholder", "{request_id}"]),
        ("{jwt:}", &["claim"]),
        ("$ssl_client_s_dn", &["variable of another program", "{tls_subject}"]),
        ("%DOWNSTREAM_PEER_SUBJECT%", &["{tls_subject}"]),
        ("{Client_IP}", &["did you mean `{client_ip}`?"]),
        ("{client-ip}", &["did you mean `{client_ip}`?"]),
        ("{http.request.remote.host}", &["variable of another program", "{client_ip}"]),
        ("{http.regexp.name.1}", &["unknown placeholder"]),
        ("%DOWNSTREAM_REMOTE_ADDRESS%", &["{client_ip}"]),
        ("a %REQ(:path)%", &["`%REQ(:path)%` is a variable of another program"]),
        ("$http_x_user-1", &["`$http_x_user` is a variable of another program"]),
    ] {
        let route = format!("[[route]]\nupstream = \"echo:\"\nrequest_headers.set = {{ x-a = \"{value}\" }}\n");
        let (code, text) = check(&route);
        assert_eq!(code, 2, "{value}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{value}: {text}");
    }
    for value in ["{client_ip}", "{user}", "$remote_addr", "%RESPONSE_FLAGS%"] {
        let route = format!("[[route]]\nupstream = \"echo:\"\nresponse_headers.add = {{ x-a = \"{value}\" }}\n");
        let (code, text) = check(&route);
        assert!(code == 2 && (text.contains("no placeholders") || text.contains("another program")), "{value}: {text}");
    }
    for value in
        ["{ tls_dn }", "{\\\"a\\\": 1}", "{}", "a}{b", "{client_ip}{request_id}", "100% of 5%", "{deadbeef-0123}", "$5"]
    {
        let route = format!("[[route]]\nupstream = \"echo:\"\nrequest_headers.set = {{ x-a = \"{value}\" }}\n");
        assert_eq!(check(&route).0, 0, "{value}");
    }
    for value in ["{user}", "{jwt:sub}", "{tls_cert}"] {
        let route = format!("[[route]]\nupstream = \"echo:\"\nrequest_headers.set = {{ x-a = \"{value}\" }}\n");
        let (code, text) = check(&route);
        assert!(code == 0 && text.contains("SG0216") && text.contains("x-a"), "{value}: {text}");
    }
}
