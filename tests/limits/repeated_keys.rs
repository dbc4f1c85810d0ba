//! A header or parameter that a request repeats, or spells in a way that servers read differently, does not bypass a
//! limit that reads it.

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;

pub fn route(name: &str, path: &str, limit: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"{path}\"\nrespond = {{ }}\nlimits = [\"{name}\"]\n\n\
         [limit.{name}]\nrate = \"2/h\"\n{limit}\n\n"
    )
}

/// The statuses of `count` requests that differ in `N`.
fn statuses(gateway: &Gateway, target: &str, fields: &str, count: usize) -> Vec<u16> {
    let one = |n: usize| get(&target.replace('N', &n.to_string()), &fields.replace('N', &n.to_string()));
    (0..count).map(|n| gateway.fetch(&one(n)).status()).collect()
}

#[test]
fn junk_beside_the_key_buys_nothing() {
    let config = [
        route("header", "/header", "key = \"header:x-api-key\""),
        route("cookie", "/cookie", "key = \"cookie:sid\""),
        route("query", "/query", "key = \"query:user\""),
        route("skip", "/skip", "key = \"query:user\"\nmissing = \"skip\""),
        route("param", "/posts/{id}/vote", "key = \"param:id\""),
        route("cost", "/cost", "key = \"all\"\ncost = \"header:x-cost\""),
        route("when", "/when", "key = \"all\"\nwhen = { header = { x-plan = \"free\" } }"),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    for (target, fields) in [
        ("/header", "x-api-key: junkN\r\nx-api-key: real\r\n"),
        ("/header", "x-api-key: real\r\nx-api-key: junkN\r\n"),
        ("/header", "x-api-key: junkN\r\nX_API_KEY: real\r\n"),
        ("/cookie", "cookie: sid=junkN; sid=real\r\n"),
        ("/cookie", "cookie: sid=real\r\ncookie: sid=junkN\r\n"),
        ("/cookie", "cookie: sid=real\u{a0}\r\n"),
        ("/cookie", "cookie: sid=junkN; \u{a0}sid=real\r\n"),
        ("/cookie", "cookie: sid=real%00N\r\n"),
        ("/cookie", "cookie: sid=%u0072eal\r\n"),
        ("/query?user=jN&user=victim", ""),
        ("/query?user=victim&us%65r=jN", ""),
        ("/query?user=jN&a=1;user=victim", ""),
        ("/query?user=victim;jN", ""),
        ("/query?user=jN&USER=victim", ""),
        ("/query?user=jN&user[]=victim", ""),
        ("/query?user=jN&user]=victim", ""),
        ("/query?user=jN&[user]=victim", ""),
        ("/query?user=jN&user%5D=victim", ""),
        ("/query?user=victim%00jN", ""),
        ("/query?user=jN&us%00er=victim", ""),
        ("/skip?[user]=victim", ""),
        ("/posts/1;junkN/vote", ""),
        ("/cost", "x-cost: 0\r\nx-cost: N00\r\n"),
        ("/when", "x-plan: paid\r\nx-plan: free\r\n"),
    ] {
        assert_eq!(statuses(&gateway, target, fields, 4), [400; 4], "{target} {fields:?}");
    }
    for (target, fields) in [
        ("/header", "x-api-key: real\r\n"),
        ("/cookie", "cookie: a=N; sid=%72eal; b\r\n"),
        ("/query?a=N&user=victim&b;c", ""),
        ("/posts/%31/vote", ""),
        ("/cost", "x-cost: 1\r\n"),
        ("/when", "x-plan: free\r\n"),
    ] {
        assert_eq!(statuses(&gateway, target, fields, 4), [200, 200, 429, 429], "{target} {fields:?}");
    }
    let rejected = |limit| [("route", limit), ("limit", limit), ("reason", "repeated_key")];
    gateway.assert_metric("rejections_total", &rejected("header"), 8.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "header_alias")], 4.0);
    gateway.assert_metric("rejections_total", &rejected("cost"), 4.0);
    // Base64 contains `+`, so such cookies are accepted.
    let spellings = ["c+d", "c%20d", "c%2Bd", "c+d"].map(|sid| get("/cookie", &format!("cookie: sid={sid}\r\n")));
    assert_eq!(spellings.map(|request| gateway.fetch(&request).status()), [200, 200, 429, 429]);
}

