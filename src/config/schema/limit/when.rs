//! Options of `limit.when`.

use super::*;

rows! {
    table("limit.when");

    METHOD = option("method", PATTERNS, Absent, "method of the request").shown_as("patterns")
        .weaker(Weaker::Added);
    PATH = option("path", PATTERNS, Absent, "path of the request").shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["location", "paths"]);
    HOST = option("host", PATTERNS, Absent, "host of the request").shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["domain", "hosts", "server_name"]);
    ROUTE = option("route", PATTERNS, Absent, "name of the route").shown_as("patterns")
        .weaker(Weaker::Added);
    USER = option("user", PATTERNS, Absent, "identity of the client").shown_as("patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    CLIENT = option("client", list_from(1, &Text("address")), Absent, "address of the client")
        .shown_as("addresses, networks, sets")
        .weaker(Weaker::Added);
    COUNTRY = option("country", PATTERNS, Absent, "country of the client, as two letters such as `DE`; `XX` if it is unknown. Needs `[geo]`")
        .shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["geo", "geoip"]);
    TIME = option("time", list_from(1, &Text("HH:MM-HH:MM")), Absent, "local times of the day, by the clock of the gateway")
        .shown_as("`\"HH:MM-HH:MM\"`, or a list of up to 24")
        .guide("conditions.md#times-and-days")
        .weaker(Weaker::Added)
        .called(&["hours", "schedule"]);
    DAYS = option("days", list_from(1, &Text("day")), Absent, "days on which these times begin")
        .shown_as("`\"mon\"`, `\"mon-fri\"`, or a list")
        .guide("conditions.md#times-and-days")
        .weaker(Weaker::Added)
        .called(&["weekdays", "day"]);
    ZONE = option("zone", Text("IANA time zone"), Value("\"UTC\""), "time zone of `time` and `days`")
        .guide("conditions.md#times-and-days")
        .called(super::ZONE.option.aliases);
    HEADER = option("header", Map(&PATTERNS), Absent, "headers by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values);
    COOKIE = option("cookie", Map(&PATTERNS), Absent, "cookies by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::Secret)
        .of_clients(ClientData::Values);
    QUERY = option("query", Map(&PATTERNS), Absent, "query parameters by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values);
    PARAM = option("param", Map(&PATTERNS), Absent, "parameters of the path by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    JWT = option("jwt", Map(&PATTERNS), Absent, "claims of the token by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values);
    TLS = option("tls", Map(&PATTERNS), Absent, "`subject` or `san` of the client certificate")
        .shown_as("table of patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    JSONRPC = option("jsonrpc", Map(&PATTERNS), Absent, "`method` of a JSON-RPC call in the body")
        .shown_as("table of patterns")
        .guide("calls.md#conditions")
        .weaker(Weaker::Added);
    MCP = option("mcp", Map(&PATTERNS), Absent, "`tool` of an MCP call in the body: the tool, prompt or resource that it names")
        .shown_as("table of patterns")
        .guide("calls.md#conditions")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    GRAPHQL = option("graphql", Map(&PATTERNS), Absent, "`operation`: the name of a GraphQL operation in the request")
        .shown_as("table of patterns")
        .guide("../guides/graphql.md")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    DESCRIPTOR = option("descriptor", Map(&PATTERNS), Absent, "entries of the descriptor of an `[[rls]]` by name")
        .shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values);
}
