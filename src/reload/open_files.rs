//! Which config files another program is still writing. A file that is cut short can be a valid config without some of
//! its limits, so a reload waits until it is closed.
//!
//! Input: the events of the file system. Output: the files that were written and not closed since. A program may keep
//! a file open for ever, so the wait is bounded.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind};

/// A file that was not closed is loaded as it is so long after its last write.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The same after its first write, if a program keeps writing.
pub const WRITE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of files whose state is known.
const FILES_MAX: usize = 10_000;

/// The files that were written and not closed since, of all directories that are watched.
#[derive(Default)]
pub struct OpenFiles(Mutex<BTreeMap<PathBuf, OpenFile>>);

#[derive(Clone, Copy, Debug)]
struct OpenFile {
    first_write: Instant,
    last_write: Instant,
    /// The file was created since it is watched, so the config may not contain it yet.
    is_new: bool,
    /// False if it was only created, with content: a link to a complete file, which is never closed.
    is_written: bool,
    /// A reload has waited long enough. It does not wait again until the file is closed.
    is_given_up: bool,
}

/// What a reload has to wait for.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenState {
    /// All files are closed.
    Closed,
    /// A file may be closed soon; at most for this long.
    Open(Duration),
    /// A file was not closed for too long. It is reported once.
    TooLong(PathBuf),
}

