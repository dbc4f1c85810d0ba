//! Sends the same requests at the same time to a real nginx and to a gateway with the imported config. Their verdicts
//! must be equal, and so must the requests that their upstream servers receive.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::output::import;
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::ports::ReservedPort;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const CONFIG: &str = include_str!("differential.conf");
/// The result of a step that takes longer is not compared, because limits refill during it.
const STEP: Duration = Duration::from_millis(350);
const ATTEMPTS: usize = 4;
/// The path of a queue: of five requests at 4/s, one passes at once, two wait for 250 and 500 ms, and two are refused.
const QUEUE: &str = "/limited/queue";
const WAIT_MAX: Duration = Duration::from_millis(500);

pub struct Nginx {
    pub addr: SocketAddr,
    child: Child,
    _port: ReservedPort,
}

impl Nginx {
    pub fn start(dir: &Path, text: &str) -> Nginx {
        let port = ReservedPort::new();
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\nevents {{ worker_connections 512; }}\nhttp {{\n\
             access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; \
             scgi_temp_path s;\n{}\n}}\n",
            text.replace("127.0.0.1:0", &port.addr().to_string())
        );
        std::fs::write(dir.join("run.conf"), text).unwrap();
        let child = Command::new("nginx")
            .args(["-p", &format!("{}/", dir.display()), "-c", "run.conf", "-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .expect("the tests need nginx: apt-get install nginx");
        let nginx = Nginx { addr: port.addr(), child, _port: port };
        wait_until("nginx listens", || std::net::TcpStream::connect(nginx.addr).is_ok());
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request to both proxies.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    from: u8,
    method: &'static str,
    host: &'static str,
    path: &'static str,
    headers: &'static str,
    body: usize,
}

pub fn get(path: &'static str) -> Request {
    Request { from: 2, method: "GET", host: "main.test", path, headers: "", body: 0 }
}

impl Request {
    pub fn from(self, from: u8) -> Request {
        Request { from, ..self }
    }

    pub fn method(self, method: &'static str) -> Request {
        Request { method, ..self }
    }

    pub fn with(self, headers: &'static str) -> Request {
        Request { headers, ..self }
    }

    pub fn host(self, host: &'static str) -> Request {
        Request { host, ..self }
    }

    /// Sends the request. Returns the status, and for 200 the body, which lists what the upstream server received.
    pub fn send(self, addr: SocketAddr) -> String {
        let Request { from, method, host, path, headers, body } = self;
        let mut client = Client::from(Ipv4Addr::new(127, 0, 0, from), addr);
        let length = if body > 0 { format!("content-length: {body}\r\n") } else { String::new() };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}{length}\r\n");
        let _ = client.try_send([head.as_bytes(), &vec![b'x'; body]].concat());
        match client.try_read_response(method) {
            Ok(response) if response.status() == 200 => format!("200 {}", response.text()),
            Ok(response) if (300..400).contains(&response.status()) => {
                // nginx completes the path of a redirect to a URL.
                let location = response.get("location").unwrap_or_default();
                let path = location.strip_prefix(&format!("http://{host}")).unwrap_or(location);
                let path = path.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit());
                format!("{} {path}", response.status())
            }
            Ok(response) => response.status().to_string(),
            Err(error) => format!("no response: {error}"),
        }
    }
}

