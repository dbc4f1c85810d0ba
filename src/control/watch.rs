//! Notices edits of the config files, however they are saved: in place, by rename, through an editor's backup file, or
//! by swapping a symlink. It watches directories rather than files, treats every event as "check again", waits until no
//! file is being written, compares contents, and polls slowly for file systems without events.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::admin::lifecycle::{SharedState, Watching};
use crate::file_stamp::FileStamp;
use crate::reload::job::{ContentDigest, ReloadJob, ReloadOrder, ReloadOutcome, Trigger};
use crate::reload::open_files::{self, OpenState, PAUSE_MAX, WRITE_MAX};
use crate::{config, descriptors};

/// The control thread's handle of the watcher.
pub struct WatchHandle {
    files: watch::Sender<WatchedFiles>,
}

/// The files that are watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFiles {
    /// The files of the config. An edit reloads it.
    pub config: Vec<PathBuf>,
    /// Files with overrides, which are read by themselves. Events tell whether a program has them open.
    pub overrides: Vec<PathBuf>,
}

struct Watcher {
    files: watch::Receiver<WatchedFiles>,
    jobs: mpsc::Sender<ReloadJob>,
    shared: Arc<SharedState>,
    /// Notified by events that may be about a file of the config, from a thread of `notify`.
    changed: Arc<Notify>,
    /// Notified by other events: a directory that is watched for overrides may have been replaced.
    moved: Arc<Notify>,
    /// The directories of the config, as events name them.
    config_directories: Arc<Mutex<HashSet<PathBuf>>>,
    events: Option<RecommendedWatcher>,
    armed: HashMap<DirectoryId, PathBuf>,
    stamps: BTreeMap<PathBuf, Option<FileStamp>>,
    /// Digest of the files that the last reload of the watcher read.
    contents: ContentDigest,
}

/// Identifies a directory; includes the birth time because inode numbers are reused.
type DirectoryId = (u64, u64, Option<SystemTime>);

/// Bytes of a file that are read at once.
const DIGEST_BUFFER: usize = 64 * 1024;
/// A save counts as complete when no event has occurred for this long.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// Upper bound for waiting on a stream of events that never pauses.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(1);
/// The same if a file has become empty: many programs empty a file, close it, and write it a little later.
const EMPTIED_QUIET_TIME: Duration = Duration::from_secs(2);
/// Time for which the stamps of all files must stay the same before a save counts as complete, if there are no events.
const POLL_QUIET_TIME: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between two searches for a program that has a file open.
const WRITER_INTERVAL: Duration = Duration::from_millis(200);
/// The number of symlinks that Linux follows.
const MAX_LINKS: usize = 40;

impl WatchHandle {
    /// Watches `files` and sends a job when they may have changed.
    pub fn start(files: WatchedFiles, jobs: mpsc::Sender<ReloadJob>, shared: Arc<SharedState>) -> WatchHandle {
        let (sender, receiver) = watch::channel(files);
        let (change, moved) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let directories: Arc<Mutex<HashSet<PathBuf>>> = Arc::default();
        let mut watcher = Watcher {
            files: receiver,
            jobs,
            shared,
            changed: change.clone(),
            moved: moved.clone(),
            config_directories: directories.clone(),
            events: None,
            armed: HashMap::new(),
            stamps: BTreeMap::new(),
            contents: ContentDigest::default(),
        };
        let open_files = watcher.shared.open_files.clone();
        let on_event = move |event: notify::Result<notify::Event>| {
            if let Ok(event) = &event {
                open_files.record_event(event, std::time::Instant::now());
            }
            if !is_read(&event) {
                let directories = directories.lock().unwrap_or_else(PoisonError::into_inner);
                if concerns(&event, &directories) { change.notify_one() } else { moved.notify_one() }
            }
        };
        match notify::recommended_watcher(on_event) {
            Ok(events) => watcher.events = Some(events),
            Err(error) => watcher.fall_back_to_polling(&error),
        }
        if let Err(error) = run_watcher(watcher) {
            tracing::error!(%error, "the config files are not watched for edits");
        }
        WatchHandle { files: sender }
    }

