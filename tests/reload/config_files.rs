//! Live reload: every way to save a config file, what survives, what is rejected, and what an operator sees of it.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::program::{Program, Save, limited, moved, version};
use crate::support::client::{fetch, get};
use crate::support::ports::ReservedPort;
use crate::support::wait_until;

#[test]
fn every_way_to_save_is_noticed() {
    let gateway = Program::start();
    let path = gateway.config.clone();
    let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    let in_place = |text: &str| fs::write(&path, text).unwrap();
    let rename = |text: &str| {
        fs::write(beside(".tmp"), text).unwrap();
        fs::rename(beside(".tmp"), &path).unwrap();
    };
    let vim = |text: &str| {
        fs::rename(&path, beside("~")).unwrap();
        fs::write(&path, text).unwrap();
        fs::remove_file(beside("~")).unwrap();
    };
    let recreate = |text: &str| {
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
    };
    let pieces = |text: &str| {
        let mut file = fs::File::create(&path).unwrap();
        for piece in text.as_bytes().chunks(40) {
            file.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let ways: [(&str, Save); 5] = [
        ("a write in place", &in_place),
        ("a rename", &rename),
        ("a backup and a write", &vim),
        ("a removal and a new file", &recreate),
        ("a write in pieces", &pieces),
    ];
    let mut number = 1;
    for round in 1..=2 {
        for (how, save) in ways {
            number += 1;
            save(&version(number));
            gateway.until_in_force(number, &format!("{how}, round {round}"));
            assert!(!gateway.in_force(number - 1), "series of the old config remain after {how}");
        }
    }
    assert_eq!(gateway.reloads("failure", "file"), 0.0, "{}", gateway.log());
}

/// A file of each kind is written in two pieces with a long pause: its first half would be valid.
#[test]
fn a_file_that_is_still_being_written_is_not_loaded() {
    let files = [
        ("sluicegate.toml", "", ""),
        ("conf.d/more.toml", "[limit.more]\nrate = \"1/s\"\n", "[limit.further]\nrate = \"1/s\"\n"),
        ("blocked.txt", "192.0.2.1\n", "192.0.2.2\n"),
        ("users.htpasswd", "anna:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n", "# end\n"),
        ("502.html", "<html>", "</html>"),
    ];
    let gateway = Program::start_with(|dir| {
        fs::create_dir(dir.join("conf.d")).unwrap();
        for (name, first, rest) in &files[1..] {
            fs::write(dir.join(name), format!("{first}{rest}")).unwrap();
        }
        let text = format!(
            "include = [\"conf.d/*.toml\"]\n{}deny = [\"set:blocked\"]\nauth = {{ basic = \"users.htpasswd\" }}\n\
             error_pages = {{ 502 = \"502.html\" }}\nallow_unused = true\n",
            version(1)
        );
        let text = text.replace("allow_unused = true\n", "") + "[set.blocked]\nfile = \"blocked.txt\"\n";
        fs::write(dir.join("sluicegate.toml"), text).unwrap();
        dir.join("sluicegate.toml")
    });
    let dir = gateway.config.parent().unwrap().to_owned();
    let settle = || std::thread::sleep(Duration::from_millis(700));
    settle();
    let in_pieces = |path: PathBuf, first: &str, rest: &str| {
        let before = gateway.generation();
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(first.as_bytes()).unwrap();
        settle();
        assert_eq!(gateway.generation(), before, "half of {} is active", path.display());
        file.write_all(rest.as_bytes()).unwrap();
        drop(file);
        before
    };
    for (name, first, rest) in &files[1..] {
        let before = in_pieces(dir.join(name), first, &format!("{rest}\n"));
        wait_until(&format!("{name} is loaded"), || gateway.generation() == before + 1);
    }
    let before = in_pieces(dir.join("conf.d/new.toml"), "[limit.a]\nrate = \"1/s\"\n", "[limit.b]\nrate = \"1/s\"\n");
    wait_until("a new file is loaded", || gateway.generation() == before + 1);
    let text = fs::read_to_string(&gateway.config).unwrap();
    let cut = text.find("deny").unwrap();
    let before = in_pieces(gateway.config.clone(), &text[..cut], &format!("{}# edited\n", &text[cut..]));
    wait_until("the config is loaded", || gateway.generation() == before + 1);
    // Another reload comes while the file is half written.
    let path = dir.join("blocked.txt");
    std::thread::scope(|scope| {
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"192.0.2.7\n").unwrap();
        let before = gateway.generation();
        let reload = scope.spawn(|| gateway.reload(""));
        settle();
        assert_eq!(gateway.generation(), before);
        file.write_all(b"192.0.2.8\n").unwrap();
        drop(file);
        assert_eq!(reload.join().unwrap().status(), 200);
        wait_until("the set is loaded", || gateway.generation() == before + 1);
    });
}

/// A shell script empties a file, and appends to it in steps. It closes the file each time.
#[test]
fn a_file_that_was_emptied_is_loaded_once_it_has_its_contents() {
    let gateway = Program::start_with(|dir| {
        fs::write(dir.join("blocked.txt"), "192.0.2.1\n").unwrap();
        fs::write(dir.join("more.toml"), "[limit.more]\nrate = \"1/s\"\n").unwrap();
        let text = format!("include = [\"more.toml\"]\n{}deny = [\"set:blocked\"]\n", version(1));
        let text = text + "[set.blocked]\nfile = \"blocked.txt\"\n";
        fs::write(dir.join("sluicegate.toml"), text).unwrap();
        dir.join("sluicegate.toml")
    });
    let settle = || std::thread::sleep(Duration::from_millis(700));
    settle();
    let dir = gateway.config.parent().unwrap().to_owned();
    for (name, lines) in [
        ("blocked.txt", ["192.0.2.2\n", "192.0.2.3\n"]),
        ("more.toml", ["[limit.further]\nrate = \"1/s\"\n", "[limit.more]\nrate = \"1/s\"\n"]),
    ] {
        let before = gateway.generation();
        fs::File::create(dir.join(name)).unwrap();
        for line in lines {
            settle();
            fs::File::options().append(true).open(dir.join(name)).unwrap().write_all(line.as_bytes()).unwrap();
        }
        settle();
        assert_eq!(gateway.generation(), before, "a part of {name} is active");
        wait_until(&format!("{name} is loaded"), || gateway.generation() == before + 1);
    }
    let before = gateway.generation();
    fs::write(dir.join("blocked.txt"), "").unwrap();
    wait_until("the empty set is loaded", || gateway.generation() == before + 1);
}

/// The first half of a config can be a valid config without some of its limits, however long its writer pauses.
#[test]
fn a_file_that_is_never_closed_is_never_loaded_and_says_so() {
    let gateway = Program::start();
    // Until the files are watched, nobody knows who has them open.
    std::thread::sleep(Duration::from_millis(700));
    let mut file = fs::File::create(&gateway.config).unwrap();
    file.write_all(version(2).as_bytes()).unwrap();
    file.flush().unwrap();
    let writer = format!("(process {}) has it open", std::process::id());
    let refused = gateway.reload("");
    assert_eq!(refused.status(), 422, "{}", refused.text());
    assert!(refused.text().contains("is being written") && refused.text().contains(&writer), "{}", refused.text());
    gateway.signal("HUP");
    wait_until("SIGHUP is refused", || gateway.reloads("failure", "signal") == 1.0);
    wait_until("the watcher reports it", || gateway.reloads("failure", "file") == 1.0);
    assert!(gateway.in_force(1) && !gateway.last_reload_successful());
    let log = gateway.log();
    assert!(log.contains("is being written") && log.contains(&writer) && log.contains("rename it"), "{log}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(gateway.reloads("failure", "file"), 1.0, "it is reported once");
    file.write_all(b"# end\n").unwrap();
    drop(file);
    gateway.until_in_force(2, "the close");
    assert!(gateway.last_reload_successful());
}

#[test]
fn the_swap_of_a_config_map_is_noticed_each_time() {
    let gateway = Program::start_with(|dir| {
        fs::create_dir(dir.join("..1")).unwrap();
        fs::write(dir.join("..1/sluicegate.toml"), version(1)).unwrap();
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/sluicegate.toml", dir.join("sluicegate.toml")).unwrap();
        dir.join("sluicegate.toml")
    });
    let dir = gateway.config.parent().unwrap();
    for number in 2..=4 {
        let next = dir.join(format!("..{number}"));
        fs::create_dir(&next).unwrap();
        fs::write(next.join("sluicegate.toml"), version(number)).unwrap();
        symlink(format!("..{number}"), dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        fs::remove_dir_all(dir.join(format!("..{}", number - 1))).unwrap();
        gateway.until_in_force(number, "a swap");
    }
}

#[test]
fn a_file_behind_a_link_elsewhere_is_watched_where_it_is() {
    let gateway = Program::start_with(|dir| {
        let real = dir.parent().unwrap().join("real");
        fs::create_dir(&real).unwrap();
        fs::write(real.join("a.toml"), version(1)).unwrap();
        symlink(real.join("a.toml"), dir.join("sluicegate.toml")).unwrap();
        dir.join("sluicegate.toml")
    });
    gateway.write(&version(2));
    gateway.until_in_force(2, "a write through the link");
}

#[test]
fn fifty_edits_under_load_end_with_the_last_and_fail_no_request() {
    let gateway = Program::start();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut responses = 0;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(gateway.get("/").status(), 200);
                responses += 1;
            }
            responses
        });
        for number in 2..=51 {
            gateway.write(&version(number));
            std::thread::sleep(Duration::from_millis(20));
        }
        gateway.until_in_force(51, "50 edits");
        over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    for number in 52..=55 {
        gateway.write(&version(number));
        gateway.until_in_force(number, "a later edit");
    }
}

