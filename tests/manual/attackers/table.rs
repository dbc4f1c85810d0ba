//! Recipes as their attackers see them: the request that each limits, how often it may reach the server, and other
//! spellings of the same request. `WHO` is the client's name, `#` a number that differs from request to request.

use std::time::Duration;

use super::{PLAIN, Recipe};

const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";
const JSON: &str = "content-type: application/json\r\n";
/// `{"sub": "anna", "plan": "pro"}`, signed as the page says.
const ANNA: &str = "authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyJ9.Ukr-eb3W3CCyNvTMTXG_uq21ef_h4Fhni7f27fpbUCI\r\n";

/// The same token, with the scheme in lower case.
const BEARER: &str = "authorization: bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm5hIiwicGxhbiI6InBybyJ9.Ukr-eb3W3CCyNvTMTXG_uq21ef_h4Fhni7f27fpbUCI\r\n";

/// Spellings of an account in a login.
const ACCOUNT: &[(&str, &str, &str)] = &[
    ("/login", FORM, "us%65r=WHO&password=wrong"),
    ("/login", FORM, "user=j#&user=WHO&password=wrong"),
    ("/login", FORM, "user=WHO&user=j#&password=wrong"),
    ("/login", FORM, "user=j#&User=WHO&password=wrong"),
    ("/login", FORM, "user=j#&[user]=WHO&password=wrong"),
    ("/login", FORM, "user=j#&user[]=WHO&password=wrong"),
    ("/login", FORM, "user=j#;user=WHO&password=wrong"),
    ("/login", JSON, "{\"user\":\"WHO\",\"password\":\"wrong\"}"),
    ("/login", JSON, "{\"us\\u0065r\":\"WHO\",\"password\":\"wrong\"}"),
    ("/login", JSON, "{\"user\":\"j#\",\"user\":\"WHO\",\"password\":\"wrong\"}"),
    ("/login", JSON, "{\"user\":\"j#\",\"USER\":\"WHO\",\"password\":\"wrong\"}"),
    ("/login", JSON, "{\"user\":[\"WHO\"],\"password\":\"wrong\"}"),
    ("/login", JSON, "user=WHO&password=wrong&x=#"),
    ("/login", FORM, "{\"user\":\"WHO\",\"password\":\"wrong\",\"x\":#}"),
    ("/login", "content-type: text/plain\r\n", "user=WHO&password=wrong"),
    ("/login", "content-type: application/json\r\ncontent-encoding: identity, gzip\r\n", "user=WHO&password=wrong"),
    ("/%6cogin?user=j#", FORM, "user=WHO&password=wrong"),
    ("/login", FORM, "user=%20WHO%20&password=wrong"),
];

const KEY_JSON: &str = "x-api-key: WHO\r\ncontent-type: application/json\r\n";
const KEY_TEXT: &str = "x-api-key: WHO\r\ncontent-type: text/plain\r\n";
const LOGS: &str = "{\"id\":#,\"method\":\"eth_getLogs\"}";
/// Spellings of an expensive JSON-RPC call.
const CALL: &[(&str, &str, &str)] = &[
    ("/", KEY_JSON, "{\"id\":#,\"m\\u0065thod\":\"\\u0065th_getLogs\"}"),
    ("/", KEY_JSON, "{\"id\":#,\"method\":\"eth_chainId\",\"method\":\"eth_getLogs\"}"),
    ("/", KEY_JSON, "{\"id\":#,\"method\":\"eth_getLogs\",\"method\":\"eth_chainId\"}"),
    ("/", KEY_JSON, "{\"id\":#,\"method\":\"eth_chainId\",\"Method\":\"eth_getLogs\"}"),
    ("/", KEY_JSON, "{\"id\":#,\"METHOD\":\"eth_getLogs\"}"),
    ("/", KEY_JSON, "{\"id\":#,\"method\\u0000\":\"eth_getLogs\"}"),
    ("/", KEY_JSON, "[{\"id\":#,\"method\":\"eth_getLogs\"}]"),
    ("/", KEY_JSON, "[[{\"id\":#,\"method\":\"eth_getLogs\"}]]"),
    ("/", KEY_JSON, "[{\"id\":1,\"method\":\"eth_chainId\"},{\"id\":#,\"method\":\"eth_getLogs\"}]"),
    ("/", KEY_JSON, "{\"id\":#,\"method\":\"eth_chainId\"}{\"id\":#,\"method\":\"eth_getLogs\"}"),
    ("/", KEY_JSON, "\u{feff}{\"id\":#,\"method\":\"eth_getLogs\"}"),
    ("/", KEY_TEXT, LOGS),
    ("/", "x-api-key: WHO\r\n", LOGS),
    ("/", "x-api-key: WHO\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n", LOGS),
    ("/?#", KEY_JSON, LOGS),
    ("/", "x-api-key: WHO\r\nmcp-method: ping\r\ncontent-type: application/json\r\n", LOGS),
];

