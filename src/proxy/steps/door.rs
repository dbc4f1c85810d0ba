//! The interface between the steps and the door through which a request comes. The steps are generic over it, so that
//! there is one list of them for all doors.
//!
//! - Requests of clients, questions of other proxies and checks of Envoy come in a `RequestContext` (`live`): it
//!   counts, logs, charges and holds what the request uses.
//! - Explanations and test cases record what each step finds. They hold nothing, and a live store charges them nothing.
//! - Requests of an access log are replayed in the time of the log, and counted.
//!
//! A step that depends on nothing but the request and the config is a plain function and calls no method here.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, Response};

use crate::auth::forward::ForwardAuth;
use crate::auth::{PasswordAuth, RouteAuth};
use crate::config::Config;
use crate::ends::End;
use crate::limiting::decision::Op;
use crate::limiting::limit::Limit;
use crate::limiting::source::Facts;
use crate::limiting::source::jwt::{TokenClaims, TokenVerifier};
use crate::limiting::{Evaluation, Limiter, Verdict};
use crate::net::IpSet;
use crate::proxy::account::body::ResponseBody;
use crate::proxy::account::request_context::{Admission, Places, RoutedRequest};
use crate::proxy::head::identity::ClientAddress;
use crate::proxy::head::validate::ValidatedHead;
use crate::proxy::steps::forwarded_head::ReceivedFacts;
use crate::proxy::steps::request_body::KeyBody;
use crate::proxy::steps::response::preflight::Preflight;
use crate::proxy::words::delay::DelayPermit;
use crate::proxy::words::refusal::Refusal;
use crate::route::Route;
use crate::tls::ClientCertificate;

/// How a door asks the limiter.
#[derive(Clone, Copy)]
pub struct Ask {
    /// [`Op::Take`] charges, and [`Op::Peek`] only looks.
    pub op: Op,
    /// The door learns how the request ends, so charges that depend on it are held.
    pub holds: bool,
    /// Deadline for the answer.
    pub until: Option<tokio::time::Instant>,
}

impl Ask {
    /// Charges. Charges that depend on the end of the request are held until then.
    pub const HOLD: Ask = Ask { op: Op::Take, holds: true, until: None };
    /// Charges for good.
    pub const CHARGE: Ask = Ask { op: Op::Take, holds: false, until: None };
}

/// How long a limit delays a request that it admits.
pub struct LimitDelay<'r> {
    pub limit: &'r Limit,
    pub duration: Duration,
    pub slot: DelayPermit,
}

/// What a door knows of the client's connection, in the words of logs.
#[derive(Clone, Copy, Default)]
pub struct ConnectionFacts<'d> {
    pub protocol: Option<&'d str>,
    /// TLS version.
    pub tls: Option<&'d str>,
    pub tls_cipher: Option<&'d str>,
    /// Host name that the client sent in the TLS handshake (SNI).
    pub tls_name: Option<&'d str>,
}

