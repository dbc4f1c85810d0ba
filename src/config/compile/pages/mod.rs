//! Error pages: options `error_pages` and `intercept` of `[server]` and of routes. Called by `server` and `routes`.
//!
//! Input: a table of statuses and files. Output: [`ErrorPages`], with parsed templates. `html` finds out where in a
//! page a placeholder stands, because not every value is safe everywhere.
//!
//! To add a placeholder, add it to [`PagePlaceholder`], to `PLACEHOLDERS` here, and to
//! `proxy::steps::response::error_page`.

mod html;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::StatusCode;

use crate::config::compile::limits::refuse::report_unknown_placeholder;
use crate::config::compile::pages::html::HtmlPage;
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::Section;
use crate::config::schema::server;
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text};
use crate::route::error_pages::{
    ErrorPage, ErrorPages, Intercept, PageEntry, PageFormat, PagePlaceholder, StatusPattern,
};
use crate::template::TextTemplate;

/// Maximum size of a page in bytes.
const PAGE_MAX: usize = 256 * 1024;
/// Maximum number of placeholders of a page: values are short, so that pages stay bounded.
const PLACEHOLDERS_MAX: usize = 64;
const STATUS_HELP: &str = "write a status from 400 to 599, or a class: 502 = \"502.html\", \"5xx\" = \"5xx.html\"";
const FILE_HELP: &str = "name a file that ends in .html, .json or .txt";

const PLACEHOLDERS: [(&str, PagePlaceholder); 5] = [
    ("status", PagePlaceholder::Status),
    ("reason", PagePlaceholder::Reason),
    ("detail", PagePlaceholder::Detail),
    ("request_id", PagePlaceholder::RequestId),
    ("retry_after", PagePlaceholder::RetryAfter),
];

/// The files of pages, each read once. `None` for a file with mistakes.
#[derive(Default)]
pub struct PageFiles(RefCell<HashMap<PathBuf, Option<Arc<ErrorPage>>>>);

/// Compiles the pages of a section, followed by the `inherited` ones. Returns `None` if there are none and no response
/// is replaced.
pub fn compile_error_pages(
    section: &Section,
    inherited: Option<&Arc<ErrorPages>>,
    files: &PageFiles,
) -> Option<Arc<ErrorPages>> {
    if section.node(&server::ERROR_PAGES).is_none() && section.node(&server::INTERCEPT).is_none() {
        return inherited.cloned();
    }
    let mut entries = read_entries(section, files);
    // Sorting is stable; statuses are more specific than classes.
    entries.sort_by_key(|entry| matches!(entry.statuses, StatusPattern::Class(_)));
    entries.extend(inherited.into_iter().flat_map(|pages| pages.entries.iter().cloned()));
    // Pages with mistakes are reported already.
    let has_wrong_pages = names_pages(section) || files.has_mistakes();
    let intercept = read_intercept(section, !entries.is_empty() || has_wrong_pages)
        .or_else(|| inherited.map(|pages| pages.intercept.clone()))
        .unwrap_or_default();
    (!entries.is_empty() || intercept != Intercept::None).then(|| Arc::new(ErrorPages { entries, intercept }))
}

/// Returns whether the section itself has pages, even wrong ones.
fn names_pages(section: &Section) -> bool {
    section.node(&server::ERROR_PAGES).is_some_and(|node| match &node.value {
        Value::Table(table) => !table.entries.is_empty(),
        _ => true,
    })
}

fn read_entries(section: &Section, files: &PageFiles) -> Vec<PageEntry> {
    let table = section.node(&server::ERROR_PAGES).and_then(|_| section.read_table(&server::ERROR_PAGES));
    let mut entries = Vec::new();
    for entry in table.into_iter().flat_map(|table| &table.entries) {
        let statuses = match parse_status_pattern(&entry.key) {
            Ok(statuses) => Some(statuses),
            Err(TextFault { what, help }) => {
                section.report_fault_at(server::ERROR_PAGES.name, entry.place, &what, &help)
            }
        };
        let pages = read_pages(section, &entry.node, files);
        if let (Some(statuses), Some(pages)) = (statuses, pages) {
            entries.push(PageEntry { statuses, pages });
        }
    }
    entries
}

/// Reads the files of one status: one, or several of different formats.
fn read_pages(section: &Section, node: &Node, files: &PageFiles) -> Option<Vec<Arc<ErrorPage>>> {
    let items = match &node.value {
        Value::Array(items) if !items.is_empty() => items.as_slice(),
        Value::String(_) => std::slice::from_ref(node),
        _ => return section.report_wrong_type(server::ERROR_PAGES.name, "a file or a list of files", node),
    };
    let mut pages: Vec<Arc<ErrorPage>> = Vec::new();
    for item in items {
        let path = section.parse_node(server::ERROR_PAGES.name, item, |text| Ok(text.to_owned()))?;
        let page = files.read_page(section, item.place, &path)?;
        if pages.iter().any(|other| other.format == page.format) {
            let what = "two files of one status have the same format";
            return section.report_fault(server::ERROR_PAGES.name, item, what, "keep one file per format");
        }
        pages.push(page);
    }
    Some(pages)
}

