//! Python's file server, an HTTP/1.0 server: a tree of files and one of 1 GB.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use crate::support::app::App;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;
use crate::support::http::Message;

const LARGE: u64 = 1 << 30;
/// Offsets at which the large file is not zero. The rest is sparse and takes no space on disk.
const MARKS: [u64; 4] = [0, 65_535, LARGE / 2 + 17, LARGE - 4];
const MARK: &[u8] = b"mark";

fn tree(dir: &Path) {
    fs::create_dir(dir.join("sub dir")).unwrap();
    fs::write(dir.join("index.html"), "<h1>home</h1>\n").unwrap();
    fs::write(dir.join("sub dir/\u{e4}.txt"), "umlaut\n").unwrap();
    fs::write(dir.join("data.bin"), (0..200_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let mut large = fs::File::create(dir.join("large")).unwrap();
    large.set_len(LARGE).unwrap();
    for mark in MARKS {
        large.seek(SeekFrom::Start(mark)).unwrap();
        large.write_all(MARK).unwrap();
    }
}

/// The large file's bytes from `offset` on.
fn expected(offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for mark in MARKS {
        for (i, byte) in MARK.iter().enumerate() {
            let at = (mark + i as u64).checked_sub(offset).and_then(|at| usize::try_from(at).ok());
            if let Some(slot) = at.and_then(|at| bytes.get_mut(at)) {
                *slot = *byte;
            }
        }
    }
    bytes
}

fn kept(response: &Message) -> Vec<String> {
    let hop = ["connection", "date", "via", "transfer-encoding"];
    let mut fields: Vec<String> = response
        .fields()
        .filter(|(name, _)| !hop.contains(&name.to_ascii_lowercase().as_str()))
        .map(|(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
        .collect();
    fields.sort();
    fields
}

#[test]
fn a_tree_of_files_is_served_alike_and_1_gb_with_flat_memory() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let app = App::files(dir.path());
    let gateway = Gateway::start(&format!("[[route]]\npath = \"/\"\nupstream = \"{}\"\n", app.url()));
    let mut client = gateway.client();
    for (method, target, fields, status) in [
        ("GET", "/", "", 200),
        ("HEAD", "/data.bin", "", 200),
        ("GET", "/data.bin", "", 200),
        ("GET", "/sub%20dir/", "", 200),
        ("GET", "/sub%20dir", "", 301),
        ("GET", "/sub%20dir/%C3%A4.txt", "", 200),
        ("GET", "/missing", "", 404),
        ("GET", "/data.bin", "if-modified-since: Fri, 31 Dec 2100 00:00:00 GMT\r\n", 304),
        ("POST", "/data.bin", "content-length: 0\r\n", 501),
        ("HEAD", "/large", "", 200),
    ] {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: files.test\r\n{fields}\r\n");
        let direct = Client::connect(app.addr).fetch(&head, "");
        // One connection for all, though the server ends its own after every response.
        let through = client.fetch(&head, "");
        assert_eq!((direct.status(), through.status()), (status, status), "{method} {target}");
        assert_eq!(kept(&through), kept(&direct), "{method} {target}");
        assert!(through.body == direct.body, "{method} {target}: the bodies differ");
        assert!(through.start_line().starts_with("HTTP/1.1 "), "{}", through.start_line());
    }

    let memory = gateway.watch_memory();
    client.send(get("/large", ""));
    let (mut offset, mut whole) = (0, true);
    let head = client
        .stream_response("GET", |piece| {
            whole &= piece == expected(offset, piece.len());
            offset += piece.len() as u64;
        })
        .unwrap();
    assert_eq!((head.status(), offset, whole), (200, LARGE, true));
    let grown = memory.peak();
    assert!(grown < 20 << 20, "the gateway grew by {grown} bytes");
    assert_eq!(client.fetch(&get("/", ""), "").text(), "<h1>home</h1>\n");
}
