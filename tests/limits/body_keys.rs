//! Keys from the body, `form:NAME` and `json:POINTER`, under attack by clients that want more guesses at an account
//! than its limit allows.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::client::{Client, post};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::scenario::scenario;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "content-type: application/json\r\n";

/// `/` has keys of both kinds. `/json` has one, and a request without it passes; `/told` refuses such a request.
fn start(upstream: &Upstream, server: &str) -> Gateway {
    let routes = [
        ("/", "account", "key = [\"form:user\", \"json:/login/user\"]"),
        ("/json", "json", "key = \"json:/user\"\nmissing = \"skip\""),
        ("/told", "told", "key = \"form:a\\\"b\"\nmissing = \"refuse\""),
        ("/shadow", "shadow", "key = \"form:user\"\nmode = \"shadow\""),
        ("/posts", "posts", "key = \"form:user\"\nmissing = \"refuse\"\nwhen = { method = \"POST\" }"),
    ];
    scenario().upstream(upstream).server(server).limited_routes("2/day", &routes).start()
}

fn chunked(target: &str, fields: &str, pieces: &[&str]) -> String {
    let mut text = format!("POST {target} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{fields}\r\n");
    for piece in pieces {
        text += &format!("{:x}\r\n{piece}\r\n", piece.len());
    }
    text + "0\r\n\r\n"
}

