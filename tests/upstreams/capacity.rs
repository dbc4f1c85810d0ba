//! Servers with a maximum of requests or connections: the gateway never exceeds it, and waiting requests are served in
//! order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::fleet::{app, of};
use crate::support::client::{Client, get, post};
use crate::support::gateway::{Gateway, config};
use crate::support::h2_server::Http2Server;
use crate::support::upstream::{Running, Upstream, ok};
use crate::support::wait_until;

const APP: &[(&str, &str)] = &[("upstream", "app")];

/// A server that works on each request for `time`.
fn working(time: Duration) -> (Upstream, Arc<Running>) {
    let running = Arc::<Running>::default();
    let works = running.clone();
    let upstream = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            works.work(time);
            peer.send(ok("done"))?;
        }
        Ok(())
    });
    (upstream, running)
}

/// A server that holds each response until the test releases it.
fn held() -> (Upstream, Sender<()>) {
    let (go, releases) = channel();
    let releases = Arc::new(std::sync::Mutex::new(releases));
    let upstream = Upstream::start(move |peer| {
        while let Some(request) = peer.request()? {
            releases.lock().unwrap().recv().map_err(std::io::Error::other)?;
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    (upstream, go)
}

fn outcome(gateway: &Gateway, outcome: &str, count: f64) {
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", outcome)], count);
}

/// Asserts that no slot is in use any more, and that the upstream serves requests.
#[track_caller]
fn assert_free(gateway: &Gateway, server: &Upstream) {
    gateway.assert_metric("upstream_waiting", APP, 0.0);
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 0.0);
    let page = gateway.admin("/-/upstreams").json();
    assert_eq!((&page["upstreams"][0]["in_flight"], &page["upstreams"][0]["waiting"]), (&0.into(), &0.into()));
}

#[test]
fn no_server_gets_more_requests_than_it_takes_whichever_worker_asks() {
    let servers = [working(Duration::from_millis(30)), working(Duration::from_millis(30))];
    let urls = servers.each_ref().map(|(server, _)| server.url());
    let upstream = app(&urls, "max_in_flight = 2\ntotal = { max_in_flight = 3 }\nwaiting_timeout = \"30s\"");
    let gateway = Gateway::with("workers = 3", &upstream);
    let all = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut client = gateway.client();
                for _ in 0..5 {
                    assert_eq!(client.fetch(&get("/", ""), "").text(), "done");
                    all.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let most = servers.each_ref().map(|(_, running)| running.most());
    assert!(most.iter().all(|most| *most <= 2) && most.iter().sum::<usize>() >= 3, "{most:?}");
    outcome(&gateway, "ok", 60.0);
    servers.iter().for_each(|(server, _)| assert_free(&gateway, server));
}

#[test]
fn a_server_may_have_caps_of_its_own() {
    let servers = [working(Duration::from_millis(15)), working(Duration::from_millis(15))];
    let [small, large] = servers.each_ref().map(|(server, _)| server.url());
    let upstream = |caps: &str| {
        format!(
            "[[route]]\nname = \"app\"\nupstream = \"app\"\n[upstream.app]\nbalance = \"round_robin\"\nservers = [{{ \
             url = \"{small}\"{caps} }}, \"{large}\"]\nwaiting_timeout = \"30s\"\nmax_waiting = 99\nmax_in_flight = 60\n"
        )
    };
    let gateway = Gateway::with("workers = 2", &upstream(", max_in_flight = 1, max_connections = 1"));
    let fetch = || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    (0..6).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").text(), "done"));
                });
            }
        });
    };
    fetch();
    let [(small, of_small), (large, of_large)] = &servers;
    assert_eq!(of_small.most(), 1);
    assert!(of_large.most() > 2 && of_small.ended() + of_large.ended() == 48, "{}", of_large.most());
    assert!(of_small.ended() > 0);
    let page = gateway.admin("/-/upstreams").json();
    let max = |server: &Upstream, key: &str| {
        let servers = page["upstreams"][0]["servers"].as_array().unwrap();
        let name = server.addr.to_string();
        servers.iter().find(|shown| shown["server"] == name.as_str()).unwrap()[key].clone()
    };
    assert_eq!([max(small, "max_in_flight"), max(small, "max_connections")], [1, 1]);
    assert_eq!([max(large, "max_in_flight"), max(large, "max_connections")], [60.into(), serde_json::Value::Null]);
    // After a reload without limits of their own, servers have those of the upstream.
    gateway.reload(&config("workers = 2", &upstream("")));
    fetch();
    assert!(of_small.most() > 1);
    servers.iter().for_each(|(server, _)| assert_free(&gateway, server));
}

