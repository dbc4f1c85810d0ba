//! Translates `root`, `alias`, `index` and `try_files` to `files` and `try`, where nginx would serve the same files to the
//! same clients. Everything else closes the route, with the reason.
//!
//! Input: a location without `proxy_pass`, with the directives that apply there. Output: the folder, the lines of a route, and
//! its `rewrite`, or why there are none. `lookup` finds the location that nginx chooses for a path.
//!
//! To translate another directive about files, read it in `FileLocation::translate`.

mod lookup;

use std::fs;
use std::path::Path;

use crate::import::encoding::format_literal;
use crate::import::expressions::{Reading, translate_path_regex};
use crate::import::model::ImportedConfig;
use crate::import::nginx::files::lookup::find_location;
use crate::import::nginx::nesting::{is_named, read_matcher};
use crate::import::nginx::scope::Scope;
use crate::import::paths::LocationMatcher;
use crate::import::syntax::{Directive, shorten};
use crate::limiting::source::Source;
use crate::text::quote_literal;

/// How files differ from those of nginx.
pub const DIFFERENCES: &str = "files: `ETag` and `Content-Type` differ, a date in `If-Modified-Since` may be later than that of the file, names that begin with a dot and links that lead out of the \
                           folder get 404, a folder without index.html gets 404 (403 in nginx) or the next name of `try`, and \
                           `NAME.br`, `NAME.zst` and `NAME.gz` next to a file are sent to clients that accept them";
const INDEX: &str = "index.html";
/// The most names of `try`.
const CANDIDATES_MAX: usize = 8;

/// Directives of a location that change what the log and the headers of a file are, but not who gets which file.
const HARMLESS: [&str; 14] = [
    "access_log",
    "add_header",
    "charset",
    "error_log",
    "etag",
    "expires",
    "gzip",
    "gzip_static",
    "gzip_types",
    "if_modified_since",
    "internal",
    "log_not_found",
    "sendfile",
    "tcp_nopush",
];
/// Directives that decide who is served.
const PROTECTIONS: [&str; 8] =
    ["allow", "auth_basic", "auth_jwt", "auth_request", "deny", "limit_conn", "limit_req", "satisfy"];

/// The files of a location.
#[derive(Debug, PartialEq)]
pub struct ServedFiles {
    pub folder: String,
    /// The lines of the route.
    pub lines: Vec<String>,
    /// The part of `rewrite`.
    pub rewrite: Option<String>,
}

/// The location that serves files.
pub struct FileLocation<'a> {
    /// The `location`, or the server for paths without one.
    pub at: &'a Directive,
    pub block: &'a [Directive],
    pub matcher: &'a LocationMatcher,
    pub scope: &'a Scope<'a>,
    /// The directives of the server, and those in effect there.
    pub site: &'a [Directive],
    pub outer: &'a Scope<'a>,
}

