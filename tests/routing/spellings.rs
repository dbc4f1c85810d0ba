//! A path is one path however a client spells it: routes, `auth`, limits and keys read one form, and servers that decode
//! the path they get read the same.

use percent_encoding::percent_decode_str;
use proptest::prelude::*;

use crate::support::client::{get, post};
use crate::support::gateway::Gateway;
use crate::support::upstream::Upstream;

/// What the server got in its request line.
fn sent_target(upstream: &Upstream) -> String {
    upstream.request().target().to_owned()
}

#[test]
fn reserved_characters_bypass_no_route_and_no_limit() {
    let gateway = Gateway::start(
        r#"
        [limit.twice]
        rate = "2/h"
        key = "all"
        [limit.page]
        rate = "1/h"
        key = "path"
        [limit.condition]
        rate = "1/h"
        key = "all"
        when = { path = "~ ^/c/@a$" }
        [limit.id]
        rate = "1/h"
        key = "param:id"

        [[route]]
        path = "/"
        respond = {}
        [[route]]
        path = "/@admin/"
        respond = { status = 403 }
        [[route]]
        path = "= /v1/models/g:predict"
        respond = {}
        limits = ["twice"]
        [[route]]
        path = "/k/"
        respond = {}
        limits = ["page"]
        [[route]]
        path = "/c/"
        respond = {}
        limits = ["condition"]
        [[route]]
        path = "/i/{id}"
        respond = {}
        limits = ["id"]
        "#,
    );
    let statuses = |targets: &[&str]| targets.iter().map(|target| gateway.get(target).status()).collect::<Vec<_>>();
    assert_eq!(statuses(&["/@admin/x", "/%40admin/x", "/%40%61dmin", "//%40admin/./x"]), [403; 4]);
    let models = ["/v1/models/g:predict", "/v1/models/g%3Apredict", "/v1/models/g%3apredict", "/v1/models/%67:predict"];
    assert_eq!(statuses(&models), [200, 200, 429, 429]);
    assert_eq!(statuses(&["/k/@a:b,c", "/k/%40a:b,c", "/k/@a%3Ab%2cc", "/k/@a%253Ab,c"]), [200, 429, 429, 200]);
    assert_eq!(statuses(&["/c/%40a", "/c/@a", "/c/%2540a"]), [200, 429, 200]);
    assert_eq!(statuses(&["/i/a@b", "/i/a%40b", "/i/a%2540b"]), [200, 429, 200]);
    // What a server could read as another path is refused in every spelling.
    assert_eq!(statuses(&["/x/..;/@admin", "/x/..%3B/@admin", "/x/%2e%2e%3b/@admin", "/%40admin%2Fx"]), [400; 4]);
}

#[test]
fn the_model_path_of_an_llm_api_has_no_second_spelling() {
    let gateway = Gateway::start(
        r#"
        [limit.tokens]
        rate = "100000/h"
        burst = 100000
        key = "all"
        cost = { reserve = { add = ["json:/generationConfig/maxOutputTokens"] } }
        [[route]]
        path = "/"
        respond = {}
        limits = ["tokens"]
        "#,
    );
    let mut client = gateway.client();
    // Nobody can read the body, so the request costs the most that one may cost, if the path is known.
    // If the first spelling were unknown, it would cost 1, and be admitted twice.
    let statuses = ["%3A", "%3A", ":"].map(|colon| {
        let path = format!("/v1beta/models/g{colon}generateContent");
        client.fetch(&post(&path, 1, "content-type: text/plain\r\n"), "x").status()
    });
    assert_eq!(statuses, [200, 429, 429]);
}

