//! Whose requests a log contains: clients behind a proxy, in the last field of the format `main` of nginx.

use super::workdir::Dir;

fn config(trusted: &str, limit: &str) -> String {
    format!(
        "[server]\ntrusted_proxies = [{trusted}]\n[[route]]\npath = \"/\"\nupstream = \"http://127.0.0.1:3000\"\n\
         limits = [\"a\"]\n[limit.a]\nrate = \"2/s\"\nburst = 5\n{limit}\n"
    )
}

/// Four requests of each of 60 clients, all through one proxy.
fn log(ending: impl Fn(usize) -> String) -> String {
    let line = |n: usize| {
        let stamp = format!("10.0.0.1 - - [08/Jun/2026:08:04:{n:02} +0000]");
        format!("{stamp} \"GET /p HTTP/1.1\" 200 803 \"-\" \"curl/8\"{}\n", ending(n)).repeat(4)
    };
    (0..60).map(line).collect()
}

#[test]
fn clients_behind_a_trusted_proxy_are_told_apart() {
    let dir = Dir::new(&config("\"10.0.0.0/8\"", "key = \"ip\""));
    dir.write("main.log", log(|n| format!(" \"junk, 203.0.113.{n}\"")).as_bytes());
    let (code, stdout, _) = dir.replay(&["main.log"], b"");
    assert!(code == 0 && stdout.contains("requests  240 of 60 keys") && stdout.contains("refused   0"), "{stdout}");
    assert!(stdout.contains("240 requests come from a trusted proxy"), "{stdout}");
    let report = dir.json(&["main.log"], b"");
    assert_eq!(report["requests"]["forwarded"], 240);
    // Requests without the header are those of the peer, as in the gateway.
    dir.write("direct.log", log(|_| " \"-\"".to_owned()).as_bytes());
    let report = dir.json(&["direct.log"], b"");
    assert_eq!((&report["requests"]["forwarded"], &report["limits"][0]["keys"]["count"]), (&0.into(), &1.into()));
}

#[test]
fn nothing_is_recommended_from_the_address_of_a_proxy() {
    // The format has no field for the client.
    let combined = log(|_| String::new());
    for limit in [
        "key = \"ip\"",
        "key = \"all\"\nwhen = { client = \"203.0.113.0/24\" }",
        "key = \"path\"\nfair = { key = \"ip\" }",
    ] {
        let dir = Dir::new(&config("\"10.0.0.0/8\"", limit));
        dir.write("access.log", combined.as_bytes());
        let (code, stdout, _) = dir.replay(&["access.log"], b"");
        assert!(code == 1 && stdout.contains("240 not evaluated"), "{limit} {stdout}");
        assert!(stdout.contains("log \"$http_x_forwarded_for\""), "{limit} {stdout}");
        assert!(stdout.contains("tightest  none: no request could be evaluated"), "{limit} {stdout}");
    }
    // A limit that does not read the address is evaluated.
    let dir = Dir::new(&config("\"10.0.0.0/8\"", "key = \"path\""));
    dir.write("access.log", combined.as_bytes());
    assert_eq!(dir.json(&["access.log"], b"")["limits"][0]["requests"], 240);
    // The proxy is not in `trusted_proxies`.
    let dir = Dir::new(&config("", "key = \"ip\""));
    dir.write("main.log", log(|n| format!(" \"203.0.113.{n}\"")).as_bytes());
    let (code, stdout, _) = dir.replay(&["main.log"], b"");
    assert!(code == 0 && stdout.contains("tightest  none: the clients in the log are proxies"), "{stdout}");
    assert!(stdout.contains("if it is a proxy, list it there"), "{stdout}");
    // Few of its requests have the header, but it needs most.
    let few = log(|n| if n < 10 { format!(" \"203.0.113.{n}\"") } else { " \"-\"".into() });
    dir.write("few.log", few.as_bytes());
    let (_, stdout, _) = dir.replay(&["few.log"], b"");
    assert!(stdout.contains("tightest  none: the client that needs most may be a proxy"), "{stdout}");
    // Other clients that send the header themselves change nothing, unless one of them needs most.
    let clients: String = few
        .lines()
        .map(|line| match line.ends_with("\"-\"") {
            true => format!("{}\n", line.replace("10.0.0.1", "198.51.100.1")),
            false => format!("{}\n", line.replace("10.0.0.1", "192.0.2.1")),
        })
        .collect();
    dir.write("clients.log", clients.as_bytes());
    assert_eq!(dir.json(&["clients.log"], b"")["limits"][0]["tightest"]["value"], 102);
}

