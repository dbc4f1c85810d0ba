//! Claims of the recipes beyond their commands.

use std::net::Ipv4Addr;

use serde_json::json;

use super::{admitted, algorithms, policy, post, state};
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::limiting::RedisServer;
use crate::support::limiting::topology::RedisCluster;
use crate::support::manual::{Page, app};
use crate::support::ports::closed_addr;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// A page of the guides.
fn guide(name: &str) -> Page {
    Page::read(&format!("docs/guides/{name}.md"))
}

fn login(client: &mut Client, password: &str) {
    let body = format!("password={password}");
    client.send(format!("POST /login HTTP/1.1\r\nhost: a.test\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
}

#[test]
fn a_flood_of_guesses_is_held_to_the_count() {
    let app = app();
    let gateway = guide("login").under("Limit failed logins")[0].start(&app, None);
    let mut clients: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| login(client, "wrong"));
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.read_response("POST").status()).collect();
    let of = |status: u16| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((of(401), of(429)), (5, 15));
    assert_eq!(gateway.get("/").status(), 200, "other pages are served");
}

#[test]
fn tokens_are_settled_and_the_overdraft_is_bounded() {
    let page = guide("llm-streams");
    let app = app();
    for (tokens, wait_s) in [(1800, 72), (9000, 120)] {
        let part = page.under("LLM tokens")[0];
        let gateway = part.start(&app, None);
        assert_eq!(policy(&gateway, "tokens"), [1000, 60_000]);
        let fetch = |target: &str, estimate: &str| gateway.fetch(&get(target, &format!("x-api-key: k\r\n{estimate}")));
        assert_eq!(fetch("/chat?tokens=400", "").status(), 200);
        wait_until("400 are charged", || {
            (600..=650).contains(&state(&gateway, "tokens", "key=k&cost=0")["remaining"].as_i64().unwrap())
        });
        assert_eq!(fetch(&format!("/chat?tokens={tokens}"), "").status(), 200);
        wait_until("it is settled", || state(&gateway, "tokens", "key=k&cost=0")["remaining"] == 0);
        let refused = fetch("/chat?tokens=1", "");
        let wait: i64 = refused.get("retry-after").unwrap().parse().unwrap();
        assert!((wait_s - 8..=wait_s + 1).contains(&wait), "{tokens}: {wait}");
        // More than the bucket and its debt can hold never fits.
        let never = part.start_changed(&app, None, &[("cost = 100", "cost = \"header:x-estimate\"")]);
        let never = never.fetch(&get("/chat", "x-api-key: k\r\nx-estimate: 3001\r\n"));
        assert_eq!((never.status(), never.get("retry-after")), (429, None));
    }
}

#[test]
fn nothing_is_charged_where_no_server_responds() {
    let page = Page::read("docs/reference/charges.md");
    let part = page.under("Charges and refunds")[0];
    let app = app();
    let gateway = part.start_changed(&app, None, &[(&app.addr.to_string(), &closed_addr().to_string())]);
    assert_eq!([0; 6].map(|_| gateway.get("/").status()), [502; 6]);
}

#[test]
fn plans_by_header_and_tokens_that_prove_nothing() {
    let app = app();
    let page = guide("plans");
    let part = page.under("Plans by claim or header")[0];
    let gateway = part.start(&app, None);
    let forged = "authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyJ9.\r\n";
    assert_eq!(admitted(&gateway, 3, "/", forged), 2);
    assert_eq!(admitted(&gateway, 3, "/", ""), 0, "one budget for all without a valid token");

    let refuse = [("key = \"jwt:sub\"", "key = \"jwt:sub\"\nmissing = \"refuse\"")];
    assert_eq!(part.start_changed(&app, None, &refuse).get("/").status(), 403);

    let by_header = [("jwt = { plan =", "header = { x-plan ="), ("\"jwt:sub\"", "\"header:x-user\"")];
    let gateway = part.start_changed(&app, None, &by_header);
    assert_eq!(admitted(&gateway, 9, "/", "x-user: a\r\nx-plan: pro\r\n"), 4);
    assert_eq!(admitted(&gateway, 9, "/", "x-user: b\r\n"), 2);
}

