//! Circuit breakers of upstreams and routes: what opens them, what closes them, and that nobody can keep them
//! half-open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::fleet::{ControlledServer, app};
use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const OF_APP: [(&str, &str); 2] = [("kind", "upstream"), ("name", "app")];

/// A breaker that opens after ten errors in ten requests, for longer than a test takes.
const LONG: &str = "breaker = { error_ratio = 0.5, open_for = \"10m\", ramp = \"0s\" }";
/// A breaker that opens for so short a time that a test sees it close.
const SHORT: &str = "breaker = { error_ratio = 0.5, open_for = \"400ms\", probes = 2, ramp = \"0s\" }";

fn statuses(gateway: &Gateway, target: &str, count: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..count).map(|_| client.fetch(&get(target, ""), "").status()).collect()
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|is| **is == status).count()
}

fn assert_refused(response: &Message) {
    assert_eq!(response.status(), 503, "{}", response.text());
    let problem = response.json();
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!((&problem["type"], &problem["setting"]), (&kind.into(), &"breaker".into()), "{problem}");
    let wait: u64 = response.get("retry-after").unwrap().parse().unwrap();
    assert_eq!(problem["retry-after-ms"].as_u64().unwrap().div_ceil(1_000), wait);
}

/// A gateway whose breaker has opened because its only server responds with 500.
fn opened(breaker: &str, more: &str) -> (ControlledServer, Gateway) {
    let server = ControlledServer::start("app");
    let gateway = Gateway::with("workers = 2", &format!("{}\n{more}", app(&[server.url()], breaker)));
    server.set_status(500);
    assert_eq!(count(&statuses(&gateway, "/", 10), 500), 10);
    wait_until("it opens", || gateway.log().contains("upstream app: breaker opened"));
    (server, gateway)
}

#[test]
fn errors_open_a_breaker_and_refusals_report_the_wait() {
    let (server, gateway) = opened(LONG, "");
    let before = server.request_count();
    let responses: Vec<Message> = (0..20).map(|_| gateway.get("/")).collect();
    responses.iter().for_each(assert_refused);
    assert_eq!(server.request_count(), before, "no request reaches the server");
    let waits: Vec<u64> =
        responses.iter().map(|response| response.json()["retry-after-ms"].as_u64().unwrap()).collect();
    assert!(waits.iter().all(|wait| (450_000..=720_000).contains(wait)), "{waits:?}");
    assert!(waits.iter().max() > waits.iter().min(), "jittered");
    gateway.assert_metric("breaker_state", &OF_APP, 2.0);
    gateway.assert_metric("breaker_refused_total", &OF_APP, 20.0);
    gateway.assert_metric("breaker_transitions_total", &[OF_APP[0], OF_APP[1], ("to", "open")], 1.0);
    gateway.assert_metric(
        "rejections_total",
        &[("limit", "_none"), ("reason", "upstream_breaker"), ("route", "app")],
        20.0,
    );
    wait_until("it is logged", || {
        gateway.log().contains("upstream app: breaker opened: 10 of 10 failed (error_ratio)")
    });
    let shown = &gateway.admin("/-/upstreams").json()["upstreams"][0]["breaker"];
    assert_eq!((&shown["state"], &shown["opened"]), (&"open".into(), &1.into()));
    assert_eq!(shown["last_opened_by"]["condition"], "error_ratio");
    assert!(shown["may_close_in_ms"].as_u64().is_some_and(|ms| ms <= 600_000), "{shown}");
}

#[test]
fn it_closes_after_good_probes_and_opens_again_after_bad_ones() {
    let (server, gateway) = opened(SHORT, "");
    let phase = |state: f64| gateway.metric("breaker_state", &OF_APP) == Some(state);
    wait_until("the probes fail", || {
        gateway.get("/");
        gateway.log().contains("upstream app: breaker stays open: of its probes 2 of 2 failed (error_ratio)")
    });
    server.set_status(200);
    wait_until("it closes", || gateway.get("/").status() == 200 && phase(0.0));
    assert_eq!(count(&statuses(&gateway, "/", 20), 200), 20);
    wait_until("that is logged", || gateway.log().contains("upstream app: breaker closed"));
}

