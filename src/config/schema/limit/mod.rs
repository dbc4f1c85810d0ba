//! Options of `[limit.NAME]`. Algorithms declare the types of their own options.
//!
//! `when` has the conditions of a limit, `overrides` the entries with other numbers, and `override_key` the keys of
//! these. To add an option, add a row here or there, and read it in `config::compile::limits`. Tables of the manual,
//! `help`, the JSON Schema, the effective config and differences read the row.

pub mod override_key;
pub mod overrides;
pub mod when;

use std::time::Duration;

use crate::config::schema::row::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::row::{ClientData, Row, Secrecy, Weaker, option, rows, table};
use crate::config::schema::shared::{KEY_PARTS, refuse};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{DAY, HOUR, SECOND, duration, integer, list_from};
use crate::config::schema::{server, store};
use crate::ends::End;
use crate::limiting::algorithm::ban::{AFTER_MAX, GROW_MAX};
use crate::limiting::algorithm::fair::{self as fair_sharing, ACTIVE_MAX_MS, WEIGHT_MAX};
use crate::limiting::algorithm::{SPECS, params};
use crate::limiting::integers::COST_MAX;
use crate::limiting::integers::NotInteger;
use crate::limiting::key::Missing;
use crate::limiting::limit::Mode;
use crate::limiting::limit::OnError;
use crate::limiting::source::Repeated;
use crate::limiting::store::shares::SHARE_MIN;

const ALGORITHM_NAMES: [&str; SPECS.len()] = {
    let mut names = [""; SPECS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = SPECS[at].name;
        at += 1;
    }
    names
};
const ACTIVE_MAX: u64 = ACTIVE_MAX_MS.unsigned_abs();
const TENANT_WEIGHT: ValueType = integer(1, WEIGHT_MAX);
const KEYS_MIN: i64 = SHARE_MIN as i64;
/// A pattern, or a list of patterns of which one must match.
const PATTERNS: ValueType = list_from(1, &Either(&[Text("pattern"), Integer { least: i64::MIN, most: i64::MAX }]));
/// Statuses, classes and other outcomes of a request.
const OUTCOMES: ValueType = list_from(1, &Either(&[Integer { least: 100, most: 599 }, Text("outcome")]));