#[test]
fn the_queue_is_first_come_first_served_and_bounded() {
    let (server, go) = held();
    let upstream = app(&[server.url()], "max_in_flight = 1\nmax_waiting = 3\nwaiting_timeout = \"60s\"");
    let gateway = Gateway::with("access_log = true", &upstream);
    let fetch = |i: usize| {
        let mut client = gateway.client();
        client.send(get(&format!("/{i}"), ""));
        client
    };
    let mut clients = vec![fetch(0)];
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 1.0);
    for i in 1..=3 {
        clients.push(fetch(i));
        gateway.assert_metric("upstream_waiting", APP, i as f64);
    }
    let response = gateway.get("/too-many");
    assert_eq!(response.status(), 503);
    let problem = response.json();
    assert_eq!(problem["setting"], "max_waiting");
    assert!(problem["detail"].as_str().unwrap().contains("the queue is full"), "{problem}");
    outcome(&gateway, "queue_full", 1.0);
    wait_until("the log says so", || gateway.log().contains("error=queue_full"));
    wait_until("its reason is logged", || gateway.stdout().contains("\"upstream_queue_full\""));
    // One client leaves, and those behind it move up.
    drop(clients.remove(2));
    gateway.assert_metric("upstream_waiting", APP, 2.0);
    clients.push(fetch(4));
    gateway.assert_metric("upstream_waiting", APP, 3.0);
    (0..4).for_each(|_| go.send(()).unwrap());
    let responses: Vec<String> = clients.iter_mut().map(|client| client.read_response("GET").text()).collect();
    assert_eq!(responses, ["/0", "/1", "/3", "/4"]);
    let targets: Vec<String> = server.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(targets, ["/0", "/1", "/3", "/4"]);
    assert_free(&gateway, &server);
}

#[test]
fn waiting_ends_in_time_and_with_a_reload_that_gives_room() {
    let (server, go) = held();
    let upstream = |more: &str| app(&[server.url()], more);
    let gateway = Gateway::with("access_log = true", &upstream("max_in_flight = 1\nwaiting_timeout = \"200ms\""));
    let mut first = gateway.client();
    first.send(get("/", ""));
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 1.0);
    let response = gateway.get("/");
    assert_eq!((response.status(), &response.json()["setting"]), (503, &"waiting_timeout".into()));
    outcome(&gateway, "queue_timeout", 1.0);
    wait_until("its reason is logged", || gateway.stdout().contains("\"upstream_queue_timeout\""));
    gateway.reload(&config("", &upstream("max_in_flight = 2\nwaiting_timeout = \"200ms\"")));
    let mut second = gateway.client();
    second.send(get("/", ""));
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 2.0);
    assert_eq!(gateway.get("/").status(), 503);
    (0..2).for_each(|_| go.send(()).unwrap());
    assert_eq!([first, second].map(|mut client| client.read_response("GET").status()), [200, 200]);
    assert_free(&gateway, &server);
}

#[test]
fn a_reload_that_adds_capacity_does_not_wait_for_the_old_queue() {
    let (server, go) = held();
    let upstream = |max: u32| app(&[server.url()], &format!("max_in_flight = {max}\nwaiting_timeout = \"60s\""));
    let gateway = Gateway::start(&upstream(1));
    let fetch = |target: &str| {
        let mut client = gateway.client();
        client.send(get(target, ""));
        client
    };
    let mut clients = vec![fetch("/first")];
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 1.0);
    clients.push(fetch("/waits"));
    gateway.assert_metric("upstream_waiting", APP, 1.0);
    gateway.reload(&config("", &upstream(2)));
    clients.push(fetch("/new"));
    gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 2.0);
    // Earlier requests follow the settings that were in force at their start.
    (0..3).for_each(|_| go.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status(), 200));
    assert_free(&gateway, &server);
}

