//! `auth = { jwt = NAME }`: which tokens are accepted, and what they are used for.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::token::{SECRET, hs256};
use crate::support::wait_until;

const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// `[jwt]` and `[jwt.staff]` with different keys.
fn verifiers() -> String {
    format!(
        "[jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n\
         [jwt.staff]\nkey = \"{OTHER}\"\nalgorithms = [\"HS256\"]\nissuer = [\"https://id.test\"]\n"
    )
}

fn start(auth: &str, rest: &str) -> Gateway {
    let route = format!("[[route]]\nname = \"r\"\nupstream = \"echo:\"\nauth = {{ {auth} }}\n{rest}\n{}", verifiers());
    Gateway::with("access_log = true", &route)
}

fn staff(claims: &str) -> String {
    bearer(&hs256(OTHER, &format!("{{\"iss\":\"https://id.test\",{claims}}}")))
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_token_must_be_valid_and_name_its_user() {
    let gateway = start("jwt = \"staff\", realm = \"staff\"", "");
    let valid = staff("\"sub\":\"alice\"");
    let echoed = gateway.fetch(&get("/", &valid));
    assert!(echoed.status() == 200 && echoed.text().contains("x-forwarded-user: alice\n"), "{}", echoed.text());
    // The application may need the other claims.
    assert!(echoed.text().contains("authorization: Bearer "), "{}", echoed.text());

    let missing = "Bearer realm=\"staff\"";
    let invalid = "Bearer realm=\"staff\", error=\"invalid_token\"";
    let old = now() - 3600;
    let signed = |claims: &str| bearer(&hs256(SECRET, claims));
    for (fields, challenge) in [
        (String::new(), missing),
        ("authorization: Basic YTpi\r\n".to_owned(), missing),
        ("authorization: Bearer\r\n".to_owned(), invalid),
        (bearer("junk"), invalid),
        (bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlzcyI6Imh0dHBzOi8vaWQudGVzdCJ9."), invalid),
        (signed("{\"sub\":\"alice\",\"iss\":\"https://id.test\"}"), invalid),
        (bearer(&hs256(OTHER, "{\"sub\":\"alice\"}")), invalid),
        (staff(&format!("\"sub\":\"alice\",\"exp\":{old}")), invalid),
        (staff(&format!("\"sub\":\"alice\",\"nbf\":{}", now() + 3600)), invalid),
        (staff("\"name\":\"alice\""), invalid),
        (staff("\"sub\":\"\""), invalid),
        (staff("\"sub\":\" alice\""), invalid),
        (staff("\"sub\":\"alice\\r\\nx-admin: 1\""), invalid),
        (staff("\"sub\":[\"alice\"]"), invalid),
        (staff(&format!("\"sub\":\"{}\"", "a".repeat(257))), invalid),
        (valid.repeat(2), invalid),
        (format!("{valid}authorization: Basic YTpi\r\n"), invalid),
    ] {
        let refused = gateway.fetch(&get("/", &fields));
        assert_eq!((refused.status(), refused.get("www-authenticate")), (401, Some(challenge)), "{fields}");
    }
    // Verified tokens are refused as well once they have expired.
    for _ in 0..2 {
        assert_eq!(gateway.fetch(&get("/", &staff("\"name\":\"alice\""))).status(), 401);
        assert_eq!(gateway.fetch(&get("/", &valid)).status(), 200);
    }
}

#[test]
fn a_token_expires_while_it_is_remembered() {
    let gateway = start("jwt = \"staff\"", "");
    // The clocks may differ by a minute.
    let fields = staff(&format!("\"sub\":\"alice\",\"exp\":{}", now() - 58));
    let since = std::time::Instant::now();
    let first = gateway.fetch(&get("/", &fields)).status();
    assert!(first == 200 || since.elapsed().as_secs() > 0, "{first}");
    std::thread::sleep(std::time::Duration::from_millis(3500));
    assert_eq!(gateway.fetch(&get("/", &fields)).status(), 401);
}

#[test]
fn claims_in_limits_are_those_of_the_authenticated_token() {
    let rest =
        "limits = [\"plan\"]\n[limit.plan]\nrate = \"1/h\"\nkey = [\"jwt:plan\", \"user\"]\nmissing = \"refuse\"\n";
    let gateway = start("jwt = \"staff\", user_claim = \"email\"", rest);
    let status = |fields: &str| gateway.fetch(&get("/", fields)).status();
    let anna = |plan: &str| staff(&format!("\"email\":\"anna@a.test\",\"plan\":\"{plan}\""));
    assert_eq!([status(&anna("free")), status(&anna("free")), status(&anna("paid"))], [200, 429, 200]);
    assert_eq!(status(&staff("\"email\":\"bert@a.test\",\"plan\":\"free\"")), 200);
    assert_eq!(status(&staff("\"email\":\"bert@a.test\"")), 403);
    wait_until("it is logged", || gateway.stdout().contains("\"user\":\"anna@a.test\""));
}

#[test]
fn the_unnamed_section_verifies_too() {
    let gateway = start("jwt = true, forward_credentials = false", "");
    let own = bearer(&hs256(SECRET, "{\"sub\":\"alice\"}"));
    let echoed = gateway.fetch(&get("/", &own)).text();
    assert!(echoed.contains("x-forwarded-user: alice") && !echoed.contains("authorization"), "{echoed}");
    assert_eq!(gateway.fetch(&get("/", &staff("\"sub\":\"alice\""))).status(), 401);
}

#[test]
fn limits_decide_before_a_signature_is_verified() {
    let rest = "[limit.guesses]\nrate = \"3/h\"\nkey = \"ip\"\ncharge_on = [401]\n";
    let gateway = start("jwt = \"staff\", limits = [\"guesses\"]", rest);
    let status = |fields: &str| gateway.fetch(&get("/", fields)).status();
    let valid = staff("\"sub\":\"alice\"");
    assert!((0..5).all(|_| status(&valid) == 200 && status("") == 401));
    let forged: Vec<u16> = (0..5).map(|one| status(&bearer(&format!("a.{one}.b")))).collect();
    assert_eq!(forged, [401, 401, 401, 429, 429]);
    // A token that was verified before needs no verification.
    assert_eq!([status(&valid), status(&staff("\"sub\":\"bob\""))], [200, 429]);
}
