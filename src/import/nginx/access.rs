//! Translates `allow` and `deny`.

use ipnet::IpNet;

use crate::import::access::{ClientAccess, RULES_MAX, parse_networks};
use crate::import::error::Result;
use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::scope::Scope;
use crate::import::syntax::shorten;

/// Reads the `allow` and `deny` of a block in their order.
pub fn read_access_rules(scope: &Scope) -> Result<Vec<(bool, IpNet)>> {
    let mut rules = Vec::new();
    for directive in scope.list("allow").iter().filter(|directive| directive.arg(0) != "unix:").take(RULES_MAX + 1) {
        let Some(found) = parse_networks(directive.arg(0)) else {
            return Err(directive.error(format!("`{}` is not an address or a network", shorten(directive.arg(0)))));
        };
        rules.extend(found.into_iter().map(|net| (directive.name == "allow", net)));
    }
    Ok(rules)
}

/// Returns whether a block refuses all clients, whatever would answer them.
pub fn denies_all(scope: &Scope) -> Result<bool> {
    let rules = read_access_rules(scope)?;
    Ok(!rules.is_empty() && rules.len() <= RULES_MAX && ClientAccess::new(&rules).allowed.is_empty())
}

/// Restricts the clients of a route.
pub fn restrict_access(scope: &Scope, out: &mut ImportedConfig, body: &mut RouteBody) -> Result<()> {
    let rules = read_access_rules(scope)?;
    if let Some(directive) = scope.list("allow").first().filter(|_| rules.len() > RULES_MAX) {
        let why = format!("more than {RULES_MAX} rules; write them to a [set.NAME]");
        let number = out.remarks.add(directive, &why);
        body.close(number);
        return Ok(());
    }
    out.restrict_clients(body, &rules);
    Ok(())
}
