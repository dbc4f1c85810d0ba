//! Translates canaries: Ingresses whose services get a part of the requests of other Ingresses.
//!
//! ingress-nginx reads the header first, then the cookie, then the weight. A header and a cookie are conditions of routes of
//! their own; the weight is a `split`.

use http::HeaderName;
use regex::RegexBuilder;

use crate::import::error::Result;
use crate::import::expressions::translate_value_regex;
use crate::import::ingress::annotations::PREFIX;
use crate::import::ingress::describe_node;
use crate::import::ingress::values::parse_number;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::paths::Location;
use crate::import::text::format_cookie_pattern;
use crate::import::unseen::explain_unseen;
use crate::import::yaml::YamlNode;
use crate::limiting::source::Source;
use crate::text::quote_literal;

/// The annotations of a canary.
pub struct Canary {
    header: Option<String>,
    /// The pattern for values of the header; without one, `always` and `never`.
    value: Option<String>,
    cookie: Option<String>,
    weight: u64,
    total: u64,
    remarks: Vec<usize>,
}

impl Canary {
    /// Reads the annotations of a canary. Returns `None` for other Ingresses.
    pub fn read_canary(ingress: &YamlNode, out: &mut ImportedConfig) -> Result<Option<Canary>> {
        let annotations = ingress.at(&["metadata", "annotations"]).map_or(&[][..], YamlNode::entries);
        let own = || annotations.iter().filter_map(|(key, node)| Some((key.strip_prefix(PREFIX)?, node)));
        let text = |node: &YamlNode| node.text().unwrap_or("").trim().to_owned();
        if !own().any(|(key, node)| key == "canary" && text(node) == "true") {
            return Ok(None);
        }
        let mut canary = Canary { header: None, value: None, cookie: None, weight: 0, total: 100, remarks: Vec::new() };
        let mut pattern = None;
        for (key, node) in own() {
            let value = text(node);
            let mut leave_out =
                |why: &str| canary.remarks.push(out.remarks.add(&describe_node(key, &value, node), why));
            match key {
                "canary-by-header" => match explain_unseen(&value.to_ascii_lowercase()) {
                    Some(why) => leave_out(&format!("left out: {why}")),
                    None => canary.header = Some(value.to_ascii_lowercase()),
                },
                "canary-by-header-value" if !value.is_empty() => canary.value = Some(format_value(&value)),
                "canary-by-header-pattern" => pattern = Some((value, node)),
                "canary-by-cookie" => canary.cookie = Some(value),
                "canary-weight" => canary.weight = parse_number(key, &value, node)?,
                "canary-weight-total" => canary.total = parse_number(key, &value, node)?.max(100),
                "canary" | "canary-by-header-value" => {}
                _ => leave_out("left out: an Ingress of a canary has only `canary-*`, as in ingress-nginx"),
            }
        }
        // A value replaces a pattern.
        if let Some((value, node)) = pattern.filter(|(value, _)| canary.value.is_none() && !value.is_empty()) {
            match format_pattern(canary.header.as_deref().unwrap_or(""), &value) {
                Ok(pattern) => canary.value = Some(pattern),
                Err(why) => {
                    canary.header = None;
                    let why = format!("left out: this expression is not available ({why})");
                    let number = out.remarks.add(&describe_node("canary-by-header-pattern", &value, node), &why);
                    canary.remarks.push(number);
                }
            }
        }
        let is_name = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        canary.header = canary.header.filter(is_name);
        canary.cookie = canary.cookie.filter(is_name);
        Ok(Some(canary))
    }

    /// Gives the canary its part of a location: `upstream` is that of the canary. Returns the locations of its header and
    /// its cookie.
    pub fn divert(&self, location: &mut Location, upstream: &str) -> Vec<Location> {
        let RouteAction::Upstream(stable) = location.body.action.clone() else { return Vec::new() };
        self.remarks.iter().for_each(|number| location.body.add_remark(*number));
        let mut found = Vec::new();
        let mut divert = |name: &str, pattern: &str, to: &str| {
            let mut body = location.body.clone();
            body.redirects_to_slash = false;
            body.action = RouteAction::Upstream(to.to_owned());
            body.condition = Some(format!("header = {{ {} = {} }}", quote_literal(name), quote_literal(pattern)));
            found.push(Location { matcher: location.matcher.clone(), body });
        };
        // Of routes with as many conditions, the first one counts.
        match (&self.header, &self.value) {
            (Some(name), Some(pattern)) => divert(name, pattern, upstream),
            (Some(name), None) => {
                divert(name, "always", upstream);
                divert(name, "never", &stable);
            }
            (None, _) => {}
        }
        if let Some(name) = &self.cookie {
            divert("cookie", &format!("~ {}", format_cookie_pattern(name, "always(?:;|$)")), upstream);
            divert("cookie", &format!("~ {}", format_cookie_pattern(name, "never(?:;|$)")), &stable);
        }
        let weight = self.weight.min(self.total);
        if weight > 0 {
            location.body.action =
                RouteAction::Split(vec![(stable, self.total - weight), (upstream.to_owned(), weight)]);
        }
        found
    }

    /// Returns whether a location has a canary.
    pub fn is_diverted(body: &RouteBody) -> bool {
        body.condition.is_some() || matches!(body.action, RouteAction::Split(_))
    }
}

/// Formats the pattern of a header for a value that may look like a pattern.
fn format_value(value: &str) -> String {
    let sign = if value.starts_with(['~', '=']) { "= " } else { "" };
    format!("{sign}{value}")
}

/// Translates an expression of PCRE for the values of a header.
fn format_pattern(header: &str, pattern: &str) -> std::result::Result<String, String> {
    let (written, ignores) = translate_value_regex(pattern, false)?;
    let name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| "no header has this name")?;
    Source::Header(name).check_written_expression(&written, ignores).map_err(|fault| fault.what)?;
    RegexBuilder::new(&written).case_insensitive(ignores).build().map_err(|_| "it is too large")?;
    Ok(format!("{} {written}", if ignores { "~i" } else { "~" }))
}
