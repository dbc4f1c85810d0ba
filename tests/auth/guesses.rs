//! Limits on guesses, the order of authentication and limits, remembered passwords, and floods of wrong ones.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Request;
use tokio::net::TcpStream;
use tokio::runtime::Builder;

use super::{basic, bcrypt, checks, htpasswd, start, start_with};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

fn route(auth: &str, rest: &str) -> String {
    format!(
        "[[route]]\nname = \"r\"\npath = \"/\"\nupstream = \"echo:\"\nauth = {{ basic = \"users\"{auth} }}\n{rest}\n\
         [[route]]\npath = \"/open\"\nrespond = {{ body = \"open\" }}\n"
    )
}

fn status(gateway: &Gateway, fields: &str) -> u16 {
    gateway.fetch(&get("/", fields)).status()
}

const GUESSES: &str = "[limit.guesses]\nrate = \"5/h\"\nkey = \"ip\"\n";

#[test]
fn only_as_many_guesses_are_hashed_as_the_limit_allows() {
    let rest = format!("{GUESSES}charge_on = [401]\n");
    let gateway = start(&bcrypt("alice", "secret"), &route(", cache = \"0s\", limits = [\"guesses\"]", &rest));
    // Correct, missing and malformed credentials do not count as guesses.
    assert!((0..10).all(|_| status(&gateway, &basic("alice", "secret")) == 200));
    assert!((0..10).all(|_| status(&gateway, "") == 401 && status(&gateway, "authorization: Basic !\r\n") == 401));
    let guesses: Vec<u16> = (0..12).map(|guess| status(&gateway, &basic("alice", &guess.to_string()))).collect();
    assert_eq!(guesses, [[401; 5].as_slice(), &[429; 7]].concat());
    assert_eq!((checks(&gateway, "mismatch"), checks(&gateway, "match")), (5.0, 10.0));
    let refused = gateway.fetch(&get("/", &basic("alice", "x")));
    assert_eq!(refused.json()["violated-policies"][0], "guesses");
    assert!(refused.get("retry-after").is_some() && refused.get("www-authenticate").is_none());
    assert!(refused.get("ratelimit").unwrap().starts_with("\"guesses\";r=0;"), "{}", refused.head);
    let labels = |reason| [("route", "r"), ("limit", "guesses"), ("reason", reason)];
    gateway.assert_metric("rejections_total", &labels("exhausted"), 8.0);
    // The limit counts by address.
    assert_eq!(gateway.client_from([127, 0, 0, 9]).fetch(&get("/", &basic("alice", "x")), "").status(), 401);
}

#[test]
fn a_remembered_password_needs_no_hash_and_no_limit() {
    let gateway = start(&bcrypt("alice", "secret"), &route(", cache = \"2s\", limits = [\"guesses\"]", GUESSES));
    let (right, since) = (basic("alice", "secret"), Instant::now());
    assert!((0..20).all(|_| status(&gateway, &right) == 200));
    if since.elapsed() < Duration::from_secs(2) {
        assert_eq!((checks(&gateway, "match"), checks(&gateway, "cached")), (1.0, 19.0));
    }
    let guesses: Vec<u16> = (0..6).map(|guess| status(&gateway, &basic("alice", &guess.to_string()))).collect();
    assert_eq!(guesses, [401, 401, 401, 401, 429, 429]);
    // A refusal deletes the remembered password. Otherwise the status would show which guess is right.
    assert_eq!([status(&gateway, &right), status(&gateway, &right)], [429; 2]);
    let mut other = gateway.client_from([127, 0, 0, 9]);
    assert_eq!(other.fetch(&get("/", &right), "").status(), 200);
}

#[test]
fn an_address_without_budget_learns_nothing_from_the_login_of_another() {
    let rest = format!("{GUESSES}charge_on = [401]\n");
    // One hash of alice takes about half a second.
    let users = htpasswd(&["-nbB", "-C", "13", "alice", "secret"]) + &bcrypt("bob", "b");
    let gateway = start(&users, &route(", cache = \"1h\", limits = [\"guesses\"]", &rest));
    let right = basic("alice", "secret");
    let mut attacker = gateway.client_from([127, 0, 0, 9]);
    assert!((0..5).all(|guess| attacker.fetch(&get("/", &basic("bob", &guess.to_string())), "").status() == 401));
    // Neither while the password is verified for the other address nor while it is remembered.
    let (addr, fields) = (gateway.addr, right.clone());
    let victim = std::thread::spawn(move || crate::support::client::fetch(addr, &get("/", &fields)).status());
    let mut requests = 0;
    while !victim.is_finished() {
        assert_eq!(attacker.fetch(&get("/", &right), "").status(), 429);
        requests += 1;
    }
    assert!(requests > 0);
    assert_eq!((victim.join().unwrap(), attacker.fetch(&get("/", &right), "").status()), (200, 429));
    let guess = basic("alice", "wrong");
    assert_eq!([&guess, &right].map(|fields| attacker.fetch(&get("/", fields), "").status()), [429; 2]);
    // The other client stays logged in.
    let matches = checks(&gateway, "match");
    assert_eq!((status(&gateway, &right), matches, checks(&gateway, "match")), (200, 1.0, 1.0));
}

