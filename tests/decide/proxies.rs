//! The recipes of the manual with the real proxies: each is read from the page and runs unchanged, on free ports.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::app;
use crate::support::client::Client;
use crate::support::gateway::Gateway;
use crate::support::http::Message;
use crate::support::manual::Page;
use crate::support::ports::ReservedPort;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const PAGE: &str = "docs/guides/limits-for-other-proxies.md";
/// Addresses in the recipes.
const DECIDE: &str = "127.0.0.1:9080";
const APP: &str = "127.0.0.1:3000";
/// The address of the clients. The proxies do not trust it.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);

/// A proxy with the config of a recipe, the gateway that decides for it, and the application behind it.
struct Site {
    addr: SocketAddr,
    gateway: Gateway,
    app: Upstream,
    proxy: Child,
    dir: TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.path().join("proxy.log")).unwrap_or_default());
        }
    }
}

/// Returns the block of a section in this language.
fn block(section: &str, language: &str) -> String {
    let page = Page::read(PAGE);
    let mut blocks = page.blocks.into_iter().filter(|block| block.title == section && block.language == language);
    blocks.next().unwrap_or_else(|| panic!("{PAGE} has no {language} in {section}")).text
}

impl Site {
    /// Starts a recipe that listens on `port`. `launch` writes its files and returns the command.
    fn start(recipe: &str, port: &str, launch: impl FnOnce(&Path, &str) -> Command) -> Site {
        let config = block("The gateway", "toml").replace(DECIDE, "127.0.0.1:0");
        let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        let app = Upstream::text("the app");
        let (dir, reserved) = (tempfile::tempdir().unwrap(), ReservedPort::new());
        let addr = reserved.addr();
        let text = recipe
            .replace(DECIDE, &gateway.addr.to_string())
            .replace(APP, &app.addr.to_string())
            // Envoy writes address and port apart.
            .replace("port_value: 9080", &format!("port_value: {}", gateway.addr.port()))
            .replace("port_value: 3000", &format!("port_value: {}", app.addr.port()))
            .replace(&format!("port_value: {port}"), &format!("port_value: {}", addr.port()))
            .replace(&format!("http://:{port}"), &format!("http://:{}", addr.port()))
            .replace(&format!("127.0.0.1:{port}"), &addr.to_string());
        drop(reserved);
        let log = fs::File::create(dir.path().join("proxy.log")).unwrap();
        let mut command = launch(dir.path(), &text);
        command.current_dir(dir.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let name = command.get_program().to_string_lossy().into_owned();
        let proxy = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}; install it: make tools"));
        let site = Site { addr, gateway, app, proxy, dir };
        wait_until("the proxy listens", || std::net::TcpStream::connect(addr).is_ok());
        site
    }

    fn fetch(&self, method: &str, target: &str, fields: &str, body: &str) -> Message {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: www.example.com\r\ncontent-length: {}\r\n{fields}\r\n",
            body.len()
        );
        Client::from(CLIENT, self.addr).fetch(&head, body)
    }

    /// Exhausts the limit of 5 in burst and 30 a minute, however the client disguises itself. With `shows_state`,
    /// admitted clients see the remaining units.
    fn spend(&self, shows_state: bool) {
        let begun = Instant::now();
        let first = self.fetch("POST", "/a%20b/../c?x=/../y", "", "a body for the app");
        assert_eq!((first.status(), first.text().as_str()), (200, "the app"), "{}", first.head);
        assert_eq!(first.get("ratelimit").is_some_and(|state| state.contains("\"per-ip\";r=4;t=")), shows_state);
        let passed = self.app.request();
        assert_eq!(
            (passed.body.as_slice(), passed.start_line().starts_with("POST ")),
            (&b"a body for the app"[..], true)
        );
        let (mut admitted, mut refused) = (1, None);
        for n in 0..15 {
            let fields = [
                String::new(),
                format!("x-forwarded-for: 198.51.100.{n}\r\n"),
                format!(
                    "x-forwarded-for: 198.51.100.{n}\r\nforwarded: for=198.51.100.{n}\r\nx-real-ip: 198.51.100.{n}\r\n"
                ),
                format!("x-original-url: http://b{n}/\r\nx-original-uri: /{n}\r\nx-original-method: PUT\r\n"),
                format!(
                    "x-forwarded-method: PUT\r\nx-forwarded-uri: /{n}\r\nx-forwarded-host: b{n}\r\nx-forwarded-proto: x\r\n"
                ),
                "content-type: application/grpc\r\nx-request-id: 1\r\n".to_owned(),
            ];
            let response = self.fetch("GET", "/", &fields[n % fields.len()], "");
            match response.status() {
                // Envoy refuses calls of gRPC clients with the status of gRPC.
                200 if response.get("grpc-status").is_some() => {}
                200 => admitted += 1,
                429 => refused = Some(response),
                // nginx and Envoy may refuse a client that contradicts itself, but must not let it pass.
                other => assert!([400, 403, 500].contains(&other), "{other}: {:?}", fields[n % fields.len()]),
            }
        }
        let earned = begun.elapsed().as_secs() / 2 + 1;
        assert!((5..=5 + earned).contains(&admitted), "{admitted} admitted");
        let refused = refused.expect("a 429");
        assert!(refused.get("retry-after").is_some_and(|wait| wait == "1" || wait == "2"), "{}", refused.head);
        assert!(
            refused.get("ratelimit").is_some_and(|state| state.starts_with("\"per-ip\";r=0;t=")),
            "{}",
            refused.head
        );
        assert_eq!(self.app.requests().len() as u64 + 1, admitted, "the application gets the admitted requests");
        let decided = self.gateway.metrics();
        let bad =
            decided.lines().find(|line| line.starts_with("sluicegate_decide_requests_total{result=\"bad_facts\"}"));
        assert_eq!(bad, Some("sluicegate_decide_requests_total{result=\"bad_facts\"} 0"), "the recipe sets all facts");
    }

    /// Stops the gateway; the proxy refuses with `status`, and the app gets nothing.
    fn assert_closed_without_gateway(&mut self, status: u16) {
        self.gateway.signal("KILL");
        wait_until("the gateway has stopped", || std::net::TcpStream::connect(self.gateway.addr).is_err());
        self.app.requests();
        assert_eq!(self.fetch("GET", "/", "", "").status(), status);
        assert!(self.app.requests().is_empty());
    }
}

