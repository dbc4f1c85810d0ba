//! The diff of two configs: only what differs in effect, each option by name, with a mark where protection gets weaker.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use sluicegate::config;
use sluicegate::config::Config;
use sluicegate::reload::diff::Diff;

use crate::support::machine::cpu_time;

/// A config with a bit of everything.
const BASE: &str = r#"
[server]
listen = "127.0.0.1:8080"
max_body = "1MiB"
trusted_proxies = ["10.0.0.0/8"]
[admin]
token = "secret-1"
[store]
on_error = "closed"
[upstream.app]
servers = ["http://127.0.0.1:3000"]
[upstream.tls]
servers = ["https://127.0.0.1:3001"]
tls = { verify = true }
[set.blocked]
values = ["192.0.2.1", "192.0.2.2"]
[limit.per-ip]
rate = "10/s"
burst = 20
[limit.daily]
rate = "1000/day"
key = "header:x-key"
[[route]]
name = "api"
path = "/api"
upstream = "app"
limits = ["per-ip", "daily"]
deny = ["set:blocked"]
methods = ["GET", "POST"]
auth = { forward = "http://127.0.0.1:4180/verify" }
[[route]]
name = "rest"
upstream = "tls"
limits = ["per-ip"]
"#;

fn load(text: &str) -> Config {
    config::load_text("test", text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

fn lines(old: &str, new: &str) -> Vec<String> {
    Diff::compare(&load(old), &load(new)).lines().collect()
}

/// The lines between the base and a version in which each `from` is `to`.
#[track_caller]
fn changed(edits: &[(&str, &str)]) -> Vec<String> {
    let mut text = BASE.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "the base has no {from}");
        text = text.replacen(from, to, 1);
    }
    lines(BASE, &text)
}

/// Options that change what limits read of tunnels and bodies are marked, because they change charges.
#[test]
fn unread_usage_is_weaker() {
    let base = "[[route]]\nname = \"llm\"\nupstream = \"http://127.0.0.1:3000\"\nlimits = [\"tokens\"]\nOPTION\n\
                [limit.tokens]\nrate = \"100000/day\"\nkey = \"all\"\nsettle = \"openai\"\n\
                cost = { reserve = { add = [\"json:/max_tokens\"] } }\n";
    for (before, after, line) in [
        ("", "upgrades = [\"websocket\"]", "route llm: upgrades: added \"websocket\" [weaker]"),
        ("upgrades = [\"a\", \"b\"]", "upgrades = [\"b\"]", "route llm: upgrades: removed \"a\""),
        ("upgrades = [\"b\"]", "upgrades = [\"a\", \"b\"]", "route llm: upgrades: added \"a\" [weaker]"),
        ("max_cost_body = \"2MiB\"", "", "route llm: max_cost_body \"2MiB\" \u{2192} default [weaker]"),
        ("max_cost_body = \"64KiB\"", "", "route llm: max_cost_body \"64KiB\" \u{2192} default"),
    ] {
        assert_eq!(lines(&base.replace("OPTION", before), &base.replace("OPTION", after)), [line], "{before} {after}");
    }
}

/// A budget that grows for some keys weakens, and a ban that is added does not.
#[test]
fn overrides_with_larger_budgets_and_lost_bans_are_weaker() {
    let base = "[[route]]\nname = \"app\"\nupstream = \"http://127.0.0.1:3000\"\nlimits = [\"a\"]\n\
                [limit.a]\nrate = \"10/min\"\nkey = \"header:x-k\"\nOPTION\n";
    let blocked = "overrides = [{ key = \"k\", rate = 0 }]";
    let one = "overrides = [{ key = \"k\", rate = \"1/h\" }]";
    let many = "overrides = [{ key = \"k\", rate = \"500/min\" }]";
    let every = "overrides = [{ key = \"*\", rate = \"500/min\" }]";
    let free = "overrides = [{ key = \"k\", rate = \"unlimited\" }]";
    let ban = "ban = { after = 5, within = \"1m\", for = \"10m\" }";
    let shorter = "ban = { after = 5, within = \"1m\", for = \"5m\" }";
    for (before, after, weakens) in [
        (blocked, "", true),
        ("", blocked, false),
        (blocked, one, true),
        (one, blocked, false),
        (one, "", true),
        ("", many, true),
        (many, "", false),
        ("", every, true),
        ("", free, true),
        (many, free, true),
        (free, many, false),
        ("", ban, false),
        (ban, "", true),
        (ban, shorter, true),
        (shorter, ban, false),
    ] {
        let lines = lines(&base.replace("OPTION", before), &base.replace("OPTION", after));
        let is_marked = lines.iter().any(|line| line.contains("[weaker]"));
        assert!(!lines.is_empty() && is_marked == weakens, "{before} to {after}: {lines:?}");
    }
}

