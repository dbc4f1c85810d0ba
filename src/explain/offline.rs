//! A limiter without a gateway: all keys are unused, and the caller sets the time.

use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::explain::descriptors::{RateLimitInput, explain_rate_limit};
use crate::explain::explanation::Explanation;
use crate::explain::input::ExplainInput;
use crate::explain::steps::{explain_request, plain_display};
use crate::explain::walk::{ExplainContext, MadeCharge};
use crate::limiting::Limiter;
use crate::limiting::clock;
use crate::limiting::decision::Op;
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::store::memory::MemoryStore;
use crate::limiting::store::timeline::{Timeline, run_now};
use crate::limiting::store::{Store, Stores};
use crate::telemetry::metrics::Metrics;

/// A limiter with its own memory and clock.
pub struct OfflineLimiter {
    limiter: Limiter,
    pub timeline: Rc<Timeline>,
}

impl OfflineLimiter {
    /// # Errors
    /// The metrics of the limiter cannot be created.
    pub fn new(config: &Config) -> Result<OfflineLimiter, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let timeline = Rc::new(Timeline::new(config.store.max_keys, &config.limits));
        let stores = Stores::new(Arc::new(MemoryStore::new(1)), &metrics);
        let limiter = Limiter::new(Store::Timeline(timeline.clone()), None, &stores, &config.store.prefix);
        Ok(OfflineLimiter { limiter, timeline })
    }

    /// Explains a request at the time of the limiter, and charges it if `op` is [`Op::Take`].
    ///
    /// # Errors
    /// The input is not a request that a client can send.
    pub fn explain(
        &self,
        input: &ExplainInput,
        config: &Config,
        op: Op,
    ) -> Result<(Explanation, Vec<MadeCharge>), String> {
        let display = plain_display();
        explain_now(explain_request(input, &self.context(config, &display, op)))?
    }

    fn context<'a>(&'a self, config: &'a Config, display: &'a KeyDisplay, op: Op) -> ExplainContext<'a> {
        let stated_ms = Some(self.timeline.now_ms());
        ExplainContext { config, limiter: &self.limiter, display, op, explains_hidden: true, is_live: false, stated_ms }
    }
}

/// Runs an explanation by a store in this process.
fn explain_now<T>(explaining: impl Future<Output = T>) -> Result<T, String> {
    run_now(explaining).ok_or_else(|| "the store in memory did not respond".to_owned())
}

/// Explains a rate limit request with unused limits, at `at_ms` or now.
///
/// # Errors
/// The metrics of the limiter cannot be created.
pub fn explain_rate_limit_offline(
    input: &RateLimitInput,
    config: &Config,
    at_ms: Option<i64>,
) -> Result<Explanation, String> {
    let limiter = OfflineLimiter::new(config)?;
    limiter.timeline.set_now(at_ms.unwrap_or_else(clock::now_ms));
    let display = plain_display();
    explain_now(explain_rate_limit(input, &limiter.context(config, &display, Op::Peek)))
}

