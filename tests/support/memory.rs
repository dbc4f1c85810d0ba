//! Measures how much memory a process has allocated, without the pages of its files: the pages of a program are loaded
//! when its code first runs, and how many are loaded at a time depends on the machine.

use std::fs;

/// Measures the growth of a process since a moment.
pub struct MemoryWatch {
    process: u32,
    before: u64,
}

impl MemoryWatch {
    /// Starts the measurement and resets the peak: a process returns the memory that it needed for its start only
    /// later.
    pub fn start(process: u32) -> MemoryWatch {
        // Without the permission to reset it, growth counts from the old peak.
        let _ = fs::write(format!("/proc/{process}/clear_refs"), "5");
        MemoryWatch { process, before: own_peak(process) }
    }

    /// Returns by how many bytes the process has grown.
    pub fn grown(&self) -> u64 {
        field(self.process, "RssAnon").saturating_sub(self.before)
    }

    /// Returns the largest growth so far, in bytes.
    pub fn peak(&self) -> u64 {
        own_peak(self.process).saturating_sub(self.before)
    }
}

/// Returns the largest memory of the process without its files, in bytes.
fn own_peak(process: u32) -> u64 {
    field(process, "VmHWM").saturating_sub(field(process, "RssFile"))
}

/// Returns a field of `/proc/PID/status`, such as `VmRSS`, in bytes.
pub fn field(process: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {field} in\n{status}")) * 1024
}
