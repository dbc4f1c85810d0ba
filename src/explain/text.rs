//! Writes an explanation for people: one line per step, details indented below it.

use std::fmt::Write;

use crate::ends::End;
use crate::explain::explanation::{
    ActionReport, ClientReport, ConditionReport, DescriptorReport, EntryReport, Explanation, HopReport, LimitEffect,
    LimitReport, MismatchReport, OtherRoute, PREFLIGHT, RateLimitReport, RequestReport, RewriteReport, StatusReport,
    TenantReport, TimeoutReport, VerdictReport,
};

/// Width of the first column.
const LABEL: usize = 10;

/// Returns the explanation as text that ends with a newline.
pub fn render_explanation(explanation: &Explanation) -> String {
    let mut text = String::new();
    match &explanation.rls {
        Some(rls) => write_rate_limit(&mut text, rls),
        None => write_request(&mut text, &explanation.request),
    }
    write_client(&mut text, &explanation.client);
    write_routes(&mut text, explanation);
    if let Some(auth) = &explanation.auth {
        let user = auth.user.as_ref().map_or_else(String::new, |user| format!(" for user {user}"));
        write_line(&mut text, "auth", &format!("{}: {}{user}: {}", auth.method, auth.credentials, auth.detail));
    }
    write_limits(&mut text, &explanation.limits);
    if let Some(action) = &explanation.action {
        write_action(&mut text, action);
    }
    for note in &explanation.notes {
        write_line(&mut text, "note", note);
    }
    let descriptors = explanation.rls.iter().flat_map(|rls| &rls.descriptors);
    let mut limits = explanation.limits.iter().chain(descriptors.flat_map(|descriptor| &descriptor.limits));
    if !explanation.live && limits.any(|limit| limit.state.is_some()) {
        write_line(&mut text, "note", "limits are shown as if nobody had used them; --admin URL shows the live state");
    }
    write_verdict(&mut text, &explanation.verdict);
    text
}

/// Writes a line with control characters replaced: values come from requests and configs.
fn write_line(text: &mut String, label: &str, value: &str) {
    let clean: String = value.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let _ = writeln!(text, "{label:LABEL$}{}", clean.trim_end());
}

fn write_request(text: &mut String, request: &RequestReport) {
    let RequestReport { method, host, path, rewritten } = request;
    write_line(text, "request", &format!("{method} {host}{path}"));
    for RewriteReport { part, received, canonical } in rewritten {
        write_line(text, "", &format!("{part} rewritten from {received} to {canonical}"));
    }
}

fn write_client(text: &mut String, client: &ClientReport) {
    if client.address.is_empty() {
        return;
    }
    write_line(text, "client", &format!("{}: {}", client.address, client.detail));
    if client.hops.is_empty() {
        return;
    }
    write_line(text, "", &format!("{}  peer, trusted", client.peer));
    for HopReport { header, text: written, address, trusted } in &client.hops {
        let (shown, trust) = match (address, trusted) {
            (Some(address), true) => (address, "trusted"),
            (Some(address), false) => (address, "not trusted"),
            (None, _) => (written, "not an address"),
        };
        write_line(text, "", &format!("{shown}  {header}, {trust}"));
    }
}

fn write_routes(text: &mut String, explanation: &Explanation) {
    match &explanation.route {
        Some(route) => {
            let hosts =
                if route.hosts.is_empty() { String::new() } else { format!(", host {}", route.hosts.join(", ")) };
            write_line(text, "route", &format!("{} (path {}{hosts})", route.name, route.path));
        }
        None if explanation.verdict.decision == "no_route" => write_line(text, "route", "none"),
        None => {}
    }
    write_others(text, &explanation.other_routes, "a more specific route comes first");
}

/// Writes what does not match. `shadowed`: why one that meets all conditions does not apply.
fn write_others(text: &mut String, others: &[OtherRoute], shadowed: &str) {
    let width = others.iter().map(|other| other.name.chars().count()).max().unwrap_or(0).min(30);
    for other in others {
        let why: Vec<String> = other.mismatches.iter().map(mismatch_text).collect();
        let why = if why.is_empty() { shadowed.to_owned() } else { why.join("; ") };
        write_line(text, "", &format!("not {:width$}  {why}", other.name));
    }
}

fn write_rate_limit(text: &mut String, rls: &RateLimitReport) {
    write_line(text, "domain", &rls.domain);
    for DescriptorReport { entries, operation, hits, rule, other_rules, limits, status } in &rls.descriptors {
        let entry = |EntryReport { key, value }: &EntryReport| match value {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}=(hidden)"),
        };
        let entries = entries.iter().map(entry).collect::<Vec<_>>().join(" ");
        let hits = match operation.as_str() {
            "look" => "look".to_owned(),
            _ => format!("{operation} {hits}"),
        };
        write_line(text, "entries", &format!("{entries}: {hits}"));
        if rls.is_known {
            write_line(text, "rule", rule.as_deref().unwrap_or("none"));
        }
        write_others(text, other_rules, "a more specific rule applies");
        write_limits(text, limits);
        if let Some(StatusReport { code, limit, remaining, until_reset_ms }) = status {
            let limit = limit.as_ref().map_or_else(String::new, |limit| format!(" by {limit}, {remaining} left"));
            let until = until_reset_ms.map_or_else(String::new, |ms| format!(", until reset {ms} ms"));
            write_line(text, "status", &format!("{code}{limit}{until}"));
        }
    }
}

fn mismatch_text(mismatch: &MismatchReport) -> String {
    let MismatchReport { condition, expected, found } = mismatch;
    match (expected, found) {
        (Some(expected), Some(found)) => format!("{condition} {found} is not {expected}"),
        (Some(expected), None) => format!("{condition} is absent, expected {expected}"),
        (None, _) => format!("{condition} is absent or has another value"),
    }
}

