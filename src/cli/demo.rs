//! `sluicegate demo`: runs the gateway with sample limits in front of its own echo server, and prints commands to try.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::{RUNTIME, run_gateway};
use crate::config::schema::json_schema::render_schema;
use crate::control::ConfigSource;

const CONFIG: &str = include_str!("../../conf/demo.toml");

pub fn run_demo(dir: Option<PathBuf>) -> ExitCode {
    let home = match DemoHome::new(dir) {
        Ok(home) => home,
        Err(error) => {
            eprintln!("error: cannot write the demo config: {error}");
            return ExitCode::from(RUNTIME);
        }
    };
    // The gateway runs even if nobody reads its output.
    let _ = print_introduction(&home.config_path());
    run_gateway(ConfigSource::File(home.config_path()))
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
        create_file(&home.config_path(), CONFIG)?;
        // The config names it, so that editors can complete and check the config.
        create_file(&home.dir.join("schema.json"), &render_schema())?;
        Ok(home)
    }

    fn config_path(&self) -> PathBuf {
        self.dir.join("sluicegate.toml")
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

fn print_introduction(config: &Path) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(
        out,
        "\
Sluicegate demo. In another terminal:

  curl -i http://127.0.0.1:8080/
      200 from the built-in echo server; the RateLimit header shows how many of 10 requests remain.

  for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}} ' http://127.0.0.1:8080/; done
      200 until the burst of 10 is used up, then 429.

  curl -i http://127.0.0.1:8080/
      While the limit refuses, Retry-After is the exact wait. One request becomes available every second.

  curl -s http://127.0.0.1:9900/metrics | grep -E 'rejections_total|decisions_total'
      The refusals, by route and limit.

  Edit {}
      Set burst = 100 and save: it applies within a second, and requests made so far still count.

Ctrl-C ends it.
",
        config.display()
    )?;
    out.flush()
}
