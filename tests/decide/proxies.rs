//! The recipes of the manual with the real proxies: each is read from the page and runs unchanged, on free ports.

use std::time::{Duration, Instant};

use super::site::{CLIENT, Recipe, Site};
use crate::support::client::{Client, get};
use crate::support::wait_until;

#[test]
fn nginx_turns_403_into_429_and_its_internal_redirects_are_charged_once() {
    let site = Site::start(&Recipe::nginx(), |config| config);
    site.spend(true);
    site.assert_closed_without_gateway(500);
    // `try_files` leads to another location, which asks about the same request again.
    let more = "    location /tried {\n        auth_request /_limit;\n        try_files /none /moved;\n    }\n\n    location / {";
    let site = Site::start(&Recipe::nginx().with("    location / {", more), |config| config);
    let response = site.fetch("GET", "/tried", "", "");
    assert_eq!((response.status(), response.text().as_str()), (200, "the app"), "{}", response.head);
    assert!(response.get("ratelimit").is_some_and(|state| state.contains("r=4;")), "{}", response.head);
    site.gateway.assert_metric("decide_requests_total", &[("result", "admitted")], 2.0);
    site.gateway.assert_metric("decide_requests_total", &[("result", "replayed")], 1.0);
}

/// A site has its own headers and error pages, also on refusals, and refusals with statuses of its own.
#[test]
fn nginx_keeps_the_headers_and_error_pages_of_the_site() {
    let own = "    listen 127.0.0.1:8000;\n    proxy_intercept_errors on;\n    error_page 404 /404.html;\n    \
               location = /404.html {\n        internal;\n        return 200 \"own page\";\n    }\n    \
               add_header Strict-Transport-Security max-age=1 always;\n    add_header X-Frame-Options DENY always;\n";
    let paid = "    location @limited {\n        if ($limit_status = 402) {\n            return 402;\n        }\n";
    let recipe = Recipe::nginx().with("    listen 127.0.0.1:8000;\n", own).with("    location @limited {\n", paid);
    let site = Site::start(&recipe, |config| {
        config.replacen("key = \"ip\"", "key = \"ip\"\nrefuse = { status = 402 }", 1).replace("burst = 5", "burst = 2")
    });
    for (status, text) in [(404, "own page"), (404, "own page"), (402, "")] {
        let response = site.fetch("GET", "/none", "", "");
        assert_eq!(response.status(), status, "{}", response.head);
        assert!(response.text().contains(text));
        let kept = ["strict-transport-security", "x-frame-options", "ratelimit", "ratelimit-policy"];
        kept.iter().for_each(|name| assert!(response.get(name).is_some(), "{status} {name}: {}", response.head));
        assert_eq!(response.get("retry-after").is_some(), status == 402);
    }
}

#[test]
fn caddy_asks_and_passes_refusals_on() {
    let site = Site::start(&Recipe::caddy(), |config| config);
    site.spend(false);
    site.assert_closed_without_gateway(502);
}

#[test]
fn haproxy_asks_by_its_script() {
    let site = Site::start(&Recipe::patient_haproxy(), |config| config);
    site.spend(true);
    site.assert_closed_without_gateway(503);
}

/// Stops the gateway for `stall`, or until HAProxy gives up, while a client waits. The question is charged once. Returns
/// the status that the client gets.
fn stall(site: &Site, stall: Option<Duration>) -> u16 {
    let left = || site.gateway.admin("/-/limits/per-ip/state?key=127.0.0.5").json()["remaining"].as_i64();
    // A check that failed meanwhile makes HAProxy refuse for a second, without a question.
    wait_until("HAProxy asks", || site.fetch("GET", "/", "", "").status() == 200);
    let before = left().unwrap();
    site.gateway.signal("STOP");
    let addr = site.addr;
    let request = std::thread::spawn(move || {
        let begun = Instant::now();
        (Client::from(CLIENT, addr).fetch(&get("/", ""), "").status(), begun.elapsed())
    });
    match stall {
        Some(time) => std::thread::sleep(time),
        None => wait_until("HAProxy gives up", || request.is_finished()),
    }
    site.gateway.signal("CONT");
    let (status, waited) = request.join().unwrap();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    wait_until("the gateway has decided the question", || left() != Some(before));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(left(), Some(before - 1), "after {stall:?}");
    status
}

