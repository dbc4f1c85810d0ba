//! How a request to explain takes the steps of `proxy::steps`: it records what each step finds. What depends on other
//! requests or on other servers is not checked, and a note says so.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ORIGIN;
use http::{HeaderMap, Method, Response};

use crate::auth::credentials::Credentials;
use crate::auth::forward::ForwardAuth;
use crate::auth::{AuthMethod, PasswordAuth, RouteAuth, is_valid_user};
use crate::config::Config;
use crate::ends::End;
use crate::explain::explanation::{AuthReport, LimitEffect, RequestDecision};
use crate::explain::limit_report::{describe_limit, set_effect};
use crate::explain::limits::{DescribedLimits, ask_limits, describe_limits, evaluate_known};
use crate::explain::walk::ExplainWalk;
use crate::explain::{client, routes};
use crate::limiting::decision::Op;
use crate::limiting::limit::Limit;
use crate::limiting::source::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::source::{Facts, UnreadableBody};
use crate::limiting::{Evaluation, Limiter, Verdict, clock};
use crate::overload::OverloadCondition;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Admission, Places, RoutedRequest};
use crate::proxy::head::canonical::LastHost;
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::{ValidatedHead, validate_head};
use crate::proxy::steps::auth::forward::auth_response::remove_client_headers;
use crate::proxy::steps::door::{Ask, ConnectionFacts, Door, LimitDoor, Trace};
use crate::proxy::steps::forwarded_head::ReceivedFacts;
use crate::proxy::steps::limits::apply_auth_limits;
use crate::proxy::steps::request_body::{KeyBody, check_announced_size, find_readable_kind};
use crate::proxy::steps::response::preflight::Preflight;
use crate::proxy::words::known_headers::find_single;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::route::cors::CorsPolicy;
use crate::tls::ClientCertificate;

impl<'a> LimitDoor<'a> for ExplainWalk<'a> {
    type Limits = Route;
    type Note = DescribedLimits;

    fn limiter(&self) -> &'a Limiter {
        self.context.limiter
    }

    fn evaluate(&self, limits: &[Arc<Limit>], facts: &Facts<'_>) -> Vec<Evaluation> {
        evaluate_known(self, limits, facts)
    }

    fn knows_refusal(&self, limit: &Limit, evaluation: &Evaluation, facts: &Facts<'_>) -> bool {
        let refuses = self.limiter().knows_refusal(limit, evaluation, facts);
        if refuses {
            self.asked.borrow_mut().refusing.push(limit.name.clone());
        }
        refuses
    }

    async fn decide(&self, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>, _ask: Ask) -> Verdict {
        ask_limits(self, limits, evaluations).await
    }

    fn note_decision(&self, route: &Route, first: usize, facts: &Facts<'_>, verdict: &Verdict) -> DescribedLimits {
        describe_limits(self, route, first, facts, verdict)
    }

    fn record_decision(&mut self, _: &Route, _: &ClientAddress, verdict: Verdict, described: DescribedLimits) {
        self.found.explanation.limits.extend(described.reports);
        self.found.charges.extend(described.charges);
        self.found.admission.verdict = Some(verdict);
    }
}

