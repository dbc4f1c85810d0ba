//! Follows the files with overrides that limits name. A changed row applies without a reload of the config: only the rows
//! that differ change anything.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::path::PathBuf;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::config::{self, Config};
use crate::file_stamp::FileStamp;
use crate::limiting::limit::Limit;
use crate::limiting::overrides::row_table::ReplacedRows;
use crate::reload::loader::Loader;
use crate::reload::open_files::{OpenFiles, PAUSE_MAX, find_writer};
use crate::snapshot::CurrentSnapshot;
use crate::telemetry::metrics::StoreMetrics;

/// Interval at which files are looked at. A file has to stay the same for as long before it is read.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A file that has no rows any more is applied after this time. Many programs empty a file, close it, and write it a little later.
const EMPTIED_WAIT: Duration = Duration::from_secs(3);

/// The state of the file of a limit.
#[derive(Default)]
struct KnownFile {
    /// The limit whose rows are active: a reload reads the file anew.
    limit: Option<Arc<Limit>>,
    /// The file as it was read last; `None` if it could not be read.
    read: Option<FileStamp>,
    /// The file as it was looked at last.
    seen: Option<FileStamp>,
    /// Since when the file has had a change that is not read yet.
    waiting_since: Option<Instant>,
    /// The file whose content cannot be used, and why. It is not read again until it changes.
    unusable: Option<(FileStamp, String)>,
}

/// The result of one look at the file.
#[derive(Debug, PartialEq)]
enum Look {
    /// The file is the one that was read.
    Same,
    /// The file has changed, and is being written.
    Waiting,
    Read(ReplacedRows),
    Failed(String),
}

/// Applies changed rows, and exports how many there are. Never returns.
pub async fn follow_override_files(
    current: CurrentSnapshot,
    (loader, open_files): (Rc<Loader>, Arc<OpenFiles>),
    metrics: StoreMetrics,
) {
    let mut files_by_limit: HashMap<String, KnownFile> = HashMap::new();
    let mut failures: HashMap<String, String> = HashMap::new();
    let mut exported: HashSet<String> = HashSet::new();
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let limits = limits_with_file(&current.load().config);
        let has_file = |name: &String| limits.iter().any(|limit| limit.name == *name);
        files_by_limit.retain(|name, _| has_file(name));
        failures.retain(|name, _| has_file(name));
        for name in exported.extract_if(|name| !has_file(name)) {
            // The series exist, unless they were never set.
            let _ = metrics.file_overrides.remove_label_values(&[&name]);
            let _ = metrics.rejected_rows.remove_label_values(&[&name]);
        }
        if limits.is_empty() {
            continue;
        }
        // On the thread that reads the config: the file system may block. The known state moves into the task and comes
        // back, so that nothing here waits for a task that hangs.
        let (looked_at, mut files) = (limits.clone(), mem::take(&mut files_by_limit));
        let open_files = open_files.clone();
        let look = move || {
            let now = Instant::now();
            let look_at = |limit: &Arc<Limit>| {
                look_at_file(limit, files.entry(limit.name.clone()).or_default(), &open_files, now)
            };
            let looks: Vec<Look> = looked_at.iter().map(look_at).collect();
            (looks, files)
        };
        let looks = match loader.run_task(look).await {
            Ok((looks, files)) => {
                files_by_limit = files;
                looks
            }
            Err(hung) => limits.iter().map(|_| Look::Failed(hung.to_string())).collect(),
        };
        for (limit, look) in limits.iter().zip(looks) {
            exported.insert(limit.name.clone());
            report_look(limit, look, &mut failures, &metrics);
        }
    }
}

