//! Overrides that change one by one: rows of a file, and entries that the admin API sets while a set is large.

use std::fmt::Write;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::limiting::RedisServer;
use crate::support::wait_until;

const LIMIT: &str = "[[route]]\nname = \"app\"\nrespond = { body = \"in\" }\nlimits = [\"q\"]\n\
    [limit.q]\nalgorithm = \"fixed_window\"\nrate = \"1/h\"\nkey = \"header:x-k\"\n";

fn statuses(gateway: &Gateway, key: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| gateway.fetch(&get("/", &format!("x-k: {key}\r\n"))).status()).collect()
}

fn rows(gateway: &Gateway) -> (Option<f64>, Option<f64>) {
    let of = |name| gateway.metric(name, &[("limit", "q")]);
    (of("override_file_rows"), of("override_file_rejected"))
}

#[test]
fn rows_of_a_file_apply_one_by_one_and_wrong_ones_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("customers.txt");
    let put = |text: &str| {
        let new = dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &path).unwrap();
    };
    let past = "2020-01-01T00:00:00Z";
    put(&format!("# key numbers\nacme rate=3/h;note=launch\nevil rate=0\nold rate=0;until={past}\nodd rate=many\n"));
    let config =
        format!("{LIMIT}overrides = [{{ file = \"{}\" }}, {{ key = \"own\", rate = \"2/h\" }}]\n", path.display());
    let gateway = Gateway::start(&config);
    let generation = || gateway.metric("config_generation", &[]);
    let before = generation();
    assert_eq!(statuses(&gateway, "acme", 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    assert_eq!(statuses(&gateway, "old", 2), [200, 429], "an entry that has ended leaves the limit's own numbers");
    assert_eq!(statuses(&gateway, "odd", 2), [200, 429]);
    assert_eq!(statuses(&gateway, "own", 3), [200, 200, 429]);
    wait_until("rows are counted", || rows(&gateway) == (Some(3.0), Some(1.0)));
    assert_eq!(gateway.admin("/-/status").json()["rejected_overrides"], serde_json::json!({ "q": 1 }));
    assert!(gateway.log().contains("line 5: `rate`"), "{}", gateway.log());
    let state = gateway.admin("/-/limits/q/state?key=acme").json();
    assert_eq!(
        (&state["override"]["source"], &state["override"]["note"]),
        (&"file".into(), &"launch".into()),
        "{state}"
    );

    // A typing error lifts no block; usage stays.
    put("acme rate=5/h\nevil rate=O\n");
    wait_until("the change applies", || rows(&gateway) == (Some(2.0), Some(1.0)));
    assert_eq!(statuses(&gateway, "acme", 3), [200, 200, 429]);
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    assert_eq!(generation(), before, "no reload");

    // A live entry wins, and when it goes, the row applies again.
    let set = gateway.admin_request("PUT", "/-/limits/q/override?key=evil", "", "{\"rate\": \"2/h\"}");
    assert_eq!(set.status(), 200, "{}", set.text());
    assert_eq!(statuses(&gateway, "evil", 3), [200, 200, 429]);
    gateway.admin_request("DELETE", "/-/limits/q/override?key=evil", "", "");
    assert_eq!(gateway.admin("/-/limits/q/state?key=evil").json()["override"]["blocked"], true);

    // A file that is gone changes nothing, and is counted.
    fs::remove_file(&path).unwrap();
    wait_until("the loss is counted", || rows(&gateway) == (Some(2.0), Some(1.0)));
    wait_until("the loss is logged", || gateway.log().contains("cannot read the overrides, those known stay active"));
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    put("acme rate=0\n");
    wait_until("the new file applies", || rows(&gateway) == (Some(1.0), Some(0.0)));
    assert_eq!(statuses(&gateway, "acme", 1), [429]);
}

#[test]
fn a_reload_lifts_no_block_of_a_row_that_became_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("customers.txt");
    fs::write(&path, "evil rate=0\n").unwrap();
    let overrides = format!("overrides = {{ file = \"{}\" }}\n", path.display());
    let gateway = Gateway::start(&format!("{LIMIT}{overrides}"));
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    fs::write(&path, "evil rate=O\n").unwrap();
    gateway.reload_with("rate = \"1/h\"", "rate = \"2/h\"");
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    wait_until("the row is counted", || rows(&gateway) == (Some(1.0), Some(1.0)));
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    // Without the file, its series end.
    gateway.reload_with(&overrides, "");
    wait_until("the series end", || rows(&gateway) == (None, None));
    assert_eq!(statuses(&gateway, "evil", 1), [200]);
}

