//! `trusted_proxies`, `client_address` and `nat64` of `[server]`: how the address of a client is found.

use crate::config::client_address::{AddressHeader, AddressHeaders, ClientAddressRules};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::reader::{At, Section};
use crate::config::schema::server;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::net::{IpSet, Nat64, Nat64Prefix};
use crate::received_headers::may_name_client;

pub fn compile_client_address(section: &Section) -> ClientAddressRules {
    let nat64 = read_nat64(section);
    section.sources.set_nat64(nat64.clone());
    let trusted: IpSet = section
        .read_strings(&server::TRUSTED_PROXIES, |text| section.sources.parse_network(text))
        .map(|networks| networks.into_iter().map(|at| at.value).collect())
        .unwrap_or_default();
    let mut headers = read_headers(section);
    headers.max_hops = section.get(&server::MAX_FORWARDED_HOPS);
    if let (true, true, Some(node)) = (trusted.is_empty(), headers.is_configured, section.node(&server::CLIENT_ADDRESS))
    {
        let what = "`client_address` has no effect: there are no trusted proxies, so every peer is the client itself";
        let help = "list the proxies in front of the gateway in `trusted_proxies`";
        section.sources.add_warning(DiagnosticCode::RemovedHeader, Diagnostic::new(node.place, what).with_help(help));
    }
    ClientAddressRules { trusted, headers, nat64 }
}

fn read_headers(section: &Section) -> AddressHeaders {
    let Some(node) = section.node(&server::CLIENT_ADDRESS) else { return AddressHeaders::default() };
    let Some(items) = section.read_strings(&server::CLIENT_ADDRESS, parse_address_header) else {
        return AddressHeaders::default();
    };
    if items.is_empty() {
        let help = "name at least one header; without `trusted_proxies`, none is read";
        section.report_fault::<()>(server::CLIENT_ADDRESS.name, node, "no header is listed", help);
    }
    let mut headers: Vec<AddressHeader> = Vec::new();
    for At { place, value } in items {
        if headers.contains(&value) {
            let what = format!("`{value}` occurs twice");
            section.report_fault_at::<()>(server::CLIENT_ADDRESS.name, place, &what, "remove one of the two");
        } else {
            headers.push(value);
        }
    }
    AddressHeaders::from_config(headers)
}

/// Names of services that stand for the header in which these name the client.
const PRESETS: [(&str, &str); 4] = [
    ("cloudflare", "cf-connecting-ip"),
    ("fly", "fly-client-ip"),
    ("azure", "x-azure-clientip"),
    ("aws-alb", "x-forwarded-for"),
];

/// Parses a preset, or the name of a header.
fn parse_address_header(text: &str) -> Result<AddressHeader, TextFault> {
    let preset = PRESETS.iter().find(|(preset, _)| *preset == text);
    let name = values::parse_header_name(preset.map_or(text, |(_, header)| header))?;
    match name.as_str() {
        "forwarded" => Ok(AddressHeader::Forwarded),
        "x-forwarded-for" => Ok(AddressHeader::XForwardedFor),
        other if may_name_client(other) => Ok(AddressHeader::Single(name)),
        _ => invalid_text(
            format!("the header `{name}` does not name a client"),
            "name the header in which the proxy writes the client's address, like \"x-real-ip\" or \
             \"cf-connecting-ip\", or a preset: \"cloudflare\", \"fly\", \"azure\", \"aws-alb\"",
        ),
    }
}

fn read_nat64(section: &Section) -> Nat64 {
    let prefixes = section.read_strings(&server::NAT64, |text| match Nat64Prefix::parse(text) {
        Some(prefix) => Ok(prefix),
        None => invalid_text(
            format!("`{text}` is not a prefix of translated addresses"),
            "write an IPv6 network with 32, 40, 48, 56, 64 or 96 bits, like \"64:ff9b::/96\"",
        ),
    });
    match prefixes {
        Some(prefixes) => prefixes.into_iter().map(|at| at.value).collect(),
        None => Nat64::default(),
    }
}
