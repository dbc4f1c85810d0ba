//! Translates an `if` that refuses requests, and `limit_except`: each becomes a limit that refuses every request of its
//! condition. A condition is translated as a `map` of its variable, which gives a key to the requests that are refused.

use crate::import::access::{ClientAccess, format_network};
use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::access::read_access_rules;
use crate::import::nginx::limits::CLOSES_CONNECTION;
use crate::import::nginx::limits::keys::{OVERLAP, TranslatedKey, Variables, ZoneKey, find_variables, translate_key};
use crate::import::nginx::pages::note_lost_pages;
use crate::import::nginx::scope::{Scope, read_words};
use crate::import::nginx::types::find_default_type;
use crate::import::syntax::Directive;
use crate::text::quote_literal;

/// The variable of the `map` that stands for a condition.
const CONDITION: &str = "sluicegate_condition";
/// The key of requests that are refused.
const REFUSED: &str = "1";

const REFUSES_MORE: &str = "a request that several entries of the `map` match is refused if one of them refuses; in nginx, the \
                            first one counts";
const REPEATED_COOKIE: &str = "a request that has this cookie several times is refused if one of them is meant; in nginx, the first \
                               one counts";

/// Refuses the requests for which a condition is true.
#[derive(Clone)]
pub struct Guard {
    at: Directive,
    /// One key for each case of the condition.
    condition: TranslatedKey,
    status: u16,
    body: Option<String>,
}

/// Reads an `if` whose only directive is a `return` with an error. Returns `None` for any other one, and for conditions
/// that limits cannot have.
pub fn read_refusal(at: &Directive, variables: &Variables) -> Option<Guard> {
    let [response] = at.inner() else { return None };
    if at.name != "if" || response.name != "return" {
        return None;
    }
    let (status, body) = match response.args.as_slice() {
        [status] => (status, None),
        [status, text] => (status, Some(text)),
        _ => return None,
    };
    let status = status.parse::<u16>().ok().filter(|status| (400..=599).contains(status))?;
    if body.is_some_and(|text| !find_variables(text).is_empty() || has_placeholder(text)) {
        return None;
    }
    let mut condition = read_condition(&read_words(at), at, variables)?;
    // A client could write the name or the value in another way, and be served.
    if condition.keys.iter().any(ZoneKey::reads_decoded) {
        return None;
    }
    condition.keys.iter_mut().for_each(ZoneKey::refuse_repeated_headers);
    Some(Guard { at: at.clone(), condition, status, body: body.cloned() })
}

/// Returns whether the body of a refusal has braces that could be a placeholder of `refuse`, or a misspelled one. Those of
/// JSON, such as `{"error": "no key"}`, are not.
fn has_placeholder(text: &str) -> bool {
    const STARTS: [&str; 3] = ["retr", "limi", "rout"];
    text.split('{').skip(1).any(|rest| {
        let content = rest.split(['{', '}']).next().unwrap_or_default();
        let is_json = content.trim_start().starts_with('"') && content.contains("\":");
        let is_near = content.len() < 20 && STARTS.iter().any(|start| content.contains(start));
        !content.is_empty() && (!is_json || is_near)
    })
}

/// Reads the `limit_except` of a location that only has `allow` and `deny`. Returns `None` for any other one.
pub fn read_limit_except(at: &Directive, block: &[Directive], scope: &Scope, variables: &Variables) -> Option<Guard> {
    let is_rule = |directive: &Directive| matches!(directive.name.as_str(), "allow" | "deny");
    // Its own rules replace those around it, and `if`, `return` and `rewrite` beside it do not apply to other methods.
    let is_step =
        |directive: &Directive| matches!(directive.name.as_str(), "if" | "return" | "rewrite" | "break" | "set");
    if block.iter().any(is_step) || !at.inner().iter().all(is_rule) || !scope.list("allow").is_empty() {
        return None;
    }
    let rules = read_access_rules(&Scope::default().enter_block(at.inner())).ok()?;
    let ClientAccess { allowed, denied } = ClientAccess::new(&rules);
    let mut entries: Vec<(String, bool)> = at.args.iter().map(|method| (method.clone(), false)).collect();
    if at.args.iter().any(|method| method == "GET") {
        entries.push(("HEAD".to_owned(), false));
    }
    let mut condition = translate_cases(at, "$request_method", true, &entries, variables)?;
    if !allowed.is_empty() {
        let networks: Vec<String> = match denied.len() <= allowed.len() {
            true => denied.iter().map(format_network).collect(),
            false => allowed.iter().map(|net| format!("!{}", format_network(net))).collect(),
        };
        for key in &mut condition.keys {
            key.add_condition("client", "", networks.clone()).ok()?;
        }
    }
    (!denied.is_empty()).then(|| Guard { at: at.clone(), condition, status: 403, body: None })
}

