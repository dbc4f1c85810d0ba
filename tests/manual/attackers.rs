//! Every recipe of the manual, as it is on its page, against clients that want more than its limit: two gateways on one
//! Redis, in front of a server that acts as soon as it has a head. `table` lists the recipes.

mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use table::RECIPES;

use crate::support::WAIT_MAX;
use crate::support::client::Client;
use crate::support::frames::{self, Wire};
use crate::support::gateway::Gateway;
use crate::support::h2::{H2Client, Sent};
use crate::support::limiting::RedisServer;
use crate::support::manual::Page;
use crate::support::upstream::Upstream;

/// How long the server works on a request.
const WORK: Duration = Duration::from_millis(120);

/// A header by which the server counts requests of each attack.
const MARK: &str = "x-mark";

/// A recipe of the manual, and the requests by which a client tries to get more than its limit.
struct Recipe {
    page: &'static str,
    /// The heading of the config.
    title: &'static str,
    /// Which of the configs under the title.
    part: usize,
    /// Maximum number of requests of one client that pass at once.
    most: usize,
    /// Minimum number of requests that reach the server, if the client sends them without tricks.
    least: usize,
    /// After each such period, one more request may pass.
    refill: Option<Duration>,
    method: &'static str,
    target: &'static str,
    fields: &'static str,
    body: &'static str,
    /// Targets, fields and bodies that some servers take for the same request.
    spellings: &'static [(&'static str, &'static str, &'static str)],
    /// The gateway itself responds, without a server.
    responds: bool,
    /// All clients have one budget.
    is_shared: bool,
    /// Forwarding headers from here are believed.
    trusts_proxies: bool,
}

const PLAIN: Recipe = Recipe {
    page: "",
    title: "",
    part: 0,
    most: 0,
    least: 0,
    refill: None,
    method: "GET",
    target: "/",
    fields: "",
    body: "",
    spellings: &[],
    responds: false,
    is_shared: false,
    trusts_proxies: false,
};

/// Recipes without a request that an attacker could send, and why.
const UNTRIED: &[(&str, &str)] = &[
    ("IPv6 clients with many addresses", "needs addresses of a /48; the page's own commands try eight"),
    ("A decision without a proxy", "asked by the app, on the admin listener"),
    ("Streamed responses", "bounds streams, which the tests of `concurrency` attack"),
    ("The state file", "shows an option of the store"),
    ("Credentials", "refuses what has another scheme; the tests of `credential` have the spellings of one token"),
    ("Forwarding what is over a limit", "admits everything; the tests of `over` attack the header"),
    ("Months that begin when a customer pays", "says when a month begins; the tests of calendars have the days"),
    ("Prices", "has a price for each route; the tests of `charges::prices` spend one budget over several"),
    ("Bytes", "counts what was transferred; the tests of `charges::bytes` break transfers off"),
    ("Times and days", "depends on the clock; the tests of `explain::times` state the time"),
    ("Forward what is over a limit", "admits everything; the tests of `over` attack the header"),
];

/// Pages whose configs are recipes.
const PAGES: &[&str] = &[
    "docs/guides/api-keys.md",
    "docs/guides/choosing-a-limit.md",
    "docs/guides/graphql.md",
    "docs/guides/json-rpc.md",
    "docs/guides/llm-streams.md",
    "docs/guides/login.md",
    "docs/guides/mcp.md",
    "docs/guides/plans.md",
    "docs/guides/recipes.md",
    "docs/operating/redis-outages.md",
    "docs/reference/calls.md",
    "docs/reference/charges.md",
    "docs/reference/conditions.md",
    "docs/reference/keys.md",
    "docs/reference/overrides.md",
    "docs/reference/responses.md",
];

/// A server that counts request heads. Each counts as an action.
struct App {
    server: Upstream,
    /// Number of requests that reached the server, by the mark in the request.
    acts: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl App {
    fn start(work: Duration) -> App {
        let acts = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let counted = acts.clone();
        let server = Upstream::start(move |peer| {
            while let Some(head) = peer.head()? {
                *counted.lock().unwrap().entry(head.get(MARK).unwrap_or_default().to_owned()).or_default() += 1;
                std::thread::sleep(work);
                let body = peer.body(&head)?;
                let wrong = String::from_utf8_lossy(&body).contains("wrong");
                let status = if wrong { "401 No" } else { "200 OK" };
                peer.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
            }
            Ok(())
        });
        App { server, acts }
    }

    fn acts(&self) -> usize {
        self.acts.lock().unwrap().values().sum()
    }

    fn acts_of(&self, mark: &str) -> usize {
        self.acts.lock().unwrap().get(mark).copied().unwrap_or_default()
    }
}

/// A recipe on two gateways.
struct RecipeRun<'a> {
    recipe: &'a Recipe,
    gateways: [Gateway; 2],
    app: App,
    /// Responses that count as an action, for recipes without an upstream server.
    admitted: usize,
    sent: usize,
    started: Instant,
}

