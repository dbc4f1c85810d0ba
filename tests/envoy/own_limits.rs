//! Limits that Envoy states within descriptors.

use http::{HeaderName, HeaderValue};

use super::{field, framed};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};

const RULES: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n\
    [[rls]]\ndomain = \"edge\"\ndescriptor = { user = \"*\" }\nlimits = [\"calls\"]\n\
    [limit.calls]\nalgorithm = \"fixed_window\"\nkey = \"descriptor:user\"\n\
    rate = \"descriptor:#limit\"\nrate_within = [\"1/min\", \"4/min\"]\n";

/// Returns how many of six requests are admitted. `own`: the number and the unit of the limit in the descriptor.
fn admitted(client: &mut H2Client, user: &str, own: Option<(u8, u8)>) -> usize {
    let entry = field(1, &[field(1, b"user"), field(2, user.as_bytes())].concat());
    let own = own.map_or_else(Vec::new, |(count, unit)| field(2, &[8, count, 16, unit]));
    let message = [field(1, b"edge"), field(2, &[entry, own].concat())].concat();
    let mut codes = Vec::new();
    for _ in 0..6 {
        let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let response = client.fetch(request, Sent { body: &framed(&message), trailers: None });
        assert_eq!(response.trailers["grpc-status"], "0");
        codes.push(response.body[6]);
    }
    codes.iter().filter(|code| **code == 1).count()
}

#[test]
fn a_limit_of_a_descriptor_counts_within_bounds() {
    let server = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::with_config(&format!("{server}{RULES}"));
    let client = &mut H2Client::connect(gateway.addr);
    // 2 is the minute, 1 the second, and 0 unknown.
    for (user, own, count) in [
        ("none", None, 1),
        ("three", Some((3, 2)), 3),
        ("most", Some((4, 2)), 4),
        ("above", Some((5, 2)), 1),
        ("zero", Some((0, 2)), 0),
        ("seconds", Some((3, 1)), 1),
        ("unknown", Some((3, 0)), 1),
        ("invalid", Some((3, 99)), 1),
    ] {
        assert_eq!(admitted(client, user, own), count, "{user}");
    }
}
