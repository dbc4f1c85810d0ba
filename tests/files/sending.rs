//! What happens while a file is sent: it becomes shorter or longer, the gateway stops.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

use super::{ROUTES, site, site_with};
use crate::support::client::get;
use crate::support::frames::{StreamEnd, Wire};
use crate::support::gateway::Gateway;
use crate::support::wait_until;

/// More than sockets hold.
const LENGTH: u64 = 64 << 20;

fn large_file(gateway: &Gateway) -> File {
    let path = gateway.dir.path().join("dist/large.bin");
    let file = File::create(path).unwrap();
    file.set_len(LENGTH).unwrap();
    file
}

/// Asks for the large file and reads its head.
fn begin(gateway: &Gateway) -> TcpStream {
    let mut stream = gateway.client().into_stream();
    stream.write_all(get("/raw/large.bin", "connection: close\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(String::from_utf8_lossy(&head).contains(&format!("content-length: {LENGTH}")));
    stream
}

#[test]
fn a_file_that_becomes_shorter_cuts_its_response_off() {
    let gateway = site_with("access_log = true\n", ROUTES);
    let file = large_file(&gateway);
    let mut stream = begin(&gateway);
    file.set_len(1 << 20).unwrap();
    let mut body = Vec::new();
    let _ = stream.read_to_end(&mut body);
    assert!((body.len() as u64) < LENGTH);
    wait_until("the log line", || gateway.stdout().contains("file_cut_off"));

    // Over HTTP/2 the stream is reset, and others go on.
    file.set_len(LENGTH).unwrap();
    let mut wire = Wire::connect(gateway.addr, &[]);
    wire.get(1, "/raw/large.bin");
    wire.read_until("data", |frame| frame.kind == 0);
    file.set_len(1000).unwrap();
    wire.send([crate::support::frames::window(1, 1 << 30), crate::support::frames::window(0, 1 << 30)].concat());
    assert!(matches!(wire.read_response(1).ended, StreamEnd::Reset(_)));
    wire.get(3, "/raw/docs/");
    assert_eq!(wire.read_response(3).body, b"the docs");
}

#[test]
fn a_file_that_becomes_longer_is_sent_as_announced() {
    let gateway = site(ROUTES);
    let file = large_file(&gateway);
    let mut stream = begin(&gateway);
    file.write_all_at(&[b'x'; 100_000], LENGTH).unwrap();
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    assert_eq!(body.len() as u64, LENGTH);
    assert!(body.iter().all(|byte| *byte == 0));
}

#[test]
fn a_response_ends_before_the_gateway_stops() {
    let mut gateway = site(ROUTES);
    let _file = large_file(&gateway);
    let mut stream = begin(&gateway);
    gateway.signal("TERM");
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    assert_eq!(body.len() as u64, LENGTH);
    assert!(gateway.exit().success());
}

#[test]
fn clients_that_leave_close_their_files() {
    let gateway = site(ROUTES);
    let _file = large_file(&gateway);
    let open_files = || {
        let links = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap();
        links
            .filter(|link| std::fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to.ends_with("large.bin")))
            .count()
    };
    let streams: Vec<TcpStream> = (0..5).map(|_| begin(&gateway)).collect();
    assert_eq!(open_files(), 5);
    drop(streams);
    wait_until("all files are closed", || open_files() == 0);
}
