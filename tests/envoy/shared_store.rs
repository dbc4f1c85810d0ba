//! Descriptors on a Redis that another gateway with different settings uses, or that is full.

use http::{HeaderName, HeaderValue};

use super::{field, framed};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent, post};
use crate::support::limiting::server::RedisServer;

/// A client of a gateway whose domain `edge` has descriptors with one entry, by the name of their limit.
struct Service {
    client: H2Client,
    gateway: Gateway,
}

impl Service {
    fn start(redis: &RedisServer, limits: &[(&str, &str)]) -> Service {
        let rule = |(name, lines): &(&str, &str)| {
            format!(
                "[[rls]]\ndomain = \"edge\"\ndescriptor = {{ {name} = \"*\" }}\nlimits = [\"{name}\"]\n\
                 [limit.{name}]\nkey = \"descriptor:{name}\"\n{lines}\n"
            )
        };
        let gateway = Gateway::with_config(&format!(
            "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n{}\
             [store]\nurl = \"{}\"\ndeadline = \"5s\"\n",
            limits.iter().map(rule).collect::<String>(),
            redis.url()
        ));
        gateway.wait_for_store();
        Service { client: H2Client::connect(gateway.addr), gateway }
    }

    /// Returns the code of the response: 1 is OK, 2 is OVER_LIMIT.
    fn fetch(&mut self, limit: &str, value: &str, hits: i8) -> u8 {
        let entry = [field(1, limit.as_bytes()), field(2, value.as_bytes())].concat();
        let count = [0x08, hits.unsigned_abs()];
        let negative = if hits < 0 { vec![0x20, 1] } else { Vec::new() };
        let descriptor = [field(1, &entry), field(3, &count), negative].concat();
        let message = [field(1, b"edge"), field(2, &descriptor)].concat();
        let mut request = post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let response = self.client.fetch(request, Sent { body: &framed(&message), trailers: None });
        assert_eq!(response.trailers["grpc-status"], "0");
        response.body[6]
    }

    fn admitted(&mut self, limit: &str, value: &str, calls: usize) -> usize {
        (0..calls).filter(|_| self.fetch(limit, value, 1) == 1).count()
    }
}

/// During a rolling deploy, both together admit what the more generous one would, and refunds of either count once.
#[test]
fn gateways_with_other_numbers_share_the_budget_of_a_descriptor() {
    let redis = RedisServer::start(&[]);
    let of = |count: u32| {
        [
            ("window", format!("algorithm = \"fixed_window\"\nrate = \"{count}/h\"")),
            ("log", format!("algorithm = \"sliding_log\"\nrate = \"{count}/h\"")),
            ("bucket", format!("rate = \"{count}/h\"")),
        ]
    };
    let [few, many] = [of(3), of(5)].map(|limits| {
        let limits: Vec<(&str, &str)> = limits.iter().map(|(name, lines)| (*name, lines.as_str())).collect();
        Service::start(&redis, &limits)
    });
    let (mut few, mut many) = (few, many);
    for limit in ["window", "log", "bucket"] {
        assert_eq!(few.admitted(limit, "a", 9), 3, "{limit}");
        assert_eq!(many.admitted(limit, "a", 9), 2, "{limit}");
        assert_eq!(few.admitted(limit, "a", 9), 0, "{limit}");
        assert_eq!(few.fetch(limit, "a", -4), 1, "{limit}");
        let after = [few.admitted(limit, "a", 9), many.admitted(limit, "a", 9)];
        assert!(after.iter().sum::<usize>() <= 4, "{limit}: {after:?}");
        assert_eq!([few.fetch(limit, "a", -100), many.fetch(limit, "a", -100)], [1, 1], "{limit}");
        assert_eq!(many.admitted(limit, "a", 9), 5, "{limit}: a refund leaves no debt and no credit");
    }
}

#[test]
fn a_full_redis_decides_by_on_error_and_keeps_what_it_has() {
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let limits = ["open", "closed", "local"]
        .map(|mode| (mode, format!("algorithm = \"sliding_log\"\nrate = \"2/h\"\non_error = \"{mode}\"")));
    let limits: Vec<(&str, &str)> = limits.iter().map(|(name, lines)| (*name, lines.as_str())).collect();
    let mut service = Service::start(&redis, &limits);
    assert_eq!(service.fetch("closed", "old", 1), 1);
    let set_memory = |bytes: i32| {
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(&mut redis.client()).unwrap();
    };
    set_memory(1);
    // Known keys are charged, refused and refunded as before; new ones depend on `on_error`.
    assert_eq!(service.admitted("closed", "old", 3), 1);
    assert_eq!((service.fetch("closed", "old", -1), service.admitted("closed", "old", 3)), (1, 1));
    let new = ["open", "closed", "local"].map(|limit| service.admitted(limit, "new", 4));
    assert_eq!(new, [4, 0, 2]);
    assert_eq!(service.fetch("closed", "new", -1), 1, "nothing is charged, so nothing is refunded");
    assert!(service.gateway.metric("store_errors_total", &[("kind", "oom")]) > Some(0.0));
    set_memory(0);
    assert_eq!(service.admitted("closed", "new", 4), 2);
}