rows! {
    table("limit").title("[limit.NAME]");

    ALGORITHM = option("algorithm", Words(&ALGORITHM_NAMES), Described("`\"token_bucket\"`, with `distinct` `\"sliding_log\"`"), "the [algorithm](algorithms.md)").shown_as("name")
        .teach("\"sliding_window\"", "The default suits most limits. [Choosing a limit](../guides/choosing-a-limit.md) has a table by use case");
    RATE = option("rate", Either(&[Rate, CalendarRate, Text("source")]), Described("required; not for `concurrency`"), "units per period")
        .shown_as("rate; for `calendar` COUNT/hour, /day, /week, /month or /year; `\"jwt:CLAIM\"`, `\"header:NAME\"`, `\"descriptor:NAME\"`")
        .metric("sluicegate_rejections_total")
        .ends(End::Exhausted)
        .weaker(Weaker::More)
        .unset("0")
        .called(&["requests", "quota", "average"])
        .teach("\"100/min\"", "Take it from what your clients need: [replay an access log](../operating/rollout.md) to see whom a rate would have refused");
    RATE_WITHIN = option("rate_within", List { item: &Either(&[Rate, CalendarRate]), least: 2, most: 2 }, Absent, "the lowest and the highest rate, if `rate` names where a number is read from; without a valid number, a key has the lowest")
        .shown_as("list of two rates")
        .guide("overrides.md#rates-from-an-auth-server")
        .weaker(Weaker::Compiled);
    RATES = option("rates", Map(&Either(&[Rate, CalendarRate, Words(&["unlimited", "0"]), Integers(&[0])])), Absent, "rates by plan, if `rate` names where the plan is read from; `default` for all other keys, which are refused without it")
        .shown_as("table of rates")
        .guide("overrides.md#rates-from-an-auth-server")
        .weaker(Weaker::Compiled)
        .called(&["plans"]);
    KEY = option("key", KEY_PARTS, Value("\"ip\""), "whose budget it is").guide("keys.md")
        .weaker(Weaker::Compiled)
        .called(&["key_by", "limit_by", "by"])
        .teach("[\"ip\", \"path\"]", "Use what a client cannot change at will: a verified user or API key, else the address");
    MISSING: Missing = option(
        "missing",
        Words(&["shared", "skip", "refuse"]),
        Value("\"shared\""),
        "what happens if a key part is absent",
    )
    .guide("keys.md#missing-parts")
    .metric("sluicegate_rejections_total")
    .ends(End::MissingKey)
    .weaker(Weaker::Compiled)
    .teach("\"refuse\"", "`shared` gives all such requests one budget, `skip` does not apply the limit, `refuse` answers 403. Use `refuse` if every legitimate request has the key, such as an API key");
    REPEATED: Repeated = option(
        "repeated",
        Words(Repeated::LABELS),
        Value("\"refuse\""),
        "what happens if a value occurs more than once: refuse the request (400), or use the first or the last",
    )
    .guide("keys.md#repeated-and-ambiguous-values")
    .metric("sluicegate_rejections_total")
    .ends(End::RepeatedKey)
    .weaker(Weaker::More)
    .teach("\"first\"", "Change it only if all your servers read the first, or the last, of several values");
    NOT_INTEGER: NotInteger = option(
        "not_integer",
        Words(NotInteger::LABELS),
        Value("\"refuse\""),
        "what happens if a value that should be an integer is not one",
    )
    .guide("keys.md#integers")
    .metric("sluicegate_rejections_total")
    .ends(End::NotInteger)
    .weaker(Weaker::More);
    COST = option(
        "cost",
        Either(&[Integer { least: 0, most: COST_MAX }, Text("source"), Table(&cost::TABLE)]),
        Value("1"),
        "units of one request",
    )
    .shown_as("integer from 0, `\"header:NAME\"`, `\"query:NAME\"`, `\"descriptor:NAME\"`, table with `method`, `status`, `count`, `reserve` or `graphql`")
    .metric("sluicegate_rejections_total")
    .ends(End::NeverFits)
    .weaker(Weaker::Less)
    .teach("5", "Set it on limits that expensive requests share with cheap ones, per route or by what the request asks for");
    COSTS = option("costs", Map(&UNITS), Absent, "units by JSON-RPC method, or by tool (`tools/call:NAME`); `default` for all others. A batch costs the sum")
        .shown_as("table of integers")
        .guide("calls.md#costs")
        .metric("sluicegate_rejections_total")
        .ends(End::NotCalls)
        .weaker(Weaker::Compiled)
        .called(&["method_costs"])
        .teach("{ \"tools/call:search\" = 10, default = 1 }", "Set it for JSON-RPC and MCP servers if some methods or tools are much more expensive than others");
    MODE: Mode = option(
        "mode",
        Words(Mode::LABELS),
        Value("\"enforce\""),
        "`\"shadow\"` decides and counts, never refuses",
    )
    .metric("sluicegate_limit_decisions_total")
    .weaker(Weaker::Compiled)
    .teach("\"shadow\"", "Begin with `shadow` to see whom a new limit would refuse");
    OVER = option(
        "over",
        Text("word, or `upstream:NAME`"),
        Value("\"refuse\""),
        "what happens to requests over the limit",
    )
    .shown_as("`\"refuse\"`, `\"delay\"`, `\"annotate\"`, `\"upstream:NAME\"`")
    .guide("responses.md#forwarding-what-is-over-a-limit")
    .metric("sluicegate_limit_decisions_total")
    .weaker(Weaker::Compiled)
    .keywords(&["refuse", "delay", "annotate"])
    .teach("\"annotate\"", "`delay` lets requests wait (`leaky_bucket`), `annotate` forwards them with a header, `upstream:NAME` sends them to another upstream");
    ON_ERROR: Option<OnError> = store::ON_ERROR.inherit("that of `[store]`", "what the limit does when the store does not respond in time")
    .guide("../operating/redis-outages.md")
    .metric("sluicegate_rejections_total")
    .ends(End::StoreDown)
    .weaker(Weaker::Compiled)
    .teach("\"closed\"", "Set `closed` for limits that protect passwords, because an attacker could wait for an outage");
    WHEN = option("when", Table(&when::TABLE), Described("all requests"), "which requests it applies to").guide("conditions.md")
        .teach("{ method = \"POST\", path = \"/login\" }", "Use it to limit only some requests of a route, for example writes, logins or one plan");
    AFTER = option("after", Text("name of a limit"), Absent, "the limit that must be exhausted first")
        .guide("conditions.md#one-limit-after-another")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Added)
        .teach("\"included\"", "Use it if one limit is a reserve of another, for example units that customers bought in addition to their plan");
    CANDIDATE_OF = option(
        "candidate_of",
        Text("name of a limit"),
        Absent,
        "the limit that this one may replace; it refuses nothing",
    )
    .guide("conditions.md#candidates")
    .metric("sluicegate_candidate_decisions_total")
    .weaker(Weaker::Compiled)
    .teach("\"per-ip\"", "Use it to see what a lower limit would refuse, before you replace the current one");
    OVERRIDES = option(
        "overrides",
        Either(&[Table(&overrides::TABLE), Array { item: &Table(&overrides::TABLE), least: 0, most: 10_000 }]),
        Absent,
        "different numbers for some keys",
    )
    .shown_as("table, or list of tables")
    .guide("overrides.md")
    .metric("sluicegate_rejections_total")
    .ends(End::Blocked)
    .weaker(Weaker::Compiled)
    .teach("[{ key = \"192.0.2.7\", rate = \"1000/day\" }]", "Use it if single customers need a different limit, or none");
    FAIR = option("fair", Table(&fair::TABLE), Absent, "tenants share each budget (`token_bucket`, `gcra`)")
        .guide("algorithms.md#fair-sharing")
        .metric("sluicegate_fair_active_tenants")
        .teach("{ key = \"header:x-tenant\" }", "Use it if many tenants share one budget and none of them may use up all of it");
    WARM_UP: Option<Duration> = option("warm_up", duration(SECOND, HOUR), Absent, "how long the rate of an unused key rises, from a third (`token_bucket`)")
        .guide("warm-up.md")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Less)
        .unset("0")
        .called(&["warmup", "warm_up_period"])
        .teach("\"30s\"", "Set it for servers whose caches are cold after a pause, so that a burst does not overload them");
    DISTINCT = option("distinct", KEY_PARTS, Absent, "count different values of this source, not requests (`sliding_log`, `fixed_window`, `calendar`)")
        .guide("distinct.md")
        .metric("sluicegate_limit_decisions_total")
        .ends(End::Exhausted)
        .weaker(Weaker::Added)
        .called(&["unique", "count_distinct"])
        .teach("\"form:user\"", "Use it to limit how many accounts, files or values a client tries, however often it tries each");
    BAN = option("ban", Table(&ban::TABLE), Absent, "refuse a key that is refused often for longer")
        .guide("bans.md")
        .metric("sluicegate_limit_bans_total")
        .ends(End::Banned)
        .teach("{ after = 10, within = \"1m\", for = \"10m\" }", "Use it against clients that ignore 429 and continue to send, such as scanners");
    USAGE: Option<Duration> = option("usage", duration(DAY, USAGE_MAX), Absent, "keep what each key used on each day for this long, for `sluicegate usage`")
        .guide("../operating/usage-reports.md")
        .metric("sluicegate_usage_lost_total")
        .teach("\"90d\"", "Set it if you send invoices or reports by usage");
    CHARGE_ON = option("charge_on", OUTCOMES, Described("every response"), "only these responses are charged")
        .shown_as("list of statuses, classes, `\"grpc:CODE\"`")
        .guide("charges.md")
        .weaker(Weaker::Added)
        .unordered()
        .teach("[401, 403]", "Use it to count only failed logins, so that successful ones are free");
    REFUND_ON = option("refund_on", OUTCOMES, Absent, "these responses are refunded")
        .shown_as("list of statuses, classes, `\"connect_error\"`, `\"client_abort\"`, `\"grpc:CODE\"`")
        .guide("charges.md")
        .weaker(Weaker::NewItem)
        .unordered()
        .keywords(&["connect_error", "client_abort"])
        .teach("[\"5xx\", \"connect_error\"]", "Use it if customers should not pay for your own failures");
    CLEAR_ON = option("clear_on", OUTCOMES, Absent, "these responses of the server reset the key")
        .shown_as("list of statuses, classes, `\"grpc:CODE\"`")
        .guide("charges.md#clear_on")
        .weaker(Weaker::NewItem)
        .unordered()
        .teach("[200, 204]", "Use it on limits of failed logins, so that a correct password forgives earlier typing errors");
    SETTLE = option("settle", list_from(1, &Text("source")), Absent, "where the response reports the true cost")
        .shown_as("list of up to 16: `\"openai\"`, `\"anthropic\"`, `\"gemini\"`, `\"bedrock\"`, `\"json:POINTER\"`, `\"sse:POINTER\"`, `\"header:NAME\"`, `\"trailer:NAME\"`, `\"response_bytes\"`, `\"request_bytes\"`")
        .guide("charges.md#settle")
        .metric("sluicegate_usage_settlements_total")
        .teach("\"openai\"", "Use it for APIs whose cost is known only afterwards, such as tokens of an LLM or bytes of a download");
    WEIGHTS = option("weights", Map(&Table(&weights::TABLE)), Described("1 for each token"), "what a token costs, by model")
        .shown_as("table of tables")
        .guide("charges.md#weights")
        .metric("sluicegate_usage_unknown_models_total")
        .teach("{ default = { input = 1, output = 4 } }", "Set it if output tokens or some models cost more than others, as at most providers");
    PRICES = option("prices", Path("file"), Absent, "what a million tokens cost in money, by model; a unit is a millionth of the currency")
        .guide("charges.md#prices")
        .metric("sluicegate_usage_unknown_models_total")
        .teach("\"prices.toml\"", "Use it for budgets in money instead of tokens");
    ASK_USAGE: bool = option("ask_usage", Boolean, Value("false"), "ask servers to report the usage of chat completion streams")
        .guide("charges.md#usage-in-the-body")
        .teach("true", "Turn it on if your clients do not ask for the usage themselves, because streams without it are charged by an estimate");
    REFUSE = option(
        "refuse",
        Table(&refuse::TABLE),
        Described("that of the route"),
        "the response to a request that this limit refuses",
    )
    .shown_as("table, as in a route")
    .guide("responses.md")
    .teach("{ status = 503, body = \"try again in {retry_after} s\" }", "Set it if this limit needs a different response from the other limits of the route, for example a link to larger plans");
    MAX_KEYS: Option<usize> = option(
        "max_keys",
        integer(KEYS_MIN, 1_000_000_000),
        Described("shares the rest with other limits"),
        "keys in memory that the limit has for itself",
    )
    .guide("../operating/capacity.md#memory")
    .metric("sluicegate_store_evictions_total")
    .called(&["cache_size"])
    .teach("100000", "Set it so that floods of other limits' keys cannot evict this limit's");
    MAX_DELAYED: Option<usize> = server::MAX_DELAYED.inherit("that of `[server]`", "requests in the queue of this limit (`leaky_bucket`)");
    BURST = option("burst", OfAlgorithm, Described("count of the rate"), "units that may be used at once")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Compiled)
        .called(&["capacity"])
        .teach("200", "Raise it for pages that load many files at once; lower it if the servers cannot take that many requests at the same time");
    DEBT = option("debt", OfAlgorithm, Value("0"), "units that a request may take beyond an empty bucket")
        .weaker(Weaker::More)
        .teach("1000", "Set it with `settle`, so that a response that costs more than expected is paid for later");
    REFILL = option(
        "refill",
        OfAlgorithm,
        Value("\"continuous\""),
        "`\"interval\"`: the whole count at the end of each period",
    )
    .teach("\"interval\"", "Use `interval` if customers expect \"100 requests per minute\" to be refilled all at once, at the end of the minute");
    START = option("start", OfAlgorithm, Value("\"full\""), "bucket of a new key");
    ANCHOR = option("anchor", OfAlgorithm, Value("\"first_hit\""), "when windows start")
        .teach("\"clock\"", "Use `clock` so that all keys start their windows at the same full minute, hour or day");
    PRECISION = option("precision", OfAlgorithm, Value("2"), "counters per period");
    ZONE = option("zone", OfAlgorithm, Value("\"UTC\""), "time zone of the windows").shown_as("IANA time zone")
        .called(&["timezone", "time_zone", "tz"])
        .keywords(&["UTC"])
        .teach("\"Europe/Berlin\"", "Set it to the time zone in which your customers' day or month begins");
    RESETS_AT = option("resets_at", OfAlgorithm, Value("\"00:00\""), "local time at which days, weeks, months and years begin")
        .shown_as("`\"HH:MM\"`");
    WEEK_START = option("week_start", OfAlgorithm, Value("\"monday\""), "first day of weeks").shown_as("weekday");
    RESETS_ON = option(
        "resets_on",
        Either(&[Integer { least: 1, most: 31 }, Text("source")]),
        Value("1"),
        "day on which months begin; in a shorter month, its last day",
    )
    .shown_as("1 to 31, `\"jwt:CLAIM\"`, `\"header:NAME\"`, `\"descriptor:NAME\"`")
    .guide("../guides/plans.md#months-that-begin-when-a-customer-pays")
    .called(&["month_start", "starts_on", "billing_day"])
    .teach("15", "Set it if your billing month does not begin on the first day, or begins on a different day for each customer");
    STATE = option("state", OfAlgorithm, Value("\"list\""), "how Redis stores the entries of a new key")
        .teach("\"sorted_set\"", "Change it for windows with many thousands of entries");
    QUEUE = option("queue", OfAlgorithm, Value("\"0ms\""), "longest wait of a request")
        .metric("sluicegate_rejections_total")
        .ends(End::MaxDelayed)
        .teach("\"2s\"", "Set it if clients would rather wait than get 429, for example batch jobs");
    NODELAY = option("nodelay", OfAlgorithm, Value("false"), "forward the requests that would wait at once")
        .teach("true", "Turn it on if you want the bound of a queue without the wait, as with `nodelay` of nginx");
    DELAY_AFTER = option("delay_after", OfAlgorithm, Value("0"), "units of the queue that are forwarded at once; only requests after them wait")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::More)
        .called(&["delay"])
        .teach("8", "Set it for pages that load several files at once, so that only larger bursts are slowed down");
    IN_FLIGHT = option("in_flight", OfAlgorithm, Described("required"), "requests at the same time")
        .metric("sluicegate_rejections_total")
        .ends(End::Exhausted)
        .weaker(Weaker::More)
        .unset("0")
        .teach("4", "Choose as many as one client may use at once while the others still get their share of the servers");
    LEASE = option(
        "lease",
        Either(&[duration(SECOND, HOUR), Table(&lease::TABLE)]),
        Described("`\"15s\"` for `concurrency`, none for others"),
        "for `concurrency`, how long slots survive an outage of the store; for others, debit units of hot keys in advance",
    )
    .shown_as("duration from 1 s to 1 h for `concurrency`, table for others")
    .guide("leases.md")
    .metric("sluicegate_lease_units_total")
    .teach("\"1m\"", "For `concurrency`, raise it to the length of an outage of Redis that requests should survive. For other limits, use a table if one key gets more requests than Redis can decide");
    LINGER = option("linger", OfAlgorithm, Value("\"60s\""), "how long a request keeps its slot after its client disconnected")
        .teach("\"0s\"", "Use `0s` for event streams, so that a client that reconnects finds its slot free. Raise it if servers work on a request long after its client disconnected");
}

