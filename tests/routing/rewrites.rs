//! `rewrite.path` and `rewrite.query`: what the server gets is made of what the route has matched, and no client can make
//! another path of it.

use percent_encoding::percent_decode_str;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::gateway::{Gateway, program};
use crate::support::upstream::Upstream;

/// Starts a gateway with these routes, each with the upstream `url`.
fn start(url: &str, routes: &[(&str, &str)]) -> Gateway {
    let route = |(conditions, rewrite): &(&str, &str)| {
        format!("[[route]]\n{conditions}\nupstream = \"{url}\"\nrewrite = {{ {rewrite} }}\n")
    };
    Gateway::start(&routes.iter().map(route).collect::<String>())
}

#[test]
fn captures_become_the_path_and_the_query() {
    let upstream = Upstream::text("in");
    let gateway = start(
        &upstream.url(),
        &[
            (
                "path = \"~ ^/(?<lang>[a-z]{2})/blog/(.*)$\"",
                "path = \"/v1/blog/{2}\", query = { set = { lang = \"{lang}\" } }",
            ),
            ("path = \"/users/{id}\"", "path = \"/people/{id}/profile\""),
            (
                "path = \"/orders/{id}/\"",
                "path = \"/order.php\", query = { set = { id = \"{id}\" }, remove = [\"debug\"] }",
            ),
            (
                "path = \"/q/\"",
                "strip_prefix = \"/q\", query = { set = { a = \"x y&z\" }, add = { tag = \"1\" }, remove = [\"b\"] }",
            ),
        ],
    );
    for (target, sent) in [
        ("/de/blog/2026/news?page=2", "/v1/blog/2026/news?page=2&lang=de"),
        ("/de/blog/", "/v1/blog/?lang=de"),
        ("/de//blog/./a/../b?lang=en&Lang=en", "/v1/blog/b?lang=de"),
        ("/de/blog/a%40b:c%3f", "/v1/blog/a%40b:c%3F?lang=de"),
        ("/users/7", "/people/7/profile"),
        ("/users/7/?x", "/people/7/profile?x"),
        ("/users/a%40b%3Fc", "/people/a%40b%3Fc/profile"),
        ("/orders/7/items?debug=1&x=2", "/order.php?x=2&id=7"),
        ("/orders/a&debug=1+%26", "/order.php?id=a%26debug%3D1%2B%26"),
        ("/orders/7?%69d=8&id[]=9;id=10", "/order.php?id=7"),
        ("/q/a?a=1&b=2&c=3&tag=0", "/a?c=3&tag=0&a=x%20y%26z&tag=1"),
    ] {
        assert_eq!(gateway.get(target).status(), 200, "{target}");
        assert_eq!(upstream.request().target(), sent, "{target}");
    }
}

#[test]
fn a_path_that_would_climb_or_split_a_character_is_refused_before_limits() {
    let upstream = Upstream::text("in");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[limit.one]\nrate = \"1/h\"\nkey = \"all\"\n\
         [[route]]\npath = \"~ ^/alias(.*)$\"\nupstream = \"{url}\"\nlimits = [\"one\"]\nrewrite = {{ path = \"/files/{{1}}\" }}\n\
         [[route]]\npath = \"~ ^/join/(.)(.*)$\"\nupstream = \"{url}\"\nencoded_slashes = \"keep\"\nrewrite = {{ path = \"/f/{{1}}/.{{2}}\" }}\n\
         [[route]]\npath = \"~ ^/kept/x(.*)$\"\nupstream = \"{url}\"\nencoded_slashes = \"keep\"\nrewrite = {{ path = \"/f/{{1}}\" }}\n"
    ));
    for (target, reason) in [
        ("/alias../secret", "path_rewritten"),
        ("/alias.", "path_rewritten"),
        ("/alias%2e%2E/secret", "path_rewritten"),
        ("/alias..;x/secret", "path_dot_parameter"),
        ("/join/a./secret", "path_rewritten"),
        ("/join/%20a", "path_rewritten"),
        ("/kept/x..%2F..%2Fsecret", "path_slash_dots"),
    ] {
        let refused = gateway.get(target);
        assert_eq!(refused.status(), 400, "{target}");
        assert_eq!(gateway.metric("http_rejected_total", &[("reason", reason)]).map(|count| count > 0.0), Some(true));
    }
    assert!(upstream.requests().is_empty());
    assert_eq!(
        [gateway.get("/alias/a").status(), gateway.get("/alias/a").status()],
        [200, 429],
        "no refusal was charged"
    );
    assert_eq!(upstream.request().target(), "/files/a");
}

/// Whatever a client sends, the path that arrives has the prefix of the template, is canonical, and decodes to the prefix with
/// the capture that the gateway has matched.
#[test]
fn no_request_leaves_the_prefix_of_the_template() {
    let upstream = Upstream::text("in");
    let gateway = start(
        &upstream.url(),
        &[
            ("path = \"~ ^/a/(.*)$\"\nencoded_slashes = \"keep\"\nstrictness = \"monitor\"", "path = \"/in/{1}\""),
            (
                "path = \"~ ^/b(.*)/(.*)$\"\nencoded_slashes = \"keep\"\nstrictness = \"defensive\"",
                "path = \"/in/{1}{2}/x{1}\"",
            ),
            ("path = \"/c/{id}/\"", "path = \"/in/{id}\""),
        ],
    );
    let pieces = [
        "/", "//", ".", "..", "/../", "%2e", "%2E%2e", "%2f", "%2F..%2F", "%5c", ";", "..;", "%3f", "%23", "%25",
        "%252e", "%40", "a", "b%20", "?", "%00", "%0d%0a", "/in/", "%c3%a9",
    ];
    let mut rng = StdRng::seed_from_u64(7);
    let mut served = 0;
    for _ in 0..1500 {
        let start = ["/a/", "/b", "/c/"].choose(&mut rng).unwrap();
        let rest: String = (0..rng.random_range(0..7)).map(|_| *pieces.choose(&mut rng).unwrap()).collect();
        let target = format!("{start}{rest}");
        if gateway.get(&target).status() != 200 {
            assert!(upstream.requests().is_empty(), "{target}");
            continue;
        }
        served += 1;
        let sent = upstream.request().target().to_owned();
        let path = sent.split('?').next().unwrap();
        assert!(path.starts_with("/in/"), "{target}: {sent}");
        assert!(!path.split('/').any(|segment| matches!(segment, "." | "..")), "{target}: {sent}");
        assert!(!path.contains("//") && !path.contains('#'), "{target}: {sent}");
        let decoded = percent_decode_str(path).collect::<Vec<u8>>();
        if path.contains("%2E") || path.contains("%2e") {
            panic!("{target}: {sent} has an encoded dot");
        }
        assert!(decoded.starts_with(b"/in/"), "{target}: {sent}");
    }
    assert!(served > 200, "{served}");
}

#[test]
fn explain_shows_the_path_that_is_sent() {
    let gateway = start("http://127.0.0.1:9", &[("path = \"/users/{id}\"", "path = \"/people/{id}\"")]);
    let explain = |url: &str| {
        let path = gateway.config();
        let arguments = ["explain", "--config", path.to_str().unwrap(), "GET", url];
        String::from_utf8(program().args(arguments).output().unwrap().stdout).unwrap()
    };
    assert!(explain("http://a/users/7?x=1").contains("forward /people/7?x=1 to upstream"));
}
