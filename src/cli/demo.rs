//! `sluicegate demo`: runs the gateway with sample limits in front of its own echo server, and prints commands to try.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::report::report_error;
use crate::cli::{RUNTIME, run_gateway};
use crate::config;
use crate::config::schema::json_schema::render_schema;
use crate::control::ConfigSource;
use crate::net::{ListenAddr, to_reachable};

const CONFIG: &str = include_str!("../../conf/demo.toml");
/// Ports in `CONFIG`: that of clients and that of the admin listener.
const PORTS: [u16; 2] = [8080, 9900];

pub fn run_demo(dir: Option<PathBuf>) -> ExitCode {
    let home = match DemoHome::new(dir) {
        Ok(home) => home,
        Err(error) => {
            report_error(format_args!("cannot write the demo config: {error}"));
            return ExitCode::from(RUNTIME);
        }
    };
    // The gateway runs even if nobody reads its output, and reports the mistakes of a config that does not load.
    let _ = match config::load_config(&home.config_path()) {
        Ok(config) => print_introduction(&home.config_path(), &DemoUrls::of(&config)),
        Err(_) => Ok(()),
    };
    run_gateway(ConfigSource::File(home.config_path()))
}

/// The addresses at which clients and browsers find the demo.
struct DemoUrls {
    http: Option<String>,
    admin: Option<String>,
}

impl DemoUrls {
    fn of(config: &config::Config) -> DemoUrls {
        let url = |address: &ListenAddr, scheme| match address {
            ListenAddr::Tcp(address) => Some(format!("{scheme}://{}", to_reachable(*address))),
            ListenAddr::Unix(_) => None,
        };
        let http = config
            .listeners
            .iter()
            .find_map(|listener| url(&listener.address, if listener.tls.is_some() { "https" } else { "http" }));
        DemoUrls { http, admin: url(&config.admin.listen, "http") }
    }
}

/// Directory of the config; a temporary one is removed with this value.
struct DemoHome {
    dir: PathBuf,
    temporary: bool,
}

impl DemoHome {
    fn new(dir: Option<PathBuf>) -> io::Result<DemoHome> {
        let home = match dir {
            Some(dir) => {
                std::fs::create_dir_all(&dir)?;
                DemoHome { dir, temporary: false }
            }
            None => {
                let name = format!("sluicegate-demo-{}-{:08x}", std::process::id(), rand::random::<u32>());
                let dir = std::env::temp_dir().join(name);
                DirBuilder::new().mode(0o700).create(&dir)?;
                DemoHome { dir, temporary: true }
            }
        };
        // The config of an earlier demo is kept with its edits.
        if !home.config_path().exists() {
            create_file(&home.config_path(), &write_config()?)?;
        }
        // The config names it, so that editors can complete and check the config.
        create_file(&home.dir.join("schema.json"), &render_schema())?;
        Ok(home)
    }

    fn config_path(&self) -> PathBuf {
        self.dir.join("sluicegate.toml")
    }
}

/// Returns the demo config, with other ports instead of those that are in use.
fn write_config() -> io::Result<String> {
    let mut text = CONFIG.to_owned();
    // All stay open until the last is chosen, so that no port is chosen twice.
    let mut ports = Vec::new();
    for port in PORTS {
        let listener = listen_near(port)?;
        let free = listener.local_addr()?.port();
        if free != port {
            println!("Port {port} is in use; the demo takes {free} instead.");
            text = text.replace(&format!("127.0.0.1:{port}\""), &format!("127.0.0.1:{free}\""));
        }
        ports.push(listener);
    }
    Ok(text)
}

/// Listens at `port`, or at a free port that the system chooses if `port` is in use.
fn listen_near(port: u16) -> io::Result<TcpListener> {
    let listen = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    match listen(port) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => listen(0),
        result => result,
    }
}

/// Writes a file, unless it exists.
fn create_file(path: &Path, text: &str) -> io::Result<()> {
    match std::fs::File::create_new(path) {
        Ok(mut file) => file.write_all(text.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

impl Drop for DemoHome {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn print_introduction(config: &Path, urls: &DemoUrls) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "Sluicegate demo.\n")?;
    if let Some(admin) = &urls.admin {
        writeln!(out, "  Dashboard: {admin}/\n      Requests, refusals and the state of each limit, live.\n")?;
    }
    if let Some(http) = &urls.http {
        writeln!(
            out,
            "\
In another terminal:

  curl -i {http}/
      200 from the built-in echo server; the RateLimit header shows how many of 10 requests remain.

  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}} ' {http}/; done
      200 until the burst of 10 is used up, then 429.

  curl -i {http}/
      While the limit refuses, retry-after-ms is the exact wait. One request becomes available every second.
"
        )?;
    }
    let (program, config) = (program_name(), config.display());
    writeln!(
        out,
        "  Edit {config}
      Set burst = 100 and save: it applies within a second, and requests made so far still count.

  {program} key show per-ip 127.0.0.1 -c {config}
      What this client used, and when its next request passes.

  {program} explain GET http://localhost/ --from 127.0.0.1 -c {config}
      Which route and limits a request meets, and why.

Ctrl-C ends the demo.
"
    )?;
    out.flush()
}

/// The name by which another terminal starts this program: a path if this one was started by a path.
fn program_name() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let path = std::env::current_exe().ok().filter(|_| program.contains('/'));
    path.map_or("sluicegate".to_owned(), |path| path.display().to_string())
}
