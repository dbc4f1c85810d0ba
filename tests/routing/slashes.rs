//! `merge_slashes = false`: repeated slashes reach the server and the limits, and bypass no route.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

#[test]
fn a_route_keeps_repeated_slashes() {
    let upstream = Upstream::text("in");
    let url = upstream.url();
    let gateway = Gateway::with(
        "access_log = { to = \"access.log\" }",
        &format!(
            r#"
            [limit.page]
            rate = "1/h"
            key = "path"
            [limit.user]
            rate = "1/h"
            key = "param:id"
            [[route]]
            path = "/img/"
            upstream = "{url}"
            merge_slashes = false
            limits = ["page"]
            [[route]]
            path = "/strip/"
            upstream = "{url}"
            merge_slashes = false
            rewrite = {{ strip_prefix = "/strip", add_prefix = "/new" }}
            [[route]]
            path = "~ ^/unsafe/([0-9x]+)(/.*)$"
            upstream = "{url}"
            merge_slashes = false
            rewrite = {{ path = "/{{1}}/thumb{{2}}" }}
            [[route]]
            path = "/users/{{id}}/"
            upstream = "{url}"
            merge_slashes = false
            limits = ["user"]
            [[route]]
            path = "/other/"
            upstream = "{url}"
            "#
        ),
    );
    for (target, status, sent) in [
        ("/img/https://cdn.test/a.png", 200, "/img/https://cdn.test/a.png"),
        ("/img/https:/cdn.test/a.png", 200, "/img/https:/cdn.test/a.png"),
        ("/img/./https://cdn.test/%61.png", 429, ""),
        ("//img/x//../y//", 200, "//img/y//"),
        ("/strip//a//b", 200, "/new//a//b"),
        ("//strip/a", 200, "/new/a"),
        ("/unsafe/300x200//https://cdn.test/a", 200, "/300x200/thumb//https://cdn.test/a"),
        ("/users//7///x", 200, "/users//7///x"),
        ("/users/7/y", 429, ""),
        ("/other//a", 200, "/other/a"),
    ] {
        assert_eq!(gateway.get(target).status(), status, "{target}");
        if status == 200 {
            assert_eq!(upstream.request().target(), sent, "{target}");
        }
    }
    let log = std::fs::read_to_string(gateway.dir.path().join("access.log")).unwrap();
    assert!(log.contains("\"path\":\"/img/https://cdn.test/a.png\""), "{log}");
}

/// A server that merges slashes never gets a path of a protected route through a route that keeps them.
#[test]
fn no_spelling_bypasses_a_protected_route() {
    let upstream = Upstream::text("in");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/admin/\"\nstrictness = \"monitor\"\nrespond = {{ status = 403 }}\n\
         [[route]]\npath = \"/a/b/\"\nstrictness = \"monitor\"\nrespond = {{ status = 403 }}\n\
         [[route]]\npath = \"/\"\nupstream = \"{url}\"\nmerge_slashes = false\nstrictness = \"monitor\"\n"
    ));
    let pieces = ["/", "//", "admin", "a", "b", "/..", "//..//", "/.", "%2e%2e", "%2E/", "%61dmin", "x", "///"];
    let mut rng = StdRng::seed_from_u64(11);
    let mut served = [0, 0];
    for _ in 0..1500 {
        let target: String = (0..rng.random_range(1..9)).map(|_| *pieces.choose(&mut rng).unwrap()).collect();
        let target = format!("/{target}");
        match gateway.get(&target).status() {
            200 => {
                served[0] += 1;
                let sent = upstream.request().target().to_owned();
                let segments: Vec<&str> = sent.split('/').filter(|segment| !segment.is_empty()).collect();
                assert!(segments.first() != Some(&"admin") && !segments.starts_with(&["a", "b"]), "{target}: {sent}");
                assert!(segments.iter().all(|segment| !matches!(*segment, "." | "..")), "{target}: {sent}");
            }
            status => {
                served[1] += 1;
                assert_eq!(status, 403, "{target}");
            }
        }
    }
    assert!(served.iter().all(|count| *count > 50), "{served:?}");
}
