//! Sends the same requests to a real nginx and to the imported config, whose regular expressions have constructs that
//! mean something else in Rust, or that Rust lacks.

use super::differential::{Nginx, Request, get, upstream};
use super::output::import;
use crate::support::gateway::Gateway;

/// A regular expression of a location after `~` or `~*`, and paths. Such paths get 204.
const LOCATIONS: [(&str, &[&str]); 41] = [
    // Operations on sets in Rust.
    ("~ [&&|]", &["/a&b", "/a%7Cb", "/ab"]),
    ("~ ^/[a-z&&]+$", &["/a", "/&", "/A"]),
    ("~ ^/[^a-z&&]+$", &["/A", "/&", "/a"]),
    ("~ ^/[+--]x", &["/+x", "/,x", "/-x", "/.x"]),
    ("~ ^/[a~~]x", &["/ax", "/~x", "/bx"]),
    // Brackets in classes.
    ("~ ^/[a[b]]$", &["/a]", "/%5B]", "/a", "/b]"]),
    ("~ ^/[]a]$", &["/%5D", "/a", "/b"]),
    ("~ ^/[^]a]$", &["/%5D", "/a", "/b"]),
    ("~ ^/[[:alpha:]-]$", &["/a", "/-", "/4", "/%C3%A9"]),
    (r"~ ^/[\]\\\\x-]$", &["/%5D", "/-", "/a"]),
    // nginx compares bytes.
    ("~ ^/é+$", &["/%C3%A9", "/%C3%A9%C3%A9", "/%C3%A9%A9"]),
    ("~ ^/aé?$", &["/a", "/a%C3", "/a%C3%A9"]),
    ("~ ^/[é]$", &["/%C3%A9", "/%C3", "/%A9"]),
    ("~ ^/.$", &["/a", "/%40", "/%C3%A9"]),
    (r"~ ^/\w$", &["/a", "/_", "/%C3%A9", "/-"]),
    (r"~ ^/\d$", &["/4", "/%D9%A3"]),
    (r"~ ^/a\sb$", &["/a%20b", "/a%C2%A0b"]),
    (r"~ ^/\xC3", &["/%C3%A9", "/x"]),
    ("~* ^/k$", &["/K", "/k", "/%E2%84%AA"]),
    ("~* ^/és$", &["/%C3%A9S", "/%C3%89s", "/%C3%A9%C5%BF"]),
    // Other spellings of what both have.
    (r"~ \A/x\z", &["/x", "/xy"]),
    (r"~ ^/x\Z", &["/x", "/xy"]),
    (r"~ ^/\_\@", &["/_@", "/_%40"]),
    ("~ (?i)^/admin", &["/ADMIN", "/admin/x"]),
    ("~ ^/(?<id>a+?)(?:b|)$", &["/aab", "/a", "/b"]),
    // Refused.
    ("~ ^/a++ab$", &["/aaab", "/ab"]),
    ("~ ^/(?>a|ab)c$", &["/abc", "/ac"]),
    ("~ ^/(?!api)", &["/api", "/x"]),
    (r"~ ^/(.)\1$", &["/aa", "/ab"]),
    (r"~ \badmin\b", &["/admin", "/xadmin"]),
    ("~ ^/a(?i)b", &["/aB", "/AB"]),
    ("~ \"^/(?x) a b\"", &["/ab", "/a%20b"]),
    ("~ ^/(*ACCEPT)x", &["/", "/y"]),
    (r"~ ^/\h", &["/%20", "/h"]),
    (r"~ ^/\Q.x\E", &["/.x", "/ax"]),
    (r#"~ "^/\x{61}$""#, &["/a", "/x"]),
    (r"~ ^/\141$", &["/a", "/1"]),
    (r"~ ^/a\Kb", &["/ab", "/b"]),
    (r"~ ^/[[:^alpha:]]$", &["/4", "/a"]),
    (r#"~ "^/a{,2}$""#, &["/a{,2}", "/a"]),
    (r"~ ^/(?(?=a)a|b)$", &["/a", "/b", "/c"]),
];
/// How many of them are exact.
const EXACT_LOCATIONS: usize = 25;

/// Entries of a `map` of `User-Agent`, and values. Such clients are limited.
const ENTRIES: [(&str, &[&str]); 23] = [
    ("~*bot", &["xBOT/1", "curl"]),
    ("~^Mozilla/5[.]0 \\(.*\\)$", &["Mozilla/5.0 (X11; é)", "Mozilla/5.0"]),
    ("~.", &["x", "é"]),
    ("~^[^/]+$", &["é", "a/b"]),
    ("~é", &["xéy", "xèy", "xÉ"]),
    ("~*semrush", &["SEMRUSH", "\u{17f}emru\u{17f}h"]),
    ("~*^k$", &["K", "\u{212a}"]),
    (r"~^v\d+$", &["v12", "v\u{663}"]),
    (r"~^\S+$", &["é", "a b"]),
    (r"~^\W+$", &["éé", "é1"]),
    ("~*[a-z&&]bot", &["xbot", "&BOT", "1bot"]),
    ("~[+--]", &["a-b", "a,b", "a.b"]),
    ("~^[a~~]$", &["~", "a", "b"]),
    ("~*^É$", &["É", "é"]),
    ("É", &["É", "é"]),
    ("gold", &["GOLD", "golden"]),
    // Refused.
    ("~^.{4}$", &["éé", "abcd"]),
    ("~*^.*é+.*$", &["é", "\u{269}"]),
    ("~[é]", &["è", "é"]),
    (r"~\bbot\b", &["a bot", "robots"]),
    ("~a++ab", &["aaab", "ab"]),
    ("~(?!x)y", &["y", "xy"]),
    (r"~^\x{61}", &["a", "b"]),
];
const EXACT_ENTRIES: usize = 16;

/// Imports each server by itself. Returns which have no comments.
fn import_each(http: &[String]) -> Vec<bool> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nginx.conf");
    let imported = http.iter().map(|text| {
        std::fs::write(&path, text).unwrap();
        let output = import("nginx", &path);
        let code = output.status.code().unwrap();
        assert!(matches!(code, 0 | 3), "{code}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        code == 0
    });
    imported.collect()
}

/// Sends requests to nginx and to the import of all servers at once. Returns what differs. A route may be closed.
fn compare(http: &[String], requests: impl Fn(usize) -> Vec<Request>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nginx.conf");
    std::fs::write(&path, http.concat()).unwrap();
    let config = String::from_utf8(import("nginx", &path).stdout).unwrap();
    let nginx = Nginx::start(dir.path(), &http.concat());
    let gateway = Gateway::with_config(&format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    let mut differ = Vec::new();
    for (number, text) in http.iter().enumerate() {
        for request in requests(number) {
            let [theirs, ours] = [nginx.addr, gateway.addr].map(|addr| request.send(addr));
            // What the server behind them receives is for other tests.
            if ours[..3] != theirs[..3] && !ours.starts_with("501") {
                differ.push(format!("{text}: {request:?}: ours {ours}, nginx's {theirs}"));
            }
        }
    }
    differ
}

/// A host for each server.
fn host(number: usize) -> &'static str {
    Box::leak(format!("s{number}.test").into_boxed_str())
}

#[test]
fn locations_match_the_same_paths() {
    let upstream = upstream();
    let server = |(number, (location, _)): (usize, &(&str, &[&str]))| {
        format!(
            "server {{ listen 127.0.0.1:0; server_name {}; location {location} {{ return 204; }} location / {{ proxy_pass http://{}; }} }}\n",
            host(number),
            upstream.addr
        )
    };
    let http: Vec<String> = LOCATIONS.iter().enumerate().map(server).collect();
    let exact = import_each(&http);
    let expected: Vec<bool> = (0..LOCATIONS.len()).map(|number| number < EXACT_LOCATIONS).collect();
    assert_eq!(exact, expected);
    let differ = compare(&http, |number| LOCATIONS[number].1.iter().map(|path| get(path).host(host(number))).collect());
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn maps_select_the_same_values() {
    let upstream = upstream();
    let server = |(number, (entry, _)): (usize, &(&str, &[&str]))| {
        format!(
            "map $http_user_agent $k{number} {{ default ''; \"{entry}\" $binary_remote_addr; }} limit_req_zone $k{number} zone=z{number}:64k rate=1r/m;\n\
             server {{ listen 127.0.0.1:0; server_name {}; location / {{ limit_req zone=z{number}; proxy_pass http://{}; }} }}\n",
            host(number),
            upstream.addr
        )
    };
    let http: Vec<String> = ENTRIES.iter().enumerate().map(server).collect();
    let exact = import_each(&http);
    let expected: Vec<bool> = (0..ENTRIES.len()).map(|number| number < EXACT_ENTRIES).collect();
    assert_eq!(exact, expected);
    let requests = |number: usize| {
        let (_, values) = ENTRIES[number];
        // Each value comes twice, from a client of its own, so that a limit shows.
        let twice = (2..).zip(values).flat_map(|(from, value)| {
            let line: &'static str = Box::leak(format!("user-agent: {value}\r\n").into_boxed_str());
            [get("/").host(host(number)).from(from).with(line); 2]
        });
        twice.collect()
    };
    let differ = compare(&http, requests);
    assert!(differ.is_empty(), "{differ:#?}");
}
