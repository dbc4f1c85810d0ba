//! A real nginx in front of the gateway.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ports::ReservedPort;
use super::wait_until;

/// The client that nginx reports, which connects to it from this machine.
pub const CLIENT: &str = "192.0.2.77";

pub struct Nginx {
    pub addr: SocketAddr,
    child: Child,
    _dir: TempDir,
    _port: ReservedPort,
}

impl Nginx {
    /// Starts nginx with the usual settings of a proxy. A request with a header `x-test-client` comes from that client,
    /// others from [`CLIENT`].
    pub fn in_front_of(gateway: SocketAddr) -> Nginx {
        Nginx::start(
            &format!("map $http_x_test_client $client {{ default $http_x_test_client; \"\" {CLIENT}; }}"),
            &format!(
                r#"
            proxy_pass http://{gateway};
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header X-Test-Client "";
            proxy_set_header X-Forwarded-For $client;
            proxy_set_header X-Forwarded-Proto $scheme;
"#
            ),
        )
    }

    /// Starts nginx as a server of the files of `folder`.
    pub fn serving(folder: &Path) -> Nginx {
        Nginx::start("", &format!("root {};", folder.display()))
    }

    /// `http`: directives of `http`; `location`: those of the only location.
    fn start(http: &str, location: &str) -> Nginx {
        let (port, dir) = (ReservedPort::new(), tempfile::tempdir().unwrap());
        let addr = port.addr();
        let text = format!(
            r#"
daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    client_max_body_size 0;
    {http}
    server {{
        listen {addr};
        location / {{
            {location}
        }}
    }}
}}
"#
        );
        std::fs::write(dir.path().join("nginx.conf"), text).unwrap();
        let child = Command::new("nginx")
            .args(["-p", &format!("{}/", dir.path().display()), "-c", "nginx.conf", "-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .expect("the tests need nginx: apt-get install nginx");
        let nginx = Nginx { addr, child, _dir: dir, _port: port };
        wait_until("nginx listens", || std::net::TcpStream::connect(addr).is_ok());
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
