//! The key part `credential`: one budget for a credential, however a client spells it, and 400 for two of them. Also that
//! overrides, live overrides and the admin API have the same form, and refuse what no request can have.

use sluicegate::config;

use crate::support::client::get;
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

fn start(limit: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::text("in");
    let text = format!(
        "[[route]]\nupstream = \"{}\"\nlimits = [\"l\"]\n[limit.l]\nalgorithm = \"fixed_window\"\nrate = \"2/day\"\n{limit}\n",
        upstream.url()
    );
    (upstream, Gateway::start(&text))
}

#[test]
fn every_spelling_of_a_token_is_one_customer() {
    let (_upstream, gateway) = start("key = \"credential | credential:x-api-key\"\nmissing = \"refuse\"");
    let mut spellings = Vec::new();
    for bits in 0..64_u32 {
        let scheme: String = "bearer"
            .chars()
            .enumerate()
            .map(|(place, letter)| if bits >> place & 1 == 1 { letter.to_ascii_uppercase() } else { letter })
            .collect();
        for space in [" ", "  ", "\t"] {
            spellings.push(format!("authorization: {scheme}{space}sk-secret\r\n"));
        }
    }
    spellings.extend(["authorization: sk-secret\r\n".to_owned(), "x-api-key: sk-secret\r\n".to_owned()]);
    spellings.push("authorization: Bearer sk-secret\r\nx-api-key: sk-secret\r\n".to_owned());
    let mut client = gateway.client();
    let statuses: Vec<u16> = spellings.iter().map(|fields| client.fetch(&get("/", fields), "").status()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), statuses.len() - 2);
    for (fields, status) in [
        ("authorization: Bearer other\r\n", 200),
        ("authorization: Bearer a\r\nx-api-key: b\r\n", 400),
        ("authorization: Bearer a\r\nauthorization: Bearer a\r\n", 400),
        ("authorization: Bearer a, Bearer b\r\n", 400),
        ("authorization: Bearer a b\r\n", 400),
        ("authorization: Basic dXNlcjpwYXNz=\r\n", 400),
        ("x-api-key: a\r\nx-api-key: b\r\n", 400),
        ("authorization: Bearer\r\n", 403),
        ("", 403),
    ] {
        assert_eq!(gateway.fetch(&get("/", fields)).status(), status, "{fields}");
    }
    for key in ["Bearer%20sk-secret", "bearer%20%20sk-secret", "sk-secret"] {
        let state = gateway.admin(&format!("/-/limits/l/state?key={key}")).json();
        assert_eq!(state["remaining"], 0, "{key}");
    }
    assert_eq!(gateway.admin("/-/limits/l/state?key=Bearer%20a%20b").status(), 400);
}

#[test]
fn overrides_name_a_token_in_any_spelling() {
    let (_upstream, gateway) = start(
        "key = \"credential\"\noverrides = [{ key = \"bearer  sk-big\", rate = \"3/day\" }, { key = [\"sk-bad\"], rate = 0 }]",
    );
    let ask = |fields: &str| gateway.fetch(&get("/", fields)).status();
    assert_eq!([(); 4].map(|()| ask("authorization: BEARER sk-big\r\n")), [200, 200, 200, 429]);
    assert_eq!(ask("authorization: Bearer sk-bad\r\n"), 429);
}

/// A value that no request can have would be an entry without effect.
#[test]
fn values_that_no_request_has_are_mistakes() {
    for (key, value, remedy) in [
        ("path", "/a//b", "write `/a/b`"),
        ("path", "/a?b", "write `/a`"),
        ("path", "/%7ea", "write `/~a`"),
        ("method", "get", "write `GET`"),
        ("host", "example.com:443", "write `example.com`"),
        ("ip", "10.0.0.0/8", "not a network of this key"),
        ("ip", "nonsense", "not an address"),
        ("header:x-a", " a", "remove the spaces around it"),
        ("credential", "Bearer a b", "not one credential"),
        ("credential | credential:x-api-key", "Bearer a,b", "not one credential"),
    ] {
        let text = format!(
            "[[route]]\nupstream = \"echo:\"\nlimits = [\"l\"]\n[limit.l]\nrate = \"2/day\"\nkey = \"{key}\"\n\
             overrides = [{{ key = \"{value}\", rate = 0 }}]\n"
        );
        let report = config::load_text("test", &text).unwrap_err().to_string();
        assert!(report.contains(remedy), "{key} {value}: {report}");
        let free = text.replace(&format!("overrides = [{{ key = \"{value}\", rate = 0 }}]\n"), "");
        let config = config::load_text("test", &free).unwrap();
        let limit = &config.limits[0];
        let field = value.replace('%', "%25").replace(',', "%2C").into_bytes();
        let mut entries = [(field, b"rate=0".to_vec())].into();
        let live = limit.overrides.set_live(&limit.key, &mut entries).describe();
        assert!(live.as_ref().is_some_and(|mistake| mistake.contains(remedy)), "{key} {value}: {live:?}");
    }
}
