//! Makes the target that the `rewrite` of a route has for a request, once, before anything is decided about it. A path
//! made of captures is judged as a received path is, so that no request is charged whose target cannot be sent. Limits
//! read the result, too, where it says what the server does.

use crate::canonical::{self, PathFault, find_sent_piece};
use crate::config::Strictness;
use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;
use crate::proxy::head::validate::ValidatedHead;
use crate::route::matcher::PathPattern;
use crate::route::rewrite::{MatchedPath, RewrittenTarget};
use crate::route::{ParsingRules, Rewrite};

/// Makes the target for a request whose path `pattern` matches. Returns `None` if it is the one that the client sent.
///
/// # Errors
/// The resulting path has dot segments, or something else that `rules` refuse in received paths.
pub fn rewrite_target(
    head: &ValidatedHead,
    pattern: &PathPattern,
    rewrite: &Rewrite,
    rules: ParsingRules,
) -> Result<Option<RewrittenTarget>, End> {
    // `OPTIONS *` has neither a path nor a query.
    if head.path() == "*" {
        return Ok(None);
    }
    let Some(target) = &rewrite.target else {
        let query = || head.query().map(str::to_owned);
        return Ok(edit_prefixes(head, rewrite).map(|path| RewrittenTarget::new(path, query())));
    };
    let matched =
        MatchedPath::new(pattern, head.matched_path(), head.sent_path(), target).map_err(|_| End::PathRewritten)?;
    let path = match &target.path {
        Some(template) => {
            let path = matched.render_path(template);
            judge_path(&path, rules)?;
            path
        }
        None => edit_prefixes(head, rewrite).unwrap_or_else(|| head.sent_path().to_owned()),
    };
    Ok(Some(RewrittenTarget::new(path, target.query.apply(head.query(), &matched))))
}

/// Removes and adds the prefixes of the route. What is left of the path stays in its spelling for servers. Returns `None`
/// if nothing changes.
fn edit_prefixes(head: &ValidatedHead, rewrite: &Rewrite) -> Option<String> {
    let (path, matched_path) = (head.sent_path(), head.matched_path());
    let rest = match matched_path.strip_prefix(rewrite.strip_prefix.as_str()) {
        Some(rest) if !rewrite.strip_prefix.is_empty() && (rest.is_empty() || rest.starts_with('/')) => {
            find_sent_piece(matched_path, path, rewrite.strip_prefix.len(), matched_path.len())
        }
        _ => path,
    };
    if rest.len() == path.len() && rewrite.add_prefix.is_empty() {
        return None;
    }
    let slash = if rest.is_empty() { "/" } else { "" };
    Some(format!("{}{rest}{slash}", rewrite.add_prefix))
}

/// Judges a path that is made of pieces of canonical ones. Together, pieces such as `.` and `./` may be a dot segment.
fn judge_path(path: &str, rules: ParsingRules) -> Result<(), End> {
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(End::PathRewritten);
    }
    let mut policy = FaultPolicy::new(Strictness::Monitor);
    canonical::canonicalize_path(path, |fault| match fault {
        // The received path was judged for these, and the config may have them.
        PathFault::Slash | PathFault::Backslash | PathFault::Control => Ok(()),
        PathFault::DotParameter => policy.report(End::PathDotParameter),
        PathFault::SlashDots => policy.report(End::PathSlashDots),
        PathFault::Percent | PathFault::NonAscii | PathFault::AboveRoot => Err(End::PathRewritten),
    })?;
    policy.faults.check(rules).map(|_| ())
}
