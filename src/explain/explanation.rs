//! The explanation of a request. Its JSON is documented in `docs/reference/admin-api-traffic.md`, and stable: members
//! may be added. Members without a value are null or left out.

use serde::{Deserialize, Serialize};

use crate::labels::labels;

/// Explanation of a request: how the gateway handles it, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub verdict: VerdictReport,
    pub request: RequestReport,
    pub client: ClientReport,
    /// The route that matches.
    pub route: Option<RouteReport>,
    /// The routes that come nearest, with the conditions that the request does not meet.
    pub other_routes: Vec<OtherRoute>,
    pub auth: Option<AuthReport>,
    /// The limits of the route, in the order in which they decide.
    pub limits: Vec<LimitReport>,
    /// The descriptors, if this explains a rate limit request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rls: Option<RateLimitReport>,
    pub action: Option<ActionReport>,
    /// Facts that this explanation could not take into account.
    pub notes: Vec<String>,
    /// True if limits were compared with the live state of keys. Otherwise every key counts as unused.
    pub live: bool,
}

labels! {
    /// How the gateway handles a request.
    RequestDecision:
    Admit = "admit",
    /// A limit delays the request, then it passes.
    Delay = "delay",
    /// The request is over a limit, and is forwarded with a header.
    Annotate = "annotate",
    /// The request is over a limit, and is forwarded to another upstream.
    Divert = "divert",
    /// The client is on the route's `allow` list, so that no limit applies.
    Bypass = "bypass",
    /// A limit refuses.
    Refuse = "refuse",
    /// The client is on the route's `deny` list.
    Deny = "deny",
    /// The route has `auth`, and the credentials are missing or malformed.
    Unauthorized = "unauthorized",
    NoRoute = "no_route",
    /// The gateway refuses the request for another reason, such as invalid HTTP.
    Reject = "reject",
}

/// The end of the explanation: what the client gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerdictReport {
    /// A label of [`RequestDecision`].
    pub decision: String,
    /// The status of the response, if the gateway makes it.
    pub status: Option<u16>,
    /// The reason, as in the access log.
    pub reason: Option<String>,
    /// The option that governs a refusal.
    pub setting: Option<String>,
    /// The limit that refuses for longest, or that delays.
    pub limit: Option<String>,
    /// Null if waiting cannot help.
    pub retry_after_ms: Option<i64>,
    /// When the request would pass, by this machine's clock, if nothing else arrives.
    pub passes_at: Option<String>,
    pub delay_ms: Option<i64>,
    pub detail: String,
}