/// A list that is not written means the default, which has items.
#[test]
fn a_missing_list_is_the_default() {
    let base = "[server]\nSERVER\n[jwt]\njwks = \"https://issuer.test/keys\"\nJWT\n[[route]]\nname = \"app\"\nROUTE\n\
                upstream = \"http://127.0.0.1:3000\"\n";
    for (place, one, other, there, back) in [
        (
            "JWT",
            "",
            "algorithms = [\"ES256\"]",
            "jwt: algorithms: removed \"RS256\", \"RS384\", \"RS512\", \"PS256\", \"PS384\", \"PS512\", \"ES384\", \"EdDSA\"",
            "jwt: algorithms: added \"RS256\", \"RS384\", \"RS512\", \"PS256\", \"PS384\", \"PS512\", \"ES384\", \"EdDSA\" [weaker]",
        ),
        (
            "SERVER",
            "",
            "client_address = \"x-forwarded-for\"",
            "server: client_address default \u{2192} \"x-forwarded-for\"",
            "server: client_address \"x-forwarded-for\" \u{2192} default [weaker]",
        ),
        (
            "SERVER",
            "",
            "nat64 = []",
            "server: nat64: removed \"64:ff9b::/96\"",
            "server: nat64: added \"64:ff9b::/96\"",
        ),
        (
            "SERVER",
            "",
            "forwarded_headers = []",
            "server: forwarded_headers: [], no longer the default",
            "server: forwarded_headers: the default, no longer []",
        ),
        (
            "ROUTE",
            "",
            "upgrades = []",
            "route app: upgrades: [], no longer the default",
            "route app: upgrades: the default, no longer [] [weaker]",
        ),
        (
            "ROUTE",
            "request_headers.set = { x-user = \"{client_ip}\" }",
            "",
            "route app: request_headers.set.x-user \"{client_ip}\" \u{2192} default [weaker]",
            "route app: request_headers.set.x-user default \u{2192} \"{client_ip}\"",
        ),
    ] {
        let config = |text: &str| {
            let filled = base.replace(place, text);
            ["SERVER", "JWT", "ROUTE"].iter().fold(filled, |text, place| text.replace(place, ""))
        };
        assert_eq!(lines(&config(one), &config(other)), [there], "{one} {other}");
        assert_eq!(lines(&config(other), &config(one)), [back], "{other} {one}");
    }
}

