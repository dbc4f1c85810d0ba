//! Every algorithm with every format of its state, as configured limits.

use std::sync::Arc;

use sluicegate::config;
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::limit::Limit;

/// An algorithm with one format of its state.
pub struct Variant {
    /// Name of the limit and the route, made of the algorithm and the variant.
    pub name: &'static str,
    /// The lines of `[limit.NAME]` except its key.
    pub lines: String,
    /// Units that a new key may use at once.
    pub available: i64,
    /// Units that a key may use in its first hour, without refunds.
    pub total: i64,
}

/// Returns all variants. Each has about `count` units (at least 2), none of which is refilled within an hour.
pub fn variants(count: i64) -> Vec<Variant> {
    let variant = |name: &'static str, lines: String| Variant { name, lines, available: count, total: count };
    let bucket = |more: &str| format!("rate = \"1/2h\"\n{more}");
    let windows = |algorithm: &str, rate: &str, more: &str| {
        format!("algorithm = \"{algorithm}\"\nrate = \"{count}/{rate}\"\n{more}")
    };
    // A single tenant gets everything except the reserve.
    let fair = |algorithm: &str, more: &str| {
        let fair = format!("fair = {{ key = \"header:x-tenant\", reserve = {count} }}");
        format!("algorithm = \"{algorithm}\"\nburst = {}\n{fair}\n{}", 2 * count, bucket(more))
    };
    let queue = format!("algorithm = \"leaky_bucket\"\nrate = \"{}/24h\"\nqueue = \"24h\"\n", count - 1);
    vec![
        variant("token_bucket", bucket(&format!("burst = {count}"))),
        variant("token_bucket.interval", bucket(&format!("burst = {count}\nrefill = \"interval\""))),
        // The last unit is a debt, which a bucket allows while it holds a trace of a token.
        Variant {
            available: count - 1,
            ..variant("token_bucket.debt", bucket(&format!("burst = {}\ndebt = 1", count - 1)))
        },
        variant("token_bucket.interval.debt", bucket(&format!("burst = {count}\ndebt = 5\nrefill = \"interval\""))),
        Variant {
            available: 0,
            total: 0,
            ..variant("token_bucket.empty", bucket(&format!("burst = {count}\nstart = \"empty\"")))
        },
        variant("gcra", format!("algorithm = \"gcra\"\n{}", bucket(&format!("burst = {count}")))),
        variant("fair", fair("token_bucket", "")),
        variant("fair.gcra", fair("gcra", "")),
        Variant { available: 0, total: 0, ..variant("fair.empty", fair("token_bucket", "start = \"empty\"")) },
        variant("fixed_window.first_hit", windows("fixed_window", "2h", "anchor = \"first_hit\"")),
        variant("fixed_window.clock", windows("fixed_window", "365d", "anchor = \"clock\"")),
        variant("sliding_window.2", windows("sliding_window", "365d", "precision = 2")),
        variant("sliding_window.3", windows("sliding_window", "6h", "precision = 3")),
        variant("sliding_window.60", windows("sliding_window", "2h", "precision = 60")),
        variant("calendar.month", windows("calendar", "month", "zone = \"America/St_Johns\"")),
        variant("calendar.year", windows("calendar", "year", "zone = \"Asia/Kathmandu\"")),
        variant("sliding_log.list", windows("sliding_log", "2h", "state = \"list\"")),
        variant("sliding_log.sorted_set", windows("sliding_log", "2h", "state = \"sorted_set\"")),
        variant("leaky_bucket", queue.clone()),
        variant("leaky_bucket.nodelay", queue + "nodelay = true"),
        variant("concurrency", format!("algorithm = \"concurrency\"\nin_flight = {count}\nlease = \"1h\"")),
    ]
}

impl Variant {
    /// The limit as compiled from the config.
    pub fn limit(&self) -> Arc<Limit> {
        compile_limit(self.name, &self.lines)
    }

    pub fn algorithm(&self) -> &str {
        self.name.split('.').next().unwrap()
    }
}

/// A limit with these lines and one key for all requests.
pub fn compile_limit(name: &str, lines: &str) -> Arc<Limit> {
    let text = format!("[limit.\"{name}\"]\nkey = \"all\"\n{lines}\n");
    let text = format!("[[route]]\nupstream = \"echo:\"\nlimits = [\"{name}\"]\n{text}");
    let config = config::load_text("form.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(false)));
    config.limits[0].clone()
}

/// The rule of a limit with these lines.
pub fn compile_rule(lines: &str) -> Rule {
    (*compile_limit("one", lines).rule).clone()
}
