//! The canonical method of a request, in upper case. Routes, limits and `replay` see only this form; upstream servers
//! get the method as the client sent it.

use http::Method;

use crate::ends::End;
use crate::proxy::head::reject::FaultPolicy;

/// Returns the canonical method. Methods are case-sensitive (RFC 9110, section 9.1), but some servers accept `post` for
/// `POST`. So a method with lower-case letters is read in upper case, and is a fault, as is one with other characters
/// than letters, `-` and `_`. All registered methods have only these.
///
/// CONNECT is refused in any case, because a server that accepts `connect` would open a tunnel. TRACE is a fault,
/// because servers return the headers that it has on its way, with cookies, credentials and what proxies add to them.
pub fn canonicalize_method(method: &Method, policy: &mut FaultPolicy) -> Result<Method, End> {
    let text = method.as_str();
    let upper = match text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Some(text.to_ascii_uppercase()),
        false => None,
    };
    match upper.as_deref().unwrap_or(text) {
        "CONNECT" => return Err(End::Connect),
        "TRACE" => policy.report(End::Trace)?,
        other if other.bytes().any(|byte| !byte.is_ascii_uppercase() && !b"-_".contains(&byte)) => {
            policy.report(End::MethodCharacter)?;
        }
        _ => {}
    }
    let Some(upper) = upper else { return Ok(method.clone()) };
    policy.report(End::MethodCase)?;
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
    fn strict_refuses_methods_in_another_case() {
        for method in ["GET", "POST", "PROPFIND", "M-SEARCH", "X_Y", "PURGE"] {
            assert_eq!(read(method, Strictness::Strict).as_deref(), Ok(method));
            let lower = method.to_ascii_lowercase();
            let mixed = format!("{}{}", &method[..1], &lower[1..]);
            for other in [lower, mixed] {
                assert_eq!(read(&other, Strictness::Strict), Err(End::MethodCase), "{other}");
                for strictness in [Strictness::Defensive, Strictness::Monitor] {
                    assert_eq!(read(&other, strictness).as_deref(), Ok(method), "{other}");
                }
            }
        }
    }

    #[test]
    fn strict_refuses_methods_with_characters_that_no_method_has() {
        for (method, upper) in [("G.T", "G.T"), ("M1", "M1"), ("a!", "A!"), ("GET%", "GET%")] {
            assert_eq!(read(method, Strictness::Strict), Err(End::MethodCharacter), "{method}");
            assert_eq!(read(method, Strictness::Defensive).as_deref(), Ok(upper));
        }
    }

    #[test]
    fn trace_passes_only_with_monitor() {
        for method in ["TRACE", "trace", "Trace"] {
            for strictness in [Strictness::Strict, Strictness::Defensive] {
                assert_eq!(read(method, strictness), Err(End::Trace), "{method}");
            }
            assert_eq!(read(method, Strictness::Monitor).as_deref(), Ok("TRACE"));
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
