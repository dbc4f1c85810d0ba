//! Resets, reloads, crashes and outages while units are leased never add to the limit.

use super::*;

const WINDOW: &str = "algorithm = \"fixed_window\"\nrate = \"1200/min\"";

/// Sends requests until the gateway has units to spend.
#[track_caller]
fn make_hot(gateways: &[Gateway]) -> usize {
    let mut admitted = 0;
    crate::support::wait_until("units are leased", || {
        admitted += send(gateways, 20).len();
        unspent(&gateways[0]) > 0.0
    });
    admitted
}

#[test]
fn a_reset_ends_the_leases_of_its_key() {
    let server = server();
    let gateways = gateways(1, &config(&server.url(), &format!("{WINDOW}\n{LEASE}")));
    make_hot(&gateways);
    assert_eq!(gateways[0].admin_request("DELETE", "/-/limits/all/state", "", "").status(), 200);
    assert_eq!(unspent(&gateways[0]), 0.0);
    let admitted = send(&gateways, 120).len() + drain(&gateways[0]);
    assert_eq!(admitted, 1200, "a whole window after the reset");
}

#[test]
fn a_changed_rule_ends_the_leases() {
    let server = server();
    let gateways = gateways(1, &config(&server.url(), &format!("{WINDOW}\n{LEASE}")));
    let before = make_hot(&gateways);
    gateways[0].reload_with("1200/min", "240/min");
    let after = send(&gateways, 120).len() + drain(&gateways[0]);
    assert_eq!(before + after, 240.max(before), "{before} before, {after} after");
    // Without the option, nothing is leased.
    let granted = units(&gateways[0], "granted");
    gateways[0].reload_with(LEASE, "");
    gateways[0].reload_with("240/min", "24000/min");
    send(&gateways, 200);
    assert!(granted > 0.0 && gateways[0].metric("lease_units_total", &[("outcome", "granted")]).is_none());
}

#[test]
fn idle_keys_return_their_units_and_are_forgotten() {
    let server = server();
    let gateways = gateways(1, &config(&server.url(), &format!("{WINDOW}\n{LEASE}")));
    let admitted = make_hot(&gateways);
    let state = gateways[0].admin("/-/limits/all/state").json();
    assert!(state["leased"].as_u64() > Some(0), "{state}");
    crate::support::wait_until("unspent units are in the store again", || {
        gateways[0].admin("/-/limits/all/state").json()["remaining"] == 1200 - admitted
    });
    crate::support::wait_until("the key is forgotten", || gateways[0].metric("store_hot_keys", &[]) == Some(0.0));
    assert_eq!(gateways[0].admin("/-/limits/all/state").json()["leased"], serde_json::Value::Null);
}

/// A crashed gateway loses its leased units: at most one lease.
#[test]
fn a_crash_loses_at_most_one_lease() {
    let server = server();
    let mut gateways = gateways(2, &config(&server.url(), &format!("{WINDOW}\n{LEASE}")));
    let admitted = make_hot(&gateways);
    let mut dead = gateways.pop().unwrap();
    dead.signal("KILL");
    dead.exit();
    let all = admitted + send(&gateways, 200).len() + drain(&gateways[0]);
    // 1200 per minute are 20 within the horizon of one second.
    assert!((1200 - 20..=1200).contains(&all), "{all} of 1200");
}

/// Units of a lease are spent while Redis does not respond, until the lease ends. They were debited before.
#[test]
fn an_outage_leaves_the_units_of_leases() {
    let server = server();
    let gateways = gateways(1, &config(&server.url(), &format!("{WINDOW}\n{LEASE}")).replace("\"5s\"", "\"40ms\""));
    let mut attempts = 0;
    crate::support::wait_until("a unit is spent during an outage", || {
        attempts += 1;
        make_hot(&gateways);
        server.signal("STOP");
        let most = unspent(&gateways[0]);
        let statuses: Vec<u16> = (0..3).map(|_| gateways[0].get("/").status()).collect();
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        assert!(admitted as f64 <= most, "{admitted} of {most}");
        server.signal("CONT");
        gateways[0].wait_for_store();
        crate::support::wait_until("Redis decides again", || gateways[0].get("/").status() == 200);
        admitted > 0 || attempts > 20
    });
    assert!(attempts <= 20, "no unit was spent");
}
