//! Authentication of the clients of a route (`auth`): passwords, tokens, the identity that follows from them, and the
//! order of authentication and limits.
//!
//! - `formats`: hashes that other programs made; `logins`: what clients send and get
//! - `guesses`: limits on guesses, floods of them, and remembered passwords
//! - `tokens`: JSON Web Tokens; `issuers`: the keys of their issuers; `identity`: who the upstream server, limits and the log believe the client is
//! - `stated_headers`: headers in which the gateway tells the server who the client is
//! - `protocols`: HTTP/2, gRPC, upgrades, redirects; `browser`: Chromium

mod browser;
mod formats;
mod guesses;
mod identity;
mod issuer;
mod issuers;
mod logins;
mod protocols;
mod stated_headers;
mod tokens;

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::app;
use crate::support::gateway::{Gateway, config, config_arguments};

/// A line of an htpasswd file, made by `htpasswd` with bcrypt at its lowest cost.
fn bcrypt(user: &str, password: &str) -> String {
    htpasswd(&["-nbB", "-C", "4", user, password])
}

/// Runs `htpasswd` and returns the line that it prints.
fn htpasswd(arguments: &[&str]) -> String {
    app::run("htpasswd", "apache2-utils", arguments).trim().to_owned() + "\n"
}

/// Starts a gateway whose routes may use the file `users`.
fn start(users: &str, rest: &str) -> Gateway {
    start_with("", users, rest)
}

/// Starts it with further lines in `[server]`.
fn start_with(server: &str, users: &str, rest: &str) -> Gateway {
    Gateway::launch(&[], |dir| {
        fs::write(dir.join("users"), users).unwrap();
        config_arguments(dir, &config(server, rest))
    })
}

/// The header of a user and a password.
fn basic(user: &str, password: &str) -> String {
    basic_bytes(format!("{user}:{password}").as_bytes())
}

fn basic_bytes(pair: &[u8]) -> String {
    format!("authorization: Basic {}\r\n", STANDARD.encode(pair))
}

/// Number of password checks with this result.
fn checks(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("password_checks_total", &[("result", result)]).unwrap()
}
