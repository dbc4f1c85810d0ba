//! Limits as a client sees them: the rate limit headers in all dialects, the exact wait, and the refusal over HTTP and
//! gRPC.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::Rng;
use serde_json::json;
use sfv::{BareItem, List, ListEntry, Parser};
use sluicegate::limiting::Outcome;
use sluicegate::limiting::answer::{Answer, NEVER};
use sluicegate::limiting::decision::Op;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::memory::MemoryStore;
use sluicegate::proxy::steps::response::problem::retry_after_s;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::limiting::rules::random_rule;
use crate::support::limiting::{RedisServer, check, limit, seeded, shares_backlog};
use crate::support::ports::closed_addr;
use crate::support::upstream::{Upstream, ok};

/// Two limits of clock-free arithmetic: a bucket that hardly refills, and windows of an hour.
const LIMITS: &str = r#"
[limit.burst]
rate = "2/h"
burst = 3
key = "ip"

[limit.hourly]
algorithm = "fixed_window"
rate = "100/h"
key = "ip"

[limit.silent]
rate = "1/h"
key = "ip"
mode = "shadow"

[limit.small]
rate = "1/h"
burst = 5
key = "ip"
cost = "header:x-cost"
"#;

fn route(path: &str, limits: &str, more: &str) -> String {
    format!(
        "[[route]]\nname = \"{path}\"\npath = \"/{path}\"\nrespond = {{ status = 200, body = \"ok\" }}\n\
         limits = [{limits}]\n{more}\n\n"
    )
}

/// A list of strings with integer and string parameters, in the order of the text.
fn list(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let list: List = Parser::new(text).parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("an inner list: {text}") };
            let BareItem::String(name) = item.bare_item else { panic!("not a string: {text}") };
            let parameters = item.params.into_iter().map(|(key, value)| {
                let value = match value {
                    BareItem::Integer(int) => int.to_string(),
                    BareItem::String(text) => text.as_str().to_owned(),
                    other => panic!("{other:?}"),
                };
                (key.as_str().to_owned(), value)
            });
            (name.as_str().to_owned(), parameters.collect())
        })
        .collect()
}

fn member(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, String)>) {
    (name.to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), value.to_string())).collect())
}

#[test]
fn draft_11_is_a_structured_field_on_every_answer() {
    let gateway = Gateway::start(&(LIMITS.to_owned() + &route("a", "\"burst\", \"hourly\", \"silent\"", "")));
    let policy = [member("burst", &[("q", 3), ("w", 5400)]), member("hourly", &[("q", 100), ("w", 3600)])];
    for n in 1..=3 {
        let response = gateway.get("/a");
        assert_eq!((response.status(), response.get("retry-after")), (200, None));
        assert_eq!(list(response.get("ratelimit-policy").unwrap()), policy);
        let left = 3 - n;
        let states = list(response.get("ratelimit").unwrap());
        assert_eq!(states[0], member("burst", &[("r", left), ("t", 1800 * n.max(left))]), "the {n}th");
        assert_eq!(states[1], member("hourly", &[("r", 100 - n), ("t", 3600)]), "the {n}th");
    }
    let response = gateway.get("/a");
    assert_eq!((response.status(), response.get("retry-after")), (429, Some("1800")));
    assert_eq!(list(response.get("ratelimit-policy").unwrap()), policy);
    let states = list(response.get("ratelimit").unwrap());
    assert_eq!(states[0], member("burst", &[("r", 0), ("t", 1800)]), "the window ends with Retry-After");
    assert_eq!(response.get("content-type"), Some("application/problem+json"));
    let mut problem = response.json();
    let wait_ms = problem["retry-after-ms"].take().as_i64().unwrap();
    assert!((1_790_000..=1_800_000).contains(&wait_ms), "{wait_ms}");
    problem.as_object_mut().unwrap().remove("retry-after-ms");
    assert!(problem.as_object_mut().unwrap().remove("request_id").is_some());
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "request quota exceeded",
            "status": 429,
            "violated-policies": ["burst"],
        })
    );
}