impl Trace for ExplainWalk<'_> {
    fn observe_route(&mut self, found: Option<usize>, head: &ValidatedHead, method: &Method) {
        let (config, display) = (self.context.config, self.context.display);
        self.found.explanation.route = found.map(|index| routes::describe_route(config, index, &config.routes[index]));
        if self.context.op == Op::Peek {
            self.found.explanation.other_routes =
                routes::find_nearest_routes(config, (head, method), &self.parsed.parts.headers, found, display);
            if config.routes.len() > routes::COMPARED_MAX {
                self.note(format!("only the first {} routes were compared with the request", routes::COMPARED_MAX));
            }
        }
    }

    fn observe_preflight(&mut self, preflight: &Preflight<'_>) {
        let Preflight { method, policy, route } = preflight;
        self.note(format!("this is a preflight: a browser asks whether a page may send {method} (cors)"));
        if route.is_none() {
            self.note_origin(policy);
        }
    }

    fn observe_identity(&mut self, auth: &RouteAuth, proved: Result<&str, End>) {
        let (method, is_token) = match &auth.method {
            AuthMethod::Basic(_) => ("basic", false),
            AuthMethod::Jwt(_) => ("jwt", true),
            AuthMethod::Forward(_) => ("forward", false),
        };
        match proved {
            Ok(user) if is_token => {
                let detail = "the signature and the times of the token are valid";
                self.report_auth(method, "verified", Some(user), detail);
            }
            Err(End::CredentialsMissing) => {
                self.report_auth(method, "missing", None, "the request has no credentials for this route");
            }
            Err(End::CredentialsInvalid) => {
                self.report_auth(method, "invalid", None, "the credentials are malformed or not valid");
            }
            Err(End::TokenKeys) => {
                let detail = "the keys of the issuer are not known: a running gateway fetches them";
                self.report_auth(method, "unknown", None, detail);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

impl<'a> Door<'a> for ExplainWalk<'a> {
    fn config(&self) -> &'a Config {
        self.context.config
    }

    fn stated_ms(&self) -> Option<i64> {
        self.context.stated_ms
    }

    fn headers(&self) -> &HeaderMap {
        &self.parsed.parts.headers
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.parsed.parts.headers
    }

    fn has_joined_lines(&self) -> bool {
        self.has_joined_lines
    }

    fn received_facts(&self, identity: ClientAddress) -> ReceivedFacts<'a> {
        ReceivedFacts {
            fields: self.parsed.header_set,
            version: self.parsed.parts.version,
            body_length: self.parsed.body_length,
            identity,
            via: self.via,
            config: self.context.config,
        }
    }

    fn admission(&self) -> &Admission {
        &self.found.admission
    }

    fn admission_mut(&mut self) -> &mut Admission {
        &mut self.found.admission
    }

    fn identify_client(&mut self) -> ClientAddress {
        let (identity, report) = client::find_client(self.input.peer(), self.headers(), self.context.config);
        self.found.explanation.client = report;
        identity
    }

    fn check_framing(&mut self) -> Result<Option<End>, Refusal> {
        Ok(self.parsed.fault)
    }

    fn validate_head(&mut self) -> Result<ValidatedHead, Refusal> {
        let head = validate_head(&self.parsed.parts, self.parsed.header_set, &LastHost::default());
        let head = head.map_err(Refusal::from)?;
        self.found.explanation.request = self.describe_head(&head);
        Ok(head)
    }

    fn covers_host(&self, host: &str) -> bool {
        self.tls.as_ref().is_none_or(|tls| host.is_empty() || tls.is_valid_for(host))
    }

    fn redirect_port(&self) -> Option<u16> {
        self.listener()?.redirect_port
    }

    fn enter_route(&mut self, _index: usize, route: &'a Route) -> Result<(), Refusal> {
        self.route = Some(route);
        if let Some(policy) = &route.cors {
            self.note_origin(policy);
        }
        if let Some(max) = route.max_in_flight {
            self.note(format!("the route refuses requests while {max} are in progress (max_in_flight); not checked"));
        }
        Ok(())
    }

    fn check_overload(&mut self) -> Result<(), Refusal> {
        if let Some(rule) = &self.context.config.server.overload {
            let conditions: Vec<&str> = rule.conditions().map(OverloadCondition::label).collect();
            self.note(format!(
                "the gateway refuses requests while it is overloaded (overload: {}); not checked",
                conditions.join(", ")
            ));
        }
        Ok(())
    }

    fn check_breakers(&mut self, routed: RoutedRequest<'_>) -> Result<(), Refusal> {
        let upstreams = routed.route.upstreams().filter_map(|index| self.context.config.upstreams.get(index));
        let names: Vec<&str> =
            upstreams.filter(|upstream| upstream.breaker.is_some()).map(|upstream| &*upstream.name).collect();
        for name in names {
            self.note(format!("the breaker of upstream {name} refuses requests while it is open; not checked"));
        }
        if routed.route.breaker.is_some() {
            self.note("the breaker of the route refuses requests while it is open; not checked");
        }
        Ok(())
    }

    /// Assumes that the password is right.
    async fn verify_password(&mut self, routed: RoutedRequest<'_>, _auth: &PasswordAuth) -> Result<String, Refusal> {
        let credentials = Credentials::from_headers(self.headers()).map_err(Refusal::from)?;
        let detail = "the password was not verified; the limits of `auth` do not apply to passwords verified recently";
        self.report_auth("basic", "unknown", Some(&credentials.user), detail);
        self.note("the password was not verified; this assumes that it is right");
        apply_auth_limits(self, routed).await?;
        Ok(credentials.user)
    }

    /// An explanation leaves no trace in the cache of verified tokens.
    fn verify_token(&self, verifier: &TokenVerifier) -> Option<TokenClaims> {
        let now_s = clock::now_ms() / 1000;
        match self.context.op {
            Op::Take => verifier.verify_request(self.headers(), now_s),
            _ => verifier.verify_without_cache(self.headers(), now_s),
        }
    }

    /// Assumes that the auth server approves.
    async fn ask_auth_server(
        &mut self,
        routed: RoutedRequest<'_>,
        rule: &ForwardAuth,
    ) -> Result<Option<Response<ResponseBody>>, Refusal> {
        apply_auth_limits(self, routed).await?;
        let name = &rule.upstream_name;
        self.note(format!("the auth server {name} was not asked; this assumes that it approves"));
        let user = self.input.user.as_deref().filter(|user| rule.user.is_some() && is_valid_user(user));
        self.is_user_unknown = rule.user.is_some() && user.is_none();
        self.found.admission.user = user.map(Into::into);
        // The query may contain a secret.
        let path = rule.target.split('?').next().unwrap_or_default();
        self.report_auth("forward", "unknown", user, &format!("the auth server {name} decides, with {path}"));
        remove_client_headers(self.headers_mut(), rule);
        Ok(None)
    }

    fn take_places(&mut self, routed: RoutedRequest<'_>, offers_switch: bool) -> Result<Places, Refusal> {
        if offers_switch {
            let max = self.context.config.server.max_tunnels;
            if max == 0 {
                return Err(End::MaxTunnels.into());
            }
            self.note(format!("the gateway refuses upgrades while {max} tunnels are open (max_tunnels); not checked"));
        }
        let route = routed.route;
        let upstreams = route.upstreams().filter_map(|index| self.context.config.upstreams.get(index));
        let adaptive: Vec<_> = upstreams.filter_map(|upstream| Some((upstream, upstream.adaptive.as_ref()?))).collect();
        for (upstream, rule) in adaptive {
            self.note(format!(
                "upstream {} refuses requests above its capacity (adaptive, {} to {} at once; priority {} of 4); not \
                 checked",
                upstream.name,
                rule.min,
                rule.max,
                route.priority.number()
            ));
        }
        Ok(Places::default())
    }

    fn record_bypass(&mut self, route: &Route, indexes: Range<usize>) {
        self.found.decision = RequestDecision::Bypass;
        for index in indexes {
            let mut report = describe_limit(&route.limits[index], index < route.auth_limit_count());
            set_effect(&mut report, LimitEffect::Skipped, "the client is on the route's `allow` list");
            self.found.explanation.limits.push(report);
        }
    }

    fn body_length(&self) -> Option<u64> {
        self.parsed.body_length.or(self.input.body.as_ref().map(|body| body.len() as u64))
    }

    fn certificate(&self) -> Option<&ClientCertificate> {
        self.certificate.as_ref()
    }

    /// The client sends the host of the URL as server name. The client and the gateway agree on the rest in a
    /// handshake.
    fn connection(&self) -> ConnectionFacts<'_> {
        let of_tls = |text| Some(text).filter(|_| self.endpoint.is_https);
        ConnectionFacts {
            protocol: Some("PROTOCOL"),
            tls: of_tls("TLS-VERSION"),
            tls_cipher: of_tls("CIPHER"),
            tls_name: self.endpoint.server_name.as_deref().filter(|_| self.endpoint.is_https),
        }
    }

    async fn read_key_body(&mut self, route: &Route, max: usize) -> Result<KeyBody, Refusal> {
        if self.parsed.body_length == Some(0) {
            return Ok(KeyBody::None);
        }
        let least = self.parsed.body_length.unwrap_or(0);
        let kind = match find_readable_kind(self.headers(), least, max) {
            Ok(kind) => kind,
            Err(why) => return Ok(KeyBody::UnreadableBody(why)),
        };
        check_announced_size(least, route)?;
        match &self.input.body {
            Some(body) if body.len() > max => Ok(KeyBody::UnreadableBody(UnreadableBody::TooLong)),
            Some(body) => Ok(KeyBody::Whole(kind, Bytes::copy_from_slice(body))),
            None => {
                self.is_body_unknown = true;
                self.note("a limit reads the body, which was not given");
                Ok(KeyBody::None)
            }
        }
    }
}

impl ExplainWalk<'_> {
    /// Notes whether the page that sends the request may read the response, if there is one.
    fn note_origin(&mut self, policy: &CorsPolicy) {
        let Some(origin) = find_single(self.headers(), &ORIGIN) else { return };
        let text = String::from_utf8_lossy(origin.as_bytes());
        let note = match policy.allow_origin(Some(origin)) {
            Some(_) => format!("pages of {text} may read the response (cors)"),
            None => format!("pages of {text} may not read the response: `origins` of `cors` does not list them"),
        };
        self.note(note);
    }

    fn report_auth(&mut self, method: &str, credentials: &str, user: Option<&str>, detail: &str) {
        self.found.explanation.auth = Some(AuthReport {
            method: method.to_owned(),
            credentials: credentials.to_owned(),
            user: user.map(str::to_owned),
            detail: detail.to_owned(),
        });
    }
}
