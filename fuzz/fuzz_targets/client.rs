//! Whatever forwarding fields say: the client is the peer, or an address that a field names, and a peer that
//! is not trusted says nothing.
#![no_main]

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use sluicegate::fuzzing::identify;

fuzz_target!(|input: (bool, Vec<&[u8]>)| {
    let (forwarded, lines) = input;
    let name = if forwarded { "forwarded" } else { "x-forwarded-for" };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        headers.append(name, value);
    }
    let text = "[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"fd00::/8\"]\n[[route]]\nupstream = \"echo:\"\n";
    let Ok(config) = sluicegate::config::from_text("fuzz.toml", text) else { panic!("the config of the target") };
    let trusted = &config.server.trusted_proxies;
    let (friend, stranger) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
    assert_eq!(identify(stranger, &headers, trusted).ip, stranger);
    let found = identify(friend, &headers, trusted).ip;
    assert_eq!(found, found.to_canonical());
    let said: Vec<String> =
        headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase()).collect();
    // An IPv4 address may be written as an IPv6 one, and those in several ways.
    let is_said = said.iter().any(|line| line.contains(&found.to_string()) || line.contains(':'));
    assert!(found == friend || is_said, "{found} is none of {said:?}");
});
