//! Translates `merge_slashes off`. nginx reads the path before it knows the host, so without TLS the first server of an
//! address, or its `default_server`, decides for all servers there.

use crate::import::model::{ImportedConfig, RouteBody};
use crate::import::nginx::scope::Scope;
use crate::import::nginx::sites::Site;
use crate::import::syntax::Directive;

/// What `merge_slashes` of nginx means for the routes of a server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SlashMerging {
    /// Slashes are merged, as by default.
    Merged,
    /// Slashes stay. The number of a comment, unless all paths have one route.
    Kept(Option<usize>),
}

impl SlashMerging {
    /// Adds the option to a route.
    pub fn apply(self, body: &mut RouteBody) {
        if let SlashMerging::Kept(number) = self {
            body.lines.push("merge_slashes = false".to_owned());
            if let Some(number) = number {
                body.add_remark(number);
            }
        }
    }
}

/// Finds out for each server whether its routes keep repeated slashes. `scopes`: the directives in force in each.
pub fn find_slash_merging(sites: &[&Site], scopes: &[Scope], out: &mut ImportedConfig) -> Vec<SlashMerging> {
    let own = |at: usize| scopes.get(at).and_then(|scope| scope.get("merge_slashes")).filter(|at| at.arg(0) == "off");
    let decides = |address: &str| {
        let serves = |(_, site): &(usize, &&Site)| site.listens.iter().any(|listen| listen.address == address);
        let is_default = |(_, site): &(usize, &&Site)| {
            site.listens.iter().any(|listen| listen.address == address && listen.is_default)
        };
        let mut all = sites.iter().enumerate().filter(serves);
        all.clone().find(is_default).or_else(|| all.next()).map(|(at, _)| at)
    };
    let read = |(at, site): (usize, &&Site)| {
        let deciding =
            site.all_listens().filter_map(|listen| if listen.tls { Some(at) } else { decides(&listen.address) });
        let found: Vec<Option<&Directive>> = deciding.map(own).collect();
        let Some(off) = found.iter().flatten().next().copied().or_else(|| own(at)) else { return SlashMerging::Merged };
        if !found.iter().all(Option::is_some) {
            let why = "nginx takes this from the first server of an address, and those of this server differ, so slashes are \
                       merged";
            out.remarks.add(off, why);
            return SlashMerging::Merged;
        }
        let is_step = |at: &&Directive| matches!(at.name.as_str(), "location" | "if" | "rewrite");
        let why = "routes are chosen by the path with merged slashes; nginx chooses locations by the path as it is";
        let has_one_route = site.server.inner().iter().filter(is_step).count() <= 1;
        SlashMerging::Kept((!has_one_route).then(|| out.remarks.add(off, why)))
    };
    sites.iter().enumerate().map(read).collect()
}