#[test]
fn the_second_of_two_saves_in_a_moment_wins() {
    let gateway = Program::start();
    for number in (2..10).step_by(2) {
        gateway.write(&version(number));
        std::thread::sleep(Duration::from_millis(50));
        gateway.write(&version(number + 1));
        gateway.until_in_force(number + 1, "two saves 50 ms apart");
    }
}

#[test]
fn a_bad_save_changes_nothing_is_visible_and_the_fix_applies() {
    let gateway = Program::start();
    let good = version(1);
    assert!(gateway.last_reload_successful());
    gateway.write(&good.replace("path =", "pth ="));
    wait_until("failed", || !gateway.last_reload_successful());
    assert_eq!(gateway.reloads("failure", "file"), 1.0);
    assert!(gateway.in_force(1) && gateway.generation() == 1);
    assert_eq!(gateway.get("/").status(), 200);
    let log = gateway.log();
    assert!(log.contains("sluicegate.toml:9") && log.contains('^') && log.contains("pth"), "{log}");
    let last = gateway.status()["last_reload"].clone();
    assert_eq!((&last["result"], &last["trigger"]), (&"failure".into(), &"file".into()));
    assert!(last["diagnostics"].to_string().contains("pth"), "{last}");
    assert_eq!(gateway.admin("/readyz").status(), 200, "the old config serves requests");

    // The file has the content in force again: nothing is loaded, but the failure has ended.
    gateway.write(&good);
    wait_until("the failure has ended", || gateway.last_reload_successful());
    assert_eq!(gateway.generation(), 1);
    wait_until("it is logged", || gateway.log().contains("config is valid again; generation 1 stays active"));

    gateway.write("[[");
    wait_until("the reload failed again", || !gateway.last_reload_successful());
    let before = gateway.metric("config_last_reload_success_timestamp_seconds", &[]).unwrap();
    gateway.write(&version(2));
    gateway.until_in_force(2, "the fix");
    assert_eq!(gateway.generation(), 2);
    assert!(gateway.metric("config_last_reload_success_timestamp_seconds", &[]).unwrap() > before);
    assert!(gateway.metrics().contains(&format!(
        "sluicegate_config_info{{generation=\"2\",hash=\"{}\"}} 1",
        gateway.status()["hash"].as_str().unwrap()
    )));
}