#[test]
fn a_client_may_shut_down_its_side_while_its_password_is_verified() {
    let users = htpasswd(&["-nbB", "-C", "12", "alice", "secret"]);
    let gateway = start_with("half_close_timeout = \"10s\"", &users, &route("", ""));
    let mut client = gateway.client();
    client.send(get("/", &basic("alice", "secret")));
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read_response("GET").status(), 200);
    client.assert_closed();
}

#[test]
fn limits_of_auth_come_first_and_those_of_the_route_last() {
    let rest = format!(
        "limits = [\"per-user\"]\nallow = [\"127.0.0.8\"]\n{GUESSES}[limit.per-user]\nrate = \"2/h\"\nkey = \"user\"\n"
    );
    let users = format!("{}{}", bcrypt("alice", "a"), bcrypt("bob", "b"));
    let gateway = start_with("access_log = true", &users, &route(", limits = [\"guesses\"]", &rest));
    // A refused guess for another user's name is not charged to that user.
    assert!((0..3).all(|_| status(&gateway, &basic("alice", "wrong")) == 401));
    let first = gateway.fetch(&get("/", &basic("alice", "a")));
    let shown = first.get("ratelimit").unwrap();
    assert!(shown.starts_with("\"guesses\";r=1;") && shown.contains("\"per-user\";r=1;"), "{shown}");
    assert_eq!([status(&gateway, &basic("alice", "a")), status(&gateway, &basic("alice", "a"))], [200, 429]);
    assert_eq!([status(&gateway, &basic("bob", "b")), status(&gateway, &basic("bob", "x"))], [200, 429]);
    // Clients on the `allow` list have no limits, but need credentials.
    let mut allowed = gateway.client_from([127, 0, 0, 8]);
    let mut fetch = |fields: &str| allowed.fetch(&get("/", fields), "").status();
    assert_eq!([fetch(""), fetch(&basic("alice", "no"))], [401; 2]);
    assert!((0..4).all(|_| fetch(&basic("alice", "a")) == 200));
    wait_until("all requests are logged", || gateway.stdout().lines().count() == 14);
    let log = gateway.stdout();
    let last = |name: &str| log.lines().rfind(|line| line.contains(&format!("\"refused_by\":\"{name}\""))).unwrap();
    assert!(last("per-user").contains("\"user\":\"alice\"") && last("guesses").contains("\"user\":null"), "{log}");
    let peek = |user: &str| gateway.admin(&format!("/-/limits/per-user/state?key={user}")).json();
    assert_eq!((&peek("alice")["remaining"], &peek("bob")["remaining"]), (&0.into(), &1.into()), "{}", peek("bob"));
}

#[test]
fn a_limit_of_requests_in_progress_is_held_and_released() {
    let rest = "limits = [\"own\"]\n[limit.busy]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"ip\"\n\
                [limit.own]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"user\"\n";
    let gateway = start(&bcrypt("alice", "a"), &route(", cache = \"0s\", limits = [\"busy\"]", rest));
    for _ in 0..5 {
        assert_eq!([status(&gateway, &basic("alice", "a")), status(&gateway, &basic("alice", "x"))], [200, 401]);
    }
}

