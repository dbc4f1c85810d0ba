//! The servers with their listeners and names. In nginx a name belongs to one address; in Sluicegate routes apply to
//! all listeners.

use std::collections::{HashMap, HashSet};

use crate::import::error::Result;
use crate::import::model::ImportedConfig;
use crate::import::nginx::https_redirects::{HttpsRedirect, find_https_redirect};
use crate::import::nginx::listeners::{Listen, join_family, read_listens};
use crate::import::nginx::redirects::{is_response, translate_rewrite};
use crate::import::nginx::scope::is_redirect;
use crate::import::syntax::Directive;

/// A server with its listeners.
pub struct Site<'a> {
    pub server: &'a Directive,
    pub listens: Vec<Listen>,
    /// All its requests are redirected to HTTPS, and no other server serves requests at its addresses.
    pub redirect: Option<HttpsRedirect<'a>>,
    /// The server only redirects.
    only_redirects: bool,
    /// Names that a server with locations has at another address. That one takes their requests.
    pub deferred: HashSet<String>,
}

impl Site<'_> {
    /// Returns the addresses of the listeners.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listens.iter().map(|listen| listen.address.as_str())
    }

    /// Returns the names as written, in lower case, with `.example.com` as two names.
    pub fn names(&self) -> Vec<String> {
        list_names(self.server)
    }

    /// Returns true if a listener has TLS.
    pub fn has_tls(&self) -> bool {
        self.listens.iter().any(|listen| listen.tls)
    }

    fn joined_addresses(&self) -> impl Iterator<Item = String> {
        self.addresses().map(join_family)
    }
}

/// Reads the servers.
pub fn read_sites<'a>(servers: &[&'a Directive], out: &mut ImportedConfig) -> Result<Vec<Site<'a>>> {
    let mut sites = Vec::new();
    for server in servers {
        let response = server.inner().iter().find(|directive| is_response(directive));
        let only_redirects = response.is_some_and(|at| is_redirect(at) || translate_rewrite(at).is_some());
        let listens = read_listens(server, out)?;
        sites.push(Site { server, listens, redirect: None, only_redirects, deferred: HashSet::new() });
    }
    let secured: HashSet<String> = sites.iter().filter(|site| site.has_tls()).flat_map(Site::names).collect();
    for site in sites.iter_mut().filter(|site| !site.has_tls()) {
        let is_served = site.names().iter().any(|name| secured.contains(name));
        site.redirect = find_https_redirect(site.server, is_served);
        site.only_redirects |= site.redirect.is_some();
    }
    // A redirect at an address where other servers answer is a server like others.
    let serving: HashSet<String> =
        sites.iter().filter(|site| site.redirect.is_none()).flat_map(Site::joined_addresses).collect();
    for site in &mut sites {
        if site.joined_addresses().any(|address| serving.contains(&address)) {
            site.redirect = None;
        }
    }
    defer_redirects(&mut sites);
    Ok(sites)
}

/// Finds the names of redirecting servers that a server with locations has at another address. nginx would ignore the
/// second server at the same address.
fn defer_redirects(sites: &mut [Site]) {
    let mut served: HashMap<String, HashSet<String>> = HashMap::new();
    for site in sites.iter().filter(|site| !site.only_redirects) {
        for name in site.names() {
            served.entry(name).or_default().extend(site.joined_addresses());
        }
    }
    for site in sites.iter_mut().filter(|site| site.only_redirects) {
        let own: HashSet<String> = site.joined_addresses().collect();
        let mut names = site.names();
        names.retain(|name| served.get(name).is_some_and(|addresses| !addresses.is_subset(&own)));
        site.deferred = names.into_iter().collect();
    }
}

/// Returns the index of the server that answers requests for unknown hosts.
pub fn find_default(serving: &[&Site]) -> usize {
    let is_default = |site: &&Site| site.listens.iter().any(|listen| listen.is_default);
    let stays = |site: &&Site| site.deferred.is_empty();
    let first = serving.iter().position(|site| is_default(site) && stays(site));
    first.or_else(|| serving.iter().position(stays)).unwrap_or(0)
}

/// Expands `.example.com` to two names.
pub fn expand_name(arg: &str) -> Vec<String> {
    let given = arg.to_ascii_lowercase();
    match given.strip_prefix('.') {
        Some(name) => vec![name.to_owned(), format!("*.{name}")],
        None => vec![given],
    }
}

fn list_names(server: &Directive) -> Vec<String> {
    let given = server.inner().iter().filter(|directive| directive.name == "server_name");
    given.flat_map(|directive| &directive.args).flat_map(|arg| expand_name(arg)).collect()
}
