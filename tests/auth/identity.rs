//! The identity of a client, as the upstream server, limits and the log see it. Nothing that a client sends can
//! claim another identity, whether its route has `auth` or not.

use std::process::Command;

use http::{HeaderMap, HeaderValue};

use super::{basic, bcrypt, start, start_with};
use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::h2::{self, H2Client, Sent};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

fn routes(url: &str, auth: &str) -> String {
    format!(
        "[[route]]\nname = \"own\"\npath = \"/own\"\nupstream = \"{url}\"\nauth = {{ basic = \"users\"{auth} }}\n\
         [[route]]\nname = \"free\"\npath = \"/free\"\nupstream = \"{url}\"\n"
    )
}

#[test]
fn a_client_cannot_state_an_identity() {
    let upstream = Upstream::text("ok");
    let users = bcrypt("alice", "a");
    for header in ["x-forwarded-user", "remote-user"] {
        let auth = format!(", user_header = \"{header}\"");
        for server in ["", "trusted_proxies = [\"127.0.0.0/8\"]", "strictness = \"monitor\""] {
            let gateway = start_with(server, &users, &routes(&upstream.url(), &auth));
            let underscored = header.replace('-', "_");
            let upper = header.to_uppercase();
            for forged in [
                format!("{header}: admin\r\n"),
                format!("{upper}: admin\r\n{header}: admin\r\n"),
                format!("{underscored}: admin\r\n{}: admin\r\n", header.replace('-', ".")),
                format!("connection: {header}\r\n{header}: admin\r\n"),
            ] {
                for (path, fields, expected) in [
                    ("/own", format!("{}{forged}", basic("alice", "a")), Some("alice")),
                    ("/own", format!("{forged}{}", basic("alice", "a")), Some("alice")),
                    ("/free", forged.clone(), None),
                    ("/free", format!("{forged}{}", basic("alice", "a")), None),
                ] {
                    let status = gateway.fetch(&get(path, &fields)).status();
                    if status == 400 && fields.contains("connection: ") {
                        // Strict routes refuse requests that try to hide such a header.
                        continue;
                    }
                    assert_eq!(status, 200, "{fields}");
                    let seen = upstream.request();
                    assert_eq!(seen.get(header), expected, "{server} {path} {forged} {}", seen.head);
                    assert!(!seen.head.contains("admin"), "{}", seen.head);
                }
            }
        }
    }
}

#[test]
fn trailers_state_no_identity_either() {
    // The whole request, with its trailers.
    let upstream = Upstream::start(|peer| {
        while peer.head()?.is_some() {
            let mut rest = String::new();
            while !rest.ends_with("\r\n\r\n") {
                rest.push(char::from(peer.exactly(1)?[0]));
            }
            peer.note(&format!("REST {rest}\r\n\r\n"));
            peer.send(ok("ok"))?;
        }
        Ok(())
    });
    let routes = routes(&upstream.url(), ", user_header = \"remote-user\"");
    let routes = routes.replace("[[route]]\n", "[[route]]\nrequest_trailers = true\n");
    let gateway = start(&bcrypt("alice", "a"), &routes);
    for path in ["/own", "/free"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\ntrailer: remote-user, x-sum\r\n{}\r\n",
            basic("alice", "a")
        );
        let mut client = gateway.client();
        let response = client.fetch(&head, "1\r\nx\r\n0\r\nremote-user: admin\r\nx-sum: 1\r\n\r\n");
        assert_eq!(response.status(), 200, "{}", response.text());
        upstream.request();
        let rest = upstream.request().head;
        assert!(rest.contains("x-sum: 1") && !rest.contains("admin"), "{rest}");
    }
    let mut client = H2Client::connect(gateway.addr);
    let mut request = h2::post("/own");
    let value = basic("alice", "a");
    let value = value.trim().strip_prefix("authorization: ").unwrap();
    request.headers_mut().insert("authorization", HeaderValue::from_str(value).unwrap());
    request.headers_mut().insert("trailer", HeaderValue::from_static("remote-user, x-sum"));
    let mut trailers = HeaderMap::new();
    for name in ["remote-user", "x-sum"] {
        trailers.insert(name, HeaderValue::from_static("admin"));
    }
    assert_eq!(client.fetch(request, Sent { body: b"x", trailers: Some(trailers) }).status(), 200);
    assert_eq!(upstream.request().get("remote-user"), Some("alice"));
    let rest = upstream.request().head;
    assert!(rest.contains("x-sum: admin") && !rest.contains("remote-user"), "{rest}");
}

