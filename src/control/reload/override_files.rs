//! Follows the files with overrides that limits name. A changed row applies without a reload of the config: only the rows
//! that differ change anything.

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{self, Config};
use crate::limiting::limit::Limit;
use crate::limiting::overrides::row_table::ReplacedRows;
use crate::reload::files::{FileStat, stat_file};
use crate::reload::loader::Loader;
use crate::reload::open_files::find_writer;
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::StoreMetrics;

/// Interval at which files are looked at. A file has to stay the same for as long before it is read.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the file of a limit.
#[derive(Default)]
struct KnownFile {
    /// The limit whose rows are active: a reload reads the file anew.
    limit: Option<Arc<Limit>>,
    /// The file as it was read last; `None` if it could not be read.
    read: Option<FileStat>,
    /// The file as it was looked at last.
    seen: Option<FileStat>,
}

/// What was found at one look.
enum Look {
    Same,
    Read(ReplacedRows),
    Failed(String),
}

/// Applies changed rows, and exports how many there are. Never returns.
pub async fn follow_override_files(current: CurrentSnapshot, loader: Rc<Loader>, metrics: StoreMetrics) {
    let known: Arc<Mutex<HashMap<String, KnownFile>>> = Arc::default();
    let mut failures: HashMap<String, String> = HashMap::new();
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let limits = limits_with_file(&current.load().config);
        known.lock().retain(|name, _| limits.iter().any(|limit| limit.name == *name));
        failures.retain(|name, _| limits.iter().any(|limit| limit.name == *name));
        if limits.is_empty() {
            metrics.file_overrides.reset();
            metrics.rejected_rows.reset();
            continue;
        }
        // On the thread that reads the config: the file system may block.
        let (looked_at, files) = (limits.clone(), known.clone());
        let look = move || {
            let mut files = files.lock();
            looked_at.iter().map(|limit| look_at_file(limit, files.entry(limit.name.clone()).or_default())).collect()
        };
        let Ok(looks): Result<Vec<Look>, _> = loader.run_task(look).await else { continue };
        for (limit, look) in limits.iter().zip(looks) {
            report_look(limit, look, &mut failures, &metrics);
        }
    }
}

fn limits_with_file(config: &Config) -> Vec<Arc<Limit>> {
    config.limits.iter().filter(|limit| limit.overrides.file().is_some()).cloned().collect()
}

/// Reads the file if it has changed, once it stays the same and no program has it open for writing.
fn look_at_file(limit: &Arc<Limit>, known: &mut KnownFile) -> Look {
    let Some(file) = limit.overrides.file() else { return Look::Same };
    let now = match stat_file(&file.path) {
        Ok(now) => now,
        Err(why) => {
            (known.read, known.seen) = (None, None);
            return Look::Failed(why.to_string());
        }
    };
    let is_new = known.limit.as_ref().is_none_or(|known| !Arc::ptr_eq(known, limit));
    if !is_new && known.read == Some(now) {
        return Look::Same;
    }
    let is_settled = known.seen.replace(now) == Some(now);
    let is_written = || find_writer(&[PathBuf::clone(&file.path)]).is_some();
    if !is_settled || is_written() {
        return Look::Same;
    }
    let text = match config::read_rows(&file.path) {
        Ok(text) => text,
        Err(error) => return Look::Failed(error.to_string()),
    };
    if stat_file(&file.path).ok() != Some(now) {
        return Look::Same;
    }
    match limit.overrides.apply_file(&limit.key, &text) {
        Ok(replaced) => {
            (known.limit, known.read) = (Some(limit.clone()), Some(now));
            Look::Read(replaced)
        }
        Err(why) => Look::Failed(why),
    }
}

/// Logs and counts what was found. A failure is logged once.
fn report_look(limit: &Limit, look: Look, failures: &mut HashMap<String, String>, metrics: &StoreMetrics) {
    let Some(file) = limit.overrides.file() else { return };
    let path = file.path.display();
    let failure = match look {
        Look::Same => failures.get(&limit.name).cloned(),
        Look::Read(ReplacedRows { changed, rejected }) => {
            let rows = file.counts().0;
            if changed > 0 {
                match rows {
                    0 => tracing::warn!(limit = limit.name, %path, changed, "the file has no overrides any more"),
                    rows => tracing::info!(limit = limit.name, %path, rows, changed, "changed overrides are active"),
                }
            }
            if let Some(mistakes) = rejected.describe() {
                tracing::error!(limit = limit.name, %path, "rows skipped, the others are active: {mistakes}");
            }
            None
        }
        Look::Failed(why) => Some(why),
    };
    let (rows, rejected) = file.counts();
    let set = |gauge: &prometheus::IntGaugeVec, count: usize| {
        gauge.with_label_values(&[&limit.name]).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    set(&metrics.file_overrides, rows);
    set(&metrics.rejected_rows, rejected.max(usize::from(failure.is_some())));
    match failure {
        Some(why) if failures.get(&limit.name) != Some(&why) => {
            tracing::error!(limit = limit.name, %path, "cannot read the overrides, those known stay active: {why}");
            failures.insert(limit.name.clone(), why);
        }
        Some(_) => {}
        None => drop(failures.remove(&limit.name)),
    }
}
