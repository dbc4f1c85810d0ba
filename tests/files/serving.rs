//! Which file a path leads to, and the head of its response.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use super::{ROUTES, script, site, site_with};
use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::wait_until;

#[test]
fn a_path_leads_to_a_file() {
    let gateway = site(ROUTES);
    for (target, status, found) in [
        ("/", 200, "the page"),
        ("/?x=1", 200, "the page"),
        ("/index.html", 200, "the page"),
        ("/docs/", 200, "the docs"),
        ("/docs", 301, "/docs/"),
        ("/docs?a=b&c", 301, "/docs/?a=b&c"),
        ("/docs/a%20b.txt", 200, "with a space"),
        ("/docs/%C3%A9.txt", 200, "not ASCII"),
        ("/docs/a%2541", 200, "a percent sign"),
        ("/settings/profile", 200, "the page"),
        ("/settings/", 200, "the page"),
        ("/empty", 200, "the page"),
        ("/empty/", 200, "the page"),
        ("/empty.txt", 200, ""),
        ("/INDEX.HTML", 200, "the page"),
        ("/raw", 301, "/raw/"),
        ("/raw/", 200, "the page"),
        ("/raw/docs", 301, "/raw/docs/"),
        ("/raw/docs/", 200, "the docs"),
        ("/raw/DOCS/", 404, ""),
        ("/raw/empty/", 404, ""),
        ("/raw/empty", 404, ""),
        ("/raw/LICENSE", 200, "no extension"),
        ("/raw/LICENSE/", 404, ""),
        ("/raw/LICENSE/x", 404, ""),
        ("/raw/nothing", 404, ""),
        ("/raw/.well-known/security.txt", 200, "contact"),
    ] {
        let response = gateway.get(target);
        assert_eq!(response.status(), status, "{target}: {}", response.head);
        match status {
            200 => assert_eq!(response.text(), found, "{target}"),
            301 => assert_eq!(response.get("location"), Some(found), "{target}"),
            _ => assert!(response.text().contains("there is no such file"), "{target}: {}", response.text()),
        }
    }
}

#[test]
fn a_path_that_cannot_get_a_slash_is_served_at_once() {
    let gateway = site(
        r#"
        [[route]]
        path = "= /manual"
        files = "dist"
        rewrite = { path = "/docs/" }

        [[route]]
        path = "= /docs"
        files = "dist"

        [[route]]
        path = "/pages/"
        files = "dist"
        rewrite = { strip_prefix = "/pages" }
        merge_slashes = false
        try = ["{path}.html", "{path}", "/docs"]
        "#,
    );
    for (target, text) in
        [("/manual", "the docs"), ("/docs", "the docs"), ("/pages/index", "the page"), ("/pages/x/y", "the docs")]
    {
        let response = gateway.get(target);
        assert_eq!((response.status(), response.text().as_str()), (200, text), "{target}");
    }
    // A `Location` that begins with two slashes would name another host.
    let response = gateway.get("//pages//docs");
    assert!(!response.get("location").unwrap_or_default().starts_with("//"), "{}", response.head);
}

/// The redirect adds the slash to the path of the client, not to the one that `rewrite` makes.
#[test]
fn a_rewritten_path_gets_its_slash_too() {
    let gateway = site(
        r#"
        [[route]]
        path = "~ ^/d/(.*)$"
        files = "dist"
        rewrite = { path = "/{1}" }

        [[route]]
        path = "~ ^/w/([a-z]+)$"
        files = "dist"
        rewrite = { path = "/{1}" }
        "#,
    );
    let response = gateway.get("/d/docs?x=1");
    assert_eq!((response.status(), response.get("location")), (301, Some("/d/docs/?x=1")));
    // The second route matches no path with a slash at its end.
    for target in ["/d/docs/", "/w/docs"] {
        let response = gateway.get(target);
        assert_eq!((response.status(), response.text().as_str()), (200, "the docs"), "{target}");
    }
}