/// A reload of the config for another reason does not wait for the file, and lifts none of its blocks.
#[test]
fn a_reload_keeps_the_rows_of_a_file_that_is_still_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("customers.txt");
    fs::write(&path, "acme rate=3/h\nevil rate=0\n").unwrap();
    let overrides = format!("overrides = {{ file = \"{}\" }}\n", path.display());
    let gateway = Gateway::start(&format!("{LIMIT}{overrides}"));
    assert_eq!(statuses(&gateway, "evil", 1), [429]);
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"acme rate=0\nother rate=0\n").unwrap();
    gateway.reload_with("rate = \"1/h\"", "rate = \"2/h\"");
    assert_eq!((statuses(&gateway, "evil", 1), statuses(&gateway, "other", 3)), (vec![429], vec![200, 200, 429]));
    assert_eq!(statuses(&gateway, "acme", 4), [200, 200, 200, 429]);
    assert!(gateway.log().contains("the earlier overrides stay active"), "{}", gateway.log());
    file.write_all(b"last rate=0\n").unwrap();
    drop(file);
    wait_until("the closed file applies", || rows(&gateway) == (Some(3.0), Some(0.0)));
    assert_eq!(statuses(&gateway, "last", 1), [429]);
    assert_eq!((statuses(&gateway, "evil", 1), statuses(&gateway, "other", 1)), (vec![200], vec![429]));
}

#[test]
fn check_names_wrong_rows_and_what_a_file_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rows"), "a rate=2/h\nb rate=x\na rate=3/h\n").unwrap();
    let check = |limit: &str, deny: &[&str]| {
        let file = dir.path().join("c.toml");
        fs::write(&file, format!("{LIMIT}{limit}\n")).unwrap();
        let output = program().args(["check", "-c"]).arg(&file).args(deny).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = check("overrides = { file = \"rows\" }", &[]);
    assert!(code == 0 && text.contains("SG0217") && text.contains("line 2: `rate`"), "{code} {text}");
    assert!(text.contains("line 3: the key has a row already"), "{text}");
    assert_ne!(check("overrides = { file = \"rows\" }", &["--deny-warnings"]).0, 0);
    for (limit, part) in [
        ("overrides = { file = \"none\" }", "the file does not exist"),
        ("overrides = [{ file = \"rows\" }, { file = \"rows\" }]", "there is a file already"),
        ("overrides = [{ file = \"rows\", rate = \"1/h\" }]", "the entry names a file"),
        ("overrides = { key = \"a\", rate = \"1/h\" }", "a list of tables, or { file = \"PATH\" }"),
    ] {
        let (code, text) = check(limit, &[]);
        assert!(code == 2 && text.contains(part), "{limit}: {code} {text}");
    }
    let (code, text) = check("overrides = { file = \"rows\" }\nkey = \"ip6tiers\"", &[]);
    assert!(code == 2 && text.contains("key"), "{text}");
}