#[test]
fn junk_in_the_body_buys_nothing() {
    let config = [route("form", "/form", "key = \"form:user\""), route("json", "/json", "key = \"json:/user\"")];
    let gateway = Gateway::start(&config.concat());
    let responses = |path: &str, kind: &str, body: &str| {
        let one = |n: usize| {
            let body = body.replace('N', &n.to_string());
            let fields = format!("content-type: application/{kind}\r\ncontent-length: {}\r\n", body.len());
            let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\n{fields}\r\n");
            Client::connect(gateway.addr).fetch(&head, body).status()
        };
        (0..4).map(one).collect::<Vec<u16>>()
    };
    for body in
        ["user=jN&[user]=victim", "user=jN&user%5D=victim", "user=victim%00N", "user=victim\0N", "user=victim\0"]
    {
        assert_eq!(responses("/form", "x-www-form-urlencoded", body), [400; 4], "{body}");
    }
    for body in [
        r#"{"user":"victim\u0000N"}"#,
        r#"{"user":"jN","user\u0000":"victim"}"#,
        r#"{"user":"jN","User\u0000x":"victim"}"#,
        r#"{"user":"jN","us\u0000er":"victim"}"#,
        // JavaScript reads 1234567890123456800.
        r#"{"user":123456789012345678N}"#,
        r#"{"user":-123456789012345678N}"#,
    ] {
        assert_eq!(responses("/json", "json", body), [400; 4], "{body}");
    }
    assert_eq!(responses("/form", "x-www-form-urlencoded", "user=victim&[x]=N"), [200, 200, 429, 429]);
    assert_eq!(responses("/json", "json", r#"{"user":"victim","x\u0000":"\u0000N"}"#), [200, 200, 429, 429]);
    let rejected = |limit| [("route", limit), ("limit", limit), ("reason", "repeated_key")];
    gateway.assert_metric("rejections_total", &rejected("form"), 20.0);
    gateway.assert_metric("rejections_total", &rejected("json"), 24.0);
}

/// Python and others read headers as Latin-1 and then trim them, Go trims characters of UTF-8.
#[test]
fn what_servers_trim_of_a_header_buys_nothing() {
    let trimmed = "key = [{ source = \"header:x-api-key\", normalize = [\"trim\"] }]";
    let config = [
        route("exact", "/exact", "key = \"header:x-api-key\""),
        route("trim", "/trim", trimmed),
        route("first", "/first", &format!("{trimmed}\nrepeated = \"first\"")),
        route("when", "/when", "key = \"all\"\nwhen = { header = { x-api-key = \"k1\" } }"),
        route("not", "/not", "key = \"all\"\nwhen = { header = { x-api-key = \"!k1\" } }"),
    ];
    let gateway = Gateway::start(&config.concat());
    let status = |path: &str, value: &[u8]| {
        let (start, end) = (format!("GET {path} HTTP/1.1\r\nhost: a.test\r\nx-api-key: "), b"\r\n\r\n");
        let mut client = Client::connect(gateway.addr);
        client.send([start.as_bytes(), value, end].concat());
        client.read_response("GET").status()
    };
    let spellings = [
        &b"\xa0k1"[..],
        b"\xa0\xa0k1",
        b"k1\xa0",
        b"k1\x85",
        b"\x85k1",
        "\u{a0}k1".as_bytes(),
        "k1\u{3000}".as_bytes(),
    ];
    for path in ["/exact", "/trim", "/when", "/not"] {
        for value in spellings {
            assert_eq!(status(path, value), 400, "{path} {value:?}");
        }
    }
    // With `first`, servers are known to agree; the spellings that `trim` makes one have one budget.
    let statuses: Vec<u16> = spellings.iter().map(|value| status("/first", value)).collect();
    assert!(statuses[..2] == [200; 2] && statuses[2..].iter().all(|status| *status == 429), "{statuses:?}");
    // Characters of a name and bytes inside are no white space.
    for value in ["voil\u{e0}".as_bytes(), b"k\xff1"] {
        let statuses: Vec<u16> = (0..3).map(|_| status("/exact", value)).collect();
        assert_eq!(statuses, [200, 200, 429], "{value:?}");
    }
}

/// A spelling that only some servers decode is the same key to all of them here.
#[test]
fn aliases_of_a_path_have_one_budget() {
    let vote = route("vote", "/posts/{id}/vote", "key = [\"header:x-user\", \"param:id\"]");
    let alias = "[[route]]\npath = \"/p/{id}\"\nrespond = { }\nlimits = [\"vote\"]\n";
    let gateway = Gateway::start(&format!("{vote}{alias}"));
    let as_user = |target: &str| gateway.fetch(&get(target, "x-user: u1\r\n")).status();
    let targets = ["/posts/a!b/vote", "/p/a%21b", "//posts/./a%21%62/vote", "/p/a!b", "/p/other"];
    assert_eq!(targets.map(as_user), [200, 200, 429, 429, 200]);
    let state = gateway.admin("/-/limits/vote/state?key=u1&key=a!b").json();
    assert_eq!(state["remaining"], 0, "{state}");
}

/// A request that the route of a limit does not match goes to the next route, here one without limits of its own.
#[test]
fn a_catch_all_is_no_way_around() {
    let pages = "[[route]]\nname = \"pages\"\npath = \"/\"\nrespond = { }\nlimits = [\"login\"]\n\n";
    let by_path = "key = \"ip\"\nwhen = { path = \"~i ^/login([/;]|$)\" }";
    let vote = route("vote", "/posts/{id}/vote", "key = \"param:id\"");
    let user = route("user", "/users/{id}", "key = \"param:id\"");
    let gateway = Gateway::start(&[pages, &vote, &user, &route("login", "/login", by_path)].concat());
    for paths in [
        ["/posts/1/vote", "/posts/1/vote/", "/posts/1/vote/", "/posts//1/vote//"],
        ["/users/7/", "/users/7", "/users/%37/", "/users/7/."],
        ["/login", "/LOGIN", "/login;x", "/login/;x"],
    ] {
        assert_eq!(paths.map(|path| gateway.fetch(&get(path, "")).status()), [200, 200, 429, 429], "{paths:?}");
    }
    assert_eq!(statuses(&gateway, "/other;N", "", 3), [200; 3]);
}

#[test]
fn a_repeated_key_is_answered_in_the_clients_words() {
    let config = route("api", "/", "key = \"header:x-key\"");
    let gateway = Gateway::start(&config);
    let response = gateway.fetch(&get("/", "x-key: a\r\nx-key: b\r\n"));
    assert_eq!((response.status(), response.get("content-type")), (400, Some("application/problem+json")));
    let problem = response.json();
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&400.into(), &"api".into()), "{problem}");
    assert!(response.get("retry-after").is_none());
    let grpc = gateway.fetch(&get("/", "content-type: application/grpc\r\nx-key: a\r\nx-key: b\r\n"));
    assert_eq!((grpc.status(), grpc.get("grpc-status")), (200, Some("3")));
}

