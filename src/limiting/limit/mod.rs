//! A compiled `[limit.NAME]`: which requests it applies to, whose budget they use, how much is allowed, and what
//! happens on a refusal. The config compiler creates limits; the limiter evaluates them.
//!
//! `when` has the conditions, `schedule` those about the time, `address_set` the networks of sets, `distinct` values
//! that are counted instead of requests, `cost` what a request costs, `bytes` the bytes of bodies as a cost,
//! `graphql_cost` the estimated cost of a GraphQL query, `refuse` the refusal, `ban` longer refusals, `over` what else
//! can happen over the limit, `key_rate` rates that requests state, `month_day` when the months of a key begin,
//! `charge_rules` how the outcome of a request (`request_end`) changes its charge, `settle` where a response states its
//! cost. To add an option, add a field here or there, and read it in `config::compile`.

pub mod address_set;
pub mod ban;
pub mod bytes;
pub mod charge_rules;
pub mod cost;
pub mod distinct;
pub mod graphql_cost;
pub mod key_rate;
pub mod month_day;
pub mod over;
pub mod refuse;
pub mod request_end;
pub(crate) mod schedule;
pub mod settle;
pub(crate) mod when;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::labels::labels;
use crate::limiting::algorithm::Rule;
use crate::limiting::algorithm::lease_basis::LeaseTerms;
use crate::limiting::decision::LimitRef;
use crate::limiting::fair_share::FairShare;
use crate::limiting::integers::{NotInteger, ValueError};
use crate::limiting::key::SourceValues;
use crate::limiting::key::state_key::{BudgetNames, KeyError, StateKeyFrame};
use crate::limiting::key::{Key, KeyPart, Missing};
use crate::limiting::limit::ban::LimitBan;
use crate::limiting::limit::charge_rules::ChargeRules;
use crate::limiting::limit::cost::{Cost, Price};
use crate::limiting::limit::distinct::DistinctValues;
use crate::limiting::limit::key_rate::KeyRate;
use crate::limiting::limit::month_day::MonthDay;
use crate::limiting::limit::over::Over;
use crate::limiting::limit::refuse::Refuse;
use crate::limiting::limit::settle::Settle;
use crate::limiting::limit::when::When;
use crate::limiting::overrides::Overrides;
use crate::limiting::settlement::api::{LlmApi, starts_unreported_work};
use crate::limiting::settlement::weights::ModelWeights;
use crate::limiting::source::calls::CallProtocol;
use crate::limiting::source::{
    BodyFacts, Facts, Repeated, Source, SourceKind, SourceOrigin, SourceValue, UnreadableBody,
};

/// All limits of a config, indexed by name.
#[derive(Debug, Default)]
pub struct LimitTable {
    pub all: Vec<Arc<Limit>>,
    by_name: HashMap<String, usize>,
}

