//! Limits that forward what exceeds them (`over`): what the upstream servers see, what is charged, and what clients
//! try.

use std::fs;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::http::Message;
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::upstream::Upstream;

const HEADER: &str = "x-limit-exceeded";

fn exceeded(upstream: &Upstream) -> Vec<String> {
    upstream.requests().iter().map(|request| request.all(HEADER).join(" | ")).collect()
}

fn statuses<const N: usize>(gateway: &Gateway, targets: [&str; N]) -> [u16; N] {
    targets.map(|target| gateway.get(target).status())
}

#[test]
fn requests_over_the_limit_are_forwarded_with_a_header() {
    let app = Upstream::text("app");
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{0}\"\nlimits = [\"soft\"]\nallow = [\"127.0.0.2\"]\n\
         [[route]]\npath = \"/free\"\nrequest_trailers = true\nupstream = \"{0}\"\n[limit.soft]\nrate = \"2/h\"\nover = \"annotate\"\n",
        app.url()
    ));
    let forged = get("/", "x-limit-exceeded: soft\r\nx-limit-exceeded: other\r\n");
    assert_eq!(gateway.fetch(&forged).status(), 200);
    assert_eq!(gateway.get("/").status(), 200);
    assert_eq!(exceeded(&app), ["", ""], "the client's own header is removed");
    let over = gateway.fetch(&get("/", "x-limit-exceeded: forged\r\nConnection: x-limit-exceeded\r\n"));
    assert_eq!((over.status(), over.text().as_str()), (200, "app"));
    assert_eq!((over.get("retry-after"), over.get("ratelimit")), (None, Some("\"soft\";r=0;t=1800")));
    assert_eq!(exceeded(&app), ["soft"], "`Connection` of the client does not remove it");
    // A forged header reaches the upstream server neither by another route, nor by the allow list, nor in a trailer.
    assert_eq!(gateway.fetch(&get("/free", "x-limit-exceeded: soft\r\n")).status(), 200);
    assert_eq!(gateway.client_from([127, 0, 0, 2]).fetch(&get("/", "x-limit-exceeded: soft\r\n"), "").status(), 200);
    assert_eq!(exceeded(&app), ["", ""]);
    let head = "POST /free HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\
                trailer: x-limit-exceeded\r\n\r\n1\r\na\r\n0\r\nx-limit-exceeded: soft\r\n\r\n";
    let mut client = gateway.client();
    client.send(head);
    assert_eq!(client.read_response("POST").status(), 200);
    assert!(!app.requests()[0].text().contains("soft"), "no trailer carries it");

    let decisions = |decision| [("route", "app"), ("limit", "soft"), ("decision", decision)];
    gateway.assert_metric("limit_decisions_total", &decisions("allow"), 2.0);
    gateway.assert_metric("limit_decisions_total", &decisions("annotate"), 1.0);
    assert_eq!(gateway.metric("limit_decisions_total", &decisions("deny")), None);
    let top = gateway.admin("/-/top?by=exceeded&limit=soft").json();
    assert_eq!((&top["keys"][0]["key"], &top["keys"][0]["count_min"]), (&"ip=127.0.0.1".into(), &1.into()), "{top}");
}

#[test]
fn the_excess_goes_to_another_upstream() {
    let (app, tarpit) = (Upstream::text("app"), Upstream::text("tarpit"));
    let gateway = Gateway::start(&format!(
        "[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"first\", \"second\"]\n\
         [upstream.tarpit]\nservers = [\"{}\"]\n\
         [limit.first]\nrate = \"2/h\"\nover = \"annotate\"\n\
         [limit.second]\nrate = \"3/h\"\nover = \"upstream:tarpit\"\n",
        app.url(),
        tarpit.url()
    ));
    let text = |response: Message| response.text();
    assert_eq!([0; 5].map(|_| text(gateway.get("/"))), ["app", "app", "app", "tarpit", "tarpit"]);
    assert_eq!(exceeded(&app), ["", "", "first"]);
    assert_eq!(exceeded(&tarpit), ["first, second", "first, second"]);
    let second = |decision| [("route", "app"), ("limit", "second"), ("decision", decision)];
    gateway.assert_metric("limit_decisions_total", &second("allow"), 3.0);
    gateway.assert_metric("limit_decisions_total", &second("divert"), 2.0);
    gateway.assert_metric("upstream_requests_total", &[("upstream", "tarpit"), ("outcome", "ok")], 2.0);
}