#[test]
fn clients_do_not_see_a_candidate() {
    let app = app();
    let gateway = guide("choosing-a-limit").under("Try a limit before it refuses")[0].start(&app, None);
    let policies: Vec<_> = (0..6).map(|_| gateway.get("/").get("ratelimit-policy").unwrap().to_owned()).collect();
    assert_eq!(policies, ["\"now\";q=5;w=3600"; 6]);
}

#[test]
fn the_next_limit_of_a_chain_reports_its_own_wait() {
    let app = app();
    let gateway = guide("recipes").under("Slower after a number")[0].start(&app, None);
    assert_eq!(admitted(&gateway, 4, "/", "x-user: u\r\n"), 4);
    let refused = gateway.fetch(&get("/", "x-user: u\r\n"));
    let wait_ms = refused.json()["retry-after-ms"].as_u64().unwrap();
    assert!(refused.status() == 429 && (1..=4000).contains(&wait_ms), "{wait_ms}");
    assert_eq!(admitted(&gateway, 4, "/", "x-user: other\r\n"), 4);
}

#[test]
fn lists_allow_and_deny_clients() {
    let app = app();
    let page = guide("recipes");
    let part = page.under("Allow some clients, block others")[0];
    let here = [("203.0.113.0/24", "127.0.0.16/28"), ("198.51.100.0/24", "127.0.0.32/28")];
    let from = |gateway: &Gateway, last: u8| {
        let mut client = Client::from(Ipv4Addr::new(127, 0, 0, last), gateway.addr);
        [0; 4].map(|_| client.fetch(&get("/", ""), "").status())
    };
    let gateway = part.start_changed(&app, None, &here);
    assert_eq!(from(&gateway, 17), [200; 4]);
    assert_eq!(from(&gateway, 33), [403; 4]);
    assert_eq!(from(&gateway, 5), [200, 200, 429, 429]);

    let [office, blocked] = here;
    let for_all = ("allow = [\"set:office\"]\n", "");
    let exempt = ("rate = \"2/h\"", "rate = \"2/h\"\nwhen = { client = \"!set:office\" }");
    let gateway = part.start_changed(&app, None, &[office, blocked, for_all, exempt]);
    assert_eq!((from(&gateway, 17), from(&gateway, 5)), ([200; 4], [200, 200, 429, 429]));
}

#[test]
fn routes_share_a_limit_or_have_it_each() {
    let app = app();
    let page = guide("recipes");
    let part = page.under("One budget for several routes")[0];
    let each = [("rate = \"3/h\"", "rate = \"3/h\"\nkey = [\"ip\", \"route\"]")];
    let gateway = part.start_changed(&app, None, &each);
    assert_eq!([admitted(&gateway, 5, "/search", ""), admitted(&gateway, 5, "/export", "")], [3, 3]);
}

#[test]
fn a_failed_vote_may_be_repeated() {
    let app = Upstream::fixed("HTTP/1.1 409 Closed\r\ncontent-length: 0\r\n\r\n");
    let gateway = guide("recipes").under("One vote per user and post")[0].start(&app, None);
    let vote = "POST /posts/1/vote HTTP/1.1\r\nhost: a.test\r\nx-user: u\r\ncontent-length: 0\r\n\r\n";
    assert_eq!([0; 3].map(|_| gateway.fetch(vote).status()), [409; 3]);
}

#[test]
fn each_limit_follows_on_error_while_redis_is_unavailable() {
    let page = Page::read("docs/operating/redis-outages.md");
    let part = page.under("Choose what happens per limit")[0];
    let mut redis = RedisServer::start(&[]);
    let app = app();
    let gateways = [0, 1].map(|_| part.start(&app, Some(redis.port)));
    assert_eq!(["logins", "pages", "api"].map(|limit| policy(&gateways[0], limit)), [[5, 3_600_000]; 3]);
    for gateway in &gateways {
        wait_until("both are counted", || gateway.metric("store_gateways", &[]) == Some(2.0));
    }
    let counts = |path: &str| gateways.each_ref().map(|gateway| admitted(gateway, 9, path, ""));
    let before = gateways.each_ref().map(|gateway| admitted(gateway, 2, "/api", ""));
    assert_eq!(before, [2, 2]);
    redis.kill();
    for gateway in &gateways {
        wait_until("the loss is noticed", || gateway.metric("store_up", &[]) == Some(0.0));
        let refused = gateway.get("/login");
        assert_eq!((refused.status(), refused.get("retry-after")), (503, Some("2")));
    }
    assert_eq!(["/pages", "/api"].map(counts), [[9, 9], [2, 2]], "a share of 5 each, on top");
    for (limit, decision, least) in [
        ("logins", "error_closed", 1.0),
        ("pages", "error_open", 9.0),
        ("api", "local_allow", 2.0),
        ("api", "local_deny", 7.0),
    ] {
        let route = match limit {
            "logins" => "/login",
            "pages" => "/pages",
            _ => "/api",
        };
        let labels = [("route", route), ("limit", limit), ("decision", decision)];
        gateways[0].assert_metric("limit_decisions_total", &labels, least);
    }
    redis.restart();
    for gateway in &gateways {
        wait_until("the store is back", || gateway.metric("store_up", &[]) == Some(1.0));
    }
    assert_eq!(counts("/api").iter().sum::<usize>(), 5, "the store lost its data, so the budget is full again");
}

