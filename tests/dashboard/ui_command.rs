//! `sluicegate ui`: a link to the dashboard, and no secret in it but a code that works once.

use std::net::TcpListener;
use std::process::Output;
use std::thread::JoinHandle;

use crate::support::client::Client;
use crate::support::gateway::{Gateway, config, program};
use crate::support::write_atomically;

fn run_ui(config: &std::path::Path, arguments: &[&str]) -> (bool, String, String) {
    let Output { status, stdout, stderr } = program().args(["ui", "-c"]).arg(config).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

/// An admin listener that responds to one request; the thread returns the head and body of it.
fn respond_once(status: &str, body: &str) -> (std::net::SocketAddr, JoinHandle<String>) {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let response = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        while !seen.ends_with(b"}") {
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0);
            seen.extend_from_slice(&piece[..read]);
        }
        stream.write_all(response.as_bytes()).unwrap();
        String::from_utf8(seen).unwrap()
    });
    (addr, thread)
}

#[test]
fn without_a_token_the_link_is_the_page() {
    let gateway = Gateway::start("[[route]]\npath = \"/\"\nupstream = \"echo:\"\n");
    let (is_ok, link, note) = run_ui(&gateway.config(), &[]);
    assert!(is_ok && note.contains("no token is set"), "{note}");
    assert_eq!(link, format!("http://{}/\n", gateway.admin));
    let page = Client::connect(gateway.admin).fetch(&format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.admin), "");
    assert!(page.text().contains("<title>Sluicegate</title>"));
}

#[test]
fn with_a_token_the_link_has_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluicegate.toml");
    let (addr, seen) = respond_once("200 OK", r#"{"code": "Zm9v-9", "expires_in_seconds": 60}"#);
    let routes = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\n";
    let text = config("", routes)
        .replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\ntoken = \"hush\"\nlisten = \"{addr}\""));
    write_atomically(&file, &text);
    let (is_ok, link, note) = run_ui(&file, &["--role", "read"]);
    assert!(is_ok, "{note}");
    assert_eq!(link, format!("http://{addr}/#code=Zm9v-9\n"));
    assert!(note.contains("once, within 60 s") && !note.contains("hush"), "{note}");
    let seen = seen.join().unwrap().to_ascii_lowercase();
    assert!(seen.starts_with("post /-/session http/1.1\r\n"), "{seen}");
    for part in ["authorization: bearer hush", "content-type: application/json", r#"{"role":"read"}"#] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
}

#[test]
fn mistakes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sluicegate.toml");
    let routes = "[[route]]\npath = \"/\"\nupstream = \"echo:\"\n";
    write_atomically(
        &file,
        &config("", routes).replace("[admin]\nlisten = \"127.0.0.1:0\"", "[admin]\nlisten = \"unix:/tmp/none\""),
    );
    let (is_ok, link, note) = run_ui(&file, &[]);
    assert!(!is_ok && link.is_empty() && note.contains("Unix socket"), "{note}");
    let (addr, _seen) = respond_once("401 Unauthorized", "{}");
    let listen = format!("[admin]\ntoken = \"old\"\nlisten = \"{addr}\"");
    write_atomically(&file, &config("", routes).replace("[admin]\nlisten = \"127.0.0.1:0\"", &listen));
    let (is_ok, _, note) = run_ui(&file, &[]);
    assert!(!is_ok && note.contains("rejects the token"), "{note}");
}
