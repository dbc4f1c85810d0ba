//! Runs a gateway at another time, by preloading the library of `faketime`.

use std::path::Path;
use std::process::Command;

/// Removes the shared memory of processes that have ended. The library fails in a process whose ID one of them had.
fn remove_stale_memory() {
    let Ok(left) = std::fs::read_dir("/dev/shm") else { return };
    for file in left.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let of = ["faketime_shm_", "sem.faketime_sem_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        if of.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Returns the environment variables that shift the time of a process by an offset such as `+2h`.
pub fn clock(offset: &str) -> Vec<(String, String)> {
    variables(&[("FAKETIME", offset)])
}

/// Returns the environment variables for an offset that the process reads from the file at `path`, which may change.
pub fn clock_from_file(path: &Path) -> Vec<(String, String)> {
    variables(&[("FAKETIME_TIMESTAMP_FILE", path.to_str().unwrap()), ("FAKETIME_NO_CACHE", "1")])
}

fn variables(own: &[(&str, &str)]) -> Vec<(String, String)> {
    remove_stale_memory();
    let output = Command::new("faketime").args(["-f", "+0s", "env"]).output();
    let output = output.expect("faketime does not start; install it: apt-get install faketime");
    let text = String::from_utf8(output.stdout).unwrap();
    let library = text.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")).expect("faketime preloads a library");
    let common = [("LD_PRELOAD", library), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    common.iter().chain(own).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
