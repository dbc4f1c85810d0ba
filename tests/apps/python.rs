//! Python programs as processes of their own. Used by `httpbin` and `files`.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::support::ports::Reserved;
use crate::support::until;

pub struct App {
    pub addr: SocketAddr,
    child: Child,
    dir: TempDir,
    _port: Reserved,
}

impl App {
    /// httpbin under gunicorn, which keeps connections open.
    pub fn httpbin() -> App {
        App::start(&venv().join("bin/gunicorn"), |addr| {
            let bind = format!("--bind={addr}");
            let words = ["--worker-class=gthread", "--threads=8", "--log-level=warning", &bind, "httpbin:app"];
            words.map(str::to_owned).to_vec()
        })
    }

    /// Python's file server on `tree`.
    pub fn files(tree: &Path) -> App {
        App::start(Path::new("python3"), |addr| {
            let (port, ip, tree) = (addr.port().to_string(), addr.ip().to_string(), tree.display().to_string());
            ["-m", "http.server", &port, "--bind", &ip, "--directory", &tree].map(str::to_owned).to_vec()
        })
    }

    fn start(program: &Path, arguments: impl Fn(SocketAddr) -> Vec<String>) -> App {
        let port = Reserved::new();
        let addr = port.addr();
        let dir = tempfile::tempdir().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(arguments(addr))
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; install it: apt-get install python3-venv", program.display()));
        let mut app = App { addr, child, dir, _port: port };
        until("the application listens", || {
            let ended = app.child.try_wait().unwrap();
            assert!(ended.is_none(), "the application ended: {ended:?}\n{}", app.log());
            TcpStream::connect(addr).is_ok()
        });
        app
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the application ---\n{}", self.log());
        }
        // gunicorn ends its workers when it is asked to end.
        let term = format!("kill -TERM {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &term]).status();
        for _ in 0..300 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The virtual environment, made at first use.
pub fn venv() -> &'static Path {
    static VENV: OnceLock<PathBuf> = OnceLock::new();
    VENV.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(root.join("tests/apps.sh")).output().expect("tests/apps.sh needs bash");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        root.join("target/apps-venv")
    })
}
