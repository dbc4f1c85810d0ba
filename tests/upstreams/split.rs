//! `split`: several upstreams share the requests of a route.

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::upstream::Upstream;

fn config(more: &str, weights: [u32; 2], upstreams: [&Upstream; 2]) -> String {
    format!(
        "[[route]]\npath = \"/\"\n{more}\nsplit = [{{ upstream = \"app\", weight = {} }}, {{ upstream = \"next\", weight = {} }}]\n\
         [upstream.app]\nservers = [\"{}\"]\n[upstream.next]\nservers = [\"{}\"]\n",
        weights[0],
        weights[1],
        upstreams[0].url(),
        upstreams[1].url()
    )
}

/// Sends a request of each user. Returns what answered.
fn ask(gateway: &Gateway, users: usize) -> Vec<String> {
    let mut client = gateway.client();
    (0..users).map(|user| client.fetch(&get("/", &format!("x-user: {user}\r\n")), "").text()).collect()
}

#[test]
fn requests_are_split_by_weight_and_counted() {
    let [app, next] = ["app", "next"].map(Upstream::text);
    let gateway = Gateway::start(&config("", [80, 20], [&app, &next]));
    let answers = ask(&gateway, 600);
    let share = answers.iter().filter(|answer| *answer == "next").count();
    assert!((60..190).contains(&share), "{share} of 600");
    let count = |upstream| gateway.metric("upstream_requests_total", &[("upstream", upstream), ("outcome", "ok")]);
    assert_eq!((count("app"), count("next")), (Some((600 - share) as f64), Some(share as f64)));
}

#[test]
fn a_key_keeps_its_upstream_in_every_gateway_and_only_needed_keys_move() {
    let [app, next] = ["app", "next"].map(Upstream::text);
    let by = "split_by = \"header:x-user\"";
    let [gateway, other] = [(), ()].map(|()| Gateway::start(&config(by, [90, 10], [&app, &next])));
    let first = ask(&gateway, 300);
    assert_eq!(first, ask(&gateway, 300));
    assert_eq!(first, ask(&other, 300), "another process chooses the same");
    assert!(first.contains(&"next".to_owned()));
    gateway.reload_with(
        "weight = 90 }, { upstream = \"next\", weight = 10",
        "weight = 70 }, { upstream = \"next\", weight = 30",
    );
    let after = ask(&gateway, 300);
    assert!(first.iter().zip(&after).all(|(before, after)| before == after || after == "next"), "none moves back");
    let moved = first.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert!((30..100).contains(&moved), "{moved} of 300 moved");
    let explain = |user: usize| {
        let header = format!("x-user: {user}");
        let path = gateway.config();
        let output =
            program().args(["explain", "-c", path.to_str().unwrap(), "-H", &header, "GET", "http://a/"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    for (user, upstream) in after.iter().enumerate().take(10) {
        let shown = explain(user);
        assert!(shown.contains(&format!("to upstream {upstream}")), "{user}: {shown}");
        assert!(shown.contains("split between app 70.0 %, next 30.0 %"), "{shown}");
    }
}

#[test]
fn only_the_breaker_of_the_chosen_upstream_refuses() {
    let (app, broken) = (Upstream::text("app"), Upstream::fixed("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"));
    let breaker = "breaker = { errors = 1, window = \"10s\", open_for = \"60s\" }\n";
    let gateway = Gateway::start(&(config("split_by = \"header:x-user\"", [50, 50], [&app, &broken]) + breaker));
    let mut client = gateway.client();
    let mut seen = [0; 3];
    for user in 0..200 {
        match client.fetch(&get("/", &format!("x-user: {user}\r\n")), "").status() {
            200 => seen[0] += 1,
            500 => seen[1] += 1,
            503 => seen[2] += 1,
            status => panic!("{status}"),
        }
    }
    assert!(seen[0] > 60 && seen[1] > 0 && seen[2] > 40, "{seen:?}");
}
