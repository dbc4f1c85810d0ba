//! Attacks on the memory and on the limits of others.

use super::*;

/// Two gateways with different settings admit no more than the more generous of them, and the leases of the other.
#[test]
fn gateways_with_other_settings_share_the_usage() {
    let server = server();
    let lines = format!("algorithm = \"fixed_window\"\nrate = \"1200/min\"\n{LEASE}");
    let mut both = gateways(1, &config(&server.url(), &lines));
    both.extend(gateways(1, &config(&server.url(), "algorithm = \"fixed_window\"\nrate = \"400/min\"")));
    let admitted = send(&both, 120).len();
    let all = admitted + drain(&both[0]);
    assert_eq!(all, 1200, "{admitted} at high load");
    assert_eq!(drain(&both[1]), 0);
}

/// A client with a new key for each few requests makes no key hot, and so causes no leases.
#[test]
fn many_keys_are_not_hot() {
    let server = server();
    let limit = format!("algorithm = \"fixed_window\"\nrate = \"60000/min\"\n{LEASE}");
    let gateway = &gateways(1, &config(&server.url(), &limit).replace("key = \"all\"", "key = \"header:x-who\""))[0];
    let mut client = gateway.client();
    for who in 0..400 {
        for _ in 0..2 {
            assert_eq!(client.fetch(&get("/", &format!("x-who: {who}\r\n")), "").status(), 200);
        }
    }
    assert_eq!((units(gateway, "granted"), gateway.metric("store_hot_keys", &[])), (0.0, Some(0.0)));
}
