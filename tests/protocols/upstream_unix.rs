//! Upstream servers on Unix sockets.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::support::client::{get, post};
use crate::support::gateway::{Gateway, config, laid_out, program};
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
        assert_eq!(client.ask(&get(target, ""), "").text(), target);
        assert_eq!(upstream.request().get("host"), Some("a.test"));
    }
    assert_eq!(client.ask(&post("/own/c", 3, ""), "xyz").text(), "/own/c");
    let request = upstream.request();
    assert_eq!((request.get("host"), request.body.as_slice()), (Some("localhost"), &b"xyz"[..]));
    assert_eq!(upstream.connections(), 1, "both upstreams name one server");
    gateway.assert_metric("upstream_requests_total", &[("upstream", "app"), ("outcome", "ok")], 2.0);
}

/// The program as one to whom permissions apply, which they do not to root.
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
        ("permission", "the gateway may not connect to the upstream server"),
    ];
    let routes =
        cases.map(|(name, _)| format!("[[route]]\npath = \"/{name}\"\nupstream = \"unix:{}\"\n", path(name).display()));
    let home = tempfile::tempdir().unwrap();
    let run = laid_out(home.path(), &config("", &routes.concat()));
    let gateway = Gateway::spawn(bound_by_permissions(run), home);
    for (name, detail) in cases {
        for _ in 0..3 {
            let answer = gateway.get(&format!("/{name}"));
            assert_eq!(answer.status(), 502, "{name}");
            assert_eq!(answer.json()["detail"], detail);
        }
        let told = format!("error={name}");
        let log = gateway.log();
        assert_eq!(log.lines().filter(|line| line.contains(&told)).count(), 1, "{log}");
    }
}