fn nginx(dir: &Path, servers: &str) -> Command {
    let temp: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|of| format!("{of}_temp_path {of};\n")).concat();
    let text = format!(
        "daemon off;\nmaster_process off;\npid n.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temp}{servers}}}\n"
    );
    fs::write(dir.join("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.args(["-p", dir.to_str().unwrap(), "-c", "nginx.conf"]);
    command
}

#[test]
fn nginx_turns_403_into_429_and_its_internal_redirects_are_charged_once() {
    let mut site = Site::start(&block("nginx", "nginx"), "8000", nginx);
    site.spend(true);
    site.assert_closed_without_gateway(500);
    // `try_files` leads to another location, which asks about the same request again.
    let more = "    location /tried {\n        auth_request /_limit;\n        try_files /none /moved;\n    }\n\n    location / {";
    let recipe = block("nginx", "nginx").replacen("    location / {", more, 1);
    let site = Site::start(&recipe, "8000", nginx);
    let response = site.fetch("GET", "/tried", "", "");
    assert_eq!((response.status(), response.text().as_str()), (200, "the app"), "{}", response.head);
    assert!(response.get("ratelimit").is_some_and(|state| state.contains("r=4;")), "{}", response.head);
    site.gateway.assert_metric("decide_requests_total", &[("result", "admitted")], 2.0);
    site.gateway.assert_metric("decide_requests_total", &[("result", "replayed")], 1.0);
}

#[test]
fn caddy_asks_and_passes_refusals_on() {
    let mut site = Site::start(&block("Caddy", "text"), "8001", |dir, text| {
        fs::write(dir.join("Caddyfile"), format!("{{\n\tadmin off\n\tauto_https off\n}}\n{text}")).unwrap();
        let mut command = Command::new("caddy");
        command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
        command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        command
    });
    site.spend(false);
    site.assert_closed_without_gateway(502);
}

#[test]
fn haproxy_asks_by_its_script() {
    let script = block("HAProxy", "lua");
    let mut site = Site::start(&block("HAProxy", "haproxy"), "8002", |dir, text| {
        fs::write(dir.join("limits.lua"), script).unwrap();
        fs::write(dir.join("haproxy.cfg"), text).unwrap();
        let mut command = Command::new("haproxy");
        command.args(["-f", "haproxy.cfg"]);
        command
    });
    site.spend(true);
    site.assert_closed_without_gateway(503);
}

#[test]
fn envoy_asks_with_the_path_of_the_request() {
    let mut site = Site::start(&block("Envoy", "yaml"), "8003", |dir, text| {
        fs::write(dir.join("envoy.yaml"), text).unwrap();
        let mut command = Command::new(app::venv().join("bin/envoy"));
        command.args(["-c", "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warn"]);
        command
    });
    site.spend(true);
    site.assert_closed_without_gateway(403);
}
