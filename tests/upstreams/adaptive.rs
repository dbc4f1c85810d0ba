//! The adaptive limit of an upstream, on a server of known capacity: it works on so many requests at once and queues
//! the rest. `make overload-bench` runs longer phases, beside Envoy.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::fleet::app;
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, config};
use crate::support::upstream::{Running, Upstream, ok};
use crate::support::wait_until;

const APP: &[(&str, &str)] = &[("upstream", "app")];

/// A server that works on `slots` requests at once, each for `time`.
fn working(slots: usize, time: Duration) -> (Upstream, Arc<Running>) {
    let running = Arc::<Running>::default();
    let (works, free) = (running.clone(), Arc::new((Mutex::new(slots), Condvar::new())));
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            let (count, changed) = &*free;
            let mut count = changed.wait_while(count.lock().unwrap(), |free| *free == 0).unwrap();
            *count -= 1;
            drop(count);
            works.work(time);
            *free.0.lock().unwrap() += 1;
            changed.notify_one();
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    (upstream, running)
}

/// Responds to each request when the test sends a signal.
fn held() -> (Upstream, Sender<()>) {
    let (go, releases) = channel();
    let releases = Arc::new(Mutex::new(releases));
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            releases.lock().unwrap().recv().map_err(std::io::Error::other)?;
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    (upstream, go)
}

/// Clients that send requests without a pause until they are stopped. Returns the numbers of responses with 200 and
/// with 503.
fn load(gateway: &Gateway, clients: usize, target: &str, time: Duration) -> [usize; 2] {
    let (stop, counts) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = gateway.client();
                while !stop.load(Ordering::SeqCst) {
                    let status = client.fetch(&get(target, ""), "").status();
                    let place = [200, 503].iter().position(|known| *known == status);
                    counts[place.unwrap_or_else(|| panic!("{status}"))].fetch_add(1, Ordering::SeqCst);
                    if status == 503 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::SeqCst);
    });
    counts.map(AtomicUsize::into_inner)
}