    /// Watches the files of the config that was loaded last, or that failed to load.
    pub fn watch_files(&self, files: WatchedFiles) {
        self.files.send_if_modified(|known| {
            let differs = *known != files;
            *known = files;
            differs
        });
    }
}

/// Runs the watcher on its own thread, which a blocked file system may stop.
fn run_watcher(watcher: Watcher) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let run = move || runtime.block_on(watcher.watch_loop());
    std::thread::Builder::new().name("watch".to_owned()).spawn(run).map(drop)
}

/// Returns whether an event is about reading only. Our own reads cause such events.
fn is_read(event: &notify::Result<notify::Event>) -> bool {
    event.as_ref().is_ok_and(|event| {
        let is_access = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
        is_access && !event.need_rescan()
    })
}

/// Returns whether an event may be about something in one of `directories`, or a directory itself. An event without a
/// path, or about lost events, may.
fn concerns(event: &notify::Result<notify::Event>, directories: &HashSet<PathBuf>) -> bool {
    let Ok(event) = event else { return true };
    let is_inside = |path: &PathBuf| {
        directories.contains(path) || path.parent().is_some_and(|directory| directories.contains(directory))
    };
    event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(is_inside)
}

impl Watcher {
    async fn watch_loop(mut self) {
        self.accept_files().await;
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (change, moved) = (self.changed.clone(), self.moved.clone());
        loop {
            tokio::select! {
                () = change.notified() => self.wait_until_written().await,
                () = moved.notified() => {
                    // A burst of events leads to a single check.
                    tokio::time::sleep(QUIET_TIME).await;
                    self.watch_directories();
                    continue;
                }
                _ = ticks.tick() => {
                    if self.stamps == read_stamps(&self.files.borrow().config) {
                        continue;
                    }
                    // An event on its way says more about the write.
                    if timeout(QUIET_TIME, change.notified()).await.is_err() {
                        self.wait_until_stamps_stay().await;
                    }
                    self.wait_until_written().await;
                }
                result = self.files.changed() => {
                    if result.is_err() {
                        return;
                    }
                    self.accept_files().await;
                    continue;
                }
            }
            self.wait_for_emptied().await;
            self.watch_directories();
            let files = self.files.borrow().config.clone();
            self.stamps = read_stamps(&files);
            let Some(contents) = try_digest(&files) else {
                // Their state is unknown: an edit may be among what could not be read.
                tokio::time::sleep(QUIET_WAIT_MAX).await;
                change.notify_one();
                continue;
            };
            if self.shared.was_written(&contents) {
                self.contents = contents;
                self.shared.take_was_overtaken();
                continue;
            }
            let is_edited = contents != self.contents;
            // The search for writers takes a while, in which a program may empty a file.
            if is_edited && (self.wait_for_writer().await || self.has_emptied_file()) {
                change.notify_one();
                continue;
            }
            if self.shared.take_was_overtaken() || is_edited {
                self.submit_reload(!is_edited).await;
            }
        }
    }

    /// Accepts a new list of files. Edits between their load and now were not noticed, so the config is loaded once
    /// more. If there was none, nobody searches for programs that have the files open, which takes a while.
    async fn accept_files(&mut self) {
        self.files.mark_unchanged();
        self.watch_directories();
        self.wait_until_written().await;
        self.stamps = read_stamps(&self.files.borrow().config);
        if self.submit(true, true).await {
            return;
        }
        self.wait_for_writer().await;
        self.stamps = read_stamps(&self.files.borrow().config);
        self.submit_reload(true).await;
    }