/// Options of `limit.ban`.
pub mod ban {
    use super::*;

    rows! {
        table("limit.ban");

        AFTER: Option<i64> = option("after", integer(1, AFTER_MAX), Required, "refusals that begin a ban")
            .weaker(Weaker::More)
            .teach("10", "Choose more than a client that respects `Retry-After` can reach");
        WITHIN: Option<Duration> = option("within", duration(1, BAN_MAX), Required, "the time in which they have to happen")
            .unset("0")
            .weaker(Weaker::Less)
            .teach("\"5m\"", "Choose a time in which a client that waits as told cannot be refused so often");
        FOR: Option<Duration> = option("for", duration(SECOND, BAN_MAX), Required, "how long the first ban lasts")
            .unset("0")
            .weaker(Weaker::Less)
            .called(&["duration", "bantime"])
            .teach("\"10m\"", "Begin with minutes, because a wrong ban hurts more than a wrong refusal");
        GROW: i64 = option("grow", integer(1, GROW_MAX), Value("1"), "each further ban lasts this many times as long")
            .weaker(Weaker::Less)
            .teach("2", "Set it so that clients that come back after a ban stay away longer each time");
        AT_MOST: Option<Duration> = option("at_most", duration(SECOND, BAN_MAX), Described("`\"1d\"`, or `for` if that is longer"), "the longest ban; after as long without one, bans are forgotten")
            .weaker(Weaker::Less)
            .teach("\"7d\"", "Set it together with `grow`, to the longest ban that you would justify to a customer");
    }
}

