//! Options of `[decide.NAME]`.

use crate::config::schema::limit_list::LISTED_LIMIT;
use crate::config::schema::route;
use crate::config::schema::row::DefaultValue::{Absent, Described, Value};
use crate::config::schema::row::{Row, Weaker, option, rows, table};
use crate::config::schema::value_type::ValueType::*;
use crate::ends::End;
use crate::route::decide::FactFamily;

const GUIDE: &str = "../guides/limits-for-other-proxies.md";

rows! {
    table("decide").title("[decide.NAME]")
        .intro("Other proxies ask for decisions at `/decide/NAME` of a [listener](#listener) with `serve = \"decide\"`. They may also ask by the name of a\n\
            route, which needs no section of its own. [Limits for other proxies](../guides/limits-for-other-proxies.md) has a recipe for each proxy, and\n\
            [Decisions over HTTP](decide.md) the details.");

    LIMITS = option(
        "limits",
        List { item: &LISTED_LIMIT, least: 1, most: 16 },
        Described("those of the route NAME"),
        "limits that decide together. If one refuses, none is charged",
    )
    .shown_as("list of names or tables, up to 16")
    .guide(GUIDE)
    .metric("sluicegate_limit_decisions_total")
    .weaker(Weaker::Compiled)
    .called(route::LIMITS.option.aliases)
    .teach("[\"per-ip\"]", "Set it if the other proxy asks about requests for which you have no route");
    FROM: FactFamily = option(
        "from",
        Words(FactFamily::LABELS),
        Value("\"forwarded\""),
        "where the asking proxy states the request: `X-Forwarded-*`, `X-Original-*`, or the path after NAME",
    )
    .guide("decide.md#the-request-in-question")
    .metric("sluicegate_decide_requests_total")
    .teach("\"original\"", "Copy the value from the recipe of your proxy: `original` for nginx and ingress-nginx, `path` for Envoy, and the default for Traefik, Caddy and HAProxy");
    DENY_AS = option("deny_as", Integers(&[429, 403]), Value("429"), "status of refusals; nginx accepts only 403")
        .guide("decide.md#the-answer")
        .teach("403", "Set 403 for nginx, whose `auth_request` turns other statuses into 500");
    ONCE = option(
        "once",
        Text("`\"header:NAME\"`"),
        Absent,
        "header with the id of the request. A second question with the same id within 10 s gets the same answer and charges nothing",
    )
    .guide("decide.md#questions-that-repeat")
    .weaker(Weaker::Added)
    .teach("\"header:x-request-id\"", "Set it if the proxy may ask twice about one request, as nginx does after an internal redirect, and gives each request an id");
    JOINS_LINES: Option<bool> = option(
        "joins_lines",
        Boolean,
        Described("`true` with `from = \"path\"`, and for checks of Envoy without `encode_raw_headers`"),
        "whether the asking proxy joins the lines of a repeated header by commas. If so, a comma in a header that a limit reads means that the header is repeated",
    )
    .guide("decide.md#repeated-headers")
    .ends(End::RepeatedKey)
    .unset("true")
    .weaker(Weaker::Less);
}
