//! Which config files another program is still writing. A file that is cut short can be a valid config without some of
//! its limits, so it is not loaded until it is closed, and a reload fails in the meantime.
//!
//! Input: the events of the file system. Output: the files that were written and not closed since. A program may keep
//! a file open for ever, so such a file is reported after a while.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};
use rustix::fs::{major, minor};

/// A file that was not closed is reported so long after its last write.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The same after its first write, if a program keeps writing.
pub const WRITE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of files whose state is known.
const FILES_MAX: usize = 10_000;

/// The files that were written and not closed since, of all directories that are watched.
#[derive(Default)]
pub struct OpenFiles(Mutex<KnownFiles>);

#[derive(Default)]
struct KnownFiles {
    open: BTreeMap<PathBuf, OpenFile>,
    /// An open file that has lost its name, until the event of its new name, with the number that both events have.
    renamed: Option<(usize, OpenFile)>,
}

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

/// The reason for which a reload has to wait.
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
        let KnownFiles { open: files, renamed } = &mut *self.lock();
        if event.need_rescan() {
            // Events were lost, and a close may be among them.
            files.clear();
        }
        for path in &event.paths {
            match event.kind {
                EventKind::Create(CreateKind::File) => {
                    let metadata = path.symlink_metadata();
                    let is_written = metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0);
                    record_write(files, path, OpenFile { is_new: true, is_written, ..OpenFile::at(now) });
                }
                EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any) => {
                    record_write(files, path, OpenFile::at(now));
                }
                // Its writer may still have it open.
                EventKind::Modify(ModifyKind::Name(RenameMode::From)) => {
                    *renamed = event.tracker().zip(files.remove(path));
                }
                EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                    files.remove(path);
                    let same = renamed.take_if(|(number, _)| event.tracker() == Some(*number));
                    files.extend(same.map(|(_, file)| (path.clone(), file)));
                }
                // The event with both names follows the events for each name.
                EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => {}
                EventKind::Access(AccessKind::Close(AccessMode::Write))
                | EventKind::Modify(ModifyKind::Name(_))
                | EventKind::Remove(_) => drop(files.remove(path)),
                _ => {}
            }
        }
    }

    /// Returns whether one of `files`, or a new file that may become one, is open.
    pub fn find_open(&self, files: &[PathBuf], now: Instant) -> OpenState {
        let mut guard = self.lock();
        let mut state = OpenState::Closed;
        for (_, file) in list_open(&mut guard.open, files) {
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
        list_open(&mut self.lock().open, files).next().map(|(path, _)| path.clone())
    }

    /// Returns whether this file is open.
    pub fn is_open(&self, file: &Path) -> bool {
        let identity = identity_at(file);
        list_open(&mut self.lock().open, &[file.to_owned()]).any(|(path, _)| identity_at(path) == identity)
    }

    /// Forgets what was open in a directory that is no longer watched: nothing would report that it is closed.
    pub fn forget_directory(&self, directory: &Path) {
        self.lock().open.retain(|path, _| path.parent() != Some(directory));
    }

    fn lock(&self) -> MutexGuard<'_, KnownFiles> {
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

/// Lists the open files that are among `files`, or that may become one of them. Forgets those whose name another file
/// has now: its close was not noticed, as when a whole directory was replaced.
fn list_open<'o>(
    open: &'o mut BTreeMap<PathBuf, OpenFile>,
    files: &[PathBuf],
) -> impl Iterator<Item = (&'o PathBuf, &'o mut OpenFile)> {
    let mut identities: Vec<(u64, u64)> = Vec::new();
    if !open.is_empty() {
        open.retain(|path, file| file.identity.is_none() || identity_at(path) == file.identity);
        identities.extend(files.iter().filter_map(|path| identity_at(path)));
    }
    open.iter_mut().filter(move |(path, file)| {
        let is_known = || identity_at(path).is_some_and(|identity| identities.contains(&identity));
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

/// Returns whether a pattern of `include` may match a new file, by its extension and that of the files beside it.
fn may_be_included(path: &Path, files: &[PathBuf]) -> bool {
    let is_beside = |file: &PathBuf| file.parent() == path.parent() && file.extension() == path.extension();
    path.extension().is_some_and(|extension| extension == "toml") || files.iter().any(is_beside)
}

/// Returns the device and the inode of the file at `path`.
fn identity_at(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A program that has a file open or mapped for writing.
#[derive(Debug, PartialEq, Eq)]
pub struct Writer {
    pub path: PathBuf,
    /// The name and the id of its process.
    pub process: String,
}

/// Finds another process that has one of `files` open for writing, by any name: also as a hard link, as a mount, or
/// since before it was renamed. A file that is mapped into memory can be written after it was closed. A process of
/// another user or namespace is found only if this one may see its files.
pub fn find_writer(files: &[PathBuf]) -> Option<Writer> {
    let files: Vec<SearchedFile> = files.iter().filter_map(|path| SearchedFile::at(path)).collect();
    if files.is_empty() {
        return None;
    }
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter(|process| is_other_process(&process.file_name())).find_map(|process| {
        let process = process.path();
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let opened = descriptors.into_iter().find_map(|descriptor| {
            find_written(&files, &descriptor.path(), &process.join("fdinfo").join(descriptor.file_name()))
        });
        let path = opened.or_else(|| find_mapped(&files, &std::fs::read_to_string(process.join("maps")).ok()?))?;
        let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
        let process = format!("{} (process {})", name.trim_end().escape_debug(), process.file_name()?.display());
        Some(Writer { path: path.to_owned(), process })
    })
}

/// A file whose writers are searched.
struct SearchedFile<'p> {
    path: &'p Path,
    real: PathBuf,
    device: u64,
    inode: u64,
}

impl SearchedFile<'_> {
    fn at(path: &Path) -> Option<SearchedFile<'_>> {
        let (device, inode) = identity_at(path)?;
        Some(SearchedFile { path, real: path.canonicalize().ok()?, device, inode })
    }
}

/// Finds the file that a descriptor of a process has open for writing. `description`: its path in `fdinfo`.
fn find_written<'p>(files: &[SearchedFile<'p>], descriptor: &Path, description: &Path) -> Option<&'p Path> {
    // Most descriptors are sockets, such as `socket:[1]`.
    let target = std::fs::read_link(descriptor).ok().filter(|target| target.is_absolute())?;
    let text = std::fs::read_to_string(description).ok()?;
    let find = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if !find("flags:")?.ends_with(['1', '2', '5', '6']) {
        return None;
    }
    let inode: Option<u64> = find("ino:").and_then(|number| number.parse().ok());
    let is_open = |file: &&SearchedFile| {
        // Reading what the link leads to may block, so it is read only for the same inode number.
        target == file.real || inode == Some(file.inode) && identity_at(descriptor) == Some((file.device, file.inode))
    };
    files.iter().find(is_open).map(|file| file.path)
}

