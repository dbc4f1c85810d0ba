//! A proxy with a recipe of the manual in front of an application, and the gateway that decides for it.

use std::fs;
use std::io::{self, BufRead, BufReader};
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
use crate::support::upstream::{self, Peer, Upstream};
use crate::support::wait_until;

const PAGE: &str = "docs/guides/limits-for-other-proxies.md";
/// Addresses in the recipes.
const DECIDE: &str = "127.0.0.1:9080";
const APP: &str = "127.0.0.1:3000";
/// The port of the entry point that the tests add to the recipe of Traefik.
const TRAEFIK: &str = "8004";
/// The address of the clients. The proxies do not trust it.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);

/// A proxy with the config of a recipe, the gateway that decides for it, and the application behind it.
pub struct Site {
    pub addr: SocketAddr,
    pub gateway: Gateway,
    pub app: Upstream,
    proxy: Child,
    dir: TempDir,
}

/// The application: has no page `/none`, and accepts WebSockets.
fn serve_app(peer: &mut Peer) -> io::Result<()> {
    while let Some(request) = peer.request()? {
        if request.get("upgrade").is_some() {
            let accept = upstream::accept(&request);
            let upgrade = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n";
            peer.send(format!("{upgrade}sec-websocket-accept: {accept}\r\n\r\n"))?;
            return peer.wait_for_end();
        }
        match request.target() {
            "/none" => peer.send("HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone")?,
            _ => peer.send(upstream::ok("the app"))?,
        }
    }
    Ok(())
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
pub fn block(section: &str, language: &str) -> String {
    let page = Page::read(PAGE);
    let mut blocks = page.blocks.into_iter().filter(|block| block.title == section && block.language == language);
    blocks.next().unwrap_or_else(|| panic!("{PAGE} has no {language} in {section}")).text
}

/// A recipe of the manual.
pub struct Recipe {
    pub text: String,
    /// The port in the recipe.
    port: &'static str,
    /// Writes the files of the proxy and returns its command.
    launch: fn(&Path, &str) -> Command,
}

impl Recipe {
    pub fn nginx() -> Recipe {
        Recipe { text: block("nginx", "nginx"), port: "8000", launch: launch_nginx }
    }

    pub fn caddy() -> Recipe {
        Recipe { text: block("Caddy", "text"), port: "8001", launch: launch_caddy }
    }

    pub fn haproxy() -> Recipe {
        Recipe { text: block("HAProxy", "haproxy"), port: "8002", launch: launch_haproxy }
    }

    /// HAProxy that waits longer for an answer than in the recipe: on a busy machine, it takes longer.
    pub fn patient_haproxy() -> Recipe {
        let launch = |dir: &Path, text: &str| {
            let command = launch_haproxy(dir, text);
            let script = dir.join("limits.lua");
            let text = fs::read_to_string(&script).unwrap();
            assert!(text.contains("timeout = 250"));
            fs::write(&script, text.replace("timeout = 250", "timeout = 30000")).unwrap();
            command
        };
        Recipe { launch, ..Recipe::haproxy() }
    }

    pub fn envoy() -> Recipe {
        Recipe { text: block("Envoy", "yaml"), port: "8003", launch: launch_envoy }
    }

    pub fn traefik() -> Recipe {
        let text = format!("# 127.0.0.1:{TRAEFIK}\n{}", block("Traefik", "yaml"));
        Recipe { text, port: TRAEFIK, launch: launch_traefik }
    }

    /// The recipe of Traefik with what the page says to set behind another proxy, 127.0.0.5.
    pub fn traefik_behind_another() -> Recipe {
        let launch = |dir: &Path, text: &str| {
            let mut command = launch_traefik(dir, text);
            command.arg("--entryPoints.web.forwardedHeaders.trustedIPs=127.0.0.5");
            command
        };
        let recipe = Recipe::traefik().with("trustForwardHeader: false", "trustForwardHeader: true");
        Recipe { launch, ..recipe }
    }

    /// The port tells the recipes apart.
    pub fn name(&self) -> &'static str {
        self.port
    }

    /// Replaces a part of the recipe, which must have it.
    pub fn with(mut self, from: &str, to: &str) -> Recipe {
        assert!(self.text.contains(from), "the recipe has no {from}");
        self.text = self.text.replacen(from, to, 1);
        self
    }
}

