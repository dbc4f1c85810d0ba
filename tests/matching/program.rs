//! The program under test, on either store. Used by `matching.rs`.

use super::*;

/// A running gateway; ends with the value.
pub struct Gateway {
    pub child: Child,
    pub dir: TempDir,
    pub port: u16,
    pub admin: u16,
    /// The `[store]` of every config.
    pub store: String,
}

pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Gateway {
    pub fn start(redis: Option<&RedisServer>, config: &str) -> Gateway {
        Gateway::start_with(redis, config, &[])
    }

    pub fn start_with(redis: Option<&RedisServer>, config: &str, files: &[(&str, &str)]) -> Gateway {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port, admin) = (free(), free());
        let url = redis.map_or("memory:".to_owned(), RedisServer::url);
        let store = format!("[store]\nurl = \"{url}\"\ndeadline = \"2s\"\non_error = \"closed\"\n");
        let path = dir.path().join("sluicegate.toml");
        fs::write(&path, whole(port, admin, &store, config)).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args(["run", "-c"])
            .arg(&path)
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let gateway = Gateway { child, dir, port, admin, store };
        gateway.until("ready", || gateway.exchange(admin, "GET", "/readyz", "").is_some_and(|r| r.status == 200));
        if redis.is_some() {
            gateway.until("connected", || {
                let metrics = gateway.exchange(admin, "GET", "/metrics", "").unwrap().body;
                metrics.contains("\nsluicegate_store_up 1")
            });
        }
        gateway
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "not {what} after {PATIENCE:?}; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn exchange(&self, port: u16, method: &str, target: &str, fields: &str) -> Option<Response> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n{fields}\r\n"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    }

    pub fn ask(&self, target: &str, fields: &str) -> Response {
        self.exchange(self.port, "GET", target, fields).unwrap_or_else(|| panic!("no answer; log:\n{}", self.log()))
    }

    /// How many of `count` equal requests are admitted.
    pub fn admitted(&self, count: usize, target: &str, fields: &str) -> usize {
        (0..count)
            .filter(|_| match self.ask(target, fields).status {
                200 => true,
                429 => false,
                status => panic!("{status}; log:\n{}", self.log()),
            })
            .count()
    }

    /// Puts another config in force and returns the reload's summary.
    pub fn reload(&self, config: &str) -> String {
        let text = whole(self.port, self.admin, &self.store, config);
        // Renamed into place: the watcher may be first, and must not see a part.
        fs::write(self.path("next"), text).unwrap();
        fs::rename(self.path("next"), self.path("sluicegate.toml")).unwrap();
        let before = self.log();
        let answer = self.exchange(self.admin, "POST", "/-/reload", "").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        self.until("reloaded", || {
            self.log().len() > before.len() && self.log()[before.len()..].contains("config reloaded")
        });
        self.log()[before.len()..].to_owned()
    }

    pub fn metric(&self, series: &str) -> u64 {
        let metrics = self.exchange(self.admin, "GET", "/metrics", "").unwrap().body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("sluicegate_{series} ")));
        line.map_or(0, |value| value.parse().unwrap())
    }

    pub fn decisions(&self, limit: &str, decision: &str) -> u64 {
        self.metric(&format!("limit_decisions_total{{decision=\"{decision}\",limit=\"{limit}\",route=\"/\"}}"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn whole(port: u16, admin: u16, store: &str, config: &str) -> String {
    format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\"]\ntrusted_proxies = [\"127.0.0.1\"]\nworkers = 2\n\
         [admin]\nlisten = \"127.0.0.1:{admin}\"\n{store}{config}"
    )
}

/// A route with one limit `x`.
pub fn one(limit: &str) -> String {
    format!("[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nalgorithm = \"fixed_window\"\n{limit}\n")
}

/// Once on the memory store, once on Redis.
pub fn on_both_stores(test: impl Fn(Option<&RedisServer>)) {
    test(None);
    test(Some(&RedisServer::start(&[])));
}
