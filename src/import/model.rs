//! Collects the parts of the imported config and writes it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use indexmap::IndexMap;
use ipnet::IpNet;

use crate::import::access::{ClientAccess, format_network};
use crate::import::remarks::Remarks;
use crate::import::text::{clean_name, format_array, format_list, format_pairs, format_section};
use crate::text::quote_literal;

/// Maximum number of bytes of the written config. Sluicegate reads no larger file.
const BYTES_MAX: usize = 16 << 20;
/// Maximum number of regular expressions. Compiling each takes a while.
const REGEXES_MAX: usize = 1000;
/// Maximum number of limits of one route, including the limits of its `auth`.
pub const LIMITS_MAX: usize = 16;

/// The status of clients that `allow` and `deny` refuse.
const ACCESS_STATUS: u16 = 403;
const RATELIMIT_NOTE: &str = "nginx sends no RateLimit headers, so they are off in [headers]. Remove that line to tell clients about their limits.";

/// The action of a route.
#[derive(Clone, Debug)]
pub enum RouteAction {
    /// The name of an upstream.
    Upstream(String),
    /// The names of upstreams that share the requests, with their weights.
    Split(Vec<(String, u64)>),
    /// The folder of the files.
    Files(String),
    Respond {
        status: u16,
        body: Option<String>,
        content_type: Option<String>,
        location: Option<String>,
    },
    Redirect(ImportedRedirect),
}

/// A `redirect`.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedRedirect {
    pub to: String,
    pub status: u16,
    pub keeps_query: bool,
}

/// The changes of a route's response headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseLines {
    pub remove: Vec<String>,
    pub set: Vec<(String, String)>,
    /// Lines for every response, including the gateway's own.
    pub add: Vec<(String, String)>,
    /// Lines for successful responses and redirects.
    pub add_on_success: Vec<(String, String)>,
}

impl ResponseLines {
    /// Returns the lines that the gateway's own responses have, too.
    pub fn added_only(&self) -> ResponseLines {
        ResponseLines { add: self.add.clone(), add_on_success: self.add_on_success.clone(), ..Self::default() }
    }

    /// Returns about how many bytes the option takes in the config.
    fn size(&self) -> usize {
        let pairs = [&self.set, &self.add, &self.add_on_success].into_iter().flatten();
        self.remove.iter().map(String::len).sum::<usize>()
            + pairs.map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    /// Formats the option. Returns `None` if nothing changes.
    fn format_option(&self) -> Option<String> {
        let mut parts = Vec::new();
        if !self.remove.is_empty() {
            parts.push(format!("remove = {}", format_list(&self.remove)));
        }
        if !self.set.is_empty() {
            parts.push(format!("set = {}", format_pairs(&self.set)));
        }
        for (key, lines) in [("add", &self.add), ("add_on_success", &self.add_on_success)] {
            if !lines.is_empty() {
                parts.push(format!("{key} = {}", format_lines_by_name(lines)));
            }
        }
        // The `Location` of a response from the config is not for errors.
        if !self.add.is_empty() || self.set.iter().any(|(name, _)| name != "location") {
            parts.push("on = \"all\"".to_owned());
        }
        (!parts.is_empty()).then(|| format!("response_headers = {{ {} }}", parts.join(", ")))
    }
}

/// Formats lines by the names of their headers. A header with several lines has a list.
fn format_lines_by_name(lines: &[(String, String)]) -> String {
    let mut by_name: IndexMap<&str, Vec<&str>> = IndexMap::new();
    for (name, value) in lines {
        by_name.entry(name).or_default().push(value);
    }
    let lines: Vec<String> =
        by_name.iter().map(|(name, values)| format!("{} = {}", quote_literal(name), format_list(values))).collect();
    format!("{{ {} }}", lines.join(", "))
}

/// A route without its host and path.
#[derive(Clone, Debug)]
pub struct RouteBody {
    /// File, line and text of the original, for the comment before the route.
    pub origin: String,
    /// The numbers of the remarks about this route.
    pub remarks: Vec<usize>,
    pub action: RouteAction,
    pub limits: Vec<String>,
    /// Limits that refuse the requests of a condition, in their order. The first that applies decides.
    pub guards: Vec<String>,
    /// Those that the server has, before it chooses a location.
    pub server_guards: Vec<String>,
    pub response: ResponseLines,
    /// The line of a condition besides host and path.
    pub condition: Option<String>,
    /// The expression of the path, if the route needs its groups. All requests of the location match it.
    pub pattern: Option<String>,
    /// Additional lines of the route.
    pub lines: Vec<String>,
    /// nginx redirects from the path without its final slash, whether or not it then serves the client.
    pub redirects_to_slash: bool,
    /// The original route forwards requests, whether or not it then serves the client.
    pub has_pass: bool,
    /// The original route has `allow` or `deny`.
    pub has_access_rules: bool,
    /// The number of the remark that explains why the route is closed. `None` if the route is open.
    pub closed: Option<usize>,
}

impl RouteBody {
    /// Creates a route with an action.
    pub fn new(origin: String, action: RouteAction) -> RouteBody {
        RouteBody {
            origin,
            remarks: Vec::new(),
            action,
            limits: Vec::new(),
            guards: Vec::new(),
            server_guards: Vec::new(),
            response: ResponseLines::default(),
            condition: None,
            pattern: None,
            lines: Vec::new(),
            redirects_to_slash: false,
            has_pass: false,
            has_access_rules: false,
            closed: None,
        }
    }