/// Parses `502` or `5xx`.
fn parse_status_pattern(text: &str) -> Result<StatusPattern, TextFault> {
    match text {
        "4xx" => return Ok(StatusPattern::Class(4)),
        "5xx" => return Ok(StatusPattern::Class(5)),
        _ => {}
    }
    let status = text.parse::<u16>().ok().filter(|status| (400..=599).contains(status) && text.len() == 3);
    match status.and_then(|status| StatusCode::from_u16(status).ok()) {
        Some(status) => Ok(StatusPattern::Status(status)),
        None => invalid_text(format!("`{text}` is not the status of an error"), STATUS_HELP),
    }
}

/// Reads `intercept`: a boolean, or a list of statuses and classes.
fn read_intercept(section: &Section, has_pages: bool) -> Option<Intercept> {
    const HELP: &str = "write true, false, or a list like [502, \"5xx\"]";
    let node = section.node(&server::INTERCEPT)?;
    let items = match &node.value {
        Value::Bool(false) => return Some(Intercept::None),
        Value::Bool(true) if has_pages => return Some(Intercept::Paged),
        Value::Bool(true) => {
            let help = "add `error_pages`, or list the statuses: intercept = [502, 503, 504]";
            return section.report_fault(
                server::INTERCEPT.name,
                node,
                "there is no error page to replace a response with",
                help,
            );
        }
        Value::Array(items) => items,
        _ => return section.report_wrong_type(server::INTERCEPT.name, "true, false or a list of statuses", node),
    };
    let mut statuses = Vec::new();
    for item in items {
        let text = match &item.value {
            Value::Integer(status) => status.to_string(),
            Value::String(text) => text.value.clone(),
            _ => return section.report_fault(server::INTERCEPT.name, item, "it is not a status", HELP),
        };
        match parse_status_pattern(&text) {
            Ok(pattern) => statuses.push(pattern),
            Err(TextFault { what, .. }) => return section.report_fault(server::INTERCEPT.name, item, &what, HELP),
        }
    }
    Some(Intercept::Only(statuses))
}

impl PageFiles {
    fn has_mistakes(&self) -> bool {
        self.0.borrow().values().any(Option::is_none)
    }

    /// Reads and parses a page. Reports a mistake once, however many sections name the file.
    fn read_page(&self, section: &Section, place: Place, path: &str) -> Option<Arc<ErrorPage>> {
        let format = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
            Some("html" | "htm") => PageFormat::Html,
            Some("json") => PageFormat::Json,
            Some("txt") => PageFormat::Text,
            _ => {
                let what = format!("`{path}` has no extension that tells its content type");
                return section.report_fault_at(server::ERROR_PAGES.name, place, &what, FILE_HELP);
            }
        };
        let path = section.sources.resolve_path(place.file, path);
        if let Some(known) = self.0.borrow().get(&path) {
            return known.clone();
        }
        let page = read_page_file(section, place, &path, format).map(Arc::new);
        self.0.borrow_mut().insert(path, page.clone());
        page
    }
}

fn read_page_file(section: &Section, place: Place, path: &Path, format: PageFormat) -> Option<ErrorPage> {
    let text = match section.sources.read_file(path) {
        Ok(text) => text,
        Err(error) => {
            let what = format!("`{}` cannot be read: {error}", path.display());
            return section.report_fault_at(server::ERROR_PAGES.name, place, &what, error.help());
        }
    };
    if text.trim().is_empty() {
        let what = format!("`{}` is empty", path.display());
        return section.report_fault_at(
            server::ERROR_PAGES.name,
            place,
            &what,
            "write the page, or remove it from `error_pages`",
        );
    }
    if text.len() > PAGE_MAX {
        let what = format!("`{}` is larger than {} KiB", path.display(), PAGE_MAX / 1024);
        return section.report_fault_at(
            server::ERROR_PAGES.name,
            place,
            &what,
            "serve large images and styles from a server",
        );
    }
    let template = parse_page(&text, format);
    let count = template.as_ref().map_or(0, |template| template.placeholders().count());
    if count > PLACEHOLDERS_MAX {
        let what = format!("`{}` has {count} placeholders", path.display());
        return section.report_fault_at(
            server::ERROR_PAGES.name,
            place,
            &what,
            &format!("at most {PLACEHOLDERS_MAX} are possible"),
        );
    }
    match template {
        Ok(text) => Some(ErrorPage { format, text }),
        Err(PageMistake { at, length, fault: TextFault { what, help } }) => {
            let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
            let file = section.sources.add_source(path.display().to_string(), dir, text);
            let place = Place { file, start: at, end: at + length };
            section.add_mistake(Diagnostic::new(place, what).with_help(help));
            None
        }
    }
}

/// A mistake in the text of a page, at an offset.
struct PageMistake {
    at: usize,
    length: usize,
    fault: TextFault,
}