/// A limit that refuses wins. A refused request charges nothing, and a forwarded one charges all limits that admit it.
#[test]
fn a_refusal_wins_and_charges_nothing() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let app = Upstream::text("app");
        let gateway = Gateway::start(&format!(
            "{store}[[route]]\npath = \"/a\"\nupstream = \"{0}\"\nlimits = [\"soft\", \"hard\"]\n\
             [[route]]\npath = \"/soft\"\nupstream = \"{0}\"\nlimits = [\"soft\"]\n\
             [[route]]\npath = \"/hard\"\nupstream = \"{0}\"\nlimits = [\"hard\"]\n\
             [limit.soft]\nrate = \"2/h\"\nkey = \"all\"\nover = \"annotate\"\n\
             [limit.hard]\nrate = \"4/h\"\nkey = \"all\"\n",
            app.url()
        ));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        // The third and fourth requests exceed the soft limit, and still charge the hard one.
        assert_eq!(statuses(&gateway, ["/a", "/a", "/a", "/a", "/a", "/hard"]), [200, 200, 200, 200, 429, 429]);
        assert_eq!(exceeded(&app), ["", "", "soft", "soft"]);
        let left = |name: &str| gateway.admin(&format!("/-/limits/{name}/state")).json()["remaining"].clone();
        let reset = |name: &str| gateway.admin_request("DELETE", &format!("/-/limits/{name}/state"), "", "").status();
        assert_eq!((left("soft"), left("hard")), (0.into(), 0.into()));
        // A request that the hard limit refuses does not charge the soft one.
        assert_eq!(reset("soft"), 200);
        assert_eq!(statuses(&gateway, ["/a", "/a", "/a"]), [429; 3]);
        assert_eq!(left("soft"), 2);
    });
}

#[test]
fn an_unclear_key_is_refused_and_a_blocked_one_is_over_the_limit() {
    let app = Upstream::text("app");
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"soft\"]\n\
         [limit.soft]\nrate = \"9/h\"\nkey = \"header:x-key\"\nmissing = \"refuse\"\nover = \"annotate\"\n\
         overrides = [{{ key = [\"bad\"], rate = 0 }}]\n",
        app.url()
    ));
    let fetch = |headers: &str| gateway.fetch(&get("/", headers)).status();
    assert_eq!(
        [fetch(""), fetch("x-key: a\r\nx-key: b\r\n"), fetch("x-key: a\r\n"), fetch("x-key: bad\r\n")],
        [403, 400, 200, 200]
    );
    assert_eq!(exceeded(&app), ["", "soft"]);
}

#[test]
fn without_the_store_a_closed_limit_forwards_everything_as_over_it() {
    let app = Upstream::text("app");
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"redis://127.0.0.1:1\"\n[[route]]\npath = \"/\"\nupstream = \"{}\"\nlimits = [\"closed\", \"local\"]\n\
         [limit.closed]\nrate = \"9/h\"\non_error = \"closed\"\nover = \"annotate\"\n\
         [limit.local]\nrate = \"1/h\"\non_error = \"local\"\nover = \"annotate\"\n",
        app.url()
    ));
    assert_eq!(statuses(&gateway, ["/", "/"]), [200, 200]);
    assert_eq!(exceeded(&app), ["closed", "closed, local"]);
}

#[test]
fn explain_test_and_replay_show_forwarded_excess() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "sluicegate.toml",
        "[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"soft\", \"tar\"]\n\
         [upstream.tarpit]\nservers = [\"http://127.0.0.1:2\"]\n\
         [limit.soft]\nrate = \"1/h\"\nover = \"annotate\"\n[limit.tar]\nrate = \"2/h\"\nover = \"upstream:tarpit\"\n",
    );
    write(
        "cases.toml",
        "[[case]]\nrequest = \"GET http://a/\"\nexpect = { decision = \"admit\" }\n\
         [[case]]\nrequest = \"GET http://a/\"\nexpect = { decision = \"annotate\", limit = \"soft\", status = 200 }\n\
         [[case]]\nrequest = \"GET http://a/\"\nexpect = { decision = \"divert\", limit = \"tar\" }\n",
    );
    let line = |second: u32| {
        format!("127.0.0.1 - - [01/Jan/2026:00:00:0{second} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n")
    };
    write("access.log", &(0..4).map(line).collect::<String>());
    let run = |arguments: &[&str]| {
        let out = program().current_dir(dir.path()).args(arguments).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap() + &String::from_utf8_lossy(&out.stderr))
    };
    let (code, text) = run(&["test", "cases.toml"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&["replay", "access.log", "--verdicts", "verdicts.jsonl"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("over annotate)"), "{text}");
    assert!(text.contains("exceeded  3 ("), "{text}");
    let verdicts = fs::read_to_string(dir.path().join("verdicts.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(verdicts.lines().last().unwrap()).unwrap();
    assert_eq!(last["exceeded"], serde_json::json!(["soft", "tar"]), "{verdicts}");
    let (code, text) = run(&["explain", "GET", "http://a/"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("over upstream:tarpit"), "{text}");
    let hard = fs::read_to_string(dir.path().join("sluicegate.toml")).unwrap().replace("over = \"annotate\"", "");
    write("hard.toml", &hard);
    let (_, text) = run(&["diff", "hard.toml", "sluicegate.toml"]);
    assert!(text.contains("weaker"), "{text}");
}
