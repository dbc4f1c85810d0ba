//! The servers with their listeners and names. In nginx a name belongs to one address; in Sluicegate routes apply to
//! all listeners.
//!
//! - `listeners`: `listen`, TLS and the check of client certificates.
//! - `hosts`: the hosts of a server, without those that an `if` takes; `https_redirects`: servers that only redirect to HTTPS.
//! - `slashes`: `merge_slashes`.
//! - `exposure`: servers that must be closed, because clients of other addresses would reach them.

pub mod exposure;
pub mod hosts;
pub mod https_redirects;
pub mod listeners;
pub mod slashes;

use std::collections::{HashMap, HashSet};

use crate::import::error::Result;
use crate::import::model::ImportedConfig;
use crate::import::nginx::redirects::{is_response, translate_rewrite};
use crate::import::nginx::scope::is_redirect;
use crate::import::nginx::sites::https_redirects::{HttpsRedirect, find_https_redirect};
use crate::import::nginx::sites::listeners::{Listen, join_family, read_listens};
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
    /// An earlier server has the same names and content, and serves the requests of this one.
    pub is_twin: bool,
    /// The listeners of later servers with the same names and content.
    pub twins: Vec<Listen>,
}

impl Site<'_> {
    /// Returns the addresses of the listeners.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listens.iter().map(|listen| listen.address.as_str())
    }

    /// Returns the listeners at which clients reach this server.
    pub fn all_listens(&self) -> impl Iterator<Item = &Listen> {
        self.listens.iter().chain(&self.twins)
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
        sites.push(Site {
            server,
            listens,
            redirect: None,
            only_redirects,
            deferred: HashSet::new(),
            is_twin: false,
            twins: Vec::new(),
        });
    }
    let tls_names: HashSet<String> = sites.iter().filter(|site| site.has_tls()).flat_map(Site::names).collect();
    for site in sites.iter_mut().filter(|site| !site.has_tls()) {
        let is_served = site.names().iter().any(|name| tls_names.contains(name));
        site.redirect = find_https_redirect(site.server, is_served);
        site.only_redirects |= site.redirect.is_some();
    }
    // A config that only redirects has no server behind `redirect_http`, and needs routes.
    if sites.iter().all(|site| site.redirect.is_some()) {
        sites.iter_mut().for_each(|site| site.redirect = None);
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
    join_twins(&mut sites);
    Ok(sites)
}

/// Finds servers with the same names and content at different addresses, as routes apply to all listeners.
fn join_twins(sites: &mut [Site]) {
    for later in 1..sites.len() {
        let (before, rest) = sites.split_at_mut(later);
        let Some(site) = rest.first_mut().filter(|site| site.redirect.is_none()) else { continue };
        let is_twin = |other: &&mut Site| {
            !other.is_twin && other.redirect.is_none() && is_same_content(other.server.inner(), site.server.inner())
        };
        if let Some(first) = before.iter_mut().find(is_twin) {
            first.twins.extend(site.listens.iter().cloned());
            site.is_twin = true;
        }
    }
}

/// Returns whether two blocks have the same directives, apart from addresses and certificates.
fn is_same_content(a: &[Directive], b: &[Directive]) -> bool {
    const OWN: [&str; 5] = ["listen", "ssl_certificate", "ssl_certificate_key", "ssl_protocols", "http2"];
    let content = |block: &'_ [Directive]| {
        block.iter().filter(|directive| !OWN.contains(&directive.name.as_str())).cloned().collect::<Vec<Directive>>()
    };
    is_equal(&content(a), &content(b))
}

fn is_equal(a: &[Directive], b: &[Directive]) -> bool {
    let is_equal = |(a, b): (&Directive, &Directive)| {
        a.name == b.name && a.args == b.args && a.block.is_some() == b.block.is_some() && is_equal(a.inner(), b.inner())
    };
    a.len() == b.len() && a.iter().zip(b).all(is_equal)
}

/// Finds the names of redirecting servers that a server with locations has at another address. nginx would ignore the
/// second server at the same address.
fn defer_redirects(sites: &mut [Site]) {
    let mut by_name: HashMap<String, HashSet<String>> = HashMap::new();
    for site in sites.iter().filter(|site| !site.only_redirects) {
        for name in site.names() {
            by_name.entry(name).or_default().extend(site.joined_addresses());
        }
    }
    for site in sites.iter_mut().filter(|site| site.only_redirects) {
        let own: HashSet<String> = site.joined_addresses().collect();
        let mut names = site.names();
        names.retain(|name| by_name.get(name).is_some_and(|addresses| !addresses.is_subset(&own)));
        site.deferred = names.into_iter().collect();
    }
}

/// Returns the index of the server that answers requests for unknown hosts. `is_closed`: whether a server is closed.
pub fn find_default(serving: &[&Site], is_closed: impl Fn(usize) -> bool) -> usize {
    let stays = |at: &usize| serving.get(*at).is_some_and(|site| site.deferred.is_empty() && !site.is_twin);
    let all: Vec<usize> = (0..serving.len()).filter(stays).collect();
    let is_default =
        |at: &usize| serving.get(*at).is_some_and(|site| site.all_listens().any(|listen| listen.is_default));
    let open: Vec<usize> = all.iter().copied().filter(|at| !is_closed(*at)).collect();
    let first = |of: &[usize]| of.iter().copied().find(is_default).or_else(|| of.first().copied());
    first(&open).or_else(|| first(&all)).unwrap_or(0)
}

/// Expands `.example.com` to two names.
pub fn expand_name(arg: &str) -> Vec<String> {
    let name = arg.to_ascii_lowercase();
    match name.strip_prefix('.') {
        Some(name) => vec![name.to_owned(), format!("*.{name}")],
        None => vec![name],
    }
}

fn list_names(server: &Directive) -> Vec<String> {
    let directives = server.inner().iter().filter(|directive| directive.name == "server_name");
    directives.flat_map(|directive| &directive.args).flat_map(|arg| expand_name(arg)).collect()
}

/// Returns true for names that a route can have as `host`.
pub fn is_host(name: &str) -> bool {
    let bare = name.strip_prefix("*.").or_else(|| name.strip_suffix(".*")).unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    bare.len() <= 253 && bare != "_" && bare.split('.').all(label)
}
