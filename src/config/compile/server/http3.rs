//! Option `http3` of a listener. Called by `listener`.

use crate::config::reader::Section;
use crate::config::schema::listener;
use crate::config::tree::Value;
use crate::config::{Http3Settings, Service};
use crate::net::ListenAddr;

/// Compiles `http3`: a boolean, or a table. `None`: the listener has no HTTP/3, or the option is wrong.
pub fn compile_http3(
    section: &Section,
    has_tls: bool,
    proxy_protocol: bool,
    service: Service,
    address: Option<&ListenAddr>,
) -> Option<Http3Settings> {
    let node = section.node(&listener::HTTP3)?;
    let settings = match &node.value {
        Value::Bool(false) => return None,
        Value::Bool(true) => {
            let max_age_s = section.default_of(&listener::http3::MAX_AGE);
            Http3Settings { advertise: None, max_age: max_age_s }
        }
        Value::Table(_) => {
            let http3 = section.read_section(&listener::HTTP3)?;
            let advertise = http3.get(&listener::http3::ADVERTISE);
            let max_age = http3.get(&listener::http3::MAX_AGE);
            http3.report_unread_keys();
            Http3Settings { advertise, max_age }
        }
        _ => return section.report_wrong_type(listener::HTTP3.name, "true, false or a table", node),
    };
    let (what, help) = if !has_tls {
        ("the listener has no `tls`, and HTTP/3 is always encrypted", "add `tls` to the listener, or remove `http3`")
    } else if matches!(address, Some(ListenAddr::Unix(_))) {
        (
            "HTTP/3 needs UDP, and the address is a Unix socket",
            "listen on an address like \"0.0.0.0:443\", or remove `http3`",
        )
    } else if proxy_protocol {
        (
            "there is no PROXY header over UDP, so clients of HTTP/3 would have the address of the balancer",
            "remove `http3`, or give clients of HTTP/3 a listener of their own",
        )
    } else if service != Service::Http {
        ("only listeners that proxy have HTTP/3", "remove `http3`, or set it on a listener with serve = \"http\"")
    } else {
        return Some(settings);
    };
    section.report_fault(listener::HTTP3.name, node, what, help)
}
