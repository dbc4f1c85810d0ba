//! Attempts to read something else than a file of the folder, or to stop the gateway, as lists of vulnerabilities have them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{FALLBACK, ROUTES, site};
use crate::support::client::get;
use crate::support::frames::{END_HEADERS, END_STREAM, StreamEnd, Wire, headers, request};
use crate::support::gateway::Gateway;

/// Targets that must lead to no file: those of traversal, encodings, hidden files, links, special files and odd names.
const TARGETS: &[&str] = &[
    // Traversal: CVE-2021-41773, CVE-2021-42013, CVE-2018-1271, CVE-2017-14849 and their like.
    "/raw/../secret.txt",
    "/raw/../../secret.txt",
    "/raw/../dist-backup/secret.txt",
    "/raw/..",
    "/raw/docs/../../../secret.txt",
    "/raw/.%2e/secret.txt",
    "/raw/%2e%2e/secret.txt",
    "/raw/%2e%2e%2fsecret.txt",
    "/raw/..%2fsecret.txt",
    "/raw/..%2Fsecret.txt",
    "/raw/docs/..%2f..%2f..%2fsecret.txt",
    "/raw/%252e%252e/secret.txt",
    "/raw/%252e%252e%252fsecret.txt",
    "/raw/.%%32%65/secret.txt",
    "/raw/%%32%65%%32%65/secret.txt",
    "/raw/..%5csecret.txt",
    "/raw/..\\secret.txt",
    "/raw/%5c..%5csecret.txt",
    "/raw/....//secret.txt",
    "/raw/..;/secret.txt",
    "/raw/..%3b/secret.txt",
    "/raw/.;/../secret.txt",
    "/raw/%c0%ae%c0%ae/secret.txt",
    "/raw/%c0%ae%c0%ae%c0%afsecret.txt",
    "/raw/%e0%80%ae%e0%80%ae/secret.txt",
    "/raw/%uff0e%uff0e/secret.txt",
    "/raw//../secret.txt",
    "/raw/docs//..//..//../secret.txt",
    "/raw../secret.txt",
    "/raw..%2fsecret.txt",
    "/raw%2f..%2fsecret.txt",
    "/raw-backup/secret.txt",
    "/raw/%2fetc/passwd",
    "/raw//etc/passwd",
    "/raw/%00",
    "/raw/../secret.txt%00.html",
    "/raw/index.html%00.txt",
    "/raw/index.html%0a",
    "/raw/index.html%20",
    "/raw/index.html.",
    "/raw/index.html::$DATA",
    "/raw/index.html/.",
    "/raw/index.html/..%2f..%2fsecret.txt",
    "/raw/~root",
    "/raw/C:/secret.txt",
    "/raw/file:///etc/passwd",
    "/raw/proc/self/environ",
    // Hidden files.
    "/raw/.env",
    "/raw/.git/config",
    "/raw/%2egit/config",
    "/raw/.git%2fconfig",
    "/raw/./.git/config",
    "/raw/docs/.hidden/x",
    "/raw/docs/.well-known/x",
    "/raw/.well-known/../.env",
    "/raw/.well-known/..%2f.env",
    // Links that lead out, in circles or nowhere.
    "/raw/outside.txt",
    "/raw/absolute.txt",
    "/raw/absolute-inside.html",
    "/raw/etc/passwd",
    "/raw/etc/",
    "/raw/etc",
    "/raw/parent/secret.txt",
    "/raw/parent/dist/index.html",
    "/raw/process",
    "/raw/self",
    "/raw/nowhere",
    // What is no file.
    "/raw/pipe",
    "/raw/pipe/",
    "/raw/socket",
    "/raw/docs/back%5cslash",
    "/raw/docs/back\\slash",
];

/// Fails if a response could have come from anywhere but the folder's public files.
fn assert_harmless(target: &str, status: u16, body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    for word in ["secret", "hidden", "root:"] {
        assert!(!text.contains(word), "{target}: {text}");
    }
    // Strict parsing refuses some; some have a canonical path that is a public page or another route.
    let is_public = status == 200 && ["the page", "the docs"].contains(&&*text);
    assert!(matches!(status, 400 | 404) || is_public || status == 301, "{target}: {status} {text}");
}

