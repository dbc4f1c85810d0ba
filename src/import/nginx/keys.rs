//! Translates the keys of `limit_req_zone` and `limit_conn_zone` to key parts and conditions. Their variables may come
//! from `map` and `geo`.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use crate::import::access::{ClientAccess, RULES_MAX, format_network, parse_networks};
use crate::import::syntax::Directive;
use crate::import::text::{format_array, quote_string};

/// A translated key of a zone.
#[derive(Clone, Debug, Default)]
pub struct ZoneKey {
    parts: Vec<String>,
    /// The conditions by their name in `when`, then by the name of the header, query parameter or cookie.
    when: BTreeMap<String, BTreeMap<String, String>>,
    /// The key has `$server_name`, so each server has its own budget.
    pub per_server: bool,
    /// The key has parts that a request may repeat. nginx uses the first value.
    repeats: bool,
}

impl ZoneKey {
    /// Formats the lines of a limit with this key.
    pub fn format_lines(&self) -> Vec<String> {
        let key = match self.parts.as_slice() {
            [] => "\"all\"".to_owned(),
            [one] => quote_string(one),
            parts => format_array(parts),
        };
        let mut lines = vec![format!("key = {key}")];
        if self.repeats {
            lines.push("repeated = \"first\"".to_owned());
        }
        let group = |(name, values): (&String, &BTreeMap<String, String>)| match values.get("") {
            Some(value) => format!("{name} = {value}"),
            None => {
                let values: Vec<String> =
                    values.iter().map(|(key, value)| format!("{} = {value}", quote_string(key))).collect();
                format!("{name} = {{ {} }}", values.join(", "))
            }
        };
        if !self.when.is_empty() {
            let groups: Vec<String> = self.when.iter().map(group).collect();
            lines.push(format!("when = {{ {} }}", groups.join(", ")));
        }
        lines
    }

    fn add_condition(&mut self, group: &str, name: &str, value: String) -> Result<(), String> {
        let values = self.when.entry(group.to_owned()).or_default();
        match values.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err("it would need two conditions on one value".to_owned()),
        }
    }
}

/// The `map` and `geo` blocks by the name of their variable.
pub type Variables<'a> = HashMap<&'a str, &'a Directive>;

/// Translates the key of a zone. The error says why Sluicegate lacks such a key.
pub fn translate_key(text: &str, variables: &Variables) -> Result<ZoneKey, String> {
    let names = find_variables(text);
    if let [name] = names.as_slice()
        && let Some(directive) = variables.get(name.as_str())
    {
        return match directive.name.as_str() {
            "geo" => translate_geo(directive, |value| value.to_owned(), variables),
            _ => translate_map(directive, variables),
        };
    }
    let mut key = ZoneKey::default();
    let mut optional = Vec::new();
    for name in &names {
        let Some(part) = find_source(name) else {
            return Err(match variables.contains_key(name.as_str()) {
                true => format!("`${name}` is not available beside other variables"),
                false => format!("`${name}` is not available as a key"),
            });
        };
        match part {
            KeySource::ServerName => key.per_server = true,
            KeySource::Always(part) => key.parts.push(part),
            KeySource::Optional(kind, name) => {
                key.repeats = true;
                key.parts.push(format!("{kind}:{name}"));
                optional.push((kind, name));
            }
        }
    }
    // nginx does not count requests whose whole key is empty.
    if !names.is_empty() && optional.len() == names.len() && text.starts_with('$') {
        match optional.as_slice() {
            [(kind, name)] => key.add_condition(kind, name, "\"*\"".to_owned())?,
            _ => return Err("nginx skips requests without any of these values; Sluicegate cannot".to_owned()),
        }
    }
    key.parts.dedup();
    Ok(key)
}

