//! Finds the admin listener of a gateway, and sends requests to it. Called by the commands that ask a running gateway.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::net::{SocketAddrUnix, SocketType};
use serde_json::Value;

use crate::cli::ConfigFile;
use crate::cli::admin_client::{AdminReply, AdminRequest, resolve_admin_contact, send_json};
use crate::cli::visible::make_visible;
use crate::config;
use crate::control::local::connect_within;
use crate::net::{ListenAddr, to_reachable};

#[derive(Args)]
pub struct GatewayOptions {
    #[command(flatten)]
    pub config: ConfigFile,
    /// Admin listener of the gateway, instead of the one that the config names: http://HOST:PORT or unix:PATH.
    /// The token comes from --token-file, or SLUICEGATE_ADMIN_TOKEN, or else from the config
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// File with the token for the admin listener
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The admin listener of a gateway, and the token for it.
pub struct GatewayContact {
    pub listen: ListenAddr,
    host: String,
    token: Option<String>,
    /// The command line names the listener.
    is_given: bool,
}

/// A connection to the admin listener.
pub enum AdminConnection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

const TOKEN_VARIABLE: &str = "SLUICEGATE_ADMIN_TOKEN";
/// Time limit for a request that is not a stream. The screen of `top` does not respond in the meantime.
const TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_MAX: usize = 16 * 1024 * 1024;
/// Largest file with a token, in bytes.
const TOKEN_MAX: u64 = 4096;

impl GatewayOptions {
    /// Finds the gateway.
    ///
    /// # Errors
    /// What is wrong with `--admin` or `-c`.
    pub fn find_gateway(&self) -> Result<GatewayContact, String> {
        let env_token = match &self.token_file {
            Some(file) => Some(read_token(file)?),
            None => std::env::var_os(TOKEN_VARIABLE)
                .filter(|token| !token.is_empty())
                .map(|token| trim_token(&token.to_string_lossy()).map_err(|what| format!("{TOKEN_VARIABLE}: {what}")))
                .transpose()?,
        };
        let file: &Path = &self.config.config;
        let Some(url) = &self.admin else {
            let contact = resolve_admin_contact(file)?;
            return Ok(GatewayContact {
                listen: contact.listen,
                host: "localhost".to_owned(),
                token: env_token.or(contact.token),
                is_given: false,
            });
        };
        let (listen, host) = parse_admin_url(url)?;
        let token = env_token.or_else(|| config::find_admin_contact(file).and_then(|contact| contact.token));
        Ok(GatewayContact { listen, host, token, is_given: true })
    }
}

/// Reads the token in a file, which may end with a newline.
fn read_token(file: &Path) -> Result<String, String> {
    let refuse = |what: &str| format!("--token-file {}: {what}", file.display());
    // Opening a pipe would wait for its other end.
    let metadata = file.metadata().map_err(|error| refuse(&error.to_string()))?;
    if !metadata.is_file() || metadata.len() > TOKEN_MAX {
        return Err(refuse("it is not a file with a token"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| refuse(&error.to_string()))?;
    trim_token(&text).map_err(refuse)
}

/// Returns the token in a text, which may end with a newline. Other control characters would end the header with the token.
fn trim_token(text: &str) -> Result<String, &'static str> {
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => Err("it must contain one token, without spaces"),
    }
}

/// Parses `http://HOST:PORT`, `HOST:PORT` or `unix:PATH`. Returns the address and the value of `Host`.
fn parse_admin_url(url: &str) -> Result<(ListenAddr, String), String> {
    if let Some(path) = url.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok((ListenAddr::Unix(path.into()), "localhost".to_owned()));
    }
    let usage_error = || format!("--admin {url}: expected http://HOST:PORT or unix:PATH");
    if url.starts_with("https:") {
        let help = "the admin listener has no TLS; use http://, over a tunnel such as ssh -L from another machine";
        return Err(format!("--admin {url}: {help}"));
    }
    let uri: Uri = url.parse().map_err(|_| usage_error())?;
    let (None | Some("http"), Some(authority), "/" | "") = (uri.scheme_str(), uri.authority(), uri.path()) else {
        return Err(usage_error());
    };
    if uri.scheme().is_none() && authority.port().is_none() {
        return Err(usage_error());
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let mut addresses = (host, authority.port_u16().unwrap_or(80))
        .to_socket_addrs()
        .map_err(|error| format!("--admin {url}: {error}"))?;
    let addr = addresses.next().ok_or_else(|| format!("--admin {url}: the host has no address"))?;
    Ok((ListenAddr::Tcp(addr), authority.as_str().to_owned()))
}

impl GatewayContact {
    /// Sends a request and reads its response. The screen of `top` waits for it.
    pub fn send(&self, method: &str, path: &str) -> io::Result<AdminReply> {
        self.send_within(TIMEOUT, (method, path), None, "")
    }

