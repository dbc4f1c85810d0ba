//! The canonical method of a request, in upper case. Routes, limits and `replay` see only this form; upstream servers
//! get the method as the client sent it.

use http::Method;

use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;

/// The methods of the IANA registry "Hypertext Transfer Protocol (HTTP) Method Registry", without `*`, sorted.
const REGISTERED: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Returns the canonical method. Methods are case-sensitive (RFC 9110, section 9.1), but some servers accept `post` for
/// `POST`. So a method with lower-case letters is read in upper case, and it is a fault if that form is registered.
///
/// CONNECT is refused in any case, because a server that accepts `connect` would open a tunnel.
pub fn canonicalize_method(method: &Method, policy: &mut FaultPolicy) -> Result<Method, End> {
    let text = method.as_str();
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return if *method == Method::CONNECT { Err(End::Connect) } else { Ok(method.clone()) };
    }
    let upper = text.to_ascii_uppercase();
    if upper == Method::CONNECT.as_str() {
        return Err(End::Connect);
    }
    if REGISTERED.binary_search(&upper.as_str()).is_ok() {
        policy.report(End::MethodCase)?;
    }
    // The upper-case form of a token is a token.
    Ok(Method::from_bytes(upper.as_bytes()).unwrap_or_else(|_| method.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Strictness;

    fn read(method: &str, strictness: Strictness) -> Result<String, End> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        canonicalize_method(&method, &mut FaultPolicy::new(strictness)).map(|method| method.to_string())
    }

    #[test]
    fn registered_methods_are_sorted() {
        assert!(REGISTERED.is_sorted());
    }

    #[test]
    fn strict_refuses_registered_methods_in_another_case() {
        for method in REGISTERED.iter().filter(|method| **method != "CONNECT") {
            assert_eq!(read(method, Strictness::Strict).as_deref(), Ok(*method));
            let lower = method.to_ascii_lowercase();
            let mixed = format!("{}{}", &method[..1], &lower[1..]);
            for other in [lower, mixed] {
                assert_eq!(read(&other, Strictness::Strict), Err(End::MethodCase), "{other}");
                for strictness in [Strictness::Defensive, Strictness::Monitor] {
                    assert_eq!(read(&other, strictness).as_deref(), Ok(*method), "{other}");
                }
            }
        }
    }

    #[test]
    fn methods_that_nobody_registered_are_read_in_upper_case() {
        for (method, upper) in [("purge", "PURGE"), ("Purge", "PURGE"), ("m-search", "M-SEARCH"), ("GETT", "GETT")] {
            assert_eq!(read(method, Strictness::Strict).as_deref(), Ok(upper));
        }
    }

    #[test]
    fn connect_is_refused_in_any_case() {
        for method in ["CONNECT", "connect", "Connect", "cONNECT"] {
            for strictness in [Strictness::Strict, Strictness::Defensive, Strictness::Monitor] {
                assert_eq!(read(method, strictness), Err(End::Connect), "{method}");
            }
        }
    }
}