fn write_limits(text: &mut String, limits: &[LimitReport]) {
    let width = limits.iter().map(|limit| limit.name.chars().count()).max().unwrap_or(0).min(30);
    for (index, limit) in limits.iter().enumerate() {
        let label = if index == 0 { "limits" } else { "" };
        let effect = limit.effect.replace('_', " ");
        write_line(text, label, &format!("{:width$}  {effect}: {}", limit.name, limit.detail));
        let indent = format!("{:width$}  ", "");
        for ConditionReport { source, expected, found, result } in &limit.conditions {
            let found = found.as_ref().map_or_else(String::new, |found| format!(", found {found}"));
            let expected = expected.as_ref().map_or_else(String::new, |expected| format!(" {expected}"));
            write_line(text, "", &format!("{indent}when {source}{expected}{found}: {result}"));
        }
        if limit.effect == LimitEffect::Skipped.label() && limit.state.is_none() {
            continue;
        }
        let mut facts = vec![limit.rule.clone()];
        facts.extend(limit.key.as_ref().map(|key| format!("key {key}")));
        facts.extend(limit.cost.filter(|cost| *cost != 1 || limit.estimate.is_some()).map(
            |cost| match &limit.estimate {
                Some(estimate) => format!("cost {cost} ({estimate})"),
                None => format!("cost {cost}"),
            },
        ));
        facts.extend(limit.overridden.as_ref().map(|text| format!("override: {text}")));
        facts.extend(match &limit.candidate_of {
            Some(incumbent) => Some(describe_candidate(incumbent, limit.compared.as_deref())),
            None => (limit.mode == "shadow").then(|| "shadow".to_owned()),
        });
        let tier_of = limit.tier_of.as_ref().filter(|name| **name != limit.name);
        facts.extend(tier_of.map(|name| format!("tier of {name}")));
        facts.extend((limit.over != "refuse").then(|| format!("over {}", limit.over)));
        facts.extend(limit.after.as_ref().map(|base| format!("after {base}")));
        facts.extend(limit.ban.clone());
        facts.extend(limit.clear_on.as_ref().map(|outcomes| format!("reset by {outcomes}")));
        facts.extend(limit.lease.clone());
        facts.extend(limit.before_auth.then(|| "before auth".to_owned()));
        write_line(text, "", &format!("{indent}{}", facts.join(", ")));
        if let Some(fair) = &limit.fair {
            write_line(text, "", &format!("{indent}{}", tenant_text(fair)));
        }
    }
}

fn tenant_text(fair: &TenantReport) -> String {
    let TenantReport { weight, total_weight, active, rate_per_second, must_leave, reserve } = fair;
    let active = match active {
        Some(1) => "the only active tenant".to_owned(),
        Some(active) => format!("one of {active} active tenants"),
        None => "one of the tenants beyond `max_active`".to_owned(),
    };
    format!("{active}, weight {weight} of {total_weight}: {rate_per_second} per s; leaves {must_leave} of {reserve}")
}

/// Describes a candidate and how it compares with its incumbent.
fn describe_candidate(incumbent: &str, compared: Option<&str>) -> String {
    let effect = match compared {
        Some("agree") => ", agrees",
        Some("would_refuse") => ", which admits",
        Some("would_admit") => ", which refuses",
        _ => "",
    };
    format!("candidate of {incumbent}{effect}")
}

fn write_action(text: &mut String, action: &ActionReport) {
    let target = action.target.as_deref().unwrap_or_default();
    let what = match (action.kind.as_str(), &action.upstream, &action.location) {
        ("upstream", Some(name), _) => format!("forward {target} to upstream {name}"),
        ("redirect", _, Some(location)) => format!("redirect to {location}"),
        ("echo", ..) => format!("echo {target}"),
        (PREFLIGHT, ..) => "answer the preflight (cors)".to_owned(),
        ("files", ..) => format!("send the file {}", action.files.join(", or else ")),
        ("respond", ..) => "respond with the fixed response of the route".to_owned(),
        (other, ..) => other.to_owned(),
    };
    write_line(text, "action", &what);
    let timeouts: Vec<String> = action.timeouts.iter().map(timeout_text).collect();
    for pair in timeouts.chunks(2) {
        write_line(text, "", &pair.join(", "));
    }
}

fn timeout_text(timeout: &TimeoutReport) -> String {
    let TimeoutReport { name, ms, origin } = timeout;
    match ms % 1000 {
        0 => format!("{name} {} s ({origin})", ms / 1000),
        _ => format!("{name} {ms} ms ({origin})"),
    }
}

fn write_verdict(text: &mut String, verdict: &VerdictReport) {
    let VerdictReport { decision, status, reason, setting, limit, retry_after_ms, passes_at, detail, .. } = verdict;
    let mut line = decision.replace('_', " ");
    if let Some(status) = status {
        let _ = write!(line, " with {status}");
    }
    if let Some(limit) = limit {
        let _ = write!(line, " by {limit}");
    }
    let _ = write!(line, ": {detail}");
    if let Some(reason) = reason {
        let setting = setting.as_ref().map_or_else(String::new, |setting| format!(", setting {setting}"));
        let _ = write!(line, " (reason {reason}{setting})");
    }
    write_line(text, "verdict", &line);
    if let Some(ms) = retry_after_ms {
        let at = passes_at.as_ref().map_or_else(String::new, |at| format!(", at {at}"));
        let what_counts = match reason.as_deref() == Some(End::Banned.label()) {
            true => "and requests until then do not make the ban longer",
            false => "if nothing else arrives",
        };
        write_line(text, "", &format!("passes in {ms} ms{at}, {what_counts}"));
    }
}
