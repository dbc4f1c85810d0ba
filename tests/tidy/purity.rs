//! What decides is arithmetic: time and randomness are arguments, and nothing is read or written.

use super::source::{Source, crate_files};

const PURE: [&str; 6] =
    ["src/limit/algo/", "src/limit/limits.rs", "src/limit/key.rs", "src/limit/when.rs", "src/route/", "src/upstream/"];

/// Ways out of a process, and to its clocks and its chance.
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
    "limit::clock",
];

/// What a file names of it.
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
            assert!(
                wrong.is_empty(),
                "{} uses {wrong:?}: let its caller do that, and pass in what comes of it",
                file.path
            );
        }
        assert!(found, "{pure} is gone: name what took its place");
    }
}