impl Guard {
    /// Returns whether the condition depends on the address of the client.
    pub fn reads_client(&self) -> bool {
        self.condition.keys.iter().any(ZoneKey::reads_client)
    }

    /// Adds the limits of the guard to a route. `scope`: the directives in effect there.
    pub fn apply(&self, scope: &Scope, out: &mut ImportedConfig, body: &mut RouteBody) {
        if self.status == 444 {
            body.add_remark(out.remarks.add(&self.at, CLOSES_CONNECTION));
        }
        if self.status != 403 && scope.list("allow").iter().any(|rule| rule.name == "deny") {
            let why = "a client that `deny` refuses gets 403, also where nginx answers this condition first";
            body.add_remark(out.remarks.add(&self.at, why));
        }
        if let Some(why) = self.condition.remark {
            let why = if why == OVERLAP { REFUSES_MORE } else { why };
            body.add_remark(out.remarks.add(&self.at, why));
        }
        let refusal = self.body.as_ref().map(|text| {
            let kind = find_default_type(scope).map(|kind| format!(", content_type = {}", quote_literal(&kind)));
            format!(
                "refuse = {{ status = {}, body = {}{} }}",
                self.status,
                quote_literal(text),
                kind.unwrap_or_default()
            )
        });
        // A limit with its own `refuse` has no other status.
        let status = if refusal.is_some() { 429 } else { self.status };
        for key in &self.condition.keys {
            let mut lines = vec!["rate = \"1/s\"".to_owned()];
            lines.extend(key.format_lines());
            lines.push("overrides = [{ key = \"*\", rate = 0 }]".to_owned());
            lines.extend(refusal.clone());
            let identity = format!("refuse {status}\n{}", lines.join("\n"));
            let (name, _) = out.define_limit(identity, &format!("refuse-{}", self.status), lines, status);
            if !body.guards.contains(&name) {
                body.guards.push(name);
            }
        }
        if self.body.is_none() {
            note_lost_pages(scope, self.status, out, body);
        }
    }
}

/// Translates the words of a condition.
fn read_condition(words: &[String], at: &Directive, variables: &Variables) -> Option<TranslatedKey> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (variable, sign, text) = match words.as_slice() {
        [variable] => (*variable, "", ""),
        [variable, sign @ ("=" | "!=")] => (*variable, *sign, ""),
        [variable, sign, text] => (*variable, *sign, *text),
        _ => return None,
    };
    // An expression for the empty text alone.
    let (sign, text) = match (sign, text) {
        ("~" | "~*", "^$") => ("=", ""),
        ("!~" | "!~*", "^$") => ("!=", ""),
        other => other,
    };
    let name = variable.strip_prefix('$')?;
    // `$http_host` has the port, and the case in which the client wrote the host.
    if name == "http_host" {
        return None;
    }
    if name == "remote_addr" {
        return translate_address(at, sign, text, variables);
    }
    if !sign.contains('~') && !find_variables(text).is_empty() || find_variables(variable) != [name] {
        return None;
    }
    if let Some(block) = variables.blocks.get(name) {
        let is_true: Box<dyn Fn(&str) -> bool> = match sign {
            "" => Box::new(|value| !matches!(value, "" | "0")),
            "=" => Box::new(move |value| value == text),
            "!=" => Box::new(move |value| value != text),
            _ => return None,
        };
        return translate_values(block, &is_true, variables);
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return translate_cookie(at, cookie, (sign, text), variables);
    }
    let is_method = name == "request_method" && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let exact = match is_method {
        true => text.to_owned(),
        // The texts of a `map` have no case, unlike those of an `if`.
        false => format!("~^{}$", regex::escape(text)),
    };
    let entry = |text: &str, is_refused| vec![(text.to_owned(), is_refused)];
    let (default, entries) = match sign {
        // Any text but `0`.
        "" => (false, [entry("~[^0]", true), entry("~^0.+$", true)].concat()),
        "=" if text.is_empty() => (false, entry("", true)),
        "!=" if text.is_empty() => (true, entry("", false)),
        "=" => (false, entry(&exact, true)),
        "!=" => (true, entry(&exact, false)),
        "~" | "~*" => (false, entry(&format!("{sign}{text}"), true)),
        "!~" | "!~*" => (true, entry(&format!("{}{text}", &sign[1..]), false)),
        _ => return None,
    };
    translate_cases(at, variable, default, &entries, variables)
}