#[test]
fn a_half_closed_client_yields_its_place_until_its_turn() {
    let (server, go) = held();
    let upstream = app(&[server.url()], "max_in_flight = 1\nwaiting_timeout = \"60s\"");
    let gateway = Gateway::with("half_close_timeout = \"60s\"", &upstream);
    let fetch = |target: &str| {
        let mut client = gateway.client();
        client.send(get(target, ""));
        client
    };
    let mut first = fetch("/first");
    assert_eq!(server.request().target(), "/first");
    let mut leaving = fetch("/leaves");
    gateway.assert_metric("upstream_waiting", APP, 1.0);
    leaving.finish();
    gateway.assert_metric("upstream_waiting", APP, 0.0);
    leaving.assert_closed();
    let mut second = fetch("/second");
    gateway.assert_metric("upstream_waiting", APP, 1.0);
    // The gateway waits for a request that has a server.
    first.finish();
    go.send(()).unwrap();
    assert_eq!(server.request().target(), "/second");
    second.finish();
    go.send(()).unwrap();
    assert_eq!([first, second].map(|mut client| client.read_response("GET").text()), ["/first", "/second"]);
    assert_free(&gateway, &server);
}

#[test]
fn a_retry_does_not_block_requests_that_fit_other_servers() {
    let (go, releases) = channel();
    let releases = Arc::new(std::sync::Mutex::new(releases));
    let server = |releases: Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>| {
        Upstream::start(move |peer| {
            while let Some(request) = peer.request()? {
                match request.target() {
                    "/hold" => releases.lock().unwrap().recv().map_err(std::io::Error::other)?,
                    "/fail" => {
                        peer.send("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")?;
                        continue;
                    }
                    _ => {}
                }
                peer.send(ok("fine"))?;
            }
            Ok(())
        })
    };
    let servers = [server(releases.clone()), server(releases)];
    let more = "max_in_flight = 1\nwaiting_timeout = \"60s\"\nretry = { budget = 1.0, on = [\"503\"] }";
    let gateway = Gateway::start(&app(&servers.each_ref().map(Upstream::url), more));
    let mut holds = gateway.client();
    holds.send(get("/hold", ""));
    wait_until("one server is busy", || servers.iter().any(|server| server.connections() > 0));
    for _ in 0..3 {
        let response = gateway.get("/fail");
        assert_eq!((response.status(), response.text().as_str()), (503, "busy"));
        assert_eq!(gateway.get("/").text(), "fine");
    }
    go.send(()).unwrap();
    assert_eq!(holds.read_response("GET").text(), "fine");
    let retries =
        |count| gateway.assert_metric("upstream_retries_total", &[("upstream", "app"), ("reason", "503")], count);
    retries(0.0);
    // Both servers have capacity.
    assert_eq!(gateway.get("/fail").status(), 503);
    retries(1.0);
    servers.iter().for_each(|server| assert_free(&gateway, server));
}

