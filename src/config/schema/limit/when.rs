//! Options of `limit.when`.

use super::*;

rows! {
    table("limit.when");

    METHOD = option("method", PATTERNS, Absent, "method of the request").shown_as("patterns")
        .weaker(Weaker::Added)
        .teach("[\"POST\", \"PUT\"]", "Use it to limit writes, and leave reads free");
    PATH = option("path", PATTERNS, Absent, "path of the request").shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["location", "paths"])
        .teach("\"/export/*\"", "Use it if some pages of a route need a lower limit but no route of their own");
    HOST = option("host", PATTERNS, Absent, "host of the request").shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["domain", "hosts", "server_name"])
        .teach("\"*.example.com\"", "Use it if one route serves several hosts and the limit is for some of them");
    ROUTE = option("route", PATTERNS, Absent, "name of the route").shown_as("patterns")
        .weaker(Weaker::Added);
    USER = option("user", PATTERNS, Absent, "identity of the client").shown_as("patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    CLIENT = option("client", list_from(1, &Text("address")), Absent, "address of the client")
        .shown_as("addresses, networks, sets")
        .weaker(Weaker::Added)
        .teach("\"!10.0.0.0/8\"", "Use it to except your own network from one limit; `allow` of a route excepts it from all");
    COUNTRY = option("country", PATTERNS, Absent, "country of the client, as two letters such as `DE`; `XX` if it is unknown. Needs `[geo]`")
        .shown_as("patterns")
        .weaker(Weaker::Added)
        .called(&["geo", "geoip"])
        .teach("[\"!DE\", \"!AT\"]", "Use it for a stricter limit on requests from countries in which you have no customers");
    TIME = option("time", list_from(1, &Text("HH:MM-HH:MM")), Absent, "local times of the day, by the clock of the gateway")
        .shown_as("`\"HH:MM-HH:MM\"`, or a list of up to 24")
        .guide("conditions.md#times-and-days")
        .weaker(Weaker::Added)
        .called(&["hours", "schedule"])
        .teach("\"08:00-18:00\"", "Use it for a lower limit during office hours, or a higher one at night");
    DAYS = option("days", list_from(1, &Text("day")), Absent, "days on which these times begin")
        .shown_as("`\"mon\"`, `\"mon-fri\"`, or a list")
        .guide("conditions.md#times-and-days")
        .weaker(Weaker::Added)
        .called(&["weekdays", "day"])
        .teach("\"mon-fri\"", "Use it for limits that differ at the weekend");
    ZONE = option("zone", Text("IANA time zone"), Value("\"UTC\""), "time zone of `time` and `days`")
        .guide("conditions.md#times-and-days")
        .called(super::ZONE.option.aliases)
        .teach("\"Europe/Berlin\"", "Set it to the time zone of the people whose office hours you mean");
    HEADER = option("header", Map(&PATTERNS), Absent, "headers by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values)
        .teach("{ x-plan = \"free\" }", "Use it for limits by plan if your auth server puts the plan into a header, or by kind of client");
    COOKIE = option("cookie", Map(&PATTERNS), Absent, "cookies by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::Secret)
        .of_clients(ClientData::Values);
    QUERY = option("query", Map(&PATTERNS), Absent, "query parameters by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values)
        .teach("{ format = \"csv\" }", "Use it if a parameter makes a request expensive");
    PARAM = option("param", Map(&PATTERNS), Absent, "parameters of the path by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values)
        .teach("{ id = \"me\" }", "Use it for a part of the path that the route names, as in `/users/{id}/x`");
    JWT = option("jwt", Map(&PATTERNS), Absent, "claims of the token by name").shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values)
        .teach("{ plan = \"free\" }", "Use it for limits by plan if the token states the plan");
    TLS = option("tls", Map(&PATTERNS), Absent, "`subject` or `san` of the client certificate")
        .shown_as("table of patterns")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values);
    JSONRPC = option("jsonrpc", Map(&PATTERNS), Absent, "`method` of a JSON-RPC call in the body")
        .shown_as("table of patterns")
        .guide("calls.md#conditions")
        .weaker(Weaker::Added)
        .teach("{ method = \"debug_*\" }", "Use it to limit expensive methods of a JSON-RPC server");
    MCP = option("mcp", Map(&PATTERNS), Absent, "`tool` of an MCP call in the body: the tool, prompt or resource that it names")
        .shown_as("table of patterns")
        .guide("calls.md#conditions")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values)
        .teach("{ tool = [\"search\", \"fetch\"] }", "Use it to limit single tools of an MCP server");
    GRAPHQL = option("graphql", Map(&PATTERNS), Absent, "`operation`: the name of a GraphQL operation in the request")
        .shown_as("table of patterns")
        .guide("../guides/graphql.md")
        .weaker(Weaker::Added)
        .of_clients(ClientData::Values)
        .teach("{ operation = \"Export*\" }", "Use it to limit single operations. A client can choose any name, so combine it with a list of stored queries");
    DESCRIPTOR = option("descriptor", Map(&PATTERNS), Absent, "entries of the descriptor of an `[[rls]]` by name")
        .shown_as("table of patterns")
        .weaker(Weaker::Added)
        .secrecy(Secrecy::SecretByKey)
        .of_clients(ClientData::Values)
        .teach("{ plan = \"free\" }", "Use it if Envoy sends the plan or another fact about the client as an entry of the descriptor");
}
