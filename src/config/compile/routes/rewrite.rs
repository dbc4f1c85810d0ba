//! Options `rewrite` and `rewrite_location` of a route: what the server gets instead of the client's path, query and
//! host. Called by `routes`.

use crate::canonical::canonicalize_path;
use crate::config::closest::find_closest;
use crate::config::compile::matcher::parse_path_prefix;
use crate::config::compile::routes::list_params;
use crate::config::reader::Section;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::{self, route};
use crate::config::tree::Value;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::names::parse_input_name;
use crate::route::matcher::{Matcher, PathPattern};
use crate::route::rewrite::{Capture, QueryEdit, TargetRewrite, encode_plain};
use crate::route::{LocationRewrite, Rewrite, SentHost};
use crate::template::TextTemplate;

/// The options that `path` replaces.
const PREFIXES: [ConfigOption; 2] = [schema::rewrite::STRIP_PREFIX.option, schema::rewrite::ADD_PREFIX.option];

/// Compiles `rewrite` and `rewrite_location`. `matcher` has the conditions of the route, and is `None` if they have
/// mistakes.
pub fn compile_rewrite(section: &Section, matcher: Option<&Matcher>) -> Rewrite {
    let locations = read_locations(section);
    let Some(rewrite) = section.read_section(&route::REWRITE) else {
        return Rewrite { locations: locations.unwrap_or_default(), ..Rewrite::default() };
    };
    let mut result = Rewrite {
        strip_prefix: rewrite.parse_string(&schema::rewrite::STRIP_PREFIX, parse_path_prefix).unwrap_or_default(),
        add_prefix: rewrite.parse_string(&schema::rewrite::ADD_PREFIX, parse_path_prefix).unwrap_or_default(),
        upstream_host: rewrite.get(&schema::rewrite::UPSTREAM_HOST),
        host: rewrite.parse_string(&schema::rewrite::HOST, parse_sent_host),
        target: compile_target(&rewrite, matcher),
        locations: LocationRewrite::default(),
    };
    let has_path = result.target.as_ref().is_some_and(|target| target.path.is_some());
    let has_prefix = !result.strip_prefix.is_empty() || !result.add_prefix.is_empty();
    let changes_urls = has_path || has_prefix || result.upstream_host || result.host.is_some();
    result.locations = locations.unwrap_or(match changes_urls {
        true => LocationRewrite::Automatic,
        false => LocationRewrite::Off,
    });
    if let Some(node) = rewrite.node(&schema::rewrite::PATH)
        && let Some(prefix) = PREFIXES.iter().find(|prefix| rewrite.node(prefix).is_some())
    {
        let what = format!("the route has `{}` as well", prefix.name);
        rewrite.report_fault::<()>(
            schema::rewrite::PATH.name,
            node,
            &what,
            "keep one of the two; `path` is the whole path",
        );
    }
    if let Some(node) = rewrite.node(&schema::rewrite::HOST).filter(|_| result.upstream_host) {
        let what = "the server gets its own host or this one, not both";
        rewrite.report_fault::<()>(schema::rewrite::HOST.name, node, what, "remove `upstream_host` or `host`");
    }
    rewrite.report_unread_keys();
    result
}

/// Parses the `host` of a `rewrite`.
fn parse_sent_host(text: &str) -> Result<SentHost, TextFault> {
    match text {
        "{host}" => Ok(SentHost::WithoutPort),
        _ => values::parse_sent_host(text).map(SentHost::Fixed),
    }
}

/// Reads `rewrite_location`. Returns `None` if the route leaves it to its `rewrite`.
fn read_locations(section: &Section) -> Option<LocationRewrite> {
    const KEY: &str = route::REWRITE_LOCATION.option.name;
    let is_text = |text: &str| match values::parse_header_value(text) {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        Ok(_) => invalid_text("an empty text starts every value", "write the start of a URL or a path"),
        Err(fault) => Err(fault),
    };
    let node = section.node(&route::REWRITE_LOCATION)?;
    let table = match &node.value {
        Value::Bool(true) => return Some(LocationRewrite::Automatic),
        Value::Bool(false) => return Some(LocationRewrite::Off),
        Value::Table(table) => table,
        _ => return section.report_wrong_type(KEY, "true, false or a table", node),
    };
    let mut starts = Vec::new();
    for entry in &table.entries {
        if let Err(TextFault { what, help }) = is_text(&entry.key) {
            section.report_fault_at::<()>(KEY, entry.place, &what, &help);
        }
        let to = section.parse_node(&entry.key, &entry.node, is_text);
        if let Some(to) = to.as_ref().filter(|to| entry.key.ends_with('/') && is_bare_origin(to)) {
            let what = format!("`{to}` has no path: what follows would become a part of its host");
            section.report_fault_at::<()>(KEY, entry.place, &what, &format!("write \"{to}/\""));
        }
        starts.extend(to.map(|to| (entry.key.clone(), to)));
    }
    Some(LocationRewrite::Starts(starts))
}

/// Returns true for a URL that ends with its host and port.
fn is_bare_origin(url: &str) -> bool {
    let authority = url.strip_prefix("//").or_else(|| url.split_once("://").map(|(_, rest)| rest));
    authority.is_some_and(|authority| !authority.contains(['/', '?', '#']))
}

