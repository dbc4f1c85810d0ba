//! A gateway that gets few file descriptors from the system, or none for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rlimit::Resource;

use crate::support::client::get;
use crate::support::frames::*;
use crate::support::gateway::{Gateway, config, program};
use crate::support::h2_server::Http2Server;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Starts a gateway with at most `limit` descriptors. With one worker, 60 of 120 are reserved.
fn with_few(limit: u32, upstream: &Upstream) -> Gateway {
    with_few_of(limit, &route(upstream))
}

fn with_few_of(limit: u32, routes: &str) -> Gateway {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluicegate.toml");
    let server = "access_log = true\nhints = true";
    std::fs::write(&file, config(server, routes)).unwrap();
    let own = program();
    let mut command = std::process::Command::new("sh");
    command.env_remove("SLUICEGATE_CONFIG").env_remove("SLUICEGATE_LOG");
    command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$@\"")).arg("sh").arg(own.get_program());
    command.arg("run").arg("-c").arg(&file);
    Gateway::spawn(command, dir)
}

fn route(upstream: &Upstream) -> String {
    format!(
        "[upstream.app]\nservers = [\"{}\"]\neject = {{ consecutive_errors = 1, for = \"60s\" }}\n\n[[route]]\n\
         name = \"app\"\npath = \"/\"\nupstream = \"app\"\n",
        upstream.url()
    )
}

fn lines(gateway: &Gateway, text: &str) -> usize {
    gateway.log().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn clients_wait_for_their_turn_and_all_are_served() {
    let upstream = Upstream::text("good");
    let gateway = with_few(120, &upstream);
    let mut clients: Vec<_> = (0..100).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(get("/", ""));
    }
    // An idle connection is closed for a new one.
    for client in &mut clients {
        assert_eq!(client.read_response("GET").text(), "good");
    }
    gateway.assert_metric("requests_total", &[("route", "app"), ("method", "GET"), ("code", "200")], 100.0);
    assert!((1..=2).contains(&lines(&gateway, "out of file descriptors")), "{}", gateway.log());
    assert_eq!(
        lines(&gateway, "WARN") - lines(&gateway, "max_connections"),
        lines(&gateway, "out of file descriptors")
    );
}

/// Streams of one client use as many connections to the server as there are descriptors.
#[test]
fn a_request_without_a_descriptor_for_it_is_refused_and_nobody_else_is_to_blame() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(700));
            peer.send(ok("good"))?;
        }
        Ok(())
    });
    let gateway = with_few(120, &upstream);
    let mut wire = Wire::connect(gateway.addr, &[]);
    let streams: Vec<u32> = (0..60).map(|number| number * 2 + 1).collect();
    for stream in &streams {
        wire.get(*stream, "/");
    }
    // A reload meanwhile has descriptors to read the files.
    gateway.reload(&config("access_log = true\nhints = true\nmax_headers = 99", &route(&upstream)));
    let responses = wire.read_responses(&streams);
    let refused: Vec<_> = responses.iter().filter(|response| response.body != b"good").collect();
    assert_eq!(refused.len(), 30);
    for response in &refused {
        assert_eq!(response.problem_status(), 503);
        assert!(String::from_utf8_lossy(&response.body).contains("no file descriptors left"));
    }
    gateway.assert_metric("http_rejected_total", &[("reason", "file_descriptors")], 30.0);
    wait_until("their lines", || gateway.stdout().matches("\"reason\":\"file_descriptors\"").count() == 30);
    let upstream = [("upstream", "app"), ("outcome", "connect_error")];
    assert_eq!(gateway.metric("upstream_requests_total", &upstream), Some(0.0));
    assert_eq!(gateway.get("/").text(), "good", "{}", gateway.log());
    assert!((1..=2).contains(&lines(&gateway, "out of file descriptors")), "{}", gateway.log());
}

/// Starts a gateway with a route to another server, whose idle connections take all descriptors for servers.
fn with_other(app: &str, url: &str) -> Gateway {
    let gateway = with_few_of(120, &format!("{app}\n[[route]]\npath = \"/other\"\nupstream = \"{url}\"\n"));
    let mut wire = Wire::connect(gateway.addr, &[]);
    let streams: Vec<u32> = (0..30).map(|number| number * 2 + 1).collect();
    streams.iter().for_each(|stream| wire.get(*stream, "/other"));
    assert!(wire.read_responses(&streams).iter().all(|response| response.body == b"other"));
    gateway
}

