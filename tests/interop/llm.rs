//! The clients of OpenAI and Anthropic (PyPI), and what limits count of their requests.

use std::fs;

use crate::support::app::{App, run_script};
use crate::support::gateway::Gateway;
use crate::support::wait_until;

/// A gateway before a server with both APIs. `limit` is a part of the limit on tokens.
fn gateway(app: &App, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "[[route]]\nupstream = \"{}\"\nlimits = [\"tokens\"]\n[limit.tokens]\n\
         algorithm = \"fixed_window\"\nrate = \"100000/1000day\"\nkey = \"all\"\nask_usage = true\n\
         weights = {{ \"large*\" = {{ input = 3, cached = 1, output = 10 }} }}\n{limit}\n",
        app.url()
    ))
}

fn run(client: &str, gateway: &Gateway) {
    run_script("llm_clients.py", &[client, &format!("http://{}", gateway.addr)]);
}

fn assert_used(gateway: &Gateway, used: i64) {
    let left = || gateway.admin("/-/limits/tokens/state").json()["remaining"].as_i64().unwrap();
    wait_until(&format!("{used} used"), || 100_000 - left() == used);
}

#[test]
fn the_usage_of_openai_clients_is_counted() {
    let app = App::script("llm_server.py");
    let gateway = gateway(&app, "cost = { reserve = { add = \"json:/max_tokens\" } }\nsettle = \"openai\"");
    run("openai_client", &gateway);
    // Chat: 50 x 3 + 7 x 10. Responses: 30 x 3 + 20 x 1 + 7 x 10. Embeddings: 5. All of them plain and as gzip.
    gateway.assert_metric("usage_settlements_total", &[("result", "settled")], 10.0);
    gateway.assert_metric("usage_settlements_total", &[("result", "unproven")], 1.0);
    let settled = 2 * (2 * 220 + 2 * 180 + 5);
    let left = gateway.admin("/-/limits/tokens/state").json()["remaining"].as_i64().unwrap();
    // The stream that the client broke off costs its estimate: 1000 tokens of output, and its input.
    let estimate = 100_000 - left - settled;
    assert!((10_030..10_200).contains(&estimate), "{estimate}");
}

#[test]
fn the_usage_of_anthropic_clients_is_counted() {
    let app = App::script("llm_server.py");
    let gateway =
        gateway(&app, "cost = { reserve = { add = \"json:/max_tokens\" } }\nsettle = [\"openai\", \"anthropic\"]");
    run("anthropic_client", &gateway);
    assert_used(&gateway, 6 * (30 * 3 + 20 + 70));
}

/// The first config of the guide, as it stands: one budget for a customer with both clients, and what is no error of it.
#[test]
fn the_config_of_the_guide_has_one_budget_for_both_clients() {
    let app = App::script("llm_server.py");
    let page = fs::read_to_string("docs/guides/llm-apis.md").unwrap();
    let config = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let gateway = Gateway::start(&config.replace("http://127.0.0.1:3000", &app.url()));
    let left = |key: &str| {
        let state = gateway.admin(&format!("/-/limits/tokens/state?key={key}")).json();
        state["remaining"].as_i64().unwrap_or_else(|| panic!("{state}"))
    };
    run("anthropic_client", &gateway);
    wait_until("six messages of 57 tokens", || left("key") == 1_000_000 - 6 * 57);
    assert_eq!(left("Bearer%20key"), 1_000_000 - 6 * 57, "the key of the OpenAI client is the same");
    run("openai_client", &gateway);
    // 8 requests of 57 tokens, 2 of 5, and a broken stream: 1000 tokens and its input.
    let used = 1_000_000 - 6 * 57 - 8 * 57 - 2 * 5 - left("key");
    assert!((1010..1060).contains(&used), "{used}");
    let before = left("key");
    run("free_calls", &gateway);
    assert_eq!((left("key"), left("other")), (before, 1_000_000));
}

#[test]
fn clients_understand_refusals() {
    let app = App::script("llm_server.py");
    for (api, client) in [("openai", "refused_openai"), ("anthropic", "refused_anthropic")] {
        let gateway = gateway(
            &app,
            &format!(
                "cost = {{ reserve = {{ base = 99000 }} }}\nsettle = \"openai\"\nrefuse = {{ dialect = \"{api}\" }}"
            ),
        );
        run(client, &gateway);
        let codes = [("route", "/"), ("method", "POST"), ("code", "429")];
        assert_eq!(gateway.metric("requests_total", &codes), Some(1.0), "the client does not retry");
    }
}