/// Finds the file that a process has mapped for shared writing. `maps`: the list of its mappings, with lines such as
/// `7f3a4c000000-7f3a4c001000 rw-s 00000000 fe:00 131 /etc/app.toml`.
fn find_mapped<'p>(files: &[SearchedFile<'p>], maps: &str) -> Option<&'p Path> {
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (access, device, inode) = (words.next()?, words.nth(1)?, words.next()?.parse::<u64>().ok()?);
        if !(access.contains('w') && access.ends_with('s')) {
            return None;
        }
        let is_mapped = |file: &&SearchedFile| {
            let of_file = format!("{:02x}:{:02x}", major(file.device), minor(file.device));
            // Some file systems show another device here.
            inode == file.inode && (device == of_file || file.real.to_str().is_some_and(|real| line.ends_with(real)))
        };
        files.iter().find(is_mapped).map(|file| file.path)
    })
}

/// Returns whether a name in `/proc` is that of a process, but not of this one. This one has many descriptors, and
/// closes the files that it writes before it renames them.
fn is_other_process(name: &OsStr) -> bool {
    name.to_str().and_then(|name| name.parse::<u32>().ok()).is_some_and(|id| id != std::process::id())
}

#[cfg(test)]
mod tests {
    use notify::event::DataChange;

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

