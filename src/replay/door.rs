//! How a request of an access log takes the steps of `proxy::steps`: the log has the results of some of them, and the
//! others do not depend on the config.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};

use crate::auth::forward::ForwardAuth;
use crate::auth::{PasswordAuth, RouteAuth};
use crate::config::Config;
use crate::ends::End;
use crate::limiting::decision::Op;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::source::{Facts, Source};
use crate::limiting::{Evaluation, Limiter, Verdict};
use crate::net::IpSet;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Admission, Places, RoutedRequest};
use crate::proxy::head::described::parse_target;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::{ValidatedHead, validate_head};
use crate::proxy::steps::door::{Ask, Door, LimitDoor, Trace};
use crate::proxy::steps::forwarded_head::ReceivedFacts;
use crate::proxy::steps::request_body::KeyBody;
use crate::proxy::words::known_headers::HeaderSet;
use crate::proxy::words::refusal::Refusal;
use crate::replay::input::entry::{ReplayEntry, Request};
use crate::replay::logged_facts::{LoggedFacts, find_unknown_sources};
use crate::replay::records::Replay;
use crate::route::Route;
use crate::tls::ClientCertificate;

/// A logged request on its way through the steps.
pub struct LoggedRequest<'r> {
    replay: &'r Replay<'r>,
    pub entry: &'r ReplayEntry,
    pub now_ms: i64,
    pub parts: Parts,
    header_set: HeaderSet,
    /// The repair that was needed to read the target.
    fault: Option<End>,
    pub no_host: bool,
    pub admission: Admission,
    /// The route that the request has entered.
    pub route: Option<&'r Route>,
    /// The canonical path.
    pub path: String,
    /// The source that the log lacks, for each limit that was evaluated.
    pub unknown: RefCell<Vec<Option<Source>>>,
}

impl<'r> LoggedRequest<'r> {
    /// # Errors
    /// The target cannot be parsed.
    pub fn new(
        replay: &'r Replay<'r>,
        entry: &'r ReplayEntry,
        request: Request,
        host: Option<&str>,
        now_ms: i64,
    ) -> Result<LoggedRequest<'r>, End> {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        let (target, fault) = match &request.query {
            Some(query) => parse_target(format!("{}?{query}", request.path).as_bytes())?,
            None => parse_target(request.path.as_bytes())?,
        };
        (parts.method, parts.uri, parts.headers) = (request.method, target, request.headers);
        match host.and_then(|host| HeaderValue::from_str(host).ok()) {
            Some(host) => drop(parts.headers.insert(HOST, host)),
            // Only requests of this version may lack a host. The server that wrote the log has accepted this one.
            None => parts.version = Version::HTTP_10,
        }
        Ok(LoggedRequest {
            replay,
            entry,
            now_ms,
            header_set: HeaderSet::from_headers(&parts.headers),
            parts,
            fault,
            no_host: host.is_none(),
            admission: Admission { user: entry.user.as_deref().map(Into::into), ..Admission::default() },
            route: None,
            path: String::new(),
            unknown: RefCell::default(),
        })
    }

    /// Returns the facts with what else the log has.
    pub fn logged_facts<'f>(&'f self, facts: &'f Facts<'f>) -> LoggedFacts<'f> {
        LoggedFacts { facts, entry: self.entry, no_host: self.no_host }
    }
}

impl<'r> LimitDoor<'r> for LoggedRequest<'r> {
    type Limits = Route;
    type Note = ();

    fn limiter(&self) -> &'r Limiter {
        &self.replay.limiter
    }

    /// Evaluates the limits by the keys in the log. Those that read what the log lacks do not apply.
    fn evaluate(&self, limits: &[Arc<Limit>], facts: &Facts<'_>) -> Vec<Evaluation> {
        let logged = self.logged_facts(facts);
        let unknown = find_unknown_sources(limits, &logged);
        let mut evaluations = self.limiter().evaluate_all(limits, facts, &logged);
        for ((evaluation, limit), unknown) in evaluations.iter_mut().zip(limits).zip(&unknown) {
            if unknown.is_some() || logged.is_blurred(limit) {
                *evaluation = Evaluation::NotApplicable;
            }
        }
        self.unknown.replace(unknown.into_iter().map(Option::<&Source>::cloned).collect());
        evaluations
    }

    /// Charges in the time of the log. The replay refunds at the end of the request.
    async fn decide(&self, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>, _: Ask) -> Verdict {
        self.replay.timeline.set_now(self.now_ms);
        self.limiter().decide(Op::Take, limits, evaluations, false).await
    }

    fn note_decision(&self, route: &Route, first: usize, facts: &Facts<'_>, verdict: &Verdict) {
        let logged = self.logged_facts(facts);
        self.replay.tally_decision((&logged, self.now_ms), route, first, &self.unknown.borrow(), verdict);
    }

    fn record_decision(&mut self, _: &Route, _: &ClientAddress, verdict: Verdict, (): ()) {
        self.admission.verdict = Some(verdict);
    }
}

