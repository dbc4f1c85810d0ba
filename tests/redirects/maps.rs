//! Redirect maps: files of paths and targets.

use std::fmt::Write;
use std::fs;

use crate::support::gateway::{Gateway, config, config_arguments, program};
use crate::support::{wait_until, write_atomically};

const MAP: &str = "# The old site.\n\
                   /old        /new\n\
                   /old/page   https://other.example/page?x=1  302   # moved away\n\
                   /a%20b/     /c#part\n\n\
                   /           /start\n";

fn start(map: &str, route: &str) -> Gateway {
    Gateway::launch(&[], |dir| {
        fs::write(dir.join("redirects.txt"), map).unwrap();
        config_arguments(dir, &config("access_log = true", route))
    })
}

#[test]
fn a_map_lists_exact_paths() {
    let gateway = start(MAP, "[[route]]\nredirect = { map = \"redirects.txt\", status = 301 }\n");
    for (target, status, location) in [
        ("/old", 301, "/new"),
        ("/old?a=b", 301, "/new?a=b"),
        ("/old/page?a=b", 302, "https://other.example/page?x=1"),
        ("/a%20b/?q", 301, "/c?q#part"),
        ("/", 301, "/start"),
        ("//old", 301, "/new"),
        ("/old/", 404, ""),
        ("/OLD", 404, ""),
        ("/other", 404, ""),
    ] {
        let response = gateway.get(target);
        assert_eq!((response.status(), response.get("location").unwrap_or_default()), (status, location), "{target}");
    }
    wait_until("the log says why", || gateway.stdout().contains("\"reason\":\"no_redirect\""));
}

#[test]
fn other_paths_have_the_common_target_if_there_is_one() {
    let route = "[[route]]\nredirect = { map = \"redirects.txt\", to = \"https://new.example{path}\" }\n";
    let gateway = start(MAP, route);
    assert_eq!(gateway.get("/old").get("location"), Some("/new"));
    assert_eq!(gateway.get("/other?q").get("location"), Some("https://new.example/other?q"));
}

#[test]
fn a_changed_map_applies_at_once_and_a_broken_one_does_not() {
    let gateway = start(MAP, "[[route]]\nredirect = { map = \"redirects.txt\" }\n");
    let file = gateway.dir.path().join("redirects.txt");
    write_atomically(&file, "/old /newest\n");
    wait_until("the map is read again", || gateway.get("/old").get("location") == Some("/newest"));
    write_atomically(&file, "/old /old\n");
    wait_until("the mistake is reported", || gateway.log().contains("form a loop"));
    assert_eq!(gateway.get("/old").get("location"), Some("/newest"));
}

#[test]
fn a_map_may_be_large_but_has_a_bound() {
    let mut map = String::new();
    for i in 0..100_000 {
        let _ = writeln!(map, "/page/{i} /article/{i}");
    }
    let gateway = start(&map, "[[route]]\nredirect = { map = \"redirects.txt\" }\n");
    assert_eq!(gateway.get("/page/99999").get("location"), Some("/article/99999"));
    assert_eq!(gateway.get("/page/100000").status(), 404);
    fs::write(gateway.dir.path().join("redirects.txt"), map + "/one /more\n").unwrap();
    let output = program().args(["check", "--config"]).arg(gateway.config()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("more than 100000 entries"));
}
