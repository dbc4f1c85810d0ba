//! Two gateways on one Redis that have different numbers for one key: a rolling deploy, or a live
//! override that each sees at its own look.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::Commands;

use crate::stores::RedisServer;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;

/// One limit by the tenant; gateways with the same prefix share it.
fn gateway(server: &RedisServer, prefix: &str, lines: &str) -> Gateway {
    Gateway::start(&format!(
        "[store]\nurl = \"{}\"\nprefix = \"{prefix}\"\ndeadline = \"5s\"\non_error = \"closed\"\n\n[[route]]\n\
         respond = {{ body = \"in\" }}\nlimits = [\"one\"]\n\n[limit.one]\nkey = \"header:tenant\"\n{lines}\n",
        server.url()
    ))
}

fn is_in(client: &mut Client, tenant: &str) -> bool {
    client.ask(&get("/", &format!("tenant: {tenant}\r\n")), "").status() == 200
}

/// What all of them admit to one tenant until `end`, each asked by two connections without a pause.
fn flood(gateways: &[SocketAddr], tenant: &str, end: Instant) -> i64 {
    std::thread::scope(|scope| {
        let clients: Vec<_> = gateways
            .iter()
            .flat_map(|addr| [addr; 2])
            .map(|addr| {
                scope.spawn(move || {
                    let mut client = Client::connect(*addr);
                    let mut admitted = 0;
                    while Instant::now() < end {
                        admitted += i64::from(is_in(&mut client, tenant));
                    }
                    admitted
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

/// The numbers of the one, those of the other, and what the more generous admits at once and each second.
const PAIRS: [(&str, [&str; 2], i64, i64); 8] = [
    ("gcra", ["rate = \"10/s\"\nburst = 60", "rate = \"10/s\"\nburst = 10"], 60, 10),
    ("token_bucket", ["rate = \"10/s\"\nburst = 60", "rate = \"10/s\"\nburst = 10"], 60, 10),
    ("token_bucket", ["rate = \"10/s\"\nburst = 60", "rate = \"50/s\"\nburst = 5"], 60, 50),
    (
        "leaky_bucket",
        ["rate = \"10/s\"\nqueue = \"6s\"\nnodelay = true", "rate = \"10/s\"\nqueue = \"1s\"\nnodelay = true"],
        61,
        10,
    ),
    ("fixed_window", ["rate = \"60/h\"", "rate = \"10/s\""], 60, 10),
    ("sliding_window", ["rate = \"60/h\"\nprecision = 10", "rate = \"10/s\"\nprecision = 5"], 60, 10),
    ("sliding_window", ["rate = \"60/h\"", "rate = \"10/min\""], 60, 10),
    ("calendar", ["rate = \"60/day\"", "rate = \"20/hour\"\nzone = \"Asia/Kathmandu\""], 60, 0),
];

#[test]
fn gateways_with_different_numbers_do_not_add_up() {
    let server = RedisServer::start(&[]);
    let attempt = |place: usize| {
        let (algorithm, numbers, at_once, a_second) = PAIRS[place];
        let lines = numbers.map(|lines| format!("algorithm = \"{algorithm}\"\n{lines}"));
        let gateways = lines.map(|lines| gateway(&server, &format!("pair{place}"), &lines));
        let addrs = gateways.each_ref().map(|gateway| gateway.addr);
        let since = Instant::now();
        let admitted = flood(&addrs, "acme", since + Duration::from_millis(1500));
        let most = at_once + a_second * i64::try_from(since.elapsed().as_secs() + 1).unwrap();
        assert!(admitted <= most, "{algorithm} {numbers:?}: {admitted}, at most {most}");
        // The other one may keep the generous one from giving all it has, but not both from theirs.
        assert!(admitted >= 5, "{algorithm}: only {admitted}");
    };
    // Four at a time: each still gets far more requests through than it may admit.
    for half in [0..4, 4..PAIRS.len()] {
        std::thread::scope(|scope| half.for_each(|place| drop(scope.spawn(move || attempt(place)))));
    }
}

/// Each gateway looks at the overrides every two seconds, when it pleases.
#[test]
fn an_override_does_not_add_up_while_it_spreads() {
    let server = RedisServer::start(&[]);
    let attempt = |algorithm: &str| {
        let lines = format!("algorithm = \"{algorithm}\"\nrate = \"10/s\"\nburst = 60");
        // One after the other, so that they do not look at the same moments.
        let first = gateway(&server, algorithm, &lines);
        std::thread::sleep(Duration::from_secs(1));
        let gateways = [first, gateway(&server, algorithm, &lines)];
        let addrs = gateways.each_ref().map(|gateway| gateway.addr);
        let since = Instant::now();
        let spent = flood(&addrs, "acme", since + Duration::from_millis(700));
        server.client().hset::<_, _, _, ()>(format!("{algorithm}:overrides:one"), "acme", "burst=10").unwrap();
        let after = flood(&addrs, "acme", Instant::now() + Duration::from_millis(2500));
        let most = 60 + 10 * i64::try_from(since.elapsed().as_secs() + 1).unwrap();
        assert!(spent + after <= most, "{algorithm}: {spent}, then {after}; at most {most}");
    };
    std::thread::scope(|scope| ["gcra", "token_bucket"].map(|algorithm| drop(scope.spawn(move || attempt(algorithm)))));
}
