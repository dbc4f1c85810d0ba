//! Translates the keys of `limit_req_zone` and `limit_conn_zone` to key parts and conditions. Their variables may come
//! from `map` and `geo`.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use crate::import::access::{ClientAccess, RULES_MAX, format_network, parse_networks};
use crate::import::nginx::limits::entries::{MapEntry, find_overlap};
use crate::import::syntax::Directive;
use crate::import::text::format_array;
use crate::import::unseen::explain_unseen;
use crate::text::quote_literal;

/// A translated key of a zone, with the condition under which requests have it.
#[derive(Clone, Debug, Default)]
pub struct ZoneKey {
    parts: Vec<String>,
    /// The patterns by their name in `when`, then by the name of the header, query parameter or cookie.
    when: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// The key has `$server_name`, so each server has its own budget.
    pub per_server: bool,
    /// The key or the condition has parts that a request may repeat. nginx uses the first value.
    repeats: bool,
    /// Requests without a part of the key are not counted.
    skips_missing: bool,
}

impl ZoneKey {
    /// Returns whether no two addresses have the same key.
    pub fn is_per_client(&self) -> bool {
        self.parts.iter().any(|part| part == "ip/32/128")
    }

    /// Returns whether a condition depends on the address of the client.
    pub fn reads_client(&self) -> bool {
        self.when.contains_key("client")
    }

    /// Returns whether a condition depends on a cookie or a query parameter. Their names have a case here, and their values
    /// are decoded, unlike in nginx.
    pub fn reads_decoded(&self) -> bool {
        ["cookie", "query"].iter().any(|group| self.when.contains_key(*group))
    }

    /// Refuses requests that repeat a header which a condition reads. nginx joins the lines of some headers, depending on
    /// its version.
    pub fn refuse_repeated_headers(&mut self) {
        self.repeats &= !self.when.contains_key("header");
    }

    /// Formats the lines of a limit with this key.
    pub fn format_lines(&self) -> Vec<String> {
        let key = match self.parts.as_slice() {
            [] => "\"all\"".to_owned(),
            [one] => quote_literal(one),
            parts => format_array(parts),
        };
        let mut lines = vec![format!("key = {key}")];
        if self.skips_missing {
            lines.push("missing = \"skip\"".to_owned());
        }
        if self.repeats {
            lines.push("repeated = \"first\"".to_owned());
        }
        let format_patterns = |patterns: &Vec<String>| match patterns.as_slice() {
            [any] if any == ANY => quote_literal(any),
            patterns => format_array(patterns),
        };
        let group = |(name, values): (&String, &BTreeMap<String, Vec<String>>)| match values.get("") {
            Some(patterns) => format!("{name} = {}", format_patterns(patterns)),
            None => {
                let values: Vec<String> = values
                    .iter()
                    .map(|(key, patterns)| format!("{} = {}", quote_literal(key), format_patterns(patterns)))
                    .collect();
                format!("{name} = {{ {} }}", values.join(", "))
            }
        };
        if !self.when.is_empty() {
            let groups: Vec<String> = self.when.iter().map(group).collect();
            lines.push(format!("when = {{ {} }}", groups.join(", ")));
        }
        lines
    }

    /// Adds a condition on a value: its group in `when`, and its name there.
    pub fn add_condition(&mut self, group: &str, name: &str, patterns: Vec<String>) -> Result<(), String> {
        let values = self.when.entry(group.to_owned()).or_default();
        let Some(own) = values.get(name) else {
            values.insert(name.to_owned(), patterns);
            return Ok(());
        };
        let excludes = patterns.iter().all(|pattern| pattern.starts_with('!'));
        match own.as_slice() {
            [any] if any == ANY => {
                // No pattern without `!` matches an empty value.
                self.skips_missing |= excludes;
                values.insert(name.to_owned(), patterns);
                Ok(())
            }
            own if own == patterns => Ok(()),
            _ => Err("it would need two conditions on one value".to_owned()),
        }
    }
}

/// The pattern of values that are not empty.
const ANY: &str = "*";

/// The variables that keys may use.
#[derive(Clone, Default)]
pub struct Variables<'a> {
    /// The `map` and `geo` blocks by the name of their variable.
    pub blocks: HashMap<&'a str, &'a Directive>,
    /// All listeners have the same `$scheme`.
    pub has_one_scheme: bool,
}

/// The translation of a zone's key.
#[derive(Clone, Debug, Default)]
pub struct TranslatedKey {
    /// One key for each condition under which requests have another key. Each becomes a limit.
    pub keys: Vec<ZoneKey>,
    /// Why some requests are counted differently. They are never counted less than in nginx.
    pub remark: Option<&'static str>,
}