/// The source of a part of a key.
enum KeySource {
    Always(String),
    /// A value that a request may lack: its kind (`header`, `query` or `cookie`) and its name.
    Optional(&'static str, String),
    ServerName,
}

fn find_source(name: &str) -> Option<KeySource> {
    let optional = |kind, name: &str| (!name.is_empty()).then(|| KeySource::Optional(kind, name.to_owned()));
    if let Some(header) = name.strip_prefix("http_") {
        // `$http_host` includes the port, which no key of Sluicegate has.
        return if header == "host" {
            None
        } else {
            optional("header", &header.replace('_', "-").to_ascii_lowercase())
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
        "binary_remote_addr" | "remote_addr" => KeySource::Always("ip/32/128".to_owned()),
        "host" => KeySource::Always("host".to_owned()),
        "uri" | "document_uri" => KeySource::Always("path".to_owned()),
        "request_method" => KeySource::Always("method".to_owned()),
        "server_name" => KeySource::ServerName,
        _ => return None,
    })
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

/// Translates a `geo` that gives a key to some networks only. `value` maps each value of the `geo` to a key.
fn translate_geo(geo: &Directive, value: impl Fn(&str) -> String, variables: &Variables) -> Result<ZoneKey, String> {
    if geo.args.len() > 1 && geo.arg(0) != "$remote_addr" {
        return Err(format!("the `geo` reads {}, not $remote_addr", geo.arg(0)));
    }
    let mut template: Option<String> = None;
    let mut is_counted = |text: String| -> Result<bool, String> {
        if text.is_empty() {
            return Ok(false);
        }
        match template.get_or_insert_with(|| text.clone()) == &text {
            true => Ok(true),
            false => Err("different clients have different keys".to_owned()),
        }
    };
    let mut default = String::new();
    let mut rules: Vec<(IpNet, bool)> = Vec::new();
    for entry in geo.inner() {
        match (entry.name.as_str(), entry.args.as_slice()) {
            ("default", [text]) => text.clone_into(&mut default),
            ("ranges" | "proxy" | "proxy_recursive" | "delete" | "include", _) => {
                return Err(format!("`{}` of `geo` is not available", entry.name));
            }
            (network, [text]) => {
                let nets = parse_networks(network).ok_or_else(|| format!("`{network}` in `geo` is not a network"))?;
                for net in nets {
                    rules.push((net, is_counted(value(text))?));
                }
            }
            _ => return Err("an entry of the `geo` is not a network and a value".to_owned()),
        }
    }
    if rules.len() > RULES_MAX {
        return Err(format!("the `geo` has more than {RULES_MAX} networks; use a [set.NAME] with a file"));
    }
    let default = is_counted(value(&default))?;
    // In a `geo` the smallest network decides, so it comes first.
    rules.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
    let rules: Vec<(bool, IpNet)> = rules.into_iter().map(|(net, counted)| (counted, net)).collect();
    let rest = crate::import::access::all_networks().map(|net| (default, net));
    let ClientAccess { allowed, denied } = ClientAccess::new(&rules.into_iter().chain(rest).collect::<Vec<_>>());
    let Some(template) = template.filter(|_| !allowed.is_empty()) else {
        return Err("the key is empty for all clients, so nothing is limited".to_owned());
    };
    let mut found = translate_key(&template, &remove_variable(geo, variables))?;
    if !denied.is_empty() {
        let client: Vec<String> = match denied.len() <= allowed.len() {
            true => denied.iter().map(|net| format!("!{}", format_network(net))).collect(),
            false => allowed.iter().map(format_network).collect(),
        };
        found.add_condition("client", "", format_array(&client))?;
    }
    Ok(found)
}

/// Translates a `map` that gives a key to some requests only.
fn translate_map(map: &Directive, variables: &Variables) -> Result<ZoneKey, String> {
    let names = find_variables(map.arg(0));
    let [of] = names.as_slice() else { return Err("the `map` must read exactly one variable".to_owned()) };
    if let Some(other) = variables.get(of.as_str()) {
        if other.name != "geo" {
            return Err("a `map` of a `map` is not available".to_owned());
        }
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
        return translate_geo(other, value_of, &remove_variable(map, variables));
    }
    let (group, name) = match (of.as_str(), find_source(of)) {
        ("request_method", _) => ("method", String::new()),
        ("host", _) => ("host", String::new()),
        ("uri" | "document_uri", _) => ("path", String::new()),
        (_, Some(KeySource::Optional(kind, name))) => (kind, name),
        _ => return Err(format!("a `map` of `${of}` is not available")),
    };
    let mut default = String::new();
    let (mut counted, mut skipped) = (Vec::new(), Vec::new());
    let mut template: Option<&str> = None;
    if map.inner().len() > RULES_MAX {
        return Err(format!("the `map` has more than {RULES_MAX} entries"));
    }
    for entry in map.inner() {
        let [value] = entry.args.as_slice() else { return Err("the `map` has more than plain values".to_owned()) };
        if entry.name == "default" {
            value.clone_into(&mut default);
            continue;
        }
        let pattern = translate_pattern(group, &entry.name)?;
        if value.is_empty() {
            skipped.push(pattern)
        } else {
            counted.push(pattern)
        }
        if !value.is_empty() && *template.get_or_insert(value) != value {
            return Err("different requests have different keys".to_owned());
        }
    }
    let patterns = match default.is_empty() {
        true if skipped.is_empty() => counted,
        false if counted.is_empty() => skipped.iter().map(|pattern| format!("!{pattern}")).collect(),
        _ => return Err("the `map` lists requests with a key and requests without one".to_owned()),
    };
    let template = template.unwrap_or(&default);
    if template.is_empty() {
        return Err("the key is empty for all requests, so nothing is limited".to_owned());
    }
    let mut found = translate_key(template, &remove_variable(map, variables))?;
    if !patterns.is_empty() {
        found.add_condition(group, &name, format_array(&patterns))?;
    }
    Ok(found)
}

/// Translates a value of a `map` to a pattern of `when`. nginx ignores the case of plain values.
fn translate_pattern(group: &str, text: &str) -> Result<String, String> {
    let (insensitive, regex) = match (text.strip_prefix("~*"), text.strip_prefix('~')) {
        (Some(regex), _) => (true, regex.to_owned()),
        (None, Some(regex)) => (false, regex.to_owned()),
        (None, None) if matches!(text, "hostnames" | "volatile" | "include") => {
            return Err(format!("`{text}` of `map` is not available"));
        }
        (None, None) if text.is_empty() => return Err("the `map` has an empty text".to_owned()),
        (None, None) if group == "method" => return Ok(format!("= {}", text.to_ascii_uppercase())),
        (None, None) => (true, format!("^{}$", regex::escape(text.strip_prefix('\\').unwrap_or(text)))),
    };
    if regex::RegexBuilder::new(&regex).size_limit(1 << 20).build().is_err() {
        return Err(format!("the regular expression `{regex}` is not available"));
    }
    Ok(format!("{} {regex}", if insensitive { "~i" } else { "~" }))
}

/// Removes a variable from a copy of all, so that a variable that refers to itself ends.
fn remove_variable<'a>(directive: &Directive, variables: &Variables<'a>) -> Variables<'a> {
    variables
        .iter()
        .filter(|(_, other)| !std::ptr::eq(**other, directive))
        .map(|(name, other)| (*name, *other))
        .collect()
}
