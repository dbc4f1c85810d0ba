//! `sluicegate healthcheck`: reports whether a running gateway is ready, so that containers without a shell can be
//! probed.

use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use http::Uri;

use crate::cli::admin_client::{AdminRequest, resolve_admin_contact, send_request};
use crate::cli::report::{report_error, report_failure};
use crate::cli::{BAD_CONFIG, RUNTIME};
use crate::net::ListenAddr;

/// Time limit for the whole probe.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of response bytes to read: the status line and a short reason fit.
const MAX_ANSWER: usize = 4096;

pub fn run_healthcheck(config: &Path, url: Option<&str>) -> ExitCode {
    let result = match url {
        Some(url) => match url.parse::<Uri>() {
            Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => ask_url(&uri),
            _ => {
                report_error(format_args!("--url {url}: expected http://HOST:PORT/PATH"));
                return ExitCode::from(BAD_CONFIG);
            }
        },
        None => match resolve_admin_contact(config) {
            Ok(contact) => fetch_status(&contact.listen, "/readyz", "localhost"),
            // Not the exit code of a bad config: container engines reserve it.
            Err(error) => {
                report_error(format_args!("{error} (`--url http://ADMIN_ADDRESS/readyz` needs no config)"));
                return ExitCode::from(RUNTIME);
            }
        },
    };
    match result {
        Ok(200) => ExitCode::SUCCESS,
        Ok(status) => print_unhealthy(&format!("answered {status}")),
        Err(error) => print_unhealthy(&error.to_string()),
    }
}

fn print_unhealthy(why: &str) -> ExitCode {
    report_failure(format_args!("not ready: {why}"));
    ExitCode::from(RUNTIME)
}

fn ask_url(uri: &Uri) -> io::Result<u16> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let addr = (host, uri.port_u16().unwrap_or(80)).to_socket_addrs()?.next();
    let addr = addr.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    fetch_status(&ListenAddr::Tcp(addr), path, uri.authority().map_or("localhost", |authority| authority.as_str()))
}

/// Returns the status of `GET path`.
fn fetch_status(addr: &ListenAddr, path: &str, host: &str) -> io::Result<u16> {
    let request = AdminRequest {
        method: "GET",
        path,
        host,
        token: None,
        if_match: None,
        timeout: TIMEOUT,
        most: MAX_ANSWER,
        status_only: true,
    };
    Ok(send_request(addr, &request)?.status)
}
