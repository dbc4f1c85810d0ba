//! Options of `[limit.NAME]`. Algorithms declare the types of their own options.

use crate::config::schema::DefaultValue::{Absent, Described, Required, Value};
use crate::config::schema::shared::{KEY_PARTS, REFUSE};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::{HOUR, SECOND, duration, integer, list_from};
use crate::config::schema::{Schema, option};
use crate::limiting::algorithm::SPECS;
use crate::limiting::algorithm::fair::{ACTIVE_MAX_MS, MAX_ACTIVE, WEIGHT_MAX};
use crate::limiting::integers::COST_MAX;
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
const ALGORITHM: ValueType = Words(&ALGORITHM_NAMES);
/// A pattern, or a list of patterns of which one must match.
const PATTERNS: ValueType = list_from(1, &Either(&[Text("pattern"), Integer { least: i64::MIN, most: i64::MAX }]));
/// Statuses, classes and other outcomes of a request.
const OUTCOMES: ValueType = list_from(1, &Either(&[Integer { least: 100, most: 599 }, Text("outcome")]));

pub const LIMIT: Schema = Schema {
    name: "limit",
    title: "[limit.NAME]",
    intro: "",
    notes: "",
    options: &[
        option("algorithm", ALGORITHM, Value("\"token_bucket\""), "the [algorithm](algorithms.md)").shown_as("name"),
        option("rate", Either(&[Rate, CalendarRate]), Described("required; not for `concurrency`"), "units per period")
            .shown_as("rate; for `calendar` COUNT/hour, /day, /week, /month or /year")
            .metric("sluicegate_rejections_total")
            .reason("exhausted"),
        option("key", KEY_PARTS, Value("\"ip\""), "whose budget it is").guide("keys.md"),
        option(
            "missing",
            Words(&["shared", "skip", "refuse"]),
            Value("\"shared\""),
            "what happens if a key part is absent",
        )
        .guide("keys.md#missing-parts")
        .metric("sluicegate_rejections_total")
        .reason("missing_key"),
        option(
            "repeated",
            Words(&["refuse", "first", "last"]),
            Value("\"refuse\""),
            "what happens if a value occurs more than once",
        )
        .guide("keys.md#repeated-and-ambiguous-values")
        .metric("sluicegate_rejections_total")
        .reason("repeated_key"),
        option(
            "not_integer",
            Words(&["refuse", "ignore"]),
            Value("\"refuse\""),
            "what happens if a value that the limit reads as an integer is none",
        )
        .guide("keys.md#integers")
        .metric("sluicegate_rejections_total")
        .reason("not_integer"),
        option(
            "cost",
            Either(&[Integer { least: 0, most: COST_MAX }, Text("source"), Table(&COST)]),
            Value("1"),
            "units of one request",
        )
        .shown_as("integer from 0, `\"header:NAME\"`, `\"query:NAME\"`, `\"descriptor:NAME\"`, table with `reserve`")
        .metric("sluicegate_rejections_total")
        .reason("never_fits"),
        option(
            "mode",
            Words(&["enforce", "shadow"]),
            Value("\"enforce\""),
            "`\"shadow\"` decides and counts, never refuses",
        )
        .metric("sluicegate_limit_decisions_total"),
        option(
            "over",
            Text("word, or `upstream:NAME`"),
            Value("\"refuse\""),
            "what happens to requests over the limit",
        )
        .shown_as("`\"refuse\"`, `\"delay\"`, `\"annotate\"`, `\"upstream:NAME\"`")
        .guide("responses.md#forwarding-what-is-over-a-limit")
        .metric("sluicegate_limit_decisions_total"),
        option(
            "on_error",
            Words(&["local", "open", "closed"]),
            Described("that of `[store]`"),
            "what the limit does when the store does not respond in time",
        )
        .guide("../operating/redis-outages.md")
        .metric("sluicegate_rejections_total")
        .reason("store_down"),
        option("when", Table(&WHEN), Described("all requests"), "which requests it applies to").guide("conditions.md"),
        option("after", Text("name of a limit"), Absent, "the limit that must be exhausted first")
            .guide("conditions.md#one-limit-after-another")
            .metric("sluicegate_limit_decisions_total"),
        option(
            "candidate_of",
            Text("name of a limit"),
            Absent,
            "the limit that this one may replace; it refuses nothing",
        )
        .guide("conditions.md#candidates")
        .metric("sluicegate_candidate_decisions_total"),
        option(
            "overrides",
            Array { item: &Table(&OVERRIDE), least: 0, most: 10_000 },
            Absent,
            "other numbers for some keys",
        )
        .guide("overrides.md")
        .metric("sluicegate_rejections_total")
        .reason("blocked"),
        option("fair", Table(&FAIR), Absent, "tenants share each budget (`token_bucket`, `gcra`)")
            .guide("algorithms.md#fair-sharing")
            .metric("sluicegate_fair_active_tenants"),
        option("charge_on", OUTCOMES, Described("every response"), "only these responses are charged")
            .shown_as("list of statuses, classes, `\"grpc:CODE\"`")
            .guide("charges.md"),
        option("refund_on", OUTCOMES, Absent, "these responses are refunded")
            .shown_as("list of statuses, classes, `\"connect_error\"`, `\"client_abort\"`, `\"grpc:CODE\"`")
            .guide("charges.md"),
        option("settle", list_from(1, &Text("source")), Absent, "where the response reports the true cost")
            .shown_as("list of up to 16: `\"openai\"`, `\"anthropic\"`, `\"gemini\"`, `\"bedrock\"`, `\"json:POINTER\"`, `\"sse:POINTER\"`, `\"header:NAME\"`, `\"trailer:NAME\"`")
            .guide("charges.md#settle")
            .metric("sluicegate_usage_settlements_total"),
        option("weights", Map(&Table(&WEIGHTS)), Described("1 for each token"), "what a token costs, by model")
            .shown_as("table of tables")
            .guide("charges.md#weights")
            .metric("sluicegate_usage_unknown_models_total"),
        option("ask_usage", Boolean, Value("false"), "ask servers to report the usage of chat completion streams")
            .guide("charges.md#usage-in-the-body"),
        option(
            "refuse",
            Table(&REFUSE),
            Described("that of the route"),
            "the response to a request that this limit refuses",
        )
        .shown_as("table, as in a route")
        .guide("responses.md"),
        option(
            "max_keys",
            integer(KEYS_MIN, 1_000_000_000),
            Described("shares the rest with other limits"),
            "keys in memory that the limit has for itself",
        )
        .guide("../operating/capacity.md#memory")
        .metric("sluicegate_store_evictions_total"),
        option(
            "max_delayed",
            integer(0, 10_000_000),
            Described("that of `[server]`"),
            "requests in the queue of this limit (`leaky_bucket`)",
        )
        .metric("sluicegate_rejections_total")
        .reason("max_delayed"),
        option("burst", OfAlgorithm, Described("count of the rate"), "units that may be used at once")
            .metric("sluicegate_limit_decisions_total"),
        option("debt", OfAlgorithm, Value("0"), "units that a request may take beyond an empty bucket"),
        option(
            "refill",
            OfAlgorithm,
            Value("\"continuous\""),
            "`\"interval\"`: the whole count at the end of each period",
        ),
        option("start", OfAlgorithm, Value("\"full\""), "bucket of a new key"),
        option("anchor", OfAlgorithm, Value("\"first_hit\""), "when windows start"),
        option("precision", OfAlgorithm, Value("2"), "counters per period"),
        option("zone", OfAlgorithm, Value("\"UTC\""), "time zone of the windows").shown_as("IANA time zone"),
        option("resets_at", OfAlgorithm, Value("\"00:00\""), "local time at which days, weeks, months and years begin")
            .shown_as("`\"HH:MM\"`"),
        option("week_start", OfAlgorithm, Value("\"monday\""), "first day of weeks").shown_as("weekday"),
        option("state", OfAlgorithm, Value("\"list\""), "how Redis stores the entries of a new key"),
        option("queue", OfAlgorithm, Value("\"0ms\""), "longest wait of a request")
            .metric("sluicegate_rejections_total")
            .reason("max_delayed"),
        option("nodelay", OfAlgorithm, Value("false"), "forward the requests that would wait at once"),
        option("in_flight", OfAlgorithm, Described("required"), "requests at the same time")
            .metric("sluicegate_rejections_total")
            .reason("exhausted"),
        option(
            "lease",
            Either(&[duration(SECOND, HOUR), Table(&LEASE)]),
            Described("`\"15s\"` for `concurrency`, none for others"),
            "for `concurrency`, how long slots survive an outage of the store; for others, debit units of hot keys in advance",
        )
        .shown_as("duration from 1 s to 1 h for `concurrency`, table for others")
        .guide("leases.md")
        .metric("sluicegate_lease_units_total"),
        option("linger", OfAlgorithm, Value("\"60s\""), "how long a request keeps its slot after its client left"),
    ],
};

