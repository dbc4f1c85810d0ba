//! Explains which headers of clients limits and servers do not see as with nginx.

use crate::received_headers::{Visibility, find_visibility};

/// Returns why limits and servers do not see the header as a client sends it, unlike in nginx. `None` if they do.
pub fn explain_unseen(header: &str) -> Option<String> {
    match find_visibility(header) {
        Visibility::AsSent => None,
        Visibility::FromTrustedPeers => {
            Some(format!("Sluicegate removes `{header}`, unless a proxy in trusted_proxies sent it"))
        }
        _ => Some(format!("Sluicegate removes or rewrites `{header}` before anything reads it")),
    }
}
