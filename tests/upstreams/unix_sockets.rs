//! Upstream servers on Unix sockets.

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::support::client::{get, post};
use crate::support::gateway::{Gateway, config, config_arguments, program};
use crate::support::upstream::{Peer, Upstream, ok};

fn echo_target(peer: &mut Peer) -> io::Result<()> {
    while let Some(request) = peer.request()? {
        peer.send(ok(request.target()))?;
    }
    Ok(())
}

#[test]
fn requests_go_to_a_socket_and_its_connection_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let upstream = Upstream::at(&path, echo_target);
    let gateway = Gateway::start(&format!(
        "[[route]]\npath = \"/\"\nupstream = \"app\"\n[[route]]\npath = \"/own\"\nupstream = \"unix:{0}\"\n\
         rewrite = {{ upstream_host = true }}\n[upstream.app]\nservers = [\"unix:{0}\"]\n",
        path.display()
    ));
    let mut client = gateway.client();
    for target in ["/a", "/b"] {
        assert_eq!(client.fetch(&get(target, ""), "").text(), target);
        assert_eq!(upstream.request().get("host"), Some("a.test"));
    }
    assert_eq!(client.fetch(&post("/own/c", 3, ""), "xyz").text(), "/own/c");
    let request = upstream.request();
    assert_eq!((request.get("host"), request.body.as_slice()), (Some("localhost"), &b"xyz"[..]));
    assert_eq!(upstream.connections(), 1, "both upstreams name one server");
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 2.0);
}

/// The command of the program as a user to whom permissions apply, unlike root.
fn bound_by_permissions(arguments: Vec<String>) -> Command {
    let own = program();
    let mut command = Command::new("setpriv");
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.arg("--bounding-set=-dac_override,-dac_read_search");
    }
    command.arg("--").arg(own.get_program()).args(arguments);
    for (name, _) in own.get_envs() {
        command.env_remove(name);
    }
    command
}

#[test]
fn each_reason_not_to_get_there_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    drop(UnixListener::bind(path("refused")).unwrap());
    let _closed = UnixListener::bind(path("permission")).unwrap();
    std::fs::set_permissions(path("permission"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let cases = [
        ("refused", "no upstream server accepts connections"),
        ("no_socket", "the socket of the upstream server does not exist"),
        ("permission", "the gateway is not permitted to connect to the upstream server"),
    ];
    let routes =
        cases.map(|(name, _)| format!("[[route]]\npath = \"/{name}\"\nupstream = \"unix:{}\"\n", path(name).display()));
    let dir = tempfile::tempdir().unwrap();
    let run = config_arguments(dir.path(), &config("", &routes.concat()));
    let gateway = Gateway::spawn(bound_by_permissions(run), dir);
    for (name, detail) in cases {
        for _ in 0..3 {
            let response = gateway.get(&format!("/{name}"));
            assert_eq!(response.status(), 502, "{name}");
            assert_eq!(response.json()["detail"], detail);
        }
        let error = format!("error={name}");
        let log = gateway.log();
        assert_eq!(log.lines().filter(|line| line.contains(&error)).count(), 1, "{log}");
    }
}

/// A listener whose queue is full, and what fills it.
fn full_queue(path: &std::path::Path) -> (UnixListener, Vec<Socket>) {
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(path).unwrap()).unwrap();
    listener.listen(1).unwrap();
    let mut queued = Vec::new();
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        match socket.connect(&SockAddr::unix(path).unwrap()) {
            Ok(()) => queued.push(socket),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                return (listener.into(), queued);
            }
        }
    }
}

#[test]
fn requests_wait_in_order_while_the_queue_of_a_socket_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let (listener, queued) = full_queue(&path);
    let app = format!("[[route]]\nupstream = \"app\"\n[upstream.app]\nservers = [\"unix:{}\"]\n", path.display());
    let gateway = Gateway::start(&format!("{app}eject = {{ consecutive_errors = 1 }}"));
    let mut clients: Vec<_> = (0..6).map(|_| gateway.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(post(&format!("/{number}"), 0, ""));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(queued);
    let served = std::thread::spawn(move || {
        let mut served = Vec::new();
        while served.len() < 6 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let count = stream.read(&mut head).unwrap();
            if count > 0 {
                let target = String::from_utf8_lossy(&head[..count]).split(' ').nth(1).unwrap().to_owned();
                let close = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
                stream.write_all(close.as_bytes()).unwrap();
                served.push(target);
            }
        }
        served
    });
    for client in &mut clients {
        assert_eq!(client.read_response("POST").status(), 200);
    }
    assert_eq!(served.join().unwrap(), ["/0", "/1", "/2", "/3", "/4", "/5"]);
    assert!(!gateway.log().contains("WARN"), "{}", gateway.log());
}

#[test]
fn a_socket_whose_queue_stays_full_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let _full = full_queue(&path);
    let route = format!("[[route]]\nupstream = \"unix:{}\"\nconnect_timeout = \"300ms\"\n", path.display());
    let gateway = Gateway::start(&route);
    let begun = Instant::now();
    let mut clients: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/", "")));
    for client in &mut clients {
        let response = client.read_response("GET");
        assert_eq!(response.json()["detail"], "no upstream server accepted a connection in time");
    }
    let took = begun.elapsed();
    assert!((Duration::from_millis(300)..Duration::from_secs(3)).contains(&took), "{took:?}");
}
