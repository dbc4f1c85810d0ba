//! `trusted_proxies`, `client_address` and `nat64` of `[server]`: how the address of a client is found.

use crate::config::client_address::{AddressHeader, AddressHeaders, ClientAddressRules};
use crate::config::diagnostics::codes::DiagnosticCode;
use crate::config::diagnostics::report::Diagnostic;
use crate::config::hints::foreign_words::fold_name;
use crate::config::reader::{At, Section};
use crate::config::schema::server;
use crate::config::values;
use crate::config::values::{TextFault, invalid_text};
use crate::net::{IpSet, Nat64, Nat64Prefix};
use crate::received_headers::may_name_client;

pub fn compile_client_address(section: &Section) -> ClientAddressRules {
    let nat64 = read_nat64(section);
    section.sources.set_nat64(nat64.clone());
    let networks =
        section.read_strings(&server::TRUSTED_PROXIES, |text| section.sources.parse_network(text)).unwrap_or_default();
    for At { place, .. } in networks.iter().filter(|network| network.value.prefix_len() == 0) {
        let what = "every client can choose its address: all peers are trusted proxies, whose headers name the client";
        let help = "list only the addresses of the proxies in front of the gateway";
        section.sources.add_warning(DiagnosticCode::ForgeableKey, Diagnostic::new(*place, what).with_help(help));
    }
    let trusted: IpSet = networks.into_iter().map(|at| at.value).collect();
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

/// Names of services and programs that are not presets, and what to write for each.
const OTHER_SERVICES: [(&str, &str); 15] = [
    ("akamai", "write \"true-client-ip\", and let Akamai send it"),
    ("alb", "write \"aws-alb\""),
    ("aws", "write \"aws-alb\"; a network load balancer needs `proxy_protocol` of [[listener]] instead"),
    (
        "awsnlb",
        "leave it out, and write `proxy_protocol = true` in [[listener]], as the load balancer sends no headers",
    ),
    ("caddy", "write \"x-forwarded-for\""),
    ("cloudfront", "write \"x-forwarded-for\""),
    ("envoy", "write \"x-forwarded-for\""),
    ("fastly", "write \"fastly-client-ip\""),
    ("gcp", "write \"x-forwarded-for\""),
    ("google", "write \"x-forwarded-for\""),
    ("haproxy", "write \"x-forwarded-for\""),
    ("nginx", "write \"x-forwarded-for\", or \"x-real-ip\" if it sends only that"),
    ("nlb", "leave it out, and write `proxy_protocol = true` in [[listener]], as the load balancer sends no headers"),
    ("traefik", "write \"x-forwarded-for\""),
    ("vercel", "write \"x-forwarded-for\""),
];

/// Parses a preset, or the name of a header. Another name for a preset or a service would be a header that no request has:
/// all clients would count as one.
fn parse_address_header(text: &str) -> Result<AddressHeader, TextFault> {
    let preset = PRESETS.iter().find(|(preset, _)| *preset == text);
    if preset.is_none() {
        let folded = fold_name(text);
        let what = || format!("`{text}` is neither a preset nor the name of a header with the client's address");
        if let Some((preset, _)) = PRESETS.iter().find(|(preset, _)| fold_name(preset) == folded) {
            return invalid_text(what(), format!("write \"{preset}\""));
        }
        if let Some((_, help)) = OTHER_SERVICES.iter().find(|(name, _)| *name == folded) {
            return invalid_text(what(), *help);
        }
    }
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
        Some(prefixes) => Nat64::with_prefixes(prefixes.into_iter().map(|at| at.value)),
        None => Nat64::default(),
    }
}