#[test]
fn each_difference_is_a_line() {
    for (from, to, line) in [
        ("burst = 20", "burst = 40", "limit per-ip: burst 20 → 40 (keys keep what they used) [weaker]"),
        ("burst = 20", "burst = 10", "limit per-ip: burst 20 → 10 (keys keep what they used)"),
        ("burst = 20", "", "limit per-ip: burst 20 → default (keys keep what they used)"),
        ("\"10/s\"", "\"20/s\"", "limit per-ip: rate \"10/s\" → \"20/s\" (keys keep what they used) [weaker]"),
        ("\"10/s\"", "\"600/min\"", ""),
        ("burst = 20", "burst = 20\nmode = \"shadow\"", "limit per-ip: mode default → \"shadow\" [weaker]"),
        ("\"header:x-key\"", "\"ip\"", "limit daily: starts anew (key changed) [weaker]"),
        ("[\"per-ip\", \"daily\"]", "[\"daily\"]", "route api: no longer limited by per-ip [weaker]"),
        ("limits = [\"per-ip\"]", "", "route rest: no longer limited by per-ip [weaker]"),
        ("limits = [\"per-ip\"]", "limits = [\"per-ip\", \"daily\"]", "route rest: now limited by daily"),
        ("[\"GET\", \"POST\"]", "[\"POST\", \"GET\"]", ""),
        ("methods = [\"GET\", \"POST\"]", "", "route api: methods: removed \"GET\", \"POST\""),
        ("[\"GET\", \"POST\"]", "[\"GET\"]", "route api: methods: removed \"POST\" [weaker]"),
        (
            "\"192.0.2.2\"]",
            "\"192.0.2.3\"]",
            "set blocked: values: removed \"192.0.2.2\"; added \"192.0.2.3\" [weaker]",
        ),
        ("deny = [\"set:blocked\"]", "", "route api: deny: removed \"set:blocked\" [weaker]"),
        (
            "deny = [\"set:blocked\"]",
            "deny = [\"set:blocked\"]\nallow = \"192.0.2.9\"",
            "route api: allow default → \"192.0.2.9\" [weaker]",
        ),
        (
            "auth = { forward = \"http://127.0.0.1:4180/verify\" }",
            "",
            "route api: auth.forward \"http://127.0.0.1:4180/verify\" → default [weaker]",
        ),
        ("verify = true", "verify = false", "upstream tls: tls.verify true → false [weaker]"),
        ("on_error = \"closed\"", "on_error = \"open\"", "store: on_error \"closed\" → \"open\" [weaker]"),
        ("max_body = \"1MiB\"", "max_body = \"2MiB\"", "server: max_body \"1MiB\" → \"2MiB\" [weaker]"),
        ("max_body = \"1MiB\"", "max_body = 1048576", ""),
        ("max_body = \"1MiB\"", "", "server: max_body \"1MiB\" → default [weaker]"),
        ("[server]", "[server]\nstrictness = \"monitor\"", "server: strictness default → \"monitor\" [weaker]"),
        ("[server]", "[server]\nworkers = 3", "server: workers"),
        (
            "\"10.0.0.0/8\"",
            "\"10.0.0.0/8\", \"192.0.2.0/24\"",
            "server: trusted_proxies: added \"192.0.2.0/24\" [weaker]",
        ),
        ("token = \"secret-1\"", "token = \"secret-2\"", "admin: token changed"),
        ("token = \"secret-1\"", "", "admin: token removed [weaker]"),
        (
            "\"http://127.0.0.1:3000\"",
            "\"http://127.0.0.1:3000\", \"http://127.0.0.1:3002\"",
            "upstream app: servers: added \"http://127.0.0.1:3002\"",
        ),
        (
            "listen = \"127.0.0.1:8080\"",
            "listen = [\"127.0.0.1:8080\", \"127.0.0.1:8081\"]",
            "listener 127.0.0.1:8081: added",
        ),
        ("[limit.daily]", "[limit.more]\nrate = \"1/s\"\n[limit.daily]", "limit more: added"),
        ("name = \"rest\"", "name = \"other\"", "route rest: removed"),
    ] {
        let found = changed(&[(from, to)]);
        match line {
            "" => assert!(found.is_empty(), "{from} → {to}: {found:?}"),
            _ => assert!(found.iter().any(|found| found.starts_with(line)), "{from} → {to}: {found:?} lacks {line}"),
        }
    }
}

/// An option that is absent has its default, which may be weaker than what was written, or stricter.
#[test]
fn absent_options_are_compared_by_their_defaults() {
    let base = BASE.replace(
        "[admin]\n",
        "[[listener]]\naddress = \"127.0.0.1:8443\"\ntls = { internal = true, MIN }\n[admin]\nADMIN\n",
    );
    let with = |min: &str, admin: &str, server: &str| {
        let tls = if min.is_empty() {
            "tls = { internal = true }".to_owned()
        } else {
            format!("tls = {{ internal = true, {min} }}")
        };
        base.replace("tls = { internal = true, MIN }", &tls).replace("ADMIN", admin).replacen(
            "[server]\n",
            &format!("[server]\n{server}\n"),
            1,
        )
    };
    for (min, admin, server, is_stricter) in [
        ("min_version = \"1.3\"", "", "", true),
        ("min_version = \"1.2\"", "", "", false),
        ("", "metrics_need_token = true", "", true),
        ("", "metrics_need_token = false", "", false),
        ("", "", "hints = false", true),
        ("", "", "hints = \"local\"", false),
        ("", "keys = { header = \"hidden\" }", "", true),
        ("", "keys = { ip = \"hashed\" }", "", true),
        ("", "keys = { header = \"hashed\" }", "", false),
        ("", "keys = { default = \"hidden\" }", "", true),
        ("", "keys = { ip = \"plain\" }", "", false),
    ] {
        let (absent, present) = (with("", "", ""), with(min, admin, server));
        let is_weaker = |old: &str, new: &str| lines(old, new).iter().any(|line| line.ends_with("[weaker]"));
        assert!(!is_weaker(&absent, &present), "{min}{admin}{server}: {:?}", lines(&absent, &present));
        assert_eq!(is_weaker(&present, &absent), is_stricter, "{min}{admin}{server}: {:?}", lines(&present, &absent));
    }
    for (admin, server) in
        [("keys = { header = \"plain\" }", ""), ("keys = { default = \"plain\" }", ""), ("", "hints = true")]
    {
        let (absent, present) = (with("", "", ""), with("", admin, server));
        let found = lines(&absent, &present);
        assert!(found.iter().any(|line| line.ends_with("[weaker]")), "{admin}{server}: {found:?}");
    }
}

