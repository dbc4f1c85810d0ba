//! On a Redis Cluster, a decision on several slots charges one slot after another, and refunds the earlier ones if a
//! later one refuses. Such a temporary charge causes no refusal that is remembered.

use sluicegate::limiting::store::redis::slot::key_slot;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::limiting::topology::{RedisCluster, run_command};
use crate::support::wait_until;

fn gateway(cluster: &RedisCluster, limits: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ndeadline = \"10s\"\n\n[[route]]\nname = \"app\"\npath = \"/\"\nrespond = {{ body = \"in\" }}\n\
         limits = [{limits}]\n\n[limit.one]\nrate = \"1/h\"\nburst = 1\nkey = [\"header:x-a\"]\n\n\
         [limit.two]\nrate = \"1/h\"\nburst = 1\nkey = [\"header:x-b\"]\n",
        cluster.url()
    ));
    gateway.wait_for_store();
    gateway
}

fn fields(a: &str, b: &str) -> String {
    get("/", &format!("x-a: {a}\r\nx-b: {b}\r\n"))
}

fn asks(gateway: &Gateway, a: &str, b: &str) -> u16 {
    gateway.fetch(&fields(a, b)).status()
}

/// A rolling deploy: the config of `older` lacks the second limit, which the others decide together with the first.
#[test]
fn a_refusal_due_to_a_temporary_charge_is_not_remembered() {
    let cluster = RedisCluster::start(0);
    let newer = gateway(&cluster, "\"one\", \"two\"");
    let older = gateway(&cluster, "\"one\"");
    let at = |part: &str| cluster.owner_index(key_slot(&format!("{{{part}}}")));
    let elsewhere = |b: &String| at(&format!("x-b={b}")) != at("x-a=a");
    let b = (0..).map(|number| format!("b{number}")).find(elsewhere).unwrap();
    assert_eq!([asks(&newer, "a0", &b), asks(&newer, "a0", "fresh")], [200, 429]);

    // The limit that refused last is charged first: `one`, then `two`, whose node is paused.
    let node = cluster.owner(key_slot(&format!("{{x-b={b}}}")));
    let () = run_command(&mut node.client(), &["CLIENT", "PAUSE", "60000", "WRITE"]);
    let mut reserving = newer.client();
    reserving.send(fields("a", &b));
    let left = || older.admin("/-/limits/one/state?key=a").json()["remaining"].clone();
    wait_until("`one` has the temporary charge", || left() == 0);
    assert_eq!(asks(&older, "a", ""), 429);
    let () = run_command(&mut node.client(), &["CLIENT", "UNPAUSE"]);
    assert_eq!(reserving.read_response("GET").status(), 429, "by `two`, which is exhausted");
    assert_eq!(asks(&older, "a", ""), 200, "the reservation was refunded");

    // No other refusal is remembered either, because it is unknown which limit caused it.
    assert_eq!([asks(&older, "a", ""), asks(&older, "a", ""), asks(&newer, "a0", "fresh")], [429; 3]);
    for gateway in [&older, &newer] {
        gateway.assert_metric("store_denial_cache_hits_total", &[], 0.0);
    }
}
