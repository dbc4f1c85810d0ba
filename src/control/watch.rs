//! Notices edits of the config files, however they are saved: in place, by rename, by an editor's
//! backup dance, by the swap of a symlink. Directories are watched rather than files, any event
//! means "look again", contents decide, and a slow poll covers what sends no events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::job::{Contents, Job, ReloadOrder, Trigger};
use super::shared::{SharedState, Watching};
use crate::config;
use crate::descriptors;

/// The control thread's end of the watcher.
pub struct Watch {
    files: watch::Sender<Vec<PathBuf>>,
}

struct Watcher {
    files: watch::Receiver<Vec<PathBuf>>,
    jobs: mpsc::Sender<Job>,
    shared: Arc<SharedState>,
    /// Rung by the system's events, from a thread of `notify`.
    bell: Arc<Notify>,
    events: Option<RecommendedWatcher>,
    armed: HashMap<Identity, PathBuf>,
    stats: BTreeMap<PathBuf, Option<Stat>>,
    /// What the last reload asked for here has read.
    contents: Contents,
}

/// Tells a directory from another of the same name; the birth time because inode numbers return.
type Identity = (u64, u64, Option<SystemTime>);
/// Device, inode, size, modification time in seconds and nanoseconds.
type Stat = (u64, u64, u64, i64, i64);

/// A save is over when nothing happened for this long.
const QUIET: Duration = Duration::from_millis(100);
/// Events that never pause are looked at after this long all the same.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_secs(5);
/// As many symlinks as Linux follows.
const MAX_LINKS: usize = 40;

impl Watch {
    /// Watches `files` and sends a job when they may have changed.
    pub fn start(files: Vec<PathBuf>, jobs: mpsc::Sender<Job>, shared: Arc<SharedState>) -> Watch {
        let (sender, receiver) = watch::channel(files);
        let bell = Arc::new(Notify::new());
        let mut watcher = Watcher {
            files: receiver,
            jobs,
            shared,
            bell: bell.clone(),
            events: None,
            armed: HashMap::new(),
            stats: BTreeMap::new(),
            contents: Contents::default(),
        };
        match notify::recommended_watcher(move |event| ring(&bell, &event)) {
            Ok(events) => watcher.events = Some(events),
            Err(error) => watcher.degrade(&error),
        }
        if let Err(error) = follow(watcher) {
            tracing::error!(%error, "the config files are not watched for edits");
        }
        Watch { files: sender }
    }

    /// The files of the config loaded last, or of the one that failed to load.
    pub fn retarget(&self, files: &[PathBuf]) {
        self.files.send_if_modified(|known| {
            let differs = known.as_slice() != files;
            if differs {
                *known = files.to_vec();
            }
            differs
        });
    }
}

/// Runs the watcher on a thread of its own, for which a file system that does not answer is no harm.
fn follow(watcher: Watcher) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let run = move || runtime.block_on(watcher.run());
    std::thread::Builder::new().name("watch".to_owned()).spawn(run).map(drop)
}

/// Reading a file is an event too, and we read: only writes count.
fn ring(bell: &Notify, event: &notify::Result<notify::Event>) {
    let idle = event.as_ref().is_ok_and(|event| {
        let read = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
        read && !event.need_rescan()
    });
    if !idle {
        bell.notify_one();
    }
}

impl Watcher {
    async fn run(mut self) {
        self.follow_files().await;
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let bell = self.bell.clone();
        loop {
            tokio::select! {
                () = bell.notified() => quiet(&bell).await,
                _ = ticks.tick() => if !self.stats_changed() { continue },
                gone = self.files.changed() => {
                    if gone.is_err() {
                        return;
                    }
                    self.follow_files().await;
                    continue;
                }
            }
            self.arm();
            let Some(seen) = self.look() else {
                // Nothing is known of them: an edit may be among what could not be read.
                tokio::time::sleep(PATIENCE).await;
                bell.notify_one();
                continue;
            };
            let edited = seen != self.contents;
            if self.shared.take_overtaken() || edited {
                self.submit(!edited).await;
            }
        }
    }

    /// Takes a new list of files. Edits between their load and now went unseen, so the config is
    /// loaded once more.
    async fn follow_files(&mut self) {
        self.files.mark_unchanged();
        self.arm();
        self.stats = stats(&self.files.borrow());
        self.submit(true).await;
    }

    /// Waits for the reload, so that what happens meanwhile becomes one next look.
    async fn submit(&mut self, verify: bool) {
        let (reply, outcome) = oneshot::channel();
        let files = self.files.borrow().clone();
        let order = ReloadOrder { trigger: Trigger::File, dry_run: false, verify, files };
        if self.jobs.send(Job { order, reply }).await.is_ok()
            && let Ok((_, contents)) = outcome.await
        {
            self.contents = contents;
        }
    }

    /// Watches the directories that matter now.
    fn arm(&mut self) {
        let Some(events) = &mut self.events else { return };
        let dirs = homes(&self.files.borrow());
        let wanted: HashMap<Identity, PathBuf> =
            dirs.into_iter().filter_map(|dir| Some((identity(&std::fs::metadata(&dir).ok()?), dir))).collect();
        self.armed.retain(|identity, dir| {
            let kept = wanted.contains_key(identity);
            if !kept {
                // Fails when the directory is gone, and its watch with it.
                let _ = events.unwatch(dir);
            }
            kept
        });
        let mut failure = None;
        for (identity, dir) in wanted {
            if self.armed.contains_key(&identity) {
                continue;
            }
            match events.watch(&dir, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.armed.insert(identity, dir)),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            self.degrade(&error);
        }
    }