    #[test]
    fn an_open_file_stays_open_under_its_new_name() {
        let case = Case::new();
        let rename = |mode, name: &str, number| {
            let event = notify::Event::new(EventKind::Modify(ModifyKind::Name(mode))).add_path(case.path(name));
            case.open.record_event(&event.set_tracker(number), case.start);
        };
        std::fs::write(case.path("next"), "").unwrap();
        case.record(CREATED, "next", 0);
        case.record(WRITTEN, "next", 0);
        std::fs::rename(case.path("next"), case.path("a.toml")).unwrap();
        rename(RenameMode::From, "next", 1);
        rename(RenameMode::To, "a.toml", 1);
        assert_eq!(case.state(1), open(9));
        case.record(CLOSED, "a.toml", 2);
        assert_eq!(case.state(2), OpenState::Closed);
        // A file that left the directory, and another one that came.
        case.record(WRITTEN, "set.txt", 3);
        rename(RenameMode::From, "set.txt", 2);
        rename(RenameMode::To, "a.toml", 3);
        assert_eq!(case.state(4), OpenState::Closed);
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

    /// The name may differ from that of the file: a hard link, or the name before it was renamed.
    #[test]
    fn a_writer_is_found_by_any_name() {
        let case = Case::new();
        let files = [case.path("set.txt"), case.path("a.toml")];
        let _reader = std::fs::File::open(case.path("a.toml")).unwrap();
        std::fs::hard_link(case.path("a.toml"), case.path("link")).unwrap();
        for (open, renamed) in [("a.toml", None), ("link", None), ("new", Some("a.toml"))] {
            assert_eq!(find_writer(&files), None);
            let mut writer = std::process::Command::new("sh")
                .args(["-c", "exec 3>>$0; echo; read end"])
                .arg(case.path(open))
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let is_open = std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut [0]);
            assert!(is_open.is_ok());
            if let Some(name) = renamed {
                std::fs::rename(case.path(open), case.path(name)).unwrap();
            }
            let process = format!("sh (process {})", writer.id());
            assert_eq!(find_writer(&files), Some(Writer { path: case.path("a.toml"), process }), "{open}");
            drop(writer.stdin.take());
            writer.wait().unwrap();
        }
        assert_eq!(find_writer(&[case.path("absent")]), None);
    }

    #[test]
    fn lost_events_count_as_closed() {
        let case = Case::new();
        case.record(WRITTEN, "a.toml", 0);
        let lost = notify::Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan);
        case.open.record_event(&lost, case.start);
        assert_eq!(case.state(1), OpenState::Closed);
    }

    #[test]
    fn a_file_that_is_mapped_for_writing_has_a_writer() {
        let case = Case::new();
        let config = case.path("a.toml");
        let files = [SearchedFile::at(&config).unwrap()];
        let SearchedFile { device, inode, .. } = files[0];
        let device = format!("{:02x}:{:02x}", major(device), minor(device));
        let path = files[0].real.display();
        for (line, is_found) in [
            (format!("7f00-7f01 rw-s 00000000 {device} {inode}     {path}"), true),
            (format!("7f00-7f01 rw-s 00000000 {device} {inode}     /another/name"), true),
            (format!("7f00-7f01 rw-s 00000000 00:2b {inode}     {path}"), true),
            (format!("7f00-7f01 rw-s 00000000 00:2b {inode}     /another/name"), false),
            (format!("7f00-7f01 r--s 00000000 {device} {inode}     {path}"), false),
            (format!("7f00-7f01 rw-p 00000000 {device} {inode}     {path}"), false),
            (format!("7f00-7f01 rw-s 00000000 {device} 1     {path}"), false),
            ("7f00-7f01 rw-p 00000000 00:00 0".to_owned(), false),
        ] {
            let maps = format!("55aa-55ab r-xp 00000000 {device} 7 /usr/bin/x\n{line}\n");
            assert_eq!(find_mapped(&files, &maps).is_some(), is_found, "{line}");
        }
    }
}