/// Signatures such as those of AWS are computed over the spelling, and `%3B` is no `;` for a Java server.
#[test]
fn servers_get_reserved_characters_as_the_client_wrote_them() {
    let upstream = Upstream::text("in");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[[route]]\nupstream = \"{url}\"\n\
         [[route]]\npath = \"/@s\"\nupstream = \"{url}\"\nrewrite = {{ strip_prefix = \"/@s\" }}\n\
         [[route]]\npath = \"/two/@s\"\nupstream = \"{url}\"\nrewrite = {{ strip_prefix = \"/two/@s\", add_prefix = \"/n\" }}\n\
         [[route]]\npath = \"/r/\"\nredirect = \"https://example.com{{path}}\"\n\
         [[route]]\npath = \"/p/{{id}}\"\nredirect = \"/q/{{id}}\"\n"
    ));
    for (target, sent) in [
        ("/arn%3Aaws;v=1/a%3bb?x=%3a", "/arn%3Aaws;v=1/a%3Bb?x=%3a"),
        ("/%61%3Ab", "/a%3Ab"),
        ("/x/%2e%2E/%40", "/%40"),
        ("/%40s/a%3Ab:c", "/a%3Ab:c"),
        ("/@s", "/"),
        ("/%40s?q", "/?q"),
        ("/%40sx", "/%40sx"),
        ("/two/%40s/%2B", "/n/%2B"),
        ("/two//%40s/+/", "/n/+/"),
    ] {
        assert_eq!(gateway.get(target).status(), 200, "{target}");
        assert_eq!(sent_target(&upstream), sent, "{target}");
    }
    for (target, location) in [("/r/%40%3B/a:b", "https://example.com/r/%40%3B/a:b"), ("/p/a%40b", "/q/a%40b")] {
        let response = gateway.get(target);
        assert_eq!((response.status(), response.get("location")), (308, Some(location)), "{target}");
    }
}

/// How a client spells a byte of a path: as it is, or with digits of either case.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    Plain,
    Upper,
    Lower,
}

fn any_spelling() -> impl Strategy<Value = Spelling> {
    prop_oneof![Just(Spelling::Plain), Just(Spelling::Upper), Just(Spelling::Lower)]
}

fn spell(bytes: impl Iterator<Item = (u8, Spelling)>) -> String {
    let spelled = bytes.map(|(byte, spelling)| match spelling {
        // A percent sign can be spelled in one way only.
        Spelling::Plain if byte != b'%' => char::from(byte).to_string(),
        Spelling::Lower => format!("%{byte:02x}"),
        _ => format!("%{byte:02X}"),
    });
    format!("/{}", spelled.collect::<String>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two spellings of a path share a budget of the key `path` if and only if a server decodes them to the same path.
    #[test]
    fn spellings_share_a_budget_if_a_server_decodes_them_alike(
        bytes in prop::collection::vec(
            (prop::sample::select(b"ab@:;+!$&'()*,=~%40".to_vec()), any_spelling(), any_spelling()),
            1..6,
        ),
        changed in prop::option::of(any::<prop::sample::Index>()),
    ) {
        thread_local! {
            static SERVED: (Upstream, Gateway) = {
                let upstream = Upstream::text("in");
                let url = upstream.url();
                let gateway = Gateway::start(&format!(
                    "[limit.page]\nrate = \"1/day\"\nkey = [\"path\", \"header:x-case\"]\n\
                     [[route]]\nupstream = \"{url}\"\nlimits = [\"page\"]\n"
                ));
                (upstream, gateway)
            };
        }
        let changed = changed.map(|index| index.index(bytes.len()));
        let one = spell(bytes.iter().map(|&(byte, spelling, _)| (byte, spelling)));
        let other = spell(bytes.iter().enumerate().map(|(at, &(byte, _, spelling))| match Some(at) == changed {
            true => (b'c', spelling),
            false => (byte, spelling),
        }));
        let decode = |path: &str| percent_decode_str(path).collect::<Vec<u8>>();
        SERVED.with(|(upstream, gateway)| {
            let case = format!("x-case: {one} {other} {:?}\r\n", std::time::Instant::now());
            let fetch = |path: &str| gateway.fetch(&get(path, &case)).status();
            assert_eq!(fetch(&one), 200, "{one}");
            assert_eq!(decode(&sent_target(upstream)), decode(&one));
            assert_eq!(fetch(&other), if changed.is_none() { 429 } else { 200 }, "{one} {other}");
            if changed.is_some() {
                assert_eq!(decode(&sent_target(upstream)), decode(&other));
            }
        });
    }
}
