//! Logs that cannot be read, or not all of them, and the exit codes.

use super::reports::{COMBINED, CONFIG};
use super::workdir::{Dir, gzip};

#[test]
fn unreadable_logs_are_reported_with_a_remedy() {
    let dir = Dir::new(CONFIG);
    std::fs::create_dir(dir.0.path().join("logs")).unwrap();
    let whole = gzip(COMBINED.repeat(100).as_bytes());
    dir.write("cut.gz", &whole[..whole.len() - 20]);
    let mut damaged = whole.clone();
    damaged[40] ^= 0x55;
    dir.write("damaged.gz", &damaged);
    dir.write("packed.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0, 0]);
    dir.write("other.log", b"2026-01-02 03:04:05 GET /\n");
    for (log, place, remedy) in [
        ("missing.log", "cannot read missing.log: ", "No such file"),
        ("logs", "logs is a directory", "name the logs in it"),
        ("cut.gz", "cut.gz ends in the middle of its gzip data, after line ", "gzip -dc cut.gz"),
        ("damaged.gz", "damaged.gz is damaged in its gzip data, after line ", "gzip -dc damaged.gz"),
        ("packed.zst", "packed.zst is packed by zstd", "zstd -dc packed.zst"),
        ("other.log", "other.log line 1: does not start with a client address", "write the log in one of them"),
        ("/dev/null/x", "cannot read /dev/null/x", "Not a directory"),
    ] {
        let (code, stdout, stderr) = dir.replay(&[log], b"");
        assert!(code == 1 && stdout.is_empty(), "{log}: {code} {stdout}");
        assert!(stderr.starts_with(&format!("error: {place}")) || stderr.contains(place), "{log}: {stderr}");
        assert!(stderr.contains(remedy), "{log}: {stderr}");
    }
}

#[test]
fn bad_lines_are_counted_and_the_first_are_shown() {
    let dir = Dir::new(CONFIG);
    let bad = ["[10/Oct/2000:13:55:36 -0700]", "-", "{", "::1 - - [x] \"GET / HTTP/1.1\" 200 5"].join("\n");
    dir.write("access.log", format!("{COMBINED}{bad}\n{}\n", "x".repeat(70_000)).as_bytes());
    let (code, stdout, _) = dir.replay(&["access.log"], b"");
    let expected = "access.log: 13 lines, combined, 6 bad\n  line 5: does not start with a client address\n  \
                line 9: starts with a bracket, but is not of the format of Nginx Proxy Manager\n  \
                line 10: neither JSON nor the common or combined format\n  ...\n";
    assert!(code == 0 && stdout.starts_with(expected), "{stdout}");
}

#[test]
fn a_date_that_does_not_exist_is_a_bad_line() {
    let dir = Dir::new(CONFIG);
    let line = COMBINED.lines().next().unwrap().replace("10/Oct/2000", "30/Feb/2000");
    dir.write("access.log", format!("{COMBINED}{line}\n").as_bytes());
    let (code, stdout, _) = dir.replay(&["access.log"], b"");
    assert!(code == 0 && stdout.contains("the time stamp is not of the form"), "{stdout}");
}

#[test]
fn times_that_jump_back_count_as_of_the_time_reached() {
    let dir = Dir::new(CONFIG);
    let day = COMBINED.to_owned() + &COMBINED.lines().next().unwrap().replace("13:55", "14:55") + "\n";
    let day_before = day.replace("10/Oct", "09/Oct");
    dir.write("access.log", format!("{day}{day_before}").as_bytes());
    let (code, stdout, _) = dir.replay(&["access.log"], b"");
    let expected = "  8 lines came too late to be put in order, by 86403 s at most, first access.log line 10: they";
    assert!(code == 0 && stdout.contains(expected), "{stdout}");
    let response = dir.json(&["access.log"], b"");
    assert_eq!((&response["late"]["lines"], &response["late"]["first"]["line"]), (&8.into(), &10.into()));
    // Files that are given one by one are merged.
    dir.write("2.log", day.as_bytes());
    dir.write("1.log", day_before.as_bytes());
    assert_eq!(dir.json(&["2.log", "1.log"], b"")["late"]["lines"], 0);
}

#[test]
fn one_line_of_the_future_does_not_move_the_others() {
    let dir = Dir::new(CONFIG);
    let future = COMBINED.lines().next().unwrap().replace("2000", "2090");
    dir.write("access.log", format!("{future}\n{COMBINED}").as_bytes());
    let response = dir.json(&["access.log"], b"");
    assert_eq!((&response["late"]["lines"], &response["requests"]["refused"]), (&0.into(), &1.into()));
    assert_eq!(response["to"], "2090-10-10T20:55:36Z");
}

#[test]
fn methods_count_in_every_case_unless_the_route_is_strict() {
    let limited = "[[route]]\npath = \"/\"\nmethods = [\"POST\"]\nupstream = \"echo:\"\nlimits = [\"posts\"]\n\
                   [limit.posts]\nrate = \"2/h\"\nwhen = { method = \"POST\" }\n";
    let first = COMBINED.lines().next().unwrap();
    let log = ["post", "Post", "POST", "POST", "connect"].map(|method| first.replace("GET", method)).join("\n");
    for (strictness, admitted, refused, malformed) in [("strict", 2, 0, 3), ("defensive", 2, 2, 1)] {
        let dir = Dir::new(&format!("[server]\nstrictness = \"{strictness}\"\n{limited}"));
        dir.write("access.log", log.as_bytes());
        let requests = &dir.json(&["access.log"], b"")["requests"];
        let counts = ["admitted", "refused", "malformed"].map(|count| requests[count].as_u64().unwrap());
        assert_eq!(counts, [admitted, refused, malformed], "{strictness}: {requests}");
    }
}

#[test]
fn numbers_that_are_no_integers_are_refused_as_live() {
    let dir = Dir::new(
        "[[route]]\nupstream = \"echo:\"\nlimits = [\"high\"]\n[limit.high]\nrate = \"2/h\"\n\
         when = { query = { level = \">8\" } }\n",
    );
    let first = COMBINED.lines().next().unwrap();
    let levels = ["9", "%2B9", "9.0", "x", "7", "10"];
    dir.write(
        "access.log",
        levels.map(|level| first.replace("/a", &format!("/a?level={level}"))).join("\n").as_bytes(),
    );
    let requests = &dir.json(&["access.log"], b"")["requests"];
    assert_eq!((&requests["admitted"], &requests["refused"]), (&3.into(), &3.into()), "{requests}");
}

#[test]
fn lines_that_no_route_takes() {
    let dir = Dir::new(&CONFIG.replace("path = \"/\"", "path = \"/a\""));
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.json(&["access.log"], b"")["requests"]["no_route"], 3);
    dir.write("sluicegate.toml", CONFIG.replace("path = \"/\"", "path = \"/other/\"").as_bytes());
    let (code, stdout, stderr) = dir.replay(&["access.log", "--host", "a.example"], b"");
    assert!(code == 1 && stdout.is_empty(), "{stdout}");
    let expected = "error: no route matches any of the 6 requests; the first is GET /late of a.example (access.log line 8); \
                look at `host`, `path` and `methods` of the routes";
    assert!(stderr.starts_with(expected), "{stderr}");
}