impl<'a> RecipeRun<'a> {
    fn new(recipe: &'a Recipe, redis: u16, prefix: &str, work: Duration) -> RecipeRun<'a> {
        let app = App::start(work);
        let page = Page::read(recipe.page);
        let part = page.under(recipe.title)[recipe.part];
        let gateways = [0, 1].map(|_| part.start_sharing(&app.server, redis, prefix));
        RecipeRun { recipe, gateways, app, admitted: 0, sent: 0, started: Instant::now() }
    }

    fn acts(&self) -> usize {
        if self.recipe.responds { self.admitted } else { self.app.acts() }
    }

    /// Returns the maximum number of requests that may have reached the server by now.
    fn most(&self) -> usize {
        let refilled =
            self.recipe.refill.map_or(0.0, |period| self.started.elapsed().as_secs_f64() / period.as_secs_f64());
        self.recipe.most + refilled.ceil() as usize
    }

    fn gateway(&self) -> &Gateway {
        &self.gateways[self.sent % 2]
    }

    /// Waits until the server has more requests than `before`, or the request was refused. The first one that
    /// `is_whole` reaches the server in any case, even if a busy machine takes long.
    fn until_reached(&self, before: usize, is_whole: bool, is_refused: impl Fn() -> bool) {
        let is_first = before == 0 && is_whole && !self.recipe.responds;
        let deadline = Instant::now() + if is_first { WAIT_MAX } else { 3 * WORK };
        while self.app.acts() == before && !is_refused() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends one request, to the gateways in turns.
    fn fetch(&mut self, source: [u8; 4], head: &str, body: &str) -> u16 {
        self.sent += 1;
        let mut client = self.gateway().client_from(source);
        let _ = client.try_send([head, body].concat());
        let status = client.try_read_response(head.split(' ').next().unwrap()).map_or(0, |response| response.status());
        self.admitted += usize::from(status == 200);
        status
    }

    /// Sends the request of the recipe with another method, target, headers or body.
    fn send(&mut self, attempt: &Attempt) -> u16 {
        let (head, body) = attempt.written();
        // The HTTP/2 client does the same.
        self.fetch([127, 0, 0, 1], &head, &body)
    }

    fn send_over_http2(&mut self, attempt: &Attempt) {
        self.sent += 1;
        let method = http::Method::from_bytes(attempt.method.as_bytes()).unwrap();
        let mut request = http::Request::builder().method(method).uri(format!("http://a.test{}", attempt.target));
        for line in attempt.fields.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let mut client = H2Client::connect(self.gateway().addr);
        let sent = Sent { body: attempt.body.as_bytes(), ..Sent::default() };
        let status = client.fetch(request.body(()).unwrap(), sent).status();
        self.admitted += usize::from(status == 200);
    }
}

/// A request as it is written.
#[derive(Clone, Debug)]
struct Attempt {
    method: String,
    target: String,
    fields: String,
    body: String,
}

impl Attempt {
    /// Returns the limited request of the client `who`, for the `number`-th time.
    fn of(recipe: &Recipe, (target, fields, body): (&str, &str, &str), client_name: &str, number: usize) -> Attempt {
        let filled = |text: &str| text.replace("WHO", client_name).replace('#', &number.to_string());
        let [target, fields, body] = [target, fields, body].map(filled);
        Attempt { method: recipe.method.to_owned(), target, fields, body }
    }

    fn plain(recipe: &Recipe, client_name: &str) -> Attempt {
        Attempt::of(recipe, (recipe.target, recipe.fields, recipe.body), client_name, 0)
    }

    fn text(&self) -> String {
        let (head, body) = self.written();
        head + &body
    }

    fn written(&self) -> (String, String) {
        let Attempt { method, target, fields, body } = self;
        let length = body.len();
        (
            format!("{method} {target} HTTP/1.1\r\nhost: a.test\r\ncontent-length: {length}\r\n{fields}\r\n"),
            body.clone(),
        )
    }
}

#[test]
fn every_recipe_has_its_attackers() {
    let mut count = 0;
    for path in PAGES {
        for part in Page::read(path).parts {
            let title = part.title.as_str();
            let tried = RECIPES.iter().any(|recipe| recipe.page == *path && recipe.title == title);
            let untried = UNTRIED.iter().any(|(untried, _)| *untried == title);
            assert!(tried != untried, "{path}, {title:?} has no attackers, or has some and says that it has none");
            count += 1;
        }
    }
    assert!(count >= 20, "only {count} recipes");
}

/// A spent budget stays spent with any spelling, method, protocol and gateway.
#[test]
fn no_spelling_gets_more_than_a_recipe_allows() {
    let redis = RedisServer::start(&[]);
    let attack = |place: usize| -> Vec<String> {
        let recipe = &RECIPES[place];
        let mut stage = RecipeRun::new(recipe, redis.port, &format!("spelt{place}"), Duration::ZERO);
        let mut wrong = Vec::new();
        let mut judge = |stage: &RecipeRun, what: &str| {
            if stage.acts() > stage.most() {
                wrong.push(format!("{}: {} of {} by {what}", recipe.title, stage.acts(), stage.most()));
            }
        };
        let plain = Attempt::plain(recipe, "who");
        for _ in 0..recipe.most + 4 {
            stage.send(&plain);
        }
        assert!(stage.acts() >= recipe.least, "{}: only {} of {}", recipe.title, stage.acts(), recipe.most);
        judge(&stage, "asking two gateways in turns");
        for _ in 0..2 {
            stage.send_over_http2(&plain);
        }
        judge(&stage, "HTTP/2");
        let lower = recipe.method.to_ascii_lowercase();
        let mixed = format!("{}{}", &recipe.method[..1], &lower[1..]);
        for method in [lower, mixed] {
            let attempt = Attempt { method, ..plain.clone() };
            for _ in 0..4 {
                stage.send(&attempt);
            }
            stage.send_over_http2(&attempt);
            judge(&stage, &format!("the method {}", attempt.method));
        }
        let spoofed =
            ["x-forwarded-for: 203.0.113.#\r\n", "forwarded: for=203.0.113.#\r\n", "x-real-ip: 203.0.113.#\r\n"];
        for field in spoofed.iter().filter(|_| !recipe.trusts_proxies) {
            for number in 0..4 {
                let fields = format!("{}{field}", recipe.fields);
                stage.send(&Attempt::of(recipe, (recipe.target, &fields, recipe.body), "who", number));
            }
            judge(&stage, field);
        }
        for spelling in recipe.spellings {
            for number in 0..4 {
                stage.send(&Attempt::of(recipe, *spelling, "who", number));
            }
            judge(&stage, &format!("{spelling:?}"));
        }
        wrong
    };
    let wrong = side_by_side(&attack);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The maximum number of concurrent requests.
#[test]
fn no_flood_gets_more_than_a_recipe_allows() {
    let redis = RedisServer::start(&[]);
    let attack = |place: usize| -> Vec<String> {
        let recipe = &RECIPES[place];
        let stage = RecipeRun::new(recipe, redis.port, &format!("flood{place}"), WORK);
        let (head, body) = Attempt::plain(recipe, "who").written();
        let mut clients: Vec<Client> =
            (0..recipe.most + 12).map(|n| stage.gateways[n % 2].client_from([127, 0, 0, 9])).collect();
        clients.iter_mut().for_each(|client| client.send([head.as_str(), body.as_str()].concat()));
        let statuses = clients.iter_mut().map(|client| client.read_response(recipe.method).status());
        let admitted = statuses.filter(|status| *status == 200).count();
        let acts = if recipe.responds { admitted } else { stage.acts() };
        if acts > stage.most() || acts < recipe.least {
            return vec![format!("{}: {acts} of {}", recipe.title, stage.most())];
        }
        Vec::new()
    };
    let wrong = side_by_side(&attack);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Name of an attack, and the part of a request that it sends.
type Broken = (&'static str, fn(&Attempt) -> String);

/// Parts of requests that a client sends before it leaves. In each, the head reaches the server.
const BROKEN: [Broken; 7] = [
    ("leaving before the response", Attempt::text),
    (RESETTING, Attempt::text),
    ("a body one byte short", |attempt| {
        let length = attempt.body.len();
        attempt.text().replace(&format!("length: {length}"), &format!("length: {}", length + 1))
    }),
    ("a chunk one byte short", |attempt| {
        format!("{}{:x}\r\n{}", chunked(attempt), attempt.body.len() + 1, attempt.body)
    }),
    ("no last chunk", |attempt| format!("{}1\r\nx\r\n", chunked(attempt))),
    ("garbage in place of a chunk", |attempt| format!("{}1\r\nx\r\nzz\r\n", chunked(attempt))),
    ("a bad trailer", |attempt| format!("{}1\r\nx\r\n0\r\nbad trailer\r\n\r\n", chunked(attempt))),
];
const RESETTING: &str = "resetting the connection before the response";

fn chunked(attempt: &Attempt) -> String {
    let length = attempt.body.len();
    attempt.written().0.replace(&format!("content-length: {length}\r\n"), "transfer-encoding: chunked\r\n")
}

/// A request that has reached the server stays charged if the client leaves, or if its body never ends or is malformed.
#[test]
fn no_broken_request_gets_more_than_a_recipe_allows() {
    let redis = RedisServer::start(&[]);
    let attack = |place: usize| -> Vec<String> {
        let recipe = &RECIPES[place];
        let mut stage = RecipeRun::new(recipe, redis.port, &format!("broken{place}"), WORK);
        let mut wrong = Vec::new();
        for (kind, (what, written)) in BROKEN.iter().enumerate() {
            // Another client for each attack, unless all clients of the recipe share one budget.
            let client_name = format!("who{kind}");
            let mut attempt = Attempt::plain(recipe, &client_name);
            attempt.fields += &format!("{MARK}: {kind}\r\n");
            let source = [127, 0, 1, kind as u8 + 1];
            for _ in 0..recipe.most + 3 {
                stage.sent += 1;
                let mut client = stage.gateway().client_from(source);
                let before = stage.app.acts();
                let _ = client.try_send(written(&attempt));
                let stream = client.stream().try_clone().unwrap();
                stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                stage.until_reached(before, false, || stream.peek(&mut [0]).is_ok());
                if *what == RESETTING {
                    socket2::SockRef::from(&*client.stream()).set_linger(Some(Duration::ZERO)).unwrap();
                }
                drop(client);
                std::thread::sleep(WORK / 6);
            }
            std::thread::sleep(WORK);
            let acts = if recipe.is_shared { stage.acts() } else { stage.app.acts_of(&kind.to_string()) };
            let most = stage.most();
            if acts > most {
                wrong.push(format!("{}: {acts} of {most} by {what}", recipe.title));
            }
        }
        wrong
    };
    let wrong = side_by_side(&attack);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same over HTTP/2: streams are reset, with their bodies whole and not.
#[test]
fn no_reset_stream_gets_more_than_a_recipe_allows() {
    let redis = RedisServer::start(&[]);
    let attack = |place: usize| -> Vec<String> {
        let recipe = &RECIPES[place];
        let mut stage = RecipeRun::new(recipe, redis.port, &format!("reset{place}"), WORK);
        let attempt = Attempt::plain(recipe, "who");
        let length = attempt.body.len().to_string();
        for number in 0..2 * (recipe.most + 3) {
            stage.sent += 1;
            let mut fields = frames::request(recipe.method, &attempt.target);
            fields.push(("content-length", length.as_str()));
            fields.extend(attempt.fields.lines().filter_map(|line| line.split_once(": ")));
            let missing = usize::from(number < recipe.most + 3);
            let sent = &attempt.body.as_bytes()[..attempt.body.len().saturating_sub(missing)];
            let is_whole = sent.len() == attempt.body.len();
            let before = stage.app.acts();
            let mut wire = Wire::connect(stage.gateway().addr, &[]);
            wire.send(frames::headers(1, frames::END_HEADERS, &fields));
            wire.send(frames::frame(frames::DATA, if is_whole { frames::END_STREAM } else { 0 }, 1, sent));
            stage.until_reached(before, is_whole, || false);
            let _ = wire.try_send(frames::reset(1, frames::CANCEL));
            std::thread::sleep(WORK / 6);
        }
        std::thread::sleep(WORK);
        match stage.acts() > stage.most() || (stage.acts() == 0 && !recipe.responds) {
            true => vec![format!("{}: {} of {}", recipe.title, stage.acts(), stage.most())],
            false => Vec::new(),
        }
    };
    let wrong = side_by_side(&attack);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Attacks a few recipes at a time, and returns all failures.
fn side_by_side(attack: &(impl Fn(usize) -> Vec<String> + Sync)) -> Vec<String> {
    let places: Vec<usize> = (0..RECIPES.len()).collect();
    let mut wrong = Vec::new();
    for some in places.chunks(6) {
        let found = std::thread::scope(|scope| {
            let attacks: Vec<_> = some.iter().map(|place| scope.spawn(move || attack(*place))).collect();
            attacks.into_iter().flat_map(|attack| attack.join().unwrap()).collect::<Vec<_>>()
        });
        wrong.extend(found);
    }
    wrong
}