impl LimitTable {
    pub fn new(all: Vec<Arc<Limit>>) -> LimitTable {
        let by_name = all.iter().enumerate().map(|(place, limit)| (limit.name.clone(), place)).collect();
        LimitTable { all, by_name }
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Limit>> {
        self.index_of(name).map(|place| &self.all[place])
    }

    /// Returns the index of a limit in `all`.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

impl Deref for LimitTable {
    type Target = [Arc<Limit>];

    fn deref(&self) -> &[Arc<Limit>] {
        &self.all
    }
}

/// One `[limit.NAME]`. If a list of limits sets another price, it has a copy of the limit with that cost, which uses
/// the same budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub name: String,
    /// Properties of the limit that stores need, made by [`LimitRef::new`].
    pub store_ref: Arc<LimitRef>,
    pub rule: Arc<Rule>,
    pub key: Key,
    pub missing: Missing,
    /// Paths in the key may have repeated slashes, because a route of the config keeps them.
    pub keeps_slashes: bool,
    /// Which value counts if the request repeats a header, parameter or field that the limit reads.
    pub repeated: Repeated,
    /// Handling of a request if the limit reads an integer and the request contains something else.
    pub not_integer: NotInteger,
    pub cost: Cost,
    pub mode: Mode,
    /// How requests over the limit are treated.
    pub over: Over,
    pub on_error: OnError,
    /// Which requests the limit applies to.
    pub when: When,
    /// Shared by the copies of the limit, because live overrides change while the gateway runs.
    pub overrides: Arc<Overrides>,
    /// Name of the limit that must be exhausted before this one applies.
    pub after: Option<String>,
    /// Name of the limit that this one may replace. Such a limit is in shadow mode.
    pub candidate_of: Option<String>,
    /// Name of the limit of the config, if it counts several networks of a client (`ip6tiers`). Each network has its
    /// own limit. The limit with exactly this name counts the smallest network.
    pub tier_of: Option<String>,
    /// Maximum number of keys in memory. Limits without this setting share what the others leave.
    pub max_keys: Option<usize>,
    /// How the outcome of a request changes its charge; `None` if it does not.
    pub charge_rules: Option<Arc<ChargeRules>>,
    /// The option `ban`; `None` if keys are refused only as long as they are over the limit.
    pub ban: Option<Box<LimitBan>>,
    /// How tenants share a budget; `None` if they do not.
    pub fair: Option<Box<FairShare>>,
    /// The values that are counted instead of requests (`distinct`); `None` if requests are.
    pub distinct: Option<Box<DistinctValues>>,
    /// Response to refused requests. `None` uses the response of the route.
    pub refuse: Option<Arc<Refuse>>,
    /// The source of the rate of a key. `None` if all keys have the rate of the rule. Otherwise, the rule has the
    /// highest number, or the fastest rate of a plan: others may be unlimited, or admit more in a long interval.
    pub key_rate: Option<Box<KeyRate>>,
    /// The source of the day on which months begin; `None` if all keys have the day of the rule.
    pub month_day: Option<Box<MonthDay>>,
    /// The protocol of the calls in a body that the limit counts one by one; `None` if it reads none.
    pub call_protocol: Option<CallProtocol>,
}

impl Limit {
    /// Returns a copy with another cost: it charges the same budgets.
    pub fn with_cost(&self, cost: Cost) -> Limit {
        let rules = self.charge_rules.as_deref().cloned().unwrap_or_default();
        let charge_rules = rules.with_status_prices(cost.status_prices()).unless_default().map(Arc::new);
        let store_ref = LimitRef::new(&self.name, &cost, charge_rules.as_ref(), self.store_ref.lease);
        let store_ref = if self.store_ref.refundable { store_ref.to_refundable() } else { store_ref };
        let store_ref = store_ref.with_usage(self.store_ref.usage_days);
        Limit { cost, charge_rules, store_ref, ..self.clone() }.with_call_protocol().with_varying_refusals()
    }

    /// Returns the name of the budget that a request with `facts` uses. With `values`, also in the form that overrides
    /// use.
    ///
    /// # Errors
    /// A part of the key is missing or ambiguous.
    pub fn budget_names(&self, prefix: &str, facts: &impl SourceValues, values: bool) -> Result<BudgetNames, KeyError> {
        let frame = StateKeyFrame { prefix, limit: &self.name, algorithm: self.rule.name() };
        self.key.budget_names(frame, facts, self.missing, self.repeated, values)
    }

    /// Returns the key by which usage is counted: the budget, and the tenant or the counted value if there is one.
    pub fn counted_key(&self) -> &Key {
        match (&self.fair, &self.distinct) {
            (Some(fair), _) => &fair.counted_key,
            (None, Some(distinct)) => &distinct.counted_key,
            (None, None) => &self.key,
        }
    }

    /// Returns whether the limit applies to the request, by its `when`.
    ///
    /// # Errors
    /// A condition depends on a value that is ambiguous, or that should be an integer and is not.
    pub fn applies_to(&self, facts: &Facts) -> Result<bool, ValueError> {
        self.when.is_met(facts, self.repeated, self.not_integer)
    }

    /// Returns the cost of the request, with what of it is for its input.
    ///
    /// # Errors
    /// The cost is ambiguous or no integer, or no response will report it.
    pub fn price_of(&self, facts: &Facts) -> Result<Price, ValueError> {
        let settles_by_tokens = self.settles_by_tokens();
        if settles_by_tokens && starts_unreported_work(facts.method, facts.server_path, facts.headers) {
            return Err(UnreadableBody::Batch.into());
        }
        if let Some(protocol) = self.call_protocol {
            let calls = self.when.select_calls(protocol, facts, self.not_integer)?;
            return self.cost.for_calls(&calls, facts, self.repeated, self.not_integer);
        }
        let price = self.cost.for_request(facts, self.repeated, self.not_integer)?;
        match self.charge_rules.as_ref().and_then(|rules| rules.usage()).filter(|_| settles_by_tokens) {
            Some(usage) if self.cost.reserve().is_none() => {
                Ok(Price { input_tokens: usage.input_tokens(facts.least_body_length()), ..price })
            }
            _ => Ok(price),
        }
    }