#[test]
fn only_get_and_head_are_methods_of_files() {
    let gateway = site(ROUTES);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        let response =
            gateway.fetch(&format!("{method} /index.html HTTP/1.1\r\nhost: a.test\r\ncontent-length: 0\r\n\r\n"));
        assert_eq!((response.status(), response.get("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    for target in ["/assets/app.js", "/docs", "/raw/nothing", "/empty.txt"] {
        let (whole, head) =
            (gateway.get(target), gateway.fetch(&format!("HEAD {target} HTTP/1.1\r\nhost: a.test\r\n\r\n")));
        assert!(head.body.is_empty());
        let without_date = |head: &str| {
            head.lines()
                .filter(|line| !line.starts_with("date:") && *line != "content-length: 0")
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(
            without_date(&head.head).replace(" 5600", " N"),
            without_date(&whole.head).replace(" 5600", " N"),
            "{target}"
        );
    }
}

#[test]
fn the_head_names_type_and_caching() {
    let gateway = site(ROUTES);
    for (target, media_type, cache_control, vary) in [
        ("/", "text/html; charset=utf-8", "no-cache", Some("Accept-Encoding")),
        (
            "/assets/app.js",
            "text/javascript; charset=utf-8",
            "public, max-age=31536000, immutable",
            Some("Accept-Encoding"),
        ),
        ("/assets/missing.js", "text/html; charset=utf-8", "no-cache", Some("Accept-Encoding")),
        ("/LICENSE", "application/octet-stream", "public, max-age=31536000, immutable", None),
        ("/raw/assets/app.js", "text/javascript; charset=utf-8", "no-cache", Some("Accept-Encoding")),
    ] {
        let response = gateway.get(target);
        let field = |name| response.get(name);
        assert_eq!(
            (field("content-type"), field("cache-control")),
            (Some(media_type), Some(cache_control)),
            "{target}"
        );
        assert_eq!((field("vary"), field("x-content-type-options")), (vary, Some("nosniff")), "{target}");
        assert_eq!(field("accept-ranges"), Some("bytes"), "{target}");
        assert!(
            field("etag").is_some_and(|etag| etag.starts_with('"')) && field("last-modified").is_some(),
            "{target}"
        );
    }
}

fn set_time(gateway: &Gateway, name: &str, time: SystemTime) {
    File::options().write(true).open(gateway.dir.path().join("dist").join(name)).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_compressed_copy_is_sent_to_clients_that_prefer_it() {
    let gateway = site(&ROUTES.replace("path = \"/\"\n", "path = \"/\"\ncompress = true\n"));
    let dist = gateway.dir.path().join("dist");
    let original = gateway.get("/assets/app.js").get("etag").unwrap().to_owned();
    for suffix in ["br", "zst", "gz"] {
        fs::write(dist.join(format!("assets/app.js.{suffix}")), suffix).unwrap();
    }
    let mut tags = vec![original];
    for (accept, coding, text) in [
        ("br, gzip, zstd", Some("br"), "br"),
        ("gzip;q=1, br;q=0.5", Some("gzip"), "gz"),
        ("zstd;q=0.9, gzip;q=0.8", Some("zstd"), "zst"),
        ("*", Some("br"), "br"),
        ("br;q=0, *;q=0.1", Some("zstd"), "zst"),
    ] {
        let response = gateway.fetch(&get("/assets/app.js", &format!("accept-encoding: {accept}\r\n")));
        assert_eq!((response.get("content-encoding"), response.text().as_str()), (coding, text), "{accept}");
        assert_eq!(response.get("content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(response.get("vary"), Some("Accept-Encoding"));
        tags.push(response.get("etag").unwrap().to_owned());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 4, "each representation has an ETag of its own: {tags:?}");
    for accept in ["identity", "gzip;q=0", "identity;q=1, br;q=0.5", ""] {
        let response = gateway.fetch(&get("/raw/assets/app.js", &format!("accept-encoding: {accept}\r\n")));
        assert_eq!((response.get("content-encoding"), response.text()), (None, script()), "{accept}");
    }
    // A range is one of the copy, and its ETag is that of the copy.
    let part = gateway.fetch(&get("/assets/app.js", "accept-encoding: br\r\nrange: bytes=1-\r\n"));
    assert_eq!((part.status(), part.get("content-range"), part.text().as_str()), (206, Some("bytes 1-1/2"), "r"));

    // Copies that are older were made of another file: the gateway compresses the new one itself.
    for suffix in ["br", "zst", "gz"] {
        set_time(&gateway, &format!("assets/app.js.{suffix}"), SystemTime::now() - Duration::from_secs(3600));
    }
    let response = gateway.fetch(&get("/assets/app.js", "accept-encoding: gzip\r\n"));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&response.body[..]), &mut text).unwrap();
    assert_eq!((response.get("content-encoding"), text), (Some("gzip"), script()));
    let response = gateway.fetch(&get("/raw/assets/app.js", "accept-encoding: gzip\r\n"));
    assert_eq!(response.get("content-encoding"), None);
}

#[test]
fn what_changes_on_disk_is_served_at_once() {
    let gateway = site_with("access_log = true\n", ROUTES);
    let dist = gateway.dir.path().join("dist");
    let before = gateway.get("/assets/app.js");
    fs::write(dist.join("assets/app.js"), script().to_uppercase()).unwrap();
    let after = gateway.get("/assets/app.js");
    assert_eq!(after.text(), script().to_uppercase());
    assert_ne!(before.get("etag"), after.get("etag"));

    // A deployment points a link to the next release.
    fs::rename(&dist, gateway.dir.path().join("release-1")).unwrap();
    let response = gateway.get("/");
    assert_eq!(response.status(), 503, "{}", response.head);
    assert!(response.text().contains("could not open the file"));
    assert_eq!(gateway.log_lines(&["WARN", "the folder cannot be opened"]), 1);
    wait_until("the log line", || gateway.stdout().contains("file_failed"));
    fs::create_dir(gateway.dir.path().join("release-2")).unwrap();
    fs::write(gateway.dir.path().join("release-2/index.html"), "the next page").unwrap();
    symlink("release-2", &dist).unwrap();
    assert_eq!(gateway.get("/").text(), "the next page");
}

#[test]
fn a_time_that_says_nothing_is_no_validator() {
    let gateway = site(ROUTES);
    for seconds in [0, 1, 315_532_800] {
        set_time(&gateway, "LICENSE", SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let response = gateway.get("/LICENSE");
        assert_eq!((response.get("etag"), response.get("last-modified")), (None, None), "{seconds}");
    }
    let mut file = File::options().append(true).open(gateway.dir.path().join("dist/LICENSE")).unwrap();
    file.write_all(b"!").unwrap();
    assert!(gateway.get("/LICENSE").get("etag").is_some());
}

/// The threads that may wait for the file system have nothing to do for a file that the kernel has in memory, and see
/// at once what changes.
#[test]
fn a_file_in_memory_is_served_at_once_and_changes_are_seen() {
    let gateway = site(ROUTES);
    let (mut client, dist) = (gateway.client(), gateway.dir.path().join("dist"));
    let mut fetch = |target: &str| client.fetch(&get(target, "accept-encoding: br\r\n"), "");
    assert_eq!(fetch("/raw/assets/app.js").text(), script());
    let wakes = || {
        let threads = fs::read_dir(format!("/proc/{}/task", gateway.pid())).unwrap();
        let statuses = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).ok());
        let of_files = statuses.filter(|status| status.starts_with("Name:\ttokio-rt-worker"));
        let switches = of_files.map(|status| {
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:\t")).unwrap();
            count.parse::<u64>().unwrap()
        });
        switches.sum::<u64>()
    };
    wait_until("the thread has done its work", || wakes() > 0);
    let before = wakes();
    for _ in 0..100 {
        assert_eq!(fetch("/raw/assets/app.js").text(), script());
        assert_eq!(fetch("/raw/nothing").status(), 404);
    }
    assert!(wakes() - before < 20, "{} times for 200 requests", wakes() - before);

    fs::write(dist.join("assets/app.js.br"), "compressed").unwrap();
    let copy = fetch("/raw/assets/app.js");
    assert_eq!((copy.text(), copy.get("content-encoding")), ("compressed".to_owned(), Some("br")));
    fs::write(dist.join("assets/new.js"), "new").unwrap();
    fs::rename(dist.join("assets/new.js"), dist.join("assets/app.js")).unwrap();
    fs::remove_file(dist.join("assets/app.js.br")).unwrap();
    assert_eq!(fetch("/raw/assets/app.js").text(), "new");
    fs::rename(&dist, dist.with_extension("old")).unwrap();
    fs::create_dir_all(dist.join("assets")).unwrap();
    fs::write(dist.join("assets/app.js"), "of another folder").unwrap();
    assert_eq!(fetch("/raw/assets/app.js").text(), "of another folder");
    fs::remove_file(dist.join("assets/app.js")).unwrap();
    symlink(dist.with_extension("old").join("assets/app.js"), dist.join("assets/app.js")).unwrap();
    assert_eq!(fetch("/raw/assets/app.js").status(), 404, "a link that leads out of the folder");
}
