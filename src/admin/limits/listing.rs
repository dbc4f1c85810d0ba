//! Lists the configured limits as JSON. With many limits and routes this is expensive, so it is built once per config.
//! Called by `mod.rs`.

use std::cell::RefCell;
use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::limiting::limit::Limit;
use crate::limiting::store::shares::KeyDivision;
use crate::snapshot::Snapshot;

/// The list built last.
#[derive(Default)]
pub struct Listing(RefCell<Option<LimitList>>);

struct LimitList {
    generation: u64,
    /// The second it was built in, if a limit has one policy per window: windows start and end with whole seconds.
    second: Option<i64>,
    text: Bytes,
    /// Byte range of each limit within the text.
    places: Vec<Range<usize>>,
}

impl Listing {
    /// Returns all limits.
    pub fn list_all(&self, snapshot: &Snapshot, now_ms: i64) -> Bytes {
        self.with_list(snapshot, now_ms, |listed| listed.text.clone())
    }

    /// Returns the limit at index `place` in the config.
    pub fn show_one(&self, snapshot: &Snapshot, place: usize, now_ms: i64) -> Option<Bytes> {
        self.with_list(snapshot, now_ms, |listed| {
            listed.places.get(place).map(|range| listed.text.slice(range.clone()))
        })
    }

    fn with_list<T>(&self, snapshot: &Snapshot, now_ms: i64, look: impl FnOnce(&LimitList) -> T) -> T {
        let mut slot = self.0.borrow_mut();
        let has_calendar = snapshot.config.limits.iter().any(|limit| limit.rule.is_calendar());
        let second = has_calendar.then_some(now_ms.div_euclid(1000));
        let list = match slot.take().filter(|list| list.generation == snapshot.generation && list.second == second) {
            Some(fresh) => slot.insert(fresh),
            None => slot.insert(LimitList::new(snapshot, second, now_ms)),
        };
        look(list)
    }
}

impl LimitList {
    fn new(snapshot: &Snapshot, second: Option<i64>, now_ms: i64) -> LimitList {
        let config = &snapshot.config;
        let (mut text, mut places) = ("{\"limits\":[".to_owned(), Vec::with_capacity(config.limits.len()));
        let division = KeyDivision::new(config.store.max_keys, &config.limits);
        // The names of the routes that use each limit, with their price.
        let mut routes = vec![Vec::new(); config.limits.len()];
        for route in config.all_routes() {
            for limit in &route.limits {
                let Some(place) = config.limits.index_of(&limit.name) else { continue };
                let price = Some(limit).filter(|limit| limit.cost != config.limits[place].cost);
                let price = price.map(|limit| (route.name.clone(), limit.cost.to_string().into()));
                routes[place].push((route.name.as_str(), price));
            }
        }
        for (limit, routes) in config.limits.iter().zip(routes) {
            if !places.is_empty() {
                text.push(',');
            }
            let start = text.len();
            let (routes, prices): (Vec<&str>, Vec<_>) = routes.into_iter().unzip();
            let lists = (&routes[..], prices.into_iter().flatten().collect());
            let budget = config.written_budget(&limit.name).unwrap_or_else(|| limit.rule.describe_number());
            text.push_str(&describe_limit((limit, &budget), division.bounds_of(limit), lists, now_ms).to_string());
            places.push(start..text.len());
        }
        text.push_str("]}");
        LimitList { generation: snapshot.generation, second, text: text.into(), places }
    }
}

fn describe_limit(
    (limit, budget): (&Limit, &str),
    (min_keys, max_keys): (usize, usize),
    (routes, prices): (&[&str], Map<String, Value>),
    now_ms: i64,
) -> Value {
    let policy = limit.rule.policy_at(now_ms);
    let key: Vec<String> = limit.key.0.iter().map(ToString::to_string).collect();
    let fair = limit.fair.as_ref().map(|fair| {
        let key: Vec<String> = fair.key.0.iter().map(ToString::to_string).collect();
        json!({ "key": key, "weight": fair.weight, "reserve": limit.rule.reserve() })
    });
    json!({
        "limit": limit.name,
        "fair": fair,
        "algorithm": limit.rule.name(),
        "budget": budget,
        "policy": { "quota": policy.quota, "window_ms": policy.window_ms },
        "key": key,
        "missing": limit.missing.label(),
        "repeated": limit.repeated.label(),
        "not_integer": limit.not_integer.label(),
        "min_keys": min_keys,
        "max_keys": max_keys,
        "cost": limit.cost.to_string(),
        "route_costs": prices,
        "mode": limit.mode.label(),
        "over": limit.over.text(),
        "ban": limit.ban.as_ref().map(|ban| ban.rule.describe()),
        "candidate_of": limit.candidate_of,
        "tier_of": limit.tier_of,
        "on_error": limit.on_error.label(),
        "routes": routes,
    })
}