/// One line of each format that may start with the address of a proxy, at second `n`.
fn line_of(format: &str, n: usize) -> String {
    let stamp = format!("2026-06-08T08:04:{n:02}");
    match format {
        "common" => format!("10.0.0.1 - - [08/Jun/2026:08:04:{n:02} +0000] \"GET /p HTTP/1.1\" 200 803\n"),
        "combined" => {
            format!("10.0.0.1 - - [08/Jun/2026:08:04:{n:02} +0000] \"GET /p HTTP/1.1\" 200 803 \"-\" \"curl/8\"\n")
        }
        "haproxy" => format!(
            "lb haproxy[1]: 10.0.0.1:5000 [08/Jun/2026:08:04:{n:02}.000] web app/s 0/0/0/1/1 200 100 - - ---- \
             1/1/0/0/0 0/0 \"GET /p HTTP/1.1\"\n"
        ),
        "own" => format!(
            "{{\"time\":\"{stamp}Z\",\"client\":\"10.0.0.1\",\"method\":\"GET\",\"host\":\"a\",\"path\":\"/p\"}}\n"
        ),
        "nginx" => format!(
            "{{\"time_iso8601\":\"{stamp}+00:00\",\"remote_addr\":\"10.0.0.1\",\"request\":\"GET /p HTTP/1.1\",\
             \"status\":200}}\n"
        ),
        // Its log has no headers, because it was told so.
        "caddy" => format!(
            "{{\"ts\":\"{stamp}Z\",\"request\":{{\"remote_ip\":\"10.0.0.1\",\"method\":\"GET\",\"host\":\"a\",\
             \"uri\":\"/p\"}},\"status\":200}}\n"
        ),
        other => panic!("{other}"),
    }
}

fn tightest(dir: &Dir, name: &str, text: &str) -> String {
    dir.write(name, text.as_bytes());
    let (_, stdout, _) = dir.replay(&[name], b"");
    let lines: Vec<&str> = stdout.lines().filter(|line| line.contains("tightest") || line.contains("note")).collect();
    lines.join("\n")
}

/// Nobody has told the config about the balancers, and no line names another client. Balancers of clouds have at least
/// two addresses.
#[test]
fn nothing_is_recommended_from_private_addresses() {
    let dir = Dir::new(&config("", "key = \"ip\""));
    for format in ["common", "combined", "haproxy", "own", "nginx", "caddy"] {
        let all: String = (0..60).map(|n| line_of(format, n).repeat(4)).collect();
        for addresses in [
            &["10.0.0.1"][..],
            &["10.0.0.1", "10.0.0.2", "10.0.0.3"],
            &["100.64.0.1", "100.64.9.9"],
            &["192.168.1.1", "172.17.0.1"],
            // One key.
            &["fd00::1", "fd00::2"],
            // A tenth of the requests are those of clients.
            &[
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.1",
                "192.0.2.1",
            ],
        ] {
            let at = |(n, line): (usize, &str)| line.replacen("10.0.0.1", addresses[n % addresses.len()], 1) + "\n";
            let found = tightest(&dir, format, &all.lines().enumerate().map(at).collect::<String>());
            let why = "tightest  none: the address that needs most is private, so it may be a proxy: list it in ";
            assert!(found.contains(why), "{format} {addresses:?} {found}");
            // Only servers that log like nginx get the remedy for nginx.
            let is_like_nginx = ["common", "combined", "nginx"].contains(&format);
            assert_eq!(found.contains("$http_x_forwarded_for"), is_like_nginx, "{format} {found}");
        }
        let public = tightest(&dir, format, &all.replace("10.0.0.1", "192.0.2.1"));
        assert!(public.contains("tightest  burst "), "{format} {public}");
        // So few requests say nothing.
        let few: String = all.split_inclusive('\n').take(100).collect();
        assert!(tightest(&dir, format, &few).contains("tightest  burst "), "{format}");
        // In the gateway's own log, a loopback address may be that of somebody who tries the gateway.
        for address in ["127.0.0.1", "::1"] {
            let found = tightest(&dir, format, &all.replace("10.0.0.1", address));
            let is_tried = found.contains("tightest  burst ") && found.contains("come from this machine");
            assert_eq!(is_tried, format == "own", "{format} {found}");
        }
    }
    // A private address that needs less than a client does not matter, nor one that a header names: the server has
    // taken the client from there.
    let mixed = |n: usize| {
        let line = line_of("combined", n);
        line.replace("10.0.0.1", "192.0.2.1").repeat(4) + &line
    };
    let mixed: String = (0..60).map(mixed).collect();
    assert!(tightest(&dir, "mixed", &mixed).contains("tightest  burst "));
    let named = log(|_| " \"10.0.0.1\"".to_owned());
    assert!(tightest(&dir, "named", &named).contains("tightest  burst "));
}

