//! When keys are fetched again. Pure: randomness is an argument.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL, DATE, EXPIRES};

/// Lifetime of keys whose response states none.
const DEFAULT: Duration = Duration::from_secs(10 * 60);
/// Bounds of the lifetime. A longer one would delay the withdrawal of a key, a shorter one burdens the issuer.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);
/// Pause after the first failure, which doubles, and its maximum.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Returns how long a response says that it is fresh (RFC 9111), within bounds.
pub fn lifetime_of(headers: &HeaderMap) -> Duration {
    stated_lifetime(headers).unwrap_or(DEFAULT).clamp(SHORTEST, LONGEST)
}

fn stated_lifetime(headers: &HeaderMap) -> Option<Duration> {
    let lines = || headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let directives = || lines().flat_map(|line| line.split(',')).map(str::trim);
    let has = |name: &str| directives().any(|directive| directive.eq_ignore_ascii_case(name));
    if has("no-store") || has("no-cache") {
        return Some(Duration::ZERO);
    }
    let seconds = directives().find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse::<u64>().ok())?
    });
    if let Some(seconds) = seconds {
        let age = headers.get(AGE).and_then(|age| age.to_str().ok()?.trim().parse().ok()).unwrap_or(0);
        return Some(Duration::from_secs(seconds.saturating_sub(age)));
    }
    let date_of = |name| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    let until = date_of(EXPIRES)?;
    let from = date_of(DATE).unwrap_or_else(SystemTime::now);
    Some(until.duration_since(from).unwrap_or(Duration::ZERO))
}

/// Returns the pause after `failures` failures in a row.
pub fn pause_after(failures: u32, chance: f64) -> Duration {
    vary(FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE), chance)
}

/// Shortens a pause by up to a fifth, so that not all gateways ask at once. `chance` is from 0 to 1.
pub fn vary(pause: Duration, chance: f64) -> Duration {
    pause.mul_f64(1.0 - 0.2 * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_states_its_lifetime_within_bounds() {
        const DATE: (&str, &str) = ("date", "Sun, 29 Nov 2026 12:00:00 GMT");
        for (lines, seconds) in [
            (vec![], 600),
            (vec![("cache-control", "public, max-age=1800")], 1800),
            (vec![("cache-control", "Max-Age=\"1800\", must-revalidate"), ("age", "300")], 1500),
            (vec![("cache-control", "max-age=20")], 60),
            (vec![("cache-control", "max-age=604800")], 3600),
            (vec![("cache-control", "max-age=99999999999999999999")], 600),
            (vec![("cache-control", "max-age=1800, no-cache")], 60),
            (vec![("cache-control", "no-store")], 60),
            (vec![DATE, ("expires", "Sun, 29 Nov 2026 12:20:00 GMT")], 1200),
            (vec![DATE, ("expires", "Sun, 29 Nov 2026 11:00:00 GMT")], 60),
            (vec![DATE, ("expires", "0")], 600),
            (vec![DATE, ("expires", "Sun, 29 Nov 2026 12:20:00 GMT"), ("cache-control", "max-age=900")], 900),
        ] {
            let headers: HeaderMap =
                lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(lifetime_of(&headers).as_secs(), seconds, "{lines:?}");
        }
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds = |failures| pause_after(failures, 0.0).as_secs();
        assert_eq!([0, 1, 2, 3, 6, 7, 100, u32::MAX].map(seconds), [1, 1, 2, 4, 32, 60, 60, 60]);
        assert_eq!(pause_after(100, 1.0), Duration::from_secs(48));
    }
}
