//! Failures that clients or the gateway cause do not count against a server.

use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::fleet::{ControlledServer, app, of, shown};
use crate::support::client::{Client, get};
use crate::support::gateway::{Gateway, program};
use crate::support::ports::BlackHole;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const LONG: &str = "balance = \"round_robin\"\neject = { consecutive_errors = 3, for = \"10m\" }";

/// A server that takes half a second for each request.
fn slow() -> Upstream {
    Upstream::start(|peer| {
        while peer.request()?.is_some() {
            std::thread::sleep(Duration::from_millis(500));
            peer.send(ok("late"))?;
        }
        Ok(())
    })
}

#[test]
fn a_deadline_that_the_client_chose_is_no_error_of_the_server() {
    let servers = [slow(), slow()];
    let gateway = Gateway::start(&app(&servers.each_ref().map(Upstream::url), LONG));
    let units = ["100m", "0m", "0H", "1n", "99999999n", "100000u", "00000001m"];
    for round in 0..21_u8 {
        let mut client = gateway.client_from([127, 0, 0, 2 + round % 3]);
        let call = format!("content-type: application/grpc\r\ngrpc-timeout: {}\r\n", units[usize::from(round) % 7]);
        let response = client.fetch(&get("/any", &call), "");
        assert_eq!((response.status(), response.get("grpc-status")), (200, Some("4")));
    }
    let outcome = |outcome| [("upstream", "app"), ("outcome", outcome)];
    gateway.assert_metric("upstream_requests_total", &outcome("client_timeout"), 21.0);
    gateway.assert_metric("upstream_requests_total", &outcome("timeout"), 0.0);
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 0.0);
    assert!(!gateway.log().contains("kind=\"timeout\""), "{}", gateway.log());
    // A deadline longer than `response_timeout` makes no difference: the server is late.
    let config = "[[route]]\nname = \"app\"\nupstream = \"app\"\nresponse_timeout = \"100ms\"\n[upstream.app]\n";
    let urls = servers.each_ref().map(|server| format!("\"{}\"", server.url())).join(", ");
    let gateway = Gateway::start(&format!("{config}servers = [{urls}]\n{LONG}\n"));
    for round in 0..8_u8 {
        let call = "content-type: application/grpc\r\ngrpc-timeout: 99999999H\r\n";
        gateway.client_from([127, 0, 0, 2 + round % 3]).fetch(&get("/any", call), "");
    }
    gateway.assert_metric("upstream_requests_total", &outcome("timeout"), 8.0);
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 1.0);
}

/// Otherwise a client could have more requests processed at once than its slots allow.
#[test]
fn a_deadline_that_the_client_chose_frees_no_slot_while_the_server_works() {
    let server = slow();
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"{}\"\nlimits = [\"one\"]\n\
         [limit.one]\nalgorithm = \"concurrency\"\nin_flight = 1\nkey = \"ip\"\n",
        server.url()
    ));
    let call = get("/", "content-type: application/grpc\r\ngrpc-timeout: 1m\r\n");
    let statuses: Vec<_> = (0..3).map(|_| gateway.fetch(&call).get("grpc-status").unwrap().to_owned()).collect();
    assert_eq!(statuses, ["4", "8", "8"]);
    assert_eq!(server.requests().len(), 1);
    wait_until("the slot is free when the server has finished", || gateway.get("/").status() == 200);
}

/// A server that aborts a response if no more of it is read for a while. Counts these responses.
fn impatient(given_up: &Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, given_up) = (format!("http://{}", listener.local_addr().unwrap()), given_up.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), given_up) = (stream, given_up.clone()) else { continue };
            std::thread::spawn(move || {
                let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n");
                stream.set_write_timeout(Some(Duration::from_millis(1500))).unwrap();
                // The system takes some megabytes more than the gateway has read.
                while stream.write(&[b'x'; 65536]).is_ok() {}
                drop(stream);
                given_up.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    url
}

/// Servers abort responses that nobody reads. A slow client must not turn that into an error of the server.
#[test]
fn a_response_that_broke_off_behind_a_slow_reader_is_no_error_of_the_server() {
    let given_up = Arc::default();
    let gateway = Gateway::start(&app(&[impatient(&given_up), impatient(&given_up)], LONG));
    let mut readers: Vec<Client> = (0..6).map(|round| gateway.client_from([127, 0, 0, 2 + round % 3])).collect();
    for reader in &mut readers {
        SockRef::from(&*reader.stream()).set_recv_buffer_size(64 << 10).unwrap();
        reader.send(get("/", ""));
    }
    wait_until("the servers have given up", || given_up.load(Ordering::SeqCst) == readers.len());
    readers.iter_mut().for_each(|reader| drop(reader.try_read_response("GET").unwrap_err()));
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 0.0);
}

