//! The ACME test server Pebble, and a name server that resolves every name to this machine, where Pebble validates
//! names. A failed test prints Pebble's log.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ca::Ca;
use super::client::{get, post};
use super::ports::ReservedPort;
use super::tls::Trust;
use super::wait_until;

/// The lifetime of certificates if a test states none.
const YEARS_S: u64 = 5 * 365 * 86_400;

pub struct Pebble {
    dir: TempDir,
    ca: Ca,
    acme: ReservedPort,
    management: ReservedPort,
    /// The ports on which Pebble validates names.
    pub http: ReservedPort,
    pub tls: ReservedPort,
    dns: SocketAddr,
    child: Option<Child>,
}

impl Pebble {
    /// Creates a server that does not run yet: connections are refused.
    pub fn down() -> Pebble {
        Pebble {
            dir: tempfile::tempdir().unwrap(),
            ca: Ca::new("of pebble's own certificate"),
            acme: ReservedPort::new(),
            management: ReservedPort::new(),
            http: ReservedPort::new(),
            tls: ReservedPort::new(),
            dns: name_server(),
            child: None,
        }
    }

    /// Has Pebble ask this name server.
    pub fn with_name_server(addr: SocketAddr) -> Pebble {
        let mut pebble = Pebble::down();
        pebble.dns = addr;
        pebble.run(&[("PEBBLE_VA_NOSLEEP", "1")], 0);
        pebble
    }

    /// Starts Pebble without delays. Its certificates are valid for years.
    pub fn start() -> Pebble {
        let mut pebble = Pebble::down();
        pebble.run(&[("PEBBLE_VA_NOSLEEP", "1")], 0);
        pebble
    }

    /// Starts Pebble with environment variables and a lifetime of certificates in seconds; 0 means years.
    pub fn run(&mut self, env: &[(&str, &str)], validity_s: u64) {
        self.ca.issue(&["127.0.0.1"], "pebble").save(self.dir.path(), "pebble");
        fs::write(self.ca_file(), self.ca.pem()).unwrap();
        let path = |name: &str| self.dir.path().join(name);
        let config = serde_json::json!({ "pebble": {
            "listenAddress": self.acme.addr().to_string(),
            "managementListenAddress": self.management.addr().to_string(),
            "certificate": path("pebble.pem"),
            "privateKey": path("pebble.key"),
            "httpPort": self.http.port(),
            "tlsPort": self.tls.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            // Old versions read the first of these, and new ones the second.
            "certificateValidityPeriod": validity_s,
            "profiles": {
                "default": { "description": "the usual one", "validityPeriod": if validity_s == 0 { YEARS_S } else { validity_s } },
                "shortlived": { "description": "six days", "validityPeriod": 6 * 86_400 },
            },
        }});
        fs::write(path("pebble.json"), config.to_string()).unwrap();
        let log = fs::OpenOptions::new().create(true).append(true).open(path("log")).unwrap();
        let child = Command::new("pebble")
            .arg("-config")
            .arg(path("pebble.json"))
            .args(["-dnsserver", &self.dns.to_string()])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start pebble: {error}; apt-get install pebble"));
        self.child = Some(child);
        let up = |addr: &SocketAddr| TcpStream::connect(addr).is_ok();
        wait_until("pebble is up", || [self.acme.addr(), self.management.addr()].iter().all(up));
    }

    /// Ends the server, which forgets its state.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.acme.addr())
    }

    /// The file with the CA of Pebble's own certificate.
    pub fn ca_file(&self) -> String {
        self.dir.path().join("ca.pem").display().to_string()
    }

    /// Returns that CA in PEM.
    pub fn own_ca(&self) -> String {
        self.ca.pem()
    }

    /// A client that trusts the certificates that Pebble issues.
    pub fn trust(&self) -> Trust {
        let mut management = Trust::in_ca(&self.ca).connect(self.management.addr(), "127.0.0.1");
        Trust::in_pem(&management.fetch(&get("/roots/0", ""), "").text())
    }

    /// Returns an entry of the directory, by its JSON pointer.
    pub fn directory_entry(&self, pointer: &str) -> Option<serde_json::Value> {
        let mut client = Trust::in_ca(&self.ca).connect(self.acme.addr(), "127.0.0.1");
        let directory: serde_json::Value =
            serde_json::from_str(&client.fetch(&get("/dir", "user-agent: test\r\n"), "").text()).unwrap();
        directory.pointer(pointer).cloned()
    }

    /// Has the server suggest that a certificate be renewed between two times.
    pub fn suggest_renewal(&self, certificate: &str, (start, end): (&str, &str)) {
        let info = serde_json::json!({ "suggestedWindow": { "start": start, "end": end } });
        let body = serde_json::json!({ "certificate": certificate, "ariResponse": info.to_string() }).to_string();
        let mut management = Trust::in_ca(&self.ca).connect(self.management.addr(), "127.0.0.1");
        let response = management.fetch(&post("/set-renewal-info/", body.len() as u64, ""), &body);
        assert_eq!(response.status(), 200, "{}", response.text());
    }

    /// Returns how often the log contains `words`.
    pub fn count(&self, words: &str) -> usize {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default().matches(words).count()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("--- log of pebble ---\n{}", fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
    }
}

/// A name server that lives as long as the test process. Every name has the address 127.0.0.1 and no other. Old versions
/// of Pebble ask over UDP, and new ones over TCP.
fn name_server() -> SocketAddr {
    let (listener, socket) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
            break (listener, socket);
        }
    };
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let Some(response) = build_response(&query[..length]) else { continue };
            let _ = socket.send_to(&response, from);
        }
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer_stream(stream));
        }
    });
    addr
}

/// Answers queries over TCP, each with its length before it, until the client closes the connection.
fn answer_stream(mut stream: TcpStream) -> Option<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut query = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut query).ok()?;
        let response = build_response(&query)?;
        let length = u16::try_from(response.len()).ok()?.to_be_bytes();
        stream.write_all(&[&length[..], &response].concat()).ok()?;
    }
}

/// RFC 1035: the head and the query, then the address if the query was for an address.
fn build_response(query: &[u8]) -> Option<Vec<u8>> {
    let name_end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)?;
    let question = query.get(12..name_end + 5)?;
    let is_a = query.get(name_end + 1..name_end + 3)? == [0, 1];
    let mut response = query[..2].to_vec();
    response.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    response.extend(question);
    if is_a {
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    Some(response)
}
