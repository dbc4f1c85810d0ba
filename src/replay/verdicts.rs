//! Who was refused or delayed, or could not be judged, as JSON lines in a file. Written by the replay.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::limit::Verdict;
use crate::limit::limits::Mode;
use crate::route::Route;

use super::units::time;

pub struct Verdicts {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Verdicts {
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Verdicts, String> {
        let out = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Verdicts { path: path.to_owned(), out: BufWriter::new(out) })
    }

    /// # Errors
    /// The file cannot be written.
    /// `not_evaluated`: the limits that read what the log does not hold.
    pub fn add(
        &mut self,
        log: &str,
        line: u64,
        now_ms: i64,
        verdict: &Verdict,
        route: &Route,
        not_evaluated: &[&str],
    ) -> Result<(), String> {
        let limits = |mode| {
            let refusals = verdict.refusals_of(&route.limits, mode).map(|checked| &*route.limits[checked.limit].name);
            refusals.collect::<Vec<_>>()
        };
        let (refused_by, shadow) = (limits(Mode::Enforce), limits(Mode::Shadow));
        let delay_ms = verdict.delay_ms(&route.limits).map_or(0, |(_, delay_ms)| delay_ms);
        if refused_by.is_empty() && shadow.is_empty() && not_evaluated.is_empty() && delay_ms == 0 {
            return Ok(());
        }
        let line = json!({
            "log": log, "line": line, "time": time(now_ms), "refused_by": refused_by, "shadow": shadow,
            "delay_ms": delay_ms, "not_evaluated": not_evaluated,
        });
        writeln!(self.out, "{line}").map_err(|error| self.error(&error))
    }

    /// # Errors
    /// The file cannot be written.
    pub fn end(&mut self) -> Result<(), String> {
        self.out.flush().map_err(|error| self.error(&error))
    }

    fn error(&self, error: &std::io::Error) -> String {
        format!("cannot write {}: {error}", self.path.display())
    }
}