#[test]
fn idle_connections_of_whichever_kind_give_their_descriptors_to_whichever_upstream() {
    let app = Upstream::text("good");
    let count = Arc::<AtomicUsize>::default();
    let all = count.clone();
    let other = Upstream::start(move |peer| {
        while peer.request()?.is_some() {
            all.fetch_add(1, Ordering::SeqCst);
            wait_until("all are there", || all.load(Ordering::SeqCst) >= 30);
            peer.send(ok("other"))?;
        }
        Ok(())
    });
    let plain = route(&app);
    let capped = plain.replace("eject =", "max_in_flight = 60\neject =");
    let gateway = with_other(&capped, &other.url());
    assert_eq!(other.connections(), 30);
    assert_eq!(gateway.get("/").text(), "good", "{}", gateway.log());
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "connect_error")], 0.0);
    assert_eq!(lines(&gateway, "upstream request failed"), 0, "{}", gateway.log());

    count.store(0, Ordering::SeqCst);
    let one_each = |settings: &mut h2::server::Builder| {
        settings.max_concurrent_streams(1);
    };
    let streams = Http2Server::with(None, one_each, move |mut incoming| {
        let all = count.clone();
        async move {
            all.fetch_add(1, Ordering::SeqCst);
            while all.load(Ordering::SeqCst) < 30 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            incoming.send_response("other").await
        }
    });
    let gateway = with_other(&plain, &format!("h2c://{}", streams.addr));
    assert_eq!(streams.connections(), 30);
    assert_eq!(gateway.get("/").text(), "good", "{}", gateway.log());
}

/// Clients without a descriptor wait in the listen queue when the process ends.
#[test]
fn at_the_end_nobody_is_accepted_for_whom_there_is_no_descriptor() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(800));
            peer.send(ok("good"))?;
        }
        Ok(())
    });
    let mut gateway = with_few(120, &upstream);
    let mut clients: Vec<_> = (0..150).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/", "")));
    wait_until("as many requests are served as possible", || upstream.connections() == 30);
    gateway.signal("TERM");
    let open = format!("/proc/{}/fd", gateway.pid());
    let mut most = 0;
    wait_until("it has ended", || {
        let now = std::fs::read_dir(&open).map_or(0, Iterator::count);
        most = most.max(now);
        now == 0
    });
    assert_eq!(gateway.exit().code(), Some(0), "{}", gateway.log());
    assert!((60..105).contains(&most), "{most}");
    let served = clients.iter_mut().filter_map(|client| client.try_read_response("GET").ok());
    let served: Vec<String> = served.map(|response| response.text()).collect();
    assert!(served.len() >= 30 && served.iter().all(|text| text == "good"), "{served:?}");
}

/// The system reduces the number of descriptors: requests wait, nothing breaks, and all continue afterwards.
#[test]
fn a_process_without_any_descriptor_recovers() {
    let upstream = Upstream::fixed("HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ngood");
    let gateway = with_few(400, &upstream);
    let mut early = gateway.client();
    assert_eq!(early.fetch(&get("/", ""), "").text(), "good");
    let pid = i32::try_from(gateway.pid()).unwrap();
    let grant = |count| rlimit::prlimit(pid, Resource::NOFILE, Some((count, 400)), None).unwrap();
    grant(3);
    gateway.write_config(&config("access_log = true\nhints = true\nmax_headers = 99", &route(&upstream)));
    let mut late = gateway.client();
    late.send(get("/", ""));
    for _ in 0..10 {
        let response = early.fetch(&get("/", ""), "");
        assert_eq!((response.status(), response.json()["status"].as_u64()), (503, Some(503)));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(lines(&gateway, "out of file descriptors"), 1, "{}", gateway.log());
    grant(400);
    assert_eq!(late.read_response("GET").text(), "good");
    assert_eq!(early.fetch(&get("/", ""), "").text(), "good");
    wait_until("the save is active", || gateway.log().contains("config reloaded"));
    let log = gateway.log();
    assert!(!log.contains("not reloaded") && !log.contains("upstream request failed"), "{log}");
    assert!(!log.contains("refusing"), "{log}");
}