/// A candidate that is put in force is compared with the limit that it replaces, and so is the limit that returns.
#[test]
fn a_candidate_in_force_is_compared_with_the_limit_it_replaces() {
    let config = |limits: &str, route: &str| {
        format!("[[route]]\nname = \"r\"\nupstream = \"echo:\"\nlimits = [\"{route}\"]\n{limits}")
    };
    let burst = "[limit.burst]\nrate = \"2/s\"\nburst = 5\n";
    for (rate, more, is_weaker) in [
        ("1/s", "burst = 3", false),
        ("2/s", "burst = 5", false),
        ("3/s", "burst = 3", true),
        ("1/s", "burst = 6", true),
        ("1/s", "burst = 3\ncost = 0", true),
        ("1/s", "burst = 3\nkey = \"header:x-a\"", true),
        ("1/s", "burst = 3\nwhen = { method = \"GET\" }", true),
        ("1/s", "burst = 3\nmode = \"shadow\"", true),
        ("1/s", "burst = 3\nrefund_on = [500]", true),
    ] {
        let v2 = format!("[limit.burst-v2]\nrate = \"{rate}\"\n{more}\n");
        let before =
            config(&format!("{burst}{}candidate_of = \"burst\"\n", v2.replace("mode = \"shadow\"\n", "")), "burst");
        for kept in ["", burst] {
            let after = config(&format!("{kept}{v2}"), "burst-v2");
            let found = lines(&before, &after);
            assert_eq!(found.iter().any(|line| line.ends_with("[weaker]")), is_weaker, "{v2}: {found:#?}");
        }
        // The old limit returns, and the new one becomes its candidate.
        if more.matches('=').count() == 1 {
            let found = lines(&config(&v2, "burst-v2"), &before);
            let returns_weaker = (rate, more) != ("2/s", "burst = 5");
            assert_eq!(
                found.iter().any(|line| line.ends_with("[weaker]")),
                returns_weaker,
                "back from {v2}: {found:#?}"
            );
        }
    }
    let (with, without) = (
        config(&format!("{burst}[limit.v2]\nrate = \"1/s\"\ncandidate_of = \"burst\"\n"), "burst"),
        config(burst, "burst"),
    );
    assert_eq!(lines(&with, &without), ["limit v2: removed"], "a candidate refused nobody");
    // Both were in force: one budget less is weaker.
    let both = with.replace("candidate_of = \"burst\"\n", "").replace("[\"burst\"]", "[\"burst\", \"v2\"]");
    assert!(lines(&both, &with).iter().any(|line| line.ends_with("[weaker]")));
}

