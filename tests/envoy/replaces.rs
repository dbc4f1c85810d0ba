//! Descriptors whose rule replaces limits of other descriptors of the request.

use http::{HeaderName, HeaderValue};
use sluicegate::config::load_text;

use super::{field, framed};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::limiting::{RedisServer, on_both_stores};

const RULES: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n\
    [[rls]]\ndomain = \"edge\"\ndescriptor = { user = \"*\" }\nlimits = [\"calls\", \"all\"]\n\
    [[rls]]\ndomain = \"edge\"\ndescriptor = { path = \"/d\", user = \"*\" }\nlimits = [\"downloads\"]\nreplaces = [\"calls\"]\n\
    [[rls]]\ndomain = \"edge\"\ndescriptor = { plan = \"gold\" }\nlimits = []\nreplaces = [\"calls\", \"all\"]\n\
    [limit.calls]\nrate = \"1/h\"\nkey = \"descriptor:user\"\n[limit.downloads]\nrate = \"2/h\"\nkey = \"descriptor:user\"\n\
    [limit.all]\nrate = \"5/h\"\nkey = \"descriptor:user\"\n";

/// Returns the code of the response to a request with these descriptors.
fn fetch(client: &mut H2Client, descriptors: &[&[(&str, &str)]]) -> u8 {
    let entry =
        |(key, value): &(&str, &str)| field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let descriptor = |entries: &&[(&str, &str)]| field(2, &entries.iter().map(entry).collect::<Vec<_>>().concat());
    let all: Vec<u8> = descriptors.iter().map(descriptor).collect::<Vec<_>>().concat();
    let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let message = [field(1, b"edge"), all].concat();
    let response = client.fetch(request, Sent { body: &framed(&message), trailers: None });
    assert_eq!(response.trailers["grpc-status"], "0");
    response.body[6]
}

#[test]
fn a_descriptor_replaces_limits_of_others_in_its_request() {
    on_both_stores(|redis| {
        let store = redis.map_or_else(String::new, RedisServer::store);
        let server = "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        let gateway = Gateway::with_config(&format!("{server}{RULES}{store}"));
        if redis.is_some() {
            gateway.wait_for_store();
        }
        let client = &mut H2Client::connect(gateway.addr);
        let user: &[(&str, &str)] = &[("user", "u")];
        let download: &[(&str, &str)] = &[("path", "/d"), ("user", "u")];
        let gold: &[(&str, &str)] = &[("plan", "gold")];
        // The order of the descriptors does not matter, and `all` is not replaced.
        assert_eq!([fetch(client, &[user, download]), fetch(client, &[download, user])], [1, 1]);
        assert_eq!(fetch(client, &[user, download]), 2, "the third download");
        assert_eq!([fetch(client, &[user]), fetch(client, &[user])], [1, 2], "calls have their own budget");
        assert_eq!([fetch(client, &[user, gold]), fetch(client, &[user, gold])], [1, 1]);
        assert_eq!(fetch(client, &[user]), 2);
    });
}

#[test]
fn only_limits_of_other_descriptors_can_be_replaced() {
    let mistake = |from: &str, to: &str| {
        let text = format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{}", RULES.replace(from, to));
        load_text("c", &text).unwrap_err().render(false)
    };
    let own = mistake("replaces = [\"calls\"]", "replaces = [\"downloads\"]");
    assert!(own.contains("`downloads` is a limit of this descriptor itself"), "{own}");
    let unknown = mistake("replaces = [\"calls\"]", "replaces = [\"cals\"]");
    assert!(unknown.contains("no [[rls]] of the domain `edge` has the limit `cals`"), "{unknown}");
}
