//! `sluicegate ui`: prints a link to the dashboard of a running gateway. If the gateway has a token, the link contains
//! a code that logs in once, so that the token itself is never in a URL.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::admin_client::{AdminReply, AdminRequest, resolve_admin_contact, send_json};
use crate::cli::report::{report_error, report_note};
use crate::cli::{ConfigFile, RUNTIME};
use crate::net::{ListenAddr, to_reachable};

#[derive(Args)]
pub struct UiOptions {
    #[command(flatten)]
    config: ConfigFile,
    /// What the link allows: metrics, read, keys, limits (also resets keys), or edit (also changes the config)
    #[arg(long, default_value = "limits", value_name = "ROLE")]
    role: String,
}

/// Time limit of each request.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 64 * 1024;

pub fn print_link(options: &UiOptions) -> ExitCode {
    match find_link(options) {
        Ok((link, note)) => {
            println!("{link}");
            report_note(note);
            ExitCode::SUCCESS
        }
        Err(error) => {
            report_error(error);
            ExitCode::from(RUNTIME)
        }
    }
}

/// Returns the link and a note about it.
fn find_link(options: &UiOptions) -> Result<(String, String), String> {
    let contact = resolve_admin_contact(&options.config.config)?;
    let ListenAddr::Tcp(addr) = contact.listen else {
        return Err(format!(
            "the admin listener is the Unix socket {}, which browsers cannot open; set `listen` in [admin] to an address \
             such as 127.0.0.1:9900",
            contact.listen
        ));
    };
    let addr = to_reachable(addr);
    let page = format!("http://{addr}/");
    let host = addr.to_string();
    let send = |method, path, token, body: &str| {
        let request = AdminRequest {
            method,
            path,
            host: &host,
            token,
            if_match: None,
            timeout: TIMEOUT,
            most: MAX_ANSWER,
            status_only: false,
        };
        send_json(&ListenAddr::Tcp(addr), &request, body)
            .map_err(|error| format!("no gateway responds at {addr}: {error}; pass its config with -c FILE"))
    };
    let Some(token) = &contact.token else {
        return match send("GET", "/-/status", None, "")?.status {
            200 => Ok((page, "no token is set: the dashboard needs no login from this machine".to_owned())),
            _ => {
                Err(format!("{addr} requires a token, and the config has none; pass the gateway's config with -c FILE"))
            }
        };
    };
    let reply = send("POST", "/-/session", Some(token), &json!({ "role": options.role }).to_string())?;
    read_code(&addr.to_string(), &page, &reply)
}

/// Returns the link with the code in `reply`.
fn read_code(addr: &str, page: &str, reply: &AdminReply) -> Result<(String, String), String> {
    let answer: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    match (reply.status, answer["code"].as_str()) {
        (200 | 201, Some(code)) if code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)) => {
            let seconds = answer["expires_in_seconds"].as_u64().unwrap_or_default();
            let note = format!("the link works once, within {seconds} s; the first browser that opens it is logged in");
            Ok((format!("{page}#code={code}"), note))
        }
        (401, _) => Err(format!("{addr} rejects the token in the config; pass the gateway's config with -c FILE")),
        (status, _) => {
            let detail = answer["detail"].as_str().unwrap_or("the response has no code");
            Err(format!("{addr} responded {status}: {detail}; open {page} and log in with a token"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> Result<(String, String), String> {
        read_code("127.0.0.1:9900", "http://127.0.0.1:9900/", &AdminReply { status, etag: None, body: body.to_owned() })
    }

    #[test]
    fn the_code_is_in_the_fragment() {
        let (link, note) = read(200, r#"{"code": "a-B_9", "expires_in_seconds": 60}"#).unwrap();
        assert_eq!(link, "http://127.0.0.1:9900/#code=a-B_9");
        assert!(note.contains("within 60 s"), "{note}");
    }

    #[test]
    fn a_response_without_a_code_is_an_error() {
        assert!(read(401, "{}").unwrap_err().contains("rejects the token"));
        assert!(read(403, r#"{"detail": "the role is too high"}"#).unwrap_err().contains("403: the role is too high"));
        for body in ["", "[]", r#"{"code": 7}"#, "{\"code\": \"\u{1b}[2J\"}", r#"{"code": "a b"}"#] {
            assert!(read(200, body).unwrap_err().contains("no code"), "{body}");
        }
    }
}
