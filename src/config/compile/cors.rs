//! `cors` of `[server]` and of routes: `false`, or a table. Called by `server` and `routes`.

use std::time::Duration;

use http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
use http::{HeaderValue, Method};

use crate::config::compile::matcher::parse_method;
use crate::config::compile::wide_origins::warn_of_wide_origins;
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::expressions::{ExpressionFlags, build_regex};
use crate::config::reader::Section;
use crate::config::schema::cors;
use crate::config::schema::row::ConfigOption;
use crate::config::schema::value_type::ValueType;
use crate::config::schema::{route, server};
use crate::config::tree::{Node, Value};
use crate::config::values::{TextFault, invalid_text, parse_header_name};
use crate::route::cors::{AllowedOrigins, CORS_HEADERS, CorsPolicy, OriginPattern, canonicalize_origin};
use crate::route::{Dialect, ResponseEdit};

/// The item of a list that stands for everything.
const EVERY: &str = "*";
const ORIGIN_HELP: &str = "write \"https://app.example.com\", \"https://*.example.com\", \"~ https://[a-z]+\\\\.example\\\\.com\", \"null\" or \"*\"";
/// The methods of a route that lists none.
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
/// The headers that pages may always read: without them, a page does not know when to try again.
const EXPOSED: [&str; 3] = ["retry-after", "ratelimit", "ratelimit-policy"];
const EXPOSED_DRAFT_03: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const EXPOSED_LEGACY: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
/// Origins that only an expression for every origin matches.
const UNLIKELY_ORIGINS: [&str; 2] = ["https://origin-of-nobody.invalid", "http://192.0.2.7:49151"];

/// The `cors` of one section.
#[derive(Clone)]
pub struct CorsOption {
    origins: AllowedOrigins,
    methods: MethodList,
    /// `None`: every header.
    headers: Option<Vec<String>>,
    expose: Vec<String>,
    credentials: bool,
    max_age: Duration,
}

#[derive(Clone)]
enum MethodList {
    OfRoute,
    Listed(Vec<Method>),
    Every,
}

/// Reads the option. A section without it inherits all of `inherited`; a section with it inherits nothing.
pub fn read_cors(section: &Section, inherited: Option<&CorsOption>) -> Option<CorsOption> {
    match section.node(&server::CORS) {
        None => inherited.cloned(),
        Some(Node { value: Value::Bool(false), .. }) => None,
        Some(Node { value: Value::Table(table), .. }) => {
            let table = Section::new(section.sources, &cors::TABLE, "`cors`", table);
            let cors = read_table(&table);
            table.report_unread_keys();
            cors
        }
        Some(node) => section.report_wrong_type(server::CORS.name, "false or a table", node),
    }
}

fn read_table(table: &Section) -> Option<CorsOption> {
    let origins = read_origins(table);
    let methods = match read_list(table, &cors::METHODS, parse_method) {
        None => MethodList::OfRoute,
        Some(None) => MethodList::Every,
        Some(Some(methods)) => MethodList::Listed(methods),
    };
    let name = |text: &str| parse_header_name(text).map(|name| name.as_str().to_owned());
    let headers = read_list(table, &cors::HEADERS, name)
        .unwrap_or_else(|| Some(vec!["authorization".to_owned(), "content-type".to_owned()]));
    let expose = match read_list(table, &cors::EXPOSE, name) {
        None => Vec::new(),
        Some(None) => vec![EVERY.to_owned()],
        Some(Some(names)) => names,
    };
    let credentials = table.get(&cors::CREDENTIALS);
    let max_age = table.get(&cors::MAX_AGE);
    let origins = origins?;
    if credentials {
        check_credentials(table, &origins)?;
        warn_of_wide_origins(table);
        // Browsers take these `*` for names of headers.
        if expose.iter().any(|name| name == EVERY) {
            let node = table.node(&cors::EXPOSE)?;
            let what = "with `credentials`, browsers do not accept `*`";
            return table.report_fault(cors::EXPOSE.name, node, what, "list the headers");
        }
    }
    Some(CorsOption { origins, methods, headers, expose, credentials, max_age })
}