    /// Sources whose values have to be integers.
    pub fn integer_sources(&self) -> impl Iterator<Item = &Source> {
        self.when.integer_sources().chain(self.cost.integer_sources())
    }

    /// Returns whether requests over the limit are forwarded. In shadow mode, `over` has no effect.
    pub fn forwards_excess(&self) -> bool {
        self.mode == Mode::Enforce && self.over.forwards()
    }

    /// Returns the response to refused requests, on a route with the response `of_route`.
    pub fn refusal_response<'a>(&'a self, of_route: &'a Refuse) -> &'a Refuse {
        self.refuse.as_deref().unwrap_or(of_route)
    }

    /// Returns the name in the config. For a tier, this is the name of the limit with the tiers.
    pub fn listed_name(&self) -> &str {
        self.tier_of.as_ref().unwrap_or(&self.name)
    }

    /// Returns whether the limit is a tier that no list names: it applies wherever the limit with these tiers is
    /// listed.
    pub fn is_wider_tier(&self) -> bool {
        self.tier_of.as_ref().is_some_and(|name| *name != self.name)
    }

    /// Reports whether the limit is a wider tier, and the key in `facts` has an IPv4 address: wider tiers have only
    /// IPv6 networks.
    pub fn is_tier_without(&self, facts: &impl SourceValues) -> bool {
        let is_ipv4 = |part| {
            let value = facts.part_value(part, self.repeated);
            matches!(value, Ok(Some(SourceValue::Ip(ip))) if ip.to_canonical().is_ipv4())
        };
        self.is_wider_tier() && self.key.0.iter().any(is_ipv4)
    }

    /// Returns the prefix length of the networks that the limit counts IPv6 clients by. `None` if it does not.
    pub fn ipv6_prefix(&self) -> Option<u8> {
        self.key.sources().find_map(|source| match source {
            Source::Ip(prefixes) => Some(prefixes.v6),
            _ => None,
        })
    }

    /// Returns whether all tiers of the limit must be charged together, although the limit refuses nothing.
    pub fn has_linked_tiers(&self) -> bool {
        self.tier_of.is_some() && (self.mode == Mode::Shadow || self.forwards_excess())
    }

    /// Returns whether the limit reads the address of the client.
    pub fn reads_address(&self) -> bool {
        self.when.reads_client() || self.counted_key().sources().any(Source::reads_address)
    }

    /// Returns whether the response reports the true cost of a request.
    pub fn settles(&self) -> bool {
        self.charge_rules.as_ref().is_some_and(|rules| rules.settle.is_some())
    }

    /// Returns whether `settle` has sources in the response.
    pub fn settles_by_source(&self) -> bool {
        let settle = self.charge_rules.as_ref().and_then(|rules| rules.settle.as_ref());
        settle.is_some_and(Settle::has_sources)
    }

    /// Returns whether the limit reads the calls in a body. It counts each of them.
    pub fn reads_calls(&self) -> bool {
        self.call_protocol.is_some()
    }

    /// Returns the limit, which knows whether it reads calls.
    pub fn with_call_protocol(self) -> Limit {
        let call_protocol = self.sources().find_map(Source::call_protocol);
        Limit { call_protocol, ..self }
    }

    /// Returns the limit, whose stores know whether a refused key may admit other requests.
    pub fn with_varying_refusals(mut self) -> Limit {
        let refusals_vary = self.distinct.is_some() || self.key_rate.is_some() || self.month_day.is_some();
        if refusals_vary != self.store_ref.refusals_vary {
            self.store_ref = Arc::new(LimitRef { refusals_vary, ..LimitRef::clone(&self.store_ref) });
        }
        self
    }

    /// Returns whether the limit may apply to a request whose body is not known yet.
    pub fn may_apply_before_body(&self, facts: &Facts) -> bool {
        if !self.when.reads_body() {
            return self.applies_to(facts) == Ok(true);
        }
        let is_known = |source: &Source| source.kind().origin() != SourceOrigin::Body;
        self.when.is_met_if_known(facts, self.repeated, self.not_integer, is_known) != Ok(false)
    }

    /// Returns why the limit cannot use the body of a request; `None` if it can or does not need it.
    pub fn unreadable_body(&self, facts: &Facts) -> Option<UnreadableBody> {
        let body = &facts.body;
        if let Some(protocol) = self.call_protocol
            && let Err(why) = facts.calls(protocol)
        {
            return Some(why);
        }
        self.counted_key().unreadable_body(body).or(match (self.cost.counted_source(), body) {
            (Some(_), BodyFacts::UnreadableBody(why)) => Some(*why),
            (Some(_), BodyFacts::Form(_)) => Some(UnreadableBody::Type),
            _ => None,
        })
    }