/// Lets the limits of a new config keep rows of the old one: rows whose lines now have errors, and all rows of the files
/// in `unfinished`. Such a file is read once it is closed.
pub fn adopt_rows(config: &Config, old: &Config, unfinished: &[PathBuf]) {
    for limit in limits_with_file(config) {
        let path = |limit: &Limit| limit.overrides.file().map(|file| file.path.clone());
        let is_same = |before: &&Arc<Limit>| before.key == limit.key && path(before) == path(&limit);
        let Some(before) = old.limits.find(&limit.name).filter(is_same) else { continue };
        if path(&limit).is_some_and(|path| unfinished.contains(&path)) {
            let kept = limit.overrides.restore_rows(&limit.key, &before.overrides);
            tracing::warn!(
                limit = limit.name,
                kept,
                "the earlier overrides stay active, because the file is being written"
            );
            continue;
        }
        let kept_rows = limit.overrides.adopt_rows(&limit.key, &before.overrides);
        if kept_rows > 0 {
            tracing::warn!(
                limit = limit.name,
                kept = kept_rows,
                "rows with errors keep their earlier values, as all rows do if the file is empty now"
            );
        }
    }
}

/// Returns the program that has a file open for writing, as far as events and `/proc` tell.
pub fn find_program(path: &PathBuf, open_files: &OpenFiles) -> Option<String> {
    let is_open = open_files.is_open(path).then(|| "a program".to_owned());
    is_open.or_else(|| Some(find_writer(slice::from_ref(path))?.process))
}

fn limits_with_file(config: &Config) -> Vec<Arc<Limit>> {
    config.limits.iter().filter(|limit| limit.overrides.file().is_some()).cloned().collect()
}

/// Returns the files with overrides that the limits of a config name.
pub fn list_override_files(config: &Config) -> Vec<PathBuf> {
    let limits = limits_with_file(config);
    limits.iter().filter_map(|limit| Some(limit.overrides.file()?.path.to_path_buf())).collect()
}

/// Reads the file if it has changed, once it stays the same and no program has it open for writing. Events tell of all
/// programs on this machine, and `/proc` also of those that opened the file before it was watched.
fn look_at_file(limit: &Arc<Limit>, known: &mut KnownFile, open_files: &OpenFiles, at: Instant) -> Look {
    let Some(file) = limit.overrides.file() else { return Look::Same };
    let now = match FileStamp::read(&file.path) {
        Ok(now) => now,
        Err(why) => {
            (known.read, known.seen, known.waiting_since) = (None, None, None);
            return Look::Failed(why.to_string());
        }
    };
    let is_new = known.limit.as_ref().is_none_or(|known| !Arc::ptr_eq(known, limit));
    if !is_new && known.read == Some(now) {
        known.waiting_since = None;
        return Look::Same;
    }
    if let Some((_, why)) = known.unusable.as_ref().filter(|(stamp, _)| *stamp == now) {
        return Look::Failed(why.clone());
    }
    let waited = at.duration_since(*known.waiting_since.get_or_insert(at));
    let is_late = waited >= PAUSE_MAX;
    if known.seen.replace(now) != Some(now) {
        return if is_late { Look::Failed("it keeps changing".to_owned()) } else { Look::Waiting };
    }
    if let Some(process) = find_program(&file.path, open_files) {
        return if is_late { Look::Failed(format!("{process} has it open for writing")) } else { Look::Waiting };
    }
    let text = match config::read_rows(&file.path) {
        Ok(text) => text,
        Err(error) => {
            // Other faults, such as a missing permission, can end without a change of the file.
            known.unusable = error.is_of_content().then(|| (now, error.to_string()));
            return Look::Failed(error.to_string());
        }
    };
    if FileStamp::read(&file.path).ok() != Some(now) || file.is_emptied_by(&text) && waited < EMPTIED_WAIT {
        return Look::Waiting;
    }
    known.waiting_since = None;
    match limit.overrides.apply_file(&limit.key, &text) {
        Ok(replaced) => {
            (known.limit, known.read) = (Some(limit.clone()), Some(now));
            Look::Read(replaced)
        }
        Err(why) => {
            known.unusable = Some((now, why.clone()));
            Look::Failed(why)
        }
    }
}