/// Values of the named fields, `-` where absent.
fn values<'a>(response: &'a Message, names: &[&str]) -> Vec<&'a str> {
    names.iter().map(|name| response.get(name).unwrap_or("-")).collect()
}

const DRAFT_07: [&str; 2] = ["ratelimit-policy", "ratelimit"];
const DRAFT_03: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const LEGACY: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

#[test]
fn older_dialects_show_the_narrowest_limit() {
    let limits = "\"hourly\", \"burst\", \"silent\"";
    let config = format!(
        "[headers]\nratelimit = [\"draft-07\", \"draft-03\", \"legacy\"]\n{LIMITS}\n{}{}{}",
        route("all", limits, ""),
        route("one", limits, "ratelimit_headers = \"legacy\""),
        route("off", limits, "ratelimit_headers = \"off\"")
    );
    let gateway = Gateway::start(&config);
    let response = gateway.get("/all");
    assert_eq!(response.status(), 200);
    assert_eq!(values(&response, &DRAFT_07), ["100;w=3600, 3;w=5400", "limit=3, remaining=2, reset=1800"]);
    assert_eq!(values(&response, &DRAFT_03), ["3, 100;w=3600, 3;w=5400", "2", "1800"]);
    assert_eq!(values(&response, &LEGACY), ["3", "2", "1800"]);

    let response = gateway.get("/one");
    assert_eq!(values(&response, &LEGACY), ["3", "1", "3600"]);
    assert_eq!([values(&response, &DRAFT_07), values(&response, &DRAFT_03)].concat(), ["-"; 5]);
    let response = gateway.get("/off");
    assert_eq!([values(&response, &DRAFT_07), values(&response, &LEGACY)].concat(), ["-"; 5]);

    let response = gateway.get("/all");
    assert_eq!((response.status(), response.get("retry-after")), (429, Some("1800")));
    assert_eq!(values(&response, &DRAFT_07), ["100;w=3600, 3;w=5400", "limit=3, remaining=0, reset=1800"]);
    assert_eq!(values(&response, &DRAFT_03), ["3, 100;w=3600, 3;w=5400", "0", "1800"]);
    assert_eq!(values(&response, &LEGACY), ["3", "0", "1800"]);
}

#[test]
fn several_dialects_go_together_and_redirects_carry_none() {
    let config = format!(
        "[headers]\nratelimit = [\"draft-11\", \"legacy\"]\n{LIMITS}\n{}[[route]]\npath = \"/away\"\n\
         respond = {{ status = 302 }}\nlimits = [\"burst\"]\n",
        route("here", "\"burst\"", "")
    );
    let gateway = Gateway::start(&config);
    let response = gateway.get("/away");
    assert_eq!((response.status(), values(&response, &["ratelimit", "ratelimit-policy"])), (302, vec!["-", "-"]));
    let response = gateway.get("/here");
    assert_eq!(list(response.get("ratelimit").unwrap()), [member("burst", &[("r", 1), ("t", 3600)])]);
    assert_eq!(values(&response, &LEGACY), ["3", "1", "3600"]);
}

