//! Limits that settle by the usage of a language model read the path that the server gets, whatever path the client sent:
//! a route that rewrites its path charges as one that serves the path itself.

use super::usage_ends::{config, left};
use crate::support::client::post;
use crate::support::gateway::Gateway;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const JSON: &str = "application/json";
const LIMIT: &str = "cost = { reserve = { add = [\"json:/max_tokens\", \"json:/max_output_tokens\"], default_add = 500, \
                     at_most = 3000 } }\nsettle = \"openai\"\nask_usage = true";

/// Starts a gateway whose route has these options.
fn start(upstream: &Upstream, options: &str) -> Gateway {
    let text = config(&upstream.url(), "", LIMIT).replace("10000/", "900000/");
    Gateway::start(&text.replace("name = \"llm\"\n", &format!("name = \"llm\"\n{options}\n")))
}

/// Returns the status, the tokens that are charged, and whether the server is asked for its usage.
fn observe(upstream: &Upstream, gateway: &Gateway, target: &str, (kind, body): (&str, &str)) -> (u16, i64, bool) {
    let unproven = || gateway.metric("usage_settlements_total", &[("result", "unproven")]).unwrap_or(0.0);
    let (before, settled) = (left(gateway), unproven());
    let head = post(target, body.len() as u64, &format!("content-type: {kind}\r\n"));
    let status = gateway.client().fetch(&head, body).status();
    if status != 200 {
        return (status, before - left(gateway), false);
    }
    // The response reports nothing, so the reservation stays.
    wait_until("the request is settled", || unproven() > settled);
    (status, before - left(gateway), upstream.request().text().contains("include_usage"))
}

#[test]
fn a_rewritten_path_is_charged_as_the_path_that_the_server_gets() {
    let upstream = Upstream::start(|peer| {
        while peer.request()?.is_some() {
            peer.send(ok(""))?;
        }
        Ok(())
    });
    let bodies = [
        (JSON, "{\"messages\":[],\"max_tokens\":7}"),
        (JSON, "{\"messages\":[],\"max_output_tokens\":7}"),
        (JSON, "{\"messages\":[],\"stream\":true}"),
        (JSON, "{\"messages\":[],\"deferred\":true}"),
        (JSON, "{\"messages\":[],\"background\":true}"),
        ("text/plain", "{\"messages\":[],\"max_tokens\":7}"),
    ];
    // The output of each; `None` if the request is refused.
    const MOST: i64 = 3000;
    for (path, outputs, asks) in [
        ("/v1/chat/completions", Some([7, 500, 500, MOST, 500, MOST]), true),
        ("/v1/responses", Some([500, 7, 500, 500, MOST, MOST]), false),
        ("/v1/batches", None, false),
        ("/v1/async/sonar", None, false),
        ("/v1/own", Some([500; 6]), true),
    ] {
        let decoy = |from: &str| format!("path = \"{from}\"\nrewrite = {{ path = \"{path}\" }}");
        for (options, target) in [
            (String::new(), path.to_owned()),
            (decoy("/a"), "/a".to_owned()),
            (decoy("/v1/messages/count_tokens"), "/v1/messages/count_tokens".to_owned()),
            (decoy("/v1/batches"), "/v1/batches".to_owned()),
            (decoy("/v1/responses"), "/v1/responses".to_owned()),
            ("path = \"~ ^/m/(.*)$\"\nrewrite = { path = \"/{1}\" }".to_owned(), format!("/m{path}")),
            ("rewrite = { strip_prefix = \"/v1/batches\" }".to_owned(), format!("/v1/batches{path}")),
            ("rewrite = { add_prefix = \"/v1\" }".to_owned(), path.replacen("/v1", "", 1)),
            ("merge_slashes = false".to_owned(), path.replacen("/v1", "/v1/", 1)),
        ] {
            let gateway = start(&upstream, &options);
            for (index, body) in bodies.into_iter().enumerate() {
                let input = body.1.len().div_ceil(4) as i64;
                let expected = match outputs {
                    Some(outputs) => (200, (input + outputs[index]).min(MOST), asks && index == 2),
                    None => (403, 0, false),
                };
                let seen = observe(&upstream, &gateway, &target, body);
                assert_eq!(seen, expected, "{path} by {options}, {target} {body:?}");
            }
        }
    }
}

/// Only the path that the server gets tells whether it counts tokens or generates some.
#[test]
fn a_rewritten_path_that_counts_tokens_costs_nothing() {
    let upstream = Upstream::text("");
    for (options, target, used) in [
        ("path = \"/count\"\nrewrite = { path = \"/v1/messages/count_tokens\" }", "/count", 0),
        ("rewrite = { strip_prefix = \"/count_tokens\" }", "/count_tokens/v1/messages/count_tokens", 0),
        ("rewrite = { add_prefix = \"/v1\" }", "/messages//count_tokens", 0),
        (
            "path = \"/v1/messages/count_tokens\"\nrewrite = { path = \"/v1/messages\" }",
            "/v1/messages/count_tokens",
            501,
        ),
    ] {
        let gateway = start(&upstream, options);
        let before = left(&gateway);
        let head = post(target, 2, "content-type: application/json\r\n");
        assert_eq!(gateway.client().fetch(&head, "{}").status(), 200);
        wait_until(&format!("{options}: {used}"), || before - left(&gateway) == used);
    }
}
