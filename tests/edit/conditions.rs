//! Permissions to read and edit config files, and the required parts of a request: names, tags, types and sizes.

use super::{Editor, MAIN, TOKEN, named, start_body, version};
use crate::support::client::Client;

const FIELDS: &str = "authorization: Bearer s3cret-of-the-operator\r\ncontent-type: application/toml\r\n";

#[test]
fn files_are_listed_and_read_as_they_are() {
    let main = version("one").replace("\"s3cret-of-the-operator\"", "\"${NO_TOKEN:-s3cret-of-the-operator}\"");
    let editor = Editor::config_arguments(|dir| {
        std::fs::write(dir.join("sluicegate.toml"), &main).unwrap();
        std::fs::create_dir(dir.join("conf.d")).unwrap();
        std::fs::write(dir.join("conf.d/a.toml"), "[limit.a]\nrate = \"1/s\"\n").unwrap();
    });
    let files = editor.get("/-/config/files").json();
    assert_eq!(files["editable"], true);
    let names: Vec<&str> = files["files"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sluicegate.toml", "conf.d/a.toml"]);
    assert_eq!((&files["files"][1]["size"], &files["files"][1]["writable"]), (&23.into(), &true.into()));
    let file = editor.get(MAIN);
    assert_eq!((file.text().as_str(), file.get("content-type")), (main.as_str(), Some("application/toml")));
    assert_eq!(file.get("etag"), files["files"][0]["etag"].as_str());
    assert_eq!(editor.get("/-/config/files/conf.d%2Fa.toml").text(), "[limit.a]\nrate = \"1/s\"\n");
}

#[test]
fn only_known_names_lead_to_files() {
    let editor = Editor::start();
    std::fs::write(editor.etc.join("other.toml"), "x").unwrap();
    for name in [
        "other.toml",
        "..%2Fetc%2Fsluicegate.toml",
        "..%2Fstderr.log",
        "%2Fetc%2Fpasswd",
        ".%2Fsluicegate.toml",
        "conf.d%2F..%2Fsluicegate.toml",
        "sluicegate.toml%00",
        "%2e%2e%2fsluicegate.toml",
        "",
        "SLUICEGATE.TOML",
    ] {
        let path = format!("/-/config/files/{name}");
        assert_eq!(editor.get(&path).status(), 404, "{name}");
        let put = editor.put_to(&path, "\"1-0123456789abcdef\"", version("two"));
        assert_eq!(put.status(), 404, "{name}: {}", put.text());
    }
    assert_eq!(editor.get("/-/config/files/%ff").status(), 400);
    assert_eq!(editor.get("/-/config/files/../../etc/passwd").status(), 404);
    assert_eq!((editor.generation(), editor.text()), (1, version("one")));
}

#[test]
fn without_permission_nothing_is_read_or_written() {
    let editor = Editor::start();
    for path in ["/-/config/files", MAIN, "/-/config/history", "/-/routes"] {
        assert_eq!(editor.gateway.admin(path).status(), 401, "{path}");
    }
    let tag = format!("content-type: application/toml\r\nif-match: {}\r\n", editor.tag(MAIN));
    assert_eq!(editor.gateway.admin_request("PUT", MAIN, &tag, version("two")).status(), 401);
    assert_eq!(editor.gateway.admin_request("POST", "/-/rollback", "", "{}").status(), 401);
    // A page of another site, in the browser of the operator.
    for site in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let response = editor.gateway.admin_request("PUT", MAIN, &format!("{TOKEN}{tag}{site}"), version("two"));
        assert_eq!(response.status(), 403, "{site}");
    }
    let fixed = Editor::with(&named("one", ""));
    let response = fixed.put(version("two"));
    assert_eq!((response.status(), response.text().contains("set `edit = true` in [admin]")), (403, true));
    assert_eq!(fixed.get("/-/config/files").json()["editable"], false);
    assert_eq!((editor.text(), fixed.text()), (version("one"), named("one", "")));
}

#[test]
fn an_edit_needs_an_entity_tag_and_a_content_type() {
    let editor = Editor::start();
    let tag = editor.tag(MAIN);
    let put = |fields: &str| editor.gateway.admin_request("PUT", MAIN, &format!("{TOKEN}{fields}"), version("two"));
    for (fields, status) in [
        (String::new(), 428),
        (format!("if-match: {tag}\r\ncontent-type: application/json\r\n"), 415),
        (format!("content-type: text/plain\r\nif-match: {tag}\r\n"), 415),
        (format!("content-type: application/x-www-form-urlencoded\r\nif-match: {tag}\r\n"), 415),
        ("content-type: application/toml\r\n".to_owned(), 428),
        ("content-type: application/toml\r\nif-match: *\r\n".to_owned(), 428),
        (format!("content-type: application/toml\r\nif-match: W/{tag}\r\n"), 428),
        ("content-type: application/toml\r\nif-match: \"1-0000000000000000\"\r\n".to_owned(), 412),
        (format!("content-type: application/toml\r\nif-match: {}\r\n", tag.replace("\"1-", "\"2-")), 412),
    ] {
        let response = put(&fields);
        assert_eq!(
            (response.status(), response.get("content-type")),
            (status, Some("application/problem+json")),
            "{fields}"
        );
        assert!(response.json()["type"].as_str().unwrap().starts_with("urn:sluicegate:problem:"), "{fields}");
    }
    assert_eq!(editor.text(), version("one"));
    let fields = format!("content-type: application/TOML; charset=utf-8\r\nif-match: \"9-1\", {tag}\r\n");
    assert_eq!(put(&fields).status(), 200);
    assert_eq!(editor.served(), "two");
}

#[test]
fn bodies_are_bounded_texts() {
    let editor = Editor::start();
    let long = |length: usize| {
        let text = version("two");
        format!("{text}#{}", "x".repeat(length - text.len() - 1))
    };
    let above = editor.put(long(1024 * 1024 + 1));
    assert_eq!(above.status(), 413);
    let latin = editor.put(b"# caf\xe9\n".as_slice());
    assert_eq!((latin.status(), latin.text().contains("not UTF-8 at byte 5")), (422, true), "{}", latin.text());
    let tag = editor.tag(MAIN);
    let mut slow = start_body(&editor, &format!("{FIELDS}if-match: {tag}\r\n"), 1000);
    slow.send("# half");
    assert_eq!(slow.read_response("PUT").status(), 408);
    let mut leaving = start_body(&editor, &format!("{FIELDS}if-match: {tag}\r\n"), 1000);
    leaving.send(&version("two")[..100]);
    drop(leaving);
    assert_eq!((editor.served(), editor.text()), ("one".to_owned(), version("one")));
    assert_eq!(editor.put(long(1024 * 1024)).status(), 200, "exactly 1 MiB");
    assert_eq!(editor.served(), "two");
}

#[test]
fn a_client_that_leaves_does_not_break_an_edit_off() {
    let editor = Editor::start();
    let fields = format!("{FIELDS}if-match: {}\r\n", editor.tag(MAIN));
    let mut client = Client::connect(editor.gateway.admin);
    let text = version("two");
    client.send(format!("{}{text}", crate::support::client::call("PUT", MAIN, &fields, text.len())));
    // The gateway may notice that a client left before it begins the edit, and then does not begin.
    crate::support::wait_until("the edit has begun", || editor.text() == text);
    drop(client);
    crate::support::wait_until("the edit is active", || editor.served() == "two");
}
