//! The metrics of the upstreams of a `split`: which requests count there, and with which status.

use std::net::TcpListener;

use http::HeaderValue;

use crate::support::ca::Ca;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config, config_arguments};
use crate::support::h2::{self, H2Client, Sent};
use crate::support::h3::H3Client;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const REQUESTS: &str = "split_requests_total";
const DURATIONS: &str = "split_request_duration_seconds_count";

/// A route that sends all requests to `chosen`, with `other` as second upstream of its split.
fn route(name: &str, chosen: &str, other: &str, more: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\n{more}\n\
         split = [{{ upstream = \"{other}\", weight = 0 }}, {{ upstream = \"{chosen}\", weight = 1 }}]\n"
    )
}

fn upstream(name: &str, url: &str, more: &str) -> String {
    format!("[upstream.{name}]\nservers = [\"{url}\"]\n{more}\n")
}

fn labels<'l>(route: &'l str, upstream: &'l str, code: &'l str) -> [(&'static str, &'l str); 3] {
    [("route", route), ("upstream", upstream), ("code", code)]
}

/// Waits until the branch has counted these requests and durations, and checks that it has no others.
#[track_caller]
fn assert_branch(gateway: &Gateway, route: &str, upstream: &str, codes: &[(&str, f64)], durations: f64) {
    for (code, count) in codes {
        gateway.assert_metric(REQUESTS, &labels(route, upstream, code), *count);
    }
    gateway.assert_metric(DURATIONS, &labels(route, upstream, "")[..2], durations);
    assert_eq!(sum(gateway, route, upstream), codes.iter().map(|(_, count)| count).sum::<f64>(), "{route} {upstream}");
}

/// The requests of a branch with any code.
fn sum(gateway: &Gateway, route: &str, upstream: &str) -> f64 {
    let (metrics, start) = (gateway.metrics(), format!("sluicegate_{REQUESTS}{{"));
    let is_of = |line: &&str| {
        let has = |label: &str, value: &str| line.contains(&format!("{label}=\"{value}\""));
        line.starts_with(&start) && has("route", route) && has("upstream", upstream)
    };
    metrics.lines().filter(is_of).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// A URL at which nothing listens.
fn closed_url() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

#[test]
fn a_branch_counts_every_way_in_which_its_requests_end() {
    let app = Upstream::text("app");
    let broken = Upstream::fixed("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n");
    let silent = Upstream::silent();
    let cut = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")?;
        peer.finish()
    });
    let busy = Upstream::fixed("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
    let again = format!(
        "[upstream.again]\nservers = [\"{}\", \"{}\"]\nbalance = \"round_robin\"\nretry = {{ on = [\"503\"] }}\n",
        app.url(),
        busy.url()
    );
    let gateway = Gateway::start(
        &[
            route("app", "app", "broken", ""),
            route("broken", "broken", "app", ""),
            route("dead", "dead", "app", ""),
            route("silent", "silent", "app", "response_timeout = \"200ms\""),
            route("cut", "cut", "app", ""),
            route("again", "again", "app", ""),
            upstream("app", &app.url(), ""),
            upstream("broken", &broken.url(), "breaker = { errors = 2, window = \"10s\", open_for = \"60s\" }"),
            upstream("dead", &closed_url(), ""),
            upstream("silent", &silent.url(), ""),
            upstream("cut", &cut.url(), ""),
            again,
        ]
        .concat(),
    );
    // The series exist before the first request, with those of errors.
    for code in ["200", "500", "502", "503", "504"] {
        assert_eq!(gateway.metric(REQUESTS, &labels("app", "broken", code)), Some(0.0), "{code}");
    }
    let statuses = |path: &str, count: usize| -> Vec<u16> { (0..count).map(|_| gateway.get(path).status()).collect() };
    assert_eq!(statuses("/app", 3), [200; 3]);
    let mut broken = statuses("/broken", 1);
    while broken.last() == Some(&500) && broken.len() < 100 {
        broken.extend(statuses("/broken", 1));
    }
    let errors = broken.len() - 1;
    assert_eq!((broken.last(), statuses("/broken", 2)), (Some(&503), vec![503; 2]), "the breaker refuses");
    assert_eq!(statuses("/dead", 2), [502; 2]);
    assert_eq!(statuses("/silent", 1), [504]);
    assert_eq!(statuses("/again", 4), [200; 4]);
    let mut client = gateway.client();
    client.send(get("/cut", ""));
    assert!(client.try_read_response("GET").is_err());
    assert_branch(&gateway, "app", "app", &[("200", 3.0)], 3.0);
    assert_branch(&gateway, "broken", "broken", &[("500", errors as f64), ("503", 3.0)], errors as f64 + 3.0);
    assert_branch(&gateway, "dead", "dead", &[("502", 2.0)], 2.0);
    assert_branch(&gateway, "silent", "silent", &[("504", 1.0)], 1.0);
    assert_branch(&gateway, "cut", "cut", &[("200", 1.0)], 1.0);
    // A retried request counts once.
    assert_branch(&gateway, "again", "again", &[("200", 4.0)], 4.0);
    let retries = gateway.metric("upstream_retries_total", &[("upstream", "again"), ("reason", "503")]);
    assert!(retries > Some(0.0), "{retries:?}");
    gateway.assert_metric(
        "upstream_requests_total",
        &[("upstream", "again"), ("outcome", "ok")],
        4.0 + retries.unwrap(),
    );
    // The time is that of the whole request, and the upstream that was not chosen has none.
    let slow = gateway.metric("split_request_duration_seconds_sum", &labels("silent", "silent", "")[..2]);
    assert!(slow.is_some_and(|seconds| (0.2..5.0).contains(&seconds)), "{slow:?}");
    for route in ["broken", "dead", "silent", "cut", "again"] {
        assert_branch(&gateway, route, "app", &[], 0.0);
    }
    // The dashboard shows the same.
    let traffic = || gateway.admin("/-/traffic").json();
    let find = |route: &str| {
        traffic()["routes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|found| found["route"] == route)
            .cloned()
            .unwrap_or_default()
    };
    wait_until("a sample has the requests", || find("broken")["requests_total"] == errors + 3);
    let branches = find("broken")["branches"].clone();
    assert_eq!((&branches[0]["upstream"], &branches[0]["requests_total"]), (&"app".into(), &0.into()), "{branches}");
    assert_eq!((&branches[1]["upstream"], &branches[1]["requests_total"]), (&"broken".into(), &(errors + 3).into()));
    let [failed, p99] = ["failed_per_second", "p99_ms"].map(|member| branches[1][member].as_f64());
    assert!(failed > Some(0.0) && p99 > Some(0.0), "{branches}");
    assert!(branches[0]["p99_ms"].is_null(), "{branches}");
}

#[test]
fn what_the_split_did_not_choose_is_in_no_branch() {
    let [app, next, spare] = ["app", "next", "spare"].map(Upstream::text);
    let limited = "limits = [\"few\"]";
    let gateway = Gateway::start(
        &[
            route("refused", "next", "app", limited).as_str(),
            &route("diverted", "next", "app", "limits = [\"spill\"]"),
            &route("within", "next", "app", "limits = [\"inside\"]"),
            &route("denied", "next", "app", "deny = [\"127.0.0.0/8\"]"),
            "[[route]]\nname = \"single\"\npath = \"/single\"\nupstream = \"app\"\n",
            "[limit.few]\nrate = \"1/h\"\n[limit.spill]\nrate = \"1/h\"\nover = \"upstream:spare\"\n",
            "[limit.inside]\nrate = \"1/h\"\nover = \"upstream:app\"\n",
            &upstream("app", &app.url(), ""),
            &upstream("next", &next.url(), ""),
            &upstream("spare", &spare.url(), ""),
        ]
        .concat(),
    );
    let fetch = |path: &str| gateway.get(path);
    assert_eq!([(); 3].map(|()| fetch("/refused").status()), [200, 429, 429]);
    assert_eq!([(); 3].map(|()| fetch("/diverted").text()), ["next", "spare", "spare"]);
    assert_eq!([(); 3].map(|()| fetch("/within").text()), ["next", "app", "app"]);
    assert_eq!((fetch("/denied").status(), fetch("/single").status()), (403, 200));
    gateway.assert_metric("request_duration_seconds_count", &[("route", "single")], 1.0);
    for name in ["refused", "diverted", "within"] {
        assert_branch(&gateway, name, "next", &[("200", 1.0)], 1.0);
        assert_branch(&gateway, name, "app", &[], 0.0);
    }
    assert_branch(&gateway, "denied", "next", &[], 0.0);
    // A route without a split has no such series, and neither has an upstream beside the split.
    let metrics = gateway.metrics();
    let has = |label: &str| metrics.lines().any(|line| line.contains("sluicegate_split_") && line.contains(label));
    assert!(has("route=\"refused\"") && !has("route=\"single\"") && !has("upstream=\"spare\""), "{metrics}");
}

/// The connection of a tunnel may stay open for hours. Its request counts when it becomes one.
#[test]
fn a_tunnel_counts_when_it_opens_and_a_client_that_leaves_as_499() {
    let next = Upstream::start(|peer| {
        peer.request()?;
        peer.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")?;
        peer.wait_for_end()
    });
    let silent = Upstream::silent();
    let gateway = Gateway::start(
        &[
            route("tunnel", "next", "silent", ""),
            route("silent", "silent", "next", ""),
            upstream("next", &next.url(), ""),
            upstream("silent", &silent.url(), ""),
        ]
        .concat(),
    );
    let mut client = gateway.client();
    client.send(get("/tunnel", "connection: Upgrade\r\nupgrade: websocket\r\n"));
    assert_eq!(client.try_read_head().unwrap().status(), 101);
    assert_branch(&gateway, "tunnel", "next", &[("101", 1.0)], 1.0);
    drop(client);
    gateway.assert_metric("tunnels", &[], 0.0);
    assert_branch(&gateway, "tunnel", "next", &[("101", 1.0)], 1.0);
    let mut client = gateway.client();
    client.send(get("/silent", ""));
    silent.request();
    drop(client);
    assert_branch(&gateway, "silent", "silent", &[("499", 1.0)], 0.0);
}

/// Over HTTP/2 and HTTP/3, too. A gRPC client gets status 200 with the error in a header, and the branch has the error.
#[test]
fn all_protocols_count_and_grpc_errors_of_the_gateway_are_errors() {
    let app = Upstream::text("app");
    let rest = [
        route("app", "app", "dead", ""),
        route("dead", "dead", "app", ""),
        upstream("app", &app.url(), ""),
        upstream("dead", &closed_url(), ""),
    ]
    .concat();
    let plain = Gateway::start(&rest);
    let mut h2_client = H2Client::connect(plain.addr);
    assert_eq!(h2_client.get("/app").status(), 200);
    assert_eq!(h2_client.get("/dead").status(), 502);
    assert_branch(&plain, "app", "app", &[("200", 1.0)], 1.0);
    let mut call = h2::post("/dead");
    call.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    call.headers_mut().insert("te", HeaderValue::from_static("trailers"));
    let response = h2_client.fetch(call, Sent { body: b"\0\0\0\0\0", ..Sent::default() });
    assert_eq!((response.status(), response.field("grpc-status")), (200, Some("14")));
    assert_branch(&plain, "dead", "dead", &[("502", 2.0)], 2.0);
    plain.assert_metric("requests_total", &[("route", "dead"), ("method", "POST"), ("code", "200")], 1.0);

    let ca = Ca::new("test");
    let listener = "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                    http3 = true\ntls = { certificates = [{ cert = \"a.pem\", key = \"a.key\" }] }\n";
    let encrypted = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test"], "gateway").save(dir, "a");
        config_arguments(dir, &format!("{listener}{rest}"))
    });
    wait_until("HTTP/3 is open", || encrypted.log_lines(&["HTTP/3 is open"]) > 0);
    let h3_client = H3Client::connect(encrypted.addr, &ca);
    assert_eq!((h3_client.get("/app").status(), h3_client.get("/dead").status()), (200, 502));
    assert_branch(&encrypted, "app", "app", &[("200", 1.0)], 1.0);
    assert_branch(&encrypted, "dead", "dead", &[("502", 1.0)], 1.0);
}