#[test]
fn the_password_stays_here_unless_the_route_says_otherwise() {
    let upstream = Upstream::text("ok");
    for (auth, passed, user) in
        [("", false, true), (", forward_credentials = true", true, true), (", user_header = \"off\"", false, false)]
    {
        let gateway = start(&bcrypt("alice", "a"), &routes(&upstream.url(), auth));
        assert_eq!(gateway.fetch(&get("/own", &basic("alice", "a"))).status(), 200);
        let seen = upstream.request();
        assert_eq!(
            (seen.get("authorization").is_some(), seen.get("x-forwarded-user").is_some()),
            (passed, user),
            "{auth}"
        );
        // A route without `auth` changes nothing.
        gateway.fetch(&get("/free", &basic("alice", "a")));
        assert!(upstream.request().get("authorization").is_some());
    }
}

#[test]
fn the_identity_is_a_key_a_condition_and_a_log_field() {
    let rest = "limits = [\"each\", \"staff\"]\n\
                [limit.each]\nrate = \"2/h\"\nkey = [\"user\", \"path\"]\n\
                [limit.staff]\nrate = \"1/h\"\nkey = \"all\"\nwhen = { user = [\"set:staff\", \"guest-*\"] }\n\
                [set.staff]\nvalues = [\"carol\"]\n";
    let users: String =
        ["alice", "bob", "carol", "guest-1", "jos\u{e9} \"x"].iter().map(|user| bcrypt(user, "p")).collect();
    let config = format!("[[route]]\nname = \"r\"\nupstream = \"echo:\"\nauth = {{ basic = \"users\" }}\n{rest}");
    let gateway = start_with("access_log = true", &users, &config);
    let statuses = |user: &str, path: &str| -> Vec<u16> {
        (0..3).map(|_| gateway.fetch(&get(path, &basic(user, "p"))).status()).collect()
    };
    assert_eq!([statuses("alice", "/"), statuses("alice", "/b"), statuses("bob", "/")], [const { [200, 200, 429] }; 3]);
    assert_eq!([statuses("carol", "/"), statuses("guest-1", "/")], [[200, 429, 429], [429; 3]]);
    assert_eq!(statuses("jos\u{e9} \"x", "/"), [200, 200, 429]);
    gateway.fetch(&get("/", &basic("mallory", "p")));
    gateway.fetch(&get("/", &basic("alice", "wrong")));
    wait_until("all requests are logged", || gateway.stdout().lines().count() == 20);
    let log = gateway.stdout();
    for (user, count) in [("\"alice\"", 6), ("\"bob\"", 3), ("\"jos\u{e9} \\\"x\"", 3), ("null", 2)] {
        assert_eq!(log.matches(&format!("\"user\":{user},")).count(), count, "{user} {log}");
    }
    assert!(!log.contains("mallory") && !log.contains("wrong"), "{log}");
    let peek = gateway.admin("/-/limits/each/state?key=alice&key=/").json();
    assert_eq!(peek["remaining"], 0, "{peek}");
    assert_eq!(replayed(&gateway), (6 * 2 / 3 + 2 + 2, 2));
}

/// Runs the config of the gateway over its log. Returns how many requests pass the limit by user, and how many were
/// not authenticated.
fn replayed(gateway: &Gateway) -> (u64, u64) {
    let mut config = std::fs::read_to_string(gateway.config()).unwrap();
    config = config.replace("limits = [\"each\", \"staff\"]", "limits = [\"each\"]");
    config = config.replace("[\"user\", \"path\"]", "[\"user\", \"path\", \"query:x\"]\nmissing = \"shared\"");
    let file = gateway.dir.path().join("replay.toml");
    std::fs::write(&file, config).unwrap();
    let log = gateway.dir.path().join("stdout.log");
    // Without the requests that the other limit refused.
    let lines = std::fs::read_to_string(&log).unwrap();
    let kept: Vec<&str> = lines.lines().filter(|line| !line.contains("carol") && !line.contains("guest-1")).collect();
    std::fs::write(&log, kept.join("\n") + "\n").unwrap();
    let mut command: Command = program();
    let output = command.args(["replay", "--format", "json", "-c"]).arg(&file).arg(&log).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let count = |name: &str| report["requests"][name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    (count("admitted"), count("unauthenticated"))
}

#[test]
fn a_combined_log_has_the_user_where_other_servers_have_it() {
    let config = "[[route]]\nupstream = \"echo:\"\nauth = { basic = \"users\" }\n";
    let gateway = start_with(
        "access_log = { format = \"combined\" }",
        &format!("{}{}", bcrypt("al ice", "a"), bcrypt("b\"ob", "b")),
        config,
    );
    for (user, password) in [("al ice", "a"), ("b\"ob", "b"), ("al ice", "x")] {
        gateway.fetch(&get("/", &basic(user, password)));
    }
    wait_until("all requests are logged", || gateway.stdout().lines().count() == 3);
    let log = gateway.stdout();
    let users: Vec<&str> = log.lines().map(|line| line.split_once(" [").unwrap().0).collect();
    assert_eq!(users, ["127.0.0.1 - al\\x20ice", "127.0.0.1 - b\\x22ob", "127.0.0.1 - -"]);
}