/// Translates a condition that refuses requests with a cookie, as a pattern of the `Cookie` header: the name has no case,
/// and the value is not decoded. Returns `None` for a condition that a second cookie of the name could make false.
fn translate_cookie(
    at: &Directive,
    cookie: &str,
    (sign, text): (&str, &str),
    variables: &Variables,
) -> Option<TranslatedKey> {
    let value = match sign {
        // Any text but `0`.
        "" => "(?:[^;0 ]+|0[^;]+)".to_owned(),
        "=" if !text.is_empty() => format!("{}(?:;|$)", regex::escape(text)),
        _ => return None,
    };
    let any_case = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{}{}]", c.to_ascii_lowercase(), c.to_ascii_uppercase()),
        false => c.to_string(),
    };
    let name: String = cookie.chars().map(any_case).collect();
    let entries = [(format!("~(?:^|[;,] *){name} *= *{value}"), true)];
    let found = translate_cases(at, "$http_cookie", false, &entries, variables)?;
    Some(TranslatedKey { remark: found.remark.or(Some(REPEATED_COOKIE)), ..found })
}

/// Translates a `map` of a variable: the texts or expressions that decide, and whether requests with them are refused.
fn translate_cases(
    at: &Directive,
    variable: &str,
    default: bool,
    entries: &[(String, bool)],
    variables: &Variables,
) -> Option<TranslatedKey> {
    translate_map(&write_map(at, &[variable, CONDITION], default, entries), variables)
}

/// Writes a `map`: its arguments, and whether requests with these texts, and all others, are refused.
fn write_map(at: &Directive, args: &[&str], default: bool, entries: &[(String, bool)]) -> Directive {
    let write = |name: &str, args: &[&str]| Directive {
        name: name.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        block: None,
        ..at.clone()
    };
    let value = |is_refused: bool| if is_refused { REFUSED } else { "" };
    let lines = entries.iter().map(|(source, is_refused)| write(source, &[value(*is_refused)]));
    let block = lines.chain([write("default", &[value(default)])]).collect();
    Directive { block: Some(block), ..write("map", args) }
}

/// Translates a comparison of the client with an address.
fn translate_address(at: &Directive, sign: &str, text: &str, variables: &Variables) -> Option<TranslatedKey> {
    let is_equal = match sign {
        "=" => true,
        "!=" => false,
        _ => return None,
    };
    text.parse::<std::net::IpAddr>().ok()?;
    let entries = [(text.to_owned(), is_equal)];
    translate_map(&Directive { name: "geo".to_owned(), ..write_map(at, &[CONDITION], !is_equal, &entries) }, variables)
}

/// Translates a `map` or a `geo` of the config: requests are refused for whose value `is_true`.
fn translate_values(block: &Directive, is_true: &dyn Fn(&str) -> bool, variables: &Variables) -> Option<TranslatedKey> {
    let value = |text: &str| if is_true(text) { REFUSED } else { "" }.to_owned();
    let mut lines = block.inner().to_vec();
    for line in lines.iter_mut().filter(|line| line.args.len() == 1) {
        if line.name == "include" || !find_variables(line.arg(0)).is_empty() {
            return None;
        }
        line.args = vec![value(line.arg(0))];
    }
    if !lines.iter().any(|line| line.name == "default") {
        let default = Directive { name: "default".to_owned(), args: vec![value("")], block: None, ..block.clone() };
        lines.push(default);
    }
    translate_map(&Directive { block: Some(lines), ..block.clone() }, variables)
}

fn translate_map(map: &Directive, variables: &Variables) -> Option<TranslatedKey> {
    let mut variables = variables.clone();
    variables.blocks.insert(CONDITION, map);
    translate_key(&format!("${CONDITION}"), &variables).ok()
}
