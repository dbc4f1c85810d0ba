//! Whether a folder is on a file system of this machine. Only there is it known that a file which the kernel has in
//! memory opens at once: opening a file of a network file system may ask its server, and waits if that is gone.

use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{ResolveFlags, fstatfs};

/// How long the last look counts. Somebody may mount another file system, or point a link to one.
const LOOK_LIFETIME: Duration = Duration::from_secs(10);
/// Names that the kernel finds without waiting, on the file system of the folder alone.
pub const CACHED: ResolveFlags = ResolveFlags::CACHED.union(ResolveFlags::NO_XDEV);

/// The numbers of file systems on disks and in memory (statfs(2)). An overlay is that of a container.
const LOCAL: [u64; 11] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
];

/// The beginning of the time that [`LocalLook`] counts.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What the last look has found.
#[derive(Debug, Default)]
pub struct LocalLook {
    /// Milliseconds since [`START`] until the look, plus 1, if the folder was on a file system of this machine, or if it was
    /// not. 0: there was no such look.
    local: AtomicU64,
    other: AtomicU64,
}

/// It is no part of the option: two folders are equal, whatever has been seen of them.
impl PartialEq for LocalLook {
    fn eq(&self, _: &LocalLook) -> bool {
        true
    }
}

impl Eq for LocalLook {}

impl LocalLook {
    /// Looks at the file system of the open folder, which may wait. The server of a network file system is not asked for
    /// each request.
    pub fn look(&self, folder: &OwnedFd) {
        if is_recent(&self.other) {
            return;
        }
        let is_local = fstatfs(folder).is_ok_and(|stat| is_local(stat.f_type));
        let (now, never) = (now_ms() + 1, 0);
        let (local, other) = if is_local { (now, never) } else { (never, now) };
        self.local.store(local, Ordering::Relaxed);
        self.other.store(other, Ordering::Relaxed);
    }

    /// Returns whether the folder has lately been on a file system of this machine.
    pub fn is_local(&self) -> bool {
        is_recent(&self.local)
    }
}

fn is_recent(look: &AtomicU64) -> bool {
    let at = look.load(Ordering::Relaxed);
    at > 0 && u128::from(now_ms().saturating_sub(at)) < LOOK_LIFETIME.as_millis()
}

/// Returns whether a file system with this number is one of this machine. The type of the number is not the same
/// everywhere.
fn is_local(number: impl TryInto<i64>) -> bool {
    number.try_into().is_ok_and(|number: i64| LOCAL.contains(&(number.cast_unsigned() & 0xffff_ffff)))
}

fn now_ms() -> u64 {
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::open::open_folder;

    #[test]
    fn disks_and_memory_are_of_this_machine_and_the_network_is_not() {
        for (number, expected) in
            [(0xef53_i64, true), (0x9123_683e, true), (0x6969, false), (0x6573_5546, false), (0, false)]
        {
            assert_eq!(is_local(number), expected, "{number:#x}");
        }
        // A number that is negative where the kernel's type has 32 bits.
        assert!(is_local(0x9123_683e_u32.cast_signed()));
    }

    #[test]
    fn a_look_counts_for_a_while() {
        let (look, proc) = (LocalLook::default(), open_folder("/proc".as_ref(), ResolveFlags::empty()).unwrap());
        assert!(!look.is_local(), "nobody has looked");
        look.local.store(now_ms() + 1, Ordering::Relaxed);
        assert!(look.is_local());
        look.look(&proc);
        assert!(!look.is_local(), "the kernel makes the files of /proc when they are read");
        let temporary = open_folder(&std::env::temp_dir(), ResolveFlags::empty()).unwrap();
        look.look(&temporary);
        assert!(!look.is_local(), "the other file system was seen just now");
    }
}
