//! `sluicegate tap` and `sluicegate top` as a user in a shell has them: output, exit codes, signals and errors.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use super::requests::LIMITS;
use crate::support::client::get;
use crate::support::gateway::{Gateway, config, program};
use crate::support::wait_until;

/// A command that watches a gateway.
struct Watcher {
    child: Child,
    output: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
}

fn command(gateway: &Gateway, name: &str, args: &[&str]) -> Command {
    let mut command = program();
    command.arg(name).arg("-c").arg(gateway.config()).args(args);
    command
}

impl Watcher {
    /// Starts a tap and waits until it is open.
    fn start(gateway: &Gateway, args: &[&str]) -> Watcher {
        let mut child = command(gateway, "tap", args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut watcher = Watcher { child, output, errors };
        // The tap has begun when its first request is printed.
        while !watcher.has_output() {
            gateway.get("/health");
        }
        watcher
    }

    fn has_output(&mut self) -> bool {
        use std::os::fd::AsFd;
        let fd = self.output.get_ref().as_fd();
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        !self.output.buffer().is_empty() || rustix::event::poll(&mut polled, Some(&wait)).unwrap() > 0
    }

    /// Returns the next line that contains `word`.
    fn line_with(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the output ended without {word}");
            if line.contains(word) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// The exit code and the rest of the standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut error = String::new();
        self.errors.read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().code(), error)
    }
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn lines_are_printed_as_requests_end_and_ctrl_c_ends_cleanly() {
    let gateway = Gateway::start(LIMITS);
    let mut tap = Watcher::start(&gateway, &[]);
    let head = get("/a?token=x", "x-key: secret\r\n");
    (0..3).for_each(|_| drop(gateway.fetch(&head)));
    (0..2).for_each(|_| drop(tap.line_with(" 200 GET a.test/a?token=***")));
    let refused = tap.line_with(" 429 GET a.test/a?token=***");
    for part in [
        " 127.0.0.1 route=api ",
        " reason=exhausted",
        " | hard deny ip=127.0.0.1,header:x-key#",
        ", 0 left, ",
        " | soft shadow_deny ",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    // A new config does not end the command.
    gateway.reload(&config("", &format!("{LIMITS}\n# changed\n")));
    let mut line = String::new();
    tap.errors.read_line(&mut line).unwrap();
    assert_eq!(line, "the gateway has a new config; watching again\n");
    while !tap.has_output() {
        gateway.get("/after");
    }
    tap.line_with("/after");
    tap.signal("INT");
    let (code, error) = tap.end();
    assert_eq!(code, Some(0), "{error}");
    let matched = error.strip_suffix(" sent, 0 left out by --rate, 0 lost\n").unwrap_or_else(|| panic!("{error}"));
    let (matched, _) = matched.split_once(" requests matched: ").unwrap();
    assert!(matched.parse::<u32>().unwrap() >= 4, "those before the new config are counted: {error}");
}

#[test]
fn json_is_what_the_gateway_sends_and_a_count_ends_it() {
    let gateway = Gateway::start(LIMITS);
    let mut tap = Watcher::start(&gateway, &["--format", "json", "-n", "3", "--route", "!api"]);
    while !tap.has_output() || gateway.metric("tap_events_total", &[("result", "sent")]) < Some(3.0) {
        gateway.get("/health");
    }
    let mut text = String::new();
    tap.output.read_to_string(&mut text).unwrap();
    let requests: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request["route"] == "health" && request["decisions"].is_array()));
    assert_eq!(tap.end().0, Some(0));
}

#[test]
fn a_reader_that_leaves_ends_it_quietly_and_a_stopped_gateway_with_a_message() {
    let mut gateway = Gateway::start(LIMITS);
    let Watcher { mut child, output, mut errors } = Watcher::start(&gateway, &[]);
    drop(output);
    wait_until("it has ended", || {
        gateway.get("/health");
        child.try_wait().unwrap().is_some()
    });
    let mut error = String::new();
    errors.read_to_string(&mut error).unwrap();
    assert!(child.wait().unwrap().success() && error.is_empty(), "{error}");
    let tap = Watcher::start(&gateway, &[]);
    gateway.signal("TERM");
    gateway.exit();
    let (code, error) = tap.end();
    assert_eq!(code, Some(1));
    assert!(error.contains("error: the gateway at 127.0.0.1:"), "{error}");
}

#[test]
fn mistakes_are_explained() {
    let text = config("", LIMITS).replace("[admin]\n", "[admin]\ntoken = \"t0ken\"\n");
    let gateway = Gateway::with_config(&text);
    let admin = format!("http://{}", gateway.admin);
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, args: &[&str], token: &str| {
        let mut command = program();
        command.current_dir(dir.path()).env("SLUICEGATE_ADMIN_TOKEN", token).arg(name).args(args);
        let output = command.output().unwrap();
        (output.status.code(), error_of(&output))
    };
    for (name, args, token, code, expected) in [
        ("tap", &["--admin", &admin][..], "", 1, "answered 401: send the admin token"),
        ("tap", &["--admin", &admin], "", 1, "set SLUICEGATE_ADMIN_TOKEN to a token with the role `keys`"),
        ("top", &["--admin", &admin], "wrong", 1, "this needs a token with the role `keys`"),
        ("tap", &["--admin", &admin, "--limit", "hart"], "t0ken", 1, "did you mean `hard`?"),
        ("tap", &["--admin", "127.0.0.1"], "", 2, "expected http://HOST:PORT or unix:PATH"),
        ("top", &["--admin", "http://127.0.0.1:1"], "", 1, "no gateway responds at 127.0.0.1:1"),
        ("top", &["--by", "denied"], "", 2, "invalid value 'denied'"),
    ] {
        let (found, error) = run(name, args, token);
        assert!(found == Some(code) && error.contains(expected), "{name} {args:?}: {found:?} {error}");
    }
    let (code, error) = run("top", &["--admin", &admin], "t0ken");
    assert_eq!(code, Some(0), "{error}");
    let output = command(&gateway, "top", &[]).output().unwrap();
    assert!(output.status.success(), "the token of the config: {}", error_of(&output));
}

#[test]
fn top_prints_its_list_once_into_a_pipe() {
    let gateway = Gateway::start(
        &LIMITS
            .replace("[limit.hard]", "[limit.path]\nrate = \"1/h\"\nkey = [\"path\"]\n\n[limit.hard]")
            .replace("[\"hard\"", "[\"path\", \"hard\""),
    );
    (0..4).for_each(|_| drop(gateway.get("/x")));
    let output = command(&gateway, "top", &["--limit", "path", "-n", "5"]).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", error_of(&output));
    assert!(text.starts_with("keys refused most, last 1m\nlimit path: 3 in all, 1 keys\n"), "{text}");
    let row = text.lines().last().unwrap();
    assert!(row.contains(" 100.0% ") && row.contains(" path ") && row.ends_with(" path=/x"), "{text}");
    assert!(text.chars().all(|char| char == '\n' || !char.is_control() && char != '\u{202e}'), "{text:?}");
}
