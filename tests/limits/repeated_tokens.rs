//! A request with two tokens does not bypass a limit by claim: the app may read the one that is valid.

use super::repeated_keys::route;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::token::{SECRET, hs256};

fn gateway(header: &str, repeated: &str) -> Gateway {
    let config = [
        route("key", "/key", &format!("key = \"jwt:sub\"{repeated}")),
        route("skip", "/skip", &format!("key = \"jwt:sub\"\nmissing = \"skip\"{repeated}")),
        route("when", "/when", &format!("key = \"all\"\nwhen = {{ jwt = {{ plan = \"free\" }} }}{repeated}")),
        format!("[jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\nheader = \"{header}\"\n"),
    ];
    Gateway::start(&config.concat())
}

fn statuses(gateway: &Gateway, path: &str, fields: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.fetch(&get(path, fields)).status()).collect()
}

fn token(name: &str) -> String {
    hs256(SECRET, &format!("{{\"sub\":\"{name}\",\"plan\":\"free\"}}"))
}

#[test]
fn a_second_token_buys_nothing() {
    let (anna, paid) = (token("anna"), hs256(SECRET, "{\"sub\":\"bert\",\"plan\":\"paid\"}"));
    let bearer = gateway("authorization", "");
    let own = gateway("x-token", "");
    for path in ["/key", "/skip", "/when"] {
        for fields in [
            format!("authorization: Bearer junk\r\nauthorization: Bearer {anna}\r\n"),
            format!("authorization: Bearer {anna}\r\nauthorization: Bearer {anna}\r\n"),
            format!("authorization: Bearer {paid}\r\nAuthorization: Bearer {anna}\r\n"),
            format!("authorization: Bearer {anna}\r\nauthorization: Basic eA==\r\n"),
        ] {
            assert_eq!(statuses(&bearer, path, &fields, 3), [400; 3], "{path} {fields}");
        }
        for fields in [
            format!("x-token: junk\r\nx_token: {anna}\r\n"),
            format!("x-token: {paid}\r\nX-Token: {anna}\r\n"),
            format!("x_token: {anna}\r\n"),
        ] {
            assert_eq!(statuses(&own, path, &fields, 3), [400; 3], "{path} {fields}");
        }
        let one = format!("authorization: Bearer {anna}\r\n");
        assert_eq!(statuses(&bearer, path, &one, 3), [200, 200, 429], "{path}");
        assert_eq!(statuses(&own, path, &format!("x-token: {anna}\r\n"), 3), [200, 200, 429], "{path}");
    }
    // An invalid token counts as none.
    assert_eq!(statuses(&bearer, "/skip", "authorization: Bearer junk\r\n", 3), [200; 3]);
    for limit in ["key", "skip", "when"] {
        let rejected = [("route", limit), ("limit", limit), ("reason", "repeated_key")];
        bearer.assert_metric("rejections_total", &rejected, 12.0);
    }
}

/// Servers differ in the spellings of a token that they accept. Those that mean one token have its budget, and others
/// are refused.
#[test]
fn another_spelling_of_the_token_buys_nothing() {
    for (header, spellings) in [
        ("authorization", &["Bearer @", "Bearer\t@", "bearer @=", "JWT @", "@"][..]),
        ("x-token", &["@", "@=", "Bearer\t@", "Any @"]),
    ] {
        let gateway = gateway(header, "");
        for (n, path) in ["/key", "/skip", "/when"].into_iter().enumerate() {
            let token = hs256(SECRET, &format!("{{\"sub\":\"anna{n}\",\"plan\":\"free\"}}"));
            let status = |value: &str| {
                let line = format!("{header}: {}\r\n", value.replace('@', &token));
                gateway.fetch(&get(path, &line)).status()
            };
            let counted: Vec<u16> = spellings.iter().map(|value| status(value)).collect();
            assert!(counted[..2] == [200; 2] && counted[2..].iter().all(|one| *one == 429), "{path} {counted:?}");
            for value in ["Bearer @ x", "Bearer \"@\"", "Bearer @,x", "Any @ x", "Bearer \u{a0}@"] {
                assert_eq!(status(value), 400, "{path} {value}");
            }
        }
        // What is no token for anybody counts as none.
        for value in ["Bearer junk", "Basic dXNlcjpwYXNz", "Token token=\"a\"", "Digest uri=\"/a.b.js\""] {
            assert_eq!(statuses(&gateway, "/skip", &format!("{header}: {value}\r\n"), 3), [200; 3], "{value}");
        }
    }
}

#[test]
fn the_first_or_the_last_token_counts_where_a_limit_says_so() {
    let anna = token("anna");
    let good_first = format!("authorization: Bearer {anna}\r\nauthorization: Bearer junk\r\n");
    let good_last = format!("authorization: Bearer junk\r\nauthorization: Bearer {anna}\r\n");
    for (repeated, counts, nobody) in [("first", &good_first, &good_last), ("last", &good_last, &good_first)] {
        let gateway = gateway("authorization", &format!("\nrepeated = \"{repeated}\""));
        for path in ["/skip", "/when"] {
            assert_eq!(statuses(&gateway, path, counts, 3), [200, 200, 429], "{repeated} {path}");
            assert_eq!(statuses(&gateway, path, nobody, 3), [200; 3], "{repeated} {path}");
        }
    }
}
