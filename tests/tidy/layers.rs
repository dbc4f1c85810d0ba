//! Modules are layers: each uses only modules below it.

use std::collections::BTreeSet;

use super::source::crate_files;

/// The modules of the crate, lowest first, each with the lower modules that it may use.
pub const LAYERS: [(&str, &[&str]); 41] = [
    ("rate", &[]),
    ("text", &[]),
    ("labels", &[]),
    ("canonical", &["text"]),
    ("received_headers", &[]),
    ("names", &["received_headers"]),
    ("template", &[]),
    ("net", &[]),
    ("geo", &[]),
    ("grpc", &["labels"]),
    ("ends", &["labels", "grpc"]),
    ("heap", &[]),
    ("descriptors", &[]),
    ("files", &["template", "descriptors"]),
    ("replace_file", &[]),
    ("file_stamp", &[]),
    ("tls", &["labels", "net"]),
    ("https_client", &["tls"]),
    ("telemetry", &["rate", "labels", "net", "grpc", "ends", "tls"]),
    (
        "limiting",
        &[
            "received_headers",
            "text",
            "labels",
            "canonical",
            "names",
            "template",
            "net",
            "geo",
            "grpc",
            "ends",
            "tls",
            "telemetry",
        ],
    ),
    ("upstream", &["rate", "labels", "tls", "limiting"]),
    ("overload", &["rate", "labels", "upstream"]),
    ("auth", &["ends", "net", "telemetry", "limiting"]),
    ("route", &["text", "labels", "canonical", "template", "net", "files", "limiting", "upstream", "auth"]),
    ("envoy", &["text", "grpc", "limiting", "route"]),
    (
        "config",
        &[
            "received_headers",
            "text",
            "labels",
            "canonical",
            "envoy",
            "telemetry",
            "names",
            "template",
            "geo",
            "net",
            "grpc",
            "ends",
            "upstream",
            "overload",
            "tls",
            "limiting",
            "auth",
            "files",
            "route",
        ],
    ),
    ("local_ca", &["replace_file", "tls", "config"]),
    ("snapshot", &["ends", "upstream", "overload", "telemetry", "limiting", "auth", "route", "config"]),
    (
        "proxy",
        &[
            "text",
            "rate",
            "labels",
            "canonical",
            "received_headers",
            "names",
            "telemetry",
            "descriptors",
            "files",
            "heap",
            "geo",
            "net",
            "grpc",
            "ends",
            "envoy",
            "tls",
            "upstream",
            "overload",
            "limiting",
            "auth",
            "route",
            "config",
            "snapshot",
        ],
    ),
    (
        "worker",
        &[
            "overload",
            "descriptors",
            "files",
            "ends",
            "net",
            "tls",
            "telemetry",
            "limiting",
            "auth",
            "config",
            "snapshot",
            "proxy",
        ],
    ),
    (
        "replay",
        &[
            "text",
            "canonical",
            "ends",
            "net",
            "grpc",
            "tls",
            "telemetry",
            "limiting",
            "upstream",
            "auth",
            "route",
            "config",
            "proxy",
        ],
    ),
    ("contract", &["labels", "limiting", "config"]),
    (
        "explain",
        &[
            "canonical",
            "files",
            "upstream",
            "overload",
            "labels",
            "ends",
            "net",
            "grpc",
            "tls",
            "telemetry",
            "limiting",
            "auth",
            "route",
            "envoy",
            "config",
            "proxy",
        ],
    ),
    ("fuzzing", &["canonical", "grpc", "limiting", "envoy", "proxy"]),
    ("reload", &["labels", "net", "config", "local_ca", "limiting", "route", "upstream", "worker"]),
    ("jwks", &["limiting", "net", "https_client", "telemetry", "config", "snapshot"]),
    (
        "acme",
        &[
            "replace_file",
            "file_stamp",
            "labels",
            "net",
            "https_client",
            "tls",
            "telemetry",
            "upstream",
            "config",
            "snapshot",
        ],
    ),
    (
        "admin",
        &[
            "text",
            "replace_file",
            "labels",
            "ends",
            "net",
            "tls",
            "names",
            "telemetry",
            "limiting",
            "upstream",
            "auth",
            "route",
            "config",
            "snapshot",
            "proxy",
            "worker",
            "explain",
            "reload",
        ],
    ),
    (
        "control",
        &[
            "descriptors",
            "labels",
            "net",
            "heap",
            "ends",
            "replace_file",
            "file_stamp",
            "tls",
            "upstream",
            "overload",
            "telemetry",
            "limiting",
            "route",
            "config",
            "local_ca",
            "snapshot",
            "proxy",
            "worker",
            "reload",
            "jwks",
            "acme",
            "admin",
        ],
    ),
    ("import", &["received_headers", "text", "canonical", "names", "limiting", "envoy"]),
    (
        "cli",
        &[
            "text",
            "net",
            "heap",
            "telemetry",
            "limiting",
            "tls",
            "config",
            "local_ca",
            "replay",
            "contract",
            "explain",
            "reload",
            "control",
            "import",
        ],
    ),
];

/// The directories of `proxy`, the lowest first. A directory may use those above it in this list.
const DIRECTORIES: [&str; 10] =
    ["words", "render", "head", "connection", "outbound", "context", "account", "steps", "doors", "server"];

/// Checks that each row of a table lists only modules of the rows above it.
fn assert_no_circle(table: &[(&str, &[&str])]) {
    for (at, (module, names)) in table.iter().enumerate() {
        for name in *names {
            assert!(
                table[..at].iter().any(|(below, _)| below == name),
                "the table allows {module} to use {name}, which is not in a row above it"
            );
        }
    }
}

#[test]
fn modules_use_only_lower_modules() {
    assert_no_circle(&LAYERS);
    let mut wrong = BTreeSet::new();
    for file in crate_files() {
        // The root declares all modules, and the program calls the command line.
        let top = file.top();
        if top.is_empty() {
            continue;
        }
        let (_, below) = LAYERS.iter().find(|(module, _)| *module == top).unwrap_or_else(|| panic!("{top}: no layer"));
        for path in file.named().into_iter().filter(|path| path.len() > 1 && path[0] != top) {
            if !below.contains(&path[0].as_str()) {
                wrong.insert(format!("{} uses {}", file.path, path.join("::")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "move the item to a lower module, or add the dependency to LAYERS if it points down: {wrong:#?}"
    );
}

#[test]
fn directories_of_proxy_use_each_other_in_one_direction() {
    let place = |directory: &str| DIRECTORIES.iter().position(|listed| *listed == directory);
    let mut wrong = BTreeSet::new();
    for file in crate_files().iter().filter(|file| file.top() == "proxy" && file.module.len() > 1) {
        let own = place(&file.module[1]).unwrap_or_else(|| panic!("{}: add it to DIRECTORIES", file.path));
        for path in file.named().iter().filter(|path| path[0] == "proxy" && path.len() > 1) {
            if place(&path[1]).is_none_or(|used| used > own) {
                wrong.insert(format!("{} uses {}", file.path, path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "move the item to a lower directory: {wrong:#?}");
}

#[test]
fn proxy_does_not_know_the_kinds_of_stores() {
    let mut wrong = BTreeSet::new();
    for file in crate_files().iter().filter(|file| file.top() == "proxy") {
        for kind in ["Memory", "Redis"] {
            if file.words.iter().any(|word| word == kind) {
                wrong.insert(format!("{} uses {kind}", file.path));
            }
        }
    }
    assert!(wrong.is_empty(), "use `limiting::store::Store`, or move the code to `limiting`: {wrong:#?}");
}
