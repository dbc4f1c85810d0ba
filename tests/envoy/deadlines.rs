//! A store that does not respond in time: `on_error` decides before Envoy gives up.

use std::time::Instant;

use http::{HeaderName, HeaderValue};

use super::{framed, question};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::limiting::server::RedisServer;

#[test]
fn each_limit_decides_by_its_on_error_before_the_deadline_of_the_call() {
    let redis = RedisServer::start(&[]);
    let rule = |name: &str| {
        format!(
            "[[rls]]\ndomain = \"edge\"\ndescriptor = {{ a = \"{name}\" }}\nlimits = [\"{name}\"]\n\
             [limit.{name}]\nrate = \"2/h\"\nkey = \"descriptor:a\"\non_error = \"{name}\"\n"
        )
    };
    let gateway = Gateway::with_config(&format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n{}{}{}\
         [store]\nurl = \"{}\"\ndeadline = \"10s\"\n",
        rule("open"),
        rule("closed"),
        rule("local"),
        redis.url()
    ));
    gateway.wait_for_store();
    let mut client = H2Client::connect(gateway.addr);
    let mut fetch = |name: &str| {
        let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "300m")] {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let begun = Instant::now();
        let response = client.fetch(request, Sent { body: &framed(&question("edge", "a", name)), trailers: None });
        assert_eq!(response.trailers["grpc-status"], "0");
        (response.body[6], begun.elapsed().as_millis())
    };
    assert_eq!(fetch("closed").0, 1);
    redis.signal("STOP");
    let responses: Vec<(u8, u128)> = ["open", "closed", "local", "local", "local"].map(&mut fetch).to_vec();
    redis.signal("CONT");
    let codes: Vec<u8> = responses.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [1, 2, 1, 1, 2], "{responses:?}");
    // The deadline of the store is 10 s. The machine may be busy.
    assert!(responses.iter().all(|(_, ms)| *ms < 5000), "{responses:?}");
    assert!(responses[0].1 >= 240, "the store had no time to respond: {responses:?}");
    let errors = gateway.metric("store_errors_total", &[("kind", "client_deadline")]);
    assert_eq!(errors, Some(5.0));
}