/// HAProxy repeats a question that is not answered in time, and waits for a second at most.
#[test]
fn haproxy_charges_a_request_once_and_passes_any_refusal_on() {
    let site = Site::start(&Recipe::haproxy(), |config| {
        config.replace("rate = \"30/min\"", "rate = \"1/h\"").replace("burst = 5", "burst = 50").replacen(
            "key = \"ip\"",
            "key = \"ip\"\nrefuse = { status = 402, body = \"pay\" }",
            1,
        )
    });
    // On a busy machine, HAProxy may give up before the gateway has responded.
    wait_until("the gateway responds in time", || stall(&site, Some(Duration::from_millis(600))) == 200);
    assert_eq!(stall(&site, None), 503);
    let mut refused = site.fetch("GET", "/", "", "");
    wait_until("the budget is spent", || {
        refused = site.fetch("GET", "/", "", "");
        ![200, 503].contains(&refused.status())
    });
    assert_eq!((refused.status(), refused.text().as_str()), (402, "pay"), "{}", refused.head);
    let headers = ["retry-after", "ratelimit", "ratelimit-policy", "content-type"];
    headers.iter().for_each(|name| assert!(refused.get(name).is_some(), "{name}: {}", refused.head));
}

#[test]
fn envoy_asks_with_the_path_of_the_request() {
    let site = Site::start(&Recipe::envoy(), |config| config);
    site.spend(true);
    site.assert_closed_without_gateway(503);
}

/// Envoy joins the lines of a repeated header, and the application gets them all.
#[test]
fn a_client_of_envoy_has_one_budget_however_it_repeats_its_key() {
    let site = Site::start(&Recipe::envoy(), |config| {
        config.replace("rate = \"30/min\"", "rate = \"1/h\"").replacen("key = \"ip\"", "key = \"header:x-api-key\"", 1)
    });
    // On a busy machine, its first question may take longer than it waits.
    wait_until("Envoy asks", || site.fetch("GET", "/", "x-api-key: first\r\n", "").status() == 200);
    let statuses = [(); 6].map(|()| site.fetch("GET", "/", "x-api-key: gold\r\n", "").status());
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    for more in ["x-api-key: junk1\r\n", "x-api-key: junk2\r\nx-api-key: \"\r\n", "X-Api-Key: gold\r\n"] {
        for fields in [format!("x-api-key: gold\r\n{more}"), format!("{more}x-api-key: gold\r\n")] {
            assert_eq!(site.fetch("GET", "/", &fields, "").status(), 400, "{fields}");
        }
    }
    assert_eq!(site.app.requests().len(), 6);
}

/// What the manual says to set behind another proxy: clients are told apart by what it forwards, and cannot choose.
#[test]
fn behind_another_proxy_clients_have_budgets_of_their_own() {
    let nginx = Recipe::nginx().with(
        "server {\n    listen",
        "set_real_ip_from 127.0.0.5;\nreal_ip_header X-Forwarded-For;\n\nserver {\n    listen",
    );
    let haproxy = Recipe::patient_haproxy().with(
        "    http-request lua.ask_limits",
        "    http-request set-src hdr_ip(x-forwarded-for,-1) if { src 127.0.0.5 }\n    http-request lua.ask_limits",
    );
    let caddy = Recipe::caddy().with("\t\turi /decide/web\n", "\t\turi /decide/web\n\t\ttrusted_proxies 127.0.0.5\n");
    for recipe in [nginx, haproxy, caddy, Recipe::envoy(), Recipe::traefik_behind_another()] {
        let site = Site::start(&recipe, |config| {
            config
                .replace("rate = \"30/min\"", "rate = \"1/h\"")
                .replace("burst = 5", "burst = 2")
                .replace("trusted_proxies = [\"127.0.0.1\"]", "trusted_proxies = [\"127.0.0.1\", \"127.0.0.5\"]")
        });
        // The client may have sent a part of the chain itself.
        for client in ["198.51.100.1", "203.0.113.9, 198.51.100.2", "198.51.100.3"] {
            let fields = format!("x-forwarded-for: {client}\r\n");
            let statuses = [(); 3].map(|()| site.fetch("GET", "/", &fields, "").status());
            assert_eq!(statuses, [200, 200, 429], "{} {client}", recipe.name());
        }
        // Others are not believed.
        let direct = |n: usize| {
            let head = format!(
                "GET / HTTP/1.1\r\nhost: www.example.com\r\nconnection: close\r\nx-forwarded-for: 192.0.2.{n}\r\n\r\n"
            );
            site.send_raw(std::net::Ipv4Addr::new(127, 0, 0, 9), head.as_bytes())
        };
        assert_eq!([1, 2, 3].map(direct), [200, 200, 429], "{}", recipe.name());
    }
}