/// Reads a list in which `*` stands for everything. Returns `None` if it is missing or wrong, and `Some(None)` for `*`.
fn read_list<T: PartialEq>(
    table: &Section,
    option: &ConfigOption,
    parse: impl Fn(&str) -> Result<T, TextFault>,
) -> Option<Option<Vec<T>>> {
    let items = table.read_strings(option, |text| if text == EVERY { Ok(None) } else { parse(text).map(Some) })?;
    let may_be_empty = !matches!(option.value_type(), ValueType::List { least: 1.., .. });
    if let (true, Some(node)) = (items.is_empty() && !may_be_empty, table.node(option)) {
        return table.report_fault(option.name, node, "the list is empty", "cors = false leaves CORS to the server");
    }
    if let (Some(every), true) = (items.iter().find(|item| item.value.is_none()), items.len() > 1) {
        return table.report_fault_at(option.name, every.place, "`*` covers the other items", "keep `*` or the others");
    }
    Some(items.into_iter().map(|item| item.value).collect())
}

fn read_origins(table: &Section) -> Option<AllowedOrigins> {
    if table.node(&cors::ORIGINS).is_none() {
        let what = format!("{} needs `origins`", table.title);
        return table.report_missing(what, "list the origins of the pages: origins = [\"https://app.example.com\"]");
    }
    let origins = read_list(table, &cors::ORIGINS, parse_origin)?;
    for pattern in origins.iter().flatten() {
        if let (OriginPattern::Regex(regex), Some(node)) = (pattern, table.node(&cors::ORIGINS)) {
            table.sources.warn_if_slow(node.place, regex.as_str(), ExpressionFlags::default());
        }
    }
    Some(origins.map_or(AllowedOrigins::Any, AllowedOrigins::Listed))
}

/// Refuses credentials for pages of every origin: each site that a user visits could act as that user.
fn check_credentials(table: &Section, origins: &AllowedOrigins) -> Option<()> {
    let is_every = |pattern: &OriginPattern| UNLIKELY_ORIGINS.iter().any(|origin| pattern.matches(origin));
    let what = match origins {
        AllowedOrigins::Any => "`origins` is `*`, and pages of every origin would act as their user",
        AllowedOrigins::Listed(patterns) if patterns.iter().any(is_every) => {
            "an expression in `origins` matches every origin, and pages of all of them would act as their user"
        }
        AllowedOrigins::Listed(_) => return Some(()),
    };
    let node = table.node(&cors::CREDENTIALS)?;
    table.report_fault(
        cors::CREDENTIALS.name,
        node,
        what,
        "list the origins of your own pages, or leave `credentials` out",
    )
}

fn parse_origin(text: &str) -> Result<OriginPattern, TextFault> {
    if let Some(pattern) = text.strip_prefix('~') {
        // Checked alone first, because a parenthesis could close the group.
        build_regex(pattern.trim_start(), ExpressionFlags::default())?;
        let anchored = format!("^(?:{})$", pattern.trim_start());
        return build_regex(&anchored, ExpressionFlags::default()).map(OriginPattern::Regex);
    }
    // A name without a scheme means a page over HTTPS.
    let origin_text = if text.starts_with("*.") { format!("https://{text}") } else { text.to_owned() };
    if let Some((scheme, suffix)) = origin_text.split_once("://*.") {
        let example = canonicalize_origin(&format!("{scheme}://{suffix}")).map(|origin| origin.into_owned());
        return match example.as_deref().and_then(|origin| origin.split_once("://")) {
            Some((scheme, host)) if !host.starts_with('[') => {
                Ok(OriginPattern::Subdomains { start: format!("{scheme}://"), end: format!(".{host}") })
            }
            _ => invalid_text(format!("`{text}` is not an origin"), ORIGIN_HELP),
        };
    }
    if text.contains('*') {
        return invalid_text(format!("`{text}`: `*` may only replace the first labels of a host"), ORIGIN_HELP);
    }
    match canonicalize_origin(text) {
        Some(origin) => Ok(OriginPattern::Exact(origin.into_owned())),
        None if canonicalize_origin(text.trim_end_matches('/')).is_some() => {
            let help = format!("write \"{}\"", text.trim_end_matches('/'));
            invalid_text(format!("`{text}` has a path, and an origin has none"), help)
        }
        None if canonicalize_origin(&format!("https://{text}")).is_some() => {
            let help = format!("write \"https://{text}\" or \"http://{text}\"");
            invalid_text(format!("`{text}` has no scheme"), help)
        }
        None => invalid_text(format!("`{text}` is not an origin"), ORIGIN_HELP),
    }
}

