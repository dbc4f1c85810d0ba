//! Lists all live overrides page by page, and removes one of the list. Called by `pages`.
//!
//! The list is sorted by the names of the limits and then by the keys as they are written, so a page costs the same
//! wherever it is, and changes between two pages neither repeat nor hide other entries. Rows have an id, because the
//! key may be shown as a hash, or be `*`, which no request has.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::limits::LimitsApi;
use crate::admin::limits::overrides::OverrideChange;
use crate::admin::limits::row_id::{RowId, open_row_id, seal_row_id};
use crate::admin::limits::state::describe_entry;
use crate::admin::live_overrides::LiveEntry;
use crate::admin::problem::{Problem, bad_query, refuse_repeated};
use crate::config::{Config, percent_decode};
use crate::limiting::clock;
use crate::limiting::key::KeyPart;
use crate::limiting::key::shown_key::{KeyDisplay, KeyVisibility};
use crate::limiting::key::state_key::write_value;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::OverrideOrigin;
use crate::limiting::overrides::table::{OverrideEntry, OverrideValue, join_values};

/// Query of `GET /-/overrides`.
#[derive(Default)]
struct ListQuery {
    limit: Option<String>,
    after: Option<RowId>,
    n: Option<usize>,
}

const N_DEFAULT: usize = 100;
const N_MAX: usize = 1000;
/// Number of limits whose counts are listed.
const LIMITS_MAX: usize = 1000;

impl ListQuery {
    fn parse(query: &str) -> Result<ListQuery, Problem> {
        refuse_repeated(query, &[])?;
        let mut parsed = ListQuery::default();
        for (name, value) in decode_pairs(query) {
            let value = value.ok_or_else(|| bad_query(format!("`{name}` is not percent-encoded UTF-8")))?;
            match name {
                "limit" => parsed.limit = Some(value),
                "cursor" => parsed.after = Some(open_row_id(&value).ok_or_else(unknown_id)?),
                "n" => {
                    let n = value.parse().ok().filter(|n| (1..=N_MAX).contains(n));
                    parsed.n = Some(n.ok_or_else(|| bad_query(format!("`n` is an integer from 1 to {N_MAX}")))?);
                }
                _ => return Err(bad_query("the parameters are `limit`, `n` and `cursor`")),
            }
        }
        Ok(parsed)
    }
}

/// Splits a query into names and values; `None` instead of a value that is not UTF-8.
fn decode_pairs(query: &str) -> impl Iterator<Item = (&str, Option<String>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, percent_decode(value).and_then(|value| String::from_utf8(value).ok()))
    })
}

fn unknown_id() -> Problem {
    bad_query("this id is not of a list that this process has shown; get the list again")
}

impl LimitsApi {
    /// Returns one page of the live overrides, and the id after which the next one begins.
    pub async fn list_overrides(&self, query: &str) -> Result<Value, Problem> {
        let ListQuery { limit, after, n } = ListQuery::parse(query)?;
        let snapshot = self.current.load_full();
        let config = &snapshot.config;
        self.live.catch_up(config, &self.link.store()).await;
        if let Some(name) = &limit {
            self.find_limit(config, name)?;
        }
        let is_wanted = |name: &str| match &limit {
            Some(limit) => name == limit,
            // Those of a limit that was removed are kept, in case it returns.
            None => config.limits.find(name).is_some(),
        };
        let n = n.unwrap_or(N_DEFAULT);
        let after = after.as_ref().map(|row| (row.limit.as_str(), row.field.as_slice()));
        // One more says whether there is another page.
        let mut page = self.live.list_page(is_wanted, after, n + 1);
        let has_more = page.len() > n;
        page.truncate(n);
        let next = page.last().filter(|_| has_more).and_then(|row| seal_row_id(&row.limit, &row.field, &row.value));
        let counts = self.live.count_entries(is_wanted);
        let total: usize = counts.iter().map(|(_, count)| count).sum();
        let limits: Vec<Value> =
            counts.iter().take(LIMITS_MAX).map(|(name, count)| json!({ "limit": name, "overrides": count })).collect();
        let rows: Vec<Value> =
            page.iter().filter_map(|row| describe_row(config, config.limits.find(&row.limit)?, row)).collect();
        Ok(json!({ "total": total, "limits": limits, "overrides": rows, "next": next }))
    }

    /// Removes the live override with an id of the list.
    pub async fn remove_listed(&self, query: &str) -> Result<OverrideChange, Problem> {
        refuse_repeated(query, &[])?;
        let row = match decode_pairs(query).collect::<Vec<_>>().as_slice() {
            [("id", Some(id))] => open_row_id(id).ok_or_else(unknown_id)?,
            _ => return Err(bad_query("the only parameter is `id`, of a row of the list")),
        };
        let snapshot = self.current.load_full();
        let limit = self.find_limit(&snapshot.config, &row.limit)?;
        let entry = limit.overrides.find_live(&limit.key, &row.field);
        let (Some((values, _)), Some(value)) = (entry, self.live.find_value(&row.limit, &row.field)) else {
            let detail = "this override is gone: somebody has removed it";
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        };
        if !row.has_value(&value) {
            let detail = "somebody has changed this override since the list was shown; get the list again";
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        }
        let mut answer = self.change_live(&snapshot.config, limit, (&join_values(&values), None)).await?;
        answer["limit"] = limit.name.as_str().into();
        answer["key"] = show_values(&snapshot.config.admin.key_display, limit, &values).into();
        Ok(OverrideChange::new(answer, None))
    }
}

/// Describes an entry; `None` if it was removed in the meantime.
fn describe_row(config: &Config, limit: &Arc<Limit>, found: &LiveEntry) -> Option<Value> {
    let (values, entry): (Vec<OverrideValue>, OverrideEntry) = limit.overrides.find_live(&limit.key, &found.field)?;
    let mut row = describe_entry(&entry, OverrideOrigin::Live);
    row["id"] = seal_row_id(&limit.name, &found.field, &found.value)?.into();
    row["limit"] = limit.name.as_str().into();
    row["key"] = show_values(&config.admin.key_display, limit, &values).into();
    row["ended"] = (!entry.applies(&clock::now_ms)).into();
    Some(row)
}

/// Returns the key of an entry as logs show keys. `NAME=*` is any value.
fn show_values(display: &KeyDisplay, limit: &Limit, values: &[OverrideValue]) -> String {
    let show = |(part, value): (&KeyPart, &OverrideValue)| {
        let name = part.state_name();
        match value {
            OverrideValue::Any if *part == KeyPart::All => name,
            OverrideValue::Any => format!("{name}=*"),
            OverrideValue::Hash(hash) if display.visibility(part) != KeyVisibility::Hidden => format!("{name}#{hash}"),
            OverrideValue::Hash(_) => display.show_state_part(part, &format!("{name}=")),
            OverrideValue::Bytes(bytes) => {
                let mut state = name;
                write_value(&mut state, bytes);
                display.show_state_part(part, &state)
            }
        }
    };
    limit.key.0.iter().zip(values).map(show).collect::<Vec<_>>().join(",")
}