/// Logs and counts what was found. A failure is logged once.
fn report_look(limit: &Limit, look: Look, failures: &mut HashMap<String, String>, metrics: &StoreMetrics) {
    let Some(file) = limit.overrides.file() else { return };
    let path = file.path.display();
    let failure = match look {
        Look::Same => None,
        Look::Waiting => failures.get(&limit.name).cloned(),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};

    use super::*;
    use crate::limiting::algorithm::Rule;
    use crate::limiting::algorithm::fixed_window::FixedWindow;
    use crate::limiting::key::shown_key::KeyHasher;
    use crate::limiting::key::{Key, KeyPart};
    use crate::limiting::limit::Mode;
    use crate::limiting::overrides::Overrides;
    use crate::limiting::overrides::row_file::OverrideFile;
    use crate::limiting::overrides::table::{OverrideBudget, OverrideEntry, OverrideTable, ParsedBudgets, PartHasher};
    use crate::limiting::source::Source;

    fn limit_with(path: PathBuf) -> Arc<Limit> {
        let key = Key(vec![KeyPart::Source(Source::Header(http::HeaderName::from_static("x-k")))]);
        let hasher = PartHasher::new(&key, &KeyHasher::of_process());
        let template = Arc::new(|_: &str, _: &mut ParsedBudgets| Ok(OverrideEntry::lasting(OverrideBudget::Blocked)));
        let overrides =
            Overrides::new(OverrideTable::default(), Some(OverrideFile::new(path)), hasher, template, false);
        let rule = Rule::FixedWindow(FixedWindow { limit: 1, window_ms: 1000, clock: false });
        let bare = Limit::bare("l", rule, Mode::Enforce);
        Arc::new(Limit { key, overrides: Arc::new(overrides), ..Limit::clone(&bare) })
    }

    fn look_at(limit: &Arc<Limit>, known: &mut KnownFile, at: Instant) -> Look {
        look_at_file(limit, known, &OpenFiles::default(), at)
    }

    /// Programs of other users, which `/proc` does not show, are known from events.
    #[test]
    fn a_file_that_events_call_open_waits_for_its_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, "a rate=0\n").unwrap();
        let (limit, mut known, start) = (limit_with(path.clone()), KnownFile::default(), Instant::now());
        let open_files = OpenFiles::default();
        let event = |kind| notify::Event::new(kind).add_path(path.clone());
        open_files.record_event(&event(EventKind::Modify(ModifyKind::Any)), start);
        assert_eq!(look_at_file(&limit, &mut known, &open_files, start), Look::Waiting);
        assert_eq!(look_at_file(&limit, &mut known, &open_files, start + PAUSE_MAX / 2), Look::Waiting);
        open_files.record_event(&event(EventKind::Access(AccessKind::Close(AccessMode::Write))), start);
        assert!(matches!(look_at_file(&limit, &mut known, &open_files, start + PAUSE_MAX / 2), Look::Read(_)));
    }

    #[test]
    fn a_file_that_stays_open_is_reported_and_read_once_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, "a rate=0\n").unwrap();
        let mut writer = Command::new("sh").args(["-c", "exec sleep 60 >> \"$0\""]).arg(&path).spawn().unwrap();
        while find_writer(std::slice::from_ref(&path)).is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (limit, mut known, start) = (limit_with(path), KnownFile::default(), Instant::now());
        assert_eq!(look_at(&limit, &mut known, start), Look::Waiting);
        assert_eq!(look_at(&limit, &mut known, start + PAUSE_MAX / 2), Look::Waiting);
        let look = look_at(&limit, &mut known, start + PAUSE_MAX);
        assert!(matches!(&look, Look::Failed(why) if why.contains(&writer.id().to_string())), "{look:?}");
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(matches!(look_at(&limit, &mut known, start + PAUSE_MAX), Look::Read(_)));
        assert_eq!(look_at(&limit, &mut known, start + PAUSE_MAX), Look::Same);
    }

    #[test]
    fn a_file_that_was_emptied_or_damaged_keeps_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, "a rate=0\n").unwrap();
        let (limit, mut known, start) = (limit_with(path.clone()), KnownFile::default(), Instant::now());
        let mut look = |second: u64| look_at(&limit, &mut known, start + Duration::from_secs(second));
        assert_eq!(look(0), Look::Waiting);
        assert!(matches!(look(1), Look::Read(_)));
        // A program writes it in two steps.
        fs::write(&path, "").unwrap();
        assert_eq!([look(2), look(3), look(4)], [Look::Waiting, Look::Waiting, Look::Waiting]);
        fs::write(&path, "a rate=0\nb rate=0\n").unwrap();
        assert_eq!(look(5), Look::Waiting);
        assert!(matches!(look(6), Look::Read(rows) if rows.changed == 1));
        // It is made anew, beginning with a comment.
        fs::remove_file(&path).unwrap();
        assert!(matches!(look(7), Look::Failed(_)));
        fs::write(&path, "# customers\n\n").unwrap();
        assert_eq!([look(8), look(9), look(10)], [Look::Waiting, Look::Waiting, Look::Waiting]);
        fs::write(&path, "a rate=0\nb rate=0\n").unwrap();
        assert_eq!(look(11), Look::Waiting);
        assert!(matches!(look(12), Look::Read(rows) if rows.changed == 0));
        // The system crashed in the middle of a write, or the file is another one.
        for damaged in ["\0\0\0\0\0\0", "a rate=0\n\0\0\0\0", "<html>\n</html>\n"] {
            fs::write(&path, damaged).unwrap();
            look(13);
            assert!(matches!(look(14), Look::Failed(_)), "{damaged:?}");
            assert_eq!(limit.overrides.file().unwrap().counts().0, 2, "{damaged:?}");
        }
        // Someone wants it empty.
        fs::write(&path, "").unwrap();
        assert_eq!([look(16), look(17)], [Look::Waiting, Look::Waiting]);
        assert!(matches!(look(19), Look::Read(rows) if rows.changed == 2));
    }

    /// As a program does that synchronizes files with their times.
    #[test]
    fn an_edit_that_restores_size_and_time_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, "a rate=0\n").unwrap();
        let (limit, mut known, now) = (limit_with(path.clone()), KnownFile::default(), Instant::now());
        assert_eq!(look_at(&limit, &mut known, now), Look::Waiting);
        assert!(matches!(look_at(&limit, &mut known, now), Look::Read(rows) if rows.changed == 1));
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        // The clock of a file system may have steps of some milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        fs::write(&path, "b rate=0\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
        assert_eq!(look_at(&limit, &mut known, now), Look::Waiting);
        assert!(matches!(look_at(&limit, &mut known, now), Look::Read(rows) if rows.changed == 2));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_not_read_again_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, b"a rate=0\n\xff").unwrap();
        let (limit, mut known, now) = (limit_with(path.clone()), KnownFile::default(), Instant::now());
        assert_eq!(look_at(&limit, &mut known, now), Look::Waiting);
        let Look::Failed(why) = look_at(&limit, &mut known, now) else { panic!("it is not UTF-8") };
        // Read again, it would be unusable for its own reason.
        assert!(why.contains("UTF-8"), "{why}");
        known.unusable.as_mut().unwrap().1 = "as before".to_owned();
        assert_eq!(look_at(&limit, &mut known, now), Look::Failed("as before".to_owned()));
        fs::write(&path, b"a rate=0\n").unwrap();
        assert_eq!(look_at(&limit, &mut known, now), Look::Waiting);
        assert!(matches!(look_at(&limit, &mut known, now), Look::Read(_)));
    }
}
