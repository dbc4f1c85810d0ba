//! Programs of other projects that tests run: applications behind the gateway, and clients in front of it.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use super::ports::ReservedPort;
use super::wait_until;

/// A server in a process of its own.
pub struct App {
    pub addr: SocketAddr,
    child: Child,
    dir: TempDir,
    _port: ReservedPort,
    /// Files that it reads from another directory.
    _files: Option<TempDir>,
}

impl App {
    /// Starts httpbin under gunicorn, which keeps connections open.
    pub fn httpbin() -> App {
        App::gunicorn("httpbin:app", Path::new("."))
    }

    /// Starts the WSGI application `module:name` of a directory under gunicorn.
    pub fn gunicorn(application: &str, folder: &Path) -> App {
        App::start(&venv().join("bin/gunicorn"), |addr| {
            let (bind, folder) = (format!("--bind={addr}"), format!("--pythonpath={}", folder.display()));
            let words = ["--worker-class=gthread", "--threads=8", "--log-level=warning", &bind, &folder, application];
            words.map(str::to_owned).to_vec()
        })
    }

    /// Starts Python's file server on the directory `tree`.
    pub fn files(tree: &Path) -> App {
        App::start(Path::new("python3"), |addr| {
            let (port, ip, tree) = (addr.port().to_string(), addr.ip().to_string(), tree.display().to_string());
            ["-m", "http.server", &port, "--bind", &ip, "--directory", &tree].map(str::to_owned).to_vec()
        })
    }

    /// Starts a script of tests/interop/programs in Python or JavaScript, with its port as the argument.
    pub fn script(file: &str) -> App {
        App::start(interpreter(file), |addr| vec![script(file), addr.port().to_string()])
    }

    /// Starts Prometheus with a config; its rule files have absolute paths.
    pub fn prometheus(config: &str) -> App {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("prometheus.yml");
        fs::write(&path, config).unwrap();
        let mut app = App::start(Path::new("prometheus"), |addr| {
            let (config, listen) =
                (format!("--config.file={}", path.display()), format!("--web.listen-address={addr}"));
            vec![config, "--storage.tsdb.path=data".to_owned(), listen]
        });
        app._files = Some(files);
        app
    }

    /// Starts Envoy with a config for its address.
    pub fn envoy(config: impl Fn(SocketAddr) -> String) -> App {
        let find = "import os, envoy; print(os.path.join(os.path.dirname(envoy.__file__), '_bin', 'envoy'))";
        let program = run(venv().join("bin/python"), "python3", &["-c", find]);
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("envoy.yaml");
        let mut app = App::start(Path::new(program.trim()), |addr| {
            fs::write(&path, config(addr)).unwrap();
            let path = path.display().to_string();
            ["-c", &path, "--disable-hot-restart", "--concurrency", "1", "-l", "warn"].map(str::to_owned).to_vec()
        });
        app._files = Some(files);
        app
    }

    /// Starts an OpenTelemetry collector that prints what it receives.
    pub fn collector() -> App {
        let find = "import os, rotel; print(os.path.join(os.path.dirname(rotel.__file__), 'rotel-agent'))";
        let agent = run(venv().join("bin/python"), "python3", &["-c", find]);
        App::start(Path::new(agent.trim()), |addr| {
            let (http, pid) = (format!("--otlp-http-endpoint={addr}"), format!("--pid-file=pid-{}", addr.port()));
            let words = ["start", &http, "--otlp-grpc-endpoint=127.0.0.1:0", "--exporter=blackhole", &pid];
            let debug = ["--debug-log=traces", "--debug-log-verbosity=detailed"];
            words.into_iter().chain(debug).map(str::to_owned).collect()
        })
    }

    fn start(program: &Path, arguments: impl Fn(SocketAddr) -> Vec<String>) -> App {
        let port = ReservedPort::new();
        let addr = port.addr();
        let dir = tempfile::tempdir().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = command(program)
            .args(arguments(addr))
            .current_dir(dir.path())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; install the programs of the tests: make tools", program.display())
            });
        let mut app = App { addr, child, dir, _port: port, _files: None };
        wait_until("the application listens", || {
            let ended = app.child.try_wait().unwrap();
            assert!(ended.is_none(), "the application ended: {ended:?}\n{}", app.log());
            TcpStream::connect(addr).is_ok()
        });
        app
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the application ---\n{}", self.log());
        }
        // gunicorn ends its workers when it gets SIGTERM.
        let term = format!("kill -TERM {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &term]).status();
        for _ in 0..300 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client that must succeed within a minute, and returns its output. `package` is the Debian package to install
/// if the program is missing.
#[track_caller]
pub fn run(program: impl AsRef<OsStr>, package: &str, arguments: &[&str]) -> String {
    let name = Path::new(program.as_ref());
    let mut timeout = command(Path::new("timeout"));
    if name.ends_with("node") {
        timeout.env("NODE_PATH", node_modules());
    }
    let output = timeout
        .args(["--kill-after=1", "180"])
        .arg(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("timeout: {error}; install it: apt-get install coreutils"));
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    match output.status.code() {
        Some(0) => stdout,
        Some(127) => panic!("{} is not there; install it: apt-get install {package}", name.display()),
        Some(124 | 137) => panic!("{} {arguments:?} did not end\n{stdout}{stderr}", name.display()),
        _ => panic!("{} {arguments:?}: {}\n{stdout}{stderr}", name.display(), output.status),
    }
}

/// Runs a client script of tests/interop/programs in Python or JavaScript.
#[track_caller]
pub fn run_script(file: &str, arguments: &[&str]) -> String {
    let path = script(file);
    run(interpreter(file), "nodejs", &[&[path.as_str()], arguments].concat())
}

/// A command without the proxy settings of the developer's environment. It finds the modules of npm.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("PYTHONDONTWRITEBYTECODE", "1");
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(name);
    }
    if program.ends_with("node") {
        command.env("NODE_PATH", node_modules());
    }
    command
}

fn script(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/programs").join(file).display().to_string()
}

fn interpreter(file: &str) -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    match file.ends_with(".py") {
        true => PYTHON.get_or_init(|| venv().join("bin/python")),
        false => Path::new("node"),
    }
}

/// The Python virtual environment; the first call creates it.
pub fn venv() -> &'static Path {
    static VENV: OnceLock<PathBuf> = OnceLock::new();
    VENV.get_or_init(|| installed("python", "apps-venv"))
}

/// The virtual environment with the programs that check the admin API; the first call creates it.
pub fn api_venv() -> &'static Path {
    static VENV: OnceLock<PathBuf> = OnceLock::new();
    VENV.get_or_init(|| installed("api", "api-venv"))
}

fn node_modules() -> &'static Path {
    static MODULES: OnceLock<PathBuf> = OnceLock::new();
    MODULES.get_or_init(|| installed("node", "apps-node").join("node_modules"))
}

fn installed(kind: &str, folder: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("tests/interop/install.sh"))
        .arg(kind)
        .output()
        .expect("tests/interop/install.sh needs bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    root.join("target").join(folder)
}
