//! Options `files`, `try` and `cache_control` of a route. Called by `action`.
//!
//! The folder is checked when the config loads, because a missing one is nearly always a wrong path. What is in it is
//! looked up for each request.

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;

use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section};
use crate::config::schema::route;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::files::name::Candidate;
use crate::files::open::open_folder;
use crate::files::{FileFolder, RequestPath};
use crate::route::rewrite::encode_plain;
use crate::template::{Piece, TextTemplate};

const TRY_HELP: &str = "write try = [\"{path}\", \"/index.html\"]";
/// The most names that are tried for one request.
const CANDIDATES_MAX: usize = 8;

/// Compiles `files` with the options that belong to it. `node`: the value of `files`.
pub fn compile_files(section: &Section, node: &Node) -> Option<Arc<FileFolder>> {
    let folder_text = section.read_string(&route::FILES)?;
    if folder_text.is_empty() {
        return section.report_fault(route::FILES.name, node, "it is empty", "name a folder, such as \"dist\"");
    }
    let path = section.sources.resolve_absolute(node.place.file, &folder_text);
    let candidates = compile_candidates(section);
    let cache_control = compile_cache_control(section);
    check_folder(section, node, (&folder_text, &path))?;
    let candidates = candidates?;
    record_reach(section, node, &path, &candidates);
    warn_of_missing_files(section, &path, &candidates);
    let candidates = candidates.into_iter().map(|at| at.value).collect();
    Some(Arc::new(FileFolder { path, candidates, cache_control: cache_control? }))
}

/// Reports options that have no meaning without `files`.
pub fn report_options_without_files(section: &Section) {
    for option in [route::TRY.option, route::CACHE_CONTROL.option] {
        if let Some(node) = section.node(&option) {
            section.report_fault::<()>(
                option.name,
                node,
                "the route has no `files`",
                "add files = \"FOLDER\", or remove it",
            );
        }
    }
}

fn compile_candidates(section: &Section) -> Option<Vec<At<TextTemplate<RequestPath>>>> {
    let Some(node) = section.node(&route::TRY) else {
        let value = TextTemplate::parse("{path}", |_, _| Ok::<_, TextFault>(Some(RequestPath))).ok()?;
        return Some(vec![At { place: section.place, value }]);
    };
    let candidates = section.read_strings(&route::TRY, parse_candidate)?;
    match candidates.len() {
        0 => section.report_fault(route::TRY.name, node, "it is empty", TRY_HELP),
        1..=CANDIDATES_MAX => Some(candidates),
        _ => section.report_fault(
            route::TRY.name,
            node,
            &format!("more than {CANDIDATES_MAX} names"),
            &format!("there may be {CANDIDATES_MAX}"),
        ),
    }
}

/// Parses a name with `{path}`.
fn parse_candidate(text: &str) -> Result<TextTemplate<RequestPath>, TextFault> {
    if let Some(status) = text.strip_prefix('=') {
        let help = format!("remove it: a request gets 404 if no file is left. For {status}, use `error_pages`");
        return invalid_text(format!("`{text}` is of nginx"), help);
    }
    if text.starts_with('@') {
        return invalid_text(
            format!("`{text}` is of nginx"),
            "give the requests for the application a route with `upstream`",
        );
    }
    if text.contains("$uri") {
        return invalid_text("`$uri` is a variable of nginx", "write {path} instead of $uri");
    }
    let template = TextTemplate::parse(text, |name, _| match name {
        "path" => Ok(Some(RequestPath)),
        _ => invalid_text(format!("unknown placeholder `{{{name}}}`"), "the placeholder is {path}"),
    })?;
    // The value of `{path}` begins with a slash, so no slash may precede the placeholder.
    if !text.starts_with('/') && !text.starts_with("{path}") || text.starts_with("/{path}") {
        return invalid_text(
            format!("`{text}` begins neither with `{{path}}` nor with another name after `/`"),
            TRY_HELP,
        );
    }
    let encoded = template.map_literals(encode_plain);
    let sample = encoded.render(|RequestPath, text| text.push_str("/a"));
    if Candidate::parse(&sample, true).is_none() {
        return invalid_text(
            format!("no file that may be served has the name `{text}`"),
            "names have no `//`, no backslash, and no segment that begins with a dot",
        );
    }
    Ok(encoded)
}