#[test]
fn a_lua_bucket_has_its_numbers() {
    let redis = RedisServer::start(&[]);
    let app = app();
    let gateway =
        Page::read("docs/migrating/redis-recipes.md").under("The recipes as limits")[0].start(&app, Some(redis.port));
    assert_eq!(policy(&gateway, "lua-bucket"), [4, 2 * 3_600_000]);
}

#[test]
fn several_gateways_have_one_budget() {
    let page = guide("several-gateways");
    let part = page.under("Share the limits")[0];
    let redis = RedisServer::start(&[]);
    let app = app();
    let gateways = [0, 1].map(|_| part.start(&app, Some(redis.port)));
    let results = (0..24).map(|number| gateways[number % 2].fetch(&get("/", "x-api-key: k\r\n")).status());
    assert_eq!(results.filter(|status| *status == 200).count(), 10);
}

#[test]
fn a_cluster_refunds_slots_if_another_node_refuses() {
    let page = guide("several-gateways");
    let part = page.under("Other kinds of Redis")[0];
    let (cluster, app) = (RedisCluster::start(0), app());
    let url = format!("{}\"\ndeadline = \"10s", cluster.url());
    let changes = [("redis+cluster://10.0.0.1:6379,10.0.0.2:6379", &*url), ("100/h", "5/h")];
    let gateway = part.start_changed(&app, None, &changes);
    wait_until("the cluster responds", || gateway.metric("store_up", &[]) == Some(1.0));
    let left = |limit: &str, key: &str| state(&gateway, limit, &format!("key={key}&cost=0"))["remaining"].clone();
    wait_until("the listener has reached it", || left("per-key", "k") == 10);
    // The path refuses the last three, and is no reason for the key to be charged.
    let field = "x-api-key: k\r\n";
    assert_eq!([admitted(&gateway, 8, "/a", field), admitted(&gateway, 4, "/b", field)], [5, 4]);
    assert_eq!([left("per-key", "k"), left("per-path", "/a"), left("per-path", "/b")], [1, 0, 1]);
    assert_eq!(admitted(&gateway, 5, "/c", field), 1);
    wait_until("all charges are refunded", || left("per-path", "/c") == 4);
}

#[test]
fn nginx_numbers_are_these() {
    let app = app();
    let page = algorithms();
    let part = page.under("leaky_bucket")[1];
    // rate=6r/m burst=20 nodelay
    let gateway = part.start_changed(&app, None, &[("20s", "200s")]);
    assert_eq!(admitted(&gateway, 30, "/", ""), 21);
    let bucket = [("leaky_bucket", "token_bucket"), ("nodelay = true\n", ""), ("queue = \"20s\"", "burst = 21")];
    assert_eq!(admitted(&part.start_changed(&app, None, &bucket), 30, "/", ""), 21);
}

#[test]
fn a_peek_shows_the_grey_button() {
    let app = app();
    let gateway = guide("recipes").under("A decision without a proxy")[0].start(&app, None);
    let order = |operation: &str| json!({ "operation": operation, "decisions": [{ "limits": ["mails"], "key": { "header:x-user": "u" } }] });
    let verdict =
        |operation: &str| post(&gateway, "/-/decide", &order(operation)).json()["decisions"][0]["admitted"] == true;
    let results = ["peek", "peek", "peek", "take", "peek", "take", "peek", "take"].map(verdict);
    assert_eq!(results, [true, true, true, true, true, true, false, false]);
}