    /// Creates a route that responds with a status and no body.
    pub fn with_status(origin: String, status: u16) -> RouteBody {
        RouteBody::new(origin, RouteAction::Respond { status, body: None, content_type: None, location: None })
    }

    /// Closes the route because of a remark. The first remark stays the reason.
    pub fn close(&mut self, number: usize) {
        self.add_remark(number);
        self.closed.get_or_insert(number);
    }

    /// Adds the `rewrite` of a route that forwards. Redirects of the server are mapped back only if the route says so
    /// already.
    pub fn add_rewrite(&mut self, options: &[String]) {
        if options.is_empty() {
            return;
        }
        self.lines.push(format!("rewrite = {{ {} }}", options.join(", ")));
        if !self.lines.iter().any(|line| line.starts_with("rewrite_location")) {
            self.lines.push("rewrite_location = false".to_owned());
        }
    }

    /// Returns whether the route redirects to the host of the request.
    pub fn redirects_to_host(&self) -> bool {
        matches!(&self.action, RouteAction::Redirect(redirect) if redirect.to.contains("{host}"))
    }

    /// Adds the number of a remark once.
    pub fn add_remark(&mut self, number: usize) {
        if !self.remarks.contains(&number) {
            self.remarks.push(number);
        }
    }

    /// Returns true if the original route forwards requests, or if the route is closed.
    pub fn is_proxied(&self) -> bool {
        let is_forwarded = matches!(self.action, RouteAction::Upstream(_) | RouteAction::Split(_));
        self.has_pass || is_forwarded || self.closed.is_some()
    }
}

/// A limit of the config. Uses with another status share it, but get the status of the first.
#[derive(Debug)]
struct WrittenLimit {
    name: String,
    lines: Vec<String>,
    status: u16,
}

/// The config that an import builds.
#[derive(Default)]
pub struct ImportedConfig {
    pub remarks: Remarks,
    pub notes: Vec<String>,
    /// The lines of `[server]`.
    pub server: Vec<String>,
    pub listeners: Vec<Vec<String>>,
    /// The lines of each `[[rls]]`.
    pub rls: Vec<Vec<String>>,
    routes: Vec<String>,
    route_names: HashSet<String>,
    bytes: usize,
    /// The bytes of translated routes that are not yet written.
    reserved: usize,
    /// The number of regular expressions so far.
    regexes: usize,
    limits: IndexMap<String, WrittenLimit>,
    limit_names: HashSet<String>,
    /// The names of the upstreams, by what the original config calls their servers, and by their lines.
    upstreams: IndexMap<String, IndexMap<Vec<String>, String>>,
    upstream_names: HashSet<String>,
    /// The names of the sets, by their networks.
    sets: IndexMap<Vec<IpNet>, String>,
    accesses: HashMap<Vec<(bool, IpNet)>, Option<AccessUse>>,
    /// All listeners have port 80 or 443, which clients do not name.
    pub has_default_ports: bool,
    /// Files with passwords, and why they are not accepted.
    pub password_files: HashMap<PathBuf, Option<String>>,
}

/// The translation of a list of `allow` and `deny`: a line of the route, or the name of a limit.
#[derive(Clone, Debug)]
enum AccessUse {
    Deny(String),
    Only(String),
}

impl ImportedConfig {
    /// Adds a note to the top of the config, once.
    pub fn add_note(&mut self, text: &str) {
        if !self.notes.iter().any(|note| note == text) {
            self.notes.push(text.to_owned());
        }
    }