#[test]
fn included_files_are_watched_as_they_come_change_break_and_go() {
    let gateway = Program::start_with(|dir| {
        fs::create_dir(dir.join("conf.d")).unwrap();
        let config = dir.join("sluicegate.toml");
        fs::write(&config, format!("include = [\"conf.d/*.toml\"]\n{}", version(1))).unwrap();
        config
    });
    let part = gateway.config.parent().unwrap().join("conf.d/part.toml");
    let route = |number| format!("[[route]]\nname = \"v{number}\"\npath = \"/part\"\nupstream = \"echo:\"\n");
    fs::write(&part, route(2)).unwrap();
    gateway.until_in_force(2, "a new included file");
    fs::write(&part, route(3)).unwrap();
    gateway.until_in_force(3, "an edit of an included file");
    fs::write(&part, "[[route]]\nbroken").unwrap();
    wait_until("failed", || !gateway.last_reload_successful());
    assert!(gateway.in_force(3));
    fs::write(&part, route(4)).unwrap();
    gateway.until_in_force(4, "the fix of an included file");
    fs::remove_file(&part).unwrap();
    wait_until("without the removed file", || !gateway.in_force(4));
    assert!(gateway.in_force(1));
}

#[test]
fn equal_bytes_are_no_reload() {
    let gateway = Program::start();
    gateway.write(&version(1));
    // Longer than the watcher waits for further writes.
    std::thread::sleep(Duration::from_millis(400));
    let response = gateway.reload("");
    assert_eq!((response.status(), &response.json()["changed"]), (200, &false.into()));
    gateway.signal("HUP");
    wait_until("unchanged by a signal", || gateway.reloads("unchanged", "signal") == 1.0);
    assert_eq!(gateway.generation(), 1);
    for trigger in ["file", "signal", "api"] {
        assert_eq!(gateway.reloads("success", trigger), 0.0, "{trigger}");
    }
    assert_eq!(gateway.reloads("unchanged", "api"), 1.0);
}