/// Compiles `path` and `query` of a `rewrite`. Returns `None` if there is neither.
fn compile_target(rewrite: &Section, matcher: Option<&Matcher>) -> Option<TargetRewrite> {
    let names = matcher.map(|matcher| CaptureNames::new(&matcher.path));
    let path = rewrite.parse_string(&schema::rewrite::PATH, |text| parse_target_path(text, names.as_ref()));
    let query = match rewrite.node(&schema::rewrite::QUERY) {
        Some(_) => compile_query_edit(rewrite.read_section(&schema::rewrite::QUERY)?, names.as_ref()),
        None => QueryEdit::default(),
    };
    let target = TargetRewrite { path, query };
    (target != TargetRewrite::default()).then_some(target)
}

fn compile_query_edit(section: Section, names: Option<&CaptureNames>) -> QueryEdit {
    use schema::rewrite::query::{ADD, REMOVE, SET};
    let parse_name = |text: &str| parse_input_name(text, "query parameter");
    let removed_names =
        section.node(&REMOVE).and_then(|_| section.read_strings(&REMOVE, parse_name)).unwrap_or_default();
    let mut edit = QueryEdit { remove: removed_names.into_iter().map(|at| at.value).collect(), append: Vec::new() };
    for option in [SET, ADD] {
        let table = section.node(&option).and_then(|_| section.read_table(&option));
        for entry in table.map_or(&[][..], |table| &table.entries) {
            let name = match parse_name(&entry.key) {
                Ok(name) => name,
                Err(TextFault { what, help }) => {
                    section.report_fault_at::<()>(option.name, entry.place, &what, &help);
                    continue;
                }
            };
            if option.name == SET.name && edit.remove.contains(&name) {
                let what = format!("`{name}` is both set and removed");
                let help = "`set` replaces what was there; leave it out of `remove`";
                section.report_fault_at::<()>(option.name, entry.place, &what, help);
            }
            let value = section.parse_node(&entry.key, &entry.node, |text| parse_captures(text, names));
            edit.append.extend(value.map(|value| (name, value.map_literals(encode_plain))));
        }
        if option.name == SET.name {
            edit.remove.extend(edit.append.iter().map(|(name, _)| name.clone()));
        }
    }
    section.report_unread_keys();
    edit
}

/// The captures of a path pattern, by name.
struct CaptureNames(Vec<(String, Capture)>);

impl CaptureNames {
    fn new(path: &PathPattern) -> CaptureNames {
        let captures = match path {
            PathPattern::Segments { .. } => {
                list_params(path).into_iter().map(|param| (param.name, Capture::Segment(param.segment))).collect()
            }
            PathPattern::Regex(regex) => {
                let numbered = (1..regex.captures_len()).map(|number| (number.to_string(), Capture::Group(number)));
                let named = regex.capture_names().enumerate();
                let named = named.filter_map(|(number, name)| Some((name?.to_owned(), Capture::Group(number))));
                numbered.chain(named).collect()
            }
        };
        CaptureNames(captures)
    }

    fn find(&self, name: &str) -> Result<Capture, TextFault> {
        if let Some((_, capture)) = self.0.iter().find(|(known, _)| known == name) {
            return Ok(*capture);
        }
        let help = match find_closest(name, self.0.iter().map(|(known, _)| known.as_str())) {
            Some(known) => format!("did you mean `{{{known}}}`?"),
            None if self.0.is_empty() => {
                "the `path` of the route captures nothing; write \"/users/{id}\", or \"~ ^/old/(.*)$\" for {1}"
                    .to_owned()
            }
            None => {
                let names: Vec<String> = self.0.iter().map(|(known, _)| format!("{{{known}}}")).collect();
                format!("the `path` of the route captures {}", names.join(", "))
            }
        };
        invalid_text(format!("unknown capture `{{{name}}}`"), help)
    }
}

/// Parses a text with captures. `names` is `None` if the path of the route has mistakes: then every capture is
/// accepted.
fn parse_captures(text: &str, names: Option<&CaptureNames>) -> Result<TextTemplate<Capture>, TextFault> {
    let variable = text.match_indices('$').find_map(|(at, _)| {
        let rest = &text[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    });
    if let Some(name) = variable {
        let what = format!("`${name}` is a variable of other programs");
        return invalid_text(what, format!("a capture of the route's path is written {{{name}}}"));
    }
    TextTemplate::parse(text, |name, _| match names {
        Some(names) => names.find(name).map(Some),
        None => Ok(Some(Capture::Group(0))),
    })
}

/// Parses `rewrite.path`. Its literal text must be canonical, as paths of requests are.
fn parse_target_path(text: &str, names: Option<&CaptureNames>) -> Result<TextTemplate<Capture>, TextFault> {
    const HELP: &str = "write the whole path to send, like \"/v1/blog/{2}\"";
    if !text.starts_with('/') {
        return invalid_text(format!("`{text}` does not start with `/`"), HELP);
    }
    if text.contains(['?', '#']) {
        let help = "a query has options of its own: query = { set = { page = \"{1}\" } }";
        return invalid_text("a path has no query and no fragment", help);
    }
    let template = parse_captures(text, names)?;
    // Captures are pieces of canonical paths. The text around them must keep the path canonical.
    let literal = template.render(|_, out| out.push('x'));
    let path = canonicalize_path(&literal, |fault| match fault {
        crate::canonical::PathFault::Slash => Ok(()),
        _ => invalid_text(
            "it is not the path of a URL",
            "leave out `..`, `\\` and control characters; write %25 for `%`",
        ),
    })?;
    match path.is_sent_rewritten() {
        true => {
            let path = path.to_send(&literal);
            invalid_text("it is not canonical", format!("write it as requests are forwarded, here like \"{path}\""))
        }
        false => Ok(template),
    }
}
