//! `GET /`: open to everyone, without data, and with a policy that allows only its own parts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::support::gateway::{Gateway, config};

const ROUTES: &str = "[limit.secret-name]\nrate = \"1/s\"\n\n[[route]]\npath = \"/\"\nupstream = \"echo:\"\nlimits = [\"secret-name\"]\n";

/// The text of the only element `name`.
fn element<'t>(html: &'t str, name: &str) -> &'t str {
    let (_, rest) = html.split_once(&format!("<{name}>")).unwrap();
    rest.split_once(&format!("</{name}>")).unwrap().0
}

#[test]
fn the_page_needs_no_token_and_holds_no_data() {
    let gateway = Gateway::with_config(&config("", ROUTES).replace("[admin]\n", "[admin]\ntoken = \"hush\"\n"));
    let page = gateway.admin_request("GET", "/", "", "");
    assert_eq!((page.status(), page.get("content-type")), (200, Some("text/html; charset=utf-8")));
    let html = page.text();
    assert!(!html.contains("secret-name") && !html.contains("hush"));
    assert!(html.len() <= 152 * 1024, "{} bytes", html.len());
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        assert_eq!(page.get(name), Some(value), "{name}");
    }
    let hash = |name: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(element(&html, name))));
    let policy = page.get("content-security-policy").unwrap();
    let expected = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
        hash("script"),
        hash("style")
    );
    assert_eq!(policy, expected);
    assert_eq!(gateway.admin_request("HEAD", "/", "", "").status(), 200);
    let refused = gateway.admin_request("POST", "/", "", "");
    assert_eq!((refused.status(), refused.get("allow")), (405, Some("GET, HEAD")));
    // Under any host name too, because it shows nothing.
    let elsewhere = gateway.admin_request("GET", "/-/status", "", "");
    assert_eq!(elsewhere.status(), 401);
}
