//! Files of a folder (`files`): which file a path leads to, that no other can be read, conditional requests and ranges, and
//! what happens while a file is sent.

mod attacks;
mod conditions;
mod sending;
mod serving;
mod steps;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::gateway::{Gateway, config, config_arguments};

/// A single-page application at `/`, and the plain folder at `/raw/`.
const ROUTES: &str = r#"
[[route]]
name = "app"
path = "/"
files = "dist"
try = ["{path}", "/index.html"]
cache_control = "public, max-age=31536000, immutable"

[[route]]
name = "raw"
path = "/raw/"
files = "dist"
rewrite = { strip_prefix = "/raw" }
"#;

/// The line that makes a single-page application of the first route.
const FALLBACK: &str = "try = [\"{path}\", \"/index.html\"]\n";

/// A gateway with the folder `dist` beside its config.
fn site(routes: &str) -> Gateway {
    site_with("", routes)
}

fn site_with(server: &str, routes: &str) -> Gateway {
    Gateway::launch(&[], |dir| {
        write_site(dir);
        config_arguments(dir, &config(server, routes))
    })
}

fn script() -> String {
    "console.log('a line of a script that is long enough');\n".repeat(100)
}

fn write_site(dir: &Path) {
    let dist = dir.join("dist");
    for folder in ["assets", "docs", "empty", ".git", ".well-known", "docs/.hidden", "docs/.well-known"] {
        fs::create_dir_all(dist.join(folder)).unwrap();
    }
    for (name, text) in [
        ("index.html", "the page"),
        ("assets/app.js", &script()),
        ("assets/logo.svg", "<svg/>"),
        ("docs/index.html", "the docs"),
        ("docs/a b.txt", "with a space"),
        ("docs/é.txt", "not ASCII"),
        ("docs/a%41", "a percent sign"),
        ("docs/back\\slash", "a backslash"),
        ("empty.txt", ""),
        ("LICENSE", "no extension"),
        (".git/config", "hidden"),
        (".env", "hidden"),
        ("docs/.hidden/x", "hidden"),
        ("docs/.well-known/x", "hidden"),
        (".well-known/security.txt", "contact"),
        ("../secret.txt", "secret"),
        ("../dist-backup/secret.txt", "secret"),
    ] {
        let path = dist.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for (link, to) in [
        ("inside.js", "assets/app.js"),
        ("up-and-down.js", "docs/../assets/app.js"),
        ("outside.txt", "../secret.txt"),
        ("absolute.txt", "/etc/passwd"),
        ("etc", "/etc"),
        ("parent", ".."),
        ("self", "self"),
        ("nowhere", "no-such-file"),
        ("process", "/proc/self/root/etc/passwd"),
    ] {
        symlink(to, dist.join(link)).unwrap();
    }
    symlink(dist.join("index.html"), dist.join("absolute-inside.html")).unwrap();
    mknodat(CWD, dist.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dist.join("socket")).unwrap());
}