#[test]
fn exit_codes() {
    let dir = Dir::new(CONFIG);
    let (code, _, stderr) = dir.replay(&["-"], b"nonsense\n\x00\xff\n");
    assert!(code == 1 && stderr.contains("standard input line 1"), "{code} {stderr}");
    // A script must not take nothing for a limit that refuses nothing. One of several logs may be empty.
    for nothing in [&b""[..], b"\n", b"::1 - - [29/Feb/2024:23:59:59 +0100] \"-\" 400 0\n"] {
        let (code, _, stderr) = dir.replay(&["-"], nothing);
        assert!(code == 1 && stderr.contains("the logs contain no requests"), "{code} {stderr}");
    }
    dir.write("access.log", COMBINED.as_bytes());
    assert_eq!(dir.replay(&["-", "access.log"], b"").0, 0);
    assert_eq!(dir.replay(&[], b"").0, 2);
    assert_eq!(dir.replay(&["-", "--host", "a b"], b"").0, 2);
    for option in ["--plot", "--verdicts"] {
        let (code, _, stderr) = dir.replay(&["-", option, "missing/out"], COMBINED.as_bytes());
        assert!(code == 1 && stderr.contains("cannot write missing/out"), "{code} {stderr}");
    }
    dir.write("sluicegate.toml", b"[limit.x]\n");
    assert_eq!(dir.replay(&["-"], b"").0, 2);
}

/// A request is judged in the order of the steps of the gateway: by its head, then by its route.
#[test]
fn a_malformed_head_counts_before_its_route_and_its_client() {
    let dir = Dir::new(
        "[limit.one]\nrate = \"1/h\"\nkey = \"ip\"\n[[route]]\npath = \"/a\"\nupstream = \"echo:\"\nlimits = [\"one\"]\n\
         deny = [\"192.0.2.1\"]\n",
    );
    let line = |ip: &str, path: &str| format!("{ip} - - [10/Oct/2000:13:55:36 +0000] \"GET {path} HTTP/1.1\" 200 5\n");
    let lines =
        [("192.0.2.1", "/a"), ("192.0.2.1", "/a%00"), ("192.0.2.2", "/b"), ("192.0.2.2", "/b%00"), ("192.0.2.2", "/a")];
    let log: String = lines.iter().map(|(ip, path)| line(ip, path)).collect();
    dir.write("access.log", log.as_bytes());
    let requests = &dir.json(&["access.log"], b"")["requests"];
    let counts = ["admitted", "denied", "no_route", "malformed"].map(|count| requests[count].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 1, 2], "{requests}");
}