/// Requests that a route with limits no longer matches may reach another route.
#[test]
fn a_removed_or_narrowed_route_weakens() {
    let route = |more: &str| {
        format!(
            "[limit.logins]\nrate = \"5/min\"\n[[route]]\nname = \"app\"\npath = \"/\"\nupstream = \"echo:\"\n\
             [[route]]\n{more}\nupstream = \"echo:\"\nlimits = [\"logins\"]\n"
        )
    };
    let login = "name = \"login\"\npath = \"/login\"";
    for (to, line) in [
        ("name = \"login\"\npath = \"= /login\"", "route login: path \"/login\" → \"= /login\" [weaker]"),
        ("name = \"login\"\npath = \"/login/new\"", "route login: path \"/login\" → \"/login/new\" [weaker]"),
        ("name = \"login\"\npath = \"/log\"", "route login: path \"/login\" → \"/log\" [weaker]"),
        ("name = \"login\"\npath = \"/login\"\nmethods = \"POST\"", "route login: methods default → \"POST\" [weaker]"),
        ("name = \"login\"\npath = \"/login\"\nhost = \"a.test\"", "route login: host default → \"a.test\" [weaker]"),
        (
            "name = \"login\"\npath = \"/login\"\nheader = { x-a = \"1\" }",
            "route login: header.x-a default → \"1\" [weaker]",
        ),
        ("name = \"signin\"\npath = \"/signin\"", "route login: removed [weaker]"),
        // The same route under another name.
        ("name = \"signin\"\npath = \"/login\"", "route login: removed"),
    ] {
        let found = lines(&route(login), &route(to));
        assert!(found.contains(&line.to_owned()), "{to}: {found:?}");
        let back = lines(&route(to), &route(login));
        let is_narrower = to.contains("/signin") || to.contains("\"/log\"");
        assert!(is_narrower || back.iter().all(|line| !line.contains("weaker")), "{to}: {back:?}");
    }
    let text = route(login);
    let without = &text[..text.rfind("[[route]]").unwrap()];
    let found = lines(&text, without);
    assert!(found.contains(&"route login: removed [weaker]".to_owned()), "{found:?}");
}

#[test]
fn a_new_route_without_limits_and_a_removed_limit_weaken() {
    let found = changed(&[("[limit.daily]\nrate = \"1000/day\"\nkey = \"header:x-key\"", ""), (", \"daily\"]", "]")]);
    assert!(found.contains(&"limit daily: removed [weaker]".to_owned()), "{found:?}");
    let open = format!("{BASE}\n[[route]]\nname = \"open\"\npath = \"/open\"\nupstream = \"app\"\n");
    assert_eq!(lines(BASE, &open), ["route open: added, without limits [weaker]"]);
    // In the other direction, nothing gets weaker: the route protected nothing.
    assert_eq!(lines(&open, BASE), ["route open: removed"]);
}

#[test]
fn a_removed_plan_weakens_if_its_keys_fall_to_more() {
    let with = |plans: &str| {
        format!(
            "[[route]]\nname = \"app\"\nrespond = {{ body = \"in\" }}\nlimits = [\"q\"]\n[limit.q]\nalgorithm = \"fixed_window\"\n\
             key = \"header:x-k\"\nrate = \"header:x-plan\"\nrates = {{ gold = \"9/h\", {plans} }}\n"
        )
    };
    for (old, new, is_weaker) in [
        ("free = \"1/h\", default = \"5/h\"", "default = \"5/h\"", true),
        ("off = 0, default = \"5/h\"", "default = \"5/h\"", true),
        ("free = \"6/h\", default = \"5/h\"", "default = \"5/h\"", false),
        ("free = \"1/h\"", "default = 0", false),
    ] {
        let found = lines(&with(old), &with(new));
        assert!(!found.is_empty());
        assert_eq!(found.iter().any(|line| line.ends_with("[weaker]")), is_weaker, "{old} -> {new}: {found:?}");
    }
}

#[test]
fn order_comments_and_spelling_never_differ() {
    let sections: Vec<&str> = BASE.split("\n[").filter(|section| !section.trim().is_empty()).collect();
    for turn in 0..sections.len() {
        let mut turned = sections.clone();
        turned.rotate_left(turn);
        let text: String = turned.iter().map(|section| format!("\n# {turn}\n[{}", section.trim_start())).collect();
        assert!(lines(BASE, &text).is_empty(), "{:?}\n{text}", lines(BASE, &text));
    }
    for (one, other) in [
        ("max_body = \"1MiB\"", "max_body = \"1024KiB\"\nkeepalive_timeout = \"75s\""),
        ("trusted_proxies = [\"10.0.0.0/8\"]", "trusted_proxies = \"10.0.0.0/8\""),
        ("burst = 20", "burst = 20\nalgorithm = \"token_bucket\"\nkey = [\"ip\"]\nmode = \"enforce\"\ndebt = 0"),
        ("path = \"/api\"", "path = \"/api/\"\nmax_body = \"1MiB\"\nresponse_timeout = \"1m\""),
        ("\"1000/day\"", "\"1000/24h\""),
    ] {
        assert_eq!(changed(&[(one, other)]), Vec::<String>::new(), "{other}");
    }
}

