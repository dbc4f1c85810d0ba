//! How the request of a client, or the question of another proxy, takes the steps: it counts, logs, charges, and holds
//! what it uses until it ends.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, Response};
use tokio::time::timeout;

use crate::auth::PasswordAuth;
use crate::auth::forward::ForwardAuth;
use crate::config::{Config, Service};
use crate::ends::End;
use crate::limiting::limit::Limit;
use crate::limiting::source::Facts;
use crate::limiting::source::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::{Evaluation, Limiter, Verdict, clock};
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::log_entry::protocol_name;
use crate::proxy::account::request_context::{Admission, Places, RequestContext, RoutedRequest};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::render::compress::negotiate;
use crate::proxy::steps::arrival;
use crate::proxy::steps::auth::{basic, forward, jwt};
use crate::proxy::steps::door::{ConnectionFacts, Door, LimitDelay, LimitDoor, Trace};
use crate::proxy::steps::forwarded_head::ReceivedFacts;
use crate::proxy::steps::request_body::KeyBody;
use crate::proxy::steps::response::refusal_record;
use crate::proxy::steps::shedding;
use crate::proxy::words::delay::DelayPermit;
use crate::proxy::words::known_headers::KnownHeader;
use crate::proxy::words::refusal::Refusal;
use crate::proxy::words::shown_keys::ShownKeys;
use crate::route::Route;
use crate::route::client_facts::ClientFact;
use crate::tls::ClientCertificate;

/// Longest time in which the body of a refused request is read for its calls. A client over its limit must not keep its
/// request open for as long as the timeouts of bodies allow.
const REFUSED_BODY_TIMEOUT: Duration = Duration::from_secs(2);

impl<'a> LimitDoor<'a> for RequestContext<'a> {
    type Limits = Route;
    type Note = ShownKeys;

    fn limiter(&self) -> &'a Limiter {
        &self.view.limiter
    }

    fn reserve_slots(&self, limits: &[Arc<Limit>], evaluations: &[Evaluation]) -> Result<Option<DelayPermit>, usize> {
        let max_delayed = self.view.snapshot.config.server.max_delayed;
        self.client.worker.process.delay_slots.reserve(limits, evaluations, max_delayed)
    }

    fn knows_refusal(&self, limit: &Limit, evaluation: &Evaluation, facts: &Facts<'_>) -> bool {
        self.limiter().knows_refusal(limit, evaluation, facts)
    }

    fn add_wait(&self, begun: Instant) {
        self.account.add_wait(begun);
    }

    fn count_decision(&self, route: &Route, verdict: &Verdict) {
        self.account.count_decision(route, verdict);
    }

    fn note_decision(&self, route: &Route, _first: usize, facts: &Facts<'_>, verdict: &Verdict) -> ShownKeys {
        let display = &self.view.snapshot.config.admin.key_display;
        ShownKeys::describe(self.account.wanted_keys(), display, route, facts, verdict)
    }

    fn record_decision(&mut self, route: &Route, identity: &ClientAddress, mut verdict: Verdict, shown: ShownKeys) {
        self.account.hold_charges(verdict.guard.take());
        self.account.record_decision(route, &verdict, shown);
        let is_refused = verdict.refused;
        self.admission.verdict = Some(verdict);
        if is_refused {
            refusal_record::record_refusal(self, route, identity);
        }
    }

    async fn wait_for_turn(&mut self, delay: LimitDelay<'_>) {
        let LimitDelay { limit, duration, mut slot } = delay;
        slot.keep_only(&limit.name);
        // No deadline is armed: the limit bounds the delay, and a client that disconnects ends it.
        let _waits = self.account.deadline().hold_back();
        let start = Instant::now();
        tokio::time::sleep(duration).await;
        self.account.add_wait(start);
    }

    fn end_delay(&mut self) {
        self.account.end_delay();
    }
}

impl Trace for RequestContext<'_> {
    fn observe_route(&mut self, found: Option<usize>, head: &ValidatedHead, _method: &Method) {
        self.found_route = found;
        arrival::record_kept_slashes(self, head);
    }
}

