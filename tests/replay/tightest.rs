//! The tightest settings: they refuse nobody, and one unit less refuses somebody.

use super::generated_log::{ReplayedRequest, config, log, traffic};
use super::workdir::Dir;

#[test]
fn of_every_algorithm() {
    for limit in [
        "rate = \"2/s\"\nburst = {n}",
        "rate = \"7/3s\"\nburst = {n}",
        "rate = \"2/s\"\nburst = {n}\ndebt = 4",
        "rate = \"20/10s\"\nburst = {n}\nrefill = \"interval\"",
        "algorithm = \"gcra\"\nrate = \"7/3s\"\nburst = {n}",
        "algorithm = \"fixed_window\"\nrate = \"{n}/5s\"",
        "algorithm = \"fixed_window\"\nrate = \"{n}/5s\"\nanchor = \"clock\"",
        "algorithm = \"calendar\"\nrate = \"{n}/hour\"\nzone = \"Asia/Kolkata\"",
        "algorithm = \"calendar\"\nrate = \"{n}/month\"",
        "algorithm = \"sliding_log\"\nrate = \"{n}/5s\"",
        "algorithm = \"sliding_window\"\nrate = \"{n}/5s\"",
        "algorithm = \"sliding_window\"\nrate = \"{n}/5s\"\nprecision = 5",
        "algorithm = \"leaky_bucket\"\nrate = \"7/3s\"\nqueue = \"{n}ms\"",
        "algorithm = \"leaky_bucket\"\nrate = \"2/s\"\nqueue = \"{n}ms\"\nnodelay = true",
        "algorithm = \"concurrency\"\nin_flight = {n}",
    ] {
        least(limit);
    }
}

#[test]
fn of_limits_that_follow_the_end_of_a_request() {
    for limit in [
        "rate = \"2/s\"\nburst = {n}\ncharge_on = [401]",
        "algorithm = \"gcra\"\nrate = \"2/s\"\nburst = {n}\nrefund_on = [\"5xx\", \"client_abort\"]",
        "algorithm = \"fixed_window\"\nrate = \"{n}/5s\"\ncharge_on = [\"4xx\"]",
        "algorithm = \"sliding_log\"\nrate = \"{n}/5s\"\nrefund_on = [200]",
        "algorithm = \"sliding_window\"\nrate = \"{n}/5s\"\nrefund_on = [200]",
        "algorithm = \"calendar\"\nrate = \"{n}/hour\"\ncharge_on = [503]",
        "algorithm = \"leaky_bucket\"\nrate = \"2/s\"\nqueue = \"{n}ms\"\nnodelay = true\nrefund_on = [503]",
    ] {
        least(limit);
    }
}

#[test]
fn of_what_has_none() {
    let dir = Dir::new(&config("rate = \"2/s\"\nstart = \"empty\""));
    let (text, _) = log(traffic(1, 50, 900), false);
    dir.write("own.log", text.as_bytes());
    let tightest = |dir: &Dir| dir.json(&["own.log"], b"")["limits"][0]["tightest"].clone();
    let none = tightest(&dir);
    assert!(none["value"].is_null() && none["none_because"].as_str().unwrap().contains("starts empty"), "{none}");
    dir.write("sluicegate.toml", config("algorithm = \"concurrency\"\nin_flight = 1").as_bytes());
    let none = tightest(&dir);
    assert!(none["value"].is_null() && none["none_because"].as_str().unwrap().contains("no durations"), "{none}");
}

#[test]
fn keys_with_numbers_of_their_own_do_not_count() {
    let limit = "algorithm = \"fixed_window\"\nrate = \"3/5s\"";
    let value = |requests: Vec<ReplayedRequest>, more: &str| {
        let dir = Dir::new(&config(&format!("{limit}\n{more}")));
        dir.write("own.log", log(requests, true).0.as_bytes());
        dir.json(&["own.log"], b"")["limits"][0]["tightest"]["value"].as_i64().unwrap()
    };
    let mut requests = traffic(5, 100, 900);
    requests.extend(requests.clone().into_iter().filter(|request| request.client == 1).cycle().take(500));
    requests.sort_by_key(|request| request.at_ms);
    let others: Vec<ReplayedRequest> = requests.iter().filter(|request| request.client != 1).cloned().collect();
    let own = "overrides = [{ key = [\"192.0.2.1\"], rate = \"7/5s\" }]";
    let (all, rest) = (value(requests.clone(), ""), value(others, ""));
    assert!(all > rest, "{all} {rest}");
    assert_eq!(value(requests, own), rest);
}

#[test]
fn more_keys_than_the_store_holds_make_it_a_lower_bound() {
    let mut requests = traffic(6, 3000, 2);
    requests.iter_mut().zip(0..).for_each(|(request, client)| request.client = client % 1500);
    let text = log(requests, true).0.replace("192.0.2.", "2001:db8::");
    for (max_keys, least) in [(1000, true), (100_000, false)] {
        let limit = config("rate = \"1/h\"\nburst = 9\nkey = \"ip/32/128\"");
        let dir = Dir::new(&format!("{limit}\n[store]\nmax_keys = {max_keys}\n"));
        let response = dir.json(&["-"], text.as_bytes());
        assert_eq!(response["limits"][0]["tightest"]["lower_bound"], least, "{response}");
        assert_eq!(response["forgotten_keys"].as_u64().unwrap() > 0, least, "{response}");
    }
}

/// `limit` has its number as `{n}`.
fn least(limit: &str) {
    for (seed, lull_ms) in [(3, 900), (4, 20_000)] {
        let dir = Dir::new("");
        let (text, _) = log(traffic(seed, 400, lull_ms), true);
        dir.write("own.log", text.as_bytes());
        let with = |number: i64| {
            dir.write("sluicegate.toml", config(&limit.replace("{n}", &number.to_string())).as_bytes());
            let response = dir.json(&["own.log"], b"");
            let tightest = &response["limits"][0]["tightest"];
            let value = tightest["value"].as_i64().unwrap_or_else(|| panic!("{limit}: {tightest}"));
            (value, response["requests"]["refused"].as_i64().unwrap())
        };
        let (number, refused) = with(1);
        assert!(number > 2 && refused > 0, "{limit}: {number}, {refused}");
        assert_eq!(with(number), (number, 0), "{limit}: {number} refuse nobody");
        let (same, refused) = with(number - 1);
        assert!(same == number && refused > 0, "{limit}: {} refuse somebody: {refused}", number - 1);
    }
}