/// The reset of `epoch` is a time of the gateway's wall clock, whatever the clock of the store says.
#[test]
fn the_epoch_is_that_of_the_wall_clock() {
    let redis = RedisServer::with_clock();
    redis.set_clock(86_400);
    let config = format!(
        "[headers]\nratelimit = [\"draft-03\", \"epoch\"]\n[store]\nurl = \"{}\"\ndeadline = \"5s\"\non_error = \"closed\"\n{LIMITS}\n{}",
        redis.url(),
        route("one", "\"burst\"", "")
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_store();
    for (status, wait) in [(200, 1800), (200, 3600), (200, 5400), (429, 1800)] {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = now();
        let response = gateway.get("/one");
        let reset: u64 = response.get(LEGACY[2]).unwrap().parse().unwrap();
        assert_eq!(response.status(), status);
        assert!((before + wait - 3..=now() + wait + 1).contains(&reset), "{reset}, {before} + {wait}");
        let seconds: u64 = response.get(DRAFT_03[2]).unwrap().parse().unwrap();
        assert!((wait - 3..=wait).contains(&seconds), "{seconds}");
    }
}

/// All responses in a window have the same reset, however long they take. A window that ends on a whole second ends then.
#[test]
fn the_epoch_of_a_window_is_the_same_in_slow_responses() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target().starts_with("/slow") {
                thread::sleep(Duration::from_millis(2300));
            }
            peer.send(ok("in"))?;
        }
        Ok(())
    });
    let redis = RedisServer::start(&[]);
    for store in [String::new(), format!("[store]\nurl = \"{}\"\ndeadline = \"5s\"\n", redis.url())] {
        let config = format!(
            "[headers]\nratelimit = [\"epoch\"]\n{store}[[route]]\nupstream = \"{}\"\nlimits = [\"day\", \"hour\"]\n\
             [limit.day]\nalgorithm = \"calendar\"\nrate = \"40/day\"\nkey = \"query:day\"\nmissing = \"skip\"\n\
             [limit.hour]\nalgorithm = \"fixed_window\"\nrate = \"40/h\"\nkey = \"query:hour\"\nmissing = \"skip\"\n",
            upstream.url()
        );
        let gateway = Gateway::start(&config);
        if !store.is_empty() {
            gateway.wait_for_store();
        }
        let reset = |target: &str| gateway.get(target).get(LEGACY[2]).unwrap().parse::<u64>().unwrap();
        let days: Vec<u64> = (0..30).map(|_| reset("/?day=a")).collect();
        assert!(days.iter().all(|reset| reset % 86_400 == 0), "{days:?}");
        assert!(reset("/?hour=a").abs_diff(reset("/slow?hour=a")) <= 1);
    }
}

/// Headers of `refuse` are on refusals alone, whatever format they have.
#[test]
fn a_refusal_has_the_headers_of_its_limit() {
    let headers =
        "headers = { x-quota = \"{limit} of {route}\", x-wait = \"{retry_after}\", cache-control = \"private\" }";
    let config = format!(
        "{LIMITS}\n[limit.own]\nrate = \"1/h\"\nkey = \"ip\"\nrefuse = {{ dialect = \"openai\", headers = {{ x-own = \"yes\" }} }}\n{}{}{}",
        route("plain", "\"small\"", &format!("refuse = {{ {headers} }}")),
        route("body", "\"small\"", &format!("refuse = {{ body = \"no\", status = 503, {headers} }}")),
        route("own", "\"own\"", &format!("refuse = {{ {headers} }}")),
    );
    let gateway = Gateway::start(&config);
    let names = ["x-quota", "x-wait", "cache-control", "x-own"];
    let admitted = gateway.fetch(&get("/plain", "x-cost: 5\r\n"));
    assert_eq!((admitted.status(), values(&admitted, &names)), (200, vec!["-"; 4]));
    for (path, fields, status) in [
        ("/plain", "", 429),
        ("/body", "", 503),
        ("/plain", "accept: text/html\r\n", 429),
        ("/plain", GRPC_FIELDS, 200),
    ] {
        let refused = gateway.fetch(&get(path, fields));
        let quota = format!("small of {}", &path[1..]);
        let found = values(&refused, &names);
        assert_eq!((refused.status(), found[0], found[2], found[3]), (status, &*quota, "private", "-"), "{fields}");
        assert!((3598..=3600).contains(&found[1].parse::<i64>().unwrap()), "{found:?}");
    }
    // A limit with its own `refuse` has none of those of the route.
    assert_eq!(gateway.get("/own").status(), 200);
    let refused = gateway.get("/own");
    assert_eq!((refused.status(), values(&refused, &names)), (429, vec!["-", "-", "no-store", "yes"]));
    // A missing integer is not what `refuse` is for.
    let malformed = gateway.fetch(&get("/plain", "x-cost: x\r\n"));
    assert_eq!((malformed.status(), values(&malformed, &names)[0]), (400, "-"));
}

const GRPC_FIELDS: &str = "content-type: application/grpc\r\nte: trailers\r\n";

