//! Configs that load with a warning.

use sluicegate::config;

#[track_caller]
fn warned(text: &str) -> String {
    let config = config::load_text("test", text).unwrap_or_else(|report| panic!("{report}\n{text}"));
    config.warnings.map(|report| report.to_string()).unwrap_or_default()
}

#[test]
fn an_auth_server_that_names_no_user() {
    let limited = |auth: &str| {
        warned(&format!(
            "[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\nauth = {{ forward = \"http://127.0.0.1:1/\"{auth} }}\n\
             [limit.x]\nrate = \"1/s\"\nkey = \"user\""
        ))
    };
    for auth in ["", ", copy_headers = [\"x-other\"]"] {
        let warnings = limited(auth);
        assert!(warnings.contains("share one budget of `x`") && warnings.contains("copy_headers = ["), "{warnings}");
    }
    for auth in [", copy_headers = [\"remote-user\"]", ", copy_headers = [\"x-other\"], user = \"x-other\""] {
        assert_eq!(limited(auth), "");
    }
}

#[test]
fn a_redirect_to_itself_over_one_scheme() {
    let redirected =
        |to: &str| warned(&format!("[[route]]\nhost = [\"example.com\", \"www.example.com\"]\nredirect = \"{to}\""));
    let warnings = redirected("https://www.example.com{path}");
    assert!(
        warnings.contains("over HTTPS, `https://www.example.com/` leads") && warnings.contains("redirect_http"),
        "{warnings}"
    );
    assert!(redirected("http://example.com/x").contains("over plain HTTP"));
    for to in ["https://www.{host}{path}", "https://www.example.com:8443{path}", "https://example.org{path}"] {
        assert_eq!(redirected(to), "", "{to}");
    }
}

#[test]
fn hsts_for_development() {
    let warnings = |hsts: &str, tls: &str| {
        warned(&format!(
            "[[route]]\nupstream = \"echo:\"\n[[listener]]\naddress = \"127.0.0.1:1\"\nhsts = \"{hsts}\"\ntls = {{ {tls} }}"
        ))
    };
    let internal = "internal = { state = \"ca\" }";
    assert!(warnings("1d", internal).contains("with all its ports"));
    assert!(!warnings("0s", internal).contains("hsts"));
}

#[test]
fn a_token_that_expires_soon() {
    let warnings = |expires: &str| {
        warned(&format!(
            "[[route]]\nupstream = \"echo:\"\n[[admin.tokens]]\nname = \"ops\"\ntoken = \"a-secret-of-16-characters\"\n\
             role = \"edit\"\nexpires = \"{expires}\""
        ))
    };
    let in_days = |days: i64| (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days)).to_string();
    let expired = warnings("2020-01-31");
    assert!(expired.contains("the token `ops` has expired, at 2020-02-01T00:00:00Z"), "{expired}");
    let soon = warnings(&in_days(13));
    assert!(soon.contains("the token `ops` expires at ") && !soon.contains("secret"), "{soon}");
    assert_eq!(warnings(&in_days(15)), "");
}

/// A limit of a route whose upstream sheds load refunds what the upstream refuses. Rate limit requests reach no upstream.
#[test]
fn a_limit_that_refunds_overload_decides_rate_limit_requests() {
    let text = "[[route]]\nupstream = \"app\"\nlimits = [\"x\"]\n[limit.x]\nrate = \"1/s\"\nkey = \"all\"\n\
                [upstream.app]\nservers = [\"http://127.0.0.1:1\"]\nbreaker = { errors = 5 }\n\
                [[listener]]\naddress = \"127.0.0.1:1\"\nserve = \"grpc\"\n\
                [[rls]]\ndomain = \"edge\"\ndescriptor = { path = \"/a\" }\nlimits = [\"x\"]\n";
    assert_eq!(warned(text), "");
    let settled = text.replace("key = \"all\"\n", "key = \"all\"\nsettle = \"header:x-cost\"\n");
    assert!(config::load_text("test", &settled).unwrap_err().to_string().contains("depends on the response"));
}