impl<'a> Door<'a> for RequestContext<'a> {
    fn config(&self) -> &'a Config {
        &self.view.snapshot.config
    }

    fn headers(&self) -> &HeaderMap {
        &self.received.parts.headers
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.received.parts.headers
    }

    fn has_joined_lines(&self) -> bool {
        self.has_joined_lines
    }

    fn received_facts(&self, identity: ClientAddress) -> ReceivedFacts<'a> {
        ReceivedFacts {
            fields: self.received.header_set,
            version: self.received.parts.version,
            body_length: self.received.announced_length(),
            identity,
            via: &self.client.worker.process.via,
            config: &self.view.snapshot.config,
        }
    }

    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn admission_mut(&mut self) -> &mut Admission {
        &mut self.admission
    }

    fn identify_client(&mut self) -> ClientAddress {
        arrival::open_log_entry(self);
        self.identity
    }

    fn check_framing(&mut self) -> Result<Option<End>, Refusal> {
        arrival::check_framing(self)
    }

    fn validate_head(&mut self) -> Result<ValidatedHead, Refusal> {
        let head = arrival::validate_head(self)?;
        // The log shows the call of Envoy, not the request that it is about.
        if self.client.listener.settings.service != Service::Grpc {
            arrival::record_target(self, &head);
        }
        Ok(head)
    }

    fn report_untrusted_headers(&self) {
        arrival::report_untrusted_headers(self);
        arrival::report_unnamed_client(self);
        arrival::count_ambiguous_headers(self);
    }

    fn record_forwarded_head(&mut self) {
        if self.received.header_set.has(KnownHeader::Connection)
            && let Some(entry) = self.account.log_entry()
        {
            // `Connection` may have named headers that the log shows.
            entry.record_headers(&self.received.parts.headers);
        }
    }

    fn count_would_reject(&mut self, reject: End) {
        self.client.worker.process.metrics.would_reject_counter(reject).inc();
    }

    /// An HTTP/2 client may reuse a connection for another host.
    fn covers_host(&self, head: &ValidatedHead) -> bool {
        self.client.tls.as_ref().is_none_or(|tls| {
            let host = head.read_host();
            host.is_empty() || tls.is_valid_for(host)
        })
    }

    fn redirect_port(&self) -> Option<u16> {
        self.client.listener.settings.redirect_port
    }

    fn enter_route(&mut self, index: usize, route: &'a Route) -> Result<(), Refusal> {
        self.route = Some((index, route));
        self.account.enter_route(route, self.view.route_counters(index));
        if self.account.is_route_full(route) { Err(End::MaxInFlight.into()) } else { Ok(()) }
    }

    /// Selects the algorithm that compresses the response, before the route edits the headers of the request.
    fn fit_to_route(&mut self, route: &'a Route) {
        if let Some(settings) = &route.compress {
            self.compression = negotiate::select_algorithm(&self.received.parts.headers, settings);
        }
    }

    fn check_overload(&mut self) -> Result<(), Refusal> {
        shedding::check_overload(self)
    }

    fn check_breakers(&mut self, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
        shedding::check_breakers(self, routed)
    }

    fn verify_password(
        &mut self,
        routed: RoutedRequest<'_>,
        auth: &PasswordAuth,
    ) -> impl Future<Output = Result<String, Refusal>> {
        basic::verify_password(self, routed, auth)
    }

    fn verify_token(&self, verifier: &TokenVerifier) -> Option<TokenClaims> {
        verifier.verify_request(&self.received.parts.headers, clock::now_ms() / 1000)
    }

    fn await_token_keys(&self, verifier: &TokenVerifier) -> impl Future<Output = ()> {
        jwt::await_keys(&self.received.parts.headers, verifier)
    }

    fn ask_auth_server(
        &mut self,
        routed: RoutedRequest<'_>,
        rule: &ForwardAuth,
    ) -> impl Future<Output = Result<Option<Response<ResponseBody>>, Refusal>> {
        forward::ask_auth_server(self, routed, rule)
    }

    fn record_user(&mut self, user: &str) {
        if let Some(entry) = self.account.log_entry() {
            entry.record_user(user);
        }
    }

    fn take_places(&mut self, routed: RoutedRequest<'_>, offers_switch: bool) -> Result<Places, Refusal> {
        shedding::take_places(self, routed, offers_switch)
    }

    fn return_places(&mut self, places: Places) {
        drop(places);
        self.account.return_places();
    }

    fn refund_charges(&mut self) {
        self.account.refund_charges();
    }

    fn record_bypass(&mut self, _route: &Route, indexes: Range<usize>) {
        self.account.record_bypass(indexes);
    }

    fn body_length(&self) -> Option<u64> {
        self.received.body.find_length()
    }

    fn certificate(&self) -> Option<&ClientCertificate> {
        self.client.tls.as_ref()?.certificate.as_ref()
    }

    fn connection(&self) -> ConnectionFacts<'_> {
        let tls = self.client.tls.as_ref();
        ConnectionFacts {
            protocol: Some(protocol_name(self.received.parts.version)),
            tls: self.client.tls_version(),
            tls_cipher: tls.and_then(|tls| tls.cipher),
            tls_name: tls.and_then(|tls| tls.server_name.as_deref()),
        }
    }

    fn record_client(&mut self, routed: RoutedRequest<'_>) {
        let view = self.view;
        let wanted = &view.snapshot.config.server.log_facts;
        if !wanted.iter().any(ClientFact::is_claim) || self.account.log_entry().is_none() {
            return;
        }
        // No request waits for keys only for the log; those that follow have the claims.
        if let Some(verifier) = self.config().jwt.as_ref().filter(|_| self.admission.claims.is_none()) {
            drop(verifier.request_missing_key(self.headers(), clock::now_ms() / 1000));
        }
        arrival::record_facts(self, routed, wanted);
    }

    fn read_key_body(&mut self, route: &Route, max: usize) -> impl Future<Output = Result<KeyBody, Refusal>> {
        KeyBody::read(self, route, max)
    }

    async fn read_refused_calls(&mut self, route: &Route, body: KeyBody) {
        let verdict = self.admission.verdict.as_ref();
        let Some(checked) = verdict.and_then(|verdict| verdict.longest_refusal(&route.limits)) else { return };
        if !route.limits[checked.limit].refusal_response(&route.refuse).names_calls() {
            return;
        }
        let max = route.key_body.and_then(|max| usize::try_from(max).ok());
        let body = match (body, max) {
            (KeyBody::None, Some(max)) => {
                let read = timeout(REFUSED_BODY_TIMEOUT, KeyBody::read(self, route, max)).await;
                // A body that does not arrive has no calls. The client gets the refusal all the same.
                read.unwrap_or_else(|_| {
                    self.account.deadline().disarm();
                    self.must_close = true;
                    Ok(KeyBody::None)
                })
                .unwrap_or(KeyBody::None)
            }
            (body, _) => body,
        };
        self.admission.call_ids = body.call_ids();
    }

    fn pass_body(&mut self, body: &KeyBody, path: &str) {
        if self.account.requests_usage() {
            body.set_include_usage(self, path);
        }
    }
}