/// Explains a request with unused limits, at `at_ms` or now.
///
/// # Errors
/// The input is not a request that a client can send.
pub fn explain_offline(input: &ExplainInput, config: &Config, at_ms: Option<i64>) -> Result<Explanation, String> {
    let limiter = OfflineLimiter::new(config)?;
    limiter.timeline.set_now(at_ms.unwrap_or_else(clock::now_ms));
    limiter.explain(input, config, Op::Peek).map(|(explanation, _)| explanation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use crate::explain::text::render_explanation;

    const CONFIG: &str = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
        [[route]]\npath = \"/a/{id}\"\nhost = \"*.test\"\nupstream = \"echo:\"\nlimits = [\"one\"]\n\
        [[route]]\npath = \"/\"\nstrictness = \"monitor\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"two\"]\n\
        [limit.one]\nrate = \"1/s\"\nkey = [\"param:id\", \"cookie:s\"]\nmissing = \"shared\"\ncost = \"query:c\"\n\
        [limit.two]\nrate = \"1/s\"\nkey = \"json:/a\"\nmissing = \"refuse\"\nwhen = { header = { x-a = \"~ ^b\" } }\n";
    const PIECES: [&str; 30] = [
        "http://",
        "https://",
        "a.test",
        "[::1]",
        "/",
        "/a/",
        "..",
        "%2f",
        "%00",
        "%",
        "\\",
        "?",
        "#",
        "c=1",
        "&",
        ":",
        "@",
        "\u{e9}",
        "\u{202e}",
        "\u{1f600}",
        "*",
        ";",
        "~",
        ",",
        "for=",
        "192.0.2.1",
        "\"",
        "{\"a\":1}",
        "s=1",
        "\u{7f}",
    ];

    /// Joins random pieces. `state` is a generator with a fixed seed.
    fn random_text(state: &mut u64, most: u64) -> String {
        let mut next = |below: u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) % below
        };
        let count = next(most + 1);
        (0..count).map(|_| PIECES[usize::try_from(next(30)).unwrap()]).collect()
    }

    #[test]
    fn no_input_panics_and_each_is_explained_or_refused() {
        let config = load_text("test", CONFIG).unwrap();
        let limiter = OfflineLimiter::new(&config).unwrap();
        let (mut state, mut explained) = (1, 0);
        for round in 0..30_000_u32 {
            let names =
                ["x-forwarded-for", "forwarded", "cookie", "x-a", "connection", "content-length", "host", "a b"];
            let name = names[round as usize % names.len()];
            let start = if round % 8 == 0 { "" } else { "http://a.test/a/" };
            let input = ExplainInput {
                method: if round % 5 == 0 { random_text(&mut state, 2) } else { "POST".to_owned() },
                url: format!("{start}{}", random_text(&mut state, 6)),
                headers: vec![
                    (name.to_owned(), random_text(&mut state, 5)),
                    ("x-a".to_owned(), "b".to_owned()),
                    ("content-type".to_owned(), "application/json".to_owned()),
                ],
                body: (round % 3 == 0).then(|| random_text(&mut state, 4).into_bytes()),
                ..ExplainInput::default()
            };
            let op = if round % 2 == 0 { Op::Peek } else { Op::Take };
            if let Ok((explanation, _)) = limiter.explain(&input, &config, op) {
                explained += 1;
                assert!(!explanation.verdict.decision.is_empty() && !explanation.verdict.detail.is_empty());
                if round % 50 == 0 {
                    let text = render_explanation(&explanation);
                    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
                }
            }
        }
        assert!(explained > 6_000, "only {explained} inputs were requests");
    }

    #[test]
    fn the_ends_of_bans_are_those_of_the_stated_time() {
        const AT_MS: i64 = 1_000_000_000_000;
        const CONFIG: &str = "[[route]]\nupstream = \"echo:\"\nlimits = [\"l\"]\n[limit.l]\nrate = \"1/h\"\n\
            ban = { after = 1, within = \"1h\", for = \"2h\" }\n";
        let config = load_text("test", CONFIG).unwrap();
        let limiter = OfflineLimiter::new(&config).unwrap();
        limiter.timeline.set_now(AT_MS);
        let input =
            ExplainInput { method: "GET".to_owned(), url: "http://a.test/".to_owned(), ..ExplainInput::default() };
        let explain = || limiter.explain(&input, &config, Op::Take).unwrap().0;
        assert_eq!(explain().verdict.passes_at, None);
        for _ in 0..2 {
            let refused = explain();
            let end = refused.verdict.passes_at.unwrap();
            assert!(end.starts_with("2001-09-09T0"), "{end}");
            assert!(refused.limits[0].detail.contains(&format!(" until {end}")), "{}", refused.limits[0].detail);
        }
    }
}
