//! Decisions are pure functions: time and random numbers are arguments, and there is no I/O.

use super::source::{Source, crate_files};

const PURE: [&str; 6] = [
    "src/limiting/algorithm/",
    "src/limiting/limit/mod.rs",
    "src/limiting/key/mod.rs",
    "src/limiting/limit/when.rs",
    "src/route/",
    "src/upstream/",
];

/// I/O, clocks and random numbers.
const FORBIDDEN: [&str; 14] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "tokio",
    "rand",
    "limiting::clock",
];

/// Returns the impure items that a file names.
fn impurities(file: &Source) -> Vec<String> {
    let outside = file.paths(&["std", "tokio", "rand"]);
    let named = outside.into_iter().chain(file.named()).map(|path| path.join("::"));
    let under = |path: &String| {
        FORBIDDEN.iter().any(|way| path == way || path.strip_prefix(way).is_some_and(|rest| rest.starts_with("::")))
    };
    // By a name that was brought in.
    let clocks = file.words.windows(3).filter(|words| {
        matches!(words[0].as_str(), "Instant" | "SystemTime" | "Timestamp" | "Zoned")
            && words[1] == "::"
            && words[2] == "now"
    });
    named.filter(under).chain(clocks.map(|words| words.concat())).collect()
}

#[test]
fn decisions_read_no_clock_and_do_no_io() {
    let files = crate_files();
    for pure in PURE {
        let mut found = false;
        for file in files.iter().filter(|file| file.path.starts_with(pure)) {
            found = true;
            let wrong = impurities(file);
            assert!(wrong.is_empty(), "{} uses {wrong:?}; let the caller do that and pass the result", file.path);
        }
        assert!(found, "{pure} does not exist; name the file that replaced it");
    }
}
