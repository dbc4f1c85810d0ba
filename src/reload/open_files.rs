//! Which config files another program is still writing. A file that is cut short can be a valid config without some of
//! its limits, so it is not loaded until it is closed, and a reload fails meanwhile.
//!
//! Input: the events of the file system. Output: the files that were written and not closed since. A program may keep
//! a file open for ever, so such a file is reported after a while.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind};

/// A file that was not closed is reported so long after its last write.
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
    /// The watcher has waited long enough to report it.
    is_reported: bool,
    /// The file that was written. Another file of this name was put in its place complete.
    identity: Option<(u64, u64)>,
}

/// What a reload has to wait for.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenState {
    /// All files are closed.
    Closed,
    /// A file is open, and is to be reported after this time; `None` if it was reported.
    Open(Option<Duration>),
    /// A file was not closed for too long. This is returned once for each.
    TooLong,
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
        let mut state = OpenState::Closed;
        for (_, file) in list_open(&mut open, files) {
            let until = (file.last_write + PAUSE_MAX).min(file.first_write + WRITE_MAX);
            let left = until.saturating_duration_since(now);
            if left.is_zero() && !std::mem::replace(&mut file.is_reported, true) {
                return OpenState::TooLong;
            }
            let left = (!left.is_zero()).then_some(left);
            state = OpenState::Open(match state {
                OpenState::Open(longest) => longest.max(left),
                _ => left,
            });
        }
        state
    }

    /// Returns one of `files` that is open, or a new file that may become one.
    pub fn find_path(&self, files: &[PathBuf]) -> Option<PathBuf> {
        list_open(&mut self.lock(), files).next().map(|(path, _)| path.clone())
    }

    /// Forgets what was open in a directory that is no longer watched: nothing would report that it is closed.
    pub fn forget_directory(&self, directory: &Path) {
        self.lock().retain(|path, _| path.parent() != Some(directory));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, OpenFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenFile {
    fn at(now: Instant) -> OpenFile {
        OpenFile {
            first_write: now,
            last_write: now,
            is_new: false,
            is_written: true,
            is_reported: false,
            identity: None,
        }
    }
}

/// Lists the open files that are among `files`, or that may become one of them. Forgets those whose name another file has
/// now: its close was not noticed, as when a whole directory was replaced.
fn list_open<'o>(
    open: &'o mut BTreeMap<PathBuf, OpenFile>,
    files: &[PathBuf],
) -> impl Iterator<Item = (&'o PathBuf, &'o mut OpenFile)> {
    let mut known: Vec<(u64, u64)> = Vec::new();
    if !open.is_empty() {
        open.retain(|path, file| file.identity.is_none() || identity_at(path) == file.identity);
        known.extend(files.iter().filter_map(|path| identity_at(path)));
    }
    open.iter_mut().filter(move |(path, file)| {
        let is_known = || identity_at(path).is_some_and(|identity| known.contains(&identity));
        file.is_written && (is_known() || file.is_new && may_be_included(path, files))
    })
}

fn record_write(files: &mut BTreeMap<PathBuf, OpenFile>, path: &Path, write: OpenFile) {
    if let Some(file) = files.get_mut(path) {
        file.last_write = write.last_write;
        file.is_written |= write.is_written;
        return;
    }
    if files.len() >= FILES_MAX {
        files.retain(|_, file| file.is_written);
    }
    if files.len() < FILES_MAX {
        files.insert(path.to_owned(), OpenFile { identity: identity_at(path), ..write });
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

/// Returns the device and the inode of the file at `path`.
fn identity_at(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Finds a process that has the file open for writing, as far as this process may see the files of others. Returns its
/// name and id.
pub fn find_writer(path: &Path) -> Option<String> {
    // The links are compared, because reading what they lead to may block.
    let real = path.canonicalize().ok()?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let is_process =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let mut writers = processes.filter(is_process).filter(|process| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|descriptor| {
            std::fs::read_link(descriptor.path()).is_ok_and(|target| target == real)
                && is_writable(&process.join("fdinfo").join(descriptor.file_name()))
        })
    });
    let writer = writers.next()?;
    let name = std::fs::read_to_string(writer.join("comm")).unwrap_or_default();
    Some(format!("{} (process {})", name.trim_end().escape_debug(), writer.file_name()?.display()))
}

/// Returns whether a descriptor is open for writing, by its access mode in `/proc`.
fn is_writable(description: &Path) -> bool {
    let text = std::fs::read_to_string(description).unwrap_or_default();
    let mut flags = text.lines().filter_map(|line| line.strip_prefix("flags:"));
    flags.any(|octal| octal.trim().ends_with(['1', '2', '5', '6']))
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
        OpenState::Open(Some(Duration::from_secs(seconds)))
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
    fn a_file_that_is_never_closed_is_reported_once_and_stays_open() {
        let case = Case::new();
        case.record(WRITTEN, "set.txt", 0);
        let path = |case: &Case| case.open.find_path(&[case.path("a.toml"), case.path("set.txt")]);
        assert_eq!((case.state(10), case.state(11)), (OpenState::TooLong, OpenState::Open(None)));
        (12..80).for_each(|second| case.record(WRITTEN, "set.txt", second));
        assert_eq!((case.state(80), path(&case)), (OpenState::Open(None), Some(case.path("set.txt"))));
        case.record(CLOSED, "set.txt", 81);
        assert_eq!((case.state(81), path(&case)), (OpenState::Closed, None));
        (100..=159).for_each(|second| case.record(WRITTEN, "set.txt", second));
        assert_eq!(case.state(159), open(1), "it is written all the time");
        assert_eq!((case.state(160), case.state(161)), (OpenState::TooLong, OpenState::Open(None)));
    }

    /// Otherwise, no reload would ever succeed again.
    #[test]
    fn what_cannot_be_closed_any_more_is_forgotten() {
        let case = Case::new();
        case.record(WRITTEN, "set.txt", 0);
        std::fs::write(case.path("other"), "x").unwrap();
        std::fs::rename(case.path("other"), case.path("set.txt")).unwrap();
        assert_eq!(case.state(1), OpenState::Closed, "another file, whose events were missed");
        case.record(WRITTEN, "a.toml", 2);
        assert_eq!(case.state(3), open(9));
        case.open.forget_directory(case.dir.path());
        assert_eq!(case.state(3), OpenState::Closed);
    }

    #[test]
    fn a_writer_is_named() {
        let case = Case::new();
        assert_eq!(find_writer(&case.path("a.toml")), None);
        let reader = std::fs::File::open(case.path("a.toml")).unwrap();
        assert_eq!(find_writer(&case.path("a.toml")), None);
        let writer = std::fs::OpenOptions::new().append(true).open(case.path("a.toml")).unwrap();
        let found = find_writer(&case.path("a.toml")).unwrap();
        assert!(found.ends_with(&format!("(process {})", std::process::id())), "{found}");
        drop((reader, writer));
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