/// Sends 100 requests on each of `connections`, all at once, each with another password. Counts the responses by
/// status.
fn flood(gateway: &Gateway, connections: usize) -> [usize; 3] {
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let addr = gateway.addr;
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for connection in 0..connections {
            let counts = counts.clone();
            tasks.push(tokio::spawn(async move {
                let stream = TcpStream::connect(addr).await.unwrap();
                let (sender, driver) = h2::client::handshake(stream).await.unwrap();
                tokio::spawn(driver);
                let mut responses = Vec::new();
                for stream in 0..100 {
                    let header = basic("alice", &format!("{connection} {stream}"));
                    let value = header.trim().strip_prefix("authorization: ").unwrap();
                    let request = Request::get("http://a.test/").header("authorization", value).body(()).unwrap();
                    let mut sender = sender.clone().ready().await.unwrap();
                    responses.push(sender.send_request(request, true).unwrap().0);
                }
                for response in responses {
                    let place = match response.await.unwrap().status().as_u16() {
                        401 => 0,
                        503 => 1,
                        _ => 2,
                    };
                    counts[place].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    [0, 1, 2].map(|place| counts[place].load(Ordering::Relaxed))
}

#[test]
fn a_flood_of_wrong_passwords_delays_nobody_else() {
    // One hash takes about a quarter of a second.
    let users = htpasswd(&["-nbB", "-C", "12", "alice", "secret"]);
    let gateway = start_with("max_connections_per_ip = 0", &users, &route("", ""));
    flood(&gateway, 2);
    let before = gateway.memory("VmRSS");
    let other = gateway.addr;
    let watch = std::thread::spawn(move || {
        let mut waits = Vec::new();
        for _ in 0..40 {
            let since = Instant::now();
            assert_eq!(crate::support::client::fetch(other, &get("/open", "")).status(), 200);
            waits.push(since.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
        waits.sort_unstable();
        waits
    });
    let [unauthorized, busy, others] = flood(&gateway, 100);
    let waits = watch.join().unwrap();
    assert_eq!((unauthorized + busy, others), (10_000, 0));
    // 64 may wait, and some more find room when a hash is done.
    assert!(unauthorized < 1000, "{unauthorized}");
    // If the worker waited for a hash, many of these requests would take a quarter of a second.
    assert!(waits[waits.len() / 2] < Duration::from_millis(200), "{waits:?}");
    let grown = gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB", grown >> 20);
    let labels = [("route", "r"), ("limit", "_none"), ("reason", "password_queue_full")];
    assert!(gateway.metric("rejections_total", &labels).unwrap() >= busy as f64);
    assert_eq!(gateway.metric("rejections_total", &labels), Some(checks(&gateway, "queue_full")));
}

#[test]
fn equal_credentials_are_verified_once_at_a_time() {
    let users = htpasswd(&["-nbB", "-C", "13", "alice", "secret"]);
    let gateway = start(&users, &route(", cache = \"0s\", limits = [\"guesses\"]", GUESSES));
    let fetch = |_| {
        let addr = gateway.addr;
        std::thread::spawn(move || crate::support::client::fetch(addr, &get("/", &basic("alice", "secret"))).status())
    };
    // Four times as many clients as the limit permits guesses.
    let clients: Vec<_> = (0..20).map(fetch).collect();
    assert!(clients.into_iter().all(|client| client.join().unwrap() == 200));
    assert!(checks(&gateway, "match") < 5.0);
}

/// Many clients guess the password of one user, each within its limit.
#[test]
fn wrong_passwords_do_not_delay_those_of_others() {
    // One hash takes about a quarter of a second.
    let users = htpasswd(&["-nbB", "-C", "12", "carol", "secret"]) + &bcrypt("bob", "b");
    let gateway = start(&users, &route(", cache = \"0s\"", ""));
    let mut guessers: Vec<_> = (1..=10)
        .flat_map(|client| (0..10).map(move |guess| (client, guess)))
        .map(|(client, guess)| {
            let mut connection = gateway.client_from([127, 0, 2, client]);
            connection.send(get("/", &basic("carol", &format!("{client} {guess}"))));
            connection
        })
        .collect();
    wait_until("the queue is full", || checks(&gateway, "queue_full") > 0.0);
    // The hashes that are being computed end first, one on each thread.
    let threads = std::thread::available_parallelism().unwrap().get().div_ceil(2);
    for _ in 0..3 {
        let before = checks(&gateway, "mismatch");
        let response = gateway.client_from([127, 0, 1, 1]).fetch(&get("/", &basic("bob", "b")), "");
        assert_eq!(response.status(), 200);
        let delayed_by = checks(&gateway, "mismatch") - before;
        assert!(delayed_by <= (2 * threads) as f64, "{delayed_by} hashes came first");
    }
    let counts = guessers.iter_mut().map(|client| client.read_response("GET").status());
    assert!(counts.into_iter().all(|status| [401, 503].contains(&status)));
}
