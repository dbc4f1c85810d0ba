//! Leases of hot keys: units debited in advance are never spent twice or after their window, and go back.

mod bounds;
mod changes;
mod exactness;

use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::topology::run_command;

/// Longest lease in these tests, unless a test sets another.
const HORIZON: Duration = Duration::from_secs(1);
const LEASE: &str = "lease = { horizon = \"1s\", hot_after = \"20/s\" }";

/// A config with one route, whose limit `all` has one budget for everybody.
fn config(url: &str, limit: &str) -> String {
    format!(
        "[store]\nurl = \"{url}\"\ndeadline = \"5s\"\non_error = \"closed\"\n\n\
         [[route]]\nname = \"r\"\nrespond = {{ body = \"in\" }}\nlimits = [\"all\"]\n\n\
         [limit.all]\nkey = \"all\"\n{limit}\n"
    )
}

/// Starts gateways with two workers each, and waits until they count each other.
fn gateways(count: usize, config: &str) -> Vec<Gateway> {
    let gateways: Vec<Gateway> = (0..count).map(|_| Gateway::with("workers = 2", config)).collect();
    for gateway in &gateways {
        crate::support::wait_until("every worker has reached the store", || {
            gateway.metric("store_gateways", &[]) >= Some(count as f64) && gateway.metric("store_up", &[]) == Some(1.0)
        });
    }
    gateways
}

/// An admitted request: when it was sent and answered.
type Admission = (Instant, Instant);

/// Sends `requests` to each of `gateways` on each of two connections, and returns the admissions.
fn send(gateways: &[Gateway], requests: usize) -> Vec<Admission> {
    send_while(gateways, |sent| sent < requests)
}

/// Sends requests to each of `gateways` on two connections each, as long as `more` returns true for the number sent.
fn send_while(gateways: &[Gateway], more: impl Fn(usize) -> bool + Sync) -> Vec<Admission> {
    let run = |gateway: &Gateway| {
        let mut client = gateway.client();
        let mut admissions = Vec::new();
        for sent in 0.. {
            if !more(sent) {
                break;
            }
            let since = Instant::now();
            match client.fetch(&get("/", ""), "").status() {
                200 => admissions.push((since, Instant::now())),
                429 => {}
                other => panic!("{other}"),
            }
        }
        admissions
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            gateways.iter().chain(gateways).map(|gateway| scope.spawn(move || run(gateway))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits until all leases have ended, and then exhausts the budget with single requests. Returns how many were
/// admitted.
fn drain(gateway: &Gateway) -> usize {
    thread::sleep(HORIZON + Duration::from_millis(200));
    let mut client = gateway.client();
    let mut admitted = 0;
    loop {
        match client.fetch(&get("/", ""), "").status() {
            200 => admitted += 1,
            // The remaining units may still be leased.
            _ if unspent(gateway) > 0.0 => thread::sleep(Duration::from_millis(50)),
            _ => return admitted,
        }
    }
}

fn units(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metric("lease_units_total", &[("limit", "all"), ("outcome", outcome)]).unwrap_or(0.0)
}

/// The units that a gateway has and may still spend.
fn unspent(gateway: &Gateway) -> f64 {
    units(gateway, "granted") - units(gateway, "spent") - units(gateway, "returned") - units(gateway, "expired")
}

/// Number of calls of the script so far.
fn script_calls(redis: &mut Connection) -> usize {
    let stats: String = run_command(redis, &["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<usize>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

fn server() -> RedisServer {
    RedisServer::start(&[])
}