/// For every algorithm, the request is admitted at the promised instant and not a millisecond earlier, and the seconds
/// of `Retry-After` are never early.
#[test]
fn retry_after_is_exact_for_every_algorithm() {
    let mut seeded = seeded();
    let rng = &mut seeded.rng;
    for name in crate::support::limiting::rules::all_limit_rules() {
        let mut refused = 0;
        for _ in 0..300 {
            let limit = limit("one", random_rule(name, rng), Mode::Enforce);
            let memory = MemoryStore::new(1000);
            let mut now_ms = 1_790_000_000_000 + rng.random_range(0..100_000_000);
            let quota = limit.rule.policy().quota;
            for _ in 0..60 {
                let cost = rng.random_range(1..=quota.min(1_000_000_000));
                let mut check = check(&limit, "ip=10.0.0.1", cost);
                check.tag = rng.random_range(1..1 << 52);
                let answer = memory.run(Op::Take, std::slice::from_ref(&check), now_ms).answers[0];
                if !answer.admitted && answer.retry_ms != NEVER && !shares_backlog(&limit.rule, &answer) {
                    refused += 1;
                    exact(&memory, &check, now_ms, answer);
                }
                now_ms += rng.random_range(0..=answer.reset_ms.clamp(0, 1 << 40));
            }
        }
        assert!(refused > 100, "{name} refused only {refused} times");
    }
}

fn exact(memory: &MemoryStore, check: &sluicegate::limiting::decision::Check, now_ms: i64, answer: Answer) {
    let promised = now_ms + answer.retry_ms;
    let peek = |at| memory.run(Op::Peek, std::slice::from_ref(check), at).answers[0].admitted;
    assert!(answer.retry_ms > 0 && !peek(promised - 1), "{check:?} is admitted before {promised}: {answer:?}");
    assert!(peek(promised), "{check:?} is not admitted at {promised}: {answer:?}");
    let seconds = retry_after_s(Outcome::Store(answer)).unwrap();
    assert!(seconds * 1000 >= answer.retry_ms && (seconds - 1) * 1000 < answer.retry_ms, "{seconds} {answer:?}");
}

#[test]
fn a_body_of_ones_own_and_a_request_that_never_fits() {
    let refuse = "refuse = { status = 503, body = \"{limit} of {route}: {retry_after}s\" }";
    let config = LIMITS.to_owned() + &route("own", "\"small\"", refuse) + &route("never", "\"small\"", "");
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.fetch(&get("/own", "x-cost: 5\r\n")).status(), 200);
    let response = gateway.get("/own");
    assert_eq!((response.status(), response.text().as_str()), (503, "small of own: 3600s"));
    assert_eq!(response.get("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(response.get("retry-after"), Some("3600"));

    let response = gateway.fetch(&get("/never", "x-cost: 6\r\n"));
    assert_eq!((response.status(), response.get("retry-after")), (429, None));
    let problem = response.json();
    assert_eq!(problem["title"], "the request costs more than its whole quota");
    assert_eq!(problem.get("retry-after-ms"), None);
}

/// A cache in front of the gateway must not give the refusal of one client to others, whatever its status and body.
#[test]
fn no_refusal_may_be_stored_by_caches() {
    let auth_server = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            let stored = if request.target().contains("stored") { "cache-control: max-age=60\r\n" } else { "" };
            peer.send(format!("HTTP/1.1 404 Not Found\r\n{stored}content-length: 0\r\n\r\n"))?;
        }
        Ok(())
    });
    let forward = |path: &str| {
        let url = auth_server.url();
        format!("[[route]]\npath = \"/{path}\"\nupstream = \"echo:\"\nauth = {{ forward = \"{url}/{path}\" }}\n")
    };
    let limited = |name: &str, refuse: &str| {
        let limit = format!("[limit.{name}]\nrate = \"1/day\"\nkey = \"ip\"\n{refuse}\n");
        format!("[[route]]\npath = \"/{name}\"\nupstream = \"echo:\"\nlimits = [\"{name}\"]\n{limit}")
    };
    let gateway = Gateway::start(
        &[
            limited("builtin", ""),
            limited("body", "refuse = { body = \"slow down\" }"),
            limited("status", "refuse = { status = 404, body = \"none\", content_type = \"text/html\" }"),
            limited("openai", "refuse = { dialect = \"openai\" }"),
            limited("anthropic", "refuse = { dialect = \"anthropic\" }"),
            limited("bedrock", "refuse = { dialect = \"bedrock\" }"),
            "[[route]]\npath = \"/denied\"\nupstream = \"echo:\"\ndeny = \"127.0.0.0/8\"\n".to_owned(),
            "[[route]]\npath = \"/large\"\nupstream = \"echo:\"\nmax_body = 0\n".to_owned(),
            format!("[[route]]\npath = \"/down\"\nupstream = \"http://{}\"\n", closed_addr()),
            forward("auth"),
            forward("stored"),
        ]
        .concat(),
    );
    for (path, status) in [
        ("/builtin", 429),
        ("/body", 429),
        ("/status", 404),
        ("/openai", 429),
        ("/anthropic", 429),
        ("/bedrock", 429),
        ("/denied", 403),
        ("/large", 413),
        ("/down", 502),
        ("/auth", 404),
        ("/no-such-route", 404),
    ] {
        gateway.get(path);
        let response = gateway.client().fetch(&post(path, 1, ""), "x");
        assert_eq!((response.status(), response.get("cache-control")), (status, Some("no-store")), "{path}");
    }
    assert_eq!(gateway.get("/stored").get("cache-control"), Some("max-age=60"), "the auth server may know better");
}