impl FileLocation<'_> {
    /// Translates what nginx serves here. The error says why a route cannot.
    pub fn translate(&self, out: &mut ImportedConfig) -> Result<ServedFiles, String> {
        let mut served = self.find_folder(out)?;
        self.check_index(out)?;
        if let Some(line) = self.translate_try(&served, out)? {
            served.lines.push(line);
        }
        if self.block.iter().any(|at| at.name == "types") {
            return Err("types of its own are not available".to_owned());
        }
        if fs::read_dir(&served.folder).is_err() {
            return Err(format!("the folder {} cannot be read on this machine", shorten(&served.folder)));
        }
        Ok(served)
    }

    /// Finds the folder, and the prefix of the path that does not lead to it.
    fn find_folder(&self, out: &mut ImportedConfig) -> Result<ServedFiles, String> {
        let Some(directive) = self.scope.get("root") else {
            return Err("without `root`, they are in a folder of nginx itself".to_owned());
        };
        let folder = directive.arg(0);
        if folder.contains('$') || !Path::new(folder).is_absolute() {
            return Err(format!("`{}` is not an absolute path", shorten(folder)));
        }
        let is_alias = directive.name == "alias";
        let plain = |folder: &str| folder.trim_end_matches('/').to_owned();
        let (folder, lines, strip) = match self.matcher {
            _ if !is_alias => (plain(folder), Vec::new(), None),
            _ if !self.block.iter().any(|own| std::ptr::eq(own, directive)) => {
                return Err("a location inside of one with `alias` needs a `root` of its own".to_owned());
            }
            LocationMatcher::Exact(_) => {
                let (folder, name) = folder.rsplit_once('/').unwrap_or_default();
                if !is_plain_path(&format!("/{name}")) || name.is_empty() {
                    return Err("`alias` of one path must be one file with a plain name".to_owned());
                }
                (folder.to_owned(), vec![format!("try = [{}]", quote_literal(&format!("/{name}")))], None)
            }
            LocationMatcher::Prefix { path, .. }
                if path.ends_with('/') && folder.ends_with('/') && is_plain_path(path) =>
            {
                (plain(folder), Vec::new(), Some(plain(path)).filter(|path| !path.is_empty()))
            }
            LocationMatcher::Prefix { path, .. } if !path.ends_with('/') && is_plain_path(path) => {
                let why = "paths that continue without a slash have no file; nginx joins them to the folder";
                out.remarks.add(self.at, why);
                (plain(folder), Vec::new(), Some(path.clone()))
            }
            LocationMatcher::Prefix { .. } => {
                return Err("the location ends with a slash and its `alias` does not".to_owned());
            }
            _ => return Err("`alias` in a regular expression is not available".to_owned()),
        };
        let folder = if folder.is_empty() { "/".to_owned() } else { folder };
        let rewrite = strip.map(|path| format!("strip_prefix = {}", quote_literal(&path)));
        Ok(ServedFiles { folder, lines, rewrite })
    }

    /// Checks that folders are served by their index.html, and by this location.
    fn check_index(&self, out: &mut ImportedConfig) -> Result<(), String> {
        let directives = self.scope.list("index");
        let names: Vec<&str> = directives.iter().flat_map(|at| at.args.iter().map(String::as_str)).collect();
        if names.first().is_some_and(|name| *name != INDEX) {
            return Err(format!("`index` begins with `{}`; only {INDEX} is available", shorten(names[0])));
        }
        if let (true, Some(directive)) = (names.len() > 1, directives.first()) {
            out.remarks.add(directive, "the index of a folder is index.html only");
        }
        let (prefix, is_first) = match self.matcher {
            LocationMatcher::Exact(path) => {
                return if path.ends_with('/') { self.check_same(&format!("{path}{INDEX}"), out) } else { Ok(()) };
            }
            LocationMatcher::Prefix { path, first } => (path, *first),
            LocationMatcher::Segments(path) => (path, false),
            _ if !self.has_folders() => return Ok(()),
            _ => return Err("the location of the index of its folders is not known".to_owned()),
        };
        let folder = format!("{}/", prefix.trim_end_matches('/'));
        self.check_same(&format!("{folder}{INDEX}"), out)?;
        self.check_same(&format!("{folder}folder/{INDEX}"), out)?;
        // nginx searches the location of an index again, so another one may take the index of a folder and not the folder.
        let mut rest: Vec<&Directive> = self.site.iter().collect();
        while let Some(at) = rest.pop() {
            if at.name != "location" || is_named(at) {
                continue;
            }
            rest.extend(at.inner());
            match read_matcher(at) {
                Ok(LocationMatcher::Exact(path) | LocationMatcher::Prefix { path, .. }) => {
                    self.check_index_at(&path, prefix, out)?;
                }
                Ok(LocationMatcher::Regex { pattern, ignore_case })
                    if !is_first && takes_index(&pattern, ignore_case, prefix) =>
                {
                    self.check_other(Some(at), INDEX, out)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the index of the folder where another location begins, if that location matches the index but not the
    /// folder.
    fn check_index_at(&self, path: &str, prefix: &str, out: &mut ImportedConfig) -> Result<(), String> {
        let Some(slash) = path.rfind('/') else { return Ok(()) };
        let (folder, name) = path.split_at(slash + 1);
        match !name.is_empty() && INDEX.starts_with(name) && folder.starts_with(prefix) {
            true => self.check_same(&format!("{folder}{INDEX}"), out),
            false => Ok(()),
        }
    }

    /// Returns whether a path of this location may be one of a folder: it ends with a slash.
    fn has_folders(&self) -> bool {
        match self.matcher {
            LocationMatcher::Exact(path) => path.ends_with('/'),
            LocationMatcher::Regex { pattern, ignore_case } => {
                let Ok((expression, ignores)) = translate_path_regex(pattern, *ignore_case, Reading::Exact) else {
                    return true;
                };
                Source::Path.has_common_match(&[(&expression, ignores, true), ("/$", false, true)])
            }
            _ => true,
        }
    }

    /// Translates `try_files`. Returns the line of `try`, unless it is the default.
    fn translate_try(&self, served: &ServedFiles, out: &mut ImportedConfig) -> Result<Option<String>, String> {
        let Some(directive) = self.block.iter().find(|at| at.name == "try_files") else { return Ok(None) };
        let Some((last, names)) = directive.args.split_last() else {
            return Err("`try_files` has no names".to_owned());
        };
        if !served.lines.is_empty() {
            return Err("`try_files` with `alias` of one file is not available".to_owned());
        }
        let unavailable = |name: &str| Err(format!("`try_files` with `{}` is not available", shorten(name)));
        let mut candidates: Vec<String> = Vec::new();
        for name in names {
            let candidate = match name.strip_prefix("$uri") {
                // A folder has its index.html.
                Some("" | "/") => "{path}".to_owned(),
                Some(rest) if is_plain_path(&format!("/x{rest}")) && !rest.ends_with('/') => format!("{{path}}{rest}"),
                // With `alias`, nginx looks for these elsewhere.
                None if is_plain_path(name) && !name.ends_with('/') && served.rewrite.is_none() => name.clone(),
                _ => return unavailable(name),
            };
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        let is_folder_only = names.iter().any(|name| name == "$uri/") && !names.iter().any(|name| name == "$uri");
        if is_folder_only {
            return unavailable("$uri/");
        }
        if self.has_folders() && !names.iter().any(|name| name == "$uri/") && names.iter().any(|name| name == "$uri") {
            if last.starts_with('=') {
                return Err(
                    "`try_files` without `$uri/` refuses folders, and a route serves their index.html".to_owned()
                );
            }
            let why = "a folder is its index.html; nginx serves the last name, because `$uri/` is not in the list";
            out.remarks.add(directive, why);
        }
        match last.as_str() {
            "=404" => {}
            status if status.starts_with('=') => {
                out.remarks.add(directive, "a path without a file gets 404");
            }
            uri => {
                let path =
                    ["$is_args$args", "?$args", "?$query_string"].iter().find_map(|query| uri.strip_suffix(query));
                let path = path.unwrap_or(uri);
                if !is_plain_path(path) || path.ends_with('/') {
                    return unavailable(uri);
                }
                self.check_same(path, out)?;
                let strip =
                    served.rewrite.as_ref().and(self.matcher.literal_path()).map(|path| path.trim_end_matches('/'));
                candidates.push(path.strip_prefix(strip.unwrap_or("")).unwrap_or(path).to_owned());
            }
        }
        if candidates.len() > CANDIDATES_MAX {
            return Err(format!("`try_files` has more than {CANDIDATES_MAX} names"));
        }
        let candidates: Vec<String> = candidates.iter().map(|name| quote_literal(name)).collect();
        let is_default = candidates == [quote_literal("{path}")];
        Ok((!is_default).then(|| format!("try = [{}]", candidates.join(", "))))
    }

    /// Checks that nginx serves a path from this location, or from one that serves the same file to the same clients.
    fn check_same(&self, path: &str, out: &mut ImportedConfig) -> Result<(), String> {
        let Ok(found) = find_location(self.site, path) else {
            return Err(format!("a regular expression that cannot be read may take `{}`", shorten(path)));
        };
        self.check_other(found, path, out)
    }

    /// Checks that another location serves a path as this one does. `None`: the server does, without a location.
    fn check_other(&self, found: Option<&Directive>, path: &str, out: &mut ImportedConfig) -> Result<(), String> {
        match found {
            Some(other) if std::ptr::eq(other, self.at) => return Ok(()),
            None if self.at.name == "server" => return Ok(()),
            _ => {}
        }
        let refuse = || Err(format!("another location serves `{}`", shorten(path)));
        let Some(other) = found else { return refuse() };
        let is_of_site = |at: &Directive| self.site.iter().any(|own| std::ptr::eq(own, at));
        let is_plain = |at: &Directive| HARMLESS.contains(&at.name.as_str()) || at.name == "root";
        let has_protection = self.block.iter().any(|at| PROTECTIONS.contains(&at.name.as_str()));
        let is_here = self.at.name == "server" || is_of_site(self.at);
        if !is_of_site(other) || !is_here || has_protection || !other.inner().iter().all(is_plain) {
            return refuse();
        }
        let scope = self.outer.enter_block(other.inner());
        let folder = |scope: &Scope| scope.get("root").map(|at| (at.name.clone(), at.arg(0).to_owned()));
        if folder(&scope) != folder(self.scope) || folder(&scope).is_some_and(|(name, _)| name == "alias") {
            return refuse();
        }
        let why = format!("its headers are not those of `{}` where another location serves that file", shorten(path));
        if other.inner().iter().any(|at| matches!(at.name.as_str(), "add_header" | "expires")) {
            out.remarks.add(other, &why);
        }
        Ok(())
    }
}

/// Returns whether a regular expression may take the index of a folder below `prefix`, and not the folder.
fn takes_index(pattern: &str, ignore_case: bool, prefix: &str) -> bool {
    let Ok((expression, ignores)) = translate_path_regex(pattern, ignore_case, Reading::Exact) else { return true };
    let below = if prefix.ends_with('/') { "(.*/)?" } else { ".*/" };
    let index = format!("^{}{below}index\\.html$", format_literal(prefix));
    // An expression that matches before the name matches the folder as well. A boundary of words depends on the name.
    let folder = format!("(?:{expression}).*index\\.html$");
    let mut parts = vec![(expression.as_str(), ignores, true), (&index, false, true)];
    if !expression.contains("\\b") && !expression.contains("\\B") {
        parts.push((&folder, ignores, false));
    }
    Source::Path.has_common_match(&parts)
}

/// Returns whether a path has only characters that nginx and a route read alike, and no name that begins with a dot.
fn is_plain_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains("//")
        && !path.contains("/.")
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte))
}
