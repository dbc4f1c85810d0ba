//! Server addresses in upstreams: `http://HOST:PORT`, `https://HOST:PORT`, `h2c://HOST:PORT`, `unix:/PATH`, and services
//! `srv:NAME`. Called by `compile` and `shorthand`.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use crate::config::values::{TextFault, invalid_text, is_digits, is_host};
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{HeadBounds, Origin, SERVICE_PREFIX, Scheme, SocketProtocol, WireProtocol};

const HELP: &str =
    "write http://HOST:PORT, like \"http://127.0.0.1:3000\", https://HOST, h2c://HOST:PORT, unix:/PATH or srv:NAME";
const UNIX: &str = "unix:";
/// Longest path that the system accepts for a socket, in bytes.
const PATH_MAX: usize = 107;

/// Returns whether a text that could be a name is meant as a URL.
pub fn is_url(text: &str) -> bool {
    text.contains("://") || text.starts_with(UNIX) || split_service(text).is_some()
}

/// Checks the URL of a server.
///
/// # Errors
/// The text is not an origin. The error says why.
pub fn check_origin(text: &str) -> Result<(), TextFault> {
    const NEEDS_TLS: &str = "what `https` needs is asked for later";
    match parse_origin(text, WireProtocol::Auto, || invalid_text(NEEDS_TLS, "")) {
        Err(TextFault { what, .. }) if what == NEEDS_TLS => Ok(()),
        result => result.map(drop),
    }
}

/// Parses `http://HOST[:PORT]`, `https://HOST[:PORT]`, `h2c://HOST[:PORT]` or `unix:/PATH`. `protocol` applies where
/// the URL does not determine it; `tls` is called for `https`.
///
/// # Errors
/// What is wrong with the URL.
pub fn parse_origin(
    text: &str,
    protocol: WireProtocol,
    tls: impl FnOnce() -> Result<Arc<UpstreamTls>, TextFault>,
) -> Result<Origin, TextFault> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return parse_unix(path, protocol);
    }
    if let Some((scheme, name)) = split_service(text) {
        return parse_service(scheme, name, protocol, tls);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return invalid_text(format!("`{text}` is not a URL"), HELP);
    };
    if let Some(path) = rest.strip_prefix(UNIX) {
        let path = path.split(':').next().unwrap_or_default();
        return invalid_text("a Unix socket is written without a scheme", format!("write \"unix:{path}\""));
    }
    let default = match scheme {
        "http" | "h2c" => 80,
        "https" => 443,
        _ => return invalid_text(format!("`{scheme}://` is not supported for servers"), HELP),
    };
    let authority = parse_authority(rest, default)?;
    if let Some((host, _)) = authority.rsplit_once(':').filter(|(host, _)| is_service_name(host)) {
        let notation = if scheme == "http" { "srv".to_owned() } else { format!("srv+{scheme}") };
        return invalid_text(format!("`{host}` is a name of SRV records"), format!("write \"{notation}:{host}\""));
    }
    let scheme = match (scheme, protocol) {
        ("https", _) => Scheme::Https(tls()?),
        ("h2c", WireProtocol::Http1) => {
            return invalid_text(
                "`h2c` is HTTP/2, and `protocol` is \"http1\"",
                "write http://, or leave `protocol` out",
            );
        }
        ("h2c", _) | (_, WireProtocol::Http2) => Scheme::H2c,
        _ => Scheme::Http,
    };
    let origin = Origin { scheme, authority, is_service: false, head_bounds: HeadBounds::DEFAULT };
    if matches!(origin.scheme, Scheme::Https(_)) && ServerName::try_from(origin.bare_host()).is_err() {
        return invalid_text(
            format!("no certificate can contain the name `{}`", origin.bare_host()),
            "write a host name or an address",
        );
    }
    Ok(origin)
}

/// Splits the notation of a service: `srv:NAME`, `srv+https:NAME` or `srv+h2c:NAME`. Returns the scheme of its servers and the
/// name.
fn split_service(text: &str) -> Option<(&'static str, &str)> {
    let notations = [("srv:", "http"), ("srv+http:", "http"), ("srv+https:", "https"), ("srv+h2c:", "h2c")];
    notations.iter().find_map(|(prefix, scheme)| Some((*scheme, text.strip_prefix(prefix)?)))
}

fn parse_service(
    scheme: &str,
    written: &str,
    protocol: WireProtocol,
    tls: impl FnOnce() -> Result<Arc<UpstreamTls>, TextFault>,
) -> Result<Origin, TextFault> {
    const HELP: &str = "write srv:_SERVICE._PROTOCOL.DOMAIN, like \"srv:_http._tcp.app.example\"";
    let name = written.trim_start_matches('/').to_ascii_lowercase();
    let domain = name.strip_suffix('.').unwrap_or(&name);
    if written.starts_with('/') {
        return invalid_text("the name of a service has no slashes before it", format!("write \"srv:{name}\""));
    }
    if let Some((name, _)) = domain.split_once(':') {
        return invalid_text("SRV records state the ports of the servers", format!("write \"srv:{name}\""));
    }
    if !is_host(domain) {
        return invalid_text(format!("`{written}` is not the name of a service"), HELP);
    }
    let scheme = match (scheme, protocol) {
        ("https", _) => Scheme::Https(tls()?),
        ("h2c", _) | (_, WireProtocol::Http2) => Scheme::H2c,
        _ => Scheme::Http,
    };
    let authority = format!("{SERVICE_PREFIX}{name}");
    let origin = Origin { scheme, authority, is_service: true, head_bounds: HeadBounds::DEFAULT };
    match origin.is_secure() && ServerName::try_from(origin.bare_host()).is_err() {
        _ if origin.bare_host().starts_with('_') => invalid_text(format!("`{written}` has no domain"), HELP),
        true => invalid_text(format!("no certificate can contain the name `{}`", origin.bare_host()), HELP),
        false => Ok(origin),
    }
}