/// Longest ban, and longest time in which refusals count for one: 90 days.
const BAN_MAX: u64 = 90 * DAY;

/// Longest time for which the usage of keys is kept: two years.
const USAGE_MAX: u64 = 732 * DAY;

/// Options of `limit.lease`.
pub mod lease {
    use super::*;

    rows! {
        table("limit.lease");

        HORIZON: Duration = option("horizon", duration(10, SECOND), Value("\"100ms\""), "longest time that a lease lasts")
            .metric("sluicegate_lease_requests_total")
            .teach("\"50ms\"", "Lower it if several gateways should share a hot key more exactly; raise it if Redis still gets too many calls");
        HOT_AFTER: params::Rate = option("hot_after", Rate, Value("\"200/s\""), "a key with more decisions in this gateway has leases")
            .metric("sluicegate_store_hot_keys")
            .teach("\"500/s\"", "Lower it to take load off Redis earlier; raise it to keep more keys exact");
    }
}

/// Options of `limit.cost`.
pub mod cost {
    use super::*;

    rows! {
        table("limit.cost");

        METHOD = option("method", Map(&UNITS), Absent, "units by method; `default` for all others")
            .shown_as("table of integers")
            .guide("charges.md#prices")
            .weaker(Weaker::Less);
        STATUS = option("status", Map(&UNITS), Absent, "units by status or class of the response; `default` for all others")
            .shown_as("table of integers")
            .guide("charges.md#prices")
            .weaker(Weaker::Less);
        COUNT = option("count", Text("source"), Absent, "units by the elements of an array in the body")
            .shown_as("`\"json:POINTER\"`")
            .guide("charges.md#counted-elements");
        GRAPHQL = option("graphql", Table(&graphql::TABLE), Absent, "an estimate of the GraphQL query in the request")
            .guide("../guides/graphql.md")
            .teach("{ max_depth = 10 }", "Use it for GraphQL APIs, where one request can cost a thousand times as much as another");
        RESERVE = option("reserve", Table(&reserve::TABLE), Absent, "an estimate in tokens").guide("charges.md#reserve")
            .teach("{ add = [\"json:/max_tokens\"] }", "Use it with `settle`, so that parallel requests cannot overrun a budget before the first response reports its usage");
    }
}

