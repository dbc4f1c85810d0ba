//! Spans as a real OpenTelemetry collector reads them, and collectors that are unreachable, slow, or refuse: none of
//! them delays a request.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::app::App;
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const NOT_NOW: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const PARENT: &str = "00f067aa0ba902b7";

fn gateway(collector: &str, more: &str, upstream: &str) -> Gateway {
    Gateway::with(
        &format!("spans = {{ to = \"{collector}\", service = \"front\"{more} }}\n"),
        &format!(
            "[[route]]\nname = \"users\"\npath = \"/users/{{id}}\"\nupstream = \"{upstream}\"\nlimits = [\"ample\"]\n\n\
             [[route]]\nname = \"fixed\"\npath = \"/fixed\"\nrespond = {{ status = 200, body = \"in\" }}\n\n\
             [[route]]\nname = \"down\"\npath = \"/down\"\nupstream = \"http://{}\"\n\n\
             [limit.ample]\nrate = \"1000/s\"\nkey = \"ip\"\n",
            closed_addr()
        ),
    )
}

fn spans(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("spans_total", &[("result", result)]).unwrap_or(0.0)
}

/// Returns the spans that the collector has printed, each as the texts before and after the colon of its lines.
fn printed(collector: &App) -> Vec<BTreeMap<String, String>> {
    let log = collector.log();
    let spans = log.split("\nSpan #").skip(1).map(|span| {
        let lines = span.lines().skip(1).filter_map(|line| line.trim().trim_start_matches("-> ").split_once(':'));
        lines.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
    });
    spans.collect()
}