#[test]
fn client_aborts_and_refusals_are_no_errors() {
    let server = ControlledServer::start("app");
    let breaker = "breaker = { errors = 5, min_requests = 1, open_for = \"10m\" }\nmax_in_flight = 1\nmax_waiting = 0";
    let limits =
        "[[route]]\npath = \"/limited/\"\nupstream = \"app\"\nlimits = [\"none\"]\n[limit.none]\nrate = \"1/day\"\n";
    let gateway = Gateway::start(&format!("{}\n{limits}", app(&[server.url()], breaker)));
    assert_eq!(count(&statuses(&gateway, "/status/404", 20), 404), 20);
    assert_eq!(count(&statuses(&gateway, "/limited/", 20), 429), 19);
    for _ in 0..10 {
        // The client leaves in the middle of its body, or the body is malformed.
        let mut leaving = gateway.client();
        leaving.send(format!("{}half", post("/", 100, "")));
        drop(leaving);
        let mut broken = gateway.client();
        broken.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n");
        // 503 if the request of the client that left still occupies the server.
        assert!([400, 503].contains(&broken.read_response("POST").status()));
    }
    wait_until("all have ended", || gateway.get("/").status() == 200);
    gateway.assert_metric("breaker_state", &OF_APP, 0.0);
    assert_eq!(count(&statuses(&gateway, "/status/500", 6), 503), 1, "five errors open it");
}

#[test]
fn failed_connections_closed_ones_and_timeouts_are_errors() {
    let broken = ControlledServer::start("app");
    broken.set_status(0);
    let silent = Upstream::silent();
    let nobody = format!("http://{}", closed_addr());
    for (server, expected) in [(broken.url(), 502), (nobody, 502), (silent.url(), 504)] {
        let breaker = "breaker = { errors = 2, min_requests = 2, open_for = \"10m\" }";
        let gateway = Gateway::with("response_timeout = \"200ms\"", &app(&[server], breaker));
        assert_eq!(statuses(&gateway, "/", 3), [expected, expected, 503]);
    }
}

#[test]
fn a_route_has_a_breaker_of_its_own() {
    let server = ControlledServer::start("app");
    let route = "[[route]]\nname = \"own\"\npath = \"/status/500\"\nupstream = \"app\"\n\
                 breaker = { errors = 3, min_requests = 3, open_for = \"10m\" }\n";
    let gateway = Gateway::start(&format!("{route}{}", app(&[server.url()], "")));
    assert_eq!(statuses(&gateway, "/status/500", 4), [500, 500, 500, 503]);
    assert_eq!(statuses(&gateway, "/", 2), [200, 200]);
    gateway.assert_metric("breaker_state", &[("kind", "route"), ("name", "own")], 2.0);
    gateway.assert_metric(
        "rejections_total",
        &[("limit", "_none"), ("reason", "route_breaker"), ("route", "own")],
        1.0,
    );
    assert_eq!(gateway.admin("/-/upstreams").json()["route_breakers"]["own"]["state"], "open");
    // A refused request returns the permit of the other breaker, and a reload without the breaker ends it.
    gateway.reload_with("breaker = {", "request_headers = { remove = [\"x\"] } #");
    assert_eq!(gateway.get("/status/500").status(), 500);
    assert_eq!(gateway.metric("breaker_state", &[("kind", "route"), ("name", "own")]), None);
}

/// A server that responds to each request when the test says so, with the status that it says.
fn directed() -> (Upstream, Sender<u16>) {
    let (go, releases): (Sender<u16>, Receiver<u16>) = channel();
    let releases = Arc::new(std::sync::Mutex::new(releases));
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            let status = releases.lock().unwrap().recv().map_err(std::io::Error::other)?;
            peer.send(format!("HTTP/1.1 {status} It\r\ncontent-length: 0\r\n\r\n"))?;
        }
        Ok(())
    });
    (upstream, go)
}

