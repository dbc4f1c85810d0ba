//! Edits that succeed, that are refused, and that cannot be applied.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use super::{Editor, MAIN, TOKEN, version};
use crate::support::client::{Client, call};
use crate::support::wait_until;

#[test]
fn an_edit_is_in_force_when_its_response_arrives() {
    let editor = Editor::start();
    fs::set_permissions(editor.main(), fs::Permissions::from_mode(0o640)).unwrap();
    let keeps = fs::metadata(editor.main()).unwrap();
    for round in 2..12 {
        let text = version(&format!("r{round}"));
        let response = editor.put(&text);
        assert_eq!(response.status(), 200, "{}", response.text());
        // Several connections, so that every worker is asked.
        assert!((0..6).all(|_| editor.served() == format!("r{round}")), "round {round}");
        let body = response.json();
        assert_eq!((&body["generation"], &body["result"]), (&round.into(), &"success".into()));
        assert_eq!(body["diff"]["routes"]["added"][0], format!("r{round}"));
        assert!(body["applied_ms"].is_u64() && body["files"][0] == "sluicegate.toml");
        assert_eq!(response.get("etag"), Some(editor.tag(MAIN).as_str()));
        assert_eq!(editor.text(), text);
    }
    let now = fs::metadata(editor.main()).unwrap();
    assert_eq!((now.mode(), now.uid(), now.gid()), (keeps.mode(), keeps.uid(), keeps.gid()));
    assert_eq!(editor.names(), ["sluicegate.toml"], "no temporary file is left");
    // The watcher has noticed every one of them.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(editor.loads(), 10.0, "no file was loaded twice");
    assert_eq!(editor.get("/-/status").json()["last_reload"]["trigger"], "edit");
    // The watcher still notices changes by other programs.
    fs::write(editor.main(), version("saved")).unwrap();
    wait_until("a save is active", || editor.served() == "saved");
    fs::write(editor.main(), version("r11")).unwrap();
    wait_until("the text of the last edit is active again", || editor.served() == "r11");
}

#[test]
fn mistakes_are_shown_and_change_nothing() {
    let editor = Editor::start();
    let wrong = editor.put(version("two").replace("path = \"/\"", "path = \"/\"\nlimits = [\"nobody\"]"));
    assert_eq!(wrong.status(), 422);
    let diagnostics = wrong.json()["diagnostics"].clone();
    assert_eq!((&diagnostics[0]["line"], &diagnostics[0]["column"]), (&15.into(), &11.into()), "{diagnostics}");
    assert!(diagnostics[0]["message"].as_str().unwrap().contains("nobody"));
    assert!(diagnostics[0]["file"].as_str().unwrap().ends_with("etc/sluicegate.toml"));
    assert_eq!(editor.put("[[route]\n").status(), 422);
    assert_eq!(editor.put("").status(), 422);
    // The text of a page that masks secrets.
    for (from, to) in
        [("s3cret-of-the-operator", "***"), ("[server]", "[store]\nurl = \"redis://u:***@h\"\n\n[server]")]
    {
        let masked = editor.put(version("two").replace(from, to));
        assert!(masked.status() == 422 && masked.text().contains("masked"), "{}", masked.text());
    }
    assert_eq!((editor.text(), editor.loads(), editor.generation()), (version("one"), 0.0, 1));
    let starred = version("two").replace("body = \"two\"", "body = \"*** two ***\"");
    assert_eq!(editor.put(format!("# ***\n{starred}")).status(), 200, "asterisks alone are not a mask");
}

#[test]
fn a_dry_run_and_an_equal_text_write_nothing() {
    let editor = Editor::start();
    let inode = fs::metadata(editor.main()).unwrap().ino();
    let tag = editor.tag(MAIN);
    let dry = editor.put_to(&format!("{MAIN}?dry_run=1"), &tag, version("two"));
    assert_eq!(dry.status(), 200, "{}", dry.text());
    assert_eq!((&dry.json()["dry_run"], &dry.json()["diff"]["routes"]["removed"][0]), (&true.into(), &"one".into()));
    assert_eq!((&dry.json()["generation"], dry.get("etag")), (&1.into(), Some(tag.as_str())));
    assert_eq!(editor.put_to(&format!("{MAIN}?dry_run=1"), &tag, "[[route]]\n").status(), 422);
    assert_eq!(editor.put_to(&format!("{MAIN}?other=1"), &tag, version("two")).status(), 400);
    let same = editor.put(version("one"));
    assert_eq!((same.status(), &same.json()["result"]), (200, &"unchanged".into()));
    assert_eq!(fs::metadata(editor.main()).unwrap().ino(), inode);
    assert_eq!((editor.served(), editor.generation(), editor.loads()), ("one".to_owned(), 1, 0.0));
}

#[test]
fn a_stale_edit_gets_the_difference() {
    let editor = Editor::start();
    let old = editor.tag(MAIN);
    assert_eq!(editor.put(version("two")).status(), 200);
    let stale = editor.put_to(MAIN, &old, version("three"));
    assert_eq!(stale.status(), 412, "{}", stale.text());
    let body = stale.json();
    assert_eq!(body["type"], "urn:sluicegate:problem:stale-generation");
    assert_eq!(body["etag"], editor.tag(MAIN));
    let diff = body["text_diff"].as_str().unwrap();
    assert!(diff.contains("-name = \"one\"\n") && diff.contains("+name = \"two\"\n"), "{diff}");
    // An editor on the machine saves, and the gateway may not have loaded it yet.
    let seen = editor.tag(MAIN);
    fs::write(editor.main(), version("vim")).unwrap();
    assert_eq!(editor.put_to(MAIN, &seen, version("four")).status(), 412);
    wait_until("the save is active", || editor.served() == "vim");
    // The file is gone.
    let seen = editor.tag(MAIN);
    fs::remove_file(editor.main()).unwrap();
    let stale = editor.put_to(MAIN, &seen, version("five"));
    assert_eq!((stale.status(), &stale.json()["type"]), (409, &"urn:sluicegate:problem:unreadable-file".into()));
    assert!(!editor.main().exists() && editor.served() == "vim");
    assert_eq!(editor.get("/-/config/files").json()["files"][0]["etag"], serde_json::Value::Null);
}

