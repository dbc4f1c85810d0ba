//! The config loader from outside: the config that it builds from a good file, and its report on a bad one.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::machine::cpu_time;
use http::StatusCode;
use sluicegate::config;
use sluicegate::config::admin_tokens::TokenDigest;
use sluicegate::config::{Config, Report, Strictness};
use sluicegate::limiting::algorithm::Rule;
use sluicegate::limiting::algorithm::token_bucket::TokenBucket;
use sluicegate::limiting::key::{Key, KeyPart, Missing};
use sluicegate::limiting::limit::cost::Cost;
use sluicegate::limiting::limit::{Mode, OnError};
use sluicegate::limiting::source::{Prefixes, Source};
use sluicegate::limiting::store::settings::StoreKind;
use sluicegate::route::matcher::{HostPattern, PathPattern, Segment};
use sluicegate::route::{Action, Dialect};
use sluicegate::upstream::Balance;

pub const ROUTE: &str = "[[route]]\nupstream = \"echo:\"\n";

pub fn good(text: &str) -> Config {
    config::load_text("test", text).unwrap_or_else(|report| panic!("{report}"))
}

fn bad(text: &str) -> Report {
    config::load_text("test", text).map(|_| panic!("loads:\n{text}")).unwrap_or_else(|report| report)
}