#[test]
fn a_server_that_hangs_opens_it_before_any_timeout() {
    let (server, go) = directed();
    let breaker = "breaker = { slow = \"150ms\", min_requests = 4, open_for = \"10m\" }";
    let gateway = Gateway::with("workers = 2\nresponse_timeout = \"10m\"", &app(&[server.url()], breaker));
    let mut waiting: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/", "")));
    wait_until("it is open although there was no response", || {
        gateway.get_within(Duration::from_millis(50)) == Some(503)
    });
    gateway.assert_metric("breaker_state", &OF_APP, 2.0);
    // Successes of requests from before it opened do not close it.
    (0..8).for_each(|_| go.send(200).unwrap());
    waiting.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status(), 200));
    assert_eq!(gateway.get("/").status(), 503);
}

#[test]
fn probes_that_never_end_are_replaced() {
    let (server, go) = directed();
    let breaker = "breaker = { errors = 3, min_requests = 3, open_for = \"1s\", probes = 2, ramp = \"0s\" }";
    let gateway = Gateway::with("workers = 2", &app(&[server.url()], breaker));
    (0..3).for_each(|_| go.send(500).unwrap());
    assert_eq!(statuses(&gateway, "/", 4), [500, 500, 500, 503]);
    server.requests();
    // Two probes hang at the server, and no more than two are there at once.
    let mut hanging = Vec::new();
    wait_until("both probes are sent", || {
        let mut client = gateway.client();
        client.send(get("/", ""));
        hanging.push(client);
        std::thread::sleep(Duration::from_millis(20));
        server.requests().len() + hanging.len() > 0 && gateway.metric("breaker_state", &OF_APP) == Some(1.0)
    });
    // Clients that leave return their places; the other probes lose theirs after `open_for`.
    drop(hanging);
    (0..50).for_each(|_| go.send(200).unwrap());
    wait_until("it closes", || {
        gateway.get("/").status() == 200 && gateway.metric("breaker_state", &OF_APP) == Some(0.0)
    });
}

#[test]
fn a_probe_that_a_limit_refuses_or_a_slow_client_holds_returns_its_place() {
    let limits =
        "[[route]]\npath = \"/limited/\"\nupstream = \"app\"\nlimits = [\"none\"]\n[limit.none]\nrate = \"1/day\"\n";
    let (server, gateway) = opened(&SHORT.replace("probes = 2", "probes = 1"), limits);
    server.set_status(200);
    let refused_by = |reason: &str, limit: &str, route: &str| {
        gateway.metric("rejections_total", &[("limit", limit), ("reason", reason), ("route", route)]).unwrap_or(0.0)
    };
    // Uses up the limit with the first probe; the breaker closes. So it is opened once more.
    wait_until("it closes", || gateway.get("/limited/").status() == 200);
    server.set_status(500);
    wait_until("it is open again", || gateway.get("/").status() == 503);
    wait_until("a limit refuses probes", || {
        gateway.get("/limited/");
        refused_by("exhausted", "none", "/limited/") >= 3.0
    });
    server.set_status(200);
    // The only probe belongs to a client that never sends its body, until others get the place.
    let mut slow = gateway.client();
    slow.send(post("/", 100, ""));
    let begun = Instant::now();
    wait_until("it closes", || gateway.get("/").status() == 200);
    assert!(begun.elapsed() < Duration::from_secs(8));
}

#[test]
fn it_stays_open_over_a_reload_and_its_new_rule_applies() {
    let (server, gateway) = opened(LONG, "");
    server.set_status(200);
    gateway.reload_with("error_ratio = 0.5", "error_ratio = 0.9");
    assert_eq!(gateway.get("/").status(), 503);
    // A reload to another server and route keeps the breaker, which belongs to the name.
    let other = ControlledServer::start("other");
    gateway.reload_with(&server.url(), &other.url());
    assert_eq!(gateway.get("/").status(), 503);
    gateway.reload_with("open_for = \"10m\"", "open_for = \"300ms\"");
    wait_until("the shorter time applies to an open breaker", || gateway.get("/").status() == 200);
    gateway.reload_with(", open_for = \"300ms\"", "");
    assert_eq!(gateway.get("/").status(), 200);
}

