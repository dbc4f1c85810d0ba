//! The manual as a whole: every page is listed, is short, has links that resolve, configs that load, and commands
//! that do what is shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sluicegate::config::load_config;

use crate::support::limiting::RedisServer;
use crate::support::manual::{Example, Page, Part, app};
use crate::support::nginx::Nginx;
use crate::support::ports::ReservedPort;

/// The table of contents, which mdBook reads.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages outside the book.
const OTHERS: [&str; 5] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"];

/// The reference of the admin API. Its commands need no upstream server: `limits/admin.rs` runs them.
const ADMIN_API: &str = "docs/reference/admin-api.md";

/// The page about attacks. Its commands are the steps of a scenario, which `under_attack.rs` runs.
const WALK: &str = "docs/operating/under-attack.md";

/// The pages on gateways that other proxies ask: they are behind no proxy.
const ASKED: [&str; 2] = ["docs/guides/envoy.md", "docs/guides/limits-for-other-proxies.md"];

/// Every page of the manual, without its table of contents.
fn pages() -> Vec<String> {
    fn collect(directory: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, found),
                false if path.extension().is_some_and(|extension| extension == "md") => {
                    found.push(path.to_str().unwrap().to_owned());
                }
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    collect(Path::new("docs"), &mut found);
    found.retain(|path| path != SUMMARY);
    found.sort();
    found
}

/// Panics with all mistakes at once.
fn assert_none(mistakes: &[String]) {
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
}

/// The lines of a page outside its code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    text.lines()
        .filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        })
        .collect()
}

/// The targets of the links in a page.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // A link within inline code is text.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        found.extend(line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    found
}

/// The anchors of a page: those that mdBook and GitHub give its headings, and its own.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let own = prose(text)
        .into_iter()
        .flat_map(|line| line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()));
    let mut found: BTreeSet<String> = own.map(str::to_owned).collect();
    for line in prose(text).iter().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let anchor: String = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(anchor.clone()).or_default();
        found.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    found
}

/// Returns `target`, as a link of the page at `from`, relative to the repository.
fn resolve(from: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::from(from);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[test]
fn the_table_of_contents_lists_every_page_once() {
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    for target in links(&fs::read_to_string(SUMMARY).unwrap()) {
        *listed.entry(format!("docs/{target}")).or_default() += 1;
    }
    let pages = pages();
    let mut mistakes: Vec<String> =
        pages.iter().filter(|page| !listed.contains_key(*page)).map(|page| format!("{page} is not listed")).collect();
    for (page, count) in &listed {
        if !pages.contains(page) {
            mistakes.push(format!("{page} does not exist"));
        } else if *count > 1 {
            mistakes.push(format!("{page} is listed {count} times"));
        }
    }
    assert_none(&mistakes);
}

/// Every page is two clicks from the start: the introduction links all of them by task.
#[test]
fn the_introduction_links_every_page() {
    let linked = links(&fs::read_to_string("docs/introduction.md").unwrap());
    let linked: BTreeSet<String> =
        linked.iter().map(|link| format!("docs/{}", link.split('#').next().unwrap_or_default())).collect();
    let pages = pages().into_iter().filter(|page| page != "docs/introduction.md" && !linked.contains(page));
    assert_none(&pages.map(|page| format!("{page} is not linked from the introduction")).collect::<Vec<_>>());
}

/// Pages to search rather than to read: those with tables that are written from the code, and the list of changes.
const SEARCHED: [&str; 4] =
    ["CHANGELOG.md", "docs/migrating/nginx.md", "docs/reference/options.md", "docs/reference/reasons.md"];

#[test]
fn no_page_is_long_and_each_has_one_title() {
    let mut mistakes = Vec::new();
    for path in pages().iter().map(String::as_str).chain(OTHERS) {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().count();
        let most = if SEARCHED.contains(&path) { 1000 } else { 500 };
        if lines > most {
            mistakes.push(format!("{path} has {lines} lines, more than {most}"));
        }
        let titles = prose(&text).iter().filter(|line| line.starts_with("# ")).count();
        if titles != 1 || !text.starts_with("# ") {
            mistakes.push(format!("{path} has {titles} titles, or text before its title"));
        }
    }
    assert_none(&mistakes);
}

/// Pages of the book link only to pages of the book: in the built book there is nothing else.
#[test]
fn links_and_anchors_resolve() {
    let mut mistakes = Vec::new();
    for page in pages().iter().map(String::as_str).chain(OTHERS).chain([SUMMARY]) {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text).iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if target.is_empty() { PathBuf::from(page) } else { resolve(page, target) };
            if page.starts_with("docs/") && !path.starts_with("docs") {
                mistakes.push(format!("{page}: {link} leads out of the book; write the file's name as code"));
            } else if !path.exists() {
                mistakes.push(format!("{page}: {link}: there is no {}", path.display()));
            } else if !anchor.is_empty() && !anchors(&fs::read_to_string(&path).unwrap()).contains(anchor) {
                mistakes.push(format!("{page}: {link}: no heading has this anchor"));
            }
        }
    }
    assert_none(&mistakes);
}