#[test]
fn a_signal_and_the_api_reload_at_once() {
    let gateway = Program::start();
    // On a busy machine the watcher may be faster; then the next edit is used.
    let first = |start: usize, trigger: &str, fetch: &dyn Fn()| {
        (start..start + 20).find(|number| {
            gateway.write(&version(*number));
            fetch();
            gateway.until_in_force(*number, trigger);
            gateway.reloads("success", trigger) == 1.0
        })
    };
    assert!(first(100, "signal", &|| gateway.signal("HUP")).is_some(), "{}", gateway.log());
    let response = std::cell::RefCell::new(Value::Null);
    let number = first(200, "api", &|| *response.borrow_mut() = gateway.reload("").json()).unwrap();
    let response = response.into_inner();
    assert_eq!(response["changed"], true);
    assert_eq!(response["generation"], gateway.generation());
    assert_eq!(response["diff"]["routes"]["added"], serde_json::json!([format!("v{number}")]));
    assert_eq!(response["diff"]["limits"]["added"], serde_json::json!([]));
    assert!(gateway.log().contains(&format!("route added: v{number}")));
}

#[test]
fn a_dry_run_reports_the_changes_and_counts_nothing() {
    let gateway = Program::start();
    gateway.write(&version(2));
    let response = gateway.reload("?dry_run=1");
    assert_eq!((response.status(), &response.json()["dry_run"]), (200, &true.into()));
    assert_eq!(gateway.reloads("success", "api"), 0.0);
    gateway.write("route = 1");
    let response = gateway.reload("?dry_run=1");
    assert_eq!(response.status(), 422, "{}", response.text());
    assert!(!response.json()["diagnostics"].as_array().unwrap().is_empty());
    assert_eq!(gateway.reloads("failure", "api"), 0.0);
    assert_eq!(gateway.reload("?dry_run=maybe").status(), 400);
    assert_eq!(gateway.reload("").status(), 422);
    assert_eq!(gateway.reloads("failure", "api"), 1.0);
}

#[test]
fn spent_budgets_and_counters_survive_and_a_raised_limit_applies_at_once() {
    let gateway = Program::start_with(|dir| {
        let config = dir.join("sluicegate.toml");
        fs::write(&config, limited(3, "one")).unwrap();
        config
    });
    let statuses = |count: usize| (0..count).map(|_| gateway.get("/").status()).collect::<Vec<_>>();
    let until_generation = |n| wait_until("reloaded", || gateway.generation() == n);
    assert_eq!(statuses(4), [200, 200, 200, 429]);
    gateway.write(&limited(3, "two"));
    until_generation(2);
    assert_eq!(statuses(1), [429], "a reload refilled the bucket");
    gateway.write(&limited(5, "two"));
    until_generation(3);
    assert_eq!(statuses(3), [200, 200, 429], "the raised limit counts what was spent");
    gateway.write(&limited(2, "two"));
    until_generation(4);
    assert_eq!(statuses(1), [429]);
    let count = |code| gateway.metric("requests_total", &[("code", code), ("method", "GET"), ("route", "app")]);
    assert_eq!((count("200"), count("429")), (Some(5.0), Some(4.0)));
}

#[test]
fn a_listener_moves_without_a_gap_and_its_connections_live_on() {
    let gateway = Program::start();
    let mut kept = gateway.client();
    assert_eq!(kept.fetch(&get("/", ""), "").status(), 200);
    let new = ReservedPort::new();
    gateway.write(&moved(2, &new.addr().to_string(), "127.0.0.1:0"));
    gateway.until_in_force(2, "a move");
    assert_eq!(fetch(new.addr(), &get("/", "")).status(), 200);
    wait_until("off the old port", || TcpStream::connect(gateway.addr).is_err());
    assert_eq!(kept.fetch(&get("/", ""), "").status(), 200, "the open connection was cut");

    // The wildcard address conflicts with the address that it replaces.
    gateway.write(&moved(3, &format!("0.0.0.0:{}", new.port()), "127.0.0.1:0"));
    gateway.until_in_force(3, "a wider address");
    assert_eq!(fetch(new.addr(), &get("/", "")).status(), 200);
}