/// Checks the changes of the headers of CORS: `cors` alone sets them, and without it the gateway's own responses need
/// them.
pub fn check_edits(section: &Section, has_cors: bool, edit: &ResponseEdit) -> Option<()> {
    if !has_cors {
        warn_of_unreadable_refusals(section, edit);
        return Some(());
    }
    let Some(name) = CORS_HEADERS.into_iter().find(|name| edit.edits(name)) else { return Some(()) };
    let node = section.node(&route::RESPONSE_HEADERS)?;
    let what = format!("it changes `{name}`, which `cors` of this route sets");
    let help =
        "leave it out; or write cors = false in the route, which leaves CORS to `response_headers` and the server";
    section.report_fault(route::RESPONSE_HEADERS.name, node, &what, help)
}

/// Warns of a route that lets pages read the responses of the server, but not those of the gateway.
fn warn_of_unreadable_refusals(section: &Section, edit: &ResponseEdit) {
    let edits = [&edit.edit.set, &edit.default, &edit.add];
    let is_added = edits.iter().any(|lines| lines.iter().any(|(name, _)| *name == ACCESS_CONTROL_ALLOW_ORIGIN));
    let Some(node) = section.node(&route::RESPONSE_HEADERS).filter(|_| is_added && !edit.on_refusals) else { return };
    let what = "pages of other origins cannot read the gateway's own responses, such as 429, which lack these headers";
    let help =
        "write cors = { origins = [\"https://app.example.com\"] } instead, or add on = \"all\" to `response_headers`";
    section.sources.add_warning(DiagnosticCode::CorsWithoutRefusals, Diagnostic::new(node.place, what).with_help(help));
}

impl CorsOption {
    /// Builds the policy of a route with these methods and rate limit headers.
    pub fn to_policy(&self, methods: &[Method], dialects: &[Dialect]) -> CorsPolicy {
        let join_methods = |methods: &[Method]| join(methods.iter().map(Method::as_str));
        let methods = match &self.methods {
            MethodList::Every => None,
            MethodList::Listed(listed) => Some(join_methods(listed)),
            MethodList::OfRoute if methods.is_empty() => Some(join_methods(&METHODS)),
            MethodList::OfRoute => Some(join_methods(methods)),
        };
        let of_dialects = dialects.iter().flat_map(|dialect| match dialect {
            Dialect::Draft11 | Dialect::Draft07 => &[][..],
            Dialect::Draft03 => &EXPOSED_DRAFT_03,
            Dialect::Legacy | Dialect::Epoch => &EXPOSED_LEGACY,
        });
        let mut names: Vec<&str> = EXPOSED.iter().chain(of_dialects).copied().collect();
        for name in &self.expose {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        CorsPolicy {
            origins: self.origins.clone(),
            credentials: self.credentials,
            methods,
            headers: self.headers.as_ref().map(|headers| join(headers.iter().map(String::as_str))),
            exposed: join(names.into_iter()),
            max_age: HeaderValue::from(self.max_age.as_secs()),
        }
    }
}

/// Joins tokens to the value of a header.
fn join<'t>(tokens: impl Iterator<Item = &'t str>) -> HeaderValue {
    let text = tokens.collect::<Vec<_>>().join(", ");
    // Methods and names of headers contain only characters that a value may have.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