/// The policy of a concurrency limit has a unit and no window.
#[test]
fn a_concurrency_limit_says_its_unit() {
    let two = "[limit.two]\nalgorithm = \"concurrency\"\nin_flight = 2\nkey = \"ip\"\ncost = \"header:x-cost\"\n";
    let gateway = Gateway::start(&(LIMITS.to_owned() + two + &route("both", "\"two\", \"hourly\"", "")));
    let policy = |response: &Message| {
        let policies = list(response.get("ratelimit-policy").unwrap());
        assert_eq!(policies[1], member("hourly", &[("q", 100), ("w", 3600)]));
        policies[0].clone()
    };
    let unit = |parameters: &[(&str, &str)]| {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ("two".to_owned(), parameters.collect::<Vec<_>>())
    };
    let response = gateway.get("/both");
    assert_eq!(response.status(), 200);
    assert_eq!(policy(&response), unit(&[("q", "2"), ("qu", "concurrent-requests")]));
    assert_eq!(list(response.get("ratelimit").unwrap())[0].1[0], ("r".to_owned(), "1".to_owned()));
    let response = gateway.fetch(&get("/both", "x-cost: 3\r\n"));
    assert_eq!((response.status(), response.get("retry-after")), (429, None));
    assert_eq!(policy(&response), unit(&[("q", "2"), ("qu", "concurrent-requests")]));

    // The older dialects cannot express the unit, so they do not show the limit.
    let config =
        format!("[headers]\nratelimit = [\"draft-07\", \"legacy\"]\n{LIMITS}{two}{}", route("one", "\"two\"", ""));
    let response = Gateway::start(&config).get("/one");
    assert_eq!([values(&response, &DRAFT_07), values(&response, &LEGACY)].concat(), ["-"; 5]);
}

/// The parts of a refusal that gRPC clients read.
fn grpc(response: &Message) -> (u16, Option<&str>, Option<&str>, Option<&str>) {
    assert_eq!((response.text().as_str(), response.get("content-type")), ("", Some("application/grpc")));
    assert_eq!(response.get("content-length").unwrap_or("0"), "0");
    let [status, message, pushback] =
        ["grpc-status", "grpc-message", "grpc-retry-pushback-ms"].map(|name| response.get(name));
    (response.status(), status, message, pushback)
}