    /// Returns whether the limit counts bytes of bodies.
    pub fn counts_bytes(&self) -> bool {
        self.charge_rules.as_ref().is_some_and(|rules| rules.counted_bytes().is_some())
    }

    /// Returns what a token costs, by model.
    pub fn weights(&self) -> Arc<ModelWeights> {
        let of_usage = self.charge_rules.as_ref().and_then(|rules| rules.usage()).map(|usage| &usage.weights);
        of_usage.or(self.cost.reserve().map(|reserve| &reserve.weights)).cloned().unwrap_or_default()
    }

    /// Returns whether the response can cost more than was charged before.
    pub fn charges_late(&self) -> bool {
        let settle = self.charge_rules.as_ref().and_then(|rules| rules.settle.as_ref());
        settle.is_some_and(Settle::may_add)
    }

    /// Returns whether the end of a request may change its charge.
    pub fn may_change_charges(&self) -> bool {
        self.charge_rules.is_some() || self.rule.has_queue()
    }

    /// Everything that the limit reads of a request.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        let parts = self.counted_key().sources().chain(self.when.sources()).chain(self.cost.sources());
        parts.chain(self.stated_sources())
    }

    /// Returns the sources of numbers that the request states of its key: the day on which its months begin, its rate.
    pub fn stated_sources(&self) -> impl Iterator<Item = &Source> {
        let day = self.month_day.iter().map(|day| &day.source);
        day.chain(self.key_rate.iter().map(|rate| &rate.source))
    }

    /// Returns whether the limit reads the content of request bodies: for its key or its cost, or to change them.
    pub fn reads_body(&self) -> bool {
        self.reads_every_body() || self.finds_background()
    }

    /// Returns whether the limit reads the body of a request that the server gets at that path.
    pub fn reads_body_of(&self, path: &str) -> bool {
        self.reads_every_body() || self.finds_background() && LlmApi::find(path).is_some_and(LlmApi::has_background)
    }

    fn reads_every_body(&self) -> bool {
        self.has_key_in_body() || self.when.reads_body() || self.cost.reads_body() || self.requests_usage()
    }

    /// Returns whether the body of the request may change what the limit charges, or whether it applies. `facts`: those
    /// without the body.
    pub fn depends_on_body(&self, facts: &Facts) -> bool {
        let is_estimated = matches!(self.cost, Cost::Reserved(_)) && facts.body_length.is_none();
        is_estimated || self.reads_body_of(facts.server_path)
    }

    /// Returns whether a refusal of the limit alone refuses the request: no other limit decides in its place, and the
    /// request does not wait for a place in a queue.
    pub fn decides_alone(&self) -> bool {
        let has_others = self.after.is_some() || self.candidate_of.is_some() || self.forwards_excess();
        self.mode == Mode::Enforce && !has_others && !self.rule.has_queue()
    }

    /// Returns whether the limit does not apply to the request, whatever is in its body: it lacks another part of the key.
    pub fn skips_whatever_body(&self, keys: &impl SourceValues) -> bool {
        let is_absent = |part: &KeyPart| {
            let may_be_in_body = part.sources().iter().any(|source| source.kind().origin() == SourceOrigin::Body);
            !may_be_in_body && matches!(keys.part_value(part, self.repeated), Ok(None))
        };
        self.missing == Missing::Skip && self.counted_key().0.iter().any(is_absent)
    }

    /// Returns whether the body has a part of the key, or the counted value.
    pub fn has_key_in_body(&self) -> bool {
        self.counted_key().reads_body()
    }

    /// Returns whether the estimate must know which responses are generated in the background: they do not report the
    /// usage by which the limit settles.
    fn finds_background(&self) -> bool {
        matches!(self.cost, Cost::Reserved(_)) && self.settles_by_body()
    }

    /// Returns whether the body of the response reports the true cost.
    pub fn settles_by_body(&self) -> bool {
        self.charge_rules.as_ref().is_some_and(|rules| rules.usage().is_some())
    }

    /// Returns whether responses report the tokens of a language model, and not only some number.
    fn settles_by_tokens(&self) -> bool {
        let usage = self.charge_rules.as_ref().and_then(|rules| rules.usage());
        usage.is_some_and(|usage| usage.is_of_model() || matches!(self.cost, Cost::Reserved(_)))
    }