    /// Sends a request with a JSON document as its body, which may be empty, and with the `if-match` header `tag`.
    pub fn send_within(
        &self,
        timeout: Duration,
        (method, path): (&str, &str),
        tag: Option<&str>,
        body: &str,
    ) -> io::Result<AdminReply> {
        let request = AdminRequest {
            method,
            path,
            host: &self.host,
            token: self.token.as_deref(),
            if_match: tag,
            timeout,
            most: ANSWER_MAX,
            status_only: false,
        };
        send_json(&self.listen, &request, body)
    }

    /// Sends a GET request whose response has no end, and returns the connection to read it from. `patience`: how long
    /// the gateway may be silent. With HTTP/1.0, the body of the response is not divided into chunks.
    pub fn open_stream(&self, path: &str, patience: Duration) -> io::Result<AdminConnection> {
        let mut connection = match &self.listen {
            ListenAddr::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(&to_reachable(*addr), TIMEOUT)?;
                stream.set_read_timeout(Some(patience))?;
                AdminConnection::Tcp(stream)
            }
            ListenAddr::Unix(file) => {
                let stream = connect_within(SocketType::STREAM, &SocketAddrUnix::new(file)?, TIMEOUT)?;
                let stream = UnixStream::from(stream);
                stream.set_read_timeout(Some(patience))?;
                AdminConnection::Unix(stream)
            }
        };
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let head = format!("GET {path} HTTP/1.0\r\nhost: {}\r\n{token}\r\n", self.host);
        connection.write_all(head.as_bytes())?;
        Ok(connection)
    }

    /// Describes a response other than 200. `role`: the role that the token needs.
    pub fn describe_refusal(&self, status: u16, body: &str, role: &str) -> String {
        let answer: Value = serde_json::from_str(body).unwrap_or_default();
        let detail = make_visible(answer["detail"].as_str().unwrap_or(body.trim()));
        let help = match (status, &self.token) {
            (401, None) => format!(
                "; set {TOKEN_VARIABLE} to a token with the role `{role}`, or name the config that has one with -c FILE"
            ),
            // The gateway has named the role.
            (401 | 403, _) if answer["required_role"].is_string() => String::new(),
            (401 | 403, _) => format!("; this needs a token with the role `{role}`"),
            (404, _) if answer["detail"].is_null() => "; is it an older gateway?".to_owned(),
            _ => String::new(),
        };
        format!("{} answered {status}: {detail}{help}", self.listen)
    }

    /// Describes a request without a response.
    pub fn describe_failure(&self, error: &io::Error) -> String {
        if error.kind() == io::ErrorKind::InvalidData {
            return format!("{} does not respond like an admin listener: {error}", self.listen);
        }
        let help = if self.is_given { "is this its admin listener?" } else { "pass its config with -c FILE" };
        format!("no gateway responds at {}: {error}; {help}", self.listen)
    }
}

impl Read for AdminConnection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            AdminConnection::Tcp(stream) => stream.read(bytes),
            AdminConnection::Unix(stream) => stream.read(bytes),
        }
    }
}

impl AdminConnection {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            AdminConnection::Tcp(stream) => stream.write_all(bytes),
            AdminConnection::Unix(stream) => stream.write_all(bytes),
        }
    }
}

/// Appends a parameter to a query, which may be empty.
pub fn add_parameter(query: &mut String, name: &str, value: &str) {
    query.push(if query.is_empty() { '?' } else { '&' });
    query.extend([name, "="]);
    query.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_url_is_an_address() {
        let parsed = |url| parse_admin_url(url).map(|(listen, host)| (listen.to_string(), host));
        assert_eq!(parsed("http://127.0.0.1:9900"), Ok(("127.0.0.1:9900".to_owned(), "127.0.0.1:9900".to_owned())));
        assert_eq!(parsed("http://[::1]:9900/"), Ok(("[::1]:9900".to_owned(), "[::1]:9900".to_owned())));
        assert_eq!(parsed("unix:/run/admin.sock"), Ok(("unix:/run/admin.sock".to_owned(), "localhost".to_owned())));
        assert!(parsed("127.0.0.1:9900").is_ok());
        assert!(parsed("https://127.0.0.1").unwrap_err().contains("has no TLS"));
        for wrong in ["", "127.0.0.1", "http://127.0.0.1/-/tap", "unix:", "http://"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    /// The token becomes a header, and a secret often ends with a newline.
    #[test]
    fn a_token_is_one_word() {
        assert_eq!(trim_token("secret\n").as_deref(), Ok("secret"));
        for wrong in ["", "\n", "a\nhost: b", "a b", "t\u{e9}", "\u{fffd}"] {
            assert!(trim_token(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn parameters_are_encoded() {
        let mut query = String::new();
        add_parameter(&mut query, "route", "!a&b");
        add_parameter(&mut query, "path", "/é?");
        assert_eq!(query, "?route=%21a%26b&path=%2F%C3%A9%3F");
    }
}
