//! `sluicegate status`: shows the state of a running gateway, and what is wrong with it.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::check::ReportFormat;
use crate::cli::gateway::GatewayOptions;
use crate::cli::operate::{Call, fetch_json, format_json, format_span, run_command, text_of};

#[derive(Args)]
pub struct StatusOptions {
    /// Format of the answer
    #[arg(long, default_value = "text")]
    format: ReportFormat,
    #[command(flatten)]
    gateway: GatewayOptions,
}

/// A certificate that ends earlier is listed.
const CERTIFICATE_DAYS: i64 = 14;
/// Number of lines about one kind of problem.
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
            let gateways = &status["store"]["gateways"];
            format!("Redis responds, shared by {gateways} gateway{}", if *gateways == 1 { "" } else { "s" })
        }
        (Value::Bool(true), _) => "Redis does not respond".to_owned(),
        _ => "unknown".to_owned(),
    };
    let lines = [
        (
            "gateway",
            format!(
                "{}, version {}, up {}",
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
    let problems = list_problems(status, upstreams);
    if problems.is_empty() {
        text.push_str("\nnothing is wrong\n");
    } else {
        text.push('\n');
        problems.iter().for_each(|problem| text.push_str(&format!("! {problem}\n")));
    }
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

fn list_problems(status: &Value, upstreams: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    if status["store"]["shared"] == true && status["store"]["up"] == false {
        problems.push("the store does not respond, so limits follow their `on_error`".to_owned());
    }
    let last = &status["last_reload"];
    if last.is_object() && last["result"].as_str().is_some_and(|result| result == "failure") {
        problems.push("the last reload failed, so the files have another config; run `sluicegate check`".to_owned());
    }
    if let Some(generation) = status["pinned"].as_u64() {
        problems.push(format!("a rollback keeps generation {generation} active in place of the files"));
    }
    for (limit, count) in status["rejected_overrides"].as_object().into_iter().flatten().take(LINES_MAX) {
        problems.push(format!("{count} overrides of {} are skipped; the log says why", text_of(&json!(limit))));
    }
    for keys in status["token_keys"].as_array().into_iter().flatten().filter(|keys| keys["fault"].is_string()) {
        problems.push(format!("the keys of [jwt.{}]: {}", text_of(&keys["section"]), text_of(&keys["fault"])));
    }
    let certificates = status["certificates"].as_array().into_iter().flatten();
    let ends_soon = |certificate: &&Value| {
        certificate["days_left"].as_i64().is_some_and(|days| days < CERTIFICATE_DAYS)
            && certificate["source"] != "internal"
    };
    for certificate in certificates.filter(ends_soon).take(LINES_MAX) {
        let names: Vec<String> = certificate["names"].as_array().into_iter().flatten().map(text_of).collect();
        problems.push(format!("the certificate of {} ends in {} days", names.join(", "), certificate["days_left"]));
    }
    for (upstream, server) in servers_of(upstreams).filter(|(_, server)| server["state"] != "up").take(LINES_MAX) {
        let reason =
            server["reason"].as_str().map(|_| format!(" ({})", text_of(&server["reason"]))).unwrap_or_default();
        let since = server["for_ms"].as_i64().map(|ms| format!(" for {}", format_span(ms))).unwrap_or_default();
        problems.push(format!(
            "upstream {}: {} is {}{since}{reason}",
            text_of(&upstream["name"]),
            text_of(&server["server"]),
            text_of(&server["state"])
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_respond_is_wrong() {
        let text = |store: Value| describe_status(&json!({ "store": store }), &Value::Null);
        let down = text(json!({ "shared": true, "up": false, "gateways": 2 }));
        assert!(down.contains("! the store does not respond") && !down.contains("nothing is wrong"), "{down}");
        let up = text(json!({ "shared": true, "up": true, "gateways": 1 }));
        assert!(up.contains("shared by 1 gateway\n") && up.contains("nothing is wrong"), "{up}");
        let memory = text(json!({ "shared": false }));
        assert!(memory.contains("nothing is wrong"), "{memory}");
    }
}