/// The most limits that one zone becomes.
const CASES_MAX: usize = 8;
pub const OVERLAP: &str =
    "a request that several entries of the `map` match is counted by each of their limits, in nginx by the first";
const EMPTY: &str = "a request with an empty value is counted, which nginx does not count";
const HOST_PORT: &str = "the port of the host does not count";
const CREDENTIAL_FORM: &str =
    "`Authorization` has one spelling for conditions and keys: `bearer  x` is `Bearer x`, which nginx tells apart";
const NAME_CASE: &str =
    "the case of the name of a query parameter or a cookie counts, unlike in nginx, and values are decoded";

/// Translates the key of a zone. The error says why Sluicegate lacks such a key.
pub fn translate_key(text: &str, variables: &Variables) -> Result<TranslatedKey, String> {
    let names = find_variables(text);
    if let [name] = names.as_slice()
        && let Some(directive) = variables.blocks.get(name.as_str())
    {
        if text != format!("${name}") && text != format!("${{{name}}}") {
            return Err(format!("`${name}` is not available next to other text"));
        }
        return match directive.name.as_str() {
            "geo" => translate_geo(directive, |value| value.to_owned(), variables),
            _ => translate_map(directive, variables),
        };
    }
    let mut key = ZoneKey::default();
    let mut remark = None;
    let mut optional = Vec::new();
    for name in &names {
        let Some(part) = find_source(name) else {
            return Err(match variables.blocks.contains_key(name.as_str()) {
                true => format!("`${name}` is not available next to other variables"),
                false => format!("`${name}` is not available as a key"),
            });
        };
        match part {
            KeySource::ServerName => key.per_server = true,
            KeySource::Unseen(why) => return Err(why),
            KeySource::Scheme if variables.has_one_scheme => {}
            KeySource::Scheme => {
                return Err("`$scheme` is not available as a key of listeners with TLS and without".to_owned());
            }
            KeySource::Always(part) => {
                if name == "http_host" {
                    remark = Some(HOST_PORT);
                }
                key.parts.push(part.to_owned());
            }
            KeySource::Optional(kind, name) => {
                remark = find_spelling_remark(kind, &name).or(remark);
                key.repeats = true;
                key.parts.push(format!("{kind}:{name}"));
                optional.push((kind, name));
            }
        }
    }
    if !names.is_empty()
        && names.iter().all(|name| matches!(name.as_str(), "args" | "query_string"))
        && text.starts_with('$')
    {
        return Err("nginx skips requests without a query; Sluicegate cannot".to_owned());
    }
    // nginx does not count requests with an empty key.
    if !names.is_empty() && optional.len() == names.len() && text.starts_with('$') {
        match optional.as_slice() {
            [(kind, name)] => key.add_condition(kind, name, vec![ANY.to_owned()])?,
            _ => return Err("nginx skips requests without any of these values; Sluicegate cannot".to_owned()),
        }
    }
    key.parts.dedup();
    Ok(TranslatedKey { keys: vec![key], remark })
}