/// Sends the requests to both proxies. Returns the responses of each, in order, or sorted if sent at once.
fn step(both: [SocketAddr; 2], requests: &[Request], at_once: bool) -> [Vec<String>; 2] {
    let waits = requests.first().is_some_and(|request| request.path == QUEUE);
    std::thread::scope(|scope| {
        let fetch = |addr: SocketAddr| {
            move || match at_once {
                true => std::thread::scope(|scope| {
                    let sent: Vec<_> = requests.iter().map(|request| scope.spawn(move || request.send(addr))).collect();
                    let mut responses: Vec<String> = sent.into_iter().map(|one| one.join().unwrap()).collect();
                    // The order of arrival is random.
                    responses.sort();
                    responses
                }),
                false => requests.iter().map(|request| request.send(addr)).collect(),
            }
        };
        let timed = |addr: SocketAddr| {
            let fetch = fetch(addr);
            move || {
                let start = Instant::now();
                let responses: Vec<String> = fetch();
                assert!(!waits || start.elapsed() + Duration::from_millis(20) > WAIT_MAX, "{:?}", start.elapsed());
                responses
            }
        };
        let [first, second] = both.map(|addr| scope.spawn(timed(addr)));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

/// Lists requests whose verdict does not depend on time.
fn timeless() -> Vec<Request> {
    let mut requests: Vec<Request> = [
        "/",
        "/other",
        "/api/x",
        "/api/x?q=1",
        "/v1/x/y",
        "/v1/",
        "/exact",
        "/exact/",
        "/exactly",
        "/prefix",
        "/prefixed",
        "/a.php",
        "/api/b.PHP",
        "/static/a.php",
        "/static/",
        "/fixed",
        "/fixed/x",
        "/gone",
        "/moved",
        "/elsewhere",
        "/elsewhere?a=b",
        "/elsewhere?a=%2F&c",
        "/old/",
        "/old/x?y=z",
        "/old/a%20b",
        "/all?x",
        "/api",
        "/api?q=1",
        "/v1",
        "/nested",
        "/nested/in",
        "/only",
        "/hidden",
        "/a%20b",
        "/a%20b/c",
        "/deny/x",
        "/only/x",
        "/first/x",
        "/nested/in/x",
        "/nested/x",
        "/replaced",
        "/slash",
        "/v1//x/../y",
        "/v1/./%61",
    ]
    .map(get)
    .to_vec();
    for path in ["/deny/x", "/only/x", "/first/x"] {
        requests.extend([3, 4, 5, 9].map(|from| get(path).from(from)));
    }
    for host in
        ["second.test", "www.second.test", "a.wild.test", "named.wild.test", "unknown.test", "127.0.0.1", "SECOND.test"]
    {
        requests.extend([
            get("/").host(host),
            get("/api/x").host(host),
            get("/only-here").host(host),
            get("/by-host").host(host),
        ]);
    }
    let (right, wrong) = ("authorization: Basic YWxpY2U6c2VjcmV0\r\n", "authorization: Basic YWxpY2U6d3Jvbmc=\r\n");
    for path in ["/", "/open", "/said", "/outside/x", "/status/404", "/status/502", "/status/500", "/404.html"] {
        for headers in ["", right, wrong] {
            requests.push(get(path).host("named.test").with(headers));
            requests.push(get(path).host("named.test").with(headers).from(3));
        }
    }
    requests.push(Request { method: "POST", body: 900, ..get("/small") });
    requests.push(Request { method: "POST", body: 1100, ..get("/small") });
    requests
}

/// Lists steps: requests, whether they are sent at once, and the wait in ms after them.
fn timed() -> Vec<(Vec<Request>, bool, u64)> {
    let times = |request: Request, count: usize| vec![request; count];
    let mixed = |requests: &[Vec<Request>]| requests.concat();
    vec![
        (
            mixed(&[
                times(get("/limited/burst"), 6),
                times(get("/limited/none"), 2),
                times(get("/limited/burst").from(3), 5),
                times(get("/limited/exempt").from(9), 6),
                times(get("/limited/exempt"), 3),
                times(get("/limited/key"), 3),
                times(get("/limited/key").with("x-api-key: a\r\n"), 3),
                times(get("/limited/key").with("x-api-key: b\r\n"), 3),
                times(get("/limited/post"), 3),
                times(Request { method: "POST", ..get("/limited/post") }, 3),
                times(get("/limited/two"), 4),
                times(get("/limited/dry"), 4),
                times(get("/limited/returned"), 4),
                times(get("/limited/minute"), 4),
                times(get("/by-server").host("second.test"), 3),
                times(get("/by-server").host("a.wild.test"), 3),
                times(get("/guess").host("named.test").with("authorization: Basic YWxpY2U6d3Jvbmc=\r\n"), 4),
                times(get("/shared/a"), 2),
                times(get("/shared/b"), 2),
            ]),
            false,
            1500,
        ),
        // At 1/s, one and a half requests have been refilled.
        (
            mixed(&[times(get("/limited/burst"), 3), times(get("/limited/none"), 2), times(get("/limited/two"), 3)]),
            false,
            2500,
        ),
        (
            mixed(&[times(get("/limited/burst"), 4), times(get("/shared/b"), 4), times(get("/limited/minute"), 1)]),
            false,
            0,
        ),
        (times(get("/conn"), 5), true, 0),
        (times(get(QUEUE), 5), true, 0),
    ]
}

/// Starts an upstream server that responds with what it received. Under `/conn` it waits first.
pub fn upstream() -> Upstream {
    Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            if request.target().starts_with("/conn") {
                std::thread::sleep(Duration::from_millis(700));
            }
            if let Some(status) = request.target().strip_prefix("/status/") {
                peer.send(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n"))?;
                continue;
            }
            let text = format!(
                "{} {} {}",
                request.target(),
                request.get("x-env").unwrap_or("-"),
                request.get("x-gone").unwrap_or("-")
            );
            peer.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()))?;
        }
        Ok(())
    })
}