#[test]
fn refusals_charge_no_limit() {
    let server = ControlledServer::start("app");
    let more = format!(
        "{LONG}\n[[route]]\nname = \"limited\"\npath = \"/limited\"\nupstream = \"app\"\nlimits = [\"few\"]\n\
                [limit.few]\nrate = \"3/day\"\nkey = \"all\"\n"
    );
    let gateway = Gateway::start(&app(&[server.url()], &more));
    server.set_status(500);
    statuses(&gateway, "/", 10);
    assert_eq!(count(&statuses(&gateway, "/limited", 20), 503), 20);
    assert_eq!(gateway.admin("/-/limits/few/state").json()["remaining"], 3);
}

#[test]
fn ejection_picks_the_server_and_the_breaker_speaks_of_the_upstream() {
    let (good, bad) = (ControlledServer::start("good"), ControlledServer::start("bad"));
    let more = format!("{LONG}\neject = {{ consecutive_errors = 2, for = \"10m\" }}\nretry = {{ on = [\"503\"] }}");
    let gateway = Gateway::start(&app(&[good.url(), bad.url()], &more));
    bad.set_status(503);
    // A request that another server serves is a success of the upstream, and the bad server is soon ejected.
    assert_eq!(count(&statuses(&gateway, "/", 60), 200), 60);
    gateway.assert_metric("breaker_state", &OF_APP, 0.0);
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 1.0);
    good.set_status(503);
    wait_until("no server is available", || {
        gateway.get("/");
        gateway.metric("breaker_state", &OF_APP) == Some(2.0)
    });
    let before = good.request_count() + bad.request_count();
    assert_eq!(count(&statuses(&gateway, "/", 10), 503), 10);
    assert_eq!(good.request_count() + bad.request_count(), before);
}

#[test]
fn a_websocket_is_a_probe_whose_head_decides() {
    let responses = Arc::new(AtomicUsize::new(0));
    let seen = responses.clone();
    let server = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            match seen.fetch_add(1, Ordering::SeqCst) {
                0..3 => peer.send("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")?,
                _ if request.get("upgrade").is_some() => {
                    peer.send("HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")?;
                    peer.wait_for_end()?;
                    return Ok(());
                }
                _ => peer.send(ok("fine"))?,
            }
        }
        Ok(())
    });
    let breaker = "breaker = { errors = 3, min_requests = 3, open_for = \"300ms\", probes = 1, ramp = \"0s\" }";
    let gateway = Gateway::start(&app(&[server.url()], breaker));
    assert_eq!(statuses(&gateway, "/", 4), [500, 500, 500, 503]);
    let fields = "upgrade: websocket\r\nconnection: upgrade\r\n";
    let mut open = Vec::new();
    wait_until("the tunnel opens", || {
        let mut client = gateway.client();
        client.send(get("/", fields));
        let status = client.try_read_head().unwrap().status();
        open.push(client);
        status == 101
    });
    assert_eq!(statuses(&gateway, "/", 3), [200, 200, 200], "the tunnel is still open");
}

#[test]
fn one_client_cannot_open_it_while_others_are_served() {
    let server = ControlledServer::start("app");
    let breaker = "breaker = { errors = 20, open_for = \"10m\" }";
    let gateway = Gateway::start(&app(&[server.url()], breaker));
    let (mut victim, mut attacker) = (gateway.client_from([127, 0, 0, 2]), gateway.client_from([127, 0, 0, 3]));
    (0..15).for_each(|_| assert_eq!(victim.fetch(&get("/", ""), "").status(), 200));
    (0..60).for_each(|_| assert_eq!(attacker.fetch(&get("/status/500", ""), "").status(), 500));
    (0..5).for_each(|_| assert_eq!(victim.fetch(&get("/", ""), "").status(), 200));
    assert_eq!(victim.fetch(&get("/status/500", ""), "").status(), 500);
    assert_eq!(victim.fetch(&get("/", ""), "").status(), 503, "two clients got errors");
}