/// Maximum number of tokens and units that an option of an estimate can set.
const UNITS: ValueType = integer(0, COST_MAX);

/// Options of `limit.cost.graphql`.
pub mod graphql {
    use super::*;

    rows! {
        table("limit.cost.graphql");

        WEIGHTS = option("weights", Map(&UNITS), Described("1 for each field"), "units of a field, by its name; `default` for all others")
            .shown_as("table of integers")
            .weaker(Weaker::Less)
            .unset("1")
            .teach("{ search = 20, default = 1 }", "Give more units to fields that cause expensive work");
        LISTS = option("lists", list_from(1, &Text("argument")), Described("`[\"first\", \"last\", \"limit\"]`"), "arguments that say how many items of a list are wanted")
            .shown_as("list of names")
            .weaker(Weaker::Compiled)
            .teach("[\"first\", \"limit\", \"page_size\"]", "List the names that the arguments of your schema have");
        LIST_SIZE: i64 = option("list_size", integer(1, 1_000_000), Value("100"), "items of a list if such an argument is not an integer from 1")
            .weaker(Weaker::Less)
            .teach("20", "Set it to the page size of your server if the query states none");
        MAX_DEPTH: usize = option("max_depth", integer(1, 100), Value("20"), "most fields within each other")
            .metric("sluicegate_rejections_total")
            .ends(End::QueryTooDeep)
            .weaker(Weaker::More)
            .teach("10", "Lower it to what your own clients need, because the work multiplies with each level");
        STORED: Option<i64> = option("stored", UNITS, Described("refuse such requests"), "units of a request that names a query which the server has stored")
            .metric("sluicegate_rejections_total")
            .ends(End::StoredQuery)
            .weaker(Weaker::Compiled)
            .teach("5", "Set it if clients send persisted queries, whose text the gateway cannot see");
    }
}

