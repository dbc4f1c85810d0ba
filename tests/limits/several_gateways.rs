//! Several gateway processes on one redis-server admit together exactly the limit, with any clocks and time zones.

use std::time::{Duration, Instant};

use redis::Commands;
use serde_json::{Value, json};

use crate::support::client::{Client, get};
use crate::support::faketime::clock;
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::variants::variants;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// Requests of each of four clients to each limit.
const ASKED: usize = 30;
const LIMIT: i64 = 40;

/// Two gateways on `server`, with variables for each.
fn pair(server: &RedisServer, env: [&[(&str, &str)]; 2], config: &str) -> [Gateway; 2] {
    let store = format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\non_error = \"closed\"\n", server.url());
    let gateways = env.map(|env| Gateway::with_env(env, "workers = 2", &format!("{store}\n{config}")));
    for gateway in &gateways {
        wait_until("every worker has reached the store", || {
            gateway.metric("store_gateways", &[]) == Some(2.0) && gateway.metric("store_up", &[]) == Some(1.0)
        });
    }
    gateways
}

fn route(name: &str, to: &str, lines: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\n{to}\nlimits = [\"{name}\"]\n\n\
         [limit.\"{name}\"]\nkey = \"all\"\n{lines}\n\n"
    )
}

fn variables(env: &[(String, String)]) -> Vec<(&str, &str)> {
    env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Starts two gateways whose clocks are ten seconds apart, and both differ from that of the store.
pub fn apart(server: &RedisServer, config: &str) -> [Gateway; 2] {
    let clocks = ["-5s", "+5s"].map(clock);
    let gateways = pair(server, [&variables(&clocks[0]), &variables(&clocks[1])], config);
    let shown = |gateway: &Gateway| {
        let response = gateway.get("/clock");
        let date = response.get("date").expect("a date").to_owned();
        jiff::fmt::rfc2822::parse(&date).unwrap().timestamp().as_second()
    };
    let [behind, ahead] = gateways.each_ref().map(shown);
    assert!((9..=11).contains(&(ahead - behind)), "the clocks are {} s apart", ahead - behind);
    gateways
}

/// Sends requests for every limit to both gateways at once.
fn assert_exact(gateways: &[Gateway; 2]) {
    for variant in variants(LIMIT) {
        // Limits whose requests take long, in the queue or at the upstream.
        let holds = ["leaky_bucket", "concurrency"].contains(&variant.name);
        let target = format!("/{}", variant.name);
        let clients: Vec<(Vec<Client>, i64)> = std::thread::scope(|scope| {
            let threads = [0, 1, 0, 1].map(|i| {
                let (gateway, target) = (&gateways[i], &target);
                scope.spawn(
                    move || if holds { (sent(gateway, target), 0) } else { (Vec::new(), admitted(gateway, target)) },
                )
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let counted = |decision: &str| -> i64 {
            let labels = [("route", variant.name), ("limit", variant.name), ("decision", decision)];
            gateways.iter().map(|gateway| gateway.metric("limit_decisions_total", &labels).unwrap_or(0.0) as i64).sum()
        };
        wait_until("all are decided", || counted("allow") + counted("delayed") + counted("deny") == 4 * ASKED as i64);
        assert_eq!(counted("allow") + counted("delayed"), variant.total, "{}", variant.name);
        let admitted: i64 = clients.iter().map(|(_, admitted)| admitted).sum();
        assert!(holds || admitted == variant.total, "{} admitted {admitted}", variant.name);
    }
}

/// Requests on as many connections, whose responses are not waited for.
fn sent(gateway: &Gateway, target: &str) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..ASKED).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get(target, "")));
    clients
}

/// Requests on one connection.
fn admitted(gateway: &Gateway, target: &str) -> i64 {
    let mut client = gateway.client();
    let statuses = (0..ASKED).map(|_| client.fetch(&get(target, ""), "").status());
    let admitted = statuses.filter(|status| match status {
        200 => true,
        429 => false,
        other => panic!("{target}: {other}"),
    });
    admitted.count() as i64
}

fn all_forms(silent: &Upstream) -> String {
    let respond = "respond = { body = \"in\" }";
    let hangs = format!("upstream = \"{}\"", silent.url());
    let routes = variants(LIMIT).into_iter().map(|variant| {
        let to = if variant.name == "concurrency" { &hangs } else { respond };
        route(variant.name, to, &variant.lines)
    });
    routes.collect::<String>() + "[[route]]\nname = \"clock\"\npath = \"/clock\"\nupstream = \"echo:\"\n"
}

#[test]
fn two_gateways_admit_exactly_the_limit_in_every_form() {
    let (server, silent) = (RedisServer::start(&[]), Upstream::silent());
    assert_exact(&pair(&server, [&[], &[]], &all_forms(&silent)));
    assert_keys_expire(&server);
}

#[test]
fn two_gateways_with_other_clocks_admit_exactly_the_limit_in_every_form() {
    let (server, silent) = (RedisServer::start(&[]), Upstream::silent());
    assert_exact(&apart(&server, &all_forms(&silent)));
    assert_keys_expire(&server);
}

#[track_caller]
fn assert_keys_expire(server: &RedisServer) {
    let mut client = server.client();
    let keys: Vec<String> = client.keys("sg:*").unwrap();
    assert!(keys.len() >= variants(LIMIT).len(), "{keys:?}");
    for key in keys {
        let life_ms: i64 = client.pttl(&key).unwrap();
        assert!(life_ms != -1, "{key} has no expiry");
    }
}

/// Measures the refill while clients send requests to both gateways as fast as they respond.
#[test]
fn clocks_apart_do_not_add_to_the_rate() {
    let server = RedisServer::start(&[]);
    let respond = "respond = { body = \"in\" }";
    let limits = [
        ("bucket", "rate = \"100/s\"\nburst = 100"),
        ("gcra", "algorithm = \"gcra\"\nrate = \"100/s\"\nburst = 100"),
        ("leaky", "algorithm = \"leaky_bucket\"\nrate = \"100/s\"\nqueue = \"990ms\"\nnodelay = true"),
        ("log", "algorithm = \"sliding_log\"\nrate = \"100/s\""),
        ("strict", "algorithm = \"sliding_window\"\nrate = \"100/s\"\nprecision = 10"),
    ];
    let routes: String = limits.iter().map(|(name, lines)| route(name, respond, lines)).collect();
    let gateways = apart(&server, &(routes + "[[route]]\npath = \"/clock\"\nupstream = \"echo:\"\n"));
    for (name, _) in limits {
        let since = Instant::now();
        let hammer = |gateway: &Gateway| {
            let (mut client, mut admitted, mut sent) = (gateway.client(), 0, 0);
            // A slow machine must send for longer, until there were more requests than may be admitted.
            while since.elapsed() < Duration::from_millis(600) || sent < 60 + since.elapsed().as_millis() / 15 {
                admitted += u128::from(client.fetch(&get(&format!("/{name}"), ""), "").status() == 200);
                sent += 1;
            }
            (admitted, sent)
        };
        let counts = std::thread::scope(|scope| {
            let threads = gateways.each_ref().map(|gateway| scope.spawn(|| hammer(gateway)));
            threads.map(|thread| thread.join().unwrap())
        });
        let (admitted, sent) = (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1);
        let most = 100 + since.elapsed().as_millis() / 10 + 1;
        assert!(admitted <= most, "{name}: {admitted} of {sent}, at most {most}");
        assert!(admitted >= 100 && sent > most, "{name}: {admitted} of only {sent}");
    }
}

/// The day follows the zone of the limit, not that of the machine.
#[test]
fn gateways_in_other_zones_share_a_day() {
    let server = RedisServer::start(&[]);
    let lines = "algorithm = \"calendar\"\nrate = \"5/day\"\nzone = \"Asia/Shanghai\"";
    let config = route("day", "respond = { body = \"in\" }", lines);
    let gateways = pair(&server, [&[("TZ", "Pacific/Kiritimati")], &[("TZ", "America/Anchorage")]], &config);
    let before = jiff::Zoned::now().in_tz("Asia/Shanghai").unwrap().date();
    let admitted: Vec<u16> = (0..8).map(|i| gateways[i % 2].get("/day").status()).collect();
    let today = jiff::Zoned::now().in_tz("Asia/Shanghai").unwrap().date();
    if before == today {
        assert_eq!(admitted, [200, 200, 200, 200, 200, 429, 429, 429]);
        let state: String = server.client().get("sg:{all}:day:calendar").unwrap();
        let start = today.in_tz("Asia/Shanghai").unwrap().timestamp().as_millisecond();
        assert_eq!(state, format!("5 {start} 86400000"));
    }
}

/// The calendar is a gateway's knowledge, the time is the store's: a gateway that is further off than
/// the windows it sends along asks the store for the time, and opens no window of its own.
#[test]
fn a_gateway_hours_off_counts_in_the_windows_of_the_others() {
    let hour = || jiff::Zoned::now().in_tz("Asia/Kathmandu").unwrap().strftime("%F %H").to_string();
    for offset in ["-6h", "+6h"] {
        let (server, env) = (RedisServer::start(&[]), clock(offset));
        let lines = "algorithm = \"calendar\"\nrate = \"6/hour\"\nzone = \"Asia/Kathmandu\"";
        let config = route("one", "respond = { }", lines) + &route("two", "respond = { }", lines);
        let [right, off] = pair(&server, [&[], &variables(&env)], &config);
        let before = hour();
        let fetch = |gateway: &Gateway, target| gateway.get(target).status() == 200;
        let admitted =
            [&off, &off, &right, &off, &right, &right, &off, &right, &off].map(|gateway| fetch(gateway, "/one"));
        let other =
            [&right, &right, &off, &right, &off, &off, &right, &off, &right].map(|gateway| fetch(gateway, "/two"));
        let expected = [true, true, true, true, true, true, false, false, false];
        // The result differs if an hour has ended in between.
        assert!(before != hour() || (admitted, other) == (expected, expected), "{offset}: {admitted:?} {other:?}");
    }
}

/// Reading a budget and charging it later would admit too many requests. A charge is a single step, also over the admin
/// listeners of two gateways.
#[test]
fn takes_at_the_same_moment_are_counted_one_by_one() {
    let server = RedisServer::start(&[]);
    let gateways = pair(&server, [&[], &[]], &route("one", "respond = { }", "rate = \"1/h\"\nburst = 10"));
    let body = json!({ "operation": "take", "decisions": vec![json!({ "limits": ["one"] }); 25] }).to_string();
    let take = |gateway: &Gateway| {
        let head = format!(
            "POST /-/decide HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let response = Client::connect(gateway.admin).fetch(&head, &body).json();
        let decisions: Vec<Value> = response["decisions"].as_array().unwrap().clone();
        decisions.iter().filter(|decision| decision["admitted"] == true).count()
    };
    let admitted: usize = std::thread::scope(|scope| {
        let threads = [0, 1, 0, 1].map(|i| {
            let (take, gateway) = (&take, &gateways[i]);
            scope.spawn(move || take(gateway))
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 10);
}

/// All limits of a request are decided in one call.
#[test]
fn three_limits_are_one_call() {
    let server = RedisServer::start(&[]);
    let limits: String =
        ["a", "b", "c"].map(|name| format!("[limit.{name}]\nrate = \"1000/h\"\nkey = \"all\"\n")).concat();
    let config = format!("[[route]]\npath = \"/\"\nrespond = {{ }}\nlimits = [\"a\", \"b\", \"c\"]\n\n{limits}");
    let gateways = pair(&server, [&[], &[]], &config);
    let mut client = server.client();
    let calls = |client: &mut redis::Connection| -> i64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query(client).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_mget:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let before = calls(&mut client);
    let mut requests = gateways[0].client();
    for _ in 0..20 {
        assert_eq!(requests.fetch(&get("/", ""), "").status(), 200);
    }
    // The script reads the keys of a call once; nothing else uses that command.
    assert_eq!(calls(&mut client) - before, 20);
}

/// A refused large cost says nothing about smaller ones, also not in the cache of refusals.
#[test]
fn a_large_cost_that_was_refused_blocks_no_small_one() {
    let server = RedisServer::start(&[]);
    let lines = "rate = \"1/h\"\nburst = 10\ncost = \"header:x-cost\"";
    let gateways = pair(&server, [&[], &[]], &route("one", "respond = { }", lines));
    let fetch = |cost: u32| gateways[0].fetch(&get("/one", &format!("x-cost: {cost}\r\n"))).status();
    assert_eq!([5, 9, 9, 9, 1, 9, 11, 4, 1, 9].map(fetch), [200, 429, 429, 429, 200, 429, 429, 200, 429, 429]);
}

/// Values that would be confused if a key joined them without separators.
#[test]
fn key_parts_with_separators_in_them_have_budgets_of_their_own() {
    let server = RedisServer::start(&[]);
    let config = "[[route]]\npath = \"/\"\nrespond = { }\nlimits = [\"one\"]\n\n\
                  [limit.one]\nrate = \"1/h\"\nkey = [\"header:x-a\", \"header:x-b\"]\nmissing = \"shared\"\n";
    let gateways = pair(&server, [&[], &[]], config);
    let pairs = [
        ("a_b", "c"),
        ("a", "b_c"),
        ("a|b", "c"),
        ("a", "b|c"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("a,b", "c"),
        ("a", "b,c"),
        ("a,header:x-b=b", "c"),
        ("a", "b,header:x-b=c"),
        ("a}", "{b"),
        ("a}:{b", ""),
        ("", "a"),
        ("a", ""),
        ("!", "a"),
        ("a#b", "c"),
        ("a", "b#c"),
    ];
    for (a, b) in pairs {
        let fields = format!("x-a: {a}\r\nx-b: {b}\r\n");
        let statuses = [0, 1].map(|i| gateways[i].fetch(&get("/", &fields)).status());
        assert_eq!(statuses, [200, 429], "{a:?} and {b:?}");
    }
}

/// A list of words may have empty lines, which match nothing.
#[test]
fn an_empty_line_of_a_set_is_no_item() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("words.txt");
    std::fs::write(&file, "\nalpha\n\n  \nbeta\n\n").unwrap();
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nrespond = {{ }}\nlimits = [\"one\"]\n\n[set.words]\nfile = \"{}\"\n\n\
         [limit.one]\nrate = \"1/h\"\nkey = \"query:w\"\nwhen = {{ query = {{ w = \"set:words\" }} }}\n",
        file.display()
    ));
    for (word, statuses) in [("alpha", [200, 429]), ("beta", [200, 429]), ("", [200, 200]), ("%20%20", [200, 200])] {
        let found = [0, 1].map(|_| gateway.get(&format!("/?w={word}")).status());
        assert_eq!(found, statuses, "`{word}`");
    }
}
