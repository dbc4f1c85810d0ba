//! Makes the target that `rewrite.path` and `rewrite.query` of a route have for a request, once, before anything is
//! decided about it. The result is judged as a received path is, so that no request is charged whose target cannot be
//! sent.

use crate::canonical::{self, PathFault};
use crate::config::Strictness;
use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;
use crate::proxy::head::validate::ValidatedHead;
use crate::route::ParsingRules;
use crate::route::matcher::PathPattern;
use crate::route::rewrite::{MatchedPath, RewrittenTarget, TargetRewrite};

/// Makes the target for a request whose path `pattern` matches.
///
/// # Errors
/// The path that results has dot segments, or something else that `rules` refuse in received paths.
pub fn rewrite_target(
    head: &ValidatedHead,
    pattern: &PathPattern,
    rewrite: &TargetRewrite,
    rules: ParsingRules,
) -> Result<RewrittenTarget, End> {
    let matched =
        MatchedPath::new(pattern, head.matched_path(), head.sent_path(), rewrite).map_err(|_| End::PathRewritten)?;
    // `OPTIONS *` has no path.
    let path = rewrite.path.as_ref().filter(|_| head.path() != "*");
    let path = path.map(|template| matched.render_path(template));
    if let Some(path) = &path {
        judge_path(path, rules)?;
    }
    Ok(RewrittenTarget { path, query: rewrite.query.apply(head.query(), &matched) })
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
