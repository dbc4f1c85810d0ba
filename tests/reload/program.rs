//! The program under test and the configs it starts with. Used by `reload.rs`.

use super::*;

/// A running gateway; ends with the value.
pub struct Gateway {
    pub child: Child,
    /// Holds the config, and nothing else that changes.
    pub config: PathBuf,
    pub log: PathBuf,
    pub port: u16,
    pub admin: u16,
    pub _tmp: TempDir,
}

pub struct Response {
    pub status: u16,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

impl Gateway {
    /// Runs with version 1 of the standard config.
    pub fn start() -> Gateway {
        Gateway::start_with(|dir, port, admin| {
            let config = dir.join("sluicegate.toml");
            fs::write(&config, version(port, admin, 1)).unwrap();
            config
        })
    }

    /// `lay_out` writes the config under a directory and returns its path.
    pub fn start_with(lay_out: impl Fn(&Path, u16, u16) -> PathBuf) -> Gateway {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("etc");
        fs::create_dir(&dir).unwrap();
        let (port, admin) = (free_port(), free_port());
        let config = lay_out(&dir, port, admin);
        let log = tmp.path().join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args(["run", "-c"])
            .arg(&config)
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let gateway = Gateway { child, config, log, port, admin, _tmp: tmp };
        gateway.until("ready", || gateway.try_get(admin, "/readyz").is_some_and(|r| r.status == 200));
        gateway
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "not {what} after {PATIENCE:?}; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn try_get(&self, port: u16, path: &str) -> Option<Response> {
        exchange(port, &format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"))
    }

    pub fn get(&self, port: u16, path: &str) -> Response {
        self.try_get(port, path).unwrap_or_else(|| panic!("no answer to {path}; log:\n{}", self.log()))
    }

    pub fn post(&self, path: &str, fields: &str) -> Response {
        exchange(self.admin, &format!("POST {path} HTTP/1.1\r\ncontent-length: 0\r\nconnection: close\r\n{fields}\r\n"))
            .unwrap_or_else(|| panic!("no answer to {path}; log:\n{}", self.log()))
    }

    pub fn reload(&self, query: &str) -> Response {
        self.post(&format!("/-/reload{query}"), "host: 127.0.0.1\r\n")
    }

    pub fn status(&self) -> Value {
        self.get(self.admin, "/-/status").json()
    }

    pub fn generation(&self) -> u64 {
        self.status()["generation"].as_u64().unwrap()
    }

    /// The value of a series written as in the exposition, without the prefix.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let metrics = self.get(self.admin, "/metrics").body;
        let prefix = format!("sluicegate_{series} ");
        metrics.lines().find_map(|line| line.strip_prefix(&prefix)).map(|value| value.parse().unwrap())
    }

    pub fn reloads(&self, result: &str, trigger: &str) -> f64 {
        let series = format!("config_reloads_total{{result=\"{result}\",trigger=\"{trigger}\"}}");
        self.metric(&series).unwrap_or_else(|| panic!("{series} is missing"))
    }

    pub fn in_force(&self, version: usize) -> bool {
        self.metric(&format!("requests_in_flight{{route=\"v{version}\"}}")).is_some()
    }

    pub fn until_in_force(&self, version: usize, how: &str) {
        self.until(&format!("in force after {how}: version {version}"), || self.in_force(version));
        assert_eq!(self.metric("config_last_reload_successful"), Some(1.0), "{how}");
    }

    pub fn write(&self, text: &str) {
        fs::write(&self.config, text).unwrap();
    }

    pub fn version(&self, version: usize) -> String {
        crate::version(self.port, self.admin, version)
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes this text to the config, in its own way.
pub type Save<'a> = &'a dyn Fn(&str);

pub fn exchange(port: u16, request: &str) -> Option<Response> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Response { status: head.split(' ').nth(1)?.parse().ok()?, body: body.to_owned() })
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn server(port: u16, admin: u16) -> String {
    format!("[server]\nlisten = [\"127.0.0.1:{port}\"]\n\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\n")
}

/// A config whose route is named after its version, so that the metrics show which is in force.
pub fn version(port: u16, admin: u16, version: usize) -> String {
    format!("{}[[route]]\nname = \"v{version}\"\npath = \"/\"\nupstream = \"echo:\"\n", server(port, admin))
}

pub fn limited(port: u16, admin: u16, burst: u32, comment: &str) -> String {
    format!(
        "# {comment}\n{}[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nrate = \"1/day\"\nburst = {burst}\nkey = \"ip\"\n",
        server(port, admin)
    )
}