/// Options of `limit.cost.reserve`.
pub mod reserve {
    use super::*;

    rows! {
        table("limit.cost.reserve");

        BASE: i64 = option("base", UNITS, Value("0"), "tokens of every request")
            .weaker(Weaker::Less);
        BYTES_PER_TOKEN: i64 = option("bytes_per_token", integer(1, 1_000_000), Value("4"), "bytes of the request body for each input token")
            .weaker(Weaker::More);
        ADD = option(
            "add",
            list_from(1, &Text("source")),
            Absent,
            "where the body announces the largest output; the largest counts",
        )
        .shown_as("list of `\"json:POINTER\"`")
        .weaker(Weaker::Removed)
        .teach("[\"json:/max_completion_tokens\", \"json:/max_tokens\"]", "Name the fields with which clients of your API limit the output");
        DEFAULT_ADD: i64 = option("default_add", UNITS, Value("1000"), "output tokens of a request that announces none")
            .weaker(Weaker::Less)
            .teach("4000", "Set it to a long response of your models, for clients that announce nothing");
        AT_MOST: i64 = option("at_most", integer(1, COST_MAX), Value("100000"), "largest estimate, before weights")
            .metric("sluicegate_rejections_total")
            .ends(End::NeverFits)
            .weaker(Weaker::Less);
    }
}