impl Trace for LoggedRequest<'_> {
    fn observe_route(&mut self, _: Option<usize>, head: &ValidatedHead, _: &Method) {
        head.path().clone_into(&mut self.path);
    }

    fn observe_identity(&mut self, _: &RouteAuth, _: Result<&str, End>) {}
}

impl<'r> Door<'r> for LoggedRequest<'r> {
    fn config(&self) -> &'r Config {
        self.replay.config
    }

    fn stated_ms(&self) -> Option<i64> {
        Some(self.now_ms)
    }

    fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.parts.headers
    }

    fn received_facts(&self, identity: ClientAddress) -> ReceivedFacts<'r> {
        ReceivedFacts {
            fields: self.header_set,
            version: self.parts.version,
            body_length: self.body_length(),
            identity,
            via: &self.replay.via,
            config: self.replay.config,
        }
    }

    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn admission_mut(&mut self) -> &mut Admission {
        &mut self.admission
    }

    fn identify_client(&mut self) -> ClientAddress {
        ClientAddress::of_peer(self.entry.client, false)
    }

    fn check_framing(&mut self) -> Result<Option<End>, Refusal> {
        Ok(self.fault)
    }

    fn validate_head(&mut self) -> Result<ValidatedHead, Refusal> {
        validate_head(&self.parts, self.header_set, &self.replay.last_host).map_err(Refusal::from)
    }

    fn covers_host(&self, _: &ValidatedHead) -> bool {
        true
    }

    fn redirect_port(&self) -> Option<u16> {
        None
    }

    fn enter_route(&mut self, _: usize, route: &'r Route) -> Result<(), Refusal> {
        self.route = Some(route);
        Ok(())
    }

    fn check_overload(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn check_breakers(&mut self, _: RoutedRequest<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn is_client_in(&self, networks: &IpSet, _: &ClientAddress) -> bool {
        self.entry.is_client_in(networks)
    }

    /// A log does not show which requests needed a verification of their credentials, so the limits of `auth` do not
    /// decide.
    fn logged_proof(&self) -> Option<Result<(), End>> {
        let is_refused = self.entry.user.is_none() && self.entry.status == Some(StatusCode::UNAUTHORIZED.as_u16());
        Some(if is_refused { Err(End::CredentialsMissing) } else { Ok(()) })
    }

    async fn verify_password(&mut self, _: RoutedRequest<'_>, _: &PasswordAuth) -> Result<String, Refusal> {
        Err(End::CredentialsMissing.into())
    }

    fn verify_token(&self, _: &TokenVerifier) -> Option<TokenClaims> {
        None
    }

    async fn ask_auth_server(
        &mut self,
        _: RoutedRequest<'_>,
        _: &ForwardAuth,
    ) -> Result<Option<Response<ResponseBody>>, Refusal> {
        Ok(None)
    }

    fn take_places(&mut self, _: RoutedRequest<'_>, _: bool) -> Result<Places, Refusal> {
        Ok(Places::default())
    }

    fn record_bypass(&mut self, _: &Route, _: Range<usize>) {}

    /// Logs contain no bodies.
    fn body_length(&self) -> Option<u64> {
        Some(0)
    }

    fn certificate(&self) -> Option<&ClientCertificate> {
        None
    }

    async fn read_key_body(&mut self, _: &Route, _: usize) -> Result<KeyBody, Refusal> {
        Ok(KeyBody::None)
    }
}
