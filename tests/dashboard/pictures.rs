//! Takes the pictures of the manual: `make screenshots`. The gateway has traffic for a minute, so that they show what
//! operators see.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::app::run;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config};
use crate::support::limiting::RedisServer;
use crate::support::upstream::Upstream;

const LIMITS: &str = r#"
[limit.per-customer]
rate = "5/s"
burst = 10
key = "header:x-api-key"
missing = "skip"

[limit.per-ip]
rate = "120/min"
burst = 40
key = "ip"
ban = { after = 200, within = "10min", for = "1h" }

[limit.search]
rate = "2/s"
burst = 4
key = "ip"
mode = "shadow"

[upstream.shop]
servers = ["SHOP", "http://127.0.0.1:9"]
health = { path = "/", every = "1s" }

[[route]]
name = "api"
path = "/v1/"
upstream = "shop"
limits = ["per-customer"]

[[route]]
name = "search"
path = "/search"
upstream = "shop"
limits = ["per-ip", "search"]

[[route]]
name = "shop"
path = "/"
upstream = "shop"
limits = ["per-ip"]
"#;

const KEYS: &str = "[admin]\nkeys = { ip = \"plain\", \"header:x-api-key\" = \"plain\" }\nenvironment = \"production\"\n\
                    environment_color = \"red\"\n";

/// Sends the requests of `seconds`, more of them in the second half.
fn send_traffic(gateway: &Gateway, seconds: u64) {
    let (start, whole) = (Instant::now(), Duration::from_secs(seconds));
    for turn in 0_u32.. {
        if start.elapsed() > whole {
            return;
        }
        let is_busy = start.elapsed() > whole / 2;
        let customer = ["acme", "globex", "initech", "umbrella"][if is_busy { 0 } else { turn as usize % 4 }];
        let (path, fields) = match turn % 5 {
            0 => ("/search?q=boots", format!("x-forwarded-for: 203.0.113.{}\r\n", turn % 7)),
            1 => ("/products/17", format!("x-forwarded-for: 198.51.100.{}\r\n", turn % 40)),
            _ => ("/v1/orders", format!("x-api-key: {customer}\r\nx-forwarded-for: 192.0.2.{}\r\n", turn % 90)),
        };
        gateway.fetch(&get(path, &fields));
        std::thread::sleep(Duration::from_millis(if is_busy { 15 } else { 60 }));
    }
}

#[test]
#[ignore = "takes more than a minute: make screenshots"]
fn pictures_show_a_gateway_with_traffic() {
    let shop = Upstream::text("ok");
    let text = config("trusted_proxies = [\"127.0.0.0/8\"]", &LIMITS.replace("SHOP", &shop.url()));
    let redis = RedisServer::start(&[]);
    let state = tempfile::tempdir().unwrap();
    let tls = format!(
        "[[listener]]\naddress = \"127.0.0.2:0\"\ntls = {{ internal = {{ hosts = [\"shop.test\"], state = \"{}\" }} }}\n",
        state.path().join("ca").display()
    );
    let text = format!("{}\n[store]\nurl = \"{}\"\n{tls}", text.replace("[admin]\n", KEYS), redis.url());
    // The second one shares the budgets and has a part of the traffic.
    let (gateway, other) = (Gateway::with_config(&text), Gateway::with_config(&text));
    std::thread::scope(|scope| {
        scope.spawn(|| send_traffic(&other, 40));
        send_traffic(&gateway, 40);
    });
    let changed = std::fs::read_to_string(gateway.config()).unwrap().replace("120/min", "90/min");
    std::fs::write(gateway.config(), changed).unwrap();
    for (limit, key, body) in [
        ("per-ip", "203.0.113.66", r#"{"block": true, "for": "1d", "note": "scraper, ticket 4711"}"#),
        ("per-customer", "initech", r#"{"rate": "300/min", "for": "7d", "note": "launch"}"#),
        ("per-customer", "globex", r#"{"rate": "20/s", "burst": 40}"#),
    ] {
        let path = format!("/-/limits/{limit}/override?key={key}");
        let answer = gateway.admin_request("PUT", &path, "content-type: application/json\r\n", body);
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [script, pictures] = ["tests/dashboard/pictures.js", "docs/images"].map(|path| root.join(path));
    std::fs::create_dir_all(&pictures).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_traffic(&gateway, 35));
        scope.spawn(|| send_traffic(&other, 35));
        std::thread::sleep(Duration::from_secs(15));
        let address = format!("http://{}/", gateway.admin);
        run("node", "nodejs", &[script.to_str().unwrap(), &address, pictures.to_str().unwrap()]);
    });
    assert!(std::fs::read_dir(&pictures).unwrap().count() >= 14);
}
