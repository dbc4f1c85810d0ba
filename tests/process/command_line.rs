//! The command line: exit codes, output streams and signals.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::gateway::{Gateway, program};
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// Exit code and streams of a command that ends by itself.
fn output(args: &[&str]) -> (i32, String, String) {
    let output = program().args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Writes the config of a gateway that listens at these addresses, as file `name`.
fn config(dir: &Path, name: &str, listen: &str, admin: &str, server: &str) -> PathBuf {
    let file = dir.join(name);
    let text = format!(
        "[server]\nlisten = [\"{listen}\"]\n{server}\n[admin]\nlisten = \"{admin}\"\n\n\
         [[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"per-ip\"]\n\n\
         [limit.per-ip]\nrate = \"10/s\"\nburst = 20\nkey = \"ip\"\n"
    );
    fs::write(&file, text).unwrap();
    file
}

/// Starts a gateway, and writes a config with its addresses, like a config with fixed ports.
fn running(admin: &str, server: &str) -> (Gateway, String) {
    let gateway = Gateway::launch(&[], |dir| {
        let file = config(dir, "sluicegate.toml", "127.0.0.1:0", admin, server);
        vec!["run".to_owned(), "-c".to_owned(), file.display().to_string()]
    });
    let admin =
        admin.replace("127.0.0.1:0", &gateway.admin.to_string()).replace(":0", &format!(":{}", gateway.admin.port()));
    let known = config(gateway.dir.path(), "known.toml", &gateway.addr.to_string(), &admin, server);
    (gateway, known.display().to_string())
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let (code, stdout, _) = output(&["--help"]);
    assert_eq!(code, 0);
    for word in ["run", "check", "proxy", "demo", "replay", "healthcheck", "Examples:", "Exit codes:"] {
        assert!(stdout.contains(word), "{word} is missing:\n{stdout}");
    }
    let (code, stdout, _) = output(&["--version"]);
    assert_eq!((code, stdout.trim()), (0, concat!("sluicegate ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn bad_usage_is_code_2() {
    for args in [&["nonsense"][..], &[], &["run", "--nonsense"], &["proxy"], &["healthcheck", "--url", "ftp://x"]] {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(stdout.is_empty() && !stderr.is_empty(), "{args:?}: {stdout} {stderr}");
    }
    assert_eq!(output(&["--log", "a=b=c", "check"]).0, 2);
}

#[test]
fn check_summarizes_a_valid_config() {
    let tmp = tempfile::tempdir().unwrap();
    let file = config(tmp.path(), "sluicegate.toml", "127.0.0.1:1", "127.0.0.1:2", "");
    let (code, stdout, stderr) = output(&["check", "-c", file.to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (0, "ok: 1 route, 1 limit, 0 upstreams\n"), "{stderr}");
    let (code, stdout, _) = output(&["check", "-c", file.to_str().unwrap(), "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"], &json["routes"]), (0, &true.into(), &1.into()));
    let by_environment = program().arg("check").env("SLUICEGATE_CONFIG", &file).output().unwrap();
    assert!(by_environment.status.success());
}

#[test]
fn a_bad_or_missing_config_is_code_2_with_the_place() {
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("bad.toml");
    fs::write(&file, "[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimit = [\"x\"]\n").unwrap();
    let file = file.to_str().unwrap();
    for command in ["check", "run"] {
        let (code, stdout, stderr) = output(&[command, "-c", file]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{command}");
        assert!(stderr.contains("bad.toml:4") && stderr.contains('^'), "{command}: {stderr}");
    }
    let (code, stdout, _) = output(&["check", "-c", file, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"]), (2, &false.into()));
    assert!(!json["diagnostics"].as_array().unwrap().is_empty());
    let missing = tmp.path().join("missing.toml");
    for command in ["check", "run"] {
        let (code, _, stderr) = output(&[command, "-c", missing.to_str().unwrap()]);
        assert!(code == 2 && stderr.contains("missing.toml"), "{command}: {code} {stderr}");
    }
}

#[test]
fn an_address_in_use_is_code_1_and_names_it() {
    let tmp = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let file = config(tmp.path(), "sluicegate.toml", &addr, "127.0.0.1:0", "");
    let (code, _, stderr) = output(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(stderr.contains(&format!("cannot listen on {addr}")) && stderr.contains("choose another"), "{stderr}");
}

#[test]
fn healthcheck_follows_readiness_through_the_drain() {
    let (mut gateway, file) = running("0.0.0.0:0", "shutdown_delay = \"1s\"");
    gateway.admin.set_ip([127, 0, 0, 1].into());
    let url = format!("http://{}/readyz", gateway.admin);
    let fetch = |args: &[&str]| output(&[&["healthcheck"], args].concat());
    assert_eq!(fetch(&["-c", &file]), (0, String::new(), String::new()));
    assert_eq!(fetch(&["--url", &url]).0, 0);
    gateway.signal("TERM");
    wait_until("the gateway is draining", || gateway.admin("/readyz").status() == 503);
    assert!(gateway.admin("/readyz").text().contains("draining"));
    assert_eq!(gateway.admin("/livez").status(), 200);
    assert_eq!(gateway.get("/").status(), 200, "served while balancers look away");
    let (code, _, stderr) = fetch(&["--url", &url]);
    assert!(code == 1 && stderr.contains("503"), "{code} {stderr}");
    assert_eq!(gateway.exit().code(), Some(0));
    assert_eq!(fetch(&["--url", &url]).0, 1, "no gateway runs any more");
    assert_eq!(fetch(&["-c", &file]).0, 1, "no gateway runs any more");
}

/// The gateway continues with its config, and itself reports its admin address to commands.
#[test]
fn a_gateway_is_found_even_if_its_config_file_breaks() {
    let (mut gateway, known) = running("127.0.0.1:0", "");
    let (path, file) = (gateway.config(), gateway.config().display().to_string());
    let good = fs::read_to_string(&path).unwrap();
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"";
    assert!(good.contains(admin));
    for bad in [
        format!("{good}\nnonsense = 1\n"),
        format!("[limit.x\n{good}"),
        format!("key = \u{201c}ip\u{201d}\n{good}"),
        good.replace(admin, "[admin]\nlisten = \"127.0.0.1:99999\""),
        good.replace(admin, "[admin]\nlisten = \"127.0.0.1:1\"\ntoken = \"another token\"\nnonsense = 1"),
        good[..good.len() / 2].to_owned(),
        "\0\0\0\0".to_owned(),
        "[".to_owned(),
    ] {
        fs::write(&path, &bad).unwrap();
        assert_eq!(output(&["check", "-c", &file]).0, 2, "{bad}");
        assert_eq!(output(&["healthcheck", "-c", &file]), (0, String::new(), String::new()), "{bad}");
        let (code, _, stderr) = output(&["reload", "-c", &file]);
        assert!(code == 1 && stderr.contains("generation 1 stays active"), "{bad}: {code} {stderr}");
    }
    fs::write(&path, "").unwrap();
    assert_eq!(output(&["healthcheck", "-c", &file]).0, 0);
    // The file is replaced by a rename, and then removed.
    let saved = path.with_extension("new");
    fs::write(&saved, "[").unwrap();
    fs::rename(&saved, &path).unwrap();
    assert_eq!(output(&["healthcheck", "-c", &file]).0, 0);
    fs::remove_file(&path).unwrap();
    assert_eq!(output(&["healthcheck", "-c", &file]).0, 0);
    // Another file in the same directory is not the config of that gateway.
    let other = file.replace("sluicegate.toml", "another.toml");
    for command in ["healthcheck", "reload", "top", "ui"] {
        let (code, _, stderr) = output(&[command, "-c", &other]);
        let expected = format!("{other} does not exist, and no gateway runs with it");
        assert!(code != 0 && stderr.contains(&expected), "{command}: {code} {stderr}");
    }
    fs::write(&other, "").unwrap();
    let (_, _, stderr) = output(&["healthcheck", "-c", &other]);
    assert!(stderr.contains("trying 127.0.0.1:9900"), "{stderr}");
    assert_eq!(output(&["healthcheck", "-c", &known]).0, 0, "by the address in the file");
    gateway.signal("INT");
    assert_eq!(gateway.exit().code(), Some(0));
    assert_ne!(output(&["healthcheck", "-c", &known]).0, 0);
}

/// A token changes with the reload that it is needed for.
#[test]
fn reload_waits_until_a_new_token_is_in_force() {
    let text = |token: &str| {
        format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"{token}\"\n\
             [[route]]\npath = \"/\"\nupstream = \"echo:\"\n"
        )
    };
    let gateway = Gateway::launch(&[], |dir| {
        let file = dir.join("sluicegate.toml");
        fs::write(&file, text("the-first-of-the-tokens")).unwrap();
        vec!["run".to_owned(), "-c".to_owned(), file.display().to_string()]
    });
    let file = gateway.config().display().to_string();
    // From now on the gateway refuses wrong tokens with 429.
    let guess = || gateway.admin_request("GET", "/-/status", "authorization: Bearer wrong\r\n", "").status();
    wait_until("there were too many wrong tokens", || guess() == 429);
    for (generation, token) in [(2, "the-second-of-the-tokens"), (3, "the-third-of-the-tokens")] {
        // The watcher may load the file before the command does.
        fs::write(gateway.config(), text(token)).unwrap();
        let (code, stdout, stderr) = output(&["reload", "-c", &file]);
        assert!(code == 0 && stdout.contains(&format!("generation {generation} is active")), "{stdout} {stderr}");
    }
}

/// Commands contact the new process after a handover.
#[test]
fn a_gateway_that_has_taken_over_is_found() {
    let tmp = tempfile::tempdir().unwrap();
    let handover = format!("handover = \"{}\"", tmp.path().join("handover.sock").display());
    let (mut old, _) = running("127.0.0.1:0", &format!("{handover}\nshutdown_timeout = \"60s\""));
    let file = old.config().display().to_string();
    let mut new = Gateway::launch(&[], |_| vec!["run".to_owned(), "-c".to_owned(), file.clone()]);
    assert_eq!(old.exit().code(), Some(0));
    fs::write(&file, "[").unwrap();
    wait_until("the new process logs its address", || output(&["healthcheck", "-c", &file]).0 == 0);
    new.signal("TERM");
    assert_eq!(new.exit().code(), Some(0));
}

#[test]
fn healthcheck_gives_up_on_a_silent_server() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let started = Instant::now();
    let url = format!("http://{}/readyz", silent.local_addr().unwrap());
    assert_eq!(output(&["healthcheck", "--url", &url]).0, 1);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn healthcheck_reaches_a_unix_socket() {
    let tmp = tempfile::tempdir().unwrap();
    let socket = tmp.path().join("admin.sock");
    let (mut gateway, file) = running(&format!("unix:{}", socket.display()), "");
    assert_eq!(output(&["healthcheck", "-c", &file]).0, 0);
    gateway.signal("INT");
    assert_eq!(gateway.exit().code(), Some(0));
    assert!(!socket.exists(), "the socket file remains");
}

#[test]
fn a_second_signal_ends_the_drain_with_code_1() {
    let (mut gateway, _) = running("127.0.0.1:0", "shutdown_delay = \"60s\"");
    gateway.signal("TERM");
    wait_until("the gateway is draining", || gateway.admin("/readyz").status() == 503);
    gateway.signal("INT");
    assert_eq!(gateway.exit().code(), Some(1));
}

#[test]
fn proxy_needs_no_file() {
    let upstream = Upstream::text("hi");
    let mut gateway = Gateway::proxy(&["--to", &upstream.url(), "--limit", "1/day burst 2 by ip"]);
    assert_eq!([0; 3].map(|_| gateway.get("/").status()), [200, 200, 429]);
    gateway.signal("TERM");
    assert_eq!(gateway.exit().code(), Some(0));
}

#[test]
fn proxy_puts_the_path_of_its_server_before_that_of_each_request() {
    let upstream = Upstream::start(|peer| {
        while let Some(request) = peer.request()? {
            peer.send(ok(request.target()))?;
        }
        Ok(())
    });
    for (path, asked) in [("/app", "/app/x?q=1"), ("/app/v1/", "/app/v1/x?q=1"), ("/", "/x?q=1"), ("", "/x?q=1")] {
        let to = format!("{}{path}", upstream.url().trim_end_matches('/'));
        for to in ["", "http://", "http://127.0.0.1"].map(|start| to.strip_prefix(start).unwrap()) {
            assert_eq!(Gateway::proxy(&["--to", to]).get("/x?q=1").text(), asked, "{to}");
        }
    }
    for (to, help) in [("http://127.0.0.1:1/a?b=c", "has no query"), ("http://127.0.0.1:1/a/../b", "/a/../b")] {
        let (code, _, stderr) = output(&["proxy", "--to", to]);
        assert!(code == 2 && stderr.contains(help), "{code} {stderr}");
    }
}

#[test]
fn proxy_serves_https_and_logs_requests_on_request() {
    let upstream = Upstream::text("hi");
    let sample = |file: &str| format!("{}/conf/tls/sample.{file}", env!("CARGO_MANIFEST_DIR"));
    let (cert, key) = (sample("pem"), sample("key"));
    let gateway = Gateway::proxy(&["--to", &upstream.url(), "--cert", &cert, "--key", &key, "--access-log"]);
    let url = format!("https://127.0.0.1:{}/x", gateway.addr.port());
    let curl = Command::new("curl").args(["--silent", "--insecure", &url]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "hi", "{curl:?}");
    wait_until("the request is logged", || gateway.stdout().contains("\"path\":\"/x\""));
    for wrong in [&["--cert", &cert][..], &["--key", &key], &["--cert", "/no/such.pem", "--key", &key]] {
        let (code, _, stderr) = output(&[&["proxy", "--to", "http://127.0.0.1:1"], wrong].concat());
        assert!(code == 2 && stderr.contains("--") || stderr.contains("no such file"), "{code} {stderr}");
    }
    let silent = Gateway::proxy(&["--to", &upstream.url()]);
    assert_eq!(silent.get("/x").text(), "hi");
    assert_eq!(silent.stdout(), "");
}

#[test]
fn proxy_refuses_a_limit_it_cannot_read() {
    let (code, _, stderr) = output(&["proxy", "--to", "http://127.0.0.1:1", "--limit", "many"]);
    assert!(code == 2 && stderr.contains("many"), "{code} {stderr}");
}

#[test]
fn the_demo_config_is_valid() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/demo.toml");
    assert_eq!(output(&["check", "-c", demo]).0, 0);
}

/// A config with a limit and an upstream that no route uses loads, and the log and `check` warn about them.
#[test]
fn unused_sections_are_warnings() {
    let rest = "[[route]]\nupstream = \"echo:\"\n\n[limit.idle]\nrate = \"1/day\"\n\n\
                [upstream.nobody]\nservers = [\"http://127.0.0.1:1\"]\n";
    let gateway = Gateway::start(rest);
    let file = gateway.dir.path().join("sluicegate.toml").display().to_string();
    let idle = "no route uses the limit `idle`, so it throttles nothing";
    let nobody = "no route uses the upstream `nobody`";

    let (code, stdout, stderr) = output(&["check", &file]);
    assert_eq!((code, stdout.as_str()), (0, "ok: 1 route, 1 limit, 1 upstream\n"));
    for text in [
        "warning[SG0201]: ",
        "warning[SG0202]: ",
        idle,
        "add limits = [\"idle\"]",
        nobody,
        "sluicegate.toml:",
        "2 warnings",
    ] {
        assert!(stderr.contains(text), "{text} is missing:\n{stderr}");
    }
    let (_, stdout, _) = output(&["check", "--format", "json", &file]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let codes = |warnings: &serde_json::Value| {
        let messages =
            warnings.as_array().unwrap().iter().map(|warning| warning["message"].as_str().unwrap().to_owned());
        messages.collect::<Vec<_>>()
    };
    assert_eq!(codes(&json["warnings"]), [idle, nobody]);
    assert!(json["warnings"][0]["line"].as_u64().is_some() && json["ok"] == true);
    assert_eq!(json["warnings"][0]["code"], "SG0201");
    assert_eq!(output(&["check", "--deny-warnings", &file]).0, 2);
    for text in [idle, nobody] {
        assert_eq!(gateway.log().matches(text).count(), 1, "{}", gateway.log());
    }

    let reloaded = gateway.reload(&(fs::read_to_string(&file).unwrap() + "\n[limit.more]\nrate = \"1/day\"\n")).json();
    assert_eq!(codes(&reloaded["warnings"]).len(), 3, "{reloaded}");
    assert!(gateway.log().contains("the limit `more`"), "{}", gateway.log());
}

/// Warns about limits whose `max_keys` leaves few keys to the others, which would soon forget usage unnoticed.
#[test]
fn few_keys_left_to_a_limit_are_a_warning() {
    let tmp = tempfile::tempdir().unwrap();
    let checked = |max_keys: usize| {
        let file = tmp.path().join("few.toml");
        let text = "[[route]]\nupstream = \"echo:\"\nlimits = [\"votes\", \"a\", \"b\"]\n\n[limit.a]\nrate = \"1/s\"\n\n\
                    [limit.b]\nrate = \"1/s\"\n\n[limit.votes]\nrate = \"1/day\"\nmax_keys = 9300\n\n[store]\n";
        fs::write(&file, format!("{text}max_keys = {max_keys}\n")).unwrap();
        output(&["check", file.to_str().unwrap()])
    };
    let (code, _, stderr) = checked(10_000);
    assert_eq!(code, 0, "{stderr}");
    for text in [
        "warning[SG0203]: `max_keys` in [limit.votes]",
        "leave 700 of the 10000 keys",
        "max_keys = 9300",
        "to 11300 or more",
    ] {
        assert!(stderr.contains(text), "{text} is missing:\n{stderr}");
    }
    let (code, _, stderr) = checked(11_300);
    assert!(code == 0 && !stderr.contains("SG0203"), "{stderr}");
    assert_eq!(checked(9_400).0, 2);
}

#[test]
fn a_small_floor_of_many_limits_is_a_warning() {
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("many.toml");
    let limits: String = (0..2001)
        .map(|i| {
            format!(
                "[[route]]\npath = \"/{i}/\"\nupstream = \"echo:\"\nlimits = [\"l{i}\"]\n[limit.l{i}]\nrate = \"1/s\"\n"
            )
        })
        .collect();
    fs::write(&file, &limits).unwrap();
    let (code, _, stderr) = output(&["check", file.to_str().unwrap()]);
    assert!(code == 0 && stderr.matches("SG0203").count() == 1, "{stderr}");
    assert!(stderr.contains("so each is sure of only 499") && stderr.contains("to 2001000 or more"), "{stderr}");
    fs::write(&file, format!("{limits}[store]\nmax_keys = 2001000\n")).unwrap();
    let (code, _, stderr) = output(&["check", "--deny-warnings", file.to_str().unwrap()]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let contract = output(&["contract", "-c", file.to_str().unwrap(), "--limit", "l7"]).1;
    assert!(contract.contains("1000 keys"), "{contract}");
}

#[test]
fn a_config_file_needs_no_flag_but_stands_once() {
    let tmp = tempfile::tempdir().unwrap();
    let file = config(tmp.path(), "sluicegate.toml", "127.0.0.1:1", "127.0.0.1:2", "");
    let file = file.to_str().unwrap();
    assert_eq!(output(&["check", file]), (0, "ok: 1 route, 1 limit, 0 upstreams\n".to_owned(), String::new()));
    let (code, _, stderr) = output(&["check", "-c", file, file]);
    assert!(code == 2 && stderr.contains("twice"), "{stderr}");
    let beside = program().args(["check", file]).env("SLUICEGATE_CONFIG", "/no/such").output().unwrap();
    assert!(beside.status.success(), "{beside:?}");
}

#[test]
fn proxy_takes_a_host_and_a_port() {
    let upstream = Upstream::text("hi");
    let port = upstream.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    for to in [format!("localhost:{port}"), format!(":{port}"), port] {
        let gateway = Gateway::proxy(&["--to", &to]);
        assert_eq!(gateway.get("/").text(), "hi", "{to}");
    }
    let (code, _, stderr) = output(&["proxy", "--to", "ftp://x"]);
    assert!(code == 2 && stderr.contains("--to") && stderr.contains("http://127.0.0.1:3000"), "{stderr}");
}

#[test]
fn reload_reports_the_result() {
    let (gateway, known) = running("127.0.0.1:0", "");
    let file = gateway.config();
    // The gateway's own config has port 0, so a reload keeps its port.
    let admin = gateway.admin.to_string();
    let fetch = |args: &[&str]| output(&[&["reload", "-c", &known], args].concat());
    let (code, stdout, _) = fetch(&[]);
    assert_eq!((code, stdout.as_str()), (0, "unchanged: generation 1 is active\n"));

    let text = fs::read_to_string(&file).unwrap();
    let more = text.clone() + "\n[limit.idle]\nrate = \"1/s\"\n";
    let (code, stdout, stderr) = {
        gateway.write_config(&more);
        fetch(&["--dry-run"])
    };
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("idle") || stdout.contains("unchanged"), "the watcher may be first: {stdout}");
    assert!(stderr.contains("warning: ") && stderr.contains("no route uses the limit `idle`"), "{stderr}");
    assert_eq!(fetch(&[]).0, 0);

    gateway.write_config("[[route]]\nupstream = \"echo:\"\nlimits = [\"nobody\"]\n");
    let (code, stdout, stderr) = fetch(&[]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("sluicegate.toml:3:11: undefined limit `nobody`"), "{stderr}");
    assert!(stderr.contains("stays active"), "{stderr}");

    gateway.write_config(&text);
    assert_eq!(fetch(&[]).0, 0);
    let tmp = tempfile::tempdir().unwrap();
    let kept = tmp.path().join("known.toml");
    fs::copy(&known, &kept).unwrap();
    drop(gateway);
    let (code, _, stderr) = output(&["reload", "-c", kept.to_str().unwrap()]);
    assert!(code == 1 && stderr.contains(&format!("no gateway responds at {admin}")), "{stderr}");
}

#[test]
fn reload_shows_the_token_of_the_config() {
    let (gateway, known) = running("127.0.0.1:0", "");
    let secret =
        fs::read_to_string(gateway.config()).unwrap().replace("[admin]\n", "[admin]\ntoken = \"s3cret-s3cret\"\n");
    gateway.reload(&secret);
    let (code, _, stderr) = output(&["reload", "-c", &known]);
    assert!(code == 1 && stderr.contains("401"), "{stderr}");
    let with_token = fs::read_to_string(&known).unwrap().replace("[admin]\n", "[admin]\ntoken = \"s3cret-s3cret\"\n");
    fs::write(&known, with_token).unwrap();
    assert_eq!(output(&["reload", "-c", &known]).0, 0);
}

#[test]
fn the_manual_page_and_the_completions_know_every_command() {
    let (code, page, _) = output(&["man"]);
    assert_eq!(code, 0);
    assert!(page.contains(".TH sluicegate 1"), "{page}");
    let (_, help, _) = output(&["--help"]);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"reload"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = output(&["completions", shell]);
        assert_eq!(code, 0);
        for command in commands.iter().filter(|command| **command != "help") {
            assert!(script.contains(command), "{shell}: {command}");
            let title = format!(".SH \"SLUICEGATE {}\"", command.to_uppercase());
            assert!(page.contains(&title), "{title}");
        }
    }
    assert!(help.contains("Exit codes:\n  0          ok\n") && help.contains("  sluicegate demo  "), "{help}");
    for text in [
        ".SH \"SIGNALS\"\n.TP\n\\fBHUP\\fR\nreloads the config",
        ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nok",
        ".SH \"FILES\"\n.TP\n\\fBsluicegate.toml\\fR\nthe config",
        ".SH \"EXAMPLES\"\n.TP\n\\fBsluicegate demo\\fR\nsee it work",
        "\\-\\-dry\\-run",
    ] {
        assert!(page.contains(text), "{text} is missing:\n{page}");
    }
}
