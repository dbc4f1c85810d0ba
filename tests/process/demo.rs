//! `sluicegate demo`: what it prints leads to the gateway that runs, whichever ports are free, and Ctrl-C ends it.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::POLL_INTERVAL;
use crate::support::gateway::Gateway;

/// The demo, with its usual ports taken by this test or by something else.
fn demo_beside(_taken: &[Option<TcpListener>], arguments: &[&str]) -> Gateway {
    Gateway::launch(&[], |_| ["demo"].iter().chain(arguments).map(|&word| word.to_owned()).collect())
}

/// Takes the usual ports. What another test uses is free soon; what is still in use then belongs to a program that stays.
fn take_ports() -> Vec<Option<TcpListener>> {
    let until = Instant::now() + Duration::from_secs(5);
    let take = |port| loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Err(_) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            taken => return taken.ok(),
        }
    };
    [8080, 9900].map(take).into()
}

/// The command in what the demo printed that has `contains`, less the indentation.
fn printed_command(demo: &Gateway, contains: &str) -> String {
    let text = demo.stdout();
    let line = text.lines().find(|line| line.starts_with("  ") && line.contains(contains));
    line.unwrap_or_else(|| panic!("no {contains} in {text}")).trim().to_owned()
}

fn run_in_shell(command: &str) -> (bool, String) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn each_command_that_the_demo_prints_works_beside_taken_ports() {
    let taken = take_ports();
    let mut demo = demo_beside(&taken, &[]);
    for ((port, is), taken) in [(8080, demo.addr), (9900, demo.admin)].into_iter().zip(&taken) {
        // What another program used may be free again.
        if taken.is_none() && is.port() == port {
            continue;
        }
        assert_ne!(is.port(), port);
        let note = format!("Port {port} is in use; the demo takes {} instead.", is.port());
        assert!(demo.stdout().contains(&note), "{note}: {}", demo.stdout());
    }
    assert!(demo.stdout().contains(&format!("Dashboard: http://{}/\n", demo.admin)), "{}", demo.stdout());
    assert!(demo.admin("/").text().contains("<title>"));

    let (done, response) = run_in_shell(&printed_command(&demo, "curl -i"));
    assert!(done && response.starts_with("HTTP/1.1 200"), "{response}");
    // On a slow machine, as many requests become available as curl can send.
    let burst = printed_command(&demo, "seq 12");
    let refuses = || run_in_shell(&burst).1.starts_with("200 ") && run_in_shell(&burst).1.contains("429");
    assert!((0..5).any(|_| refuses()), "{burst}");
    let (done, key) = run_in_shell(&printed_command(&demo, "key show"));
    assert!(done && key.contains("of 10"), "{key}");
    let (done, explained) = run_in_shell(&printed_command(&demo, "explain GET"));
    assert!(done && explained.contains("per-ip"), "{explained}");

    let text = demo.stdout();
    let config = text.lines().find_map(|line| line.trim().strip_prefix("Edit ")).unwrap();
    assert!(std::fs::exists(config).unwrap());
    // What a terminal sends for Ctrl-C, while the dashboard reads its stream of events.
    let mut live = crate::support::client::Client::connect(demo.admin);
    live.send(format!("GET /-/live HTTP/1.1\r\nhost: {}\r\n\r\n", demo.admin));
    assert_eq!(live.try_read_head().unwrap().status(), 200);
    demo.signal("INT");
    assert_eq!(demo.exit().code(), Some(0), "{}", demo.log());
    assert!(!std::fs::exists(config).unwrap(), "{config} is left");
}

/// The config of an earlier demo is somebody's work: its addresses stay.
#[test]
fn a_kept_config_keeps_its_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().to_str().unwrap();
    let taken = take_ports();
    let mut first = demo_beside(&taken, &["--dir", kept]);
    let (addr, admin) = (first.addr, first.admin);
    first.signal("INT");
    assert_eq!(first.exit().code(), Some(0));
    drop(taken);
    let again = demo_beside(&[], &["--dir", kept]);
    assert_eq!((again.addr, again.admin), (addr, admin));
    assert!(again.stdout().contains(&format!("curl -i http://{addr}/")), "{}", again.stdout());
    assert!(!again.stdout().contains("is in use"), "{}", again.stdout());
}