#[test]
fn nothing_but_public_files_of_the_folder_is_read() {
    for strictness in ["strict", "defensive", "monitor"] {
        let gateway = super::site_with(&format!("strictness = \"{strictness}\"\n"), &ROUTES.replace(FALLBACK, ""));
        let mut wire = Wire::connect(gateway.addr, &[]);
        for (index, target) in TARGETS.iter().enumerate() {
            for written in [format!("GET {target}"), format!("GET http://a.test{target}")] {
                let response = gateway.fetch(&format!("{written} HTTP/1.1\r\nhost: a.test\r\n\r\n"));
                assert_harmless(target, response.status(), &response.body);
            }
            let stream = u32::try_from(index).unwrap() * 2 + 1;
            wire.send(headers(stream, END_STREAM | END_HEADERS, &request("GET", target)));
            let response = wire.read_response(stream);
            match response.ended {
                StreamEnd::Complete => assert_harmless(target, 404, &response.body),
                StreamEnd::Reset(_) => {}
                StreamEnd::ConnectionClosed(_) => wire = Wire::connect(gateway.addr, &[]),
            }
        }
        assert_eq!(gateway.get("/raw/inside.js").status(), 200, "links within the folder are followed");
        assert_eq!(gateway.get("/raw/up-and-down.js").status(), 200);
        assert!(gateway.log_lines(&["WARN", "a link that leads out of it"]) >= 1);
    }
}

#[test]
fn names_that_no_file_system_has_are_absent() {
    let gateway = site(ROUTES);
    for name in
        ["a".repeat(255), "a".repeat(256), "a".repeat(6000), "a/".repeat(3000), "%41".repeat(2000), "%C3".repeat(300)]
    {
        assert_eq!(gateway.get(&format!("/raw/{name}")).status(), 404, "{} bytes", name.len());
    }
}

#[test]
fn a_folder_that_becomes_a_link_while_it_is_read_leads_nowhere() {
    let gateway = site(ROUTES);
    let dist = gateway.dir.path().join("dist");
    std::fs::create_dir(dist.join("swapped")).unwrap();
    std::fs::write(dist.join("swapped/passwd"), "public").unwrap();
    symlink("/etc", dist.join("swap-link")).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = |from: &str, to: &str| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, dist.join(from), rustix::fs::CWD, dist.join(to), flags)
                    .unwrap();
            };
            while !is_over.load(Ordering::Relaxed) {
                exchange("swapped", "swap-link");
            }
        });
        let mut client = gateway.client();
        for _ in 0..2000 {
            let response = client.fetch(&get("/raw/swapped/passwd", ""), "");
            assert!(!response.text().contains("root:"), "{}", response.text());
            assert!(matches!(response.status(), 200 | 404), "{}", response.head);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// CVE-2011-3192 and its kind: many ranges in one request.
#[test]
fn a_flood_of_ranges_costs_no_more_than_the_file() {
    let gateway = site(ROUTES);
    let length = 8 * 1024 * 1024;
    std::fs::write(gateway.dir.path().join("dist/large.bin"), vec![b'x'; length]).unwrap();
    let watch = gateway.watch_memory();
    let overlapping = (0..1300).map(|start| format!("{start}-")).collect::<Vec<_>>().join(",");
    let tiny = (0..1000).map(|start| format!("{0}-{0}", start * 2)).collect::<Vec<_>>().join(",");
    for ranges in [overlapping.as_str(), &tiny, "0-,0-,0-,0-", "-8388607,-8388606,0-8388606", &"0-0,".repeat(1500)] {
        let response = gateway.fetch(&get("/raw/large.bin", &format!("range: bytes={ranges}\r\n")));
        assert!(matches!(response.status(), 200 | 206 | 431), "{}", response.head);
        assert!(response.body.len() <= length, "{} bytes", response.body.len());
    }
    assert!(watch.grown() < 8 << 20, "{} bytes more", watch.grown());
}

/// Clients that ask for a large file and do not read it.
#[test]
fn readers_that_stop_hold_little_memory_and_no_thread() {
    let gateway: Gateway = site(ROUTES);
    let file = std::fs::File::create(gateway.dir.path().join("dist/huge.bin")).unwrap();
    file.set_len(4 << 30).unwrap();
    gateway.get("/");
    let watch = gateway.watch_memory();
    let mut stalled: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        let mut stream = gateway.client().into_stream();
        stream.write_all(get("/raw/huge.bin", "").as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        stalled.push(stream);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(gateway.get("/raw/docs/").text(), "the docs");
    assert!(watch.grown() < 40 << 20, "{} bytes for 40 clients", watch.grown());
}