    /// Returns whether the gateway asks servers to report the usage of streams.
    pub fn requests_usage(&self) -> bool {
        let rules = self.charge_rules.as_ref().and_then(|rules| rules.usage());
        rules.is_some_and(|usage| usage.requests_usage)
    }

    /// Path parameters that the limit reads.
    pub fn path_params(&self) -> impl Iterator<Item = &str> {
        self.sources().filter_map(|source| match source {
            Source::Param(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns whether a request may repeat something that the limit reads.
    pub fn reads_repeatable(&self) -> bool {
        self.sources().any(|source| match source.kind().origin() {
            SourceOrigin::Target
            | SourceOrigin::Fields
            | SourceOrigin::Token
            | SourceOrigin::Body
            | SourceOrigin::Descriptor => true,
            SourceOrigin::Request | SourceOrigin::Certificate | SourceOrigin::Identity => false,
        })
    }

    /// Returns whether the limit reads headers.
    pub fn needs_headers(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Fields)
    }

    /// Returns whether a part of the key is absent in requests without a verified identity.
    pub fn is_keyed_by_user(&self) -> bool {
        self.key.0.iter().any(|part| !part.sources().is_empty() && part.sources().iter().all(Source::is_user))
    }

    /// Returns a descriptor entry without which the limit does not work as configured.
    pub fn required_descriptor(&self) -> Option<&Source> {
        let is_entry = |source: &&Source| source.kind() == SourceKind::Descriptor;
        let parts = self.counted_key().0.iter().filter(|part| part.sources().iter().all(|source| is_entry(&source)));
        let of_key = parts.filter_map(|part| part.sources().first()).next();
        of_key.or_else(|| self.cost.sources().iter().find(is_entry)).or_else(|| self.when.sources().find(is_entry))
    }

    /// Returns whether the limit reads claims of a JWT.
    pub fn needs_claims(&self) -> bool {
        self.sources().any(|source| source.kind().origin() == SourceOrigin::Token)
    }
}

impl LimitRef {
    /// Returns a copy whose charges may be refunded: those of another list of the same limit may be.
    pub fn to_refundable(&self) -> Arc<LimitRef> {
        Arc::new(LimitRef { refundable: true, ..self.clone() })
    }

    /// Returns a copy that keeps the usage of keys for `usage_days`; `None` does not keep it.
    pub fn with_usage(self: Arc<LimitRef>, usage_days: Option<u16>) -> Arc<LimitRef> {
        match usage_days == self.usage_days {
            true => self,
            false => Arc::new(LimitRef { usage_days, ..LimitRef::clone(&self) }),
        }
    }

    /// Describes the limit `name` for stores.
    pub fn new(
        name: &str,
        cost: &Cost,
        afterwards: Option<&Arc<ChargeRules>>,
        lease: Option<LeaseTerms>,
    ) -> Arc<LimitRef> {
        let id = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let refundable = afterwards.is_some();
        let (name, max_cost) = (name.to_owned(), cost.max_cost());
        Arc::new(LimitRef { id, name, max_cost, refundable, lease, usage_days: None, refusals_vary: false })
    }
}

labels! {
    /// Mode of a limit: enforced, or evaluated only.
    Mode:
    Enforce = "enforce",
    /// Decides and counts, but never refuses.
    Shadow = "shadow",
}

labels! {
    /// How a limit decides while the store is unavailable.
    OnError:
    /// Admits every request.
    Open = "open",
    /// Refuses every request.
    Closed = "closed",
    /// Decides from memory, by this gateway's share of the rule.
    Local = "local",
}

#[cfg(test)]
impl Limit {
    /// A limit with one budget for all requests, and defaults otherwise.
    pub fn bare(name: &str, rule: Rule, mode: Mode) -> Arc<Limit> {
        Arc::new(Limit {
            name: name.to_owned(),
            store_ref: LimitRef::new(name, &Cost::Fixed(1), None, None),
            rule: Arc::new(rule),
            key: Key(vec![crate::limiting::key::KeyPart::All]),
            keeps_slashes: false,
            missing: Missing::Skip,
            repeated: Repeated::default(),
            not_integer: NotInteger::default(),
            cost: Cost::Fixed(1),
            mode,
            over: Over::Refuse,
            on_error: OnError::Local,
            when: When::default(),
            overrides: Arc::default(),
            after: None,
            candidate_of: None,
            tier_of: None,
            max_keys: None,
            charge_rules: None,
            ban: None,
            fair: None,
            distinct: None,
            refuse: None,
            key_rate: None,
            month_day: None,
            call_protocol: None,
        })
    }
}
