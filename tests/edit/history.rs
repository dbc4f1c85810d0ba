//! The history of configs, and rollbacks with and without files that may be written.

use std::fs;

use serde_json::Value;

use super::{Editor, MAIN, TOKEN, named, version};
use crate::support::gateway::program;
use crate::support::wait_until;

impl Editor {
    fn pinned(&self) -> (Value, Option<f64>) {
        (self.get("/-/status").json()["pinned"].clone(), self.gateway.metric("config_pinned", &[]))
    }

    /// Saves the main file like an editor on the machine, and waits until it is in force.
    fn save(&self, name: &str, admin: &str) {
        fs::write(self.main(), named(name, admin)).unwrap();
        wait_until("the save is active", || self.served() == name);
    }
}

#[test]
fn the_last_ten_configs_are_kept() {
    let editor = Editor::start();
    for round in 2..=12 {
        assert_eq!(editor.put(version(&format!("r{round}"))).status(), 200);
    }
    let response = editor.get("/-/config/history");
    let history = response.json();
    assert!(response.get("etag").unwrap().starts_with("\"12-"));
    let generations = history["generations"].as_array().unwrap();
    let numbers: Vec<u64> = generations.iter().map(|entry| entry["generation"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (3..=12).collect::<Vec<u64>>());
    let last = &generations[9];
    assert_eq!((&last["trigger"], &last["restorable"]), (&"edit".into(), &true.into()));
    assert_eq!(last["diff"]["routes"]["added"][0], "r12");
    assert_eq!(last["hash"], editor.get("/-/status").json()["hash"]);
    assert!(!response.text().contains("s3cret"), "texts may contain secrets");
    let missing = editor.roll_back(2);
    assert_eq!((missing.status(), missing.text().contains("it has 3, 4")), (404, true), "{}", missing.text());
}

#[test]
fn the_history_and_the_audit_log_name_who_changed_what() {
    let next = "next-token-0123456789";
    let token = format!("[[admin.tokens]]\nname = \"deploy\"\nrole = \"edit\"\ntoken = \"{next}\"\n");
    let config = |name: &str| format!("{}\n{token}", version(name));
    let editor = Editor::with(&config("one"));
    let as_deploy = |method: &str, path: &str, fields: &str, body: &str| {
        let fields = format!("authorization: Bearer {next}\r\n{fields}");
        let response = editor.gateway.admin_request(method, path, &fields, body);
        assert_eq!(response.status(), 200, "{}", response.text());
    };
    let edit = |query: &str, name: &str| {
        let fields = format!("content-type: application/toml\r\nif-match: {}\r\n", editor.tag(MAIN));
        as_deploy("PUT", &format!("{MAIN}{query}"), &fields, &config(name));
    };
    edit("", "two");
    edit("?dry_run=1", "three");
    edit("", "two");
    fs::write(editor.main(), config("saved")).unwrap();
    wait_until("the save is active", || editor.served() == "saved");
    let fields = format!("content-type: application/json\r\nif-match: {}\r\n", editor.tag("/-/config/history"));
    as_deploy("POST", "/-/rollback", &fields, "{\"generation\": 1}");
    assert_eq!(editor.put("[[route]\n").status(), 422);
    assert_eq!(editor.put(config("four")).status(), 200);
    let history = editor.get("/-/config/history");
    let history = history.json();
    let made = history["generations"].as_array().unwrap().iter();
    let made: Vec<(&str, Option<&str>)> =
        made.map(|entry| (entry["trigger"].as_str().unwrap(), entry["token"].as_str())).collect();
    let main = made[4].1;
    assert_eq!(made[..4], [("start", None), ("edit", Some("deploy")), ("file", None), ("rollback", Some("deploy"))]);
    assert!(made[4].0 == "edit" && main.is_some() && main != Some("deploy"), "{made:?}");
    let audit = editor.get("/-/audit").json();
    let lines = audit["entries"].as_array().unwrap().iter().rev();
    let lines: Vec<(Option<&str>, Option<&str>)> =
        lines.map(|line| (line["token"].as_str(), line["change"].as_str())).collect();
    let expected = [
        (Some("deploy"), Some("route added: two; route removed: one")),
        (Some("deploy"), Some("dry run: route added: three; route removed: two")),
        (Some("deploy"), Some("unchanged")),
        (Some("deploy"), Some("rollback to generation 1: route added: one; route removed: saved")),
        (main, None),
        (main, Some("route added: four; route removed: one")),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn large_texts_are_dropped_first() {
    let editor = Editor::start();
    for round in 2..=12 {
        let text = format!("{}# {}\n", version(&format!("r{round}")), "x".repeat(1_000_000));
        assert_eq!(editor.put(text).status(), 200);
    }
    let history = editor.get("/-/config/history").json();
    let kept = history["generations"].as_array().unwrap().iter().map(|entry| entry["restorable"] == true);
    assert_eq!(kept.collect::<Vec<bool>>(), [false, false, true, true, true, true, true, true, true, true]);
    let response = editor.roll_back(3);
    assert_eq!((response.status(), &response.json()["type"]), (404, &"urn:sluicegate:problem:texts-not-kept".into()));
}

#[test]
fn a_rollback_writes_the_files_back() {
    let editor = Editor::config_arguments(|dir| {
        fs::write(dir.join("sluicegate.toml"), version("one")).unwrap();
        fs::create_dir(dir.join("conf.d")).unwrap();
        fs::write(dir.join("conf.d/a.toml"), "[limit.a]\nrate = \"1/s\"\n").unwrap();
    });
    let path = "/-/config/files/conf.d%2Fa.toml";
    assert_eq!(editor.put_to(path, &editor.tag(path), "[limit.b]\nrate = \"1/s\"\n").status(), 200);
    assert_eq!(editor.put(version("three")).status(), 200);
    let loads = editor.loads();
    let response = editor.roll_back(1);
    assert_eq!(response.status(), 200, "{}", response.text());
    let body = response.json();
    assert_eq!((&body["generation"], &body["pinned"]), (&4.into(), &Value::Null));
    assert_eq!(body["files"], serde_json::json!(["sluicegate.toml", "conf.d/a.toml"]));
    let audit = editor.get("/-/audit").json();
    let change_of = |i: usize| audit["entries"][i]["change"].as_str().unwrap_or_default().to_owned();
    assert!(change_of(0).starts_with("rollback to generation 1: "), "{audit}");
    assert!(change_of(2).contains("limit"), "the edit of a limit: {audit}");
    assert_eq!((editor.text(), editor.served()), (version("one"), "one".to_owned()));
    assert_eq!(fs::read_to_string(editor.etc.join("conf.d/a.toml")).unwrap(), "[limit.a]\nrate = \"1/s\"\n");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(editor.loads() - loads, 1.0, "the watcher does not load what the rollback wrote");
    assert_eq!(editor.get("/-/config/history").json()["generations"][3]["trigger"], "rollback");
    // A file that was added since then would be included.
    fs::write(editor.etc.join("conf.d/new.toml"), "[limit.new]\nrate = \"1/s\"\n").unwrap();
    wait_until("the new file is active", || editor.get("/-/limits/new").status() == 200);
    let other = editor.roll_back(3);
    assert_eq!(other.status(), 409, "{}", other.text());
    assert!(other.text().contains("conf.d/new.toml") && editor.text() == version("one"));
    // A file that was removed since then is written again.
    fs::remove_file(editor.etc.join("conf.d/new.toml")).unwrap();
    wait_until("the new file was removed", || editor.get("/-/limits/new").status() == 404);
    fs::write(editor.main(), version("five").replace("conf.d/*.toml", "none/*.toml")).unwrap();
    wait_until("nothing is included", || editor.get("/-/limits/a").status() == 404);
    fs::remove_file(editor.etc.join("conf.d/a.toml")).unwrap();
    let missing = editor.roll_back(1);
    assert_eq!(missing.status(), 409, "{}", missing.text());
    assert!(missing.text().contains("conf.d/a.toml"), "{}", missing.text());
}

#[test]
fn a_rollback_needs_the_entity_tag_that_the_client_saw() {
    let editor = Editor::start();
    let old = editor.tag("/-/config/history");
    assert_eq!(editor.put(version("two")).status(), 200);
    let fetch = |fields: &str, body: &str| {
        editor.gateway.admin_request("POST", "/-/rollback", &format!("{TOKEN}{fields}"), body).status()
    };
    let json = "content-type: application/json\r\n";
    let now = format!("{json}if-match: {}\r\n", editor.tag("/-/config/history"));
    let body = "{\"generation\": 1}";
    assert_eq!(fetch("", body), 428);
    assert_eq!(fetch(&now.replace(json, "content-type: text/plain\r\n"), body), 415);
    assert_eq!(fetch(json, body), 428);
    assert_eq!(fetch(&format!("{json}if-match: {old}\r\n"), body), 412);
    for wrong in ["", "{}", "[1]", "{\"generation\": \"1\"}", "{\"generation\": -1}", "{\"generation\": 1, \"x\": 1}"] {
        assert_eq!(fetch(&now, wrong), 422, "{wrong}");
    }
    assert_eq!(fetch(&now, &format!("{{\"generation\": 1{}}}", " ".repeat(2000))), 413);
    assert_eq!(fetch(&now, "{\"generation\": 7}"), 404);
    assert_eq!(editor.roll_back(2).json()["result"], "unchanged");
    assert_eq!((editor.served(), editor.generation()), ("two".to_owned(), 2));
}

#[test]
fn without_edits_a_rollback_pins_until_the_next_changed_save() {
    let editor = Editor::with(&named("one", ""));
    editor.save("two", "");
    assert_eq!(editor.pinned(), (Value::Null, Some(0.0)));
    let response = editor.roll_back(1);
    assert_eq!((response.status(), &response.json()["pinned"]), (200, &1.into()), "{}", response.text());
    assert_eq!((editor.served(), editor.text()), ("one".to_owned(), named("two", "")));
    assert_eq!(editor.pinned(), (1.into(), Some(1.0)));
    assert!(editor.gateway.log_lines(&["WARN", "generation 1 is active in place of the files"]) == 1);
    // Reloads and saves without a change keep it.
    let reload = editor.gateway.admin_request("POST", "/-/reload", TOKEN, "").json();
    assert_eq!((&reload["result"], &reload["pinned"]), (&"unchanged".into(), &1.into()));
    let output = program().args(["reload", "-c"]).arg(editor.main()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && stdout.contains("a rollback keeps generation 1 active"), "{stdout}");
    editor.gateway.signal("HUP");
    fs::write(editor.main(), named("two", "")).unwrap();
    fs::write(editor.etc.join("beside"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!((editor.served(), editor.pinned()), ("one".to_owned(), (1.into(), Some(1.0))));
    // A broken save does not end it.
    fs::write(editor.main(), "[[route]]\n").unwrap();
    wait_until("the mistake is noticed", || editor.gateway.metric("config_last_reload_successful", &[]) == Some(0.0));
    assert_eq!((editor.served(), editor.pinned().0), ("one".to_owned(), 1.into()));
    fs::write(editor.main(), named("two", "")).unwrap();
    wait_until("the mistake is corrected", || editor.gateway.metric("config_last_reload_successful", &[]) == Some(1.0));
    assert_eq!((editor.served(), editor.pinned().0), ("one".to_owned(), 1.into()));
    editor.save("three", "");
    assert_eq!(editor.pinned(), (Value::Null, Some(0.0)));
    // A rollback to the generation of the files.
    assert_eq!(editor.roll_back(1).status(), 200);
    assert_eq!((editor.served(), editor.pinned().0), ("one".to_owned(), 1.into()));
    let generations = editor.get("/-/config/history").json()["generations"].clone();
    let three =
        generations.as_array().unwrap().iter().find(|entry| entry["trigger"] == "file" && entry["generation"] != 2);
    let three = three.unwrap()["generation"].as_u64().unwrap();
    assert_eq!(editor.roll_back(three).json()["pinned"], Value::Null);
    assert_eq!((editor.served(), editor.pinned()), ("three".to_owned(), (Value::Null, Some(0.0))));
}

#[test]
fn a_pin_has_the_includes_of_its_time() {
    let editor = Editor::with(&named("one", ""));
    fs::write(editor.etc.join("conf.d/a.toml"), "[limit.a]\nrate = \"1/s\"\n").unwrap();
    wait_until("the include is active", || editor.get("/-/limits/a").status() == 200);
    fs::remove_file(editor.etc.join("conf.d/a.toml")).unwrap();
    fs::write(editor.etc.join("conf.d/b.toml"), "[limit.b]\nrate = \"1/s\"\n").unwrap();
    wait_until("the other include is active", || editor.get("/-/limits/b").status() == 200);
    let with_a = editor.get("/-/config/history").json()["generations"][1]["generation"].as_u64().unwrap();
    assert_eq!(editor.roll_back(with_a).status(), 200);
    assert_eq!([editor.get("/-/limits/a").status(), editor.get("/-/limits/b").status()], [200, 404]);
    assert_eq!(editor.roll_back(1).status(), 200);
    assert_eq!([editor.get("/-/limits/a").status(), editor.get("/-/limits/b").status()], [404, 404]);
    fs::write(editor.etc.join("conf.d/c.toml"), "[limit.c]\nrate = \"1/s\"\n").unwrap();
    wait_until("a new include ends the pin", || editor.get("/-/limits/c").status() == 200);
    assert_eq!((editor.get("/-/limits/b").status(), editor.pinned().0), (200, Value::Null));
}

#[test]
fn an_edit_ends_a_pin() {
    let editor = Editor::with(&named("one", ""));
    editor.save("two", "edit = true");
    // Generation 1 has no `edit`, so later changes need the files.
    assert_eq!(editor.roll_back(1).json()["pinned"], Value::Null, "the files could be written");
    assert_eq!(editor.text(), named("one", ""));
    assert_eq!(editor.put(version("three")).status(), 403);
    assert_eq!(editor.roll_back(2).json()["pinned"], 2);
    assert_eq!((editor.served(), editor.text()), ("two".to_owned(), named("one", "")));
    assert_eq!(editor.put(version("three")).status(), 200);
    assert_eq!((editor.served(), editor.pinned()), ("three".to_owned(), (Value::Null, Some(0.0))));
    assert!(editor.tag(MAIN).starts_with("\"5-"));
}