/// Compares all steps. Returns the number of requests, or an error if a step took too long.
fn attempt() -> Result<usize, String> {
    let dir = tempfile::tempdir().unwrap();
    let upstream = upstream();
    let text = CONFIG.replace("UPSTREAM", &upstream.addr.to_string()).replace("DIR", &dir.path().display().to_string());
    let user = crate::support::app::run("htpasswd", "apache2-utils", &["-nbB", "-C", "4", "alice", "secret"]);
    std::fs::write(dir.path().join("users"), user).unwrap();
    for page in ["404.html", "50x.html"] {
        std::fs::write(dir.path().join(page), "page").unwrap();
    }
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, &text).unwrap();
    let nginx = Nginx::start(dir.path(), &text);
    let output = import("nginx", &path);
    let config = String::from_utf8(output.stdout).unwrap();
    // The comments are about budgets for guesses of passwords, paths that no location has, an internal location, and two
    // error pages.
    assert_eq!(output.status.code(), Some(3), "{config}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(config.matches("\n#   ").count(), 5, "{config}");
    let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    let both = [nginx.addr, gateway.addr];

    let mut compared = 0;
    let mut differ = Vec::new();
    for request in timeless() {
        let [theirs, ours] = step(both, &[request], false);
        if ours != theirs {
            differ.push(format!("{request:?}: ours {ours:?}, nginx's {theirs:?}"));
        }
        compared += 1;
    }
    assert!(differ.is_empty(), "{config}\n{differ:#?}");
    for (number, (requests, at_once, wait)) in timed().into_iter().enumerate() {
        let start = Instant::now();
        let found = step(both, &requests, at_once);
        let took = start.elapsed();
        let [theirs, ours] = found;
        if ours != theirs {
            let differ = requests.iter().zip(ours.iter().zip(&theirs)).filter(|(_, (ours, theirs))| ours != theirs);
            let differ: Vec<String> = differ.map(|(request, pair)| format!("{} {pair:?}", request.path)).collect();
            if !at_once && took > STEP {
                return Err(format!("step {number} took {took:?}: {differ:?}"));
            }
            panic!("step {number} in {took:?}, ours and nginx's: {differ:#?}\n{config}");
        }
        compared += requests.len();
        std::thread::sleep(Duration::from_millis(wait));
    }
    Ok(compared)
}

#[test]
fn nginx_and_the_imported_config_decide_alike() {
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(compared) => {
                assert!(compared > 150, "{compared}");
                return;
            }
            Err(step) => late.push(step),
        }
    }
    panic!("this machine is too slow for it: {late:#?}");
}