fn compile_cache_control(section: &Section) -> Option<HeaderValue> {
    let Some(node) = section.node(&route::CACHE_CONTROL) else {
        return Some(HeaderValue::from_static(route::CACHE_CONTROL.default_str()));
    };
    section.parse_node(route::CACHE_CONTROL.name, node, |text| {
        HeaderValue::from_str(text).ok().filter(|_| !text.trim().is_empty()).ok_or_else(|| TextFault {
            what: "it is not the value of a header".to_owned(),
            help: "write cache_control = \"public, max-age=31536000, immutable\"".to_owned(),
        })
    })
}

/// Reports a folder from which no file can be served: its name in the config, and its path.
fn check_folder(section: &Section, node: &Node, (shown, path): (&str, &Path)) -> Option<()> {
    let Err(error) = open_folder(path).and_then(|_| fs::read_dir(path)) else { return Some(()) };
    let (what, help) = match error.kind() {
        ErrorKind::NotFound => (
            format!("there is no folder `{shown}`"),
            "create the folder, or correct its path (relative to this file)".to_owned(),
        ),
        ErrorKind::NotADirectory => (format!("`{shown}` is not a folder"), "name the folder of the file".to_owned()),
        ErrorKind::PermissionDenied => (
            format!("the folder `{shown}` cannot be read: permission denied"),
            format!("let the user of sluicegate read and enter it: chmod a+rx {shown}, and a+x its parents"),
        ),
        _ => (format!("the folder `{shown}` cannot be read: {error}"), String::new()),
    };
    section.report_fault(route::FILES.name, node, &what, &help)
}

/// Remembers what clients can fetch. A route with a path of its own reaches only a part of the folder, and a name of
/// `try` without `{path}` is a single file.
fn record_reach(section: &Section, node: &Node, folder: &Path, candidates: &[At<TextTemplate<RequestPath>>]) {
    let own = match section.node(&route::PATH).map(|node| &node.value) {
        Some(Value::String(text)) => text.value.strip_prefix('=').unwrap_or(&text.value).trim_start(),
        _ => "/",
    };
    let is_fixed = own.starts_with('/') && !own.contains(['{', '*']) && section.node(&route::REWRITE).is_none();
    let prefix = if is_fixed { own } else { "/" };
    let mut recorded: Vec<PathBuf> = Vec::new();
    for At { value, .. } in candidates {
        let mut reach = String::new();
        for piece in value.pieces() {
            match piece {
                Piece::Literal(text) => reach.push_str(text),
                Piece::Placeholder(RequestPath) => {
                    reach.push_str(prefix);
                    break;
                }
            }
        }
        // No file that may be served has another name.
        let Some(candidate) = Candidate::parse(&reach, false) else { continue };
        let path = folder.join(&candidate.name);
        if !recorded.iter().any(|earlier| path.starts_with(earlier)) {
            section.sources.add_served_folder(node.place, &path);
            recorded.push(path);
        }
    }
}

/// Warns of a folder without files, and of names of `try` that do not exist.
fn warn_of_missing_files(section: &Section, path: &Path, candidates: &[At<TextTemplate<RequestPath>>]) {
    let warn = |place, what: String, help: &str| {
        section.sources.add_warning(DiagnosticCode::MissingFiles, Diagnostic::new(place, what).with_help(help));
    };
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
        let place = section.node(&route::FILES).map_or(section.place, |node| node.place);
        return warn(place, format!("the folder `{}` is empty", path.display()), "build the site before you start");
    }
    for At { place, value } in candidates.iter().filter(|at| at.value.placeholders().next().is_none()) {
        let Some(candidate) = Candidate::parse(&value.render(|RequestPath, _| {}), false) else { continue };
        let name = path.join(&candidate.name);
        if fs::metadata(&name).map_err(|error: Error| error.kind()).is_err_and(|kind| kind == ErrorKind::NotFound) {
            let what = format!("there is no `{}`", name.display());
            warn(*place, what, "create the file, or correct its name: it is relative to `files`");
        }
    }
}