#[test]
fn a_path_that_is_written_differently_is_no_line() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one.txt", "two.txt", "ca.pem"] {
        let sample = if name == "ca.pem" { fs::read("conf/tls/sample.pem").unwrap() } else { b"192.0.2.1".to_vec() };
        fs::write(dir.path().join(name), sample).unwrap();
    }
    let load = |burst: u32, [set, ca, path, host]: [&str; 4]| {
        let file = dir.path().join(format!("{burst}.toml"));
        let text = format!(
            "[set.a]\nfile = \"{set}\"\n[upstream.u]\nservers = \"https://127.0.0.1:1\"\nmax_in_flight = {burst}\n\
             tls = {{ ca = \"{ca}\" }}\n[[route]]\nname = \"r\"\npath = \"{path}\"\nhost = [\"{host}\"]\n\
             upstream = \"u\"\nmax_in_flight = {burst}\nallow = [\"set:a\"]\nerror_pages = {{ 502 = \"{set}\" }}\n"
        );
        fs::write(&file, text).unwrap();
        config::load_config(&file).unwrap_or_else(|report| panic!("{report}"))
    };
    let compare = |old: &Config, new: &Config| Diff::compare(old, new).lines().collect::<Vec<_>>();
    let old = load(1, ["one.txt", "ca.pem", "/v1/", "api.example.com"]);
    let absolute = dir.path().join("one.txt").display().to_string();
    let new = load(2, [&absolute, "./ca.pem", "/v1", "API.example.com"]);
    let found = compare(&old, &new);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|line| line.contains("max_in_flight 1 \u{2192} 2")), "{found:?}");
    let found = compare(&old, &load(3, ["two.txt", "ca.pem", "/v2", "api.example.org"])).join("\n");
    for named in ["file", "error_pages", "path \"/v1/\" \u{2192} \"/v2\"", "host: removed"] {
        assert!(found.contains(named), "{named}: {found}");
    }
}

#[test]
fn includes_and_one_file_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (start, rest) = BASE.split_at(BASE.find("[upstream.app]").unwrap());
    let (middle, end) = rest.split_at(rest.find("[[route]]").unwrap());
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/a.toml"), end).unwrap();
    fs::write(dir.path().join("d/b.toml"), middle).unwrap();
    fs::write(dir.path().join("main.toml"), format!("include = [\"d/*.toml\"]\n{start}")).unwrap();
    fs::write(dir.path().join("one.toml"), BASE).unwrap();
    let load = |name: &str| config::load_config(&dir.path().join(name)).unwrap_or_else(|report| panic!("{report}"));
    let diff = Diff::compare(&load("main.toml"), &load("one.toml"));
    assert!(diff.is_empty(), "{:?}", diff.lines().collect::<Vec<_>>());
}

#[test]
fn the_content_of_a_file_counts() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[[route]]\nname = \"a\"\nupstream = \"echo:\"\ndeny = [\"set:bad\"]\n[set.bad]\nfile = \"bad.txt\"\n";
    fs::write(dir.path().join("c.toml"), text).unwrap();
    let with = |list: &str| {
        fs::write(dir.path().join("bad.txt"), list).unwrap();
        config::load_config(&dir.path().join("c.toml")).unwrap_or_else(|report| panic!("{report}"))
    };
    let (two, one) = (with("192.0.2.1\n192.0.2.2\n"), with("192.0.2.1\n"));
    let found: Vec<String> = Diff::compare(&two, &one).lines().collect();
    assert_eq!(found, ["set bad: removed 192.0.2.2 [weaker]"]);
    let diff = Diff::compare(&one, &two);
    assert_eq!(diff.lines().collect::<Vec<_>>(), ["set bad: added 192.0.2.2"]);
    assert_eq!(diff.to_string(), "set bad: added 192.0.2.2");
    let many: String = (0..300).map(|last| format!("10.0.{}.{}\n", last / 200, last % 200)).collect();
    let diff = Diff::compare(&one, &with(&format!("192.0.2.1\n{many}")));
    assert_eq!(diff.lines().count(), 1);
    assert!(diff.to_string().ends_with("10.0.0.105, 10.0.0.106 and 290 more"), "{diff}");
}