    /// Waits until no event occurs and all files are closed. If that takes too long, requests a reload, which fails and
    /// says why, and continues to wait.
    async fn wait_until_written(&mut self) {
        loop {
            let until = Instant::now() + QUIET_WAIT_MAX;
            while Instant::now() < until && timeout(QUIET_TIME, self.changed.notified()).await.is_ok() {}
            let state = self.shared.open_files.find_open(&self.files.borrow().config, std::time::Instant::now());
            match state {
                OpenState::Closed => return,
                OpenState::Open(left) => {
                    let _ = timeout(left.unwrap_or(WRITE_MAX), self.changed.notified()).await;
                    self.watch_directories();
                }
                OpenState::TooLong => self.submit_reload(false).await,
            }
        }
    }

    /// Waits for the contents of files that have become empty. One that stays empty is accepted after a while.
    async fn wait_for_emptied(&mut self) {
        let until = Instant::now() + WRITE_MAX;
        if !self.has_emptied_file() {
            return;
        }
        while Instant::now() < until && timeout(EMPTIED_QUIET_TIME, self.changed.notified()).await.is_ok() {
            self.wait_until_written().await;
        }
    }

    /// Returns whether a file is empty that had contents when it was last looked at.
    fn has_emptied_file(&self) -> bool {
        let stamps = read_stamps(&self.files.borrow().config);
        stamps.iter().any(|(path, stamp)| is_emptied(self.stamps.get(path), stamp.as_ref()))
    }

    /// Waits while a program that can be seen has a file open for writing. Events do not tell of all: it may write under
    /// another name, and another program may have closed the file in the meantime. Returns whether there was one.
    async fn wait_for_writer(&mut self) -> bool {
        let files = self.files.borrow().config.clone();
        let report_at = Instant::now() + PAUSE_MAX;
        let (mut was_open, mut is_reported) = (false, false);
        while open_files::find_writer(&files).is_some() {
            was_open = true;
            if !is_reported && Instant::now() >= report_at {
                is_reported = true;
                self.submit_reload(false).await;
            }
            // Another config has other files.
            if self.files.has_changed().unwrap_or(true) {
                break;
            }
            tokio::time::sleep(WRITER_INTERVAL).await;
        }
        was_open
    }

    /// Waits until the stamps of the files do not change for a while.
    async fn wait_until_stamps_stay(&self) {
        let until = Instant::now() + WRITE_MAX;
        let mut before = read_stamps(&self.files.borrow().config);
        while Instant::now() < until {
            tokio::time::sleep(POLL_QUIET_TIME).await;
            let after = read_stamps(&self.files.borrow().config);
            if after == before {
                return;
            }
            before = after;
        }
    }

    /// Waits for the reload, so that events during it lead to a single check afterwards.
    async fn submit_reload(&mut self, verify: bool) {
        self.submit(false, verify).await;
    }

    /// Submits a reload or its dry run, and waits for it. Returns whether the files contain what is active.
    async fn submit(&mut self, dry_run: bool, verify: bool) -> bool {
        let (reply, outcome) = oneshot::channel();
        let files = self.files.borrow().config.clone();
        let order = ReloadOrder { trigger: Trigger::File, dry_run, verify, files, token: None };
        if self.jobs.send(ReloadJob { order, reply }).await.is_err() {
            return false;
        }
        let Ok((outcome, contents)) = outcome.await else { return false };
        self.contents = contents;
        matches!(outcome, ReloadOutcome::Unchanged { .. })
    }

    /// Watches the directories that matter now.
    fn watch_directories(&mut self) {
        let Some(events) = &mut self.events else { return };
        let files = self.files.borrow().clone();
        let identify = |files| {
            let directories = watched_directories(files).into_iter();
            directories.filter_map(|dir| Some((directory_id(&std::fs::metadata(&dir).ok()?), dir)))
        };
        let of_config: HashMap<DirectoryId, PathBuf> = identify(&files.config).collect();
        let directories: HashMap<DirectoryId, PathBuf> =
            identify(&files.overrides).chain(of_config.iter().map(|(id, dir)| (*id, dir.clone()))).collect();
        self.armed.retain(|identity, dir| {
            let is_kept = directories.contains_key(identity);
            if !is_kept {
                // Fails if the directory, and with it the watch, is gone.
                let _ = events.unwatch(dir);
                self.shared.open_files.forget_directory(dir);
            }
            is_kept
        });
        // Events name a directory as it was named when the watch began.
        let named = of_config.into_iter().map(|(identity, dir)| self.armed.get(&identity).cloned().unwrap_or(dir));
        *self.config_directories.lock().unwrap_or_else(PoisonError::into_inner) = named.collect();
        let mut failure = None;
        for (identity, dir) in directories {
            if self.armed.contains_key(&identity) {
                continue;
            }
            match events.watch(&dir, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.armed.insert(identity, dir)),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            self.fall_back_to_polling(&error);
        }
    }