pub const LEASE: Schema = Schema {
    name: "limit.lease",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("horizon", duration(10, SECOND), Value("\"100ms\""), "longest time that a lease lasts")
            .metric("sluicegate_lease_requests_total"),
        option("hot_after", Rate, Value("\"200/s\""), "a key with more decisions in this gateway has leases")
            .metric("sluicegate_store_hot_keys"),
    ],
};

pub const COST: Schema = Schema {
    name: "limit.cost",
    title: "",
    intro: "",
    notes: "",
    options: &[option("reserve", Table(&RESERVE), Required, "an estimate in tokens").guide("charges.md#reserve")],
};

/// Maximum number of tokens and units that an option of an estimate can set.
const UNITS: ValueType = integer(0, COST_MAX);

pub const RESERVE: Schema = Schema {
    name: "limit.cost.reserve",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("base", UNITS, Value("0"), "tokens of every request"),
        option("bytes_per_token", integer(1, 1_000_000), Value("4"), "bytes of the request body for each input token"),
        option(
            "add",
            list_from(1, &Text("source")),
            Absent,
            "where the body announces the largest output; the largest counts",
        )
        .shown_as("list of `\"json:POINTER\"`"),
        option("default_add", UNITS, Value("1000"), "output tokens of a request that announces none"),
        option("at_most", integer(1, COST_MAX), Value("100000"), "largest estimate, before weights")
            .metric("sluicegate_rejections_total")
            .reason("never_fits"),
    ],
};

