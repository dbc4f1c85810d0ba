//! Two editors at once, a kill in the middle, and disks that are full or read-only.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{Editor, MAIN, TOKEN, version};
use crate::support::client::{Client, call};
use crate::support::gateway::{Gateway, program};
use crate::support::wait_until;

#[test]
fn of_two_editors_one_wins() {
    let editor = Editor::start();
    for round in 0..15 {
        let tag = editor.tag(MAIN);
        let statuses: Vec<u16> = thread::scope(|scope| {
            let racers: Vec<_> = ["a", "b", "c"]
                .into_iter()
                .map(|name| {
                    let (editor, tag) = (&editor, &tag);
                    scope.spawn(move || editor.put_to(MAIN, tag, version(&format!("{name}{round}"))).status())
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let mut sorted = statuses.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [200, 412, 412], "round {round}");
        let winner = statuses.iter().position(|status| *status == 200).unwrap();
        let name = format!("{}{round}", ["a", "b", "c"][winner]);
        assert_eq!((editor.served(), editor.text()), (name.clone(), version(&name)));
    }
    assert_eq!(editor.generation(), 16);
}

#[test]
fn a_kill_in_the_middle_leaves_a_whole_file() {
    let (one, two) = (version("one"), format!("{}# {}\n", version("two"), "x".repeat(900_000)));
    let (mut old, mut new) = (0, 0);
    for round in 0..30_u64 {
        let mut editor = Editor::start();
        let fields = format!("{TOKEN}content-type: application/toml\r\nif-match: {}\r\n", editor.tag(MAIN));
        let mut client = Client::connect(editor.gateway.admin);
        client.send(format!("{}{two}", call("PUT", MAIN, &fields, two.len())));
        thread::sleep(Duration::from_micros(round * 700));
        editor.gateway.signal("KILL");
        editor.gateway.exit();
        let text = editor.text();
        assert!(text == one || text == two, "round {round}: {} bytes", text.len());
        old += u32::from(text == one);
        new += u32::from(text == two);
        let others = editor.names().into_iter().filter(|name| name != "sluicegate.toml");
        assert!(others.clone().all(|name| name.starts_with(".sluicegate-edit-")), "{:?}", others.collect::<Vec<_>>());
    }
    eprintln!("old {old}, new {new}");
    assert!(old > 0, "no kill came before the rename");
}

/// The texts of an edit or a rollback are complete. Other files of the config may not be.
#[test]
fn changes_read_no_file_that_is_still_being_written() {
    let config = |name: &str| format!("{}deny = [\"set:bad\"]\n[set.bad]\nfile = \"bad.txt\"\n", version(name));
    let editor = Editor::config_arguments(|dir| {
        fs::write(dir.join("sluicegate.toml"), config("one")).unwrap();
        fs::write(dir.join("bad.txt"), "192.0.2.0/24\n127.0.0.0/8\n").unwrap();
        fs::create_dir(dir.join("conf.d")).unwrap();
    });
    assert_eq!(editor.put(config("two")).status(), 200);
    let mut list = fs::File::create(editor.etc.join("bad.txt")).unwrap();
    list.write_all(b"192.0.2.0/24\n").unwrap();
    for response in [editor.put(config("three")), editor.roll_back(1)] {
        let text = response.text();
        assert!(response.status() == 422 && text.contains("bad.txt is being written"), "{text}");
        assert_eq!((editor.gateway.get("/").status(), editor.text()), (403, config("two")));
    }
    list.write_all(b"198.51.100.0/24\n").unwrap();
    drop(list);
    wait_until("the list is active", || editor.gateway.get("/").status() == 200);
    assert_eq!((editor.put(config("four")).status(), editor.served()), (200, "four".to_owned()));
}

/// Starts the gateway with a file system of its own at `etc`, prepared by `script`; the shell's `$1` is `etc`.
fn start_on_disk(script: &str) -> Editor {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(dir.path().join("sluicegate.toml"), version("one")).unwrap();
    let mut command = Command::new("unshare");
    let script = format!("{script}; exec \"$0\" run -c \"$1/sluicegate.toml\"");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    command.arg(program().get_program()).arg(&etc).current_dir(dir.path()).stdin(Stdio::null());
    Editor { gateway: Gateway::spawn(command, dir), etc }
}

impl Editor {
    /// Reads a file through the gateway's own mounts.
    fn inside(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/root{}/{name}", self.gateway.pid(), self.etc.display())).unwrap()
    }
}

#[test]
fn a_full_disk_refuses_an_edit_and_keeps_the_file() {
    let editor = start_on_disk(
        "mount -t tmpfs -o size=64k none $1 && cp sluicegate.toml $1 && mkdir $1/conf.d && \
         cat /dev/zero > $1/filler 2>/dev/null; true",
    );
    let response = editor.put(format!("{}# {}\n", version("two"), "x".repeat(20_000)));
    assert_eq!(response.status(), 507, "{}", response.text());
    assert!(response.text().contains("free some space"), "{}", response.text());
    assert_eq!((editor.inside("sluicegate.toml"), editor.served()), (version("one"), "one".to_owned()));
    let filler = format!("/proc/{}/root{}/filler", editor.gateway.pid(), editor.etc.display());
    fs::write(filler, "").unwrap();
    assert_eq!(editor.put(version("three")).status(), 200);
    assert_eq!((editor.inside("sluicegate.toml"), editor.served()), (version("three"), "three".to_owned()));
}

#[test]
fn a_read_only_directory_refuses_edits_and_names_the_remedy() {
    let editor =
        start_on_disk("mount -t tmpfs none $1 && cp sluicegate.toml $1 && mkdir $1/conf.d && mount -o remount,ro $1");
    assert_eq!(editor.get("/-/config/files").json()["files"][0]["writable"], false);
    let response = editor.put(version("two"));
    assert_eq!(response.status(), 409, "{}", response.text());
    assert!(response.text().contains("ConfigMap"), "{}", response.text());
    assert_eq!((editor.inside("sluicegate.toml"), editor.served()), (version("one"), "one".to_owned()));
    // The ConfigMap changes, and the operator tries a rollback.
    let mount = |script: &str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &editor.gateway.pid().to_string(), "--user", "--mount", "sh", "-c", script]);
        assert!(command.arg(&editor.etc).status().unwrap().success(), "{script}");
    };
    fs::write(editor.gateway.dir.path().join("sluicegate.toml"), version("two")).unwrap();
    let dir = editor.gateway.dir.path().display();
    mount(&format!("mount -o remount,rw $0 && cp {dir}/sluicegate.toml $0 && mount -o remount,ro $0"));
    wait_until("the new config is active", || editor.served() == "two");
    let back = editor.roll_back(1);
    assert_eq!((back.status(), &back.json()["pinned"]), (200, &1.into()), "{}", back.text());
    assert_eq!((editor.inside("sluicegate.toml"), editor.served()), (version("two"), "one".to_owned()));
}

#[test]
fn a_single_file_that_is_mounted_names_the_remedy() {
    let editor = start_on_disk(
        "cp sluicegate.toml source.toml && touch $1/sluicegate.toml && mkdir $1/conf.d && \
         mount --bind source.toml $1/sluicegate.toml",
    );
    let response = editor.put(version("two"));
    assert_eq!(response.status(), 409, "{}", response.text());
    assert!(response.text().contains("mount its directory instead"), "{}", response.text());
    assert_eq!(editor.inside("sluicegate.toml"), version("one"));
    assert_eq!(editor.names(), ["sluicegate.toml"], "no temporary file is left");
    wait_until("the gateway still serves", || editor.served() == "one");
}