    /// Continues with polling only, because events are not available.
    fn fall_back_to_polling(&mut self, error: &notify::Error) {
        if self.shared.watching() == Watching::Events {
            let remedy = match &error.kind {
                notify::ErrorKind::MaxFilesWatch => "; raise the sysctl fs.inotify.max_user_watches",
                notify::ErrorKind::Io(_) => "; raise the sysctl fs.inotify.max_user_instances if it is too low",
                _ => "",
            };
            tracing::warn!(
                "cannot watch the config, looking every {} s instead: {error}{remedy}",
                POLL_INTERVAL.as_secs()
            );
        }
        self.shared.fall_back_to_polling();
    }
}

/// Returns a digest of `files` and their directories.
pub fn digest_contents(files: &[PathBuf]) -> ContentDigest {
    try_digest(files).unwrap_or_default()
}

/// Returns whether no descriptors are left to read with.
pub fn are_unreadable(files: &[PathBuf]) -> bool {
    try_digest(files).is_none()
}

/// Returns the digest; `None` if no descriptors are left to read with.
fn try_digest(files: &[PathBuf]) -> Option<ContentDigest> {
    let mut digest = Sha256::new();
    for path in files_and_directories(files) {
        digest.update(path.as_os_str().as_encoded_bytes());
        digest.update([0]);
        match digest_one(&path, &mut digest) {
            Err(error) if descriptors::is_shortage(&error) => return None,
            Err(error) => digest.update(error.kind().to_string()),
            Ok(()) => {}
        }
    }
    Some(digest.finalize().into())
}

fn read_stamps(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<FileStamp>> {
    files_and_directories(files).into_iter().map(|path| (path.clone(), FileStamp::read(&path).ok())).collect()
}

/// Returns whether a file that had contents is empty now.
fn is_emptied(before: Option<&Option<FileStamp>>, now: Option<&FileStamp>) -> bool {
    let had_contents = before.and_then(Option::as_ref).is_some_and(|stamp| stamp.size > 0);
    had_contents && now.is_some_and(|stamp| stamp.size == 0)
}

/// Returns files and their directories: a new file may match an include pattern.
fn files_and_directories(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let dirs = files.iter().filter_map(|file| Some(std::path::absolute(file).ok()?.parent()?.to_owned()));
    files.iter().cloned().chain(dirs).collect()
}

/// Adds the content of a file, or the names in a directory, to the digest.
fn digest_one(path: &Path, digest: &mut Sha256) -> io::Result<()> {
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        let names: BTreeSet<_> = std::fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        for name in names {
            digest.update(name.as_encoded_bytes());
            digest.update([0]);
        }
    } else if kind.is_file() {
        // Anything else, such as a pipe, could be read only once. A file that exceeds the bound is not read as config
        // either.
        let mut file = config::open_file(path)?.take(config::FILE_SIZE_MAX + 1);
        let mut buffer = vec![0; DIGEST_BUFFER];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                length => digest.update(&buffer[..length]),
            }
        }
    }
    Ok(())
}