/// One line, however many routes use the set; and no text that may be a secret of a client.
#[test]
fn a_changed_set_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = "[set.bad]\nfile = \"bad.txt\"\n[set.bad-2]\nvalues = [\"10.9.9.9\"]\n".to_owned();
    for route in 0..200 {
        let _ = write!(
            text,
            "[[route]]\nname = \"r{route}\"\npath = \"/{route}\"\nupstream = \"echo:\"\ndeny = [\"set:bad\"]\n"
        );
    }
    let with = |list: &str, text: &str| {
        fs::write(dir.path().join("bad.txt"), list).unwrap();
        fs::write(dir.path().join("c.toml"), text).unwrap();
        config::load_config(&dir.path().join("c.toml")).unwrap_or_else(|report| panic!("{report}"))
    };
    let (one, two) = (with("192.0.2.1\n", &text), with("192.0.2.1\n203.0.113.66\n", &text));
    let diff = Diff::compare(&one, &two);
    assert_eq!(diff.lines().collect::<Vec<_>>(), ["set bad: added 203.0.113.66"]);
    assert_eq!(diff.to_string(), "set bad: added 203.0.113.66");
    assert!(!diff.is_empty());
    // What a route changes beside it has its own line.
    let other = text.replace("path = \"/7\"", "path = \"/seven\"");
    let diff = Diff::compare(&one, &with("192.0.2.1\n203.0.113.66\n", &other));
    assert_eq!(diff.to_string(), "route changed: r7; set bad: added 203.0.113.66");
    assert_eq!(diff.lines().count(), 2);
    // A set that is renamed in place of its file is no change of the other.
    let other = text.replacen("set:bad\"", "set:bad-2\"", 1);
    let diff = Diff::compare(&one, &with("192.0.2.1\n", &other));
    assert!(diff.to_string().starts_with("route changed: r0"), "{diff}");
    let keys = "[set.vip]\nfile = \"bad.txt\"\n[limit.l]\nrate = \"1/s\"\nwhen = { header = { x-api-key = \"set:vip\" } }\n\
                [[route]]\nupstream = \"echo:\"\nlimits = [\"l\"]\n";
    let diff = Diff::compare(&with("secret-1\n", keys), &with("secret-1\nsecret-2\nsecret-3\n", keys));
    assert_eq!(diff.to_string(), "set vip: added 2 items");
}

#[test]
fn routes_with_patterns_have_an_order() {
    let route = |name: &str| format!("[[route]]\nname = \"{name}\"\npath = \"~ ^/{name}\"\nupstream = \"echo:\"\n");
    let [one, other] = [route("a") + &route("b"), route("b") + &route("a")];
    assert_eq!(lines(&one, &other), ["route: paths with regular expressions are tried in another order"]);
    assert!(lines(&one, &one).is_empty());
}

/// Ten thousand routes are compared in less than a second, and the output is bounded. Changes that weaken protection
/// are never cut off by the others.
#[test]
fn large_configs_are_compared_quickly() {
    // Each route has another timeout: the same change of several routes would be one line.
    let text = |without_limit: usize, timeout_ms: usize| {
        let mut text = "[limit.x]\nrate = \"1/s\"\n".to_owned();
        for i in 0..10_000 {
            let limits = if i == without_limit { "[]" } else { "[\"x\"]" };
            let _ = write!(
                text,
                "[[route]]\nname = \"r{i}\"\npath = \"/r{i}\"\nupstream = \"echo:\"\nlimits = {limits}\nconnect_timeout = \"{}ms\"\n",
                timeout_ms + i
            );
        }
        text
    };
    let (old, new) = (load(&text(20_000, 1000)), load(&text(7777, 1001)));
    let before = cpu_time();
    let diff = Diff::compare(&old, &new);
    let time = cpu_time() - before;
    assert!(time < Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 }), "{time:?}");
    let found: Vec<String> = diff.lines().collect();
    assert_eq!(found[0], "route r7777: no longer limited by x [weaker]");
    let (total, weaker) = diff.counts();
    assert!(total > 5000 && weaker == 1, "{total} {weaker}");
    assert_eq!(found.len(), 201);
    assert_eq!(found[200], format!("and {} more", total - 200));
}
