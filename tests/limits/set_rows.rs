//! Rows of the files of sets that cannot be read: skipped, reported and counted. What they may have meant stays where
//! being in the set restricts a client.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::client::get;
use crate::support::gateway::{Gateway, program};
use crate::support::wait_until;

const ROUTES: &str = "[[route]]\npath = \"/deny\"\nrespond = { body = \"in\" }\ndeny = [\"set:bad\"]\n\
    [[route]]\npath = \"/allow\"\nrespond = { body = \"in\" }\nallow = [\"set:bad\"]\nlimits = [\"all\"]\n\
    [[route]]\npath = \"/in\"\nrespond = { body = \"in\" }\nlimits = [\"listed\"]\n\
    [[route]]\npath = \"/out\"\nrespond = { body = \"in\" }\nlimits = [\"others\"]\n\
    [limit.all]\nrate = \"1/h\"\n[limit.listed]\nrate = \"1/h\"\nwhen = { client = \"set:bad\" }\n\
    [limit.others]\nrate = \"1/h\"\nwhen = { client = \"!set:bad\" }\n";

fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn rejected(gateway: &Gateway) -> Option<f64> {
    gateway.metric("set_file_rejected", &[("set", "bad")])
}

#[test]
fn a_row_that_became_wrong_opens_nothing_and_stops_no_reload() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.txt");
    put(&path, "127.0.0.0/8  # ours\n192.0.2.0/24\n");
    let gateway = Gateway::start(&format!("{ROUTES}[set.bad]\nfile = \"{}\"\n", path.display()));
    let statuses = |path: &str| [(); 2].map(|()| gateway.fetch(&get(path, "")).status());
    assert_eq!(rejected(&gateway), Some(0.0));
    assert_eq!(
        [statuses("/deny"), statuses("/allow"), statuses("/in"), statuses("/out")],
        [[403, 403], [200, 200], [200, 429], [200, 200]]
    );

    put(&path, "127.0.0.0/99\n198.51.100.0/24\n");
    wait_until("the row is counted", || rejected(&gateway) == Some(1.0));
    assert_eq!(statuses("/deny"), [403, 403], "the network that the row replaced stays denied");
    assert_eq!(statuses("/in"), [429, 429], "and limited");
    assert_eq!(statuses("/allow"), [200, 429], "but not exempt");
    assert_eq!(statuses("/out"), [200, 429]);
    let status = gateway.admin("/-/status").json();
    assert_eq!(status["rejected_set_rows"], json!({ "bad": 1 }));
    assert!(status["problems"].to_string().contains("1 row of sets has an error and is skipped (bad)"), "{status}");
    let log = gateway.log();
    assert!(log.contains("rows skipped, the others are active: line 1: ") && log.contains("kept=2"), "{log}");

    // A row that is removed while the mistake is known is no longer denied; those of before stay.
    put(&path, "127.0.0.0/99\n");
    wait_until("the file without a network is no config", || {
        gateway.admin("/-/status").json()["last_reload"]["result"] == "failure"
    });
    put(&path, "127.0.0.0/99\n203.0.113.0/24\n");
    wait_until("the next file applies", || gateway.admin("/-/status").json()["last_reload"]["result"] == "success");
    assert_eq!(statuses("/deny"), [403, 403]);

    put(&path, "203.0.113.0/24\n");
    wait_until("no row is wrong", || rejected(&gateway) == Some(0.0));
    assert_eq!(statuses("/deny"), [200, 200]);
    gateway.reload_with("[set.bad]", "[set.bad]\n# moved\n");
    assert_eq!(statuses("/deny"), [200, 200]);
}

/// Equal lists share memory, also those of different sets.
#[test]
fn sets_with_the_same_rows_left_keep_their_own_networks() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    put(&one, "192.0.2.0/24\n198.51.100.0/24\n");
    put(&two, "127.0.0.0/8\n198.51.100.0/24\n");
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/one\"\nrespond = {{ body = \"in\" }}\ndeny = [\"set:one\"]\n\
         [[route]]\npath = \"/two\"\nrespond = {{ body = \"in\" }}\ndeny = [\"set:two\"]\n\
         [set.one]\nfile = \"{}\"\n[set.two]\nfile = \"{}\"\n",
        one.display(),
        two.display()
    ));
    for (path, rows, name) in
        [(&one, "192.0.2.0/99\n198.51.100.0/24\n", "one"), (&two, "127.0.0.0/99\n198.51.100.0/24\n", "two")]
    {
        put(path, rows);
        wait_until("the row is counted", || gateway.metric("set_file_rejected", &[("set", name)]) == Some(1.0));
        let statuses = ["/one", "/two"].map(|path| gateway.fetch(&get(path, "")).status());
        assert_eq!(statuses, [200, 403], "{name} has a wrong row");
    }
}

#[test]
fn check_names_wrong_rows_of_sets() {
    let dir = tempfile::tempdir().unwrap();
    let check = |rows: &str, use_of_set: &str, arguments: &[&str]| {
        fs::write(dir.path().join("rows"), rows).unwrap();
        let file = dir.path().join("c.toml");
        let limit = format!("[limit.l]\nrate = \"1/s\"\nwhen = {{ {use_of_set} }}\n[set.s]\nfile = \"rows\"\n");
        fs::write(&file, format!("[[route]]\nname = \"a\"\nrespond = {{}}\nlimits = [\"l\"]\n{limit}")).unwrap();
        let output = program().args(["check", "-c"]).arg(&file).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    for (rows, use_of_set, part) in [
        ("10.0.0.0/8\nx\n\n10.0.0.0/33 # typo\n", "client = \"set:s\"", "line 2: "),
        ("10.0.0.0/8\nx\n\n10.0.0.0/33 # typo\n", "client = \"set:s\"", "line 4: "),
        ("GET\nG T\n", "method = \"set:s\"", "line 2: "),
        ("a.test\na b\n", "host = \"set:s\"", "line 2: "),
        ("a\nb\n", "route = \"set:s\"", "line 2: no route has such a name"),
    ] {
        let (code, text) = check(rows, use_of_set, &[]);
        assert!(code == 0 && text.contains("SG0217") && text.contains(part), "{use_of_set}: {code} {text}");
        assert_ne!(check(rows, use_of_set, &["--deny-warnings"]).0, 0);
    }
    // A mark at the start of the file and line ends of Windows are no errors.
    let (code, text) = check("\u{feff}10.0.0.0/8\r\n192.0.2.1\r\n", "client = \"set:s\"", &["--deny-warnings"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = check("10.0.0.0/8\n\0\0\0\n", "client = \"set:s\"", &[]);
    assert!(code == 2 && text.contains("zero bytes"), "{code} {text}");
    // A file in which nothing is right is another file.
    let (code, text) = check("x\ny\n", "client = \"set:s\"", &[]);
    assert!(code == 2 && text.contains("rows:1:1"), "{code} {text}");
    let (code, text) = check("b\nc\n", "route = \"set:s\"", &[]);
    assert!(code == 2 && text.contains("is the name of a route"), "{code} {text}");
}