    /// Without events, the poll goes on alone.
    fn degrade(&mut self, error: &notify::Error) {
        if self.shared.watching() == Watching::Events {
            let remedy = match &error.kind {
                notify::ErrorKind::MaxFilesWatch => "; raise the sysctl fs.inotify.max_user_watches",
                notify::ErrorKind::Io(_) => "; raise the sysctl fs.inotify.max_user_instances if it is too low",
                _ => "",
            };
            tracing::warn!("cannot watch the config, looking every {} s instead: {error}{remedy}", POLL.as_secs());
        }
        self.shared.fall_back_to_polling();
    }

    fn stats_changed(&self) -> bool {
        self.stats != stats(&self.files.borrow())
    }

    /// Remembers the stats and digests the contents; `None` where no file can be opened for now, which says nothing of
    /// them.
    fn look(&mut self) -> Option<Contents> {
        let files = self.files.borrow().clone();
        self.stats = stats(&files);
        digest(&files)
    }
}

/// A digest of all that `files` and the directories they are in hold now.
pub fn contents(files: &[PathBuf]) -> Contents {
    digest(files).unwrap_or_default()
}

/// There are no descriptors to read them by.
pub fn are_unreadable(files: &[PathBuf]) -> bool {
    digest(files).is_none()
}

/// `None` without descriptors to read them by.
fn digest(files: &[PathBuf]) -> Option<Contents> {
    let mut digest = Sha256::new();
    for path in places(files) {
        digest.update(path.as_os_str().as_encoded_bytes());
        digest.update([0]);
        match digest_one(&path, &mut digest) {
            Err(error) if descriptors::are_short(&error) => return None,
            Err(error) => digest.update(error.kind().to_string()),
            Ok(()) => {}
        }
    }
    Some(digest.finalize().into())
}

async fn quiet(bell: &Notify) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && timeout(QUIET, bell.notified()).await.is_ok() {}
}

fn stats(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<Stat>> {
    let stat =
        |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()));
    places(files).into_iter().map(|path| (path.clone(), stat(&path))).collect()
}

/// Files and the directories they are in: a new file in one may match an include pattern.
fn places(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let dirs = files.iter().filter_map(|file| Some(std::path::absolute(file).ok()?.parent()?.to_owned()));
    files.iter().cloned().chain(dirs).collect()
}

/// The content of a file, the names in a directory.
fn digest_one(path: &Path, digest: &mut Sha256) -> io::Result<()> {
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        let names: BTreeSet<_> = std::fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        for name in names {
            digest.update(name.as_encoded_bytes());
            digest.update([0]);
        }
    } else if kind.is_file() {
        // Anything else, a pipe for one, could be read only once. What is beyond the bound is not read as config either.
        io::copy(&mut config::open_file(path)?.take(config::FILE_SIZE_MAX + 1), digest)?;
    }
    Ok(())
}

/// The directories in which a change can change one of `files`: where it is written to be, where
/// it really is, and where each symlink on the way lies.
fn homes(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut homes = BTreeSet::new();
    for file in files {
        let Ok(mut path) = std::path::absolute(file) else { continue };
        if path.is_dir() {
            homes.insert(path.clone());
        }
        for _ in 0..MAX_LINKS {
            homes.extend(path.parent().map(Path::to_owned));
            let Some((home, resolved)) = follow_first_link(&path) else { break };
            homes.insert(home);
            path = resolved;
        }
    }
    homes
}

/// The directory of the first symlink on `path`, and `path` with that link resolved.
fn follow_first_link(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    let (link, target) = prefixes.into_iter().find_map(|prefix| Some((prefix, std::fs::read_link(prefix).ok()?)))?;
    let home = link.parent()?.to_owned();
    let rest = path.strip_prefix(link).ok()?;
    let mut resolved = home.join(target);
    if !rest.as_os_str().is_empty() {
        resolved.push(rest);
    }
    Some((home, resolved))
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.created().ok())
}

/// True when `file` itself is mounted, as `docker run -v ./a.toml:/etc/a.toml` does: the mount
/// keeps showing the old file after an editor has put a new one in its place.
pub fn is_mount_point(file: &Path, mountinfo: &str) -> bool {
    let Ok(real) = std::fs::canonicalize(file) else { return false };
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).any(|mount| Path::new(&unescape(mount)) == real)
}

/// Spaces and the like are written `\040` there.
fn unescape(mount: &str) -> String {
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
        let homes = homes(&[root.join("mount/a.toml")]);
        for expected in ["mount", "mount/../v1/deep"] {
            assert!(homes.contains(&root.join(expected)), "{expected} of {homes:?}");
        }
    }

    #[test]
    fn a_link_to_itself_ends() {
        let tmp = tempfile::tempdir().unwrap();
        symlink("a", tmp.path().join("a")).unwrap();
        assert!(homes(&[tmp.path().join("a")]).len() <= 2);
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