#[test]
fn a_server_is_kept_busy_and_not_flooded() {
    let (server, running) = working(4, Duration::from_millis(10));
    let gateway = Gateway::with("workers = 2", &app(&[server.url()], "adaptive = { min = 3, max = 200, start = 6 }"));
    let begun = Instant::now();
    let [good, refused] = load(&gateway, 64, "/", Duration::from_millis(3_500));
    let capacity = begun.elapsed().as_secs_f64() * 4.0 / 0.0102;
    assert!(good as f64 > 0.5 * capacity, "{good} of {capacity}");
    assert!(refused > 100, "{refused}");
    assert!(running.most() <= 4);
    let limit = gateway.metric("upstream_adaptive_limit", APP).unwrap();
    assert!((3.0..60.0).contains(&limit), "the capacity is 4 at once: {limit}");
    gateway.assert_metric("upstream_adaptive_in_flight", APP, 0.0);
    let page = gateway.admin("/-/upstreams").json();
    let shown = &page["upstreams"][0];
    assert_eq!(shown["adaptive"]["in_flight"], 0, "{page}");
    assert!(shown["adaptive"]["baseline_ms"].as_f64().unwrap() > 9.0, "{page}");
    assert_eq!(shown["newest_first"], false, "{page}");
    let counted: u64 = shown["refused"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(counted, refused as u64, "{page}");
    // A reload keeps the measured limit, within the new bounds.
    gateway.reload(&config("workers = 2", &app(&[server.url()], "adaptive = { min = 1, max = 2, start = 2 }")));
    gateway.assert_metric("upstream_adaptive_limit", APP, 2.0);
    assert!(load(&gateway, 2, "/", Duration::from_millis(100))[0] > 2);
}

/// The server would hold any number of requests; the gateway sends it no more than the limit, whichever worker asks.
#[test]
fn no_more_requests_than_the_limit_wait_for_a_response() {
    let running = Arc::<Running>::default();
    let works = running.clone();
    let server = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            works.work(Duration::from_millis(30));
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    let text = app(
        &[server.url()],
        "adaptive = { min = 3, max = 3, start = 3 }\nmax_waiting = 1000\nwaiting_timeout = \
                                     \"30s\"\nnewest_first_after = \"1h\"",
    );
    let gateway = Gateway::with("workers = 3", &text);
    let [good, refused] = load(&gateway, 24, "/", Duration::from_millis(600));
    assert!(running.most() == 3 && good > 24 && refused == 0, "{} {good} {refused}", running.most());
}

#[test]
fn the_most_important_requests_go_first() {
    let (server, go) = held();
    let routes: String = [("low", 0), ("high", 4)]
        .iter()
        .map(|(name, priority)| format!("[[route]]\npath = \"/{name}\"\nupstream = \"app\"\npriority = {priority}\n"))
        .collect();
    let upstream = format!(
        "{routes}[upstream.app]\nservers = [\"{}\"]\nadaptive = {{ min = 1, max = 1 }}\nmax_waiting = 2\nwaiting_timeout \
         = \"60s\"\nnewest_first_after = \"1h\"\n",
        server.url()
    );
    let gateway = Gateway::with("access_log = true", &upstream);
    let waiting = |count: f64| gateway.assert_metric("upstream_waiting", APP, count);
    let fetch = |target: &str| {
        let mut client = gateway.client();
        client.send(get(target, ""));
        client
    };
    let mut first = fetch("/high/first");
    gateway.assert_metric("upstream_adaptive_in_flight", APP, 1.0);
    let mut low = fetch("/low/1");
    waiting(1.0);
    let mut high = fetch("/high/2");
    waiting(2.0);
    // The queue is full for requests that are not more important than a waiting one.
    assert_eq!(gateway.get("/low/3").status(), 503);
    wait_until("its reason is logged", || gateway.stdout().contains("\"upstream_overloaded\""));
    let mut highest = fetch("/high/4");
    assert_eq!(low.read_response("GET").status(), 503, "a more important request has its place in the queue");
    assert_eq!(gateway.get("/high/5").status(), 503);
    let refused = |priority, count| {
        gateway.assert_metric("upstream_refused_total", &[("upstream", "app"), ("priority", priority)], count);
    };
    refused("0", 2.0);
    refused("4", 1.0);
    let responses = |client: &mut Client| {
        go.send(()).unwrap();
        client.read_response("GET").text().to_owned()
    };
    assert_eq!(responses(&mut first), "/high/first");
    assert_eq!(responses(&mut high), "/high/2");
    assert_eq!(responses(&mut highest), "/high/4");
}

/// The least important load exceeds the capacity by far; the most important load is below it.
#[test]
fn an_overload_of_unimportant_requests_does_not_reach_the_important_ones() {
    let (server, _running) = working(8, Duration::from_millis(20));
    let routes: String = [("low", 0), ("high", 4)]
        .iter()
        .map(|(name, priority)| format!("[[route]]\npath = \"/{name}\"\nupstream = \"app\"\npriority = {priority}\n"))
        .collect();
    let gateway = Gateway::with(
        "workers = 2",
        &format!("{routes}[upstream.app]\nservers = [\"{}\"]\nadaptive = {{ start = 12 }}\n", server.url()),
    );
    let time = Duration::from_millis(2_500);
    let ([low, low_refused], [high, high_refused]) = std::thread::scope(|scope| {
        let low = scope.spawn(|| load(&gateway, 48, "/low", time));
        let high = scope.spawn(|| load(&gateway, 4, "/high", time));
        (low.join().unwrap(), high.join().unwrap())
    });
    assert!(low_refused > 100 && low > 50, "{low} {low_refused}");
    assert!(high_refused * 100 <= high, "{high} {high_refused}");
}

#[test]
fn a_client_that_left_frees_its_place_in_the_queue() {
    let (server, go) = held();
    let text = "adaptive = { min = 1, max = 1, start = 1 }\nmax_waiting = 1\nwaiting_timeout = \"60s\"\n\
                newest_first_after = \"1h\"";
    let gateway = Gateway::with("half_close_timeout = \"0s\"", &app(&[server.url()], text));
    let mut first = gateway.client();
    first.send(get("/1", ""));
    gateway.assert_metric("upstream_adaptive_in_flight", APP, 1.0);
    let mut second = gateway.client();
    second.send(get("/2", ""));
    gateway.assert_metric("upstream_waiting", APP, 1.0);
    drop(second);
    gateway.assert_metric("upstream_waiting", APP, 0.0);
    let mut third = gateway.client();
    third.send(get("/3", ""));
    gateway.assert_metric("upstream_waiting", APP, 1.0);
    go.send(()).unwrap();
    assert_eq!(first.read_response("GET").text(), "/1");
    go.send(()).unwrap();
    assert_eq!(third.read_response("GET").text(), "/3");
    wait_until("all places are free", || gateway.metric("upstream_adaptive_in_flight", APP) == Some(0.0));
}

/// A stream of any length takes a place only until its head: neither its duration nor its number distort the limit.
#[test]
fn streams_take_no_place_once_they_have_begun() {
    let (go, releases) = channel::<()>();
    let releases = Arc::new(Mutex::new(releases));
    let server = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")?;
            let _ = releases.lock().unwrap().recv();
            peer.send("0\r\n\r\n")?;
        }
        Ok(())
    });
    let gateway = Gateway::start(&app(&[server.url()], "adaptive = { min = 2, max = 2, start = 2 }\nmax_waiting = 0"));
    let mut streams: Vec<Client> = Vec::new();
    for _ in 0..6 {
        let mut client = gateway.client();
        client.send(get("/", ""));
        assert_eq!(client.try_read_head().unwrap().status(), 200);
        streams.push(client);
    }
    gateway.assert_metric("upstream_adaptive_in_flight", APP, 0.0);
    drop(go);
}
