//! Shows what the keys of a limit with `usage` used on a day. Called by `pages`.

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::limits::LimitsApi;
use crate::admin::problem::{Problem, ProblemKind, bad_query, refuse_repeated};
use crate::config::admin_tokens::Role;
use crate::config::percent_decode;
use crate::limiting::ledger::{LedgerDay, parse_day};

impl LimitsApi {
    /// Returns a page of the usage of a limit on one day. Keys are as logs show them; editors see them as they are.
    pub async fn show_usage(&self, name: &str, query: &str, role: Role) -> Result<Value, Problem> {
        let (date, cursor) = parse_query(query)?;
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, name)?;
        if limit.store_ref.usage_days.is_none() {
            let detail = format!("`{name}` keeps no usage; set `usage = \"90d\"` in [limit.{name}]");
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
        let day = parse_day(&date).ok_or_else(|| bad_query("`day` is a date such as 2026-11-30"))?;
        let day = LedgerDay { limit: name.to_owned(), day };
        let page = self.ledger.read_page(&day, &cursor).await.map_err(|why| {
            let detail = format!("the usage cannot be read: {why}");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_kind(ProblemKind::StoreUnavailable)
        })?;
        let display = &snapshot.config.admin.key_display;
        let keys = page.keys.into_iter().map(|(parts, usage)| {
            let key = match role == Role::Edit {
                true => parts,
                false => display.show_state_parts(limit.counted_key(), parts.split(',')),
            };
            json!({ "key": key, "admitted": usage.admitted, "refused": usage.refused, "units": usage.units })
        });
        Ok(json!({ "limit": name, "day": date, "keys": keys.collect::<Vec<_>>(), "next": page.next }))
    }
}

fn parse_query(query: &str) -> Result<(String, String), Problem> {
    refuse_repeated(query, &[])?;
    let (mut day, mut cursor) = (None, "0".to_owned());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode(value).and_then(|value| String::from_utf8(value).ok()).unwrap_or_default();
        match name {
            "day" => day = Some(value),
            "cursor" if value.len() <= 20 && !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                cursor = value;
            }
            "cursor" => return Err(bad_query("`cursor` is the `next` of the page before")),
            _ => return Err(bad_query("the parameters are `day` and `cursor`")),
        }
    }
    let day = day.ok_or_else(|| bad_query("write a day: `day=2026-11-30`"))?;
    Ok((day, cursor))
}
