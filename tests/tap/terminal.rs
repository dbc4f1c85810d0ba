//! `sluicegate top` on a terminal, a pty that Python opens: keys, the reset, and the restored terminal after every kind
//! of end, with any keys that clients send.

use std::process::Command;

use serde_json::{Value, json};

use super::requests::LIMITS;
use crate::support::client::get;
use crate::support::gateway::{Gateway, program};

/// Runs a command on a pty: waits for each text of the output, then sends keys or a signal. Prints what the terminal
/// got, the exit code, and whether its modes are as before.
const PTY: &str = r#"
import json, os, pty, select, signal, sys, termios, time
steps, command = json.loads(sys.argv[1]), sys.argv[2:]
parent, child = pty.openpty()
termios.tcsetwinsize(child, (24, 120)) if hasattr(termios, "tcsetwinsize") else __import__("fcntl").ioctl(child, termios.TIOCSWINSZ, b"\x18\0\x78\0\0\0\0\0")
before = termios.tcgetattr(child)
pid = os.fork()
if pid == 0:
    os.setsid()
    for fd in (0, 1, 2):
        os.dup2(child, fd)
    os.execv(command[0], command)
output, place, end = b"", 0, time.time() + 20
def read():
    global output
    if time.time() > end:
        sys.exit("no %r in %r" % (steps, output[place:]))
    if select.select([parent], [], [], 0.05)[0]:
        output += os.read(parent, 65536)
while steps:
    wanted, action = steps.pop(0)
    while wanted.encode() not in output[place:]:
        read()
    place = output.index(wanted.encode(), place) + len(wanted.encode())
    if isinstance(action, int):
        os.kill(pid, action)
    else:
        os.write(parent, action.encode())
while True:
    ended, status = os.waitpid(pid, os.WNOHANG)
    read()
    if ended:
        break
while select.select([parent], [], [], 0.1)[0]:
    output += os.read(parent, 65536)
restored = termios.tcgetattr(child) == before
print(json.dumps({"output": output.decode("utf8", "replace"), "code": os.waitstatus_to_exitcode(status), "restored": restored}))
"#;

/// Runs `sluicegate top` with these steps, and returns its output. A step is a text to wait for, then keys or the
/// number of a signal.
fn play(gateway: &Gateway, steps: &Value) -> String {
    let program = program().get_program().to_owned();
    let mut python = Command::new("python3");
    python.args(["-c", PTY, &steps.to_string()]).arg(program);
    let output = python.args(["top", "-c"]).arg(gateway.config()).output().expect("python3 does not start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let played: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&played["code"], &played["restored"]), (&json!(0), &json!(true)), "{played}");
    let shown = played["output"].as_str().unwrap().to_owned();
    assert!(shown.starts_with("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l"), "{shown:?}");
    assert!(shown.ends_with("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l"), "{shown:?}");
    shown
}

const UP: &str = "\u{1b}[A";
const DOWN: &str = "\u{1b}[B";

#[test]
fn a_key_is_selected_and_reset_after_one_question() {
    let gateway = Gateway::start(LIMITS);
    for (key, count) in [("a", 5), ("b", 4)] {
        let statuses: Vec<u16> =
            (0..count).map(|_| gateway.fetch(&get("/", &format!("x-key: {key}\r\n"))).status()).collect();
        assert_eq!(statuses.last(), Some(&429));
    }
    let steps = json!([
        ["arrows: select", UP],
        ["arrows: select", DOWN],
        ["arrows: select", "r"],
        ["? y/n", "n"],
        ["not reset", "r"],
        ["? y/n", "y"],
        ["reset: ip=127.0.0.1,header:x-key#", "/nothing"],
        ["filter: nothing_", "\u{1b}"],
        ["arrows: select", "q"],
    ]);
    play(&gateway, &steps);
    let status = |key: &str| gateway.fetch(&get("/", &format!("x-key: {key}\r\n"))).status();
    assert_eq!((status("a"), status("b")), (429, 200), "the second row was selected");
}

#[test]
fn signals_and_ctrl_c_restore_the_terminal() {
    let gateway = Gateway::start(LIMITS);
    for end in [json!(15), json!(2), json!(1), json!("\u{3}"), json!("\u{4}")] {
        play(&gateway, &json!([["arrows: select", end]]));
    }
}

#[test]
fn keys_of_clients_control_no_terminal() {
    let hostile =
        LIMITS.replace("key = [\"ip\", \"header:x-key\"]", "key = [\"ip\", \"header:x-key\"]\nmode = \"enforce\"");
    let admin = "keys = { header = \"plain\" }\n";
    let text = crate::support::gateway::config("", &hostile).replace("[admin]\n", &format!("[admin]\n{admin}"));
    let gateway = Gateway::with_config(&text);
    let key = "x-key: a\u{9b}31m\u{202e}\u{85}\tb]0;owned\r\n";
    (0..4).for_each(|_| drop(gateway.fetch(&get("/", key))));
    let shown = play(&gateway, &json!([["header:x-key", "r"], ["? y/n", "n"], ["not reset", "q"]]));
    let own = [
        "\u{1b}[?1049h",
        "\u{1b}[?25l",
        "\u{1b}[?7l",
        "\u{1b}[?7h",
        "\u{1b}[?25h",
        "\u{1b}[?1049l",
        "\u{1b}[H",
        "\u{1b}[K",
        "\u{1b}[J",
        "\u{1b}[7m",
        "\u{1b}[0m",
        "\r\n",
        "\r",
    ];
    let rest = own.iter().fold(shown, |rest, sequence| rest.replace(sequence, ""));
    assert!(!rest.chars().any(|char| char.is_control() || char == '\u{202e}'), "{rest:?}");
}