const AGENT: &str = "authorization: Bearer WHO\r\ncontent-type: application/json\r\n";
const SEARCH: &str = "{\"id\":#,\"method\":\"tools/call\",\"params\":{\"name\":\"search\"}}";

pub const RECIPES: &[Recipe] = &[
    Recipe {
        page: "docs/guides/json-rpc.md",
        title: "An Ethereum node",
        most: 8,
        least: 8,
        refill: Some(Duration::from_millis(7500)),
        method: "POST",
        fields: KEY_JSON,
        body: LOGS,
        spellings: CALL,
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/graphql.md",
        title: "Limit by estimated cost",
        most: 4,
        least: 4,
        refill: Some(Duration::from_secs(721)),
        method: "POST",
        target: "/graphql",
        fields: KEY_JSON,
        body: "{\"query\":\"{ users(first: 1000) { a b } }\",\"x\":#}",
        spellings: &[
            (
                "/graphql",
                KEY_JSON,
                "{\"query\":\"{ a: users(first: 500) { a b } b: users(first: 500) { a b } }\",\"x\":#}",
            ),
            (
                "/graphql",
                KEY_JSON,
                "{\"query\":\"query($n:Int){ users(first: $n) { a b } }\",\"variables\":{\"n\":1000},\"x\":#}",
            ),
            (
                "/graphql",
                KEY_JSON,
                "{\"query\":\"query($n:Int){ users(first: $n) { a b } }\",\"variables\":\"{\\\"n\\\":1000}\",\"x\":#}",
            ),
            ("/graphql", KEY_JSON, "{\"query\":\"query($n:Int=1000){ users(first: $n) { a b } }\",\"x\":#}"),
            ("/graphql", KEY_JSON, "{\"query\":\"{ users(first: 1000) { ...F } } fragment F on U { a b }\",\"x\":#}"),
            (
                "/graphql",
                KEY_JSON,
                "{\"query\":\"query A { a } query B { users(first: 1000) { a b } }\",\"operationName\":\"B\",\"x\":#}",
            ),
            ("/graphql", KEY_JSON, "{\"query\":\"{ a }\",\"query\":\"{ users(first: 1000) { a b } }\",\"x\":#}"),
            ("/graphql", KEY_JSON, "[{\"query\":\"{ users(first: 1000) { a b } }\",\"x\":#}]"),
            ("/graphql?query=%7Ba%7D", KEY_JSON, "{\"query\":\"{ users(first: 1000) { a b } }\",\"x\":#}"),
            ("/graphql", "x-api-key: WHO\r\ncontent-type: application/graphql\r\n", "{ users(first: 1000) { a b } }"),
            ("/graphql", KEY_TEXT, "{\"query\":\"{ users(first: 1000) { a b } }\",\"x\":#}"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/calls.md",
        title: "JSON-RPC and MCP calls",
        most: 1,
        least: 1,
        refill: Some(Duration::from_secs(45)),
        method: "POST",
        fields: KEY_JSON,
        body: LOGS,
        spellings: CALL,
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/mcp.md",
        title: "Limit tools",
        most: 20,
        least: 20,
        refill: Some(Duration::from_secs(3)),
        method: "POST",
        target: "/mcp",
        fields: AGENT,
        body: SEARCH,
        spellings: &[
            ("/mcp", AGENT, "{\"id\":#,\"method\":\"tools/call\",\"params\":{\"n\\u0061me\":\"se\\u0061rch\"}}"),
            ("/mcp", AGENT, "{\"id\":#,\"params\":{\"name\":\"search\",\"name\":\"add\"},\"method\":\"tools/call\"}"),
            ("/mcp", AGENT, "{\"id\":#,\"params\":{\"name\":\"add\",\"Name\":\"search\"},\"method\":\"tools/call\"}"),
            (
                "/mcp",
                AGENT,
                "{\"id\":#,\"params\":{\"name\":\"add\"},\"Params\":{\"name\":\"search\"},\"method\":\"tools/call\"}",
            ),
            ("/mcp", AGENT, "{\"id\":#,\"method\":\"tools/call\",\"params\":{\"name\":[\"search\"]}}"),
            (
                "/mcp",
                AGENT,
                "[{\"id\":1,\"method\":\"ping\"},{\"id\":#,\"method\":\"tools/call\",\"params\":{\"name\":\"search\"}}]",
            ),
            ("/mcp", "mcp-name: add\r\nauthorization: bearer  WHO\r\ncontent-type: application/json\r\n", SEARCH),
            ("/mcp", "mcp-method: ping\r\nauthorization: Token WHO\r\ncontent-type: application/json\r\n", SEARCH),
            ("/mcp", "authorization: Bearer WHO\r\ncontent-type: application/json; charset=utf-16\r\n", SEARCH),
            ("//mcp", AGENT, SEARCH),
            ("/%6dcp/", AGENT, SEARCH),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/login.md",
        title: "Limit failed logins",
        most: 5,
        least: 5,
        method: "POST",
        target: "/login",
        body: "password=wrong",
        spellings: &[
            ("/%6cogin", "", "password=wrong"),
            ("//login", "", "password=wrong"),
            ("/x/../login", "", "password=wrong"),
            ("/login?#", "", "password=wrong"),
            ("http://a.test/login", "", "password=wrong"),
            ("/login", "x-http-method-override: GET\r\n", "password=wrong"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/login.md",
        title: "If your application responds 200 to a failed login",
        most: 5,
        least: 5,
        method: "POST",
        target: "/login",
        body: "password=guess",
        spellings: &[
            ("/%6cogin", "", "password=guess"),
            ("//login", "", "password=guess"),
            ("/login?#", "", "password=guess"),
            ("/login", "x-http-method-override: GET\r\n", "password=guess"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/login.md",
        title: "Limit guesses at one account",
        most: 5,
        least: 5,
        method: "POST",
        target: "/login",
        fields: FORM,
        body: "user=WHO&password=wrong",
        spellings: ACCOUNT,
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/login.md",
        title: "A success clears the failures",
        most: 5,
        least: 5,
        method: "POST",
        target: "/login",
        fields: FORM,
        body: "user=WHO&password=wrong",
        spellings: ACCOUNT,
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/keys.md",
        title: "Spellings",
        most: 2,
        least: 2,
        method: "POST",
        target: "/login",
        fields: FORM,
        body: "email=WHO@example.com",
        spellings: &[
            ("/login", FORM, "email=WHO%2B#@Example.COM"),
            ("/login", FORM, "email=%20WHO@example.com%09"),
            ("/login", FORM, "email=WHO%EF%BC%A0example.com"),
            ("/login", FORM, "email=WHO@example.com."),
            ("/login", JSON, "{\"email\":\"WHO@EXAMPLE.com\"}"),
            ("/login", JSON, "{\"email\":\"WHO\\uff20example.com\"}"),
            ("/login", FORM, "email=WHO@example.com&email=x#@example.com"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/llm-streams.md",
        title: "LLM tokens",
        most: 11,
        least: 10,
        refill: Some(Duration::from_secs(6)),
        method: "POST",
        target: "/chat",
        fields: "x-api-key: WHO\r\n",
        body: "hello",
        spellings: &[
            ("/chat", "x-api-key: WHO\r\nx-estimate: 0\r\n", "hello"),
            ("/chat", "x-api-key: WHO\r\nx-estimate: 1e3\r\n", "hello"),
            ("/chat", "x-api-key: WHO\r\nx-actual-cost: 0\r\n", "hello"),
            ("/chat", "x-api-key: j#\r\nx-api-key: WHO\r\n", "hello"),
            ("/chat", "x-api-key: WHO\r\nx-api-key: j#\r\n", "hello"),
            ("/chat", "x-api-key: j#\r\nx_api_key: WHO\r\n", "hello"),
            ("/chat", "X-API-KEY:   WHO  \r\n", "hello"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/charges.md",
        title: "Charges and refunds",
        most: 3,
        least: 3,
        method: "POST",
        body: "yes",
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/api-keys.md",
        title: "API keys",
        most: 3,
        least: 3,
        refill: Some(Duration::from_secs(1)),
        target: "/v1/items",
        fields: "x-api-key: WHO\r\n",
        spellings: &[
            ("/v1/items", "x-api-key: j#\r\nx-api-key: WHO\r\n", ""),
            ("/v1/items", "x-api-key: j#\r\nx_api_key: WHO\r\n", ""),
            ("//v1/./items?#", "x-api-key: WHO\r\n", ""),
            ("/v1/items", "", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/keys.md",
        title: "Keys",
        most: 2,
        least: 2,
        refill: Some(Duration::from_secs(1800)),
        target: "/a",
        fields: "x-api-key: WHO\r\n",
        spellings: &[
            ("/%61", "x-api-key: WHO\r\n", ""),
            ("//./a?#", "x-api-key: WHO\r\n", ""),
            ("/a", "x-api-key: j#\r\nx-api-key: WHO\r\n", ""),
            ("/a", "x-api-key: j#\r\nx_api_key: WHO\r\n", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/responses.md",
        title: "Responses of limits",
        most: 2,
        least: 2,
        refill: Some(Duration::from_secs(6)),
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/plans.md",
        title: "Plans by claim or header",
        most: 4,
        least: 4,
        fields: ANNA,
        is_shared: true,
        spellings: &[("/?#", ANNA, ""), ("/#", ANNA, ""), ("/", BEARER, "")],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/overrides.md",
        title: "Overrides",
        most: 4,
        least: 4,
        fields: "x-tenant: acme\r\n",
        is_shared: true,
        spellings: &[
            ("/", "X-Tenant:  acme \r\n", ""),
            ("/", "x-tenant: own\r\nx-tenant: acme\r\n", ""),
            ("/", "x-tenant: own\r\nx_tenant: acme\r\n", ""),
            ("/", "x-tenant: evil\r\n", ""),
            ("/", "x-tenant: own\r\nx-tenant: evil\r\n", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/choosing-a-limit.md",
        title: "Try a limit before it refuses",
        most: 5,
        least: 5,
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/choosing-a-limit.md",
        title: "Try different numbers for a limit",
        most: 5,
        least: 5,
        ..PLAIN
    },
    Recipe { page: "docs/guides/recipes.md", title: "Preflights of browsers", most: 3, least: 3, ..PLAIN },
    Recipe {
        page: "docs/guides/recipes.md",
        title: "Slower after a number",
        most: 4,
        least: 4,
        refill: Some(Duration::from_secs(4)),
        fields: "x-user: WHO\r\n",
        spellings: &[("/", "x-user: j#\r\nx-user: WHO\r\n", ""), ("/", "x-user: j#\r\nx_user: WHO\r\n", "")],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/recipes.md",
        title: "Allow some clients, block others",
        most: 2,
        least: 2,
        refill: Some(Duration::from_secs(1800)),
        spellings: &[
            ("/", "x-forwarded-for: 203.0.113.#, 203.0.113.1\r\n", ""),
            ("/", "client-ip: 203.0.113.#\r\n", ""),
            ("/", "true-client-ip: 203.0.113.#\r\nx-client-ip: 203.0.113.#\r\n", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/conditions.md",
        title: "Conditions",
        most: 2,
        least: 2,
        refill: Some(Duration::from_secs(30)),
        fields: "user-agent: GoogleBot\r\n",
        is_shared: true,
        spellings: &[
            ("/", "user-agent: GOOGLEBOT #\r\n", ""),
            ("/", "user-agent: Mozilla\r\nuser-agent: GoogleBot\r\n", ""),
            ("/", "user-agent: Mozilla\r\nuser_agent: GoogleBot\r\n", ""),
            ("/", "user-agent: Mozilla \u{e4} GoogleBot\r\n", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/reference/conditions.md",
        title: "Conditions",
        most: 1,
        least: 1,
        refill: Some(Duration::from_secs(60)),
        method: "DELETE",
        target: "/v1/a",
        fields: "user-agent: Mozilla\r\n",
        spellings: &[
            ("/%761/a", "user-agent: Mozilla\r\n", ""),
            ("//v2//a#", "user-agent: Mozilla\r\n", ""),
            ("/v1/%61?#", "user-agent: Mozilla\r\nuser-agent: curl/8\r\n", ""),
            ("/v1/a", "", ""),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/recipes.md",
        title: "One budget for several routes",
        most: 3,
        least: 3,
        target: "/search",
        spellings: &[("/export", "", ""), ("/%65xport?#", "", ""), ("/search/#", "", "")],
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/recipes.md",
        title: "One vote per user and post",
        most: 1,
        least: 1,
        method: "POST",
        target: "/posts/1/vote",
        fields: "x-user: WHO\r\n",
        body: "yes",
        spellings: &[
            ("/posts/%31/vote", "x-user: WHO\r\n", "yes"),
            ("/posts/01/vote", "x-user: WHO\r\n", "yes"),
            ("/posts/%D9%A1/vote", "x-user: WHO\r\n", "yes"),
            ("/posts/1/vote/", "x-user: WHO\r\n", "yes"),
            ("//posts//1/vote?#", "x-user: WHO\r\n", "yes"),
            ("/posts/1;#/vote", "x-user: WHO\r\n", "yes"),
            ("/posts/1%00#/vote", "x-user: WHO\r\n", "yes"),
            ("/posts/1/vote", "x-user: j#\r\nx-user: WHO\r\n", "yes"),
            ("/posts/1/vote", "x-user: j#\r\nx_user: WHO\r\n", "yes"),
            ("/posts/1/vote", "", "yes"),
        ],
        ..PLAIN
    },
    Recipe {
        page: "docs/operating/redis-outages.md",
        title: "Choose what happens per limit",
        most: 5,
        least: 5,
        target: "/login",
        refill: Some(Duration::from_secs(720)),
        ..PLAIN
    },
    Recipe {
        page: "docs/operating/redis-outages.md",
        title: "Choose what happens per limit",
        most: 5,
        least: 5,
        target: "/pages",
        refill: Some(Duration::from_secs(720)),
        ..PLAIN
    },
    Recipe {
        page: "docs/operating/redis-outages.md",
        title: "Choose what happens per limit",
        most: 5,
        least: 5,
        target: "/api",
        refill: Some(Duration::from_secs(720)),
        ..PLAIN
    },
    Recipe {
        page: "docs/guides/several-gateways.md",
        title: "Share the limits",
        most: 10,
        least: 10,
        refill: Some(Duration::from_secs(360)),
        fields: "x-api-key: WHO\r\n",
        spellings: &[
            ("/", "x-api-key: j#\r\nx-api-key: WHO\r\n", ""),
            ("/", "x-api-key: j#\r\nx_api_key: WHO\r\n", ""),
        ],
        ..PLAIN
    },
    // These are no recipes, but rules about numbers in requests.
    Recipe {
        page: "docs/migrating/koala.md",
        title: "An example rule file",
        most: 3,
        least: 3,
        target: "/check?act=post&uid=WHO&level=9",
        responds: true,
        trusts_proxies: true,
        spellings: &[
            ("/check?act=post&uid=WHO&level=%2B9", "", ""),
            ("/check?act=post&uid=WHO&level=+9", "", ""),
            ("/check?act=post&uid=WHO&level=9.0", "", ""),
            ("/check?act=post&uid=WHO&level=9e0", "", ""),
            ("/check?act=post&uid=WHO&level=0x9", "", ""),
            ("/check?act=post&uid=WHO&level=009", "", ""),
            ("/check?act=post&uid=WHO&level=%D9%A9", "", ""),
            ("/check?act=post&uid=WHO&level=7&level=9", "", ""),
            ("/check?act=post&uid=WHO&le%76el=9&#", "", ""),
            ("/check?act=read&act=post&uid=WHO&level=9", "", ""),
        ],
        ..PLAIN
    },
];