#[test]
fn series_go_with_their_upstream_and_stay_with_it() {
    let [app, next] = ["app", "next"].map(Upstream::text);
    let upstreams = upstream("app", &app.url(), "") + &upstream("next", &next.url(), "");
    let both = route("site", "next", "app", "") + &upstreams;
    let gateway = Gateway::with_config(&config("", &both).replace("[admin]\n", "[admin]\nunused_series = false\n"));
    let series = |text: &str| {
        let metrics = gateway.metrics();
        let is_of = |line: &&str| line.starts_with("sluicegate_split_requests_total{") && line.contains(text);
        metrics.lines().filter(is_of).count()
    };
    assert_eq!(series(""), 1, "one of the series without requests remains");
    assert_eq!(gateway.get("/site").status(), 200);
    assert_branch(&gateway, "site", "next", &[("200", 1.0)], 1.0);
    assert_eq!(series(""), 1, "the one that was used");
    let reload = |rest: &str| {
        let before = std::fs::read_to_string(gateway.config()).unwrap();
        let start = before.find("[[route]]").unwrap();
        assert_eq!(gateway.reload(&format!("{}{rest}", &before[..start])).status(), 200);
    };
    // The order of the branches changes, and their counts stay.
    let moved = "[[route]]\nname = \"site\"\npath = \"/site\"\nsplit = [{ upstream = \"next\", weight = 1 }, \
                 { upstream = \"app\", weight = 0 }]\n"
        .to_owned();
    reload(&(moved.clone() + &upstreams));
    assert_eq!(gateway.get("/site").text(), "next");
    assert_branch(&gateway, "site", "next", &[("200", 2.0)], 2.0);
    // The upstream leaves the split, and comes back as a new one.
    reload(&(moved.replace("{ upstream = \"next\", weight = 1 }, ", "").replace("0 }", "1 }") + &upstreams));
    assert_eq!((gateway.get("/site").text().as_str(), series("next")), ("app", 0));
    assert_branch(&gateway, "site", "app", &[("200", 1.0)], 1.0);
    reload(&(moved + &upstreams));
    assert_eq!(gateway.get("/site").text(), "next");
    assert_branch(&gateway, "site", "next", &[("200", 1.0)], 1.0);
    // A route without a split, and one that is gone, have none.
    reload(&("[[route]]\nname = \"site\"\npath = \"/site\"\nupstream = \"next\"\n".to_owned() + &upstreams));
    assert_eq!(gateway.get("/site").text(), "next");
    assert_eq!(series(""), 0);
}
