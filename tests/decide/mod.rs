//! Decisions for other proxies: what they may ask and how, what they get, and what their clients try in order to spend
//! more than the limit. `proxies` runs the recipes of the manual with the real proxies.

mod answers;
mod departures;
mod dropped_charges;
mod facts;
mod proxies;
mod proxy_attacks;
mod receipts;
mod repeats;
mod site;
mod unparsed;

use crate::support::client;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::wait_until;

/// Names for all families, with one budget of 3 for each client address, path and `X-Key`.
const NAMES: &str = "[limit.three]\nrate = \"3/day\"\nkey = [\"ip\", \"path\", \"host\", \"method\", \"header:x-key\"]\nmissing = \"shared\"\n\
                     [decide.fwd]\nlimits = [\"three\"]\n\
                     [decide.orig]\nlimits = [\"three\"]\nfrom = \"original\"\ndeny_as = 403\n\
                     [decide.path]\nlimits = [\"three\"]\nfrom = \"path\"\n";

/// A gateway that answers questions of 127.0.0.0/8, except 127.0.0.66.
fn gateway(rest: &str) -> Gateway {
    gateway_with("workers = 1", rest)
}

fn gateway_with(server: &str, rest: &str) -> Gateway {
    Gateway::with_config(&format!(
        "[server]\ntrusted_proxies = [\"127.0.0.0/26\"]\naccess_log = true\n{server}\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"decide\"\n[admin]\nlisten = \"127.0.0.1:0\"\n{rest}"
    ))
}

/// Returns the headers of the family `forwarded` for a request of 192.0.2.1, and `more`.
fn forwarded(method: &str, uri: &str, more: &str) -> String {
    format!(
        "x-forwarded-for: 192.0.2.1\r\nx-forwarded-method: {method}\r\nx-forwarded-host: a.test\r\n\
         x-forwarded-uri: {uri}\r\n{more}"
    )
}

/// Sends a question about a request by the family `forwarded`.
#[track_caller]
fn fetch(gateway: &Gateway, name: &str, uri: &str, more: &str) -> Message {
    gateway.fetch(&client::get(&format!("/decide/{name}"), &forwarded("GET", uri, more)))
}

/// Waits until the last line of the access log has these values.
#[track_caller]
fn assert_logged(gateway: &Gateway, values: &[(&str, &str)]) {
    wait_until(&format!("the last line has {values:?}"), || {
        let text = gateway.stdout();
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap_or("{}")).unwrap_or_default();
        values.iter().all(|(field, value)| line[field] == *value)
    });
}