/// Returns the only span with this name, once it has arrived.
#[track_caller]
fn span(collector: &App, name: &str) -> BTreeMap<String, String> {
    let found = || printed(collector).into_iter().filter(|span| span["Name"] == name).collect::<Vec<_>>();
    wait_until("the collector has it", || !found().is_empty());
    let mut found = found();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_collector_receives_the_outcomes_of_requests() {
    let (collector, upstream) = (App::collector(), Upstream::text("in"));
    let mut gateway = gateway(&collector.url(), "", &upstream.url());
    let fields = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\nuser-agent: curl/8\r\n");
    assert_eq!(gateway.fetch(&get("/users/7?token=geheim&page=2", &fields)).status(), 200);
    let asked = upstream.request();
    let seen = span(&collector, "GET /users/{id}");
    // The server's parent is the span of the upstream request, its parent that of the request, its parent that of the
    // client.
    let client = span(&collector, "GET");
    assert_eq!((&client["Parent ID"], &*client["Kind"]), (&seen["ID"], "SPAN_KIND_CLIENT"));
    let id = &client["ID"];
    assert_eq!(asked.get("traceparent"), Some(&*format!("00-{TRACE}-{id}-01")));
    assert_eq!(asked.get("tracestate"), Some("a=1"));
    for (name, value) in [
        ("Trace ID", TRACE),
        ("Parent ID", PARENT),
        ("Kind", "SPAN_KIND_SERVER"),
        ("http.request.method", "Str(GET)"),
        ("http.route", "Str(/users/{id})"),
        ("http.response.status_code", "Int(200)"),
        ("http.response.body.size", "Int(2)"),
        ("url.scheme", "Str(http)"),
        ("url.path", "Str(/users/7)"),
        ("url.query", "Str(token=***&page=2)"),
        ("client.address", "Str(127.0.0.1)"),
        ("user_agent.original", "Str(curl/8)"),
        ("network.protocol.version", "Str(1.1)"),
        ("sluicegate.route", "Str(users)"),
        ("sluicegate.limit", "Str(ample)"),
        ("sluicegate.decision", "Str(allow)"),
        ("sluicegate.key", "Str(ip=127.0.0.1)"),
        ("sluicegate.tries", "Int(1)"),
    ] {
        assert_eq!(seen.get(name).map(String::as_str), Some(value), "{name} of {seen:?}");
    }
    let time = |name: &str| seen[name].parse::<u64>().unwrap();
    assert!(time("Start time") > 1_600_000_000_000_000_000 && time("End time") >= time("Start time"), "{seen:?}");
    assert!(collector.log().contains("-> service.name: Str(front)"), "{}", collector.log());

    // A failed request, which also begins a trace.
    assert_eq!(gateway.get("/down").status(), 502);
    let failed = span(&collector, "GET /down");
    assert_eq!(failed["error.type"], "Str(upstream_connect)");
    assert_eq!(failed["Parent ID"], "");
    // Long values are truncated, and an unknown method is not part of the span's name.
    let long = "a".repeat(6000);
    assert_eq!(
        gateway.fetch(&format!("BREW /fixed?x={long} HTTP/1.1\r\nhost: x\r\nuser-agent: {long}\r\n\r\n")).status(),
        200
    );
    let aborted = span(&collector, "HTTP /fixed");
    assert_eq!(aborted["user_agent.original"].len(), "Str()".len() + 1024);
    assert_eq!(
        (&*aborted["http.request.method"], &*aborted["http.request.method_original"]),
        ("Str(_OTHER)", "Str(BREW)")
    );
    wait_until("they are counted", || spans(&gateway, "exported") == 4.0);
    assert_eq!((spans(&gateway, "failed"), spans(&gateway, "dropped")), (0.0, 0.0));

    // Spans in the queue are exported before the process ends.
    assert_eq!(gateway.fetch("LATE /fixed HTTP/1.1\r\nhost: x\r\n\r\n").status(), 200);
    gateway.signal("TERM");
    assert!(gateway.exit().success());
    wait_until("the last span has arrived", || collector.log().contains("Str(LATE)"));
}

#[test]
fn every_time_that_a_request_is_sent_is_a_span_that_its_server_knows() {
    let collector = App::collector();
    let asked = Arc::new(AtomicUsize::new(0));
    let servers = [(), ()].map(|()| {
        let asked = asked.clone();
        Upstream::start(move |peer| {
            while peer.request()?.is_some() {
                let first = asked.fetch_add(1, Ordering::SeqCst) == 0;
                peer.send(if first { NOT_NOW.to_owned() } else { ok("in") })?;
            }
            Ok(())
        })
    });
    let gateway = Gateway::with(
        &format!("spans = {{ to = \"{}\" }}\n", collector.url()),
        &format!(
            "[[route]]\npath = \"/a\"\nupstream = \"app\"\n\n[upstream.app]\nservers = [\"{}\", \"{}\"]\n\
             retry = {{ on = [\"503\"] }}\n",
            servers[0].url(),
            servers[1].url()
        ),
    );
    assert_eq!(gateway.fetch(&get("/a", &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"))).text(), "in");
    let request = span(&collector, "GET /a");
    assert_eq!((&*request["Parent ID"], &*request["sluicegate.tries"]), (PARENT, "Int(2)"));
    let sent: Vec<_> = printed(&collector).into_iter().filter(|span| span["Name"] == "GET").collect();
    assert_eq!(sent.len(), 2, "{sent:?}");
    for server in &servers {
        let export = server.request();
        let port = server.url().rsplit_once(':').unwrap().1.to_owned();
        let span = sent.iter().find(|span| span["server.port"] == format!("Int({port})")).unwrap();
        assert_eq!(export.get("traceparent"), Some(&*format!("00-{TRACE}-{}-01", span["ID"])));
        assert_eq!((&span["Parent ID"], &*span["Kind"]), (&request["ID"], "SPAN_KIND_CLIENT"));
        assert_eq!(&*span["server.address"], "Str(127.0.0.1)");
        let (error, resent) = match &*span["http.response.status_code"] {
            "Int(503)" => (Some("Str(503)"), None),
            _ => (None, Some("Int(1)")),
        };
        assert_eq!(span.get("error.type").map(String::as_str), error, "{span:?}");
        assert_eq!(span.get("http.request.resend_count").map(String::as_str), resent, "{span:?}");
        assert_eq!(span["Status code"] == "STATUS_CODE_ERROR", error.is_some(), "{span:?}");
    }
}

#[test]
fn only_sampled_requests_have_spans() {
    let (collector, upstream) = (App::collector(), Upstream::text("in"));
    let gateway = gateway(&collector.url(), ", sample = 0", &upstream.url());
    // The trace is sampled neither by its parent nor at random, so the header is forwarded unchanged.
    let passed = format!("00-{TRACE}-{PARENT}-00");
    for field in [format!("traceparent: {passed}\r\n"), String::new()] {
        assert_eq!(gateway.fetch(&get("/users/1", &field)).status(), 200);
        assert_eq!(upstream.request().get("traceparent"), (!field.is_empty()).then_some(&*passed));
    }
    assert_eq!(gateway.fetch(&get("/users/2", &format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"))).status(), 200);
    assert_eq!(span(&collector, "GET /users/{id}")["url.path"], "Str(/users/2)");
    // Including the span of the upstream request.
    assert_eq!(printed(&collector).len(), 2);

    // A new trace passes its sampling decision on.
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    gateway.reload(&text.replace("spans =", "traceparent = \"make\"\nspans ="));
    wait_until("it starts traces", || {
        gateway.get("/users/3");
        upstream.request().get("traceparent").is_some_and(|field| field.ends_with("-00"))
    });
}

#[test]
fn no_collector_holds_requests_back_or_fills_the_memory() {
    let refuses = Upstream::fixed("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n");
    // A collector that accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (collector, lost, hundreds) in [
        (format!("http://{}", closed_addr()), "failed", 6),
        (refuses.url(), "failed", 6),
        (format!("http://{}", silent.local_addr().unwrap()), "dropped", 80),
    ] {
        let gateway = gateway(&collector, "", "http://127.0.0.1:1");
        let request = get("/fixed", &format!("user-agent: {}\r\n", "b".repeat(2000)));
        let mut client = gateway.client();
        let memory = gateway.watch_memory();
        // More than a batch, and in the last case more than the queue holds.
        for _ in 0..hundreds {
            client.send(request.repeat(100));
            for _ in 0..100 {
                assert_eq!(client.read_response("GET").status(), 200);
            }
        }
        wait_until("the spans are lost", || spans(&gateway, lost) > 0.0);
        assert!(spans(&gateway, "exported") == 0.0);
        let grown = memory.grown();
        assert!(grown < 64 << 20, "{grown} bytes more for {collector}");
        if lost == "failed" {
            wait_until("the loss is logged", || gateway.log().contains("the collector did not take spans"));
        }
    }
}