#[test]
fn every_end_of_a_request_releases_its_place() {
    let server = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            match request.target() {
                "/break" => return Ok(()),
                "/garbage" => return peer.send("SSH-2.0\r\n\r\n"),
                "/cut" => return peer.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"),
                "/slow" => std::thread::sleep(Duration::from_millis(300)),
                "/busy" => peer.send("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")?,
                "/switch" => {
                    peer.send("HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")?;
                    return peer.wait_for_end();
                }
                _ => {}
            }
            peer.send(ok("fine"))?;
        }
        Ok(())
    });
    let more = "max_in_flight = 1\nmax_connections = 1\nwaiting_timeout = \"20s\"\n\
                retry = { attempts = 2, budget = 1.0, on = [\"connect\", \"reset\", \"503\"] }";
    let gateway =
        Gateway::start(&app(&[server.url()], more).replace("[[route]]\n", "[[route]]\nupgrades = [\"echo\"]\n"));
    let leave = |request: &str| {
        let mut client = gateway.client();
        client.send(request);
        gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 1.0);
    };
    for _ in 0..2 {
        for target in ["/break", "/garbage", "/cut", "/busy", "/"] {
            let mut client = gateway.client();
            client.send(get(target, ""));
            let _ = client.try_read_response("GET");
        }
        leave(&get("/slow", ""));
        assert_free(&gateway, &server);
        leave(&format!("{}half", post("/", 8, "")));
        assert_free(&gateway, &server);
        let mut tunnel = gateway.client();
        tunnel.send(get("/switch", "connection: upgrade\r\nupgrade: echo\r\n"));
        assert_eq!(tunnel.try_read_head().unwrap().status(), 101);
        gateway.assert_metric("upstream_in_flight", &of(&server.addr.to_string()), 1.0);
        let mut waits = gateway.client();
        waits.send(get("/", ""));
        gateway.assert_metric("upstream_waiting", APP, 1.0);
        drop(tunnel);
        assert_eq!(waits.read_response("GET").text(), "fine");
    }
    assert_free(&gateway, &server);
}

#[test]
fn connections_that_requests_share_or_that_are_for_one_client_are_bounded_too() {
    let server = Http2Server::start(|mut incoming| async move {
        let (body, _) = incoming.body().await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        incoming.send_response(body).await
    });
    let url = format!("h2c://{}", server.addr);
    let gateway = Gateway::with("workers = 2", &app(&[url], "max_connections = 1\nwaiting_timeout = \"30s\""));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = gateway.client();
                (0..4).for_each(|_| assert_eq!(client.fetch(&post("/", 4, ""), "body").text(), "body"));
            });
        }
    });
    outcome(&gateway, "ok", 32.0);
    let name = format!("h2c://{}", server.addr);
    assert!(gateway.metric("upstream_connections", &of(&name)).unwrap() <= 1.0);
    gateway.assert_metric("upstream_in_flight", &of(&name), 0.0);
    // Each client has a connection of its own, for which that of another client is closed.
    let server = Upstream::start(|peer| {
        peer.exactly(b"PROXY TCP4 127.0.0.2 127.0.0.1 ".len() as u64)?;
        while peer.request()?.is_some() {
            peer.send(ok("fine"))?;
        }
        Ok(())
    });
    let more = "max_connections = 1\nproxy_protocol = \"v1\"\nwaiting_timeout = \"5s\"";
    let gateway = Gateway::start(&app(&[server.url()], more));
    for last in [2, 3, 2] {
        assert_eq!(gateway.client_from([127, 0, 0, last]).fetch(&get("/", ""), "").status(), 200);
    }
    assert_eq!(server.connections(), 3);
}

#[test]
fn no_server_has_more_connections_than_it_takes_and_workers_share_them() {
    let (open, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (now, peak) = (open.clone(), most.clone());
    let server = Upstream::start(move |peer| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let served = (|| {
            while peer.request()?.is_some() {
                std::thread::sleep(Duration::from_millis(5));
                peer.send(ok("fine"))?;
            }
            Ok(())
        })();
        now.fetch_sub(1, Ordering::SeqCst);
        served
    });
    let gateway = Gateway::with("workers = 3", &app(&[server.url()], "max_connections = 2\nwaiting_timeout = \"30s\""));
    std::thread::scope(|scope| {
        for _ in 0..9 {
            scope.spawn(|| {
                let mut client: Client = gateway.client();
                (0..6).for_each(|_| assert_eq!(client.fetch(&get("/", ""), "").text(), "fine"));
            });
        }
    });
    // The server notices the end of a connection a little after the gateway has closed it.
    assert!(most.load(Ordering::SeqCst) <= 3, "{}", most.load(Ordering::SeqCst));
    outcome(&gateway, "ok", 54.0);
    let shown = gateway.metric("upstream_connections", &of(&server.addr.to_string())).unwrap();
    assert!(shown <= 2.0, "{shown}");
    assert_free(&gateway, &server);
    wait_until("idle ones are closed", || open.load(Ordering::SeqCst) == 0);
    gateway.assert_metric("upstream_connections", &of(&server.addr.to_string()), 0.0);
}