/// Refusals must not be cached, and a large body of `refuse` does not break the proxy.
#[test]
fn refusals_are_not_cached_and_may_be_large() {
    for recipe in [Recipe::nginx(), Recipe::caddy(), Recipe::patient_haproxy(), Recipe::envoy(), Recipe::traefik()] {
        for length in [20, 15_000, 60_000] {
            let site = Site::start(&recipe, |config| {
                let refuse = format!(
                    "key = \"ip\"\nrefuse = {{ content_type = \"text/plain\", body = \"{}\" }}",
                    "B".repeat(length)
                );
                config.replace("rate = \"30/min\"", "rate = \"1/h\"").replace("burst = 5", "burst = 1").replacen(
                    "key = \"ip\"",
                    &refuse,
                    1,
                )
            });
            let admitted = site.fetch("GET", "/", "", "");
            assert_eq!((admitted.status(), admitted.get("cache-control")), (200, None), "{}", recipe.name());
            let refused = site.fetch("GET", "/", "", "");
            let stated = (refused.status(), refused.get("cache-control"), refused.get("retry-after").is_some());
            assert_eq!(stated, (429, Some("no-store"), true), "{} {length}", recipe.name());
        }
    }
}

#[test]
fn traefik_asks_and_passes_refusals_on() {
    let site = Site::start(&Recipe::traefik(), |config| config);
    site.spend(false);
    site.assert_closed_without_gateway(500);
}

/// The opening request of a WebSocket is decided, and the connection is then the application's.
#[test]
fn websockets_pass_with_the_lines_that_the_page_names() {
    let upgrade = "        proxy_http_version 1.1;\n        proxy_set_header Upgrade $http_upgrade;\n        \
                   proxy_set_header Connection upgrade;\n        proxy_pass http://127.0.0.1:3000;\n";
    let nginx = Recipe::nginx().with("        proxy_pass http://127.0.0.1:3000;\n", upgrade);
    let envoy = "          upgrade_configs: [{ upgrade_type: websocket }]\n          http_filters:\n";
    let envoy = Recipe::envoy().with("          http_filters:\n", envoy);
    for recipe in [nginx, envoy, Recipe::caddy(), Recipe::patient_haproxy(), Recipe::traefik()] {
        let site = Site::start(&recipe, |config| config.replace("rate = \"30/min\"", "rate = \"1/h\""));
        let open = b"GET / HTTP/1.1\r\nhost: www.example.com\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let statuses = [(); 6].map(|()| site.send_raw(CLIENT, open));
        assert_eq!(statuses, [101, 101, 101, 101, 101, 429], "{}", recipe.name());
    }
}

/// A client over HTTP/1.0 may send no host, as health checks do.
#[test]
fn requests_without_a_host_are_decided() {
    for recipe in [Recipe::nginx(), Recipe::caddy(), Recipe::patient_haproxy(), Recipe::traefik()] {
        let site = Site::start(&recipe, |config| config.replace("rate = \"30/min\"", "rate = \"1/h\""));
        let statuses = [(); 6].map(|()| site.send_raw(CLIENT, b"GET / HTTP/1.0\r\n\r\n"));
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429], "{}", recipe.name());
    }
}
