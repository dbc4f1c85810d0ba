//! `limit_req` with `delay`: the imported config admits the same requests as nginx, and delays them as long.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::differential::{Nginx, get, upstream};
use super::output::import;
use crate::support::gateway::Gateway;

const CONFIG: &str = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;
limit_req_zone $binary_remote_addr zone=y:1m rate=1r/s;
limit_req_status 429;
server {
    listen 127.0.0.1:0;
    location / { limit_req zone=z burst=5 delay=2; proxy_pass http://UPSTREAM; }
    location /most { limit_req zone=y burst=2 delay=1; proxy_pass http://UPSTREAM; }
}
";
/// The status of each request and how long it took, in the order of their times.
type Responses = Vec<(String, Duration)>;

fn send_at_once(addr: SocketAddr, path: &'static str, count: usize) -> Responses {
    std::thread::scope(|scope| {
        let send = || {
            let start = Instant::now();
            let response = get(path).send(addr);
            (response.split(' ').next().unwrap_or_default().to_owned(), start.elapsed())
        };
        let sent: Vec<_> = (0..count).map(|_| scope.spawn(send)).collect();
        let mut responses: Responses = sent.into_iter().map(|one| one.join().unwrap()).collect();
        responses.sort_by_key(|(status, elapsed)| (status.clone(), *elapsed));
        responses
    })
}

/// Compares statuses and times of the same bursts. The error names the first one that differs.
fn compare(both: [SocketAddr; 2]) -> Result<(), String> {
    // The admitted requests of each burst wait for so many seconds, in each of which one request leaves. The second
    // burst finds three requests of the first.
    for (path, count, waits) in
        [("/", 8, [0, 0, 0, 1, 2, 3].as_slice()), ("/", 5, &[1, 2, 3]), ("/most", 4, &[0, 0, 1])]
    {
        let found = std::thread::scope(|scope| {
            let sent = both.map(|addr| scope.spawn(move || send_at_once(addr, path, count)));
            sent.map(|one| one.join().unwrap())
        });
        for (name, responses) in ["nginx", "ours"].iter().zip(found) {
            let admitted = responses.iter().filter(|(status, _)| status == "200");
            let seconds: Vec<u128> = admitted.map(|(_, elapsed)| (elapsed.as_millis() + 400) / 1000).collect();
            if seconds != waits {
                return Err(format!("{name}, {path}: {responses:?}, expected {waits:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_part_of_a_burst_passes_at_once_as_in_nginx() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let text = CONFIG.replace("UPSTREAM", &upstream.addr.to_string());
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, &text).unwrap();
    let output = import("nginx", &path);
    let config = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{config}");
    let mut faults = Vec::new();
    for _ in 0..3 {
        let nginx = Nginx::start(dir.path(), &text);
        let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        match compare([nginx.addr, gateway.addr]) {
            Ok(()) => return,
            Err(fault) => faults.push(fault),
        }
    }
    panic!("{faults:#?}\n{config}");
}
