//! The state of one explanation: what it reads, and what its steps have found so far.

use std::cell::RefCell;
use std::sync::Arc;

use crate::config::{Config, ListenerSettings};
use crate::explain::explanation::{Explanation, RequestDecision, RequestReport, RewriteReport};
use crate::explain::input::{ExplainInput, UrlEndpoint};
use crate::explain::parser::ParsedHead;
use crate::limiting::answer::Answer;
use crate::limiting::decision::{Check, Op};
use crate::limiting::key::shown_key::KeyDisplay;
use crate::limiting::limit::Limit;
use crate::limiting::{Limiter, clock};
use crate::net::ListenAddr;
use crate::proxy::account::request_context::Admission;
use crate::proxy::head::hop::Via;
use crate::proxy::head::validate::ValidatedHead;
use crate::route::Route;
use crate::tls::{ClientCertificate, TlsPeer};

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
    /// The time of the request, in ms since 1970, if it is not the present.
    pub stated_ms: Option<i64>,
}

impl ExplainContext<'_> {
    /// Returns the time of the request, in ms since 1970.
    pub fn now_ms(&self) -> i64 {
        self.stated_ms.unwrap_or_else(clock::now_ms)
    }
}

/// A charge that [`Op::Take`] made, for a correction at the end of the request.
pub struct MadeCharge {
    pub limit: Arc<Limit>,
    /// The check, with the receipt as its tag.
    pub check: Check,
}

/// The knowledge about limits before they decide.
#[derive(Default)]
pub struct AskedLimits {
    /// Why a limit cannot be decided; `None` if it can.
    pub unknown: Vec<Option<&'static str>>,
    /// Names of the limits that refuse the request before its body is read. If there are any, only they decide.
    pub refusing: Vec<String>,
    pub checks: Vec<Option<Check>>,
    /// Answers to a cost of 0, unless the request is charged.
    pub states: Vec<Option<Answer>>,
}

/// The results of an explanation so far.
pub struct Findings {
    pub explanation: Explanation,
    pub decision: RequestDecision,
    pub admission: Admission,
    pub charges: Vec<MadeCharge>,
}

/// The request to explain, on its way through the steps. `door` says how it takes them.
pub struct ExplainWalk<'a> {
    pub context: &'a ExplainContext<'a>,
    pub input: &'a ExplainInput,
    pub endpoint: UrlEndpoint,
    /// The head, whose headers the steps change as those of a client's request.
    pub parsed: ParsedHead,
    /// The names of the gateway in `Via`. That of this process differs from every name that a gateway has.
    pub via: &'a Via,
    /// The connection of the client, if the listener has TLS.
    pub tls: Option<TlsPeer>,
    /// The verified certificate of the client.
    pub certificate: Option<ClientCertificate>,
    pub found: Findings,
    /// The route that the request has entered.
    pub route: Option<&'a Route>,
    /// The limits that were asked, until their decision is described.
    pub asked: RefCell<AskedLimits>,
    /// Only the auth server knows the identity.
    pub is_user_unknown: bool,
    /// The request announces a body that was not given.
    pub is_body_unknown: bool,
    /// The proxy that describes the request may have joined the lines of a header.
    pub has_joined_lines: bool,
}

impl Findings {
    pub fn new(context: &ExplainContext<'_>) -> Findings {
        Findings {
            explanation: Explanation { live: context.is_live, ..Explanation::default() },
            decision: RequestDecision::Admit,
            admission: Admission::default(),
            charges: Vec::new(),
        }
    }
}

impl<'a> ExplainWalk<'a> {
    pub fn new(
        context: &'a ExplainContext<'a>,
        input: &'a ExplainInput,
        endpoint: UrlEndpoint,
        (parsed, via): (ParsedHead, &'a Via),
        found: Findings,
    ) -> ExplainWalk<'a> {
        let certificate = input.certificate_subject.as_deref().map(ClientCertificate::from_subject);
        let mut walk = ExplainWalk {
            context,
            input,
            endpoint,
            parsed,
            via,
            tls: None,
            certificate,
            found,
            route: None,
            asked: RefCell::default(),
            is_user_unknown: false,
            is_body_unknown: false,
            has_joined_lines: false,
        };
        if let Some(tls) = walk.listener().and_then(|listener| listener.tls.as_ref()).filter(|_| walk.endpoint.is_https)
        {
            walk.tls = Some(TlsPeer::assumed(walk.endpoint.server_name.clone(), tls.certificates.current()));
        }
        walk
    }

    /// Returns the listener that has the port of the URL.
    pub fn listener(&self) -> Option<&'a ListenerSettings> {
        let has_port = |addr: &ListenAddr| matches!(addr, ListenAddr::Tcp(addr) if addr.port() == self.endpoint.port);
        self.context.config.listeners.iter().find(|listener| has_port(&listener.address)).map(AsRef::as_ref)
    }

    /// Adds a fact that the explanation cannot take into account.
    pub fn note(&mut self, text: impl Into<String>) {
        self.found.explanation.notes.push(text.into());
    }

    /// Describes the request in canonical form, before its headers change.
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
