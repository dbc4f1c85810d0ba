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
            true => format!("{line}\n"),
            false => format!("{}\n", line.replace("10.0.0.1", "192.0.2.1")),
        })
        .collect();
    dir.write("clients.log", clients.as_bytes());
    assert_eq!(dir.json(&["clients.log"], b"")["limits"][0]["tightest"]["value"], 102);
}

/// Nobody has told the config about the proxy, and no line names another client.
#[test]
fn nothing_is_recommended_from_one_private_address() {
    let combined = log(|_| " 0.003 \"198.51.100.7\"".to_owned());
    let common = combined.replace(" \"-\" \"curl/8\" 0.003 \"198.51.100.7\"", "");
    let haproxy = |n: usize| {
        format!(
            "lb haproxy[1]: 10.0.0.1:5000 [08/Jun/2026:08:04:{n:02}.000] web app/s 0/0/0/1/1 200 100 - - ---- 1/1/0/0/0 0/0 \"GET /p HTTP/1.1\"\n"
        )
    };
    let own = |n: usize| {
        format!(
            "{{\"time\":\"2026-06-08T08:04:{n:02}Z\",\"client\":\"10.0.0.1\",\"method\":\"GET\",\"host\":\"a\",\"path\":\"/p\"}}\n"
        )
    };
    // The X-Forwarded-For of Traefik ends with its peer.
    let traefik = |n: usize| {
        format!(
            "{{\"ClientAddr\":\"10.0.0.1:1\",\"ClientHost\":\"203.0.113.{n}, 10.0.0.1\",\"RequestMethod\":\"GET\",\"RequestPath\":\"/p\",\"StartUTC\":\"2026-06-08T08:04:{n:02}Z\",\"DownstreamStatus\":200,\"Duration\":1000000}}\n"
        )
    };
    let of = |line: &dyn Fn(usize) -> String| (0..60).map(|n| line(n).repeat(4)).collect::<String>();
    let dir = Dir::new(&config("", "key = \"ip\""));
    let lone = "none: one private address sends nearly all requests";
    for (name, text, why) in [
        ("combined", combined.clone(), lone),
        ("common", common, lone),
        ("haproxy", of(&haproxy), lone),
        ("own", of(&own), lone),
        ("container", of(&own).replace("10.0.0.1", "172.17.0.1"), lone),
        ("loopback", combined.replace("10.0.0.1", "127.0.0.1"), lone),
        ("unique-local", combined.replace("10.0.0.1", "fd00::1"), lone),
        ("traefik", of(&traefik), "none: the clients in the log are proxies"),
    ] {
        dir.write(name, text.as_bytes());
        let (_, stdout, _) = dir.replay(&[name], b"");
        assert!(stdout.contains(why) && stdout.contains("`trusted_proxies`"), "{name} {stdout}");
        // Only servers that log like nginx get the remedy for nginx.
        let is_like_nginx = ["combined", "common", "loopback", "unique-local"].contains(&name);
        assert_eq!(stdout.contains("$http_x_forwarded_for"), is_like_nginx, "{name} {stdout}");
    }
    // In the gateway's own log, a loopback address may be that of somebody who tries the gateway.
    for address in ["127.0.0.1", "::1"] {
        dir.write("own", of(&own).replace("10.0.0.1", address).as_bytes());
        let (_, stdout, _) = dir.replay(&["own"], b"");
        let note = format!("note      nearly all requests come from {address}: if that is a proxy");
        assert!(stdout.contains("tightest  burst ") && stdout.contains(&note), "{stdout}");
    }
    // Once the proxy is listed, the clients of Traefik are known.
    let trusting = Dir::new(&config("\"10.0.0.0/8\"", "key = \"ip\""));
    trusting.write("traefik", of(&traefik).as_bytes());
    assert_eq!(trusting.json(&["traefik"], b"")["limits"][0]["keys"]["count"], 60);
    // Public addresses, few requests, and other clients for one request in eight say nothing.
    let mixed: String = combined
        .lines()
        .enumerate()
        .map(
            |(n, line)| if n % 8 == 0 { line.replacen("10.0.0.1", "192.0.2.9", 1) + "\n" } else { format!("{line}\n") },
        )
        .collect();
    let few: String = combined.split_inclusive('\n').take(100).collect();
    for (name, text) in [("public", combined.replace("10.0.0.1", "192.0.2.1")), ("few", few), ("mixed", mixed)] {
        dir.write(name, text.as_bytes());
        assert!(dir.json(&[name], b"")["limits"][0]["tightest"]["value"].is_number(), "{name}");
    }
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
