//! Finds the location that nginx chooses for a path. nginx sends the requests for `index` and for the last name of
//! `try_files` through this search a second time, so that another location may answer them.

use regex::RegexBuilder;

use crate::import::expressions::{Reading, translate_path_regex};
use crate::import::nginx::nesting::{is_named, read_matcher};
use crate::import::paths::LocationMatcher;
use crate::import::syntax::Directive;

/// The path may match a regular expression that the import cannot read.
#[derive(Debug, PartialEq)]
pub struct UnreadExpression;

/// Finds the location of a server for a plain path. `None`: no location has it.
pub fn find_location<'a>(server: &'a [Directive], path: &str) -> Result<Option<&'a Directive>, UnreadExpression> {
    search_block(server, path).map(|found| found.location)
}

struct Found<'a> {
    location: Option<&'a Directive>,
    /// The blocks around do not search their regular expressions.
    is_final: bool,
}

fn search_block<'a>(block: &'a [Directive], path: &str) -> Result<Found<'a>, UnreadExpression> {
    let mut longest: Option<(&Directive, usize, bool)> = None;
    let mut expressions = Vec::new();
    for at in block.iter().filter(|at| at.name == "location" && !is_named(at)) {
        match read_matcher(at) {
            Ok(LocationMatcher::Exact(own)) if own == path => return Ok(Found { location: Some(at), is_final: true }),
            Ok(LocationMatcher::Prefix { path: own, first })
                if path.starts_with(&own) && longest.is_none_or(|(_, length, _)| own.len() > length) =>
            {
                longest = Some((at, own.len(), first));
            }
            Ok(LocationMatcher::Regex { pattern, ignore_case }) => expressions.push((at, pattern, ignore_case)),
            _ => {}
        }
    }
    let mut location = None;
    if let Some((at, ..)) = longest {
        let inner = search_block(at.inner(), path)?;
        location = inner.location.or(Some(at));
        if inner.is_final {
            return Ok(Found { location, is_final: true });
        }
    }
    if !longest.is_some_and(|(.., first)| first) {
        for (at, pattern, ignore_case) in expressions {
            if is_match(&pattern, ignore_case, path)? {
                let inner = search_block(at.inner(), path)?.location;
                return Ok(Found { location: inner.or(Some(at)), is_final: true });
            }
        }
    }
    Ok(Found { location, is_final: false })
}

fn is_match(pattern: &str, ignore_case: bool, path: &str) -> Result<bool, UnreadExpression> {
    let (expression, ignores) =
        translate_path_regex(pattern, ignore_case, Reading::Exact).map_err(|_| UnreadExpression)?;
    let regex = RegexBuilder::new(&expression).case_insensitive(ignores).build().map_err(|_| UnreadExpression)?;
    Ok(regex.is_match(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(args: &[&str], inner: Vec<Directive>) -> Directive {
        Directive { block: Some(inner), ..Directive::written("location", args) }
    }

    #[test]
    fn locations_are_searched_in_the_order_of_nginx() {
        let nested = vec![location(&["~", "\\.inner$"], vec![]), location(&["/app/deep/"], vec![])];
        let server = [
            location(&["/"], vec![]),
            location(&["/app/"], nested),
            location(&["^~", "/first/"], vec![]),
            location(&["=", "/exact.php"], vec![]),
            location(&["~*", "\\.php$"], vec![]),
            location(&["@named"], vec![]),
        ];
        let found = |path: &str| {
            find_location(&server, path).map(|at| at.map_or("none", |at| at.args.last().unwrap().as_str()))
        };
        for (path, expected) in [
            ("/x", "/"),
            ("/app", "/"),
            ("/app/x", "/app/"),
            ("/app/x.inner", "\\.inner$"),
            ("/app/deep/x", "/app/deep/"),
            ("/app/deep/x.PHP", "\\.php$"),
            ("/first/x.php", "/first/"),
            ("/exact.php", "/exact.php"),
            ("x", "none"),
        ] {
            assert_eq!(found(path), Ok(expected), "{path}");
        }
        let unread = [location(&["~", "(?=x)"], vec![])];
        assert!(find_location(&unread, "/x").is_err());
    }
}