#[test]
fn a_shadow_refuses_no_repeated_key_and_first_and_last_choose_one() {
    let config = [
        route("shadow", "/shadow", "key = \"query:user\"\nmode = \"shadow\""),
        route("first", "/first", "key = \"query:user\"\nrepeated = \"first\""),
        route("last", "/last", "key = \"query:user\"\nrepeated = \"last\""),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    assert_eq!(statuses(&gateway, "/shadow?user=jN&user=victim", "", 4), [200; 4]);
    let denied = [("route", "shadow"), ("limit", "shadow"), ("decision", "shadow_deny")];
    gateway.assert_metric("limit_decisions_total", &denied, 4.0);
    assert_eq!(statuses(&gateway, "/first?user=victim&user=jN", "", 3), [200, 200, 429]);
    assert_eq!(statuses(&gateway, "/first?user=jN&user=victim", "", 3), [200; 3]);
    assert_eq!(statuses(&gateway, "/last?user=jN&user=victim", "", 3), [200, 200, 429]);
    assert_eq!(statuses(&gateway, "/last?user=victim&user=jN", "", 3), [200; 3]);
}

/// A limit that cannot determine the key refuses; the request does not bypass it by a chain (`after`).
#[test]
fn a_chain_is_no_way_around() {
    let chain = |name: &str, base: &str, after: &str| {
        format!(
            "[[route]]\npath = \"/{name}\"\nrespond = {{ }}\nlimits = [\"{name}-a\", \"{name}-b\"]\n\n\
             [limit.{name}-a]\nrate = \"100/h\"\n{base}\n\n[limit.{name}-b]\nrate = \"2/h\"\nafter = \"{name}-a\"\n{after}\n\n"
        )
    };
    let config = [
        chain("base", "key = \"query:user\"", "key = \"all\""),
        chain("shadow", "key = \"query:user\"\nmode = \"shadow\"", "key = \"all\""),
        chain("after", "key = \"all\"", "key = \"query:user\""),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    assert_eq!(statuses(&gateway, "/base?user=jN&user=victim", "", 2), [400; 2]);
    assert_eq!(statuses(&gateway, "/shadow?user=jN&user=victim", "", 4), [200, 200, 429, 429]);
    assert_eq!(statuses(&gateway, "/after?user=jN&user=victim", "", 2), [400; 2]);
}