/// Random servers from a grammar of directives behave like nginx if their import has no comments. With comments, they
/// serve no request that nginx refuses. `make import-diff PAIRS=2000` compares more of them.
#[test]
fn random_servers_behave_like_nginx() {
    let program = crate::support::gateway::program();
    let output = Command::new("python3")
        .args(["tests/import/differ/run.py", &program.get_program().to_string_lossy(), "100", "1"])
        .output()
        .expect("python3 does not start; install it: apt-get install python3");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let exact = text.lines().last().and_then(|line| line.split(' ').nth(2)?.parse::<u32>().ok());
    assert!(exact.is_some_and(|exact| exact >= 15), "too few servers are imported without comments: {text}");
}

/// Hand-written servers with conditions, `map`, `geo` and `limit_except` behave like nginx.
#[test]
fn conditions_decide_like_nginx() {
    let program = crate::support::gateway::program();
    let output = Command::new("python3")
        .args(["tests/import/differ/cases.py", &program.get_program().to_string_lossy()])
        .output()
        .expect("python3 does not start; install it: apt-get install python3");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(" cases, ") && text.ends_with(" 0 failed\n"), "{text}");
}

/// A plain server redirects to HTTPS, where the site is, with nginx and with the imported config. Targets name the host
/// of the request, the server's own name, or the name of another server.
#[test]
fn redirects_to_https_lead_to_the_same_site() {
    let targets = [
        ("$host", ""),
        ("shop.test", ""),
        ("$server_name", ""),
        (
            "shop.test",
            "server { listen PLAIN_SECOND; server_name www.shop.test; return 301 https://shop.test:PORT$request_uri; }",
        ),
    ];
    for (target, more) in targets {
        let dir = tempfile::tempdir().unwrap();
        let (upstream, plain, secured, second) =
            (upstream(), ReservedPort::new(), ReservedPort::new(), ReservedPort::new());
        for (from, to) in [("conf/tls/sample.pem", "cert.pem"), ("conf/tls/sample.key", "key.pem")] {
            std::fs::copy(from, dir.path().join(to)).unwrap();
        }
        let text = format!(
            "server {{ listen PLAIN; server_name shop.test; return 301 https://{target}:PORT$request_uri; }} {more}\n\
             server {{ listen SECURED ssl; server_name shop.test; ssl_certificate cert.pem; ssl_certificate_key key.pem; \
             location / {{ proxy_pass http://{}; proxy_set_header Host $host; }} }}",
            upstream.addr
        );
        let text = text.replace("PLAIN_SECOND", "PLAIN").replace("PORT", &secured.addr().port().to_string());
        let config_arguments = |plain: &ReservedPort, secured: &ReservedPort| {
            text.replace("PLAIN", &plain.addr().to_string()).replace("SECURED", &secured.addr().to_string())
        };
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, config_arguments(&plain, &secured)).unwrap();
        let output = import("nginx", &path);
        let config = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{target}: {config}\n{errors}");
        let theirs = ReservedPort::new();
        let nginx = Nginx::start(
            dir.path(),
            &config_arguments(&theirs, &second).replace(&theirs.addr().to_string(), "127.0.0.1:0"),
        );
        let redirected = |addr| get("/a/b?c=d").host("shop.test").send(addr);
        let expected = format!("https://shop.test:{}/a/b?c=d", secured.addr().port());
        assert_eq!(redirected(nginx.addr), format!("301 {expected}"), "{target}");

        let _gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        wait_until("the redirect listens", || std::net::TcpStream::connect(plain.addr()).is_ok());
        assert_eq!(redirected(plain.addr()), format!("308 {expected}"), "{target}\n{config}");
        let fetch = |addr: SocketAddr| {
            let resolve = format!("shop.test:{}:127.0.0.1", addr.port());
            let url = format!("https://shop.test:{}/a/b?c=d", addr.port());
            let args = ["-sk", "--max-time", "10", "--resolve", &resolve, "-w", " %{http_code}", &url];
            String::from_utf8(Command::new("curl").args(args).output().unwrap().stdout).unwrap()
        };
        let [ours, theirs] = [secured.addr(), second.addr()].map(fetch);
        assert_eq!(ours, theirs, "{target}\n{config}");
        assert!(ours.ends_with(" 200"), "{target}: {ours}\n{config}");
    }
}