/// An address that is listed in `trusted_proxies` is that of a proxy, also where its requests name nobody.
#[test]
fn nothing_is_recommended_from_a_trusted_proxy() {
    let dir = Dir::new(&config("\"203.0.113.10\"", "key = \"ip\""));
    let ending = |n: usize| if n.is_multiple_of(3) { format!(" \"198.51.100.{n}\"") } else { " \"-\"".to_owned() };
    let found = tightest(&dir, "main.log", &log(ending).replace("10.0.0.1", "203.0.113.10"));
    assert!(found.contains("tightest  none: the address that needs most is in `trusted_proxies`"), "{found}");
}

/// The log names the client, but not where it is read. The proxies have public addresses.
#[test]
fn a_client_in_another_field_is_noticed() {
    let dir = Dir::new(&config("", "key = \"ip\""));
    let endings =
        [" 0.010 \"198.51.100.N\"", " xff=\"198.51.100.N\"", " 198.51.100.N", " \"-\" rt=0.1 \"198.51.100.N\""];
    let combined = endings.map(|ending| log(|n| ending.replace('N', &n.to_string())));
    let fields = ["xff", "client_ip", "real_ip", "http_x_real_ip", "http_cf_connecting_ip", "http_true_client_ip"];
    let json = fields.map(|field| {
        let named = |n: usize| format!("\"status\":200,\"{field}\":\"198.51.100.{n}\"");
        (0..60).map(|n| line_of("nginx", n).replace("\"status\":200", &named(n)).repeat(4)).collect::<String>()
    });
    for (number, text) in combined.iter().chain(&json).enumerate() {
        let found = tightest(&dir, "access.log", &text.replace("10.0.0.1", "203.0.113.10"));
        let why = "tightest  none: most lines have another address in a field that is not read";
        assert!(found.contains(why) && found.contains("`trusted_proxies`"), "{number} {found}");
    }
    // The address of the server, and those of upstream servers, are no clients.
    for ending in [" 0.1 \"198.51.100.7\"", " upstream=\"198.51.100.7:80\""] {
        let text = log(|_| ending.to_owned()).replace("10.0.0.1", "203.0.113.10");
        assert!(tightest(&dir, "access.log", &text).contains("tightest  burst "), "{ending}");
    }
}