/// Each `tests/config/bad/NAME.toml` is refused with exactly the text of `NAME.golden`. Regenerate the texts after a
/// change, and then read them: `GOLDEN=write cargo test --test limiting config::`.
#[test]
fn every_kind_of_mistake_is_explained() {
    let mut names: Vec<PathBuf> = std::fs::read_dir("tests/config/bad").unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    names.sort();
    assert!(names.len() >= 30);
    let mut wrong = Vec::new();
    for path in names {
        let report =
            config::load_config(&path).map(|_| panic!("{} loads", path.display())).unwrap_or_else(|report| report);
        let (found, golden) = (report.render(false) + "\n", path.with_extension("golden"));
        assert!(report.files().contains(&path));
        if std::env::var_os("GOLDEN").is_some() {
            std::fs::write(&golden, &found).unwrap();
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != found {
            wrong.push(format!("--- {} is refused with\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn json_has_the_place_and_the_remedy_of_each_mistake() {
    let report = bad("[[route]]\nupstream = \"echo:\"\n  pfad = \"ä\"\nname = 5\n");
    assert_eq!(
        report.to_json(),
        serde_json::json!([
            {
                "code": "SG0101", "file": "test", "line": 3, "column": 3,
                "message": "unknown key `pfad` in [[route]]",
                "help": "the keys here are name, host, path, methods, header, upstream, split, split_by, mirror, limits, allow, deny, auth, rewrite, \
                         rewrite_location, request_headers, response_headers, max_body, max_key_body, max_cost_body, max_in_flight, breaker, priority, \
                         refuse, error_pages, intercept, \
                         ratelimit_headers, body_timeout, min_body_rate, min_response_rate, connect_timeout, response_timeout, \
                         stream_timeout, tunnel_timeout, strictness, encoded_slashes, merge_slashes, upgrades, request_trailers, compress, cors, respond, redirect, files, try, cache_control",
            },
            {
                "code": "SG0101", "file": "test", "line": 4, "column": 8,
                "message": "`name` in [[route]]: it must be a string, found an integer",
                "help": null,
            },
        ])
    );
}

#[test]
fn a_missing_file_is_reported_with_a_remedy() {
    let report = config::load_config(Path::new("no/such.toml")).unwrap_err();
    let text = report.to_string();
    assert!(text.contains("cannot read the configuration file `no/such.toml`: the file does not exist"), "{text}");
    assert!(text.contains("sluicegate proxy --to URL"), "{text}");
    assert_eq!(report.files(), [PathBuf::from("no/such.toml")]);
    assert!(report.to_json()[0]["line"].is_null());
}

#[test]
fn text_that_is_no_text_and_files_without_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.toml");
    std::fs::write(&path, b"a = 1\nb = \"\xff\"\n").unwrap();
    assert!(config::load_config(&path).unwrap_err().to_string().contains("it is not UTF-8 at byte 11 (line 2)"));
    std::fs::File::create(&path).unwrap().set_len(16 * 1024 * 1024 + 1).unwrap();
    assert!(config::load_config(&path).unwrap_err().to_string().contains("it is larger than 16 MiB"));
    assert!(config::load_config(dir.path()).unwrap_err().to_string().contains("it is a directory"));
    assert!(config::load_config(Path::new("/dev/zero")).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn the_shipped_configs_load() {
    let small = config::load_config(Path::new("conf/sluicegate.toml")).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(
        std::fs::read_to_string("conf/sluicegate.toml")
            .unwrap()
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .count(),
        8
    );
    assert_eq!(small.upstreams[0].servers[0].origin.authority, "127.0.0.1:3000");
    let demo = config::load_config(Path::new("conf/demo.toml")).unwrap_or_else(|report| panic!("{report}"));
    assert!(matches!(demo.routes[0].action, Action::Echo));
    assert_eq!(demo.routes[0].limits.len(), 1);
    config::load_config(Path::new("conf/full.toml")).unwrap_or_else(|report| panic!("{report}"));
}

#[test]
fn the_reference_config_shows_every_key() {
    let (known, used) = config::known_and_used_keys(Path::new("conf/full.toml"));
    // `dns` excludes it, so it is a comment.
    let text = std::fs::read_to_string("conf/full.toml").unwrap();
    assert!(text.contains("\n#dns_program = ["));
    let missing: Vec<_> = known.difference(&used).filter(|key| **key != ("acme", "dns_program")).collect();
    assert!(missing.is_empty(), "conf/full.toml lacks {missing:?}");
}

/// The defaults in the reference config are the real ones.
#[test]
fn the_reference_config_states_the_defaults() {
    let full = config::load_config(Path::new("conf/full.toml")).unwrap();
    let none = good(ROUTE);
    // The example of `overload` has no default.
    let example = format!("{:?}", full.server.overload);
    assert_eq!(format!("{:?}", full.server).replace(&example, "None"), format!("{:?}", none.server));
    assert_eq!(full.listeners[..1], none.listeners);
    assert_eq!(full.admin.listen, none.admin.listen);
    assert_eq!(full.store, none.store);
    assert_eq!(full.ratelimit_headers, none.ratelimit_headers);
    assert_eq!(full.routes[0].timeouts, none.routes[0].timeouts);
    assert_eq!(full.routes[0].max_body, none.routes[0].max_body);
    let limit = good(&format!("{ROUTE}[limit.per-ip]\nrate = \"10/s\"\nburst = 20\n")).limits[0].clone();
    assert_eq!(format!("{:?}", full.limits[0]), format!("{limit:?}"));
}

#[test]
fn defaults() {
    let config = good(ROUTE);
    let server = &config.server;
    assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9900");
    assert!(config.admin.tokens.is_empty() && config.admin.audit.is_none());
    assert!(server.workers >= 1);
    assert_eq!(server.strictness, Strictness::Strict);
    assert_eq!((server.max_connections, server.max_connections_per_ip), (8_192, usize::MAX));
    assert_eq!((server.max_headers, server.max_header_bytes), (100, 32 * 1024));
    assert_eq!(server.handshake_timeout, Duration::from_secs(5));
    assert_eq!(server.header_timeout, Duration::from_secs(10));
    assert_eq!(server.keepalive_timeout, Duration::from_secs(75));
    assert_eq!((server.shutdown_delay, server.shutdown_timeout), (Duration::ZERO, Duration::from_secs(30)));
    assert!(server.access_log.is_none() && server.client_address.trusted.is_empty());
    assert_eq!((&config.store.kind, config.store.prefix.as_str()), (&StoreKind::Memory, "sg"));
    assert_eq!((config.store.deadline, config.store.on_error), (Duration::from_millis(30), OnError::Local));
    assert_eq!(config.ratelimit_headers, [Dialect::Draft11]);
    let route = &config.routes[0];
    assert_eq!((route.name.as_str(), route.max_body, route.max_in_flight), ("/", 10 << 20, None));
    assert_eq!((route.refuse.status, &route.refuse.body), (StatusCode::TOO_MANY_REQUESTS, &None));
    assert_eq!(route.refuse.content_type, "application/problem+json");
    assert_eq!((route.timeouts.min_body_rate, route.timeouts.connect), (256, Duration::from_secs(3)));
    assert_eq!(server.max_streams, 100);
    let timeouts = [route.timeouts.body, route.timeouts.response, route.timeouts.stream];
    assert_eq!(timeouts, [30, 60, 60].map(Duration::from_secs));
}

#[test]
fn includes_merge_by_name_and_every_file_is_remembered() {
    let config =
        config::load_config(Path::new("tests/config/good/main.toml")).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(config.server.workers, 2);
    assert!(config.server.access_log.is_some());
    assert!(config.admin.tokens[0].digest == TokenDigest::of_token(b"s3cret"));
    assert_eq!(config.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(config.routes.iter().map(|route| route.name.as_str()).collect::<Vec<_>>(), ["/main", "/app"]);
    assert!(Arc::ptr_eq(&config.routes[0].limits[0], &config.routes[1].limits[0]));
    let allow = &config.routes[1].allow;
    for (ip, inside) in [("10.9.9.9", true), ("192.0.2.1", true), ("2001:db8::1", true), ("2001:db8::2", false)] {
        assert_eq!(allow.contains(ip.parse::<IpAddr>().unwrap()), inside, "{ip}");
    }
    let dir = Path::new("tests/config/good");
    let files = ["main.toml", "token.txt", "conf.d", "conf.d/10-limits.toml", "conf.d/20-app.toml"];
    let more = ["", "conf.d/../vip.txt"];
    let expected: Vec<_> = files.iter().chain(&more).map(|name| dir.join(name)).collect();
    assert_eq!(config.files, expected);
}

#[test]
fn the_hash_changes_with_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "main.toml",
        &format!("include = [\"x.toml\"]\n{ROUTE}[set.s]\nfile = \"set.txt\"\n[admin]\ntoken = \"${{file:t}}\"\n"),
    );
    write("x.toml", "");
    write("set.txt", "10.0.0.0/8\n");
    write("t", "token");
    let hash = || config::load_config(&dir.path().join("main.toml")).unwrap_or_else(|report| panic!("{report}")).hash;
    let mut seen = vec![hash()];
    assert_eq!((hash(), seen[0].len()), (seen[0].clone(), 64));
    for (name, text) in [("x.toml", "# comment"), ("set.txt", ""), ("t", "other")] {
        write(name, text);
        assert!(!seen.contains(&hash()), "{name}");
        seen.push(hash());
    }
}

/// Editors of Windows write a mark before a text. It is not part of the first item, whatever kind of file has it.
#[test]
fn a_byte_order_mark_is_part_of_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), format!("\u{feff}{text}")).unwrap();
    write(
        "main.toml",
        "include = [\"more.toml\"]\n[set.words]\nfile = \"words\"\n[set.nets]\nfile = \"nets\"\n[[route]]\n\
         name = \"${file:name}\"\npath = \"/a\"\nupstream = \"echo:\"\ndeny = [\"set:nets\"]\nlimits = [\"l\"]\n\
         [[route]]\npath = \"/b\"\nredirect = { map = \"map\" }\n\
         [limit.l]\nrate = \"1/s\"\nkey = \"header:x-k\"\noverrides = { file = \"rows\" }\n\
         when = { header = { x-k = \"set:words\" } }\n",
    );
    write("more.toml", "[server]\nworkers = 1\n");
    write("words", "one\ntwo\n");
    write("nets", "10.0.0.1\n10.0.0.2\n");
    write("name", "first\n");
    write("map", "/b/old /b/new\n");
    write("rows", "one rate=5/s\n");
    let config = config::load_config(&dir.path().join("main.toml")).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(config.routes[0].name, "first");
    assert!(config.routes[0].deny.contains("10.0.0.1".parse().unwrap()));
    let words = &config.sets["words"].strings;
    assert!(words.contains("one"), "{words:?}");
    assert_eq!(config.limits.find("l").unwrap().overrides.file().unwrap().counts(), (1, 0));
}

#[test]
fn substitution_happens_inside_string_values_only() {
    let package = env!("CARGO_PKG_NAME");
    let text = "[[route]]\nname = \"${CARGO_PKG_NAME}-${SLUICEGATE_TEST_NOT_SET:-x y}-$${CARGO_PKG_NAME}$\"\nupstream = \"echo:\"";
    assert_eq!(good(text).routes[0].name, format!("{package}-x y-${{CARGO_PKG_NAME}}$"));
    // A value with quotes or brackets stays one value.
    let text = "[[route]]\nname = \"${SLUICEGATE_TEST_NOT_SET:-a\\\" ] #}\"\nupstream = \"echo:\"";
    assert_eq!(good(text).routes[0].name, "a\" ] #");
    let place = bad("[[route]]\nname = \"a-${SLUICEGATE_TEST_NOT_SET}\"\nupstream = \"echo:\"").to_json();
    assert_eq!((&place[0]["line"], &place[0]["column"]), (&2.into(), &11.into()));
}

/// A variable that is not set has its default, so the test needs no environment.
#[test]
fn variables_give_integers_booleans_and_durations() {
    let config = good(
        "[server]\nhttp2 = \"${SLUICEGATE_TEST_NOT_SET:-false}\"\nmax_connections = \"${SLUICEGATE_TEST_NOT_SET:-77}\"\n\
         max_body = \"${SLUICEGATE_TEST_NOT_SET:-4096}\"\nshutdown_timeout = \"${SLUICEGATE_TEST_NOT_SET:-7s}\"\n\
         [[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n\
         [limit.x]\nrate = \"${SLUICEGATE_TEST_NOT_SET:-10}/s\"\nburst = \"${SLUICEGATE_TEST_NOT_SET:- 20 }\"\n",
    );
    assert_eq!((config.server.max_connections, config.server.shutdown_timeout.as_secs()), (77, 7));
    let Rule::TokenBucket(bucket) = &*config.limits[0].rule else { panic!("{:?}", config.limits[0].rule) };
    assert_eq!((bucket.burst, bucket.rate, bucket.per_ms), (20, 1, 100));
    for (value, words) in [
        (
            "\"${SLUICEGATE_TEST_NOT_SET:-many}\"",
            "it must be an integer, and `${SLUICEGATE_TEST_NOT_SET:-many}` is not",
        ),
        ("\"${SLUICEGATE_TEST_NOT_SET:-0}\"", "it must be from 1"),
        ("\"2${SLUICEGATE_TEST_NOT_SET:-0}\"", "is not"),
        ("\"20\"", "remove the quotes"),
    ] {
        let report = bad(&format!("{ROUTE}[limit.x]\nrate = \"1/s\"\nburst = {value}\n")).to_string();
        assert!(report.contains(words), "{value}: {report}");
    }
}

#[test]
fn limits_compile_to_exact_integers() {
    let limit = |text: &str| good(&format!("{ROUTE}[limit.x]\n{text}")).limits[0].clone();
    let bucket = |text: &str| match &*limit(text).rule {
        Rule::TokenBucket(bucket) => bucket.clone(),
        other => panic!("{other:?}"),
    };
    let plain = TokenBucket { rate: 1, per_ms: 100, burst: 10, debt: 0, interval: false, empty: false, refunds: false };
    assert_eq!(bucket("rate = \"10/s\""), plain);
    // An interval refills in lumps of the whole count, so it is not reduced.
    let lumps = TokenBucket { rate: 10, per_ms: 1000, interval: true, ..plain };
    assert_eq!(bucket("rate = \"10/s\"\nrefill = \"interval\""), lumps);
    assert_eq!(
        bucket("rate = \"7/day\"\nburst = 3\ndebt = 2\nstart = \"empty\""),
        TokenBucket { rate: 7, per_ms: 86_400_000, burst: 3, debt: 2, interval: false, empty: true, refunds: false }
    );
    assert_eq!(
        limit("rate = \"5/10s\"\nalgorithm = \"fixed_window\"\nanchor = \"clock\"").rule.params(0),
        [5, 10_000, 1]
    );
    assert_eq!(limit("rate = \"5/15min\"\nalgorithm = \"sliding_log\"").rule.params(0), [5, 900_000, 0]);
    let sorted = "rate = \"5/s\"\nalgorithm = \"sliding_log\"\nstate = \"sorted_set\"";
    assert_eq!(limit(sorted).rule.params(0), [5, 1000, 1]);
    assert_eq!(limit("rate = \"10/s\"\nalgorithm = \"leaky_bucket\"").rule.params(0), [1, 100, 0, 0]);
    let queue = "rate = \"10/s\"\nalgorithm = \"leaky_bucket\"\nqueue = \"2s\"\nnodelay = true";
    assert_eq!(limit(queue).rule.params(0), [1, 100, 2000, 1]);
    // The default `lease` of 15 s as slots live in the store: 4/3 x (15 s + 2 s).
    assert_eq!(limit("algorithm = \"concurrency\"\nin_flight = 7").rule.params(0), [7, 22_666]);
    let all = limit(
        "rate = \"1/s\"\nkey = [\"ip/24/56\", \"header:X-Api-Key\", \"all\"]\ncost = \"query:n\"\nmode = \"shadow\"\n\
         missing = \"refuse\"\non_error = \"closed\"",
    );
    let sources = [Source::Ip(Prefixes { v4: 24, v6: 56 }), Source::Header("x-api-key".parse().unwrap())];
    assert_eq!(all.key, Key(sources.map(KeyPart::Source).into_iter().chain([KeyPart::All]).collect()));
    assert_eq!((&all.cost, all.mode), (&Cost::Stated(Source::Query("n".into())), Mode::Shadow));
    assert_eq!((all.missing, all.on_error), (Missing::Refuse, OnError::Closed));
    assert_eq!(limit("rate = \"1/s\"").missing, Missing::Shared);
    assert_eq!(
        good(&format!("{ROUTE}[store]\non_error = \"open\"\n[limit.x]\nrate = \"1/s\"")).limits[0].on_error,
        OnError::Open
    );
}

/// The largest value that an error names works, and the next one does not.
#[test]
fn bounds_are_where_the_errors_say() {
    for (text, key) in [
        ("rate = \"1/day\"\nburst = {}", "burst"),
        ("rate = \"3/7ms\"\nburst = {}", "burst"),
        ("rate = \"{}/day\"\nburst = 1\nrefill = \"interval\"", "rate"),
        ("rate = \"1/3660d\"\nburst = 5\ndebt = {}", "debt"),
        ("algorithm = \"fixed_window\"\nrate = \"{}/s\"", "rate"),
        ("algorithm = \"gcra\"\nrate = \"3/7ms\"\nburst = {}", "burst"),
        ("algorithm = \"sliding_window\"\nrate = \"{}/day\"", "rate"),
        ("algorithm = \"sliding_window\"\nrate = \"{}/day\"\nprecision = 60", "rate"),
        ("algorithm = \"calendar\"\nrate = \"{}/day\"", "rate"),
        ("rate = \"5/s\"\nburst = 9\ndebt = 2\ncost = {}", "cost"),
        ("algorithm = \"sliding_log\"\nrate = \"{}/day\"", "rate"),
        ("algorithm = \"sliding_log\"\nrate = \"{}/3ms\"", "rate"),
        ("algorithm = \"leaky_bucket\"\nrate = \"{}/7ms\"", "rate"),
        ("algorithm = \"leaky_bucket\"\nrate = \"10/s\"\nqueue = \"2s\"\ncost = {}", "cost"),
        ("algorithm = \"concurrency\"\nin_flight = 3\ncost = {}", "cost"),
    ] {
        let with = |value: i64| format!("{ROUTE}[limit.x]\n{}", text.replace("{}", &value.to_string()));
        let huge = if key == "cost" { 1_000_000_000 } else { 4_503_599_627_370_495 };
        let json = bad(&with(huge)).to_json();
        let help = json[0]["help"].as_str().unwrap();
        let largest: i64 = help.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{help}"));
        let (config, report) = (good(&with(largest)), bad(&with(largest + 1)));
        assert!(report.to_json()[0]["message"].as_str().unwrap().contains(key), "{report}");
        if let Rule::TokenBucket(TokenBucket { rate, per_ms, burst, debt, interval, .. }) = &*config.limits[0].rule {
            assert!((burst + 2 * debt + 1) * per_ms < 1 << 52);
            assert!(!interval || rate * per_ms < 1 << 52);
        }
    }
}

#[test]
fn windows_compile_to_exact_integers() {
    let params = |text: &str, now: &str| {
        let now = now.parse::<jiff::Timestamp>().unwrap().as_millisecond();
        good(&format!("{ROUTE}[limit.x]\n{text}")).limits[0].rule.params(now)
    };
    let any = "2026-11-20T12:00:00Z";
    assert_eq!(params("algorithm = \"gcra\"\nrate = \"10/s\"\nburst = 7", any), [1, 100, 7]);
    assert_eq!(params("algorithm = \"gcra\"\nrate = \"10/s\"", any), [1, 100, 10]);
    let sliding = "algorithm = \"sliding_window\"\nrate = \"10/min\"\n";
    assert_eq!(params(sliding, any), [10, 60_000, 60_000]);
    assert_eq!(params(&format!("{sliding}precision = 2"), any), [10, 60_000, 60_000]);
    assert_eq!(params(&format!("{sliding}precision = 7"), any), [10, 60_000, 8572]);
    let starts = |text: &str, now: &str, zone: &str| {
        let params = params(&format!("algorithm = \"calendar\"\n{text}"), now);
        let shown = |ms: i64| {
            let time = jiff::Timestamp::from_millisecond(ms).unwrap().in_tz(zone).unwrap();
            time.strftime("%m-%d %H:%M").to_string()
        };
        (params[0], params[1..].iter().map(|ms| shown(*ms)).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(
        starts("rate = \"5/day\"", any, "UTC"),
        (5, "11-19 00:00, 11-20 00:00, 11-21 00:00, 11-22 00:00, 11-23 00:00".to_owned())
    );
    assert_eq!(
        starts("rate = \"5/h\"\nzone = \"Asia/Kathmandu\"", any, "Asia/Kathmandu").1,
        "11-20 16:00, 11-20 17:00, 11-20 18:00, 11-20 19:00, 11-20 20:00"
    );
    let sunday = "rate = \"5/week\"\nweek_start = \"sunday\"\nresets_at = \"18:30\"";
    assert_eq!(
        starts(sunday, "2026-11-22T18:29:59Z", "UTC").1,
        "11-08 18:30, 11-15 18:30, 11-22 18:30, 11-29 18:30, 12-06 18:30"
    );
    let berlin = "rate = \"5/month\"\nresets_at = \"04:00\"\nzone = \"europe/berlin\"";
    assert_eq!(
        starts(berlin, "2026-12-01T02:59:59Z", "Europe/Berlin").1,
        "10-01 04:00, 11-01 04:00, 12-01 04:00, 01-01 04:00, 02-01 04:00"
    );
    assert_eq!(
        starts("rate = \"5/year\"", any, "UTC").1,
        "01-01 00:00, 01-01 00:00, 01-01 00:00, 01-01 00:00, 01-01 00:00"
    );
}

#[test]
fn routes_compile_to_their_patterns() {
    let segments =
        |path: &str| match &good(&format!("[[route]]\npath = '{path}'\nupstream = \"echo:\"")).routes[0].matcher.path {
            PathPattern::Segments { segments, exact } => (segments.clone(), *exact),
            PathPattern::Regex(regex) => panic!("{regex}"),
        };
    let (literal, param) = (|text: &str| Segment::Literal(text.into()), |text: &str| Segment::Param(text.into()));
    assert_eq!(segments("/"), (vec![], false));
    assert_eq!(segments("= /"), (vec![], true));
    assert_eq!(segments("/v1"), segments("/v1/"));
    assert_eq!(segments("/v1/"), (vec![literal("v1")], false));
    assert_eq!(segments("=/a/b"), (vec![literal("a"), literal("b")], true));
    assert_eq!(segments("/users/{id}"), (vec![literal("users"), param("id")], true));
    assert_eq!(segments("/users/{id}/"), (vec![literal("users"), param("id")], false));
    assert_eq!(segments("/a%20b;c=1/%C3%A9").0, [literal("a%20b;c=1"), literal("%C3%A9")]);

    let text = "[[route]]\nhost = [\"API.example.com\", \"*.Example.com\", \"[::0:1]\"]\npath = \"~ ^/x[0-9]+$\"\nupstream = \"echo:\"";
    let config = good(text);
    let hosts = [
        HostPattern::Exact("api.example.com".into()),
        HostPattern::Suffix(".example.com".into()),
        HostPattern::Exact("[::1]".into()),
    ];
    assert_eq!(config.routes[0].matcher.hosts, hosts);
    assert_eq!(config.routes[0].name, "api.example.com~ ^/x[0-9]+$");
    assert!(matches!(&config.routes[0].matcher.path, PathPattern::Regex(regex) if regex.is_match("/x5")));
}

#[test]
fn upstreams_written_as_urls_are_shared_by_equal_lists() {
    let config = good(
        "[upstream.app]\nservers = { url = \"http://h\", weight = 3 }\nbalance = \"round_robin\"\n\
         [[route]]\npath = \"/a\"\nupstream = [\"http://A:1\", { url = \"http://b:2\", weight = 2 }]\n\
         [[route]]\npath = \"/b\"\nupstream = [\"http://a:1/\", { url = \"http://b:2\", weight = 2 }]\n\
         [[route]]\npath = \"/c\"\nupstream = \"http://a:1\"\n\
         [[route]]\npath = \"/d\"\nupstream = \"app\"\n",
    );
    let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    assert_eq!(names, ["app", "a:1,b:2*2", "a:1"]);
    assert_eq!((config.upstreams[0].balance, config.upstreams[1].balance), (Balance::RoundRobin, Balance::P2c));
    assert_eq!(
        (config.upstreams[0].servers[0].origin.authority.as_str(), config.upstreams[0].servers[0].weight),
        ("h:80", 3)
    );
    let chosen: Vec<usize> = config
        .routes
        .iter()
        .map(|route| match route.action {
            Action::Upstream(index) => index,
            _ => panic!("{route:?}"),
        })
        .collect();
    assert_eq!(chosen, [1, 1, 2, 0]);
}

#[test]
fn ten_thousand_routes_load_in_moments() {
    let mut text = String::new();
    for i in 0..10_000 {
        text.push_str(&format!(
            "[[route]]\npath = \"/r{i}\"\nupstream = \"http://127.0.0.1:{}\"\nlimits = [\"l{i}\"]\n",
            i + 1
        ));
        text.push_str(&format!("[limit.l{i}]\nrate = \"10/s\"\n"));
    }
    // What it costs this thread, whatever else the machine does.
    let before = cpu_time();
    assert_eq!(good(&text).routes.len(), 10_000);
    let took = cpu_time() - before;
    assert!(took > Duration::ZERO && took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn values_with_repeated_slashes_need_a_route_that_keeps_them() {
    let load = |merges: bool, option: &str| {
        let text = format!(
            "[[route]]\npath = \"/c/\"\nmerge_slashes = {merges}\nupstream = \"echo:\"\nlimits = [\"p\"]\n[limit.p]\n\
             rate = \"2/h\"\nkey = \"path\"\n{option}"
        );
        config::load_text("test", &text).map(|_| ()).map_err(|report| report.to_string())
    };
    for (option, help) in [
        ("overrides = [{ key = \"/c//x\", rate = \"9/h\" }]", "write `/c/x`"),
        ("when = { path = \"/c//x\" }", "write `/c/x`"),
        ("when = { path = \"/c/a//*\" }", "write it without `//`"),
        ("when = { path = \"~ ^/c/a//\" }", "write it without `//`"),
    ] {
        assert_eq!(load(false, option), Ok(()), "{option}");
        let report = load(true, option).unwrap_err();
        assert!(report.contains("every route merges repeated slashes") && report.contains(help), "{report}");
    }
    for option in ["when = { path = \"~ ^/c/+a\" }", "when = { path = \"*/a\" }"] {
        assert_eq!([true, false].map(|merges| load(merges, option)), [Ok(()), Ok(())], "{option}");
    }
}
