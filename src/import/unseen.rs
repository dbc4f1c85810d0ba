//! Explains which headers of clients limits do not see as the other program does.

use crate::received_headers::{Visibility, find_visibility};

/// Returns why limits do not see the header that a client sends, which nginx reads. `None` if they do.
pub fn explain_unseen(header: &str) -> Option<String> {
    match find_visibility(header) {
        Visibility::AsSent => None,
        Visibility::FromTrustedPeers => Some(format!(
            "Sluicegate removes `{header}`, unless a proxy in trusted_proxies sent it; key = \"ip\" counts the clients \
             that such proxies name"
        )),
        _ => Some(format!("Sluicegate removes or rewrites `{header}` before limits read it")),
    }
}