const WEIGHT: ValueType = integer(0, 1_000_000);

/// Options of `limit.weights`.
pub mod weights {
    use super::*;

    rows! {
        table("limit.weights");

        INPUT: i64 = option("input", WEIGHT, Value("1"), "units of an input token")
            .weaker(Weaker::Less)
            .teach("3", "Set it to the price of an input token, relative to the cheapest token of your models");
        CACHED: Option<i64> = option(
            "cached",
            WEIGHT,
            Described("that of `input`"),
            "units of an input token that the server read from a cache",
        )
        .weaker(Weaker::Less)
        .unset("1")
        .teach("1", "Set it to the price of a token from the cache of the provider, usually a tenth of `input`");
        CACHE_WRITE: Option<i64> = option(
            "cache_write",
            WEIGHT,
            Described("that of `input`"),
            "units of an input token that the server wrote to a cache",
        )
        .weaker(Weaker::Less)
        .unset("1")
        .teach("4", "Set it if the provider charges more for tokens that it writes to its cache");
        OUTPUT: i64 = option("output", WEIGHT, Value("1"), "units of an output token")
            .weaker(Weaker::Less)
            .teach("15", "Set it to the price of an output token, usually three to five times `input`");
    }
}

/// Options of `limit.fair`.
pub mod fair {
    use super::*;

    rows! {
        table("limit.fair");

        KEY = option("key", KEY_PARTS, Required, "what identifies a tenant")
            .weaker(Weaker::Compiled)
            .called(super::KEY.option.aliases)
            .teach("\"header:x-tenant\"", "Use what identifies a tenant and what it cannot change, such as a claim of its token");
        WEIGHT: i64 = option("weight", integer(1, WEIGHT_MAX), Value("1"), "weight of a tenant, to which its share is proportional");
        WEIGHTS = option("weights", Map(&TENANT_WEIGHT), Absent, "weights of single tenants, by their values")
            .shown_as("table of integers")
            .of_clients(ClientData::Keys)
            .teach("{ acme = 4, globex = 2 }", "Set it for tenants that pay for a larger share");
        RESERVE: Option<i64> = option(
            "reserve",
            integer(1, 1_000_000_000),
            Described("half of the burst"),
            "units that a tenant far above its share must leave to the others",
        )
        .weaker(Weaker::Compiled)
        .teach("50", "Lower it if tenants may use more of the budget while others are idle");
        ACTIVE: Option<Duration> = option(
            "active",
            duration(1, ACTIVE_MAX),
            Described("8 times the refill time of the reserve, at least 2s and at most 1d"),
            "how long a tenant has a share after its last request",
        );
        MAX_ACTIVE: i64 = option(
            "max_active",
            integer(1, fair_sharing::MAX_ACTIVE),
            Value("1024"),
            "tenants with a share of their own; the rest share 16",
        );
    }
}
