//! Translates canaries: Ingresses whose services get a part of the requests of other Ingresses.
//!
//! ingress-nginx asks the header first, then the cookie, then the weight. A header is a condition of routes of their own; the
//! weight is a `split`. A cookie is no condition of routes.

use crate::import::error::Result;
use crate::import::ingress::annotations::{PREFIX, parse_number};
use crate::import::ingress::describe_node;
use crate::import::model::{ImportedConfig, RouteAction, RouteBody};
use crate::import::paths::Location;
use crate::import::unseen::explain_unseen;
use crate::import::yaml::YamlNode;
use crate::text::quote_literal;

/// The annotations of a canary.
pub struct Canary {
    header: Option<String>,
    /// The value of the header; without one, `always` and `never`.
    value: Option<String>,
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
        let mut canary = Canary { header: None, value: None, weight: 0, total: 100, remarks: Vec::new() };
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
                "canary-by-header-value" if !value.is_empty() => canary.value = Some(value),
                "canary-by-header-pattern" => pattern = Some((value, node)),
                "canary-by-cookie" => leave_out("left out: routes have no condition on cookies"),
                "canary-weight" => canary.weight = parse_number(key, &value, node)?,
                "canary-weight-total" => canary.total = parse_number(key, &value, node)?.max(100),
                "canary" | "canary-by-header-value" => {}
                _ => leave_out("left out: an Ingress of a canary has only `canary-*`, as in ingress-nginx"),
            }
        }
        // A value replaces a pattern.
        if let Some((value, node)) = pattern.filter(|_| canary.value.is_none()) {
            canary.header = None;
            let why = "left out: routes compare headers with whole values";
            let number = out.remarks.add(&describe_node("canary-by-header-pattern", &value, node), why);
            canary.remarks.push(number);
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        canary.header = canary.header.filter(|name| !name.is_empty() && name.bytes().all(is_name));
        Ok(Some(canary))
    }

    /// Gives the canary its part of a location: `upstream` is that of the canary. Returns the locations of its header.
    pub fn divert(&self, location: &mut Location, upstream: &str) -> Vec<Location> {
        let RouteAction::Upstream(stable) = location.body.action.clone() else { return Vec::new() };
        self.remarks.iter().for_each(|number| location.body.add_remark(*number));
        let with_header = |value: &str, to: &str| {
            let mut body = location.body.clone();
            body.redirects_to_slash = false;
            body.action = RouteAction::Upstream(to.to_owned());
            let name = self.header.as_deref()?;
            body.condition = Some(format!("header = {{ {} = {} }}", quote_literal(name), quote_literal(value)));
            Some(Location { matcher: location.matcher.clone(), body })
        };
        let found = match &self.value {
            Some(value) => vec![with_header(value, upstream)],
            None => vec![with_header("always", upstream), with_header("never", &stable)],
        };
        let found = found.into_iter().flatten().collect();
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