/// Returns the directories in which a change can affect one of `files`: where it is written, where it really is, and
/// where each symlink on the way is.
fn watched_directories(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut directories = BTreeSet::new();
    for file in files {
        let Ok(mut path) = std::path::absolute(file) else { continue };
        if path.is_dir() {
            directories.insert(path.clone());
        }
        for _ in 0..MAX_LINKS {
            directories.extend(path.parent().map(Path::to_owned));
            let Some((directory, resolved)) = resolve_first_link(&path) else { break };
            directories.insert(directory);
            path = resolved;
        }
    }
    directories
}

/// Returns the directory of the first symlink on `path`, and `path` with that link resolved.
fn resolve_first_link(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    let (link, target) = prefixes.into_iter().find_map(|prefix| Some((prefix, std::fs::read_link(prefix).ok()?)))?;
    let directory = link.parent()?.to_owned();
    let rest = path.strip_prefix(link).ok()?;
    let mut destination = directory.join(target);
    if !rest.as_os_str().is_empty() {
        destination.push(rest);
    }
    Some((directory, destination))
}

fn directory_id(metadata: &Metadata) -> DirectoryId {
    (metadata.dev(), metadata.ino(), metadata.created().ok())
}

/// Returns whether `file` itself is a mount point, as with `docker run -v ./a.toml:/etc/a.toml`: the mount keeps
/// showing the old file after an editor has replaced it.
pub fn is_mount_point(file: &Path, mountinfo: &str) -> bool {
    let Ok(real) = std::fs::canonicalize(file) else { return false };
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).any(|mount| Path::new(&decode_mount(mount)) == real)
}

/// Decodes spaces and similar characters, which are written as `\040`.
fn decode_mount(mount: &str) -> String {
    let mut parts = mount.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[3..]);
            }
            None => text.push_str(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_behind_links_is_watched_at_every_turn() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        for dir in ["v1/deep", "mount"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        std::fs::write(root.join("v1/deep/a.toml"), "").unwrap();
        symlink("../v1", root.join("mount/..data")).unwrap();
        symlink("..data/deep/a.toml", root.join("mount/a.toml")).unwrap();
        let directories = watched_directories(&[root.join("mount/a.toml")]);
        for expected in ["mount", "mount/../v1/deep"] {
            assert!(directories.contains(&root.join(expected)), "{expected} of {directories:?}");
        }
    }

    #[test]
    fn only_events_in_directories_of_the_config_concern_it() {
        let directories = HashSet::from([PathBuf::from("/etc/gw"), PathBuf::from("/etc/gw/sites")]);
        let event = |paths: &[&str]| {
            let event = notify::Event::new(EventKind::Any);
            Ok(paths.iter().fold(event, |event, path| event.add_path(PathBuf::from(path))))
        };
        for paths in [&["/etc/gw/a.toml"][..], &["/etc/gw"], &["/data/x", "/etc/gw/sites/b.toml"], &[]] {
            assert!(concerns(&event(paths), &directories), "{paths:?}");
        }
        for paths in [&["/data/rows"][..], &["/data"], &["/etc/gw/tenants/rows"], &["/etc"]] {
            assert!(!concerns(&event(paths), &directories), "{paths:?}");
        }
        let lost = event(&["/data/rows"]).map(|event| event.set_flag(notify::event::Flag::Rescan));
        assert!(concerns(&lost, &directories) && concerns(&Err(notify::Error::generic("x")), &directories));
    }

    #[test]
    fn a_link_to_itself_ends() {
        let tmp = tempfile::tempdir().unwrap();
        symlink("a", tmp.path().join("a")).unwrap();
        assert!(watched_directories(&[tmp.path().join("a")]).len() <= 2);
    }

    #[test]
    fn mount_points_are_compared_unescaped() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().canonicalize().unwrap().join("with space.toml");
        std::fs::write(&file, "").unwrap();
        let line = |path: &str| format!("36 35 98:0 /x {path} rw,noatime master:1 - ext3 /dev/root rw\n");
        let escaped = file.display().to_string().replace(' ', "\\040");
        assert!(is_mount_point(&file, &line(&escaped)));
        assert!(!is_mount_point(&file, &line(&tmp.path().display().to_string())));
    }
}
