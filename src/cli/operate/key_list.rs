//! `sluicegate key list`: all live overrides, blocks and bans. Called by `key`.

use serde_json::{Value, json};

use crate::cli::gateway::{GatewayContact, add_parameter};
use crate::cli::operate::table::Table;
use crate::cli::operate::{Call, CommandFault, fetch_json, text_of};
use crate::text::{format_count, format_span};

/// Number of overrides that are shown without `-n`.
const N_DEFAULT: u64 = 1000;
/// Number of overrides in one request.
const PAGE: u64 = 1000;

/// Fetches up to `most` overrides, page by page, and the bans: of one limit, or of all.
pub fn fetch_list(limit: Option<&str>, most: Option<u64>, gateway: &GatewayContact) -> Result<Value, CommandFault> {
    let most = most.unwrap_or(N_DEFAULT);
    let mut own = String::new();
    limit.iter().for_each(|limit| add_parameter(&mut own, "limit", limit));
    let mut list = fetch_page(&own, most, gateway)?;
    while let Some(cursor) = list["next"].as_str().map(str::to_owned) {
        let left = most.saturating_sub(count_items(&list["overrides"]));
        if left == 0 {
            break;
        }
        let mut query = own.clone();
        add_parameter(&mut query, "cursor", &cursor);
        let mut page = fetch_page(&query, left, gateway)?;
        list["next"] = page["next"].take();
        if let (Some(overrides), Value::Array(more)) = (list["overrides"].as_array_mut(), page["overrides"].take()) {
            overrides.extend(more);
        }
    }
    let bans = fetch_json(gateway, Call::get(&format!("/-/bans{own}"), "keys"))?;
    Ok(json!({ "overrides": list, "bans": bans }))
}

fn fetch_page(query: &str, most: u64, gateway: &GatewayContact) -> Result<Value, CommandFault> {
    let mut query = query.to_owned();
    add_parameter(&mut query, "n", &most.clamp(1, PAGE).to_string());
    fetch_json(gateway, Call::get(&format!("/-/overrides{query}"), "keys"))
}

fn count_items(list: &Value) -> u64 {
    list.as_array().map_or(0, |items| items.len() as u64)
}

/// Describes what [`fetch_list`] has found, as two tables.
pub fn describe_list(found: &Value) -> String {
    let (list, bans) = (&found["overrides"], &found["bans"]);
    format!("{}\n{}", describe_overrides(list), describe_bans(bans))
}

fn describe_overrides(list: &Value) -> String {
    let mut table = Table::new(&["LIMIT", "KEY", "OVERRIDE", "UNTIL", "SET", "NOTE"]);
    for entry in list["overrides"].as_array().into_iter().flatten() {
        table.add_row(vec![
            text_of(&entry["limit"]),
            text_of(&entry["key"]),
            describe_budget(entry),
            describe_end(entry),
            describe_setting(entry),
            text_of(&entry["note"]),
        ]);
    }
    let (shown, total) = (count_items(&list["overrides"]), list["total"].as_u64().unwrap_or(0));
    match (total, shown < total) {
        (0, _) => "no live overrides or blocks\n".to_owned(),
        (_, true) => format!("{}the first {shown} of {total}; -n {total} shows all\n", table.render()),
        (_, false) => table.render(),
    }
}

fn describe_bans(found: &Value) -> String {
    let mut table = Table::new(&["LIMIT", "KEY", "BANNED FOR", "UNTIL", "BAN"]);
    for ban in found["bans"].as_array().into_iter().flatten() {
        table.add_row(vec![
            text_of(&ban["limit"]),
            text_of(&ban["key"]),
            ban["left_ms"].as_i64().map(format_span).unwrap_or_default(),
            text_of(&ban["until"]),
            format!("number {}", ban["bans"]),
        ]);
    }
    let mut text = match table.is_empty() {
        true => "no bans among the keys that were refused last\n".to_owned(),
        false => table.render(),
    };
    if let Some(fault) = found["store_fault"].as_str() {
        text.push_str(&format!("the store did not answer about all keys: {}\n", fault.replace('_', " ")));
    }
    if let Some(keys @ 1..) = found["left_out"].as_u64() {
        let keys = format_count(keys, "refused key");
        text.push_str(&format!("{keys} more may be banned; name a limit to see fewer\n"));
    }
    if let Some(limits @ 1..) = found["limits_hidden"].as_u64() {
        let limits = format_count(limits, "limit");
        text.push_str(&format!("left out: {limits}, because the config hides the keys from this role\n"));
    }
    text
}

/// Returns the budget of an entry without its end.
fn describe_budget(entry: &Value) -> String {
    let text = text_of(&entry["text"]);
    let end = format!(" until {}", text_of(&entry["until"]));
    text.strip_suffix(&end).map_or(text.clone(), str::to_owned)
}

fn describe_end(entry: &Value) -> String {
    let until = text_of(&entry["until"]);
    if entry["ended"] == true { format!("{until} (ended)") } else { until }
}

/// Says when an entry was set, and by whom.
fn describe_setting(entry: &Value) -> String {
    match entry["set_by"].as_str() {
        Some(_) => format!("{} by {}", text_of(&entry["set_at"]), text_of(&entry["set_by"])),
        None => text_of(&entry["set_at"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_it_leaves_out() {
        let entry = json!({ "limit": "daily", "key": "header:x=acme", "text": "5/s, burst 9 until 2026-12-01T00:00:00Z",
            "until": "2026-12-01T00:00:00Z", "ended": true, "note": "a\u{1b}[2Jb", "set_at": "2026-11-30T00:00:00Z", "set_by": "anna" });
        let ban = json!({ "limit": "per-ip", "key": "ip=::1", "left_ms": 60_000, "until": "2026-12-01T00:00:00Z", "bans": 2 });
        let text = describe_list(&json!({
            "overrides": { "total": 2, "overrides": [entry], "next": "x" },
            "bans": { "bans": [ban], "left_out": 1, "limits_hidden": 2, "store_fault": "timeout" },
        }));
        for words in [
            "daily  header:x=acme  5/s, burst 9  2026-12-01T00:00:00Z (ended)  2026-11-30T00:00:00Z by anna  a",
            "the first 1 of 2; -n 2 shows all",
            "per-ip  ip=::1  1 min       2026-12-01T00:00:00Z  number 2",
            "1 refused key more may",
            "left out: 2 limits",
            "not answer about all keys: timeout",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        let none = describe_list(&json!({ "overrides": { "total": 0, "overrides": [] }, "bans": { "bans": [] } }));
        assert_eq!(none, "no live overrides or blocks\n\nno bans among the keys that were refused last\n");
    }
}
