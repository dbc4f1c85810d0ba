//! Connections that their clients keep busy: one client leaves some for others.

use crate::support::client::{Client, get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const MOST: usize = 160;
/// The part of the connections that one client may have.
const OWN: usize = MOST / 8 * 7;

/// Opens so many connections of a client as there are, each with a body that never ends.
fn fill(gateway: &Gateway, source: [u8; 4]) -> Vec<Client> {
    let begin = |_| {
        let mut client = gateway.client_from(source);
        // The gateway closes what is too much.
        let _ = client.try_send(post("/", 1_000_000, "") + "x");
        client
    };
    (0..MOST).map(begin).collect()
}

fn open(gateway: &Gateway) -> f64 {
    gateway.metric("connections", &[("listener", "127.0.0.1:0"), ("protocol", "http/1.1")]).unwrap_or(0.0)
}

#[test]
fn a_client_with_busy_connections_shuts_out_nobody() {
    let upstream = Upstream::silent();
    let server = format!("max_connections = {MOST}\ntrusted_proxies = [\"127.0.0.77\"]");
    let gateway = Gateway::with(
        &server,
        &format!(
            "[[route]]\nupstream = \"{}\"\n[[route]]\npath = \"/fixed\"\nrespond = {{ body = \"in\" }}\n",
            upstream.url()
        ),
    );
    let busy = fill(&gateway, [127, 0, 0, 66]);
    wait_until("the client has its part", || open(&gateway) == OWN as f64);
    for last in 5..9 {
        assert_eq!(gateway.client_from([127, 0, 0, last]).fetch(&get("/fixed", ""), "").status(), 200);
    }
    assert!(gateway.metric("http_rejected_total", &[("reason", "max_connections")]).unwrap() >= (MOST - OWN) as f64);
    drop(busy);
    wait_until("its connections have ended", || open(&gateway) == 0.0);
    // A trusted proxy has the connections of many clients.
    let _proxy = fill(&gateway, [127, 0, 0, 77]);
    wait_until("the proxy has all connections", || open(&gateway) == MOST as f64);
}
