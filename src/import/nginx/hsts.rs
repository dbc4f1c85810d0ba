//! Translates `add_header Strict-Transport-Security ... always` to `hsts` of a listener. It applies to all hosts of the
//! listener, so all servers there must agree.

use std::collections::HashMap;

use crate::import::nginx::listeners::{Listen, join_family};
use crate::import::nginx::scope::Scope;
use crate::import::syntax::Directive;

/// Why a header stays one of the routes.
pub const PARTIAL: &str = "only proxied responses have this header, not 429, redirects and other responses of the gateway; \
                           for all hosts of a listener, write `hsts` of the [[listener]]";

const DAY: u64 = 86_400;
/// The longest time that Sluicegate accepts.
const AGE_MAX: u64 = 3650 * DAY;

/// Returns the `add_header` in force that nginx adds to every response.
pub fn find_hsts<'a>(scope: &Scope<'a>) -> Option<&'a Directive> {
    scope.list("add_header").iter().copied().find(|directive| is_hsts(directive))
}

/// Returns whether a directive adds the header to every response.
pub fn is_hsts(directive: &Directive) -> bool {
    directive.name == "add_header"
        && directive.arg(0).eq_ignore_ascii_case("strict-transport-security")
        && directive.arg(2) == "always"
}

/// Returns the `hsts` of the listeners on which all servers send the same header, by address. `sites`: the listeners of
/// each server that serves requests, and its header.
pub fn agree_on_hsts(sites: &[(&[Listen], Option<&Directive>)]) -> HashMap<String, String> {
    let mut agreed: HashMap<String, Option<String>> = HashMap::new();
    for (listens, header) in sites {
        let mut addresses: Vec<String> =
            listens.iter().filter(|listen| listen.tls).map(|listen| join_family(&listen.address)).collect();
        addresses.sort();
        addresses.dedup();
        let own = header.filter(|_| addresses.len() == 1).and_then(|header| translate_hsts(header.arg(1)));
        for address in addresses {
            let value = agreed.entry(address).or_insert_with(|| own.clone());
            if *value != own {
                *value = None;
            }
        }
    }
    agreed.into_iter().filter_map(|(address, value)| Some((address, value?))).collect()
}

/// Translates the value of the header. Returns `None` for values that an `hsts` cannot have.
fn translate_hsts(text: &str) -> Option<String> {
    let (mut age, mut includes, mut preloads) = (None, false, false);
    for part in text.split(';').map(|part| part.trim().to_ascii_lowercase()).filter(|part| !part.is_empty()) {
        match part.as_str() {
            "includesubdomains" => includes = true,
            "preload" => preloads = true,
            part => {
                let digits = part.strip_prefix("max-age=")?.trim_matches('"');
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                if !is_number || age.is_some() {
                    return None;
                }
                age = Some(digits.parse::<u64>().ok().filter(|age| *age <= AGE_MAX)?);
            }
        }
    }
    let age = age?;
    if preloads && (age < 365 * DAY || !includes) {
        return None;
    }
    let age = if age > 0 && age % DAY == 0 { format!("\"{}d\"", age / DAY) } else { format!("\"{age}s\"") };
    Some(match (includes, preloads) {
        (false, false) => format!("hsts = {age}"),
        (true, false) => format!("hsts = {{ max_age = {age}, include_subdomains = true }}"),
        _ => format!("hsts = {{ max_age = {age}, include_subdomains = true, preload = true }}"),
    })
}

#[cfg(test)]
mod tests {
    use super::translate_hsts;

    #[test]
    fn values_are_translated_exactly_or_not_at_all() {
        for (text, expected) in [
            ("max-age=31536000", Some("hsts = \"365d\"")),
            ("max-age=300;", Some("hsts = \"300s\"")),
            ("max-age=0", Some("hsts = \"0s\"")),
            ("max-age=63072000; includeSubDomains", Some("hsts = { max_age = \"730d\", include_subdomains = true }")),
            (
                "Max-Age=\"63072000\"; includeSubDomains; preload",
                Some("hsts = { max_age = \"730d\", include_subdomains = true, preload = true }"),
            ),
            ("max-age=300; preload", None),
            ("max-age=99999999999", None),
            ("max-age=", None),
            ("includeSubDomains", None),
            ("max-age=$age", None),
        ] {
            assert_eq!(translate_hsts(text).as_deref(), expected, "{text}");
        }
    }
}