/// The source of a part of a key.
enum KeySource {
    Always(&'static str),
    Scheme,
    /// A value that a request may lack: its kind (`header`, `query` or `cookie`) and its name.
    Optional(&'static str, String),
    ServerName,
    /// A header that limits do not see as nginx does, and why.
    Unseen(String),
}

fn find_source(name: &str) -> Option<KeySource> {
    let optional = |kind, name: &str| (!name.is_empty()).then(|| KeySource::Optional(kind, name.to_owned()));
    if let Some(header) = read_header_name(name) {
        return match explain_unseen(&header) {
            Some(why) => Some(KeySource::Unseen(why)),
            None => optional("header", &header),
        };
    }
    if let Some(argument) = name.strip_prefix("arg_") {
        return optional("query", argument);
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return optional("cookie", cookie);
    }
    Some(match name {
        // nginx counts single addresses, also of IPv6.
        "binary_remote_addr" | "remote_addr" => KeySource::Always("ip/32/128"),
        "host" | "http_host" => KeySource::Always("host"),
        "uri" | "document_uri" => KeySource::Always("path"),
        "request_uri" => KeySource::Always("target"),
        "args" | "query_string" => KeySource::Always("query_string"),
        "request_method" => KeySource::Always("method"),
        "server_name" => KeySource::ServerName,
        "scheme" => KeySource::Scheme,
        _ => return None,
    })
}

/// Returns the header that a variable such as `$http_x_plan` reads, if limits and routes see it as nginx does.
pub fn find_header(variable: &str) -> Option<String> {
    read_header_name(variable).filter(|name| !name.is_empty() && explain_unseen(name).is_none())
}

/// Returns the header that a variable such as `$http_x_plan` reads, other than `Host`.
pub fn read_header_name(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("http_").filter(|name| *name != "host")?;
    Some(name.replace('_', "-").to_ascii_lowercase())
}

/// Finds the names of the variables in a text, in order.
pub fn find_variables(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for piece in text.split('$').skip(1) {
        let piece = piece.strip_prefix('{').unwrap_or(piece);
        let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(piece.len());
        names.push(piece[..end].to_owned());
    }
    names
}

/// Translates a `geo` that gives a key to networks. `value` maps each value of the `geo` to a key.
fn translate_geo(
    geo: &Directive,
    value: impl Fn(&str) -> String,
    variables: &Variables,
) -> Result<TranslatedKey, String> {
    if geo.args.len() > 1 && geo.arg(0) != "$remote_addr" {
        return Err(format!("the `geo` reads {}, not $remote_addr", geo.arg(0)));
    }
    let mut default = value("");
    let mut rules: Vec<(IpNet, String)> = Vec::new();
    for entry in geo.inner() {
        match (entry.name.as_str(), entry.args.as_slice()) {
            ("default", [text]) => default = value(text),
            ("ranges" | "proxy" | "proxy_recursive" | "delete" | "include", _) => {
                return Err(format!("`{}` of `geo` is not available", entry.name));
            }
            (network, [text]) => {
                let nets = parse_networks(network).ok_or_else(|| format!("`{network}` in `geo` is not a network"))?;
                rules.extend(nets.into_iter().map(|net| (net, value(text))));
            }
            _ => return Err("an entry of the `geo` is not a network and a value".to_owned()),
        }
    }
    if rules.len() > RULES_MAX {
        return Err(format!("the `geo` has more than {RULES_MAX} networks; use a [set.NAME] with a file"));
    }
    // In a `geo` the smallest network decides, so it comes first. Of two equal networks, the last one counts.
    rules.reverse();
    rules.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    rules.extend(crate::import::access::all_networks().map(|net| (net, default.clone())));
    let variables = remove_variable(geo, variables);
    let mut translation = TranslatedKey::default();
    for template in list_templates(rules.iter().map(|(_, template)| template.as_str()))? {
        let access_rules: Vec<(bool, IpNet)> = rules.iter().map(|(net, own)| (*own == template, *net)).collect();
        let ClientAccess { allowed, denied } = ClientAccess::new(&access_rules);
        if allowed.is_empty() {
            continue;
        }
        let TranslatedKey { keys, remark } = translate_key(template, &variables)?;
        translation.remark = translation.remark.or(remark);
        for mut key in keys {
            if !denied.is_empty() {
                let client: Vec<String> = match denied.len() <= allowed.len() {
                    true => denied.iter().map(|net| format!("!{}", format_network(net))).collect(),
                    false => allowed.iter().map(format_network).collect(),
                };
                key.add_condition("client", "", client)?;
            }
            translation.keys.push(key);
        }
    }
    check_cases(translation)
}

/// Lists the distinct keys that are not empty, in order.
fn list_templates<'t>(templates: impl Iterator<Item = &'t str>) -> Result<Vec<&'t str>, String> {
    let mut distinct: Vec<&str> = Vec::new();
    for template in templates.filter(|template| !template.is_empty()) {
        if !distinct.contains(&template) {
            distinct.push(template);
        }
    }
    match distinct.len() {
        0 => Err("the key is empty for all requests, so nothing is limited".to_owned()),
        count if count > CASES_MAX => Err(format!("requests have more than {CASES_MAX} different keys")),
        _ => Ok(distinct),
    }
}

fn check_cases(found: TranslatedKey) -> Result<TranslatedKey, String> {
    let remark = found.keys.iter().any(|key| key.skips_missing).then_some(EMPTY);
    match found.keys.len() {
        0 => Err("the key is empty for all clients, so nothing is limited".to_owned()),
        count if count > CASES_MAX => Err(format!("requests have more than {CASES_MAX} different keys")),
        _ => Ok(TranslatedKey { remark: found.remark.or(remark), ..found }),
    }
}