#[test]
fn grpc_requests_are_refused_in_grpc() {
    let config = format!(
        "{LIMITS}\n{}[[route]]\nname = \"down\"\npath = \"/down\"\nupstream = \"http://{}\"\n\n\
         [[route]]\nname = \"denied\"\npath = \"/denied\"\nupstream = \"echo:\"\ndeny = [\"127.0.0.1\"]\n\n\
         [[route]]\nname = \"tiny\"\npath = \"/tiny\"\nupstream = \"echo:\"\nmax_body = 1\n\n\
         [[route]]\nname = \"keyed\"\npath = \"/keyed\"\nupstream = \"echo:\"\nlimits = [\"keyed\"]\n\n\
         [limit.keyed]\nrate = \"1/s\"\nkey = \"header:x-api-key\"\nmissing = \"refuse\"\n",
        route("rpc", "\"small\"", "refuse = { status = 503, body = \"not for gRPC\" }"),
        closed_addr(),
    );
    let gateway = Gateway::start(&config);
    let call = |path: &str, fields: &str| {
        let fields = format!("content-type: application/grpc+proto\r\nte: trailers\r\n{fields}");
        gateway.client().fetch(&post(path, 5, &fields), [0; 5])
    };
    assert_eq!(call("/rpc", "x-cost: 5\r\n").get("grpc-status"), None);
    let response = call("/rpc", "");
    let (status, code, message, pushback) = grpc(&response);
    assert_eq!((status, code, message), (200, Some("8"), Some("request quota exceeded: small")));
    let pushback: i64 = pushback.unwrap().parse().unwrap();
    assert!((3_590_000..=3_600_000).contains(&pushback), "{pushback}");
    assert_eq!(list(response.get("ratelimit").unwrap()), [member("small", &[("r", 0), ("t", 3600)])]);
    let never = call("/rpc", "x-cost: 6\r\n");
    assert_eq!(grpc(&never).1, Some("8"));
    assert_eq!(grpc(&never).3, Some("-1"), "do not retry");

    for (path, code, message) in [
        ("/down", "14", "no upstream server accepts connections"),
        ("/denied", "7", "your address is not allowed on this route"),
        ("/tiny", "8", "the request body is larger than allowed here"),
        ("/keyed", "7", "the request lacks header:x-api-key, the key of its limit: keyed"),
        ("/nowhere", "12", "no route matches this host, path and method"),
    ] {
        assert_eq!(grpc(&call(path, "")), (200, Some(code), Some(message), None), "{path}");
    }
    assert_eq!(grpc(&call("/a%2fb", "")).1, Some("13"), "refused as unclear");

    let labels = [("route", "rpc"), ("method", "POST"), ("code", "200")];
    gateway.assert_metric("requests_total", &labels, 3.0);
    for reason in ["exhausted", "never_fits"] {
        let refused = [("route", "rpc"), ("limit", "small"), ("reason", reason)];
        gateway.assert_metric("rejections_total", &refused, 1.0);
    }

    let web = gateway.client().fetch(&post("/rpc", 5, "content-type: application/grpc-web\r\n"), [0; 5]);
    assert_eq!((web.status(), web.text().as_str()), (503, "not for gRPC"), "gRPC-Web has its status in the body");
}

/// While the store is unavailable, a limit with `on_error = "closed"` reports that in both protocols: the client has
/// not exhausted its quota, and should try again soon.
#[test]
fn a_closed_store_is_unavailable_in_grpc_too() {
    let mut server = crate::support::limiting::RedisServer::start(&[]);
    let config = format!(
        "[store]\nurl = \"{}\"\non_error = \"closed\"\ndeadline = \"10s\"\n{LIMITS}\n{}",
        server.url(),
        route("rpc", "\"burst\", \"hourly\"", "")
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_store();
    let call = || {
        let fields = "content-type: application/grpc+proto\r\nte: trailers\r\n";
        gateway.client().fetch(&post("/rpc", 5, fields), [0; 5])
    };
    assert_eq!(call().get("grpc-status"), None);
    server.kill();
    crate::support::wait_until("the store is unavailable", || gateway.metric("store_up", &[]) == Some(0.0));
    let message = "the limit store is unavailable, and this route refuses requests without it: burst, hourly";
    assert_eq!(grpc(&call()), (200, Some("14"), Some(message), Some("2000")));
    let plain = gateway.get("/rpc");
    assert_eq!((plain.status(), plain.get("retry-after")), (503, Some("2")));
    assert_eq!(plain.json()["violated-policies"], json!(["burst", "hourly"]));
}