/// The request as limits and routes see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    pub method: String,
    pub host: String,
    pub path: String,
    /// Differences from the received head.
    pub rewritten: Vec<RewriteReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RewriteReport {
    /// `method`, `host` or `path`.
    pub part: String,
    pub received: String,
    pub canonical: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    pub address: String,
    pub peer: String,
    pub trusted_peer: bool,
    /// The hops that forwarding headers name, last first, up to the client.
    pub hops: Vec<HopReport>,
    pub detail: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopReport {
    pub header: String,
    pub text: String,
    /// Null if the text is not an address.
    pub address: Option<String>,
    pub trusted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteReport {
    pub name: String,
    /// The path as in the config, without the `= ` of an exact path.
    pub path: String,
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherRoute {
    pub name: String,
    /// Empty if the route matches, and a more specific one comes first.
    pub mismatches: Vec<MismatchReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MismatchReport {
    /// `host`, `path`, `method` or `header:NAME`.
    pub condition: String,
    /// Null if `[admin] keys` hides the header.
    pub expected: Option<String>,
    pub found: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthReport {
    /// `basic`, `jwt` or `forward`.
    pub method: String,
    /// `missing`, `invalid`, `verified`, or `unknown` if only the running gateway knows.
    pub credentials: String,
    /// The identity that the rest of the explanation assumes.
    pub user: Option<String>,
    pub detail: String,
}

labels! {
    /// Effect of a limit on a request.
    LimitEffect:
    Admits = "admits",
    Delays = "delays",
    Refuses = "refuses",
    /// The request is over the limit, and is forwarded with a header.
    Annotates = "annotates",
    /// The request is over the limit, and is forwarded to another upstream.
    Diverts = "diverts",
    /// The limit would refuse, and is in shadow mode.
    WouldRefuse = "would_refuse",
    /// The limit does not apply.
    Skipped = "skipped",
    /// The descriptor refunds its hits.
    Refunds = "refunds",
    /// The limit is exhausted, and the one after it decides.
    HandsOver = "hands_over",
    /// Another limit refused before.
    NotReached = "not_reached",
    /// The effect depends on something that only the running gateway knows.
    Unknown = "unknown",
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitReport {
    pub name: String,
    /// A label of [`LimitEffect`].
    pub effect: String,
    /// Why.
    pub detail: String,
    pub mode: String,
    /// The option `over` of the limit.
    pub over: String,
    pub algorithm: String,
    /// The rule that applies to the key: its override if it has one, otherwise the rule of the limit.
    pub rule: String,
    /// The key has an override: its rule, `blocked` or `unlimited`.
    pub overridden: Option<String>,
    /// The limit decides before the credentials are verified.
    pub before_auth: bool,
    /// The limit that must be exhausted before this one applies.
    pub after: Option<String>,
    /// Keys that are refused often are banned: when, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<String>,
    /// Responses that reset the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clear_on: Option<String>,
    /// Keys with many decisions are decided from leases: when, and how long a lease lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// The limit that this one may replace.
    pub candidate_of: Option<String>,
    /// The limit with the key part `ip6tiers` that this one belongs to.
    pub tier_of: Option<String>,
    /// How the candidate compares with that limit: `agree`, `would_refuse` or `would_admit`. Null if another limit
    /// refuses the request in any case.
    pub compared: Option<String>,
    pub conditions: Vec<ConditionReport>,
    /// The key as `[admin] keys` shows it.
    pub key: Option<String>,
    pub cost: Option<i64>,
    /// How the cost was estimated; null if it is not an estimate.
    pub estimate: Option<String>,
    pub state: Option<LimitState>,
    /// The tenant of the request, if tenants share the budget.
    pub fair: Option<TenantReport>,
}

/// A rate limit request of Envoy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateLimitReport {
    pub domain: String,
    /// An `[[rls]]` has this domain.
    pub is_known: bool,
    pub descriptors: Vec<DescriptorReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DescriptorReport {
    pub entries: Vec<EntryReport>,
    /// `take`, `look` or `refund`.
    pub operation: String,
    pub hits: i64,
    /// The `descriptor` of the `[[rls]]` that applies; null if none matches.
    pub rule: Option<String>,
    /// The rules that come nearest, with the conditions that the descriptor does not meet. Their names are their
    /// descriptors.
    pub other_rules: Vec<OtherRoute>,
    pub limits: Vec<LimitReport>,
    /// Null if the request cannot be decided.
    pub status: Option<StatusReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EntryReport {
    pub key: String,
    /// Null if `[admin] keys` hides the entry.
    pub value: Option<String>,
}

/// The status that Envoy would get for a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// `OK` or `OVER_LIMIT`.
    pub code: String,
    /// The limit that the status shows.
    pub limit: Option<String>,
    pub remaining: u32,
    pub until_reset_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantReport {
    pub weight: i64,
    /// Weights of all active tenants, including this one.
    pub total_weight: i64,
    /// Number of active tenants, including this one; null if the tenant shares its part with others.
    pub active: Option<i64>,
    /// Units per second that the tenant may always have, while the same tenants are active.
    pub rate_per_second: f64,
    /// Units that the tenant has to leave to the others before this request, at most the reserve.
    pub must_leave: i64,
    pub reserve: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConditionReport {
    /// Source that the condition reads, such as `method` or `header:x-plan`.
    pub source: String,
    /// Null if `[admin] keys` hides the source.
    pub expected: Option<String>,
    pub found: Option<String>,
    /// `true`, `false`, `repeated`, `not_integer` or `unreadable_key`.
    pub result: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitState {
    pub quota: i64,
    pub window_ms: i64,
    /// Units left for the key before this request.
    pub remaining: Option<i64>,
    /// Units left for the key after this request; the same as before if the request is refused.
    pub remaining_after: i64,
    pub retry_after_ms: Option<i64>,
    pub reset_ms: i64,
    /// `store`, or `local` while the store is unavailable.
    pub source: String,
}

/// The kind of the action if the gateway answers a preflight.
pub const PREFLIGHT: &str = "preflight";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActionReport {
    /// `upstream`, `echo`, `respond`, `redirect`, `files` or `preflight`.
    pub kind: String,
    pub upstream: Option<String>,
    /// The target that the upstream server gets.
    pub target: Option<String>,
    pub location: Option<String>,
    /// The file that the request gets. If the folder was not opened, the files that are tried, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    pub timeouts: Vec<TimeoutReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeoutReport {
    pub name: String,
    pub ms: u64,
    /// `route`, `server` or `default`.
    pub origin: String,
}