impl OpenFiles {
    /// Records an event of the file system.
    pub fn record_event(&self, event: &notify::Event, now: Instant) {
        let mut files = self.lock();
        if event.need_rescan() {
            // Events were lost, and a close may be among them.
            files.clear();
        }
        for path in &event.paths {
            match event.kind {
                EventKind::Create(CreateKind::File) => {
                    let is_written = is_empty_file(path);
                    record_write(&mut files, path, OpenFile { is_new: true, is_written, ..OpenFile::at(now) });
                }
                EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) => {
                    record_write(&mut files, path, OpenFile::at(now));
                }
                EventKind::Access(AccessKind::Close(AccessMode::Write))
                | EventKind::Modify(ModifyKind::Name(_))
                | EventKind::Remove(_) => drop(files.remove(path)),
                _ => {}
            }
        }
    }

    /// Returns whether one of `files`, or a new file that may become one, is open.
    pub fn find_open(&self, files: &[PathBuf], now: Instant) -> OpenState {
        let mut open = self.lock();
        let known: Vec<(u64, u64)> = match open.is_empty() {
            true => return OpenState::Closed,
            false => files.iter().filter_map(|path| path.metadata().ok()).map(|metadata| identity(&metadata)).collect(),
        };
        let mut longest = None;
        for (path, file) in open.iter_mut().filter(|(_, file)| file.is_written && !file.is_given_up) {
            let is_known = path.metadata().is_ok_and(|metadata| known.contains(&identity(&metadata)));
            if !(is_known || file.is_new && may_be_included(path, files)) {
                continue;
            }
            let until = (file.last_write + PAUSE_MAX).min(file.first_write + WRITE_MAX);
            let left = until.saturating_duration_since(now);
            if left.is_zero() {
                file.is_given_up = true;
                return OpenState::TooLong(path.clone());
            }
            longest = longest.max(Some(left));
        }
        longest.map_or(OpenState::Closed, OpenState::Open)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, OpenFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenFile {
    fn at(now: Instant) -> OpenFile {
        OpenFile { first_write: now, last_write: now, is_new: false, is_written: true, is_given_up: false }
    }
}

fn record_write(files: &mut BTreeMap<PathBuf, OpenFile>, path: &Path, write: OpenFile) {
    if let Some(file) = files.get_mut(path) {
        file.last_write = write.last_write;
        file.is_written |= write.is_written;
        return;
    }
    if files.len() >= FILES_MAX {
        files.retain(|_, file| file.is_written && !file.is_given_up);
    }
    if files.len() < FILES_MAX {
        files.insert(path.to_owned(), write);
    }
}

fn is_empty_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

/// Returns whether a pattern of `include` may match a new file, by its extension and that of the files beside it.
fn may_be_included(path: &Path, files: &[PathBuf]) -> bool {
    let is_beside = |file: &PathBuf| file.parent() == path.parent() && file.extension() == path.extension();
    path.extension().is_some_and(|extension| extension == "toml") || files.iter().any(is_beside)
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, RenameMode};

    use super::*;

    const CREATED: EventKind = EventKind::Create(CreateKind::File);
    const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const RENAMED: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    /// A directory with the config `a.toml`, a set, and a log.
    struct Case {
        dir: tempfile::TempDir,
        open: OpenFiles,
        start: Instant,
    }

    impl Case {
        fn new() -> Case {
            let dir = tempfile::tempdir().unwrap();
            for name in ["a.toml", "set.txt", "access.log"] {
                std::fs::write(dir.path().join(name), "x").unwrap();
            }
            Case { dir, open: OpenFiles::default(), start: Instant::now() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn record(&self, kind: EventKind, name: &str, second: u64) {
            let event = notify::Event::new(kind).add_path(self.path(name));
            self.open.record_event(&event, self.start + Duration::from_secs(second));
        }

        fn state(&self, second: u64) -> OpenState {
            let files = [self.path("a.toml"), self.path("set.txt")];
            self.open.find_open(&files, self.start + Duration::from_secs(second))
        }
    }

    fn open(seconds: u64) -> OpenState {
        OpenState::Open(Duration::from_secs(seconds))
    }

    #[test]
    fn a_written_file_is_open_until_it_is_closed_renamed_or_removed() {
        for end in [CLOSED, RENAMED, EventKind::Remove(notify::event::RemoveKind::File)] {
            let case = Case::new();
            for name in ["a.toml", "set.txt"] {
                case.record(WRITTEN, name, 0);
                assert_eq!(case.state(1), open(9), "{name}");
                case.record(WRITTEN, name, 4);
                assert_eq!(case.state(5), open(9), "{name}");
                case.record(end, name, 6);
                assert_eq!(case.state(6), OpenState::Closed, "{name}");
            }
        }
    }

    #[test]
    fn other_files_of_the_directory_do_not_count() {
        let case = Case::new();
        case.record(WRITTEN, "access.log", 0);
        std::fs::write(case.path("new.log"), "").unwrap();
        case.record(CREATED, "new.log", 0);
        assert_eq!(case.state(1), OpenState::Closed);
        std::fs::write(case.path("b.toml"), "").unwrap();
        case.record(CREATED, "b.toml", 0);
        assert_eq!(case.state(1), open(9), "a pattern of `include` may match it");
        case.record(CLOSED, "b.toml", 2);
        assert_eq!(case.state(2), OpenState::Closed);
        // It has content by the time that its creation is noticed.
        std::fs::write(case.path("c.toml"), "x").unwrap();
        case.record(CREATED, "c.toml", 3);
        case.record(WRITTEN, "c.toml", 3);
        assert_eq!(case.state(4), open(9));
    }

    /// Linux reports no close for links.
    #[test]
    fn links_to_complete_files_are_not_open() {
        let case = Case::new();
        std::fs::hard_link(case.path("a.toml"), case.path("b.toml")).unwrap();
        std::os::unix::fs::symlink("a.toml", case.path("c.toml")).unwrap();
        ["b.toml", "c.toml"].iter().for_each(|name| case.record(CREATED, name, 0));
        assert_eq!(case.state(1), OpenState::Closed);
    }

    #[test]
    fn a_file_that_is_never_closed_is_reported_once_until_it_is_written_again() {
        let case = Case::new();
        case.record(WRITTEN, "set.txt", 0);
        assert_eq!(case.state(10), OpenState::TooLong(case.path("set.txt")));
        assert_eq!(case.state(11), OpenState::Closed);
        (12..80).for_each(|second| case.record(WRITTEN, "set.txt", second));
        assert_eq!(case.state(80), OpenState::Closed, "its writer was given up");
        case.record(CLOSED, "set.txt", 81);
        (100..=159).for_each(|second| case.record(WRITTEN, "set.txt", second));
        assert_eq!(case.state(159), open(1), "it is written all the time");
        assert_eq!(case.state(160), OpenState::TooLong(case.path("set.txt")));
    }

    #[test]
    fn lost_events_count_as_closed() {
        let case = Case::new();
        case.record(WRITTEN, "a.toml", 0);
        let lost = notify::Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan);
        case.open.record_event(&lost, case.start);
        assert_eq!(case.state(1), OpenState::Closed);
    }
}