/// A slow server with one thread, and a queue for one more connection.
fn narrow() -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut head);
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    url
}

#[test]
fn one_client_cannot_eject_a_server_by_filling_its_queue() {
    let (url, other) = (narrow(), ControlledServer::start("other"));
    let server = url.trim_start_matches("http://").to_owned();
    let gateway = Gateway::with("connect_timeout = \"300ms\"", &app(&[url, other.url()], LONG));
    for address in [[127, 0, 0, 2], [127, 0, 0, 4]] {
        (0..2).for_each(|_| assert_eq!(gateway.client_from(address).fetch(&get("/", ""), "").status(), 200));
    }
    let mut flood: Vec<Client> = (0..60).map(|_| gateway.client_from([127, 0, 0, 3])).collect();
    flood.iter_mut().for_each(|client| client.send(get("/", "")));
    wait_until("connections time out", || gateway.log().contains("timed_out"));
    let unwell = flood.iter_mut().filter(|_| shown(&gateway, &server)["state"] != "up").count();
    flood.iter_mut().for_each(|client| drop(client.read_response("GET")));
    assert_eq!(unwell, 0, "the server serves other clients all the time");
    assert_eq!(shown(&gateway, &server)["state"], "up");
    gateway.assert_metric("upstream_ejected", &[("upstream", "app")], 0.0);
}

#[test]
fn a_server_that_accepts_no_connect_is_avoided_at_once_and_ejected_by_several_clients() {
    let (hole, other) = (BlackHole::new(), ControlledServer::start("other"));
    let server = hole.url().trim_start_matches("http://").to_owned();
    let gateway = Gateway::with("connect_timeout = \"100ms\"", &app(&[hole.url(), other.url()], LONG));
    (0..2).for_each(|_| assert_eq!(gateway.client_from([127, 0, 0, 2]).fetch(&get("/", ""), "").status(), 200));
    assert_eq!(shown(&gateway, &server)["state"], "refusing");
    assert_eq!(shown(&gateway, &server)["reason"], "timed_out");
    let mut addresses = (2..5).cycle();
    wait_until("errors of several clients eject it", || {
        let client = [127, 0, 0, addresses.next().unwrap()];
        assert_eq!(gateway.client_from(client).fetch(&get("/", ""), "").status(), 200);
        shown(&gateway, &server)["state"] == "ejected"
    });
    gateway.assert_metric("upstream_up", &of(&server), 0.0);
}

/// The gateway, its server and its clients in a network namespace with 41 local ports.
#[test]
fn no_server_is_blamed_for_the_ports_that_the_gateway_lacks() {
    const SCRIPT: &str = r#"
import json, socket, subprocess, sys, threading, time, http.client
program, home = sys.argv[1:]
open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('40000 40040')
held = socket.create_server(('127.0.0.1', 5000), backlog=200)
def serve(peer):
    while peer.recv(65536):
        time.sleep(1.5)
        peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok')
def accept():
    while True:
        threading.Thread(target=serve, args=[held.accept()[0]], daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
open(home + '/c.toml', 'w').write(f'''[server]
listen = ["unix:{home}/g.sock"]
workers = 1
[admin]
listen = "127.0.0.1:9900"
[[route]]
name = "app"
upstream = "app"
[upstream.app]
servers = ["http://127.0.0.1:5000"]
eject = {{ consecutive_errors = 2 }}
health = {{ type = "tcp", every = "100ms", unhealthy_after = 1 }}
''')
log = open(home + '/log', 'w')
gateway = subprocess.Popen([program, 'run', '--config', home + '/c.toml'], stderr=log)
while 'ready' not in open(home + '/log').read():
    time.sleep(0.05)
statuses = []
def ask():
    client = socket.socket(socket.AF_UNIX)
    client.connect(home + '/g.sock')
    client.sendall(b'GET / HTTP/1.1\r\nhost: a\r\n\r\n')
    statuses.append(client.recv(65536).split()[1].decode())
threads = [threading.Thread(target=ask) for _ in range(80)]
[thread.start() for thread in threads]
time.sleep(0.7)
page = http.client.HTTPConnection('127.0.0.1', 9900)
page.request('GET', '/-/upstreams')
shown = json.loads(page.getresponse().read())['upstreams'][0]['servers'][0]
[thread.join() for thread in threads]
gateway.kill()
said = open(home + '/log').read()
print(said, shown, statuses, sep='\n')
assert shown['state'] == 'up', shown
assert set(statuses) == {'200', '503'}, statuses
assert 'no local port left' in said and 'is down' not in said and 'accepts no' not in said
"#;
    let dir = tempfile::tempdir().unwrap();
    let run = "ip link set lo up && exec python3 -c \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", run, SCRIPT]);
    let output = command.arg(program().get_program()).arg(dir.path()).output().unwrap();
    let output_text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{output_text}");
}
