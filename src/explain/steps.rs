//! Takes a request through the steps of `proxy::steps::pipeline`, and describes how they end.

use http::header::LOCATION;
use http::{HeaderValue, Response};

use crate::explain::explanation::{ActionReport, Explanation, PREFLIGHT};
use crate::explain::input::ExplainInput;
use crate::explain::parser::parse_head;
use crate::explain::verdict::{describe_admission, describe_refusal, describe_rejected_head};
use crate::explain::walk::{ExplainContext, ExplainWalk, Findings, MadeCharge};
use crate::explain::{action, question};
use crate::limiting::key::shown_key::{KeyDisplay, KeyHasher, KeyVisibility};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::Admitted;
use crate::proxy::head::hop::Via;
use crate::proxy::steps::pipeline::{Passage, admit, arrive};
use crate::proxy::steps::stated_headers;
use crate::proxy::words::refusal::Refusal;

/// Returns the setting that shows all keys as they are, for users who can read the config.
pub fn plain_display() -> KeyDisplay {
    KeyDisplay { rules: Vec::new(), default: Some(KeyVisibility::Plain), hasher: KeyHasher::of_process() }
}

/// Explains a request, and returns what it was charged.
///
/// # Errors
/// The input is not a request that a client can send.
pub async fn explain_request(
    input: &ExplainInput,
    context: &ExplainContext<'_>,
) -> Result<(Explanation, Vec<MadeCharge>), String> {
    let (head, endpoint) = input.to_head()?;
    let mut findings = Findings::new(context);
    findings.explanation.request.method = input.method.clone();
    if let Some(name) = &input.ext_authz {
        return question::explain_check(input, context, endpoint, name, findings).await;
    }
    let head = match parse_head(&head, context.config) {
        Ok(head) => head,
        Err(end) => {
            findings.explanation.verdict = describe_rejected_head(end);
            return Ok((findings.explanation, Vec::new()));
        }
    };
    let via = Via::new(0);
    let mut walk = ExplainWalk::new(context, input, endpoint, (head, &via), findings);
    let result = match walk.asks_for_decision() {
        true => question::answer_question(&mut walk).await.map(|()| Some(200)),
        false => handle_request(&mut walk).await,
    };
    Ok(walk.finish(result))
}

/// Takes a request through all steps. Returns the status of the response if the gateway makes it.
async fn handle_request(walk: &mut ExplainWalk<'_>) -> Result<Option<u16>, Refusal> {
    let mut arrival = arrive(walk)?;
    if let Some(geo) = &walk.context.config.geo {
        walk.note(format!("the country of the client is {} ([geo])", geo.find_country(arrival.identity.ip)));
    }
    let response = match admit(walk, &mut arrival).await? {
        Passage::Admitted(Admitted { route, offer, .. }) => {
            let (mut report, status) = action::run_action(walk, arrival.on(route))?;
            let file_status = action::preview_files(walk, arrival.on(route), &mut report).await?;
            if let Some(note) = action::describe_unknown(&report, offer.as_ref()) {
                walk.note(note);
            }
            walk.found.explanation.action = Some(report);
            let request_id = HeaderValue::from_static("REQUEST-ID");
            for (name, value) in stated_headers::find_values(walk, arrival.on(route), Some(&request_id)) {
                walk.note(match value {
                    Some(value) => format!("the server gets {name}: {}", String::from_utf8_lossy(value.as_bytes())),
                    None => format!("the server gets no {name}, because the request has no value for it"),
                });
            }
            return Ok(status.or(file_status));
        }
        Passage::HttpsRedirect(response) => {
            walk.note("the listener of this port redirects all requests (redirect_http)");
            walk.found.explanation.action = Some(action::describe_redirect(location_of(&response)));
            response
        }
        Passage::AcmeProof(response) => {
            walk.note("the gateway proves to an ACME server that it has the domain");
            walk.found.explanation.action =
                Some(ActionReport { kind: "respond".to_owned(), ..ActionReport::default() });
            response
        }
        Passage::Preflight(response) => {
            walk.found.explanation.action =
                Some(ActionReport { kind: PREFLIGHT.to_owned(), ..ActionReport::default() });
            return Ok(Some(response.status().as_u16()));
        }
        Passage::AuthResponse(response) => return Ok(Some(response.status().as_u16())),
    };
    walk.found.explanation.route = None;
    Ok(Some(response.status().as_u16()))
}

fn location_of(response: &Response<ResponseBody>) -> Option<&str> {
    response.headers().get(LOCATION).and_then(|value| value.to_str().ok())
}

impl ExplainWalk<'_> {
    /// Describes how the steps have ended. Returns what was charged, too.
    pub fn finish(self, ended: Result<Option<u16>, Refusal>) -> (Explanation, Vec<MadeCharge>) {
        let mut findings = self.found;
        findings.explanation.verdict = match ended {
            Ok(status) => describe_admission(&findings, self.route, status),
            Err(refusal) => describe_refusal(&findings, self.route, &refusal, self.context.now_ms()),
        };
        (findings.explanation, findings.charges)
    }
}
