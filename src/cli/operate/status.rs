//! `sluicegate status`: shows the state of a running gateway, and what is wrong with it.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::check::ReportFormat;
use crate::cli::gateway::GatewayOptions;
use crate::cli::operate::{Call, fetch_json, format_json, run_command, text_of};
use crate::text::{format_count, format_span};

#[derive(Args)]
pub struct StatusOptions {
    /// Format of the answer
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

/// Number of servers that are described.
const LINES_MAX: usize = 20;

pub fn run_status(options: &StatusOptions) -> ExitCode {
    run_command(&options.gateway, options.format == ReportFormat::Json, |gateway| {
        let status = fetch_json(gateway, Call::get("/-/status", "read"))?;
        let upstreams = fetch_json(gateway, Call::get("/-/upstreams", "read"))?;
        Ok(match options.format {
            ReportFormat::Json => format_json(&json!({ "status": status, "upstreams": upstreams["upstreams"] })),
            ReportFormat::Text => describe_status(&status, &upstreams),
        })
    })
}

fn describe_status(status: &Value, upstreams: &Value) -> String {
    let hash = text_of(&status["hash"]);
    let uptime = status["uptime_seconds"].as_i64().unwrap_or(0).saturating_mul(1000);
    let store = match (&status["store"]["shared"], &status["store"]["up"]) {
        (Value::Bool(false), _) => "in memory".to_owned(),
        (Value::Bool(true), Value::Bool(true)) => {
            let gateways = status["store"]["gateways"].as_u64().unwrap_or(0);
            format!("Redis responds, shared by {}", format_count(gateways, "gateway"))
        }
        (Value::Bool(true), _) => "Redis does not respond".to_owned(),
        _ => "unknown".to_owned(),
    };
    let lines = [
        (
            "gateway",
            format!(
                "{}, {}, version {}, up {}",
                text_of(&status["host"]),
                text_of(&status["lifecycle"]),
                text_of(&status["version"]),
                format_span(uptime)
            ),
        ),
        (
            "config",
            format!(
                "generation {}, loaded {}, hash {}",
                status["generation"],
                text_of(&status["loaded_at"]),
                hash.get(..12).unwrap_or(&hash)
            ),
        ),
        ("store", store),
        ("servers", describe_servers(upstreams)),
    ];
    let mut text: String = lines.into_iter().map(|(name, line)| format!("{name:<10}{line}\n")).collect();
    text.push('\n');
    match status["problems"].as_array().map(Vec::as_slice) {
        None => text.push_str("this gateway is older than the command, and does not list its problems\n"),
        Some([]) => text.push_str("nothing is wrong\n"),
        Some(problems) => {
            problems.iter().for_each(|problem| text.push_str(&format!("! {}\n", text_of(&problem["text"]))))
        }
    }
    list_unhealthy(upstreams).iter().for_each(|server| text.push_str(&format!("  {server}\n")));
    text
}

fn servers_of(upstreams: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    let upstreams = upstreams["upstreams"].as_array().into_iter().flatten();
    upstreams.flat_map(|upstream| {
        let servers = upstream["servers"].as_array().into_iter().flatten();
        servers.map(move |server| (upstream, server))
    })
}

fn describe_servers(upstreams: &Value) -> String {
    let count = servers_of(upstreams).count();
    let up = servers_of(upstreams).filter(|(_, server)| server["state"] == "up").count();
    if count == 0 { "none".to_owned() } else { format!("{up} of {count} up") }
}

/// Describes the first servers that are not up.
fn list_unhealthy(upstreams: &Value) -> Vec<String> {
    let unhealthy = servers_of(upstreams).filter(|(_, server)| server["state"] != "up");
    let describe = |(upstream, server): (&Value, &Value)| {
        let reason =
            server["reason"].as_str().map(|_| format!(" ({})", text_of(&server["reason"]))).unwrap_or_default();
        let since = server["for_ms"].as_i64().map(|ms| format!(" for {}", format_span(ms))).unwrap_or_default();
        let [name, address, state] = [&upstream["name"], &server["server"], &server["state"]].map(text_of);
        format!("upstream {name}: {address} is {state}{since}{reason}")
    };
    unhealthy.take(LINES_MAX).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problems_that_the_gateway_lists_are_shown() {
        let text = |status: Value| describe_status(&status, &Value::Null);
        let down = text(json!({ "store": { "shared": true, "up": false }, "problems": [
            { "level": "bad", "kind": "store_down", "text": "The store is down.\u{1b}[2J", "link": "#/limits" },
            { "level": "warn", "kind": "pinned", "text": "A rollback.", "link": "#/config" },
        ] }));
        assert!(down.contains("\n! The store is down.") && down.contains("\n! A rollback.\n"), "{down}");
        assert!(!down.contains("nothing is wrong") && !down.contains('\u{1b}'), "{down}");
        let up = text(json!({ "store": { "shared": true, "up": true, "gateways": 1 }, "problems": [] }));
        assert!(up.contains("shared by 1 gateway\n") && up.contains("nothing is wrong"), "{up}");
    }
}
