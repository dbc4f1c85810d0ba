//! Compiled keys, tokens, conditions and chains of limits. Mistakes are in `tests/config/bad`, each with its text.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use rand::Rng;
use sluicegate::config;
use sluicegate::config::Config;
use sluicegate::limiting::algorithm::params::ParamKind;
use sluicegate::limiting::algorithm::{Rule, SPECS, Spec};
use sluicegate::limiting::key::{Key, KeyPart};
use sluicegate::limiting::source::{Facts, Prefixes, Repeated, Source};

const ROUTE: &str = "[[route]]\nupstream = \"echo:\"\n";

fn good(text: &str) -> Config {
    config::load_text("test", &format!("{ROUTE}{text}")).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

fn facts<'a>(headers: &'a HeaderMap, query: Option<&'a str>) -> Facts<'a> {
    let bare = Facts::new(IpAddr::from([10, 1, 2, 3]), "r", headers);
    Facts { method: "GET", host: "h", path: "/", query, body_length: Some(0), ..bare }
}

#[test]
fn key_parts_have_names() {
    let config = good(
        "[limit.x]\nrate = \"1/s\"\nkey = [\"cookie:Sid\", \"query:a[b]\", \"param:post_id\", \"ip/24/56\", \"header:X-Key\"]",
    );
    let key = [
        Source::Cookie("Sid".into()),
        Source::Query("a[b]".into()),
        Source::Param("post_id".into()),
        Source::Ip(Prefixes { v4: 24, v6: 56 }),
        Source::Header("x-key".parse().unwrap()),
    ];
    assert_eq!(config.limits[0].key, Key(key.map(KeyPart::Source).to_vec()));
}

const RSA: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA5CH5u1YbTnRjqEcN+ayw
ViBelVQXpCTp0EL6ZNt8FPS4sNIfP0iWxfxZQ8y4tGcm3k4ea6UUXKA9cZn6/5kV
ZV+S/gECyFkOzxxNy+mVGsgGkfO3obFqX5IfBfaEsTYwv7KBGQnr3J2CsK/QTyif
2oshZW/SCikV06ogjTEQvODvSaM33MaVUpPWZ78PN2FD2f0PFnmMgJ5VdHDdB3O6
Npv6CFA6sbXnHrizZnLoJfAYzDBNdWpy2EoNDdL3OnV9YUGG6LTs58VehuPrLy4d
eOKVP03uFYFUeO5YurA3WwfNS1Z5gUJIvh02jWF89RjeO9KtLLOY5pidm1C5RcPN
DQIDAQAB
-----END PUBLIC KEY-----
";
/// `{"sub":"anna"}`, signed with the private half, which is not kept.
const RSA_TOKEN: &str = "Bearer eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm5hIn0.\
    fAF3Ojbc4pwbw53Bv90Att31fBhmcF8l8ClS8BLQ_fBRgIKdfukgqvBLQ-gLq94jJ2Y356yQS6gh_31eXF6zVW6i8fPhf6sF-Jy5iTwg\
    MKgCsn5cj3vRBfURqaTTnsFSuVHk1T02wIAUw9_DTqZ9R_7SXIeY1ox2IYeGA4oUm7VmIMHkNvwq52YO_H5JO067iFz94OIOHJYLNrqy\
    TnECDJc8GtaBzxQusB6mbYbo1D-YEuPGPXVWUHv_5iymzEoM9Ywi5q7YkblFtg3nURlLF9-m0gHnA0KB0LHlDbeZGTO32yIBFhPZEulj\
    17-vsmchrJxGK3Z1v0z3KryYmmAeWg";

#[test]
fn public_keys_of_every_kind_load_and_an_rsa_signature_is_checked() {
    let config = good(&format!("[jwt]\nkey = '''{RSA}'''\nalgorithms = [\"RS256\"]"));
    let sub = |token: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(token).unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = config.jwt.as_ref().unwrap().verify_request(&headers, i64::try_from(now).unwrap())?;
        claims.get("sub", Repeated::Refuse).unwrap().map(|claim| claim.into_owned())
    };
    assert_eq!(sub(RSA_TOKEN).as_deref(), Some("anna"));
    assert_eq!(sub(&RSA_TOKEN.replace("fAF3", "gAF3")), None);

    for (key, algorithm) in [
        (
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEUu0EPWqG9u8Xo307OleGKM7ExhZt\n\
             xr1jJFSWAOKjQFRe/c3ESQyDCw6hY+YgOO1m/jt+QnjXbobL3r/9+vdtrg==",
            "ES256",
        ),
        ("MCowBQYDK2VwAyEAWKtPg/T6VoGcARhhq5ezjSvXCTquZuyKDv2MLBFOsig=", "EdDSA"),
    ] {
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n");
        let config = good(&format!("[jwt]\nkey = '''{pem}'''\nalgorithms = \"{algorithm}\"\nheader = \"x-token\""));
        assert_eq!(config.jwt.unwrap().header, "x-token");
        for other in ["RS256", "ES256", "EdDSA"].into_iter().filter(|other| *other != algorithm) {
            let text = format!("{ROUTE}[jwt]\nkey = '''{pem}'''\nalgorithms = \"{other}\"");
            assert!(config::load_text("test", &text).is_err(), "{algorithm} as {other}");
        }
    }
}

