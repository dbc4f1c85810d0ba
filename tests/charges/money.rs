//! Budgets in money: a file with prices of models.

use std::fs;

use super::usage_ends::{assert_used, config, mirror, whole};
use crate::support::client::post;
use crate::support::gateway::{Gateway, config as gateway_config, config_arguments};
use crate::support::limiting::{RedisServer, on_both_stores};
use crate::support::wait_until;

const PRICES: &str = "date = \"2026-11-01\"\n[models.\"small-*\"]\ninput = 0.15\ncached = \"0.075\"\noutput = \"0.60\"\n\
                      [models.large]\ninput = \"2.5\"\noutput = 10\n";

fn charge(gateway: &Gateway, model: &str) -> i64 {
    let usage = "\"usage\":{\"prompt_tokens\":1001,\"completion_tokens\":100,\"total_tokens\":1101}";
    let body = whole("application/json", format!("{{{model}{usage}}}").as_bytes());
    let status = gateway.client().fetch(&post("/", body.len() as u64, ""), &body).status();
    i64::from(status)
}

#[test]
fn responses_cost_what_their_model_costs_and_prices_change_without_a_restart() {
    on_both_stores(|redis| {
        let upstream = mirror();
        let store = redis.map_or_else(String::new, RedisServer::store);
        let text = config(&upstream.url(), &store, "cost = 100\nsettle = \"openai\"\nprices = \"prices.toml\"");
        let gateway = Gateway::launch(&[], |dir| {
            fs::write(dir.join("prices.toml"), PRICES).unwrap();
            config_arguments(dir, &gateway_config("", &text))
        });
        let mut used = 0;
        for (model, units) in [
            // 150.15 + 60, rounded up.
            ("\"model\":\"small-1\",", 211),
            ("\"model\":\"large\",", 2503 + 1000),
            // A new model, and one that is not named, must not be free.
            ("\"model\":\"new\",", 2503 + 1000),
        ] {
            assert_eq!(charge(&gateway, model), 200);
            used += units;
            assert_used(&gateway, used);
        }
        gateway.assert_metric("usage_unknown_models_total", &[], 1.0);
        let generation = || gateway.admin("/-/status").json()["generation"].clone();
        let change = |text: &str| fs::write(gateway.dir.path().join("prices.toml"), text).unwrap();
        change(&PRICES.replace("0.60", "6.00"));
        wait_until("the new prices", || generation() == 2);
        assert_eq!(charge(&gateway, "\"model\":\"small-1\","), 200);
        used += 151 + 600;
        assert_used(&gateway, used);
        // A mistake keeps the prices in force, and says where it is.
        change(&PRICES.replace("0.60", "six"));
        wait_until("the rejected prices", || gateway.admin("/-/status").json()["last_reload"]["result"] == "failure");
        let found = gateway.admin("/-/status").json()["last_reload"]["diagnostics"][0].clone();
        assert!(found["file"].as_str().unwrap().ends_with("prices.toml"), "{found}");
        assert_eq!((&found["line"], generation().as_i64()), (&5.into(), Some(2)), "{found}");
        assert_eq!(charge(&gateway, "\"model\":\"small-1\","), 200);
        used += 151 + 600;
        assert_used(&gateway, used);
    });
}