const WEIGHT: ValueType = integer(0, 1_000_000);

pub const WEIGHTS: Schema = Schema {
    name: "limit.weights",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("input", WEIGHT, Value("1"), "units of an input token"),
        option(
            "cached",
            WEIGHT,
            Described("that of `input`"),
            "units of an input token that the server read from a cache",
        ),
        option(
            "cache_write",
            WEIGHT,
            Described("that of `input`"),
            "units of an input token that the server wrote to a cache",
        ),
        option("output", WEIGHT, Value("1"), "units of an output token"),
    ],
};

pub const WHEN: Schema = Schema {
    name: "limit.when",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("method", PATTERNS, Absent, "method of the request").shown_as("patterns"),
        option("path", PATTERNS, Absent, "path of the request").shown_as("patterns"),
        option("host", PATTERNS, Absent, "host of the request").shown_as("patterns"),
        option("route", PATTERNS, Absent, "name of the route").shown_as("patterns"),
        option("user", PATTERNS, Absent, "identity of the client").shown_as("patterns"),
        option("client", list_from(1, &Text("address")), Absent, "address of the client")
            .shown_as("addresses, networks, sets"),
        option("header", Map(&PATTERNS), Absent, "headers by name").shown_as("table of patterns"),
        option("cookie", Map(&PATTERNS), Absent, "cookies by name").shown_as("table of patterns"),
        option("query", Map(&PATTERNS), Absent, "query parameters by name").shown_as("table of patterns"),
        option("param", Map(&PATTERNS), Absent, "parameters of the path by name").shown_as("table of patterns"),
        option("jwt", Map(&PATTERNS), Absent, "claims of the token by name").shown_as("table of patterns"),
        option("tls", Map(&PATTERNS), Absent, "`subject` or `san` of the client certificate")
            .shown_as("table of patterns"),
        option("descriptor", Map(&PATTERNS), Absent, "entries of the descriptor of an `[[rls]]` by name")
            .shown_as("table of patterns"),
    ],
};

pub const FAIR: Schema = Schema {
    name: "limit.fair",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option("key", KEY_PARTS, Required, "what identifies a tenant"),
        option("weight", integer(1, WEIGHT_MAX), Value("1"), "weight of a tenant, to which its share is proportional"),
        option("weights", Map(&TENANT_WEIGHT), Absent, "weights of single tenants, by their values")
            .shown_as("table of integers"),
        option(
            "reserve",
            integer(1, 1_000_000_000),
            Described("half of the burst"),
            "units that a tenant far above its share must leave to the others",
        ),
        option(
            "active",
            duration(1, ACTIVE_MAX),
            Described("8 times the refill time of the reserve, at least 2s and at most 1d"),
            "how long a tenant has a share after its last request",
        ),
        option(
            "max_active",
            integer(1, MAX_ACTIVE),
            Value("1024"),
            "tenants with a share of their own; the rest share 16",
        ),
    ],
};

pub const OVERRIDE: Schema = Schema {
    name: "limit.overrides",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "key",
            List { item: &Either(&[Text("string"), Table(&OVERRIDE_KEY)]), least: 1, most: usize::MAX },
            Required,
            "one value for each key part; `\"*\"` matches any",
        )
        .shown_as("list of strings"),
        option(
            "rate",
            Either(&[Rate, CalendarRate, Words(&["unlimited", "0"]), Integers(&[0])]),
            Described("the limit's"),
            "the `rate` of this key",
        )
        .shown_as("as the option, `\"unlimited\"` or 0"),
        option("burst", OfAlgorithm, Described("the limit's"), "the `burst` of this key").shown_as("as the option"),
        option("debt", OfAlgorithm, Described("the limit's"), "the `debt` of this key").shown_as("as the option"),
        option("queue", OfAlgorithm, Described("the limit's"), "the `queue` of this key").shown_as("as the option"),
        option(
            "in_flight",
            Either(&[Integer { least: 0, most: 100_000 }, Words(&["unlimited", "0"])]),
            Described("the limit's"),
            "the `in_flight` of this key",
        )
        .shown_as("as the option, `\"unlimited\"` or 0"),
    ],
};

pub const OVERRIDE_KEY: Schema = Schema {
    name: "limit.overrides.key",
    title: "",
    intro: "",
    notes: "",
    options: &[
        option(
            "percent",
            Text("string"),
            Absent,
            "a value with `%XX` for bytes that no string can contain, or for a single `*`",
        ),
        option(
            "hash",
            Text("16 hexadecimal digits"),
            Absent,
            "the value that [logs show with this hash](../operating/keys-in-logs.md); needs `keys_secret`",
        ),
    ],
};