/// A door as limits see it.
pub trait LimitDoor<'a> {
    /// The owner of the limits: a route, or the list that a caller names.
    type Limits: AsRef<[Arc<Limit>]> + ?Sized;
    /// The part of a decision that the door notes while the facts are known.
    type Note;

    fn limiter(&self) -> &'a Limiter;

    /// Evaluates `limits` as far as that is possible without a store.
    fn evaluate(&self, limits: &[Arc<Limit>], facts: &Facts<'_>) -> Vec<Evaluation> {
        self.limiter().evaluate_all(limits, facts, facts)
    }

    /// Reserves the slots to wait in, if a limit may delay the request.
    ///
    /// # Errors
    /// The index of the limit whose slots are all taken.
    fn reserve_slots(&self, _limits: &[Arc<Limit>], _evaluations: &[Evaluation]) -> Result<Option<DelayPermit>, usize> {
        Ok(None)
    }

    /// Returns whether `limit`, with this `evaluation`, certainly refuses the request before its body is read. Only
    /// doors that have to read the body can tell.
    fn knows_refusal(&self, _limit: &Limit, _evaluation: &Evaluation, _facts: &Facts<'_>) -> bool {
        false
    }

    /// Decides `limits`, with one element of `evaluations` for each.
    fn decide(&self, limits: &[Arc<Limit>], evaluations: Vec<Evaluation>, ask: Ask) -> impl Future<Output = Verdict> {
        self.limiter().decide_until(ask.op, limits, evaluations, ask.holds, ask.until)
    }

    /// Records that the request waited for a store since `begun`.
    fn add_wait(&self, _begun: Instant) {}

    /// Counts a decision, whose indexes are those of `limits`.
    fn count_decision(&self, _limits: &Self::Limits, _verdict: &Verdict) {}

    /// Notes what logs or explanations show of the limits from index `first` on. `verdict` also has the results of
    /// those that decided before.
    fn note_decision(&self, limits: &Self::Limits, first: usize, facts: &Facts<'_>, verdict: &Verdict) -> Self::Note;

    /// Records the verdict of all limits that have decided so far.
    fn record_decision(&mut self, limits: &Self::Limits, client: &ClientAddress, verdict: Verdict, note: Self::Note);

    /// Waits until it is the request's turn. Called only for a door that reserves slots.
    fn wait_for_turn(&mut self, _delay: LimitDelay<'_>) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Records that the limits have admitted the request and that its delay, if any, is over.
    fn end_delay(&mut self) {}
}

/// Observes what the steps find besides the decisions of limits.
pub trait Trace {
    /// The route at this index matches, if one does. `method`: the one by which it was found, which is not that of the
    /// head for a preflight.
    fn observe_route(&mut self, found: Option<usize>, head: &ValidatedHead, method: &Method);

    /// The gateway answers a preflight.
    fn observe_preflight(&mut self, _preflight: &Preflight<'_>) {}

    /// Called when the client has proved its identity, or when the request has ended before that.
    fn observe_identity(&mut self, _auth: &RouteAuth, _proved: Result<&str, End>) {}
}

/// A door as the steps of a request see it, in the order in which they use it.
pub trait Door<'a>: LimitDoor<'a, Limits = Route> + Trace {
    fn config(&self) -> &'a Config;

    /// The time of the request for conditions, in ms since 1970, if it is not the present.
    fn stated_ms(&self) -> Option<i64> {
        None
    }

    /// The headers that are forwarded, once `pipeline::arrive` has made them.
    fn headers(&self) -> &HeaderMap;

    fn headers_mut(&mut self) -> &mut HeaderMap;

    /// Returns whether the proxy that describes the request may have joined the lines of a header.
    fn has_joined_lines(&self) -> bool {
        false
    }

    /// Returns the facts about the head that was received.
    fn received_facts(&self, identity: ClientAddress) -> ReceivedFacts<'a>;

    /// Returns the results of authentication and limits so far.
    fn admission(&self) -> &Admission;

    fn admission_mut(&mut self) -> &mut Admission;

    /// Finds the client, and opens the log entry.
    fn identify_client(&mut self) -> ClientAddress;

    /// Returns what the parser has repaired.
    ///
    /// # Errors
    /// The parser lets something pass that is always refused.
    fn check_framing(&mut self) -> Result<Option<End>, Refusal>;

    /// Computes the canonical head.
    ///
    /// # Errors
    /// The head is invalid.
    fn validate_head(&mut self) -> Result<ValidatedHead, Refusal>;

    /// Reports forwarding headers of a peer that is not a trusted proxy, or a trusted proxy that names no client.
    fn report_untrusted_headers(&self) {}

    /// The forwarded head is made.
    fn record_forwarded_head(&mut self) {}

    /// Counts a head that only `strictness = "monitor"` lets pass.
    fn count_would_reject(&mut self, _reject: End) {}

    /// Returns whether the connection may carry requests for this host.
    fn covers_host(&self, host: &str) -> bool;

    /// Returns the HTTPS port to which the listener redirects all requests.
    fn redirect_port(&self) -> Option<u16>;

    /// Counts the request on the route at this index. It takes its place among those in flight later.
    ///
    /// # Errors
    /// The route is at `max_in_flight`.
    fn enter_route(&mut self, index: usize, route: &'a Route) -> Result<(), Refusal>;

    /// The head fits the route now.
    fn fit_to_route(&mut self, _route: &'a Route) {}

    /// Refuses the request if the process is overloaded. It takes its place later.
    fn check_overload(&mut self) -> Result<(), Refusal>;

    /// Refuses the request if a circuit breaker is open. It becomes a probe later.
    fn check_breakers(&mut self, routed: RoutedRequest<'_>) -> Result<(), Refusal>;

    /// Returns whether the client is in a list of networks. A client whose address is not known is in none.
    fn is_client_in(&self, networks: &IpSet, identity: &ClientAddress) -> bool {
        networks.contains(identity.ip)
    }

    /// Returns whether the client has proved who it is, if a log says so. The admission has the identity then.
    fn logged_proof(&self) -> Option<Result<(), End>> {
        None
    }

    /// Verifies a password, after the limits of `auth`. Returns the user.
    fn verify_password(
        &mut self,
        routed: RoutedRequest<'_>,
        auth: &PasswordAuth,
    ) -> impl Future<Output = Result<String, Refusal>>;

    /// Verifies the token in the headers.
    fn verify_token(&self, verifier: &TokenVerifier) -> Option<TokenClaims>;

    /// Waits until newer keys have been fetched, if the token in the headers needs them.
    fn await_token_keys(&self, _verifier: &TokenVerifier) -> impl Future<Output = ()> {
        async {}
    }

    /// Asks an auth server, after the limits of `auth`. Returns its response if it refuses the request.
    fn ask_auth_server(
        &mut self,
        routed: RoutedRequest<'_>,
        rule: &ForwardAuth,
    ) -> impl Future<Output = Result<Option<Response<ResponseBody>>, Refusal>>;

    /// Records the identity for the log.
    fn record_user(&mut self, _user: &str) {}

    /// Takes the places that all clients share: among the requests in flight of the route and the process, the probes
    /// of circuit breakers, and the tunnels if the request offers to switch protocols. Called when nothing is left to
    /// wait for, neither for the client nor for a turn: one client could otherwise hold all places.
    ///
    /// # Errors
    /// There is no place, or the upstream has no capacity. The request has no place then.
    fn take_places(&mut self, routed: RoutedRequest<'_>, offers_switch: bool) -> Result<Places, Refusal>;

    /// Returns the places of a request that the limits refuse or delay.
    fn return_places(&mut self, _places: Places) {}

    /// Refunds what the limits have charged: the request found no place after its turn had come.
    fn refund_charges(&mut self) {}

    /// Records that the route's `allow` list exempts the client from its limits at these indexes, which are not empty.
    fn record_bypass(&mut self, route: &Route, indexes: Range<usize>);

    /// Returns the length of the body, if it is known.
    fn body_length(&self) -> Option<u64>;

    /// Returns the verified certificate of the client.
    fn certificate(&self) -> Option<&ClientCertificate>;

    /// Returns what is known of the client's connection, for the server.
    fn connection(&self) -> ConnectionFacts<'_> {
        ConnectionFacts::default()
    }

    /// The client has proved who it is if it can. Records what the log shows of that.
    fn record_client(&mut self, _routed: RoutedRequest<'_>) {}

    /// Reads a body of at most `max` bytes for the keys of limits.
    fn read_key_body(&mut self, route: &Route, max: usize) -> impl Future<Output = Result<KeyBody, Refusal>>;

    /// Reads the calls that the response to a refused request has to name. `body` is the part of the body that the
    /// limits have read.
    fn read_refused_calls(&mut self, _route: &Route, _body: KeyBody) -> impl Future<Output = ()> {
        async {}
    }

    /// Passes on the part of the body that the limits of an admitted request have read.
    fn pass_body(&mut self, _body: &KeyBody, _path: &str) {}
}