#[test]
fn a_key_that_is_shared_by_kinds_of_bodies_is_a_warning() {
    let warned = |lines: &str| {
        let config = good(&format!("[limit.x]\nrate = \"1/s\"\n{lines}"));
        config.warnings.map(|report| report.to_string()).unwrap_or_default()
    };
    let warning = warned("key = [\"form:user\", \"json:/user\"]");
    assert!(
        warning.contains("a client has two budgets") && warning.contains("write \"form:user | json:/user\""),
        "{warning}"
    );
    for key in
        ["\"form:user | json:/user\"", "[\"form:user | query:user\", \"json:/user\"]", "[\"form:user\", \"form:x\"]"]
    {
        for missing in ["shared", "skip", "refuse"] {
            let warning = warned(&format!("key = {key}\nmissing = \"{missing}\""));
            assert!(!warning.contains("`key`"), "{warning}");
        }
    }
}

#[test]
fn a_shorthand_has_alternatives_without_spaces() {
    let limits = ["2/h by query:user|header:x-user,path".to_owned()];
    let arguments = config::ProxyArguments {
        to: "http://127.0.0.1:3000/",
        listen: "127.0.0.1:8080",
        limits: &limits,
        ..config::ProxyArguments::default()
    };
    let text = config::proxy_text(&arguments).unwrap();
    let config = config::load_text("test", &text).unwrap_or_else(|report| panic!("{report}"));
    let alternatives = vec![Source::Query("user".into()), Source::Header("x-user".parse().unwrap())];
    let parts = vec![KeyPart::Alternatives(alternatives), KeyPart::Source(Source::Path)];
    assert_eq!(config.limits[0].key, Key(parts));
    assert_eq!(config.limits[0].key.0[0].to_string(), "query:user | header:x-user");
}

#[test]
fn a_base_precedes_the_limits_after_it() {
    let limit = |name, after| format!("[limit.{name}]\nrate = \"1/s\"\n{after}\n");
    let text = format!(
        "limits = [\"c\", \"b\", \"d\", \"a\"]\n{}{}{}{}",
        limit("a", ""),
        limit("b", "after = \"a\""),
        limit("c", "after = \"b\""),
        limit("d", "")
    );
    let names: Vec<String> = good(&text).routes[0].limits.iter().map(|limit| limit.name.clone()).collect();
    assert_eq!(names, ["d", "a", "b", "c"]);
}

#[test]
fn a_condition_needs_no_set_of_addresses_but_a_client_does() {
    let text = "[set.s]\nvalues = [\"anna\", \"10.0.0.0/8\"]\n[limit.x]\nrate = \"1/s\"\nwhen = { WHAT }";
    let x = good(&text.replace("WHAT", "query = { q = \"set:s\" }")).limits[0].clone();
    let headers = HeaderMap::new();
    for (query, holds) in [("q=anna", true), ("q=10.0.0.0/8", true), ("q=10.0.0.1", false), ("", false)] {
        assert_eq!(x.applies_to(&facts(&headers, Some(query))), Ok(holds), "{query}");
    }
    let text = format!("{ROUTE}{}", text.replace("WHAT", "client = \"set:s\""));
    assert!(config::load_text("test", &text).unwrap_err().to_string().contains("`anna` is not an address"));
}

/// Matches a pattern as the reference config describes it, word by word.
fn naive(pattern: &str, value: Option<&str>, set: &[&str]) -> bool {
    if let Some(rest) = pattern.strip_prefix('!') {
        return !naive(rest, value, set);
    }
    let Some(value) = value else { return false };
    let int = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        (!digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())).then(|| text.parse::<i128>().unwrap())
    };
    if let Some(text) = pattern.strip_prefix("= ") {
        return value == text;
    }
    if pattern == "set:s" {
        return set.contains(&value);
    }
    for (operator, holds) in [
        ("<=", (|a, b| a <= b) as fn(i128, i128) -> bool),
        (">=", |a, b| a >= b),
        ("<", |a, b| a < b),
        (">", |a, b| a > b),
    ] {
        if let Some(bound) = pattern.strip_prefix(operator) {
            return int(value).is_some_and(|value| holds(value, int(bound).unwrap()));
        }
    }
    if pattern == "*" {
        return !value.is_empty();
    }
    if pattern.contains('*') {
        let regex = format!("^{}$", regex::escape(pattern).replace("\\*", ".*"));
        return regex::Regex::new(&regex).unwrap().is_match(value);
    }
    let bounds: Vec<(i128, i128)> = (1..pattern.len())
        .filter(|at| pattern.as_bytes()[*at] == b'-')
        .filter_map(|at| Some((int(&pattern[..at])?, int(&pattern[at + 1..])?)))
        .collect();
    match bounds.first() {
        Some((from, to)) => int(value).is_some_and(|value| (*from..=*to).contains(&value)),
        None => value == pattern,
    }
}