    /// Defines a limit unless one with this `identity` exists. Returns its name, and whether its status differs from
    /// `status`.
    pub fn define_limit(&mut self, identity: String, wanted: &str, lines: Vec<String>, status: u16) -> (String, bool) {
        if let Some(limit) = self.limits.get(&identity) {
            return (limit.name.clone(), limit.status != status);
        }
        let name = choose_name(wanted, &mut self.limit_names);
        self.limits.insert(identity, WrittenLimit { name: name.clone(), lines, status });
        (name, false)
    }

    /// Copies a limit, so that the same clients have a second budget. Returns the name of the copy, or `None` for
    /// limits on requests in progress.
    pub fn copy_limit(&mut self, name: &str, suffix: &str) -> Option<String> {
        let limit = self.limits.values().find(|limit| limit.name == name)?;
        let (lines, status) = (limit.lines.clone(), limit.status);
        if lines.iter().any(|line| line.contains("\"concurrency\"")) {
            return None;
        }
        Some(self.define_limit(format!("{suffix} {name}"), &format!("{name}-{suffix}"), lines, status).0)
    }

    /// Defines an upstream unless one for the same servers with the same lines exists. `servers`: what the original
    /// config calls them. Returns its name, and whether another upstream has the same servers with other lines.
    pub fn define_upstream(&mut self, servers: &str, lines: Vec<String>) -> (String, bool) {
        let same = self.upstreams.entry(servers.to_owned()).or_default();
        let has_other = same.keys().any(|other| *other != lines);
        let name = same.entry(lines).or_insert_with(|| choose_name(servers, &mut self.upstream_names));
        (name.clone(), has_other)
    }

    /// Returns the lines of an upstream.
    pub fn find_upstream(&self, name: &str) -> Option<Vec<String>> {
        let mut all = self.upstreams.values().flatten();
        all.find(|(_, own)| *own == name).map(|(lines, _)| lines.clone())
    }

    /// Restricts the clients of a route by `allow` and `deny` rules in nginx's order.
    pub fn restrict_clients(&mut self, body: &mut RouteBody, rules: &[(bool, IpNet)]) {
        if rules.is_empty() {
            return;
        }
        if !self.accesses.contains_key(rules) {
            let ClientAccess { allowed, denied } = ClientAccess::new(rules);
            let access = match denied.len() {
                0 => None,
                many if many <= allowed.len() || allowed.is_empty() => {
                    let networks: Vec<String> = denied.iter().map(format_network).collect();
                    Some(AccessUse::Deny(format!("deny = {}", format_array(&networks))))
                }
                _ => {
                    let next = format!("allowed-{}", self.sets.len() + 1);
                    let set = self.sets.entry(allowed).or_insert(next).clone();
                    let lines = vec![
                        "rate = \"1/s\"".to_owned(),
                        "key = \"all\"".to_owned(),
                        format!("when = {{ client = {} }}", quote_literal(&format!("!set:{set}"))),
                        "overrides = [{ key = \"*\", rate = 0 }]".to_owned(),
                    ];
                    Some(AccessUse::Only(
                        self.define_limit(format!("only {set}"), &format!("only-{set}"), lines, 403).0,
                    ))
                }
            };
            self.accesses.insert(rules.to_vec(), access);
        }
        match self.accesses.get(rules) {
            Some(Some(AccessUse::Deny(line))) => body.lines.push(line.clone()),
            Some(Some(AccessUse::Only(limit))) => body.limits.insert(0, limit.clone()),
            _ => {}
        }
    }

