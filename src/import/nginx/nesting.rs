//! Locations inside of locations. nginx searches one block at a time: it takes the longest prefix of a block, and then
//! searches the locations inside of it. A longer location beside `/a` takes its requests from all locations inside of
//! `/a`. Whether regular expressions of the server are tried depends on the `^~` of the outermost location alone.

use std::collections::{BTreeSet, HashSet};

use crate::import::error::Result;
use crate::import::paths::LocationMatcher;
use crate::import::syntax::{Directive, shorten};

/// The locations of one block, with the blocks around it.
pub struct LocationBlock<'o> {
    prefixes: HashSet<String>,
    /// The lengths of the prefixes.
    lengths: BTreeSet<usize>,
    exact: HashSet<String>,
    /// The paths that nginx redirects to a location of this block with a slash at its end.
    redirected: HashSet<String>,
    /// The block around the location whose block this is, and the matcher of that location.
    outer: Option<(&'o LocationBlock<'o>, &'o LocationMatcher)>,
}

impl<'o> LocationBlock<'o> {
    /// Reads the locations of a block. `outer`: the block of the location around them, and its matcher.
    pub fn read(
        block: &[Directive],
        outer: Option<(&'o LocationBlock<'o>, &'o LocationMatcher)>,
    ) -> Result<LocationBlock<'o>> {
        let (mut prefixes, mut lengths, mut exact) = (HashSet::new(), BTreeSet::new(), HashSet::new());
        let mut bare_paths: HashSet<String> = HashSet::new();
        for at in block.iter().filter(|at| at.name == "location" && !is_named(at)) {
            // Each location may appear once, as in nginx.
            let matcher = read_matcher(at)?;
            if at.inner().iter().any(|directive| directive.name.ends_with("_pass")) {
                bare_paths.extend(matcher.find_bare_path().map(str::to_owned));
            }
            let is_new = match matcher {
                LocationMatcher::Exact(path) => exact.insert(path),
                LocationMatcher::Prefix { path, .. } | LocationMatcher::Segments(path) => {
                    lengths.insert(path.len());
                    prefixes.insert(path)
                }
                LocationMatcher::Regex { .. } | LocationMatcher::Server { .. } => true,
            };
            if !is_new {
                return Err(at.error("this location appears twice"));
            }
        }
        bare_paths.retain(|bare| !prefixes.contains(bare) && !exact.contains(bare));
        Ok(LocationBlock { prefixes, lengths, exact, redirected: bare_paths, outer })
    }

    /// Returns whether all requests of a location in this block go to a location of a block around it.
    pub fn hides(&self, matcher: &LocationMatcher) -> bool {
        let Some(path) = matcher.literal_path() else { return false };
        let mut block = self;
        while let Some((outer, around)) = block.outer {
            let length = around.literal_path().map_or(0, str::len);
            let is_longer = |length: &usize| path.get(..*length).is_some_and(|start| outer.prefixes.contains(start));
            let is_answered = || outer.exact.contains(path) || outer.redirected.contains(path);
            if outer.lengths.range(length + 1..).any(is_longer) || matcher.is_exact() && is_answered() {
                return true;
            }
            block = outer;
        }
        false
    }

    /// Returns whether nginx redirects to a location of this block from its path without the slash at its end.
    pub fn redirects_to(&self, matcher: &LocationMatcher) -> bool {
        let Some(bare) = matcher.find_bare_path() else { return false };
        let is_inside =
            |(_, around): (_, &LocationMatcher)| around.literal_path().is_some_and(|path| bare.starts_with(path));
        self.redirected.contains(bare)
            && self.outer.is_none_or(is_inside)
            && !self.hides(&LocationMatcher::Exact(bare.to_owned()))
    }

    /// Gives a prefix of this block the `^~` that counts for it: that of the outermost location.
    pub fn inherit_first(&self, matcher: &mut LocationMatcher) {
        let mut block = self;
        while let (Some((outer, around)), LocationMatcher::Prefix { first, .. }) = (block.outer, &mut *matcher) {
            *first = matches!(around, LocationMatcher::Prefix { first: true, .. });
            block = outer;
        }
    }
}

/// Returns whether a location has a name instead of paths.
pub fn is_named(at: &Directive) -> bool {
    at.args.len() == 1 && at.arg(0).starts_with('@')
}

/// Reads the modifier and the path of a `location`. nginx accepts both in one word.
pub fn read_matcher(at: &Directive) -> Result<LocationMatcher> {
    let (kind, path) = match at.args.as_slice() {
        [word] => {
            let kind = ["=", "^~", "~*", "~"].into_iter().find(|kind| word.starts_with(kind)).unwrap_or("");
            (kind, word[kind.len()..].to_owned())
        }
        [kind, path] => (kind.as_str(), path.clone()),
        _ => return Err(at.error("`location` takes a path, and one of = ~ ~* ^~ before it")),
    };
    Ok(match kind {
        "" => LocationMatcher::Prefix { path, first: false },
        "=" => LocationMatcher::Exact(path),
        "^~" => LocationMatcher::Prefix { path, first: true },
        "~" => LocationMatcher::Regex { pattern: path, ignore_case: false },
        "~*" => LocationMatcher::Regex { pattern: path, ignore_case: true },
        _ => return Err(at.error(format!("`{}` is not a modifier of `location`", shorten(kind)))),
    })
}

/// Returns whether another location of the server may match requests below a prefix.
pub fn has_location_below(server: &Directive, prefix: &str) -> bool {
    let mut rest: Vec<&Directive> = server.inner().iter().collect();
    while let Some(directive) = rest.pop() {
        if directive.name != "location" {
            continue;
        }
        rest.extend(directive.inner());
        if directive.args.iter().any(|arg| arg.trim_start_matches(['=', '^', '~', '*']).starts_with(prefix)) {
            return true;
        }
    }
    false
}
