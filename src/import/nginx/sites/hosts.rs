//! The hosts of a server, and which of them an `if` on `$host` takes away.

use std::collections::HashSet;

use crate::import::nginx::sites::list_names;
use crate::import::syntax::Directive;

/// The names of all servers.
pub struct KnownNames {
    exact: HashSet<String>,
    /// `.example.com` for each `*.example.com`.
    wildcards: Vec<String>,
    /// `app.` for each `app.*`.
    starts: Vec<String>,
}

impl KnownNames {
    /// Reads the names of the servers.
    pub fn read(servers: &[&Directive]) -> KnownNames {
        let all = servers.iter().flat_map(|server| list_names(server));
        let (wildcards, names): (Vec<String>, Vec<String>) = all.partition(|name| name.starts_with("*."));
        let wildcards = wildcards.iter().map(|name| name.trim_start_matches('*').to_owned()).collect();
        let (starts, exact): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| name.ends_with(".*"));
        let starts = starts.iter().map(|name| name.trim_end_matches('*').to_owned()).collect();
        KnownNames { exact: exact.into_iter().collect(), wildcards, starts }
    }

    /// Returns the pattern that takes requests for a host which is no name itself: the longest `*.example.com`, or else the
    /// longest `app.*`.
    fn find_pattern(&self, host: &str) -> Option<String> {
        let longest = |of: &mut dyn Iterator<Item = &String>| of.max_by_key(|text| text.len()).cloned();
        let ending = longest(&mut self.wildcards.iter().filter(|ending| host.ends_with(ending.as_str())));
        let start = || longest(&mut self.starts.iter().filter(|start| host.starts_with(start.as_str())));
        ending.map(|ending| format!("*{ending}")).or_else(|| start().map(|start| format!("{start}*")))
    }

    /// Returns whether a pattern of some server may match requests for a name of another server that has no route.
    pub fn may_cover(&self, name: &str) -> bool {
        let is_pattern = name.starts_with("*.") || name.ends_with(".*");
        is_pattern && !self.starts.is_empty() || self.find_pattern(name).is_some()
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
        let reaches = || match (known.exact.contains(name), known.find_pattern(name)) {
            (true, _) => self.own.iter().any(|own| own == name),
            (false, Some(pattern)) => self.own.contains(&pattern),
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
