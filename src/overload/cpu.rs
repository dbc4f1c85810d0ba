//! CPU time of the process or its cgroup, and the load average of the system. Reads `/sys/fs/cgroup` and `/proc`, which
//! do not block.

#![allow(clippy::cast_precision_loss, reason = "numbers of CPUs and quotas are small")]

use std::fs;
use std::path::{Path, PathBuf};

use procfs::process::Process;

use crate::overload::sampler::CpuTime;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Bound of the CPU time that the process may use, and how it is read.
#[derive(Debug, PartialEq)]
pub enum CpuMeter {
    /// A cgroup with a quota: all its processes share it. The file has the CPU time that they used.
    Cgroup { usage: CgroupUsage, cpus: f64 },
    /// No quota: the CPU time of this process, of the CPUs that it may run on.
    Process { cpus: f64 },
}

/// The file with the CPU time of a cgroup.
#[derive(Debug, PartialEq)]
pub enum CgroupUsage {
    /// Version 2: `usage_usec` in `cpu.stat`.
    Stat(PathBuf),
    /// Version 1: nanoseconds in `cpuacct.usage`.
    Nanoseconds(PathBuf),
}

impl CpuMeter {
    /// Finds the tightest quota of the process. Without one, the CPUs that it may run on bound it.
    pub fn find() -> CpuMeter {
        let cpus = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match find_cgroup(Path::new(CGROUPS), &groups) {
            Some((usage, quota)) if quota < cpus => CpuMeter::Cgroup { usage, cpus: quota },
            _ => CpuMeter::Process { cpus },
        }
    }

    /// Returns the CPU time used so far. `None` if the system does not report it.
    pub fn read(&self) -> Option<CpuTime> {
        match self {
            CpuMeter::Cgroup { usage, cpus } => Some(CpuTime { used_us: usage.read_us()?, cpus: *cpus }),
            CpuMeter::Process { cpus } => {
                let stat = Process::myself().and_then(|process| process.stat()).ok()?;
                let used_us = (stat.utime + stat.stime).saturating_mul(1_000_000) / procfs::ticks_per_second().max(1);
                Some(CpuTime { used_us, cpus: *cpus })
            }
        }
    }
}

impl CgroupUsage {
    fn read_us(&self) -> Option<u64> {
        match self {
            CgroupUsage::Stat(path) => {
                let text = fs::read_to_string(path).ok()?;
                text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
            }
            CgroupUsage::Nanoseconds(path) => {
                fs::read_to_string(path).ok()?.trim().parse::<u64>().ok().map(|nanoseconds| nanoseconds / 1000)
            }
        }
    }
}

/// Returns the load average of one minute. In a container, it covers the entire machine.
pub fn read_load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Returns the cgroup with the tightest CPU quota among those of the process and their parents, and the quota in CPUs.
/// `groups` is the text of `/proc/self/cgroup`, `root` the directory of the cgroups.
fn find_cgroup(root: &Path, groups: &str) -> Option<(CgroupUsage, f64)> {
    let mut tightest: Option<(CgroupUsage, f64)> = None;
    let mut add = |found: Option<(CgroupUsage, f64)>| {
        if let Some((usage, quota)) = found
            && tightest.as_ref().is_none_or(|(_, least)| quota < *least)
        {
            tightest = Some((usage, quota));
        }
    };
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // In a container, the path may be the one on the host. The mounted root is then the container's own group.
        let parents = Path::new(path.trim_start_matches('/')).ancestors();
        let is_cpu = controllers.split(',').any(|controller| controller == "cpu");
        for parent in parents {
            match controllers {
                "" => add(read_quota_v2(&root.join(parent))),
                _ if is_cpu => add(read_quota_v1(root, parent)),
                _ => {}
            }
        }
    }
    tightest
}

fn read_quota_v2(group: &Path) -> Option<(CgroupUsage, f64)> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some((CgroupUsage::Stat(group.join("cpu.stat")), quota_cpus(quota, period)?))
}

fn read_quota_v1(root: &Path, group: &Path) -> Option<(CgroupUsage, f64)> {
    let read = |name| fs::read_to_string(root.join("cpu").join(group).join(name)).ok();
    let cpus = quota_cpus(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())?;
    Some((CgroupUsage::Nanoseconds(root.join("cpuacct").join(group).join("cpuacct.usage")), cpus))
}

/// Returns the CPUs of a quota; `None` if there is none (`max`, -1).
fn quota_cpus(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(path)).unwrap();
        files.iter().for_each(|(name, text)| fs::write(root.join(path).join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_quota_of_all_parents_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        group(root, "a", &[("cpu.max", "50000 100000\n"), ("cpu.stat", "usage_usec 1234567\nuser_usec 1\n")]);
        group(root, "a/b", &[("cpu.max", "max 100000\n")]);
        group(root, "a/b/c", &[("cpu.max", "150000 100000\n")]);
        let (usage, quota) = find_cgroup(root, "0::/a/b/c\n").unwrap();
        assert_eq!((usage.read_us(), quota), (Some(1_234_567), 0.5));
        assert_eq!(find_cgroup(root, "0::/unknown\n"), None);
        assert_eq!(find_cgroup(root, "nonsense\n\n::\n"), None);
        // In a container, the root of the mount is the container's group, whatever the path.
        group(root, "", &[("cpu.max", "200000 100000\n")]);
        assert_eq!(find_cgroup(root, "0::/kubepods/pod7\n").unwrap().1, 2.0);
    }

    #[test]
    fn version_1_has_quota_and_usage_in_two_trees() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        group(root, "cpu/x", &[("cpu.cfs_quota_us", "25000\n"), ("cpu.cfs_period_us", "100000\n")]);
        group(root, "cpuacct/x", &[("cpuacct.usage", "5000000\n")]);
        let (usage, quota) = find_cgroup(root, "4:memory:/x\n1:cpu,cpuacct:/x\n").unwrap();
        assert_eq!((usage.read_us(), quota), (Some(5_000), 0.25));
        group(root, "cpu/x", &[("cpu.cfs_quota_us", "-1\n")]);
        assert_eq!(find_cgroup(root, "1:cpu:/x\n"), None);
    }

    #[test]
    fn this_machine_tells_its_cpu_time_and_load() {
        let meter = CpuMeter::find();
        let before = meter.read().unwrap();
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 60 {
            std::hint::spin_loop();
        }
        let after = meter.read().unwrap();
        assert!(after.used_us > before.used_us && after.cpus > 0.0, "{before:?} {after:?}");
        assert!(read_load_average().is_some_and(|load| load >= 0.0));
    }
}