/// The header that `client_address` names is the one that is read, and that the report asks for.
#[test]
fn the_header_of_the_config_names_the_client() {
    let cloudflare =
        config("\"203.0.113.10\"", "key = \"ip\"").replace("[server]", "[server]\nclient_address = \"cloudflare\"");
    let dir = Dir::new(&cloudflare);
    let of = |field: &dyn Fn(usize) -> String| {
        let line = |n: usize| line_of("nginx", n).replace("\"status\":200", &format!("\"status\":200,{}", field(n)));
        (0..60).map(|n| line(n).replace("10.0.0.1", "203.0.113.10").repeat(4)).collect::<String>()
    };
    dir.write("read.log", of(&|n| format!("\"http_cf_connecting_ip\":\"198.51.100.{n}\"")).as_bytes());
    let report = dir.json(&["read.log"], b"");
    assert_eq!((&report["requests"]["forwarded"], &report["limits"][0]["keys"]["count"]), (&240.into(), &60.into()));
    assert!(report["limits"][0]["tightest"]["value"].is_number(), "{report}");
    // A list of hops that the gateway does not read names nobody.
    let chain = log(|n| format!(" \"198.51.100.{n}\"")).replace("10.0.0.1", "203.0.113.10");
    let json = of(&|n| format!("\"http_x_forwarded_for\":\"198.51.100.{n}\""));
    for (name, text) in [("main.log", &chain), ("json.log", &json)] {
        dir.write(name, text.as_bytes());
        let (code, stdout, _) = dir.replay(&[name], b"");
        assert!(code == 1 && stdout.contains("log \"$http_cf_connecting_ip\" as a field"), "{name} {stdout}");
        assert!(!stdout.contains("$http_x_forwarded_for"), "{name} {stdout}");
    }
    // Caddy logs all headers, Traefik those that it is told to keep.
    let dir = Dir::new(&cloudflare.replace("\"cloudflare\"", "\"x-real-ip\""));
    let caddy = |n: usize| {
        let headers = format!("\"headers\":{{\"X-Real-Ip\":[\"198.51.100.{n}\"]}},\"method\"");
        line_of("caddy", n).replace("10.0.0.1", "203.0.113.10").replace("\"method\"", &headers)
    };
    let traefik = |n: usize| {
        format!(
            "{{\"ClientAddr\":\"203.0.113.10:1\",\"ClientHost\":\"203.0.113.10\",\
             \"request_X-Real-Ip\":\"198.51.100.{n}\",\
             \"RequestMethod\":\"GET\",\"RequestPath\":\"/p\",\"StartUTC\":\"2026-06-08T08:04:{n:02}Z\",\
             \"DownstreamStatus\":200,\"Duration\":1000000}}\n"
        )
    };
    for (name, text) in
        [("caddy.log", (0..60).map(caddy).collect::<String>()), ("traefik.log", (0..60).map(traefik).collect())]
    {
        dir.write(name, text.as_bytes());
        assert_eq!(dir.json(&[name], b"")["limits"][0]["keys"]["count"], 60, "{name}");
    }
}

/// The `X-Forwarded-For` of Traefik ends with its peer.
#[test]
fn the_clients_of_traefik_are_known_once_the_proxy_is_listed() {
    let traefik = |n: usize| {
        format!(
            "{{\"ClientAddr\":\"10.0.0.1:1\",\"ClientHost\":\"203.0.113.{n}, 10.0.0.1\",\"RequestMethod\":\"GET\",\
             \"RequestPath\":\"/p\",\"StartUTC\":\"2026-06-08T08:04:{n:02}Z\",\"DownstreamStatus\":200,\
             \"Duration\":1000000}}\n"
        )
        .repeat(4)
    };
    let text: String = (0..60).map(traefik).collect();
    let found = tightest(&Dir::new(&config("", "key = \"ip\"")), "traefik", &text);
    assert!(found.contains("none: the clients in the log are proxies"), "{found}");
    let trusting = Dir::new(&config("\"10.0.0.0/8\"", "key = \"ip\""));
    trusting.write("traefik", text.as_bytes());
    assert_eq!(trusting.json(&["traefik"], b"")["limits"][0]["keys"]["count"], 60);
}

#[test]
fn lists_of_clients_apply_to_the_client_behind_the_proxy() {
    let listed = "deny = [\"203.0.113.0/28\"]\nallow = [\"203.0.113.16/28\"]\nlimits = [\"a\"]";
    let config = config("\"10.0.0.0/8\"", "key = \"ip\"").replace("limits = [\"a\"]", listed);
    let dir = Dir::new(&config);
    dir.write("main.log", log(|n| format!(" \"203.0.113.{n}\"")).as_bytes());
    let requests = &dir.json(&["main.log"], b"")["requests"];
    assert_eq!((&requests["denied"], &requests["allowed"]), (&64.into(), &64.into()), "{requests}");
    // An unknown client is in no list.
    let dir = Dir::new(&config.replace("203.0.113.0/28", "10.0.0.1"));
    dir.write("some.log", log(|n| if n < 59 { String::new() } else { " \"203.0.113.1\"".into() }).as_bytes());
    assert_eq!(dir.json(&["some.log"], b"")["requests"]["denied"], 0);
}