/// Two clients that fail on purpose, and that are always first, neither open the breaker again nor keep it open for
/// long.
#[test]
fn two_clients_cannot_keep_it_open_while_others_are_served() {
    let server = ControlledServer::start("app");
    // The ramp is so long that others are served ten times in it on a busy machine, too.
    let breaker = "breaker = { errors = 10, open_for = \"200ms\", probes = 2, ramp = \"2s\" }";
    let gateway = Gateway::with("workers = 2", &app(&[server.url()], breaker));
    let mut attackers = [2, 3].map(|last| gateway.client_from([127, 0, 0, last]));
    let mut others: Vec<Client> = (10..30).map(|last| gateway.client_from([127, 0, 0, last])).collect();
    let mut ask_all = || {
        for other in &mut others {
            attackers.iter_mut().for_each(|attacker| drop(attacker.fetch(&get("/status/500", ""), "")));
            other.fetch(&get("/", ""), "");
        }
    };
    let times_opened = || gateway.metric("breaker_transitions_total", &[OF_APP[0], OF_APP[1], ("to", "open")]);
    // All fail, so it opens, and opens again if the probes come while all still fail.
    server.set_status(500);
    ask_all();
    let opened_by_all = times_opened().expect("it opened");
    assert!(opened_by_all >= 1.0);
    server.set_status(200);
    wait_until("it closes", || {
        ask_all();
        gateway.metric("breaker_state", &OF_APP) == Some(0.0)
    });
    let opened = times_opened().unwrap();
    assert!(opened <= opened_by_all + 2.0, "each attacker has one probe: opened {opened} times");
    (0..10).for_each(|_| ask_all());
    assert_eq!(times_opened(), Some(opened));
    gateway.assert_metric("breaker_state", &OF_APP, 0.0);
}

#[test]
fn a_body_that_breaks_off_is_an_error() {
    let server = Upstream::start(|peer| {
        if peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nshort")?;
        }
        Ok(())
    });
    let breaker = "breaker = { errors = 3, min_requests = 3, open_for = \"10m\" }";
    let gateway = Gateway::start(&app(&[server.url()], breaker));
    for _ in 0..3 {
        let mut client = gateway.client();
        client.send(get("/", ""));
        assert!(client.try_read_response("GET").is_err());
    }
    wait_until("three errors are counted", || gateway.get_within(Duration::from_secs(1)) == Some(503));
}

trait GetWithin {
    /// The status of a response, if it comes in time.
    fn get_within(&self, time: Duration) -> Option<u16>;
}

impl GetWithin for Gateway {
    fn get_within(&self, time: Duration) -> Option<u16> {
        let mut client = self.client();
        client.stream().set_read_timeout(Some(time)).unwrap();
        client.send(get("/", ""));
        client.try_read_response("GET").ok().map(|response| response.status())
    }
}

#[test]
fn a_diverted_request_counts_for_the_upstream_that_gets_it() {
    let (server, spare) = (ControlledServer::start("app"), ControlledServer::start("spare"));
    spare.set_status(500);
    let upstream = format!(
        "{}\n[upstream.spare]\nservers = [\"{}\"]\nbreaker = {{ errors = 4, min_requests = 4, open_for = \"10m\" }}\n",
        app(&[server.url()], "breaker = { errors = 2, min_requests = 2, open_for = \"10m\" }"),
        spare.url()
    );
    let limit = "[limit.few]\nrate = \"2/day\"\nkey = \"all\"\nover = \"upstream:spare\"\n";
    let routes = upstream.replacen("upstream =", "limits = [\"few\"]\nupstream =", 1);
    let gateway = Gateway::start(&format!("{routes}{limit}"));
    assert_eq!(statuses(&gateway, "/", 7), [200, 200, 500, 500, 500, 500, 503]);
    gateway.assert_metric("breaker_state", &OF_APP, 0.0);
    gateway.assert_metric("breaker_state", &[("kind", "upstream"), ("name", "spare")], 2.0);
}