    /// Counts a regular expression. Returns false if there are too many.
    pub fn count_regex(&mut self) -> bool {
        self.regexes += 1;
        self.regexes <= REGEXES_MAX
    }

    /// Counts the bytes of a route that will be written. Returns false if the config would be too large.
    pub fn reserve_route(&mut self, body: &RouteBody) -> bool {
        self.reserved += body.lines.iter().map(String::len).sum::<usize>() + body.response.size();
        self.reserved <= BYTES_MAX
    }

    /// Makes a redirect to the host of the request a path where clients choose the host, or closes it.
    fn close_open_redirect(&mut self, hosts: &[String], body: &mut RouteBody) {
        let is_open = hosts.is_empty() || hosts.iter().any(|host| host.ends_with(".*"));
        // A path alone leads to the same host.
        if let (RouteAction::Redirect(redirect), true) = (&mut body.action, is_open)
            && let Some(path) = redirect.to.strip_prefix("{scheme}://{host}").filter(|path| path.starts_with('/'))
        {
            redirect.to = path.to_owned();
            if !self.has_default_ports {
                let text =
                    format!("{}: the redirect keeps the port of the request, which nginx leaves out", body.origin);
                let number = self.remarks.add_text(text);
                body.add_remark(number);
            }
        }
        if is_open && body.redirects_to_host() {
            let text = "a redirect to the host of the request needs the names of the hosts, as the client chooses it";
            let number = self.remarks.add_text(format!("{}: {text}", body.origin));
            body.close(number);
        }
    }

    /// Writes a route. Returns false if the config would be too large.
    pub fn write_route(&mut self, hosts: &[String], path: &str, mut body: RouteBody) -> bool {
        // Of several limits that refuse for good, the last one determines the response.
        body.limits.extend(body.guards.drain(..).rev());
        if body.limits.len() > LIMITS_MAX {
            body.limits.truncate(LIMITS_MAX);
            let text = format!("{}: a route has at most {LIMITS_MAX} limits, the others are left out", body.origin);
            let number = self.remarks.add_text(text);
            body.close(number);
        }
        self.close_open_redirect(hosts, &mut body);
        let mut text = format!("# {}\n", body.origin);
        if !body.remarks.is_empty() {
            let numbers: Vec<String> = body.remarks.iter().map(|number| format!("({number})")).collect();
            text.push_str(&format!("# See {} above.\n", numbers.join(", ")));
        }
        text.push_str("[[route]]\n");
        let mut line = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        let default_name = format!("{}{path}", hosts.first().map_or("", String::as_str));
        if !self.route_names.insert(default_name.clone()) {
            line(&format!("name = {}", quote_literal(&format!("{default_name} {}", self.routes.len() + 1))));
        }
        if !hosts.is_empty() {
            line(&format!("host = {}", format_list(hosts)));
        }
        line(&format!("path = {}", quote_literal(path)));
        body.condition.iter().for_each(|condition| line(condition));
        let is_closed = body.closed.is_some();
        if let Some(number) = body.closed {
            let body = quote_literal(&format!("not imported, see comment {number} of the config\n"));
            line(&format!("respond = {{ status = 501, body = {body} }}"));
        }
        let comment = if is_closed { "# " } else { "" };
        match &body.action {
            RouteAction::Upstream(name) => line(&format!("{comment}upstream = {}", quote_literal(name))),
            RouteAction::Split(branches) => {
                let branch = |(name, weight): &(String, u64)| {
                    format!("{{ upstream = {}, weight = {weight} }}", quote_literal(name))
                };
                let branches: Vec<String> = branches.iter().map(branch).collect();
                line(&format!("{comment}split = [{}]", branches.join(", ")));
            }
            RouteAction::Files(folder) => line(&format!("{comment}files = {}", quote_literal(folder))),
            RouteAction::Respond { .. } | RouteAction::Redirect(_) if is_closed => {}
            RouteAction::Redirect(ImportedRedirect { to, status, keeps_query }) => {
                let query = if *keeps_query { "" } else { ", query = \"drop\"" };
                line(&format!("redirect = {{ to = {}, status = {status}{query} }}", quote_literal(to)));
            }
            RouteAction::Respond { status, body: text, content_type, location } => {
                let mut parts = vec![format!("status = {status}")];
                parts.extend(text.as_ref().map(|text| format!("body = {}", quote_literal(text))));
                parts.extend(content_type.as_ref().map(|kind| format!("content_type = {}", quote_literal(kind))));
                line(&format!("respond = {{ {} }}", parts.join(", ")));
                body.response.set.extend(location.iter().map(|url| ("location".to_owned(), url.clone())));
            }
        }
        if !body.limits.is_empty() {
            line(&format!("{comment}limits = {}", format_array(&body.limits)));
        }
        for own in body.response.format_option().iter().chain(&body.lines) {
            line(&format!("{comment}{own}"));
        }
        self.bytes += text.len();
        self.routes.push(text);
        self.bytes <= BYTES_MAX
    }

