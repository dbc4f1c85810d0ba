//! `sluicegate healthcheck`: asks the admin listener of a running gateway whether it is ready, so
//! that a container without a shell can be probed. Called by the command line.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use http::Uri;

use super::{BAD_CONFIG, RUNTIME};
use crate::config;
use crate::net::ListenAddr;

/// For the whole probe.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Of the answer; the status line and a short reason fit.
const MAX_ANSWER: usize = 4096;

pub fn healthcheck(config: &Path, url: Option<&str>) -> ExitCode {
    let asked = match url {
        Some(url) => match url.parse::<Uri>() {
            Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => ask_url(&uri),
            _ => {
                eprintln!("error: --url {url}: expected http://HOST:PORT/PATH");
                return ExitCode::from(BAD_CONFIG);
            }
        },
        None => ask(&admin_address(config), "/readyz", "localhost"),
    };
    match asked {
        Ok(200) => ExitCode::SUCCESS,
        Ok(status) => unhealthy(&format!("answered {status}")),
        Err(error) => unhealthy(&error.to_string()),
    }
}

fn unhealthy(why: &str) -> ExitCode {
    eprintln!("not ready: {why}");
    ExitCode::from(RUNTIME)
}

/// A gateway whose config was edited badly runs on with the old one, so a bad file is no reason
/// to call it unhealthy.
fn admin_address(config: &Path) -> ListenAddr {
    config::admin_address(config).unwrap_or_else(|| {
        eprintln!("{} does not tell where [admin] listens, asking {DEFAULT_ADMIN}", config.display());
        ListenAddr::Tcp(DEFAULT_ADMIN)
    })
}

const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);

fn ask_url(uri: &Uri) -> io::Result<u16> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let addr = (host, uri.port_u16().unwrap_or(80)).to_socket_addrs()?.next();
    let addr = addr.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    ask(&ListenAddr::Tcp(addr), path, uri.authority().map_or("localhost", |authority| authority.as_str()))
}

/// The status of `GET path`.
fn ask(addr: &ListenAddr, path: &str, host: &str) -> io::Result<u16> {
    let until = Instant::now() + TIMEOUT;
    match addr {
        ListenAddr::Tcp(addr) => {
            let stream = TcpStream::connect_timeout(&reachable(*addr), TIMEOUT)?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            exchange(&stream, |left| stream.set_read_timeout(Some(left)), until, path, host)
        }
        ListenAddr::Unix(file) => {
            let stream = UnixStream::connect(file)?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            exchange(&stream, |left| stream.set_read_timeout(Some(left)), until, path, host)
        }
    }
}

/// "All addresses" can be listened on but not dialled.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    addr
}

fn exchange<S: Read + Write>(
    mut stream: S,
    set_timeout: impl Fn(Duration) -> io::Result<()>,
    until: Instant,
    path: &str,
    host: &str,
) -> io::Result<u16> {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 512];
    while !answer.contains(&b'\n') && answer.len() < MAX_ANSWER {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_timeout(left)?;
        match stream.read(&mut piece)? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    status(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_read_from_the_first_line() {
        assert_eq!(status(b"HTTP/1.1 503 Service Unavailable\r\nx: y\r\n"), Some(503));
        assert_eq!(status(b"SSH-2.0-OpenSSH\r\n"), None);
        assert_eq!(status(b""), None);
    }

    #[test]
    fn all_addresses_means_this_machine() {
        assert_eq!(reachable("0.0.0.0:1".parse().unwrap()), "127.0.0.1:1".parse().unwrap());
        assert_eq!(reachable("[::]:1".parse().unwrap()), "[::1]:1".parse().unwrap());
    }
}
