//! Two gateways on one Redis with different settings for one key: during a rolling deploy, or with a live override that
//! one has read and the other has not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::Commands;

use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::scenario::scenario;

/// One limit by the tenant; gateways with the same prefix share it.
fn gateway(server: &RedisServer, prefix: &str, lines: &str) -> Gateway {
    let gateway = scenario().store(Some(server)).store_line(&format!("prefix = \"{prefix}\"\non_error = \"closed\""));
    gateway.limit_of("one", &format!("key = \"header:tenant\"\n{lines}")).start()
}

fn is_in(client: &mut Client, tenant: &str) -> bool {
    client.fetch(&get("/", &format!("tenant: {tenant}\r\n")), "").status() == 200
}

/// Returns how many requests of one tenant all gateways admit until `end`. Two connections per gateway send requests
/// without a pause.
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

/// The settings of a gateway, and the units that they admit at once and in each second.
type Numbers = (&'static str, i64, i64);

const PAIRS: [(&str, [Numbers; 2]); 9] = [
    ("gcra", [("rate = \"10/s\"\nburst = 60", 60, 10), ("rate = \"10/s\"\nburst = 10", 10, 10)]),
    ("token_bucket", [("rate = \"10/s\"\nburst = 60", 60, 10), ("rate = \"10/s\"\nburst = 10", 10, 10)]),
    ("token_bucket", [("rate = \"10/s\"\nburst = 60", 60, 10), ("rate = \"50/s\"\nburst = 5", 5, 50)]),
    (
        "leaky_bucket",
        [
            ("rate = \"10/s\"\nqueue = \"6s\"\nnodelay = true", 61, 10),
            ("rate = \"10/s\"\nqueue = \"1s\"\nnodelay = true", 11, 10),
        ],
    ),
    // Windows of different length: the larger count, and then what the shorter window admits each time.
    ("fixed_window", [("rate = \"60/h\"", 60, 10), ("rate = \"10/s\"", 10, 10)]),
    (
        "fixed_window",
        [("rate = \"60/day\"\nanchor = \"clock\"", 60, 0), ("rate = \"50/h\"\nanchor = \"clock\"", 50, 0)],
    ),
    ("sliding_window", [("rate = \"60/h\"\nprecision = 10", 60, 10), ("rate = \"10/s\"\nprecision = 5", 10, 10)]),
    ("sliding_window", [("rate = \"60/h\"", 60, 0), ("rate = \"10/min\"", 10, 1)]),
    ("calendar", [("rate = \"60/day\"", 60, 0), ("rate = \"20/hour\"\nzone = \"Asia/Kathmandu\"", 20, 0)]),
];

#[test]
fn gateways_with_different_numbers_do_not_add_up() {
    let server = RedisServer::start(&[]);
    let attempt = |place: usize| {
        let (algorithm, numbers) = PAIRS[place];
        let gateways = numbers.map(|(lines, ..)| {
            gateway(&server, &format!("pair{place}"), &format!("algorithm = \"{algorithm}\"\n{lines}"))
        });
        // Both gateways decide on the key once, as gateways in use have. Another test has one that decides later.
        let probes = gateways.each_ref().map(|gateway| i64::from(is_in(&mut gateway.client(), "acme")));
        let addrs = gateways.each_ref().map(|gateway| gateway.addr);
        let since = Instant::now();
        let admitted = probes.iter().sum::<i64>() + flood(&addrs, "acme", since + Duration::from_millis(1500));
        let seconds = i64::try_from(since.elapsed().as_secs() + 2).unwrap();
        let most = numbers.iter().map(|(_, at_once, a_second)| at_once + a_second * seconds).max().unwrap();
        assert!(admitted <= most, "{algorithm} {numbers:?}: {admitted}, at most {most}");
        // The stricter gateway may use units of the other one, but both together admit at least this much.
        assert!(admitted >= 5, "{algorithm}: only {admitted}");
    };
    // Three at a time, so that each still gets many more requests than it may admit.
    for third in [0..3, 3..6, 6..PAIRS.len()] {
        std::thread::scope(|scope| third.for_each(|place| drop(scope.spawn(move || attempt(place)))));
    }
}

/// A window of the calendar or of the clock that is looked at for the first time knows nothing of what a much
/// longer one counted before: they admit the larger count, and then what the shorter one does in each of its windows.
#[test]
fn a_window_that_looks_later_adds_its_own_count_and_no_more() {
    let server = RedisServer::start(&[]);
    for (algorithm, long, short) in [
        ("calendar", "rate = \"60/day\"", "rate = \"20/hour\""),
        ("fixed_window", "rate = \"60/day\"\nanchor = \"clock\"", "rate = \"20/h\"\nanchor = \"clock\""),
        ("fixed_window", "rate = \"60/h\"", "rate = \"20/min\""),
        ("sliding_window", "rate = \"60/h\"", "rate = \"20/min\""),
        ("sliding_log", "rate = \"60/h\"", "rate = \"20/min\""),
    ] {
        let lines = [long, short].map(|lines| format!("algorithm = \"{algorithm}\"\n{lines}"));
        let prefix = format!("later-{algorithm}-{}", long.len());
        let gateways = lines.map(|lines| gateway(&server, &prefix, &lines));
        let mut clients = gateways.each_ref().map(Gateway::client);
        let first = (0..100).filter(|_| is_in(&mut clients[0], "acme")).count();
        let second = (0..100).filter(|_| is_in(&mut clients[1], "acme")).count();
        let back = (0..20).filter(|_| is_in(&mut clients[0], "acme")).count();
        // An hour may have begun meanwhile.
        assert!(first == 60 && second <= 40 && back == 0, "{algorithm}: {first}, {second}, {back}");
    }
}

/// Each gateway reads the overrides every two seconds, at its own times.
#[test]
fn an_override_does_not_add_up_while_it_spreads() {
    let server = RedisServer::start(&[]);
    let attempt = |algorithm: &str| {
        let lines = format!("algorithm = \"{algorithm}\"\nrate = \"10/s\"\nburst = 60");
        // At different times, so that they do not read the overrides at the same moments.
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