    /// Writes the whole config. Returns it with the number of its remarks.
    pub fn write_config(mut self, from: &str) -> (String, usize) {
        let has_limits = self.rls.is_empty() && self.limits.values().any(|limit| limit.status != ACCESS_STATUS);
        if has_limits {
            self.add_note(RATELIMIT_NOTE);
        }
        let count = self.remarks.count();
        let mut text = format!("# Imported from {from} by `sluicegate import`.\n");
        if count > 0 {
            text.push_str("#\n# Not imported, or not exactly; the routes below refer to these numbers:\n");
            text.push_str(&self.remarks.format_lines().join("\n"));
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("#\n# Note: {note}\n"));
        }
        let mut section = |title: String, lines: &[String]| {
            text.push_str(&format!("\n{title}\n"));
            for line in lines {
                text.push_str(line);
                text.push('\n');
            }
        };
        if !self.server.is_empty() {
            section("[server]".to_owned(), &self.server);
        }
        if has_limits {
            section("[headers]".to_owned(), &["ratelimit = \"off\"".to_owned()]);
        }
        for listener in &self.listeners {
            section("[[listener]]".to_owned(), listener);
        }
        for (lines, name) in self.upstreams.values().flatten() {
            section(format!("[upstream.{}]", format_section(name)), lines);
        }
        for WrittenLimit { name, lines, status } in self.limits.values() {
            let lines: Vec<String> = lines.iter().cloned().chain(format_refusal(*status)).collect();
            section(format!("[limit.{}]", format_section(name)), &lines);
        }
        for (networks, name) in &self.sets {
            let networks: Vec<String> = networks.iter().map(format_network).collect();
            text.push_str(&format!("\n[set.{}]\nvalues = {}\n", format_section(name), format_array(&networks)));
        }
        for route in &self.routes {
            text.push('\n');
            text.push_str(route);
        }
        for lines in &self.rls {
            text.push_str(&format!("\n[[rls]]\n{}\n", lines.join("\n")));
        }
        (text, count)
    }
}

/// Chooses a name that is not among those `taken`, and adds it to them.
fn choose_name(base: &str, taken: &mut HashSet<String>) -> String {
    let base = clean_name(base);
    let mut free = base.clone();
    let mut next = 1;
    while !taken.insert(free.clone()) {
        next += 1;
        free = format!("{base}-{next}");
    }
    free
}

/// Formats the refusal of a limit. Returns `None` for 429, the default.
fn format_refusal(status: u16) -> Option<String> {
    match status {
        429 => None,
        403 => Some("refuse = { status = 403, body = \"forbidden\\n\", content_type = \"text/plain\" }".to_owned()),
        status => Some(format!("refuse = {{ status = {status} }}")),
    }
}