fn pattern() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        3 => "[ab*]{1,3}",
        2 => (-20_i64..20, 0_i64..20).prop_map(|(from, more)| format!("{from}-{}", from + more)),
        2 => ("<|<=|>|>=", -20_i64..20).prop_map(|(operator, bound)| format!("{operator}{bound}")),
        1 => "= [ab0-9!*<-]{0,3}",
        1 => Just("set:s".to_owned()),
        1 => "[0-9]{1,2}",
        1 => Just("add-comment".to_owned()),
        1 => Just(String::new()),
    ];
    plain.prop_filter("two stars are as one", |text| {
        text.is_empty() || !text.trim_matches('*').is_empty() || text == "*"
    })
}

fn value() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        "[ab*!<-]{0,4}",
        (-25_i64..25).prop_map(|int| int.to_string()),
        "0?[0-9]{1,25}",
        Just("add-comment".to_owned()),
        Just("vip".to_owned()),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn conditions_hold_as_documented(
        patterns in prop::collection::vec(pattern(), 1..3),
        negated in any::<bool>(),
        value in value(),
    ) {
        let not = if negated { "!" } else { "" };
        let written: Vec<String> = patterns.iter().map(|pattern| format!("{:?}", format!("{not}{pattern}"))).collect();
        let config = good(&format!(
            "[set.s]\nvalues = [\"vip\", \"a\", \"7\"]\n[limit.x]\nrate = \"1/s\"\nnot_integer = \"ignore\"\nwhen = {{ query = {{ q = [{}] }} }}",
            written.join(", ")
        ));
        let mut words = patterns.iter().map(|pattern| naive(&format!("{not}{pattern}"), value.as_deref(), &["vip", "a", "7"]));
        let expected = if negated { words.all(|word| word) } else { words.any(|word| word) };
        let query = value.as_ref().map(|value| format!("q={value}"));
        let headers = HeaderMap::new();
        let holds = config.limits[0].applies_to(&facts(&headers, query.as_deref()));
        prop_assert_eq!(holds, Ok(expected), "{:?}", written);
    }
}

/// A limit whose number is this, with others that are large.
fn numbered(spec: &Spec, number: i64) -> String {
    let leading = match (spec.leading.kind, spec.number.words) {
        (ParamKind::Integer { .. }, _) => format!("{} = {number}", spec.leading.name),
        (_, "the count of the rate") => format!("rate = \"{number}/day\""),
        (_, "queue") => format!("rate = \"4999999999/5000000ms\"\nqueue = \"{number}ms\""),
        (_, words) => format!("rate = \"7/day\"\n{words} = {number}"),
    };
    format!("{ROUTE}[limit.x]\nalgorithm = \"{}\"\n{leading}\n", spec.name)
}

/// The replay recommends only numbers that a config accepts.
#[test]
fn the_largest_number_of_each_algorithm_loads_and_no_larger_one() {
    for spec in SPECS {
        let load = |number| config::load_text("test", &numbered(spec, number));
        let rule = |number| load(number).unwrap_or_else(|report| panic!("{number}: {report}")).limits[0].rule.clone();
        let largest = rule(spec.number.least).max_number();
        assert_eq!(rule(largest), rule(1).with_number(largest).into(), "{}", spec.name);
        let report = load(largest + 1).unwrap_err().to_string();
        assert!(report.contains(&largest.to_string()), "{}, {largest}:\n{report}", spec.name);
    }
}

/// If an algorithm has no default for an option that does not fit, the mistake is reported for the rate.
#[test]
fn a_window_shorter_than_its_counters_is_refused() {
    let text = format!("{ROUTE}limits = \"x\"\n[limit.x]\nalgorithm = \"sliding_window\"\nrate = \"5/ms\"\n");
    let report = config::load_text("test", &text).map(|_| ()).unwrap_err().to_string();
    assert!(report.contains("`rate` in [limit.x]: 2 parts of 1 ms are shorter than a millisecond"), "{report}");
    assert!(report.contains("the shortest period is 2ms"), "{report}");
}