#[test]
fn an_account_has_one_budget_with_any_encoding_of_its_body() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "");
    let mut client = gateway.client();
    let by_form = "x=1&us%65r=an%6Ea&password=%2B";
    for (pieces, status) in [(vec![by_form], 200), (vec!["user", "=ann", "a"], 200), (vec!["user=anna"], 429)] {
        client.send(chunked("/", FORM, &pieces));
        assert_eq!(client.read_response("POST").status(), status, "{pieces:?}");
        if status == 200 {
            assert_eq!(upstream.request().text(), pieces.concat(), "the body is forwarded unchanged");
        }
    }
    // The next request, which arrived together with the first, is read correctly.
    client.send(post("/", 9, FORM) + "user=anna" + &post("/", 9, FORM) + "user=bert");
    assert_eq!([client.read_response("POST").status(), client.read_response("POST").status()], [429, 200]);
    assert_eq!((upstream.request().text().as_str(), upstream.requests().len()), ("user=bert", 0));

    for (body, status) in [
        (r#"{"login":{"user":"anna","password":""}}"#, 200),
        (r#"{"x":[1,{}],"login":{"\u0075ser":"\u0061nna"}}"#, 200),
        (r#"{"login":{"user":"anna"}}"#, 429),
        (r#"{"login":{"user":"bert"}}"#, 200),
    ] {
        assert_eq!(gateway.post("/", JSON, body).status(), status, "{body}");
    }
    // Requests without a name, in any form, share one budget.
    assert_eq!(gateway.post("/", FORM, "password=x").status(), 200);
    assert_eq!(gateway.post("/", JSON, "{\"user\":\"anna\"}").status(), 200);
    assert_eq!(gateway.post("/", JSON, "{\"login\":null}").status(), 429);
    assert_eq!(gateway.get("/").status(), 429);
}

#[test]
fn ambiguous_bodies_do_not_evade_a_limit() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "");
    let padded = format!("user=anna&x={}", "x".repeat(8 * 1024));
    let padded_json = format!("{{\"x\":\"{}\",\"user\":\"anna\"}}", "x".repeat(8 * 1024));
    let multipart = "--b\r\ncontent-disposition: form-data; name=\"user\"\r\n\r\nanna\r\n--b--\r\n";
    for (target, fields, body, status) in [
        ("/", FORM, padded.as_str(), 413),
        ("/json", JSON, padded_json.as_str(), 413),
        ("/json", FORM, r#"{"user":"anna"}"#, 400),
        ("/json", "content-type: text/plain\r\n", r#"{"user":"anna"}"#, 415),
        ("/json", "", r#"{"user":"anna"}"#, 415),
        ("/", "content-type: multipart/form-data; boundary=b\r\n", multipart, 415),
        ("/", "content-type: application/json; charset=utf-16\r\n", r#"{"login":{"user":"anna"}}"#, 415),
        ("/", &format!("{FORM}content-encoding: gzip\r\n"), "user=anna", 415),
        ("/", &format!("{FORM}{JSON}"), "user=anna", 415),
        ("/json", JSON, r#"{"user":"anna""#, 400),
        ("/json", JSON, r#"{"user":"anna"} x"#, 400),
        ("/json", JSON, r#"{"user":"x","user":"anna"}"#, 400),
        ("/json", JSON, r#"{"user":"x","User":"anna"}"#, 400),
        ("/json", JSON, r#"{"user":["anna"]}"#, 400),
        ("/", FORM, "user=x&user=anna", 400),
        ("/", FORM, "user=x;user=anna", 400),
        ("/", FORM, "user[]=anna", 400),
    ] {
        let response = gateway.post(target, fields, body);
        assert_eq!(response.status(), status, "{fields}{body:.80}");
        assert_eq!(response.json()["type"], "about:blank");
        if !body.is_empty() && status != 400 {
            let mut client = gateway.client();
            client.send(chunked(target, fields, &body.split_inclusive('"').collect::<Vec<_>>()));
            assert_eq!(client.read_response("POST").status(), status, "chunked: {fields}{body:.80}");
        }
    }
    assert_eq!(upstream.connections(), 0);
    // None of these requests was charged.
    for _ in 0..2 {
        assert_eq!(gateway.post("/", FORM, "user=anna").status(), 200);
        assert_eq!(gateway.post("/json", JSON, r#"{"user":"anna"}"#).status(), 200);
    }
    assert_eq!(gateway.post("/json", JSON, r#"{"user":"anna"}"#).status(), 429);
    assert_eq!(gateway.post("/json", JSON, "{}").status(), 200, "it contains no name, so the limit skips it");
    let unreadable = [("limit", "json"), ("route", "json"), ("reason", "unreadable_key")];
    gateway.assert_metric("rejections_total", &unreadable, 9.0);
    let grpc = gateway.post("/", "content-type: application/grpc\r\n", "12345");
    assert_eq!((grpc.status(), grpc.get("grpc-status")), (200, Some("3")));
}

#[test]
fn a_missing_part_is_named() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "");
    let response = gateway.post("/told", FORM, "a=1");
    assert_eq!(response.status(), 403);
    assert_eq!(response.json()["title"], "the request lacks form:a\"b, the key of its limit");
    let response = gateway.post("/told", FORM, format!("a%22b={}", "x".repeat(9000)));
    assert_eq!(
        response.json()["title"],
        "the request body is too long for a limit that reads it (max_key_body, max_cost_body)"
    );
    assert_eq!(gateway.post("/told", FORM, "a%22b=1").status(), 200);
}

#[test]
fn a_100_continue_is_sent_early_only_if_a_limit_reads_the_body() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "");
    let expect = format!("{FORM}expect: 100-continue\r\n");
    for status in [200, 200, 429] {
        let mut client = gateway.client();
        client.send(post("/", 9, &expect));
        assert_eq!(client.try_read_head().unwrap().status(), 100);
        client.send("user=anna");
        assert_eq!(client.read_response("POST").status(), status);
    }
    for (length, fields, status) in [(9000, expect.as_str(), 413), (9, "expect: 100-continue\r\n", 415)] {
        let mut client = gateway.client();
        client.send(post("/", length, fields));
        let response = client.read_response("POST");
        assert_eq!((response.status(), response.get("connection")), (status, Some("close")));
        client.assert_closed();
    }
}

#[test]
fn a_slow_or_broken_body_is_cut_and_not_charged() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "body_timeout = \"400ms\"\nmin_body_rate = 1000");
    let mut stalled = gateway.client();
    stalled.send(post("/", 9, FORM) + "user=ann");
    let response = stalled.read_response("POST");
    assert_eq!((response.status(), response.get("connection")), (408, Some("close")));
    stalled.assert_closed();
    gateway.assert_metric("http_rejected_total", &[("reason", "body_timeout")], 1.0);

    let mut half = gateway.client();
    half.send(post("/", 9, FORM) + "user=ann");
    half.stream().shutdown(Shutdown::Write).unwrap();
    // A client that sends a part of a request need not get a response.
    let _ = half.try_read_response("POST");
    let mut leaving = gateway.client();
    leaving.send(post("/", 9, FORM) + "user=ann");
    drop(leaving);
    gateway.assert_metric("requests_total", &[("route", "account"), ("method", "POST"), ("code", "499")], 2.0);
    let mut wrong = gateway.client();
    wrong.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{FORM}transfer-encoding: chunked\r\n\r\n4\r\nuser\r\nzz\r\n"));
    assert_eq!(wrong.read_response("POST").status(), 400);
    wait_until("nothing is in flight", || gateway.metric("requests_in_flight", &[("route", "account")]) == Some(0.0));
    assert_eq!(upstream.connections(), 0);
    assert_eq!([0; 3].map(|_| gateway.post("/", FORM, "user=anna").status()), [200, 200, 429]);
}

/// If no limit that reads the body applies, the body is forwarded unread.
#[test]
fn a_body_is_read_only_for_limits_that_apply() {
    let upstream = Upstream::start(|peer| {
        peer.head()?;
        peer.exactly(4)?;
        peer.note("four");
        peer.wait_for_end()
    });
    let gateway = start(&upstream, "");
    let begin = |method: &str, target: &str, fields: &str| {
        let mut client = gateway.client();
        client.send(post(target, 100, fields).replace("POST", method) + "user");
        client
    };
    let put = begin("PUT", "/posts", FORM);
    assert!(upstream.request().head.starts_with("PUT "));
    assert_eq!(upstream.request().head, "four");
    drop(put);
    let mut read = begin("POST", "/posts", FORM);
    read.stream().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let _ = read.try_read_head().unwrap_err();
    assert_eq!(upstream.requests().len(), 0, "the limit waits for the whole body");

    // A body that a shadow limit cannot read is forwarded.
    let body = format!("user={}", "x".repeat(20_000));
    let whole = Upstream::text("in");
    let gateway = start(&whole, "");
    for _ in 0..3 {
        assert_eq!(gateway.post("/shadow", FORM, &body).status(), 200);
        assert_eq!(whole.request().text(), body);
        let mut client = gateway.client();
        client.send(chunked("/shadow", FORM, &[&body[..9000], &body[9000..]]));
        assert_eq!(client.read_response("POST").status(), 200);
        assert_eq!(whole.request().text(), body);
    }
}

#[test]
fn the_largest_body_follows_the_config() {
    let upstream = Upstream::text("in");
    let gateway = start(&upstream, "max_key_body = 64");
    let of = |length: usize| gateway.post("/", FORM, format!("user={}", "x".repeat(length - 5))).status();
    assert_eq!((of(64), of(65)), (200, 413));
    gateway.reload_with("max_key_body = 64", "max_key_body = \"64KiB\"");
    assert_eq!((of(65), of(64 * 1024), of(64 * 1024 + 1)), (200, 200, 413));

    // The gateway's own response needs no body, but its limit does.
    let fixed = "[[route]]\nrespond = { body = \"fixed\" }\nmax_body = 10\nlimits = [\"x\"]\n\
                 [limit.x]\nrate = \"2/day\"\nkey = \"form:user\"\n";
    let gateway = Gateway::start(fixed);
    let mut client = gateway.client();
    for status in [200, 200, 429, 429] {
        assert_eq!(client.fetch(&post("/", 6, FORM), "user=a").status(), status);
    }
    let mut large: Client = gateway.client();
    large.send(chunked("/", FORM, &["user=a", "&x=12345"]));
    assert_eq!(large.read_response("POST").status(), 413);
}

/// Limits that read nothing of the body refuse before it arrives: in memory always, and with Redis once it has refused
/// the key. The limits that read the body are charged nothing.
#[test]
fn other_limits_refuse_before_the_body_arrives() {
    let server = RedisServer::start(&[]);
    for redis in [None, Some(&server)] {
        let upstream = Upstream::text("in");
        // Redis must count refusals of a limit with `ban`, so the gateway does not remember those.
        let ban = if redis.is_none() { "ban = { after = 2, within = \"1h\", for = \"1h\" }\n" } else { "" };
        let key = format!("rate = \"2/day\"\nkey = \"header:x-key\"\nmissing = \"skip\"\n{ban}");
        let gateway = scenario()
            .store(redis)
            .upstream(&upstream)
            .limit_of("key", &key)
            .lines("overrides = [{ key = [\"blocked\"], rate = 0 }]")
            .limit_of("needed", "rate = \"9/day\"\nkey = \"header:x-needed\"\nmissing = \"refuse\"\nwhen = { header = { x-strict = \"*\" } }")
            .limit_of("user", "rate = \"3/day\"\nkey = \"form:user\"")
            .start();
        let fetch = |key: &str| gateway.post("/", &format!("{FORM}x-key: {key}\r\n"), "user=anna").status();
        assert_eq!([fetch("a"), fetch("a"), fetch("a")], [200, 200, 429]);
        // Nothing of these bodies ever arrives.
        let refused = |fields: &str| {
            let mut client = gateway.client();
            client.send(post("/", 9, &format!("{FORM}{fields}")));
            client.read_response("POST").status()
        };
        assert_eq!(refused("x-key: a\r\n"), 429);
        assert_eq!(refused("x-key: blocked\r\n"), 429);
        assert_eq!(refused("x-strict: 1\r\n"), 403);
        let mut client = gateway.client();
        client.send(post("/", 9, &format!("{FORM}x-key: a\r\nexpect: 100-continue\r\n")));
        assert_eq!(client.read_response("POST").status(), 429);
        // Each of them is a refusal as any other, and is counted.
        assert!(
            gateway
                .metric("limit_decisions_total", &[("route", "app"), ("limit", "key"), ("decision", "deny")])
                .unwrap()
                >= 3.0
        );
        // The third request of the user passes: what was refused has charged nothing.
        assert_eq!([fetch("b"), fetch("b")], [200, 429]);
    }
}