/// Writes the files that a config names into `dir`, and returns the config with their full paths.
fn with_files(config: &str, dir: &Path) -> String {
    let mut text = config.to_owned();
    // Folders of files, which are not written as one file.
    for line in config.lines().filter_map(|line| line.strip_prefix("files = \"")) {
        let name = line.trim_end_matches('"');
        let folder = dir.join(name.trim_start_matches('/'));
        fs::create_dir_all(folder.join("assets")).unwrap();
        fs::write(folder.join("index.html"), "<h1>Home</h1>\n").unwrap();
        fs::write(folder.join("assets/app-5d41402a.js"), "console.log(1);\n").unwrap();
        text = text.replace(&format!("files = \"{name}\""), &format!("files = \"{}\"", folder.display()));
    }
    let lines =
        config.lines().filter(|line| !["path = ", "files = ", "try = "].iter().any(|key| line.starts_with(key)));
    for name in lines.flat_map(|line| line.split('"').skip(1).step_by(2)) {
        let stem = Path::new(name).file_stem().map_or("", |stem| stem.to_str().unwrap());
        let is_ca = stem == "ca" || stem.ends_with("-ca") || stem.starts_with("ca-");
        let sample = match Path::new(name).extension().and_then(|extension| extension.to_str()) {
            Some("pem" | "crt") if is_ca => "conf/tls/sample-ca.pem",
            Some("pem" | "crt") => "conf/tls/sample.pem",
            Some("key") => "conf/tls/sample.key",
            Some("txt") if stem.contains("redirects") => "conf/redirects.txt",
            Some("txt" | "dat") => "conf/blocked.txt",
            Some("toml") if stem == "prices" => "conf/prices.toml",
            Some("mmdb") => "conf/countries.mmdb",
            Some("htpasswd") => "conf/users.htpasswd",
            Some("html" | "json") => "conf/error.html",
            _ => continue,
        };
        let copy = dir.join(name.replace('/', "_"));
        fs::copy(sample, &copy).unwrap();
        text = text.replace(&format!("\"{name}\""), &format!("\"{}\"", copy.display()));
    }
    let secret = dir.join("secret");
    fs::write(&secret, "0123456789abcdef".repeat(4)).unwrap();
    while let Some((before, (_, after))) =
        text.split_once("${file:/").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        text = format!("{before}${{file:@}}{after}");
    }
    text.replace("${file:@}", &format!("${{file:{}}}", secret.display()))
}

/// Blocks marked `toml` are whole configs; one without a route is completed with one. A part of a config is marked
/// `toml,fragment`.
#[test]
fn every_config_of_every_page_loads() {
    let mut mistakes = Vec::new();
    let mut count = 0;
    for page in pages() {
        for Part { title, config, .. } in Page::read(&page).parts {
            let dir = tempfile::tempdir().unwrap();
            let mut config = with_files(&config, dir.path());
            if !config.contains("[[route]]") {
                config += "\n[[route]]\nupstream = \"http://127.0.0.1:3000\"\n";
            }
            let path = dir.path().join("sluicegate.toml");
            fs::write(&path, config).unwrap();
            if let Err(report) = load_config(&path) {
                mistakes.push(format!("{page}, {title}:\n{}", report.render(false)));
            }
            count += 1;
        }
    }
    assert!(count > 70, "only {count} configs");
    assert_none(&mistakes);
}

/// The address of the second listener in configs of the manual.
const SECOND: &str = "127.0.0.1:9080";

#[test]
fn every_command_has_the_documented_output() {
    let played = |page: &&String| ![ADMIN_API, WALK].contains(&page.as_str());
    play_commands(pages().iter().filter(played), 30, false);
}

/// The guides with nginx in front of the gateway, which lists it in `trusted_proxies`: nothing else may differ.
#[test]
fn commands_of_the_guides_have_the_same_output_behind_a_proxy() {
    let played = |page: &&String| page.starts_with("docs/guides/") && !ASKED.contains(&page.as_str());
    play_commands(pages().iter().filter(played), 18, true);
}

/// Starts a gateway for each config of these pages that has commands, and runs them.
fn play_commands<'a>(pages: impl Iterator<Item = &'a String>, least: usize, is_behind_proxy: bool) {
    let pages: Vec<Page> = pages.map(|page| Page::read(page)).collect();
    let parts: Vec<(&Page, &Part)> = pages
        .iter()
        .flat_map(|page| page.parts.iter().map(move |part| (page, part)))
        .filter(|(_, part)| !part.examples.is_empty())
        .collect();
    assert!(parts.len() >= least, "{}", parts.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Most of the time is spent waiting for commands.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // A part that fails does not hide the others.
                while let Some((page, part)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = || {
                        let redis = part.needs_redis().then(|| RedisServer::start(&[]));
                        let port = redis.as_ref().map(|server| server.port);
                        let app = app();
                        let dir = tempfile::tempdir().unwrap();
                        // Several parts have a second listener at this address, and parts run at the same time.
                        let second = ReservedPort::new();
                        let with_second = |text: &str| text.replace(SECOND, &second.addr().to_string());
                        let command = |example: &Example| Example {
                            command: with_second(&example.command),
                            shown: example.shown.clone(),
                        };
                        let own = Part {
                            title: part.title.clone(),
                            config: with_second(&with_files(&part.config, dir.path())),
                            examples: part.examples.iter().map(command).collect(),
                        };
                        if is_behind_proxy {
                            let gateway = own.behind_proxy().start(&app, port);
                            let nginx = Nginx::in_front_of(gateway.addr);
                            own.assert_true_at(nginx.addr, &page.words, &gateway, port, Some(&app));
                        } else {
                            own.assert_true(&page.words, &own.start(&app, port), port, Some(&app));
                        }
                    };
                    failed.fetch_add(usize::from(catch_unwind(AssertUnwindSafe(run)).is_err()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "parts of the manual are wrong; see above");
}
