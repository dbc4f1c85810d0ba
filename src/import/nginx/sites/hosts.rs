//! The hosts of a server, and which of them an `if` on `$host` takes away.

use std::collections::HashSet;

use crate::import::nginx::sites::list_names;
use crate::import::syntax::Directive;

/// The names of all servers.
pub struct KnownNames {
    exact: HashSet<String>,
    /// `.example.com` for each `*.example.com`.
    wildcards: Vec<String>,
}

impl KnownNames {
    /// Reads the names of the servers.
    pub fn read(servers: &[&Directive]) -> KnownNames {
        let all = servers.iter().flat_map(|server| list_names(server));
        let (wildcards, exact): (Vec<String>, Vec<String>) = all.partition(|name| name.starts_with("*."));
        let wildcards = wildcards.iter().map(|name| name.trim_start_matches('*').to_owned()).collect();
        KnownNames { exact: exact.into_iter().collect(), wildcards }
    }

    /// Returns the longest wildcard for a name, without its `*`.
    pub fn find_wildcard(&self, name: &str) -> Option<&str> {
        let covering = self.wildcards.iter().filter(|wildcard| name.ends_with(wildcard.as_str()));
        covering.map(String::as_str).max_by_key(|wildcard| wildcard.len())
    }
}

/// The hosts whose requests a server answers, apart from those that another route takes.
pub struct ServerHosts {
    /// Routes of the server have these hosts; empty if the server answers requests for unknown hosts.
    pub hosts: Vec<String>,
    /// The names of the server that no earlier server has.
    pub own: Vec<String>,
    /// All requests get another response before a location is chosen.
    pub is_taken: bool,
}

impl ServerHosts {
    /// Removes the hosts that an `if` on `$host` takes. `known`: the names of all servers. Returns the hosts, or `None` if
    /// no request matches.
    pub fn split(&mut self, name: &str, is_name: bool, is_default: bool, known: &KnownNames) -> Option<Vec<String>> {
        let reaches = || match (known.exact.contains(name), known.find_wildcard(name)) {
            (true, _) => self.own.iter().any(|own| own == name),
            (false, Some(wildcard)) => self.own.iter().any(|own| own.strip_prefix('*') == Some(wildcard)),
            (false, None) => is_default,
        };
        let is_own = reaches();
        if is_name {
            self.hosts.retain(|host| host != name);
            self.own.retain(|host| host != name);
            return is_own.then(|| vec![name.to_owned()]);
        }
        // All other hosts are redirected, also unknown ones.
        let mut others = std::mem::take(&mut self.hosts);
        others.retain(|host| host != name);
        self.hosts = is_own.then(|| name.to_owned()).into_iter().collect();
        self.own = self.hosts.clone();
        self.is_taken = !is_own;
        (is_default || !others.is_empty()).then_some(others)
    }
}