#[test]
fn includes_come_and_go_with_an_edit() {
    let editor = Editor::start();
    fs::create_dir(editor.etc.join("more")).unwrap();
    fs::write(editor.etc.join("more/b.toml"), "[limit.b]\nrate = \"1/s\"\n").unwrap();
    let include = "include = [\"conf.d/*.toml\", \"more/*.toml\"]";
    let with =
        version("one").replace("include = \"conf.d/*.toml\"", include).replace("path = ", "limits = [\"b\"]\npath = ");
    let response = editor.put(&with);
    assert_eq!(response.status(), 200, "{}", response.text());
    assert_eq!(editor.get("/-/config/files").json()["files"][1]["name"], "more/b.toml");
    let path = "/-/config/files/more%2Fb.toml";
    let invalid = editor.put_to(path, &editor.tag(path), "[limit.c]\nrate = \"1/s\"\n");
    assert_eq!((invalid.status(), invalid.text().contains("`b`")), (422, true), "the whole config is checked");
    let valid = editor.put_to(path, &editor.tag(path), "[limit.b]\nrate = \"2/s\"\n");
    assert_eq!((valid.status(), &valid.json()["diff"]["limits"]["changed"][0]), (200, &"b".into()));
    assert_eq!(editor.put(version("two")).status(), 200);
    assert_eq!(editor.get(path).status(), 404);
    fs::write(editor.etc.join("conf.d/c.toml"), "[limit.c]\nrate = \"1/s\"\n").unwrap();
    wait_until("a new file is noticed", || editor.get("/-/limits/c").status() == 200);
}

#[test]
fn links_stay_and_their_targets_change() {
    let editor = Editor::config_arguments(|dir| {
        fs::create_dir(dir.join("real")).unwrap();
        fs::write(dir.join("real/config"), version("one")).unwrap();
        symlink("real/config", dir.join("sluicegate.toml")).unwrap();
        fs::create_dir(dir.join("conf.d")).unwrap();
    });
    assert_eq!(editor.put(version("two")).status(), 200);
    assert!(fs::symlink_metadata(editor.main()).unwrap().file_type().is_symlink());
    assert_eq!(fs::read_to_string(editor.etc.join("real/config")).unwrap(), version("two"));
    assert_eq!(editor.served(), "two");
}

#[test]
fn an_edit_of_the_admin_listener_itself_gets_its_response() {
    let mut editor = Editor::start();
    let port = crate::support::ports::ReservedPort::new();
    let moved = version("two").replacen(
        "[admin]\nlisten = \"127.0.0.1:0\"",
        &format!("[admin]\nlisten = \"{}\"", port.addr()),
        1,
    );
    let moved = moved.replace("s3cret-of-the-operator", "another-token-of-them");
    let response = editor.put(&moved);
    assert_eq!(
        (response.status(), &response.json()["diff"]["settings"]["changed"]),
        (200, &serde_json::json!(["admin"]))
    );
    editor.gateway.admin = port.addr();
    assert_eq!(editor.get("/-/status").status(), 401, "the old token is invalid");
    let new = editor.gateway.admin_request("GET", "/-/status", "authorization: Bearer another-token-of-them\r\n", "");
    assert_eq!((new.status(), &new.json()["generation"]), (200, &2.into()));
}

#[test]
fn an_edit_that_cannot_be_applied_is_undone() {
    let editor = Editor::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("listen = [\"{}\"]", taken.local_addr().unwrap());
    let response = editor.put(version("two").replace("listen = [\"127.0.0.1:0\"]", &listen));
    assert_eq!(response.status(), 422, "{}", response.text());
    let body = response.json();
    assert_eq!((&body["type"], &body["restored"]), (&"urn:sluicegate:problem:not-applied".into(), &true.into()));
    assert!(body["diagnostics"][0]["message"].as_str().unwrap().contains("in use"), "{body}");
    assert_eq!((editor.text(), editor.served()), (version("one"), "one".to_owned()));
    wait_until("the config is valid again", || {
        editor.gateway.metric("config_last_reload_successful", &[]) == Some(1.0)
    });
    assert_eq!(editor.put(version("three")).status(), 200);
    assert_eq!(editor.served(), "three");
}

#[test]
fn reloads_at_the_same_time_change_nothing_about_an_edit() {
    let editor = Editor::start();
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            for i in 0..60 {
                let head = call("POST", if i % 2 == 0 { "/-/reload" } else { "/-/reload?dry_run=1" }, TOKEN, 0);
                assert_eq!(Client::connect(editor.gateway.admin).fetch(&head, "").status(), 200);
            }
        });
        for round in 0..8 {
            editor.gateway.signal("HUP");
            let response = editor.put(version(&format!("r{round}")));
            assert_eq!(response.status(), 200, "{}", response.text());
            assert_eq!(editor.served(), format!("r{round}"));
        }
        storm.join().unwrap();
    });
    assert_eq!((editor.generation(), editor.text()), (9, version("r7")));
}