impl Site {
    /// Starts a recipe. `change_config` edits the config of the gateway.
    pub fn start(recipe: &Recipe, change_config: impl FnOnce(String) -> String) -> Site {
        let config = change_config(block("The gateway", "toml").replace(DECIDE, "127.0.0.1:0"));
        let port = recipe.port;
        let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
        let app = Upstream::start(serve_app);
        let (dir, reserved) = (tempfile::tempdir().unwrap(), ReservedPort::new());
        let addr = reserved.addr();
        let text = recipe
            .text
            .replace(DECIDE, &gateway.addr.to_string())
            .replace(APP, &app.addr.to_string())
            // Envoy writes address and port apart.
            .replace("port_value: 9080", &format!("port_value: {}", gateway.addr.port()))
            .replace("port_value: 3000", &format!("port_value: {}", app.addr.port()))
            .replace(&format!("port_value: {port}"), &format!("port_value: {}", addr.port()))
            .replace(&format!("http://:{port}"), &format!("http://:{}", addr.port()))
            .replace(&format!("127.0.0.1:{port}"), &addr.to_string())
            // On a busy machine, an answer takes longer than Envoy waits in the recipe.
            .replace("timeout: 0.2s", "timeout: 30s");
        drop(reserved);
        let log = fs::File::create(dir.path().join("proxy.log")).unwrap();
        let mut command = (recipe.launch)(dir.path(), &text);
        command.current_dir(dir.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let name = command.get_program().to_string_lossy().into_owned();
        let proxy = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}; install it: make tools"));
        let site = Site { addr, gateway, app, proxy, dir };
        wait_until("the proxy listens", || std::net::TcpStream::connect(addr).is_ok());
        if recipe.port == TRAEFIK {
            // It listens before it has read its routes.
            let head = b"GET / HTTP/1.1\r\nhost: www.example.com\r\nconnection: close\r\n\r\n";
            wait_until("the proxy has its routes", || site.send_raw(Ipv4Addr::new(127, 0, 3, 1), head) == 200);
            site.app.requests();
        }
        site
    }

    pub fn fetch(&self, method: &str, target: &str, fields: &str, body: &str) -> Message {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: www.example.com\r\ncontent-length: {}\r\n{fields}\r\n",
            body.len()
        );
        Client::from(CLIENT, self.addr).fetch(&head, body)
    }

    /// Exhausts the limit of 5 in burst and 30 a minute, however the client disguises itself. With `shows_state`,
    /// admitted clients see the remaining units.
    pub fn spend(&self, shows_state: bool) {
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

    /// Sends bytes as a client with this address, and returns the status of the response; 0 if there is none.
    pub fn send_raw(&self, client: Ipv4Addr, request: &[u8]) -> u16 {
        let mut client = Client::from(client, self.addr);
        let _ = client.try_send(request);
        let mut line = Vec::new();
        let _ = BufReader::new(client.into_stream()).read_until(b'\n', &mut line);
        let status = line.split(|byte| *byte == b' ').nth(1).and_then(|status| str::from_utf8(status).ok());
        status.and_then(|status| status.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns whether the proxy still runs.
    pub fn is_proxy_running(&mut self) -> bool {
        self.proxy.try_wait().unwrap().is_none()
    }

    pub fn stop_gateway(&self) {
        self.gateway.signal("KILL");
        wait_until("the gateway has stopped", || std::net::TcpStream::connect(self.gateway.addr).is_err());
    }

    /// Stops the gateway; the proxy refuses with `status`, and the app gets nothing.
    pub fn assert_closed_without_gateway(&self, status: u16) {
        self.stop_gateway();
        self.app.requests();
        assert_eq!(self.fetch("GET", "/", "", "").status(), status);
        assert!(self.app.requests().is_empty());
    }
}

fn launch_nginx(dir: &Path, servers: &str) -> Command {
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

fn launch_caddy(dir: &Path, text: &str) -> Command {
    fs::write(dir.join("Caddyfile"), format!("{{\n\tadmin off\n\tauto_https off\n}}\n{text}")).unwrap();
    let mut command = Command::new("caddy");
    command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
    command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
    command
}

fn launch_haproxy(dir: &Path, text: &str) -> Command {
    fs::write(dir.join("limits.lua"), block("HAProxy", "lua")).unwrap();
    fs::write(dir.join("haproxy.cfg"), text).unwrap();
    let mut command = Command::new("haproxy");
    command.args(["-f", "haproxy.cfg"]);
    command
}

fn launch_envoy(dir: &Path, text: &str) -> Command {
    fs::write(dir.join("envoy.yaml"), text).unwrap();
    let mut command = Command::new(app::venv().join("bin/envoy"));
    command.args(["-c", "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warn"]);
    command
}

/// The recipe of Traefik is a dynamic config, which a static one reads. The entry point is added to it.
fn launch_traefik(dir: &Path, text: &str) -> Command {
    let (entry_point, recipe) = text.split_once('\n').unwrap();
    fs::write(dir.join("dynamic.yaml"), recipe).unwrap();
    let address = entry_point.trim_start_matches("# ");
    let mut command = Command::new(app::venv().join("bin/traefik"));
    command.args([
        format!("--entryPoints.web.address={address}"),
        "--providers.file.filename=dynamic.yaml".to_owned(),
        "--global.checkNewVersion=false".to_owned(),
        "--global.sendAnonymousUsage=false".to_owned(),
    ]);
    command
}