/// An option as text, from small to far too large.
fn written(kind: ParamKind, rng: &mut impl Rng) -> String {
    let count = [1, 2, 7, 1000, 1 << 20, 1 << 40, (1 << 51) - 1, 1 << 52, i64::MAX][rng.random_range(0..9)];
    let within = |least: i64, most: i64, pick: u8| match pick {
        0 => least,
        1 => most,
        2 => most + 1,
        _ => i64::midpoint(least, most.min(1 << 22)),
    };
    let pick = rng.random_range(0..6);
    match kind {
        ParamKind::Rate => {
            format!("\"{count}/{}\"", ["ms", "3ms", "s", "997ms", "day", "3660day"][rng.random_range(0..6)])
        }
        ParamKind::CalendarRate => format!("\"{count}/{}\"", ["hour", "week", "year"][rng.random_range(0..3)]),
        ParamKind::Integer { least, most } => within(least, most, pick).to_string(),
        ParamKind::Duration { least_ms, most_ms } => format!("\"{}ms\"", within(least_ms, most_ms, pick)),
        ParamKind::Flag => rng.random_bool(0.5).to_string(),
        ParamKind::Choice(words) => format!("\"{}\"", words[rng.random_range(0..2)]),
        ParamKind::Zone => "\"Asia/Kathmandu\"".to_owned(),
        ParamKind::TimeOfDay => "\"04:30\"".to_owned(),
        ParamKind::Weekday => "\"sunday\"".to_owned(),
    }
}

/// Any options of an algorithm make a limit or a mistake, and a limit that loads never overflows.
#[test]
fn options_make_a_limit_that_counts_or_a_mistake() {
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    for spec in SPECS {
        let mut loaded = 0;
        for _ in 0..400 {
            let mut text = format!("{ROUTE}limits = \"x\"\n[limit.x]\nalgorithm = \"{}\"\n", spec.name);
            for param in spec.params() {
                if param.name == spec.leading.name || rng.random_bool(0.4) {
                    text += &format!("{} = {}\n", param.name, written(param.kind, rng));
                }
            }
            let Ok(config) = config::load_text("test", &text) else { continue };
            assert_eq!((config.routes.len(), config.limits.len()), (1, 1), "{text}");
            loaded += 1;
            let (rule, mut state, mut now) = (&config.limits[0].rule, None, 1_795_000_000_000);
            for _ in 0..12 {
                let cost = [0, 1, rule.max_cost(), rule.max_cost() + 1, 1_000_000_000][rng.random_range(0..5)];
                let step = rule.decide(state.as_ref(), now, cost, rng.random_range(0..1 << 52));
                assert!(!step.answer.admitted || cost <= rule.max_cost(), "{cost} of {text}");
                let receipt = step.answer.receipt;
                state = step.next.map(|(state, _)| state).or(state);
                let delta = [-1, -cost, 1, 1_000_000_000][rng.random_range(0..4)];
                state = rule.adjust(state.as_ref(), now, delta, receipt).map(|(state, ..)| state).or(state);
                now += [0, 1, 1000, 86_400_000][rng.random_range(0..4)];
            }
        }
        assert!(loaded > 40, "{}: {loaded} of 400 load", spec.name);
    }
}

#[test]
fn arguments_make_a_config() {
    let limits = ["10/s burst 20 by ip".to_owned(), "1000/day by header:x-api-key,path".to_owned(), "5/s".to_owned()];
    let arguments = |to, listen| config::ProxyArguments { to, listen, ..config::ProxyArguments::default() };
    let plain = arguments("http://127.0.0.1:3000/", "127.0.0.1:8080");
    let text = config::proxy_text(&config::ProxyArguments { limits: &limits, ..plain }).unwrap();
    let config = super::loading::good(&text);
    let names: Vec<&str> = config.routes[0].limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["per-ip", "per-header-x-api-key-path", "per-ip-2"]);
    assert!(matches!(&*config.limits[0].rule, Rule::TokenBucket(bucket) if bucket.burst == 20));
    let text = config::proxy_text(&arguments("http://a", "unix:/tmp/a \"b\\${HOME}")).unwrap();
    assert_eq!(super::loading::good(&text).listeners[0].address.to_string(), "unix:/tmp/a \"b\\${HOME}");

    let limits = ["10/s bust 20 by ipx".to_owned()];
    let arguments = config::ProxyArguments { limits: &limits, ..arguments("ftp://x", "8080") };
    let json = config::proxy_text(&arguments).unwrap_err().to_json();
    let found: Vec<_> =
        json.as_array().unwrap().iter().map(|m| (m["file"].as_str().unwrap(), m["column"].as_u64().unwrap())).collect();
    assert_eq!(found, [("--to", 1), ("--listen", 1), ("--limit", 6), ("--limit", 17)]);
}
