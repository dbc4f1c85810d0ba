//! Writes requests that were refused, delayed or not evaluated as JSON lines to a file. Called by the replay.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::limiting::Verdict;
use crate::limiting::limit::Mode;
use crate::replay::report::format_time_of;
use crate::route::Route;

pub struct Verdicts {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Verdicts {
    /// Creates the file.
    ///
    /// # Errors
    /// If that fails.
    pub fn create_file(path: &Path) -> Result<Verdicts, String> {
        let out = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Verdicts { path: path.to_owned(), out: BufWriter::new(out) })
    }

    /// Adds a request. `not_evaluated` lists the limits that read values which the log lacks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_verdict(
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
        let exceeded: Vec<&str> = match verdict.refused {
            true => Vec::new(),
            false => verdict.excesses(&route.limits).map(|checked| &*route.limits[checked.limit].name).collect(),
        };
        let delay_ms = verdict.delay_ms(&route.limits).map_or(0, |(_, delay_ms)| delay_ms);
        let is_notable = [&refused_by, &shadow, &exceeded].iter().any(|names| !names.is_empty());
        if !is_notable && not_evaluated.is_empty() && delay_ms == 0 {
            return Ok(());
        }
        let line = json!({
            "log": log, "line": line, "time": format_time_of(now_ms), "refused_by": refused_by, "shadow": shadow,
            "exceeded": exceeded,
            "delay_ms": delay_ms, "not_evaluated": not_evaluated,
        });
        writeln!(self.out, "{line}").map_err(|error| self.describe_error(&error))
    }

    /// Writes the buffered rest.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush_file(&mut self) -> Result<(), String> {
        self.out.flush().map_err(|error| self.describe_error(&error))
    }

    fn describe_error(&self, error: &std::io::Error) -> String {
        format!("cannot write {}: {error}", self.path.display())
    }
}
