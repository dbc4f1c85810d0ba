//! A single request to the admin listener of a running gateway, over TCP or a Unix socket. Called by the
//! subcommands that talk to one.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, SocketType};

use crate::cli::report::report_note;
use crate::cli::{CONFIG_VARIABLE, DEFAULT_CONFIG};
use crate::config;
use crate::config::AdminContact;
use crate::control::contact;
use crate::control::contact::RunningGateway;
use crate::control::local::connect_within;
use crate::net::{ListenAddr, to_reachable};

/// Default address of the admin listener.
const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);

/// A request.
pub struct AdminRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub host: &'a str,
    /// Value of the `authorization` header; `None` omits it.
    pub token: Option<&'a str>,
    /// Value of the `if-match` header; `None` omits it.
    pub if_match: Option<&'a str>,
    /// Time limit for the whole exchange.
    pub timeout: Duration,
    /// Maximum number of response bytes to read.
    pub most: usize,
    /// Stop reading after the status line.
    pub status_only: bool,
}

/// The response.
pub struct AdminReply {
    pub status: u16,
    /// Value of the `etag` header.
    pub etag: Option<String>,
    /// The part of the body that was read.
    pub body: String,
}

/// Returns the admin address and token of the gateway with the config at `path`: from the running process if it
/// answers, else from the file, else the default address. The token always comes from the file.
///
/// # Errors
/// The address cannot be known: this user may not read the file, or the command line names a file that neither exists
/// nor belongs to a running gateway. At the default address there may be another gateway.
pub fn resolve_admin_contact(path: &Path) -> Result<AdminContact, String> {
    let running = contact::find_running(path);
    let contact = config::find_admin_contact(path);
    let token = contact.as_ref().and_then(|contact| contact.token.clone());
    let listen = match (running, contact) {
        (RunningGateway::Found(listen), _) => listen,
        (_, Some(contact)) => contact.listen,
        (running, None) => {
            if let Some(error) = explain_unknown_address(path, &running) {
                return Err(error);
            }
            report_note(format_args!("{} does not set the admin address, trying {DEFAULT_ADMIN}", path.display()));
            ListenAddr::Tcp(DEFAULT_ADMIN)
        }
    };
    Ok(AdminContact { listen, token })
}

/// Returns why neither the process nor the file tells the address; `None` if the file can be read, or is the default
/// one and does not exist.
fn explain_unknown_address(path: &Path, running: &RunningGateway) -> Option<String> {
    let error = std::fs::File::open(path).err()?;
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let is_named = path != Path::new(DEFAULT_CONFIG) && std::env::var_os(CONFIG_VARIABLE).is_none_or(|it| it != path);
    let path = path.display();
    Some(match running {
        RunningGateway::Silent => format!(
            "cannot read {path}: {error}, and the process that runs with it does not report its admin address to this \
             user; run this as root or as the user of the gateway"
        ),
        _ if is_missing && !is_named => return None,
        _ if is_missing => format!("{path} does not exist, and no gateway runs with it"),
        _ => format!(
            "cannot read {path}: {error}, and no gateway that runs with it was found; run this as root or as the user of \
             the gateway"
        ),
    })
}

/// Sends a request without a body.
pub fn send_request(addr: &ListenAddr, request: &AdminRequest) -> io::Result<AdminReply> {
    send_json(addr, request, "")
}

/// Sends a request with a JSON document as its body; empty sends none.
pub fn send_json(addr: &ListenAddr, request: &AdminRequest, body: &str) -> io::Result<AdminReply> {
    let until = Instant::now() + request.timeout;
    match addr {
        ListenAddr::Tcp(addr) => {
            let stream = TcpStream::connect_timeout(&to_reachable(*addr), request.timeout)?;
            stream.set_write_timeout(Some(request.timeout))?;
            exchange_bytes(&stream, |left| stream.set_read_timeout(Some(left)), until, request, body)
        }
        ListenAddr::Unix(file) => {
            let addr = SocketAddrUnix::new(file)?;
            let stream = UnixStream::from(connect_within(SocketType::STREAM, &addr, request.timeout)?);
            exchange_bytes(&stream, |left| stream.set_read_timeout(Some(left)), until, request, body)
        }
    }
}

fn exchange_bytes<S: Read + Write>(
    mut stream: S,
    set_timeout: impl Fn(Duration) -> io::Result<()>,
    until: Instant,
    request: &AdminRequest,
    body: &str,
) -> io::Result<AdminReply> {
    let AdminRequest { method, path, host, .. } = request;
    let token = request.token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let length = if *method == "GET" { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let tag = request.if_match.map_or_else(String::new, |tag| format!("if-match: {tag}\r\n"));
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{token}{tag}{length}{kind}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while answer.len() < request.most && !(request.status_only && answer.contains(&b'\n')) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_timeout(left)?;
        // The system reports an expired deadline in this way.
        let read = stream.read(&mut piece).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        });
        match read? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    parse_reply(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the response is not HTTP"))
}

fn parse_reply(answer: &[u8]) -> Option<AdminReply> {
    let line = str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    let status = line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.trim_end().parse().ok()?;
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let (head, body) = end.map_or((&[][..], &[][..]), |end| (&answer[..end], &answer[end + 4..]));
    let lines = str::from_utf8(head).unwrap_or_default().lines();
    let tag = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("etag"));
    let etag = tag.map(|(_, value)| value.trim().to_owned());
    Some(AdminReply { status, etag, body: String::from_utf8_lossy(body).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_read_from_the_first_line() {
        let status = |answer: &[u8]| parse_reply(answer).map(|reply| reply.status);
        assert_eq!(status(b"HTTP/1.1 503 Service Unavailable\r\nx: y\r\n"), Some(503));
        assert_eq!(status(b"SSH-2.0-OpenSSH\r\n"), None);
        assert_eq!(status(b""), None);
        assert_eq!(parse_reply(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n{}").unwrap().body, "{}");
    }
}