#[test]
fn an_address_in_use_fails_the_reload_as_a_whole() {
    let gateway = Program::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    gateway.write(&moved(2, &taken.local_addr().unwrap().to_string(), "127.0.0.1:0"));
    wait_until("failed", || !gateway.last_reload_successful());
    assert!(gateway.log().contains("cannot listen on"), "{}", gateway.log());
    assert!(gateway.in_force(1) && !gateway.in_force(2), "half of the config was applied");
    assert_eq!(gateway.get("/").status(), 200);
    drop(taken);
    assert_eq!(gateway.reload("").status(), 200);
    assert!(gateway.in_force(2));
}

#[test]
fn the_admin_listener_moves_too() {
    let mut gateway = Program::start();
    let (old, new) = (gateway.admin, ReservedPort::new());
    gateway.write(&moved(2, "127.0.0.1:0", &new.addr().to_string()));
    // While the addresses are exchanged, connections may be refused.
    let reloaded = |gateway: &Program, times| {
        wait_until("the move is logged", || gateway.log().matches("config reloaded").count() == times);
        assert!(gateway.log().matches("ERROR").count() == 0);
    };
    reloaded(&gateway, 1);
    wait_until("off the old admin port", || TcpStream::connect(old).is_err());
    gateway.admin = new.addr();
    assert!(gateway.in_force(2));
    gateway.write(&moved(3, "127.0.0.1:0", &format!("0.0.0.0:{}", new.port())));
    reloaded(&gateway, 2);
    assert!(gateway.in_force(3), "not on the wider address");
}

#[test]
fn options_that_need_a_restart_keep_their_value_and_are_reported() {
    let gateway = Program::start();
    gateway.write(&version(2).replace("[server]", "[server]\nworkers = 7"));
    gateway.until_in_force(2, "a change of workers");
    assert!(gateway.log().contains("server.workers needs a restart"), "{}", gateway.log());
    assert_eq!(gateway.status()["last_reload"]["restart_needed_for"], serde_json::json!(["server.workers"]));
}

#[test]
fn state_changes_need_the_token_and_names_are_not_believed() {
    let gateway = Program::start();
    let post = |fields: &str| gateway.reload_as(fields).status();
    assert_eq!(post("host: 127.0.0.1\r\n"), 200);
    assert_eq!(post("host: rebound.example\r\n"), 403);
    assert_eq!(post("host: 127.0.0.1\r\norigin: http://evil.example\r\n"), 403);
    gateway.write(&version(2).replace("[admin]", "[admin]\ntoken = \"s3cret\""));
    gateway.until_in_force(2, "a new token");
    assert_eq!(post("host: 127.0.0.1\r\n"), 401);
    assert_eq!(post("host: 127.0.0.1\r\nauthorization: Bearer s3cre\r\n"), 401);
    assert_eq!(post("host: 127.0.0.1\r\nauthorization: Bearer s3cret\r\n"), 200);
    assert_eq!(gateway.admin("/-/reload").status(), 405);
    assert_eq!(gateway.admin("/nothing").status(), 404);
    let large = format!("host: 127.0.0.1\r\nauthorization: Bearer s3cret\r\nx: {}\r\n", "y".repeat(1000));
    assert_eq!(post(&large), 200);
}

#[test]
fn silent_admin_clients_do_not_shut_others_out() {
    let gateway = Program::start();
    let _silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(gateway.admin).unwrap()).collect();
    assert_eq!(gateway.admin("/livez").status(), 200);
}

#[test]
fn a_config_that_is_valid_again_is_logged_for_every_trigger_and_file() {
    let set = |text: &str, dir: &std::path::Path| fs::write(dir.join("set.txt"), text).unwrap();
    for how in ["save", "hup", "call"] {
        let gateway = Program::start_with(|dir| {
            let config = dir.join("sluicegate.toml");
            set("10.0.0.0/8\n", dir);
            let used = "deny = [\"set:bad\"]\n[set.bad]\nfile = \"set.txt\"\n";
            fs::write(&config, format!("{}{used}", version(1))).unwrap();
            config
        });
        let dir = gateway.config.parent().unwrap().to_owned();
        set("not a network\n", &dir);
        wait_until("failed", || !gateway.last_reload_successful());
        let line_count = || gateway.log_lines(&["config is valid again; generation 1 stays active"]);
        assert_eq!(line_count(), 0);
        set("10.0.0.0/8\n", &dir);
        match how {
            "hup" => gateway.signal("HUP"),
            "call" => drop(gateway.reload_as("host: 127.0.0.1\r\n")),
            _ => {}
        }
        wait_until("it is logged", || line_count() > 0);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(line_count(), 1, "{how}: {}", gateway.log());
        assert!(gateway.last_reload_successful());
    }
}
