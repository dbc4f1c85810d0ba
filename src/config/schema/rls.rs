//! Options of `[[rls]]`.

use crate::config::schema::limit_list::LIMIT_NAMES;
use crate::config::schema::route;
use crate::config::schema::row::DefaultValue::{Absent, Required};
use crate::config::schema::row::{ClientData, Row, Weaker, option, rows, table};
use crate::config::schema::value_type::ValueType::{self, *};
use crate::config::schema::value_type::list_from;
use crate::envoy::rate_limit::ENTRIES_MAX;

/// Entries by key.
const ENTRIES: ValueType = Map(&Text("value"));

rows! {
    table("rls").title("[[rls]]")
        .intro("Limits for the rate limit requests of Envoy, which a listener with `serve = \"grpc\"` answers. [Rate limit service for \
            Envoy](../guides/envoy.md) explains these options.");

    DOMAIN = option("domain", Text("string, up to 255 bytes"), Required, "domain of the requests, as Envoy's filter sends it")
        .teach("\"api\"", "Copy it from `domain` of the rate limit filter in the config of Envoy");
    DESCRIPTOR = option(
        "descriptor",
        Either(&[ENTRIES, Array { item: &ENTRIES, least: 1, most: ENTRIES_MAX }]),
        Required,
        "the entries of the descriptors that the rule is for, up to 16: a table if their order does not matter, otherwise a \
         list of tables with one entry each. `*` stands for any characters",
    )
    .shown_as("table, or list of tables")
    .guide("../guides/envoy.md#which-rule-applies")
    .of_clients(ClientData::Values)
    .teach("{ remote_address = \"*\" }", "Write one `[[rls]]` for each kind of descriptor that Envoy sends");
    LIMITS = option("limits", LIMIT_NAMES, Required, "limits of these descriptors. An empty list exempts them")
        .shown_as("list of names or tables, up to 16")
        .metric("sluicegate_limit_decisions_total")
        .weaker(Weaker::Compiled)
        .called(route::LIMITS.option.aliases)
        .teach("[\"per-ip\"]", "List the limits for these descriptors, or `[]` to exempt them");
    REPLACES = option("replaces", list_from(0, &Text("name of a limit")), Absent, "limits that do not apply to the other descriptors of a request with this one")
        .guide("../guides/envoy.md#replace-a-limit")
        .weaker(Weaker::NewItem)
        .unordered()
        .teach("[\"per-ip\"]", "Use it if a descriptor that says more, such as a plan, should make a general limit unnecessary");
}