/// Returns true for names such as `_http._tcp.app.example`, which have SRV records and no addresses.
fn is_service_name(host: &str) -> bool {
    let mut labels = host.split('.');
    let is_service = labels.next().is_some_and(|label| label.starts_with('_'));
    is_service && labels.next().is_some_and(|label| matches!(label, "_tcp" | "_udp"))
}

fn parse_unix(path: &str, protocol: WireProtocol) -> Result<Origin, TextFault> {
    let plain = path.trim_start_matches('/');
    if let Some((path, _)) = path.split_once(':') {
        return invalid_text("a socket path cannot be followed by anything", format!("write \"unix:{path}\""));
    }
    match path.len() {
        _ if plain.is_empty() => invalid_text("the socket has no path", HELP),
        _ if !path.starts_with('/') => invalid_text(
            "the path of a socket starts at the root",
            format!("write it in full, like \"unix:/run/{plain}\""),
        ),
        // Two slashes are an empty authority.
        _ if path.starts_with("//") => {
            invalid_text("the path of a socket has one slash", format!("write \"unix:/{plain}\""))
        }
        _ if path.contains('\0') => invalid_text("a socket path cannot contain NUL", HELP),
        ..=PATH_MAX => {
            let spoken = if protocol == WireProtocol::Http2 { SocketProtocol::Http2 } else { SocketProtocol::Http1 };
            let scheme = Scheme::Unix(spoken);
            let (authority, head_bounds) = (path.to_owned(), HeadBounds::DEFAULT);
            Ok(Origin { scheme, authority, is_service: false, head_bounds })
        }
        _ => invalid_text(format!("the path of a socket may have {PATH_MAX} bytes at most"), "use a shorter path"),
    }
}

/// Returns `host:port` of the text after the scheme.
fn parse_authority(rest: &str, default: u16) -> Result<String, TextFault> {
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#']) {
        return invalid_text(
            "the URL of an upstream has no path or query",
            "use `rewrite = { add_prefix = \"/path\" }` on the route",
        );
    }
    if authority.contains('@') {
        return invalid_text(
            "the URL of an upstream cannot contain a user or password",
            "use `request_headers = { set = { authorization = \"...\" } }` on the route",
        );
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((ip, port)) => match ip.parse::<std::net::Ipv6Addr>() {
            Ok(ip) if port.is_empty() || port.starts_with(':') => (format!("[{ip}]"), port.strip_prefix(':')),
            _ => return invalid_text(format!("`{authority}` is not a host and port"), HELP),
        },
        None => match authority.split_once(':') {
            Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
            None => (authority.to_ascii_lowercase(), None),
        },
    };
    // A dot at the end makes a name absolute: it has no domain of the search list after it.
    if !host.starts_with('[') && !is_host(host.strip_suffix('.').unwrap_or(&host)) {
        return invalid_text(format!("`{host}` is not a host name or address"), HELP);
    }
    let port = match port.map(|port| port.parse::<u16>().ok().filter(|number| *number > 0 && is_digits(port))) {
        None => default,
        Some(Some(port)) => port,
        Some(None) => return invalid_text("the port must be a number from 1 to 65535", HELP),
    };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::trust::{Trust, TrustedRoots};

    #[test]
    fn servers_of_urls() {
        let roots = TrustedRoots::of_browsers();
        let tls =
            || Ok(Arc::new(UpstreamTls::new(Trust::Roots(roots.clone()), None, None, WireProtocol::Auto).unwrap()));
        let origin = |text| parse_origin(text, WireProtocol::Auto, tls);
        let shown = |text| origin(text).unwrap().to_string();
        assert_eq!(shown("h2c://App.Local"), "h2c://app.local:80");
        assert_eq!(shown("https://App.Local"), "https://app.local:443");
        assert_eq!(origin("https://[::1]").unwrap().bare_host(), "::1");
        assert_eq!(shown("http://App.Local"), "app.local:80");
        assert_eq!(shown("http://[::1]:3000/"), "[::1]:3000");
        assert_eq!(shown("https://App.Local."), "https://app.local.:443");
        assert_eq!(shown("unix:/run/app.sock"), "unix:/run/app.sock");
        for (text, host) in [("srv:_http._tcp.App.Local", "app.local"), ("srv+https:_https._tcp.a.test.", "a.test")] {
            let service = origin(text).unwrap();
            assert_eq!((service.to_string(), service.default_host()), (text.to_lowercase(), host));
            assert_eq!((service.hostname().is_some(), service.bare_host()), (true, host));
        }
        for text in [
            "app",
            "https://a..b",
            "h2://a",
            "http://",
            "http://a/b",
            "http://.",
            "http://a..:3000",
            "http://u@a",
            "http://a:0",
            "http://a:+1",
            "http://[::1]3",
            "http://a b",
            "unix:",
            "unix:/",
            "srv:",
            "srv:_http._tcp.a:80",
            "srv://_http._tcp.a",
            "srv+https:_https._tcp",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_notations_of_a_socket_are_reported_with_the_right_one() {
        for text in ["http://unix:/run/app.sock:/x", "unix:/run/app.sock:", "unix:app.sock", "unix:///run/app.sock"] {
            let help = check_origin(text).unwrap_err().help;
            assert!(help.ends_with("\"unix:/run/app.sock\""), "{text}: {help}");
        }
        assert!(check_origin(&format!("unix:/{}", "x".repeat(PATH_MAX))).is_err());
        assert!(check_origin(&format!("unix:/{}", "x".repeat(PATH_MAX - 1))).is_ok());
    }
}