/// The other gateway learns of the change without reading the set.
#[test]
fn a_change_of_a_large_set_applies_at_once_on_all_gateways() {
    let server = RedisServer::start(&[]);
    let mut client = server.client();
    for first in (0..100_000).step_by(10_000) {
        let mut fill = redis::cmd("HSET");
        fill.arg("sg:overrides:q");
        for i in first..first + 10_000 {
            fill.arg(format!("c{i}")).arg("rate=2/h");
        }
        let () = fill.query(&mut client).unwrap();
    }
    let config = format!("{}{LIMIT}", server.store());
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    for gateway in &gateways {
        wait_until("all are in force", || gateway.metric("live_overrides", &[("limit", "q")]) == Some(100_000.0));
    }
    // Both have begun to follow changes.
    std::thread::sleep(Duration::from_secs(3));
    let since = Instant::now();
    let set = gateways[0].admin_request("PUT", "/-/limits/q/override?key=c7", "", "{\"block\": true}");
    assert_eq!(set.status(), 200, "{}", set.text());
    assert_eq!(statuses(&gateways[0], "c7", 1), [429], "at once");
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    let is_blocked = || gateways[1].admin("/-/limits/q/state?key=c7").json()["override"]["blocked"] == true;
    wait_until("the other gateway knows it", is_blocked);
    assert_eq!(statuses(&gateways[1], "c7", 1), [429]);
    assert_eq!(statuses(&gateways[1], "c8", 3), [200, 200, 429]);
    // The list is only a hint: without it, the next reading finds the change.
    let () = redis::cmd("DEL").arg("sg:override-changes").query(&mut client).unwrap();
    let () = redis::cmd("HSET").arg("sg:overrides:q").arg("c9").arg("rate=0").query(&mut client).unwrap();
    wait_until("the reading finds it", || statuses(&gateways[1], "c9", 1) == [429]);
}

#[test]
fn a_hundred_thousand_rows_of_a_file_are_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("customers.txt");
    let mut text = String::new();
    (0..100_000).for_each(|i| writeln!(text, "c{i} rate={}/h", 2 + i % 3).unwrap());
    fs::write(&path, &text).unwrap();
    let gateway = Gateway::start(&format!("{LIMIT}overrides = {{ file = \"{}\" }}\n", path.display()));
    assert_eq!(statuses(&gateway, "c3", 3), [200, 200, 429]);
    wait_until("rows are counted", || rows(&gateway) == (Some(100_000.0), Some(0.0)));
    fs::write(&path, text.replace("c3 rate=2/h", "c3 rate=0")).unwrap();
    wait_until("one row applies", || gateway.log().contains("changed overrides are active"));
    assert!(gateway.log().contains("changed=1"), "{}", gateway.log());
    assert_eq!(statuses(&gateway, "c4", 4), [200, 200, 200, 429]);
}

/// Overrides and texts of conditions are whole values. `check` warns of patterns there.
#[test]
fn check_warns_of_values_that_look_like_patterns() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rows"), "a rate=2/h\n10.0.0.0/8 rate=1/h\nb.* rate=1/h\n* rate=3/h\n").unwrap();
    let check = |more: &str| {
        let file = dir.path().join("c.toml");
        fs::write(&file, format!("{LIMIT}{more}\n")).unwrap();
        let output = program().args(["check", "-c"]).arg(&file).output().unwrap();
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
    };
    for (more, parts) in [
        ("overrides = { file = \"rows\" }", &["SG0321", "line 2 (a network), line 3 (a regular expression)"][..]),
        ("overrides = [{ key = \"^a[0-9]+$\", rate = \"1/h\" }]", &["SG0321", "looks like a regular expression"]),
        ("overrides = [{ key = \"set:vip\", rate = \"1/h\" }]", &["SG0321", "looks like a set"]),
        ("when = { header = { x-a = \"10.0.0.0/8\" } }", &["SG0321", "looks like a network"]),
        ("when = { header = { x-a = \"^a(b|c)$\" } }", &["SG0321", "looks like a regular expression"]),
        ("when = { header = { x-a = \"= 10.0.0.0/8\", x-b = \"~ ^a\", x-c = \"b*\" } }", &[]),
        ("when = { header = { x-a = \"!=10.0.0.0/8\", x-b = \"=^a\" } }", &[]),
        ("when = { header = { x-a = \"a= 1 ^b(c|d)$\" } }", &["SG0321", "looks like a regular expression"]),
        ("overrides = [{ key = \"a/b:c.d\", rate = \"1/h\" }, { key = \"*\", rate = \"2/h\" }]", &[]),
    ] {
        let text = check(more);
        assert!(parts.iter().all(|part| text.contains(part)), "{more}: {text}");
        assert_eq!(text.contains("SG0321"), !parts.is_empty(), "{more}: {text}");
    }
}
