//! Valid, wrong, malformed and missing credentials, and changes of the user file.

use std::fs;
use std::time::Duration;

use super::{basic, basic_bytes, bcrypt, start};
use crate::support::client::{call, get};
use crate::support::gateway::Gateway;
use crate::support::machine::process_cpu_time;
use crate::support::{wait_until, write_atomically};

fn route(auth: &str) -> String {
    format!("[[route]]\nname = \"shop\"\nupstream = \"echo:\"\nauth = {{ basic = \"users\"{auth} }}\n")
}

fn status(gateway: &Gateway, fields: &str) -> u16 {
    gateway.fetch(&get("/", fields)).status()
}

#[test]
fn a_client_without_credentials_learns_how_to_send_them() {
    let gateway = start(&bcrypt("alice", "secret"), &route(", realm = \"Shop of Alice\""));
    for (fields, detail) in [
        (String::new(), "this route requires credentials"),
        ("authorization: Bearer abc\r\n".to_owned(), "this route requires credentials"),
        (basic("alice", "wrong"), "the credentials are not valid"),
        (basic("nobody", "secret"), "the credentials are not valid"),
        (basic("Alice", "secret"), "the credentials are not valid"),
        ("authorization: Basic %%%\r\n".to_owned(), "the credentials are not valid"),
        (basic("alice", "secret").repeat(2), "the credentials are not valid"),
        (basic("alice", "secret") + "authorization: Bearer x\r\n", "the credentials are not valid"),
    ] {
        let refused = gateway.fetch(&get("/", &fields));
        assert_eq!(refused.status(), 401, "{fields}");
        let challenge = refused.get("www-authenticate");
        assert_eq!(challenge, Some("Basic realm=\"Shop of Alice\", charset=\"UTF-8\""), "{fields}");
        assert_eq!(refused.get("content-type"), Some("application/problem+json"));
        assert_eq!(refused.json()["detail"], detail, "{fields}");
    }
    assert_eq!(status(&gateway, &basic("alice", "secret")), 200);
    gateway.assert_metric(
        "rejections_total",
        &[("route", "shop"), ("limit", "_none"), ("reason", "unauthorized")],
        8.0,
    );
    gateway.assert_metric("requests_total", &[("route", "shop"), ("method", "GET"), ("code", "401")], 8.0);
    // Malformed credentials cost no hash.
    assert_eq!((super::checks(&gateway, "mismatch"), super::checks(&gateway, "match")), (3.0, 1.0));
}

#[test]
fn odd_credentials_are_refused_without_a_hash() {
    let gateway = start(&bcrypt("alice", "secret"), &route(""));
    for pair in [
        b"alice".to_vec(),
        b"alice:secret\0".to_vec(),
        b"alice:secret\n".to_vec(),
        b"alice\0:secret".to_vec(),
        b"\xff\xfe:secret".to_vec(),
        b" alice:secret".to_vec(),
        [b"alice:".to_vec(), vec![b'x'; 257]].concat(),
        [vec![b'a'; 257], b":x".to_vec()].concat(),
        vec![b'a'; 20_000],
        Vec::new(),
    ] {
        assert_eq!(status(&gateway, &basic_bytes(&pair)), 401, "{}", String::from_utf8_lossy(&pair));
    }
    assert_eq!(super::checks(&gateway, "mismatch"), 0.0);
    // bcrypt would ignore what follows the 72nd byte.
    let long = "x".repeat(72);
    let gateway = start(&bcrypt("long", &long), &route(""));
    assert_eq!(status(&gateway, &basic("long", &long)), 200);
    assert_eq!(status(&gateway, &basic("long", &format!("{long}y"))), 401);
    // Latin-1 is another password than the same text in UTF-8.
    let gateway = start(&bcrypt("anna", "sé"), &route(""));
    assert_eq!(status(&gateway, &basic_bytes(b"anna:s\xe9")), 401);
    assert_eq!(status(&gateway, &basic("anna", "sé")), 200);
}

#[test]
fn unknown_users_take_as_long_as_known_ones() {
    let users = format!(
        "{}{}",
        super::htpasswd(&["-nbB", "-C", "12", "a", "x"]),
        super::htpasswd(&["-nbB", "-C", "12", "b", "x"])
    );
    let gateway = start(&users, &route(""));
    // CPU time, because a busy machine delays some of the responses.
    let time = |user: &str, attempt: usize| {
        let before = process_cpu_time(gateway.pid());
        assert_eq!(status(&gateway, &basic(user, &format!("wrong {attempt}"))), 401);
        process_cpu_time(gateway.pid()) - before
    };
    let times: Vec<_> = (0..3).map(|attempt| (time("a", attempt), time("nobody", attempt))).collect();
    let (known, unknown) = (times.iter().map(|of| of.0).min().unwrap(), times.iter().map(|of| of.1).min().unwrap());
    assert!(unknown > known / 2 && known > unknown / 2, "{known:?} {unknown:?}");
    assert!(known > Duration::from_millis(50), "no hash takes {known:?}");
    assert_eq!(super::checks(&gateway, "mismatch"), 6.0);
}

#[test]
fn a_changed_file_applies_at_once_and_a_broken_one_does_not() {
    let gateway = start(&format!("{}{}", bcrypt("alice", "old"), bcrypt("bob", "b")), &route(", cache = \"1h\""));
    let users = gateway.dir.path().join("users");
    assert_eq!([status(&gateway, &basic("alice", "old")), status(&gateway, &basic("bob", "b"))], [200; 2]);
    let changed = format!("{}{}", bcrypt("alice", "new"), bcrypt("carol", "c"));
    write_atomically(&users, &changed);
    wait_until("the new password is active", || status(&gateway, &basic("alice", "new")) == 200);
    // Both passwords had been verified within the hour.
    assert_eq!([status(&gateway, &basic("alice", "old")), status(&gateway, &basic("bob", "b"))], [401; 2]);
    assert_eq!(status(&gateway, &basic("carol", "c")), 200);

    let broken = format!("{changed}eve:$apr1$abcdefgh$NotShownNotShownNotSho\n");
    write_atomically(&users, &broken);
    wait_until("the mistake is logged", || gateway.log().contains("users:3: the user `eve`: it is an MD5 hash"));
    assert!(!gateway.log().contains("NotShown") && !gateway.log().contains("$2y$"), "{}", gateway.log());
    assert_eq!([status(&gateway, &basic("alice", "new")), status(&gateway, &basic("carol", "c"))], [200; 2]);
    fs::remove_file(&users).unwrap();
    wait_until("its absence is logged", || gateway.log().contains("users`: the file does not exist"));
    assert_eq!(status(&gateway, &basic("carol", "c")), 200);
    write_atomically(&users, &changed.replace("carol", "dora"));
    wait_until("the file is read again", || status(&gateway, &basic("dora", "c")) == 200);
    assert_eq!(status(&gateway, &basic("carol", "c")), 401);
}

#[test]
fn every_method_needs_credentials() {
    let gateway = start(&bcrypt("alice", "secret"), &route(""));
    let preflight = "origin: http://a.test\r\naccess-control-request-method: PUT\r\n";
    for method in ["HEAD", "OPTIONS", "POST", "DELETE", "PROPFIND"] {
        let fetch =
            |fields: &str| gateway.client().fetch(&call(method, "/", &format!("{preflight}{fields}"), 0), "").status();
        assert_eq!((fetch(""), fetch(&basic("alice", "secret"))), (401, 200), "{method}");
    }
}