/// Translates a `map` that gives keys to requests.
fn translate_map(map: &Directive, variables: &Variables) -> Result<TranslatedKey, String> {
    let names = find_variables(map.arg(0));
    let [of] = names.as_slice() else { return Err("the `map` must read exactly one variable".to_owned()) };
    if map.arg(0) != format!("${of}") && map.arg(0) != format!("${{{of}}}") {
        return Err("the `map` must read exactly one variable".to_owned());
    }
    if let Some(other) = variables.blocks.get(of.as_str()) {
        return match other.name.as_str() {
            "geo" => translate_map_of_geo(map, other, variables),
            _ => Err("a `map` of a `map` is not available".to_owned()),
        };
    }
    let (group, name) = match (of.as_str(), find_source(of)) {
        ("request_method", _) => ("method", String::new()),
        ("host", _) => ("host", String::new()),
        ("uri" | "document_uri", _) => ("path", String::new()),
        (_, Some(KeySource::Optional(kind, name))) => (kind, name),
        (_, Some(KeySource::Unseen(why))) => return Err(why),
        _ => return Err(format!("a `map` of `${of}` is not available")),
    };
    if map.inner().len() > RULES_MAX {
        return Err(format!("the `map` has more than {RULES_MAX} entries"));
    }
    let mut default = "";
    // The key of requests without the value, or with an empty one.
    let mut empty: Option<&str> = None;
    let mut entries: Vec<MapEntry> = Vec::new();
    for entry in map.inner() {
        let [template] = entry.args.as_slice() else { return Err("the `map` has more than plain values".to_owned()) };
        match entry.name.as_str() {
            "default" => default = template,
            "" => empty = Some(template),
            source => entries.push(MapEntry::translate((group, &name), source, template)?),
        }
    }
    if entries.iter().any(MapEntry::matches_empty) {
        return Err("a regular expression of the `map` matches the empty text".to_owned());
    }
    let templates = list_templates(entries.iter().map(|entry| entry.template).chain([default]).chain(empty))?;
    let variables = remove_variable(map, variables);
    let mut translation = TranslatedKey {
        keys: Vec::new(),
        remark: find_overlap(&entries).then_some(OVERLAP).or(find_spelling_remark(group, &name)),
    };
    for template in templates {
        for patterns in list_conditions(template, default, empty, &entries)? {
            let TranslatedKey { keys, remark } = translate_key(template, &variables)?;
            translation.remark = translation.remark.or(remark);
            for mut key in keys {
                if !patterns.is_empty() {
                    key.repeats |= !name.is_empty();
                    key.add_condition(group, &name, patterns.clone())?;
                }
                translation.keys.push(key);
            }
        }
    }
    check_cases(translation)
}

/// Returns how the spelling of a value, or of its name, counts in another way than in nginx.
fn find_spelling_remark(kind: &str, name: &str) -> Option<&'static str> {
    match (kind, name) {
        ("header", "authorization") => Some(CREDENTIAL_FORM),
        ("query" | "cookie", _) => Some(NAME_CASE),
        _ => None,
    }
}

/// Lists the conditions under which requests have a key. Each is a list of patterns; an empty list is always true.
fn list_conditions(
    template: &str,
    default: &str,
    empty: Option<&str>,
    entries: &[MapEntry],
) -> Result<Vec<Vec<String>>, String> {
    let own: Vec<String> =
        entries.iter().filter(|entry| entry.template == template).map(|entry| entry.pattern.clone()).collect();
    let others = || entries.iter().filter(|entry| entry.template != template);
    let mut conditions = Vec::new();
    if template == default {
        let mut patterns: Vec<String> = others().map(|entry| format!("!{}", entry.pattern)).collect();
        match empty {
            // Requests without the value have another key, and a list cannot mix patterns with and without `!`.
            Some(other) if other != template && patterns.is_empty() => patterns.push(ANY.to_owned()),
            Some(other) if other != template => {
                return Err("the `map` has an empty text, other texts and a default with a key".to_owned());
            }
            _ => {}
        }
        conditions.push(patterns);
    } else {
        if !own.is_empty() {
            conditions.push(own);
        }
        if empty == Some(template) {
            conditions.push(vec!["!*".to_owned()]);
        }
    }
    Ok(conditions)
}

/// Translates a `map` of the values of a `geo`.
fn translate_map_of_geo(map: &Directive, geo: &Directive, variables: &Variables) -> Result<TranslatedKey, String> {
    if map.inner().iter().any(|entry| entry.name.starts_with(['~', '\\']) || entry.name == "hostnames") {
        return Err("the `map` of the `geo` has more than plain values".to_owned());
    }
    let value_of = |text: &str| {
        let entry = |name: &str| map.inner().iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
        let entry = if text == "default" { None } else { entry(text) };
        entry
            .or_else(|| map.inner().iter().find(|entry| entry.name == "default"))
            .map_or("", |entry| entry.arg(0))
            .to_owned()
    };
    translate_geo(geo, value_of, &remove_variable(map, variables))
}

/// Removes a variable from a copy of all, so that a variable that refers to itself ends.
fn remove_variable<'a>(directive: &Directive, variables: &Variables<'a>) -> Variables<'a> {
    let mut rest = variables.clone();
    rest.blocks.retain(|_, other| !std::ptr::eq(*other, directive));
    rest
}
