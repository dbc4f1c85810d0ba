//! The state of one explanation: what it reads, and what its steps have found so far.

use std::sync::Arc;

use crate::config::Config;
use crate::explain::explanation::{Explanation, RequestDecision, RequestReport, RewriteReport};
use crate::explain::input::{ExplainInput, UrlEndpoint};
use crate::explain::parser::ParsedHead;
use crate::limiting::decision::{Check, Op};
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::Claims;
use crate::limiting::{Limiter, Verdict};
use crate::proxy::doors::decide::question::HeadFault;
use crate::proxy::head::upgrade::UpgradeOffer;
use crate::proxy::head::validate::ValidatedHead;
use crate::route::decide::DecidePoint;

/// Inputs of an explanation besides the request.
pub struct ExplainContext<'a> {
    pub config: &'a Config,
    pub limiter: &'a Limiter,
    /// How keys and values are shown.
    pub display: &'a KeyDisplay,
    /// [`Op::Peek`] charges nothing. [`Op::Take`] charges as the request would, for test cases.
    pub op: Op,
    /// Limits with a hidden value are explained, too. Otherwise nobody can test whether a guess is the hidden value.
    pub explains_hidden: bool,
    /// The limiter has the live state of a gateway.
    pub is_live: bool,
}

/// A charge that [`Op::Take`] made, for a correction at the end of the request.
pub struct MadeCharge {
    pub limit: Arc<Limit>,
    /// The check, with the receipt as its tag.
    pub check: Check,
}

/// Input and settings of one explanation.
pub struct ExplainWalk<'a> {
    pub context: &'a ExplainContext<'a>,
    pub input: &'a ExplainInput,
    pub endpoint: UrlEndpoint,
    pub parsed: &'a ParsedHead,
    /// The question of another proxy whose facts `parsed` has, if the URL is that of a listener for such questions.
    pub question: Option<Result<&'a DecidePoint, HeadFault>>,
}

/// Findings of the steps so far.
pub struct Findings {
    pub explanation: Explanation,
    pub decision: RequestDecision,
    pub verdict: Option<Verdict>,
    pub charges: Vec<MadeCharge>,
    pub user: Option<String>,
    pub claims: Option<Arc<Claims>>,
    /// The protocols that the client offers to switch to, as far as the route allows them.
    pub offer: Option<UpgradeOffer>,
    /// Only the auth server knows the identity.
    pub is_user_unknown: bool,
    /// The request announces a body that was not given.
    pub is_body_unknown: bool,
}

impl Findings {
    pub fn new(context: &ExplainContext<'_>) -> Findings {
        Findings {
            explanation: Explanation { live: context.is_live, ..Explanation::default() },
            decision: RequestDecision::Admit,
            verdict: None,
            charges: Vec::new(),
            user: None,
            claims: None,
            offer: None,
            is_user_unknown: false,
            is_body_unknown: false,
        }
    }
}

impl ExplainWalk<'_> {
    /// Describes the request in canonical form.
    pub fn describe_head(&self, head: &ValidatedHead) -> RequestReport {
        let parts = &self.parsed.parts;
        let mut rewritten = Vec::new();
        let mut compare = |part: &str, received: &str, canonical: &str| {
            if received != canonical {
                let [part, received, canonical] = [part, received, canonical].map(str::to_owned);
                rewritten.push(RewriteReport { part, received, canonical });
            }
        };
        let (method, host, path) = (head.method().as_str(), head.read_host(), head.path());
        compare("method", parts.method.as_str(), method);
        let authority = parts.headers.get(http::header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
        let authority = authority.unwrap_or_default();
        if head.is_host_rewritten() {
            compare("host", &authority, &String::from_utf8_lossy(head.authority().as_bytes()));
        }
        compare("path", parts.uri.path(), path);
        RequestReport { method: method.to_owned(), host: host.to_owned(), path: path.to_owned(), rewritten }
    }
}
