//! Values of annotations and of settings of the controller.

use ipnet::IpNet;

use crate::import::access::{RULES_MAX, parse_networks};
use crate::import::error::{ImportError, Result};
use crate::import::ingress::describe_node;
use crate::import::syntax::shorten;
use crate::import::yaml::YamlNode;

/// The largest number that an annotation may have.
const VALUE_MAX: u64 = 1_000_000;
/// The longest timeout of a route, in seconds.
const TIMEOUT_MAX_S: u64 = 86_400;
/// The remark about a longer one.
pub const CUT_TIMEOUT: &str = "Sluicegate waits for a day at most";
/// The options of a route that `proxy-connect-timeout` sets.
pub const CONNECT_TIMEOUTS: [&str; 1] = ["connect_timeout"];
/// The options of a route that `proxy-read-timeout` sets.
pub const READ_TIMEOUTS: [&str; 3] = ["response_timeout", "stream_timeout", "tunnel_timeout"];

/// Formats timeouts in seconds.
pub fn format_timeouts(names: &[&str], seconds: u64) -> Vec<String> {
    names.iter().map(|name| format!("{name} = \"{}s\"", seconds.clamp(1, TIMEOUT_MAX_S))).collect()
}

/// Returns whether a timeout in seconds is longer than a route allows.
pub fn is_cut_timeout(seconds: u64) -> bool {
    seconds > TIMEOUT_MAX_S
}

/// Parses the number of an annotation.
pub fn parse_number(key: &str, value: &str, node: &YamlNode) -> Result<u64> {
    let number = value.parse::<u64>().ok().filter(|number| *number <= VALUE_MAX);
    number.ok_or_else(|| {
        let message = format!("{key}: `{}` is not a number up to {VALUE_MAX}", shorten(value));
        ImportError::new(&node.file, node.line, message)
    })
}

/// Parses a comma-separated list of networks.
pub fn parse_network_list(value: &str, node: &YamlNode) -> Result<Vec<IpNet>> {
    let mut networks = Vec::new();
    for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let nets = parse_networks(text).filter(|_| networks.len() < RULES_MAX);
        let why = || format!("`{}` is not an address or a network, or there are more than {RULES_MAX}", shorten(text));
        networks.extend(nets.ok_or_else(|| ImportError::new(&node.file, node.line, why()))?);
    }
    Ok(networks)
}

/// Translates a size of nginx, such as `8m`.
pub fn translate_body_size(value: &str, node: &YamlNode) -> Result<String> {
    crate::import::nginx::translate_size(&describe_node("proxy-body-size", value, node))
}