fn parse_page(text: &str, format: PageFormat) -> Result<TextTemplate<PagePlaceholder>, PageMistake> {
    let html = (format == PageFormat::Html).then(|| HtmlPage::scan(text));
    TextTemplate::parse(text, |name, at| {
        let placeholder = PLACEHOLDERS.iter().find(|(known, _)| *known == name).map(|(_, placeholder)| *placeholder);
        let verdict = match (placeholder, &html) {
            (Some(PagePlaceholder::RequestId), Some(html)) => html.check_foreign_value(at, name),
            (Some(_), _) => Ok(()),
            (None, Some(html)) if html.is_raw(at) => check_near_miss(name),
            (None, _) => check_near_miss(name)
                .and_then(|()| report_unknown_placeholder(name, &PLACEHOLDERS.map(|(known, _)| known))),
        };
        verdict.map(|()| placeholder).map_err(|fault| PageMistake { at, length: name.len() + 2, fault })
    })
}

/// Reports what is almost a placeholder. Scripts and styles have words in braces of their own, which are not mistakes.
fn check_near_miss(name: &str) -> Result<(), TextFault> {
    if name.len() > 32 {
        return Ok(());
    }
    let squash = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    // With spaces around it, a word is literal.
    let is_literal = name.starts_with(' ') && name.ends_with(' ');
    let near = PLACEHOLDERS
        .iter()
        .map(|(known, _)| *known)
        .find(|known| squash(known) == squash(name) || strsim::normalized_damerau_levenshtein(known, name) >= 0.8);
    match near.filter(|_| !is_literal) {
        Some(known) => invalid_text(
            format!("unknown placeholder `{{{name}}}`"),
            format!("did you mean `{{{known}}}`? For the text itself write `{{ {name} }}`"),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str, format: PageFormat) -> Option<(usize, String)> {
        parse_page(text, format).err().map(|mistake| (mistake.at, mistake.fault.help))
    }

    #[test]
    fn styles_and_scripts_keep_their_braces() {
        for text in [
            "<style>a{color:red}b{}c{inherit}</style>",
            "<script>if(x){return}const {a,b}=c;import {state} from 'x';</script>",
            "<p>{status} {reason} {detail} {request_id} {retry_after}",
            "<p>{ status } {color: red} {Name}",
            "<a href=\"mailto:help@example.com?subject={request_id}\" title=\"{request_id}\" data-id='{request_id}'>",
            "<STYLE>p{x}</STYLE ><p>",
        ] {
            assert_eq!(fault(text, PageFormat::Html), None, "{text}");
        }
        assert_eq!(fault("{\"status\": {status}, \"a\": {\"b\": 1}}", PageFormat::Json), None);
    }

    #[test]
    fn misspelled_placeholders_are_reported_where_they_are() {
        for (text, at) in [
            ("<p>{retry_afer}", 3),
            ("<p>{Retry-After}", 3),
            ("<p>{requestId}", 3),
            ("<p>{code}", 3),
            ("<script>x={retry_afer}</script>", 10),
            ("<style>p{x}</style><p>{word}", 22),
        ] {
            assert_eq!(fault(text, PageFormat::Html).map(|(at, _)| at), Some(at), "{text}");
        }
        assert!(fault("{statsu}", PageFormat::Text).unwrap().1.contains("{status}"));
        assert!(fault("{code}", PageFormat::Json).unwrap().1.contains("{status}, {reason}"));
    }

    #[test]
    fn a_request_id_stays_out_of_scripts() {
        for text in [
            "<script>id = '{request_id}'</script>",
            "<style>a::before{content:'{request_id}'}</style>",
            "<p onclick=\"f('{request_id}')\">",
            "<p title={request_id}>",
            "<p {request_id}=x>",
            "<a href=\"{request_id}\">",
            "<a href=\"/x/{request_id}\">",
            "<a href=\" JavaScript:f('?{request_id}')\">",
            "<iframe srcdoc=\"{request_id}\">",
            "<p style='{request_id}'>",
            "<!-- {request_id} -->",
            "<SCRIPT type=x>{request_id}",
            "<p title=\"{request_id}",
            "<{request_id}>",
            "<{retry_after}{request_id}>",
            "</{request_id}>",
            "<script>/*<!-- <script> */</script>{request_id}</script>",
            "<script>/*<!-- <SCRIPT> */</script>x</script><p title='{request_id}'>",
        ] {
            assert!(fault(text, PageFormat::Html).is_some(), "{text}");
        }
        assert_eq!(fault("<script>setTimeout(f, {retry_after} * 1000)</script>{request_id}", PageFormat::Html), None);
        // Authors hid scripts in comments from browsers without scripts.
        assert_eq!(fault("<script><!--\nf()\n//--></script>{request_id}", PageFormat::Html), None);
        assert_eq!(fault("1 < {request_id} <b>{request_id}</b>", PageFormat::Html), None);
    }
}
