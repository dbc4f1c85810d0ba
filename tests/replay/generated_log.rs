//! Made-up traffic as a log of our own format, the same in every run.

use serde_json::json;

/// One request of it.
#[derive(Clone, Debug)]
pub struct ReplayedRequest {
    pub at_ms: i64,
    pub client: u32,
    pub cost: i64,
    pub duration_ms: i64,
    pub status: u16,
}

/// 2026-01-31T22:00:00Z: two hours before a month ends.
pub const START_MS: i64 = 1_769_896_800_000;

/// A generator of numbers that look random.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from((self.0 >> 33) % bound).unwrap()
    }
}

/// `count` requests of a few clients, in the order of their starts: lulls of up to `lull_ms`, and
/// bursts within a millisecond.
pub fn traffic(seed: u64, count: usize, lull_ms: u64) -> Vec<ReplayedRequest> {
    let mut dice = Dice(seed);
    let mut at_ms = START_MS;
    let requests = (0..count).map(|_| {
        at_ms += if dice.below(3) == 0 { dice.below(lull_ms) } else { dice.below(40) / 30 * dice.below(500) };
        let status = [200, 200, 401, 503, 499][usize::try_from(dice.below(5)).unwrap()];
        let client = u32::try_from(dice.below(3)).unwrap();
        ReplayedRequest { at_ms, client, cost: 1 + dice.below(3), duration_ms: dice.below(3000), status }
    });
    requests.collect()
}

/// Builds a log as our gateway writes it, but with queries: a line when a request ends, with the time of its start.
/// Also returns the requests in the order in which they are decided, with their lines.
pub fn log(mut requests: Vec<ReplayedRequest>, durations: bool) -> (String, Vec<(u64, ReplayedRequest)>) {
    requests.sort_by_key(|request| request.at_ms + if durations { request.duration_ms } else { 0 });
    let lines = requests.iter().map(|request| {
        let mut line = json!({
            "time": jiff::Timestamp::from_millisecond(request.at_ms).unwrap().to_string(),
            "client": format!("192.0.2.{}", request.client), "method": "GET", "host": "a.example",
            "path": format!("/?cost={}", request.cost), "route": "/", "status": request.status, "bytes": 5,
            "refused_by": null,
        });
        if durations {
            line["duration_ms"] = json!(request.duration_ms);
        }
        format!("{line}\n")
    });
    let text = lines.collect();
    let mut numbered: Vec<(u64, ReplayedRequest)> = (1..).zip(requests).collect();
    numbered.sort_by_key(|(line, request)| (request.at_ms, *line));
    (text, numbered)
}

/// One limit per client for all of it.
pub fn config(limit: &str) -> String {
    format!(
        "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"it\"]\n\n[limit.it]\ncost = \"query:cost\"\n{limit}\n"
    )
}
