//! Translates `proxy_ssl_*` and `grpc_ssl_*`: how servers with TLS are verified, and which name and certificate they get.

use rustls::pki_types::ServerName;

use crate::import::model::ImportedConfig;
use crate::import::nginx::limits::keys::find_variables;
use crate::import::nginx::scope::Scope;
use crate::import::syntax::shorten;
use crate::text::quote_literal;

const UNVERIFIED_NOTE: &str = "nginx does not verify the certificates of upstream servers by default, so `verify = false` stands \
                               here. Remove it where the servers have valid certificates.";

/// Formats `tls` of an upstream. `module`: `proxy` or `grpc`. `block`: the name of the `upstream` block. The error says why
/// Sluicegate lacks it.
pub fn format_tls(
    module: &str,
    block: Option<&str>,
    scope: &Scope,
    out: &mut ImportedConfig,
) -> Result<Option<String>, String> {
    let find = |name: &str| scope.get(&format!("{module}_ssl_{name}")).filter(|at| !at.arg(0).is_empty());
    let is_on = |name: &str| find(name).is_some_and(|at| at.arg(0) == "on");
    let is_verified = is_on("verify");
    let mut parts = Vec::new();
    for (theirs, ours) in [("trusted_certificate", "ca"), ("certificate", "cert"), ("certificate_key", "key")] {
        // nginx reads no CAs without `verify`.
        let Some(directive) = find(theirs).filter(|_| is_verified || ours != "ca") else { continue };
        let what = format!("`{} {}`", directive.name, shorten(directive.arg(0)));
        if !find_variables(directive.arg(0)).is_empty() {
            return Err(format!("{what} depends on variables; write one route for each file"));
        }
        let path = directive.find_file().ok_or_else(|| format!("the import cannot read the file of {what}"))?;
        parts.push(format!("{ours} = {}", quote_literal(&path)));
    }
    // Without either of them, nginx neither checks nor sends a name.
    if is_verified || is_on("server_name") {
        let written = find("name").filter(|at| at.arg(0) != "$proxy_host");
        let has_variables = written.is_some_and(|at| !find_variables(at.arg(0)).is_empty());
        if let Some(directive) = written.filter(|_| has_variables) {
            let why = "a name with variables is not available, so the server gets the name of its URL or of its `upstream`, and \
                       its certificate must have that one";
            out.remarks.add(directive, why);
        }
        let name = written.filter(|_| !has_variables).map(|at| at.arg(0)).or(block);
        parts.extend(name.map(format_server_name).transpose()?);
    }
    if !is_verified {
        parts.push("verify = false".to_owned());
        out.add_note(UNVERIFIED_NOTE);
    }
    Ok((!parts.is_empty()).then(|| format!("tls = {{ {} }}", parts.join(", "))))
}

/// Formats the name of a server. nginx removes a port from it.
fn format_server_name(text: &str) -> Result<String, String> {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match text.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.contains(':') => name,
        _ => text,
    };
    match ServerName::try_from(name.to_owned()) {
        Ok(_) => Ok(format!("server_name = {}", quote_literal(name))),
        Err(_) => Err(format!("`{}` is not a name that a certificate can have", shorten(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_have_no_port() {
        for (text, expected) in [
            ("app.test", Some("server_name = \"app.test\"")),
            ("app.test:8443", Some("server_name = \"app.test\"")),
            ("my_app", Some("server_name = \"my_app\"")),
            ("10.0.0.1", Some("server_name = \"10.0.0.1\"")),
            ("::1", Some("server_name = \"::1\"")),
            ("a b", None),
            ("", None),
        ] {
            assert_eq!(format_server_name(text).ok().as_deref(), expected, "{text}");
        }
    }
}
