//! A directory in which a test runs the program. A helper.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Working directory of the program, with a config and logs.
pub struct Dir(pub tempfile::TempDir);

impl Dir {
    pub fn new(config: &str) -> Dir {
        let dir = Dir(tempfile::tempdir().unwrap());
        dir.write("sluicegate.toml", config.as_bytes());
        dir
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Exit code and streams; runs inside the directory.
    pub fn replay(&self, args: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .arg("replay")
            .args(args)
            .current_dir(&self.0)
            .env_remove("SLUICEGATE_CONFIG")
            .env_remove("SLUICEGATE_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program may end before it has read all input.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    pub fn json(&self, args: &[&str], input: &[u8]) -> Value {
        let (code, stdout, stderr) = self.replay(&[&["--format", "json"], args].concat(), input);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }

    /// Returns the verdicts on the requests of our own log that were refused (`None`) or had to wait (ms), by line.
    pub fn verdicts(&self, log: &str) -> BTreeMap<u64, Option<i64>> {
        self.write("own.log", log.as_bytes());
        let (code, _, stderr) = self.replay(&["own.log", "--verdicts", "verdicts"], b"");
        assert_eq!(code, 0, "{stderr}");
        let lines = fs::read_to_string(self.0.path().join("verdicts")).unwrap();
        let verdicts = lines.lines().map(|line| {
            let verdict: Value = serde_json::from_str(line).unwrap();
            let refused = !verdict["refused_by"].as_array().unwrap().is_empty();
            let delay_ms = verdict["delay_ms"].as_i64().unwrap();
            (verdict["line"].as_u64().unwrap(), (!refused).then_some(delay_ms))
        });
        verdicts.collect()
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}
