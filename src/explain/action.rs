//! Describes what the route does with a request that its limits have admitted.

use std::time::Duration;

use http::header::LOCATION;

use crate::explain::explanation::{ActionReport, TimeoutReport};
use crate::explain::walk::ExplainWalk;
use crate::files::name::Candidate;
use crate::limiting::decision::Op;
use crate::proxy::account::request_context::RoutedRequest;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::steps::dispatch::{AdmittedAction, redirect_client};
use crate::proxy::steps::limits::hash_of_key;
use crate::proxy::steps::request_body::check_announced_size;
use crate::proxy::steps::serve_file::{FileQuestion, preview_file};
use crate::proxy::words::refusal::Refusal;
use crate::route::mirror::Mirror;
use crate::route::split::Split;
use crate::route::{Action, Route};

/// Returns the action, and the status of the response if the gateway makes it.
pub fn run_action(
    walk: &mut ExplainWalk<'_>,
    routed: RoutedRequest<'_>,
) -> Result<(ActionReport, Option<u16>), Refusal> {
    let RoutedRequest { route, head, .. } = routed;
    check_announced_size(walk.parsed.body_length.unwrap_or(0), route)?;
    let target = head.server_target().into_owned();
    if let Some(split) = &route.split {
        note_split(walk, routed, split);
    }
    Ok(match AdmittedAction::choose(walk, routed) {
        AdmittedAction::Forward { upstream, .. } => {
            if let Some(mirror) = &route.mirror {
                note_mirror(walk, mirror);
            }
            let name = walk.context.config.upstreams.get(upstream).map(|upstream| upstream.name.clone());
            let report = ActionReport {
                kind: "upstream".to_owned(),
                upstream: name,
                target: Some(target),
                timeouts: describe_timeouts(route),
                ..ActionReport::default()
            };
            (report, None)
        }
        AdmittedAction::Echo => {
            (ActionReport { kind: "echo".to_owned(), target: Some(target), ..ActionReport::default() }, Some(200))
        }
        AdmittedAction::Respond(fixed) => {
            (ActionReport { kind: "respond".to_owned(), ..ActionReport::default() }, Some(fixed.status.as_u16()))
        }
        AdmittedAction::Redirect(redirect) => {
            let response = redirect_client(redirect, routed, &walk.parsed.parts.headers, walk.endpoint.is_https)?;
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            (describe_redirect(location), Some(response.status().as_u16()))
        }
        AdmittedAction::Files(folder) => {
            let candidates = FileQuestion::new(folder, routed)?.candidates;
            let path = |candidate: &Candidate| {
                let slash = if candidate.is_folder { "/" } else { "" };
                format!("{}{slash}", folder.path.join(&candidate.name).display())
            };
            let files = candidates.iter().map(path).collect();
            (ActionReport { kind: "files".to_owned(), files, ..ActionReport::default() }, None)
        }
    })
}

/// Looks for the file that the request gets, and completes the report. Returns the status of the response, if it is
/// known. Test cases do not depend on the files of a machine.
pub async fn preview_files(
    walk: &mut ExplainWalk<'_>,
    routed: RoutedRequest<'_>,
    report: &mut ActionReport,
) -> Result<Option<u16>, Refusal> {
    let Action::Files(folder) = &routed.route.action else { return Ok(None) };
    if walk.context.op == Op::Peek {
        let headers = &walk.parsed.parts.headers;
        if let Some(preview) = preview_file(folder, routed, headers, !walk.context.is_live).await? {
            if let Some(location) = preview.location.as_ref().and_then(|location| location.to_str().ok()) {
                *report = describe_redirect(Some(location));
            }
            report.files = preview.file.iter().map(|path| path.display().to_string()).collect();
            return Ok(Some(preview.status.as_u16()));
        }
        walk.note(format!("the folder {} cannot be opened here", folder.path.display()));
    }
    walk.note("the first of the files that exists is the response; none was opened");
    Ok(None)
}

/// Says how the upstream of a request was chosen.
fn note_split(walk: &mut ExplainWalk<'_>, routed: RoutedRequest<'_>, split: &Split) {
    let name = |index: usize| walk.context.config.upstreams.get(index).map_or("", |upstream| upstream.name.as_str());
    let shares: Vec<String> = split.shares().map(|(index, share)| format!("{} {share:.1} %", name(index))).collect();
    let choice = match &split.key {
        Some(key) if hash_of_key(walk, routed, key).is_some() => {
            "split_by keeps all requests of this key on one upstream"
        }
        Some(_) => "the request has no split_by key, so the upstream is random",
        None => "the upstream of each request is random",
    };
    walk.note(format!("split between {}; {choice}", shares.join(", ")));
}

/// Says which requests are copied.
fn note_mirror(walk: &mut ExplainWalk<'_>, mirror: &Mirror) {
    let name = walk.context.config.upstreams.get(mirror.upstream).map_or("", |upstream| upstream.name.as_str());
    let (percent, max_body) = (mirror.percent, mirror.max_body);
    walk.note(format!(
        "{percent} % of the requests with at most {max_body} bytes of body are copied to upstream {name} (mirror)"
    ));
}

pub fn describe_redirect(location: Option<&str>) -> ActionReport {
    ActionReport { kind: "redirect".to_owned(), location: location.map(str::to_owned), ..ActionReport::default() }
}

/// Returns what depends on the upstream servers.
pub fn describe_unknown(report: &ActionReport, offer: Option<&UpgradeOffer>) -> Option<String> {
    let name = report.upstream.as_ref()?;
    let offer =
        offer.map(|offer| format!(", and may switch to {}", String::from_utf8_lossy(offer.header_value().as_bytes())));
    Some(format!("a server of {name} makes the response{}; no server was selected", offer.unwrap_or_default()))
}

fn describe_timeouts(route: &Route) -> Vec<TimeoutReport> {
    let (timeouts, origins) = (&route.timeouts, route.timeout_origins);
    let report = |name: &str, duration: Duration, origin: crate::route::SettingOrigin| TimeoutReport {
        name: name.to_owned(),
        ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        origin: origin.label().to_owned(),
    };
    vec![
        report("connect_timeout", timeouts.connect, origins.connect),
        report("response_timeout", timeouts.response, origins.response),
        report("stream_timeout", timeouts.stream, origins.stream),
        report("body_timeout", timeouts.body, origins.body),
        report("tunnel_timeout", timeouts.tunnel, origins.tunnel),
    ]
}
