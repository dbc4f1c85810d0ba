//! Checks how the import translates Ingresses: trusted proxies, regular expressions of a whole host, names of upstreams.

use sluicegate::config;
use sluicegate::route::Action;

use super::output::import;

/// Imports a manifest. Returns the written config and the exit code.
#[track_caller]
fn imported(text: &str) -> (String, i32) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    let output = import("ingress-nginx", &path);
    let found = String::from_utf8(output.stdout).unwrap();
    let code = output.status.code().unwrap();
    assert!(matches!(code, 0 | 3), "{code}: {}", String::from_utf8_lossy(&output.stderr));
    config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    (found, code)
}

/// Writes an Ingress for `a.test` with annotations and paths: the path, its type and its service.
fn ingress(annotations: &[(&str, &str)], paths: &[(&str, &str, &str)]) -> String {
    let annotations: Vec<String> =
        annotations.iter().map(|(name, value)| format!("nginx.ingress.kubernetes.io/{name}: \"{value}\"")).collect();
    let paths: Vec<String> = paths
        .iter()
        .map(|(path, kind, service)| {
            format!(
                "{{path: \"{path}\", pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}"
            )
        })
        .collect();
    format!(
        "kind: Ingress\nmetadata: {{name: i, annotations: {{{}}}}}\nspec: {{rules: [{{host: a.test, http: {{paths: [{}]}}}}]}}\n",
        annotations.join(", "),
        paths.join(", ")
    )
}

/// Of two Ingresses with the same path, the controller takes the one that was created first.
#[test]
fn the_older_of_two_ingresses_has_the_path() {
    let one = |name: &str, created: &str, annotations: &[(&str, &str)]| {
        let created = if created.is_empty() { String::new() } else { format!(", creationTimestamp: \"{created}\"") };
        let text = ingress(annotations, &[("/", "Prefix", name)]);
        text.replace("{name: i,", &format!("{{name: {name}{created},"))
    };
    let guarded = [("whitelist-source-range", "10.0.0.0/8")];
    let both =
        |open: &str, closed: &str| imported(&format!("{}---\n{}", one("aaa", open, &[]), one("zzz", closed, &guarded)));
    let (text, exit) = both("2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z");
    assert!(text.contains("[\"10.0.0.0/8\"]") && text.contains("http://zzz.") && exit == 3, "{text}");
    assert!(!text.contains("http://aaa.") && text.contains("an older Ingress has the same path"), "{text}");
    let (text, exit) = both("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
    assert!(!text.contains("10.0.0.0/8") && text.contains("http://aaa.") && exit == 3, "{text}");
    // Without the times, either may be meant.
    for (open, closed) in [("", ""), ("2026-01-01T00:00:00Z", ""), ("", "2026-01-01T00:00:00Z")] {
        let (text, exit) = both(open, closed);
        assert!(text.contains("status = 501") && text.contains("these files do not say") && exit == 3, "{text}");
    }
}

/// ingress-nginx reads the client's address from a header only with `use-forwarded-headers`.
#[test]
fn proxies_are_trusted_only_if_the_controller_reads_their_header() {
    let map = |data: &str| {
        let map = "---\nkind: ConfigMap\nmetadata: {name: ingress-nginx-controller}\n";
        imported(&format!("{}{map}data: {{{data}}}\n", ingress(&[], &[("/", "Prefix", "app")])))
    };
    for (data, trusted, code) in [
        ("proxy-real-ip-cidr: 10.0.0.0/8", None, 0),
        ("proxy-real-ip-cidr: 10.0.0.0/8, use-forwarded-headers: \"false\"", None, 0),
        ("proxy-real-ip-cidr: 10.0.0.0/8, use-forwarded-headers: \"true\"", Some("10.0.0.0/8"), 0),
        ("use-forwarded-headers: \"true\", proxy-real-ip-cidr: 10.0.0.0/8", Some("10.0.0.0/8"), 0),
        ("use-forwarded-headers: \"true\"", Some("0.0.0.0/0"), 3),
        ("use-proxy-protocol: \"true\", proxy-real-ip-cidr: 10.0.0.0/8", None, 3),
    ] {
        let (found, exit) = map(data);
        let line = trusted.map(|trusted| format!("trusted_proxies = [\"{trusted}\"]"));
        assert_eq!(found.lines().find(|line| line.starts_with("trusted_proxies")), line.as_deref(), "{data}\n{found}");
        assert_eq!(exit, code, "{data}\n{found}");
    }
    let (found, code) = map("use-forwarded-headers: \"true\", forwarded-for-header: CF-Connecting-IP");
    assert!(code == 3 && found.contains("respond = { status = 501"), "{found}");
}

/// `use-regex` or a `rewrite-target` on one path makes all paths of the host regular expressions without case.
#[test]
fn one_rewrite_makes_all_paths_of_the_host_regular_expressions() {
    let plain = [("/admin", "Prefix", "admin"), ("/admin", "Exact", "one"), ("/x", "Exact", "x")];
    let (found, code) = imported(&ingress(&[], &plain));
    assert!(!found.contains("(?i)") && code == 0, "{found}");
    for (annotations, path) in [
        (&[("rewrite-target", "/$2")][..], "/foo(/|$)(.*)"),
        (&[("rewrite-target", "/$1")], "/foo/(.*)"),
        (&[("use-regex", "true")], "/foo"),
    ] {
        let manifest = format!(
            "{}---\n{}",
            ingress(annotations, &[(path, "ImplementationSpecific", "foo")]),
            ingress(&[], &plain)
        );
        let (found, _) = imported(&manifest);
        let paths: Vec<&str> = found.lines().filter(|line| line.starts_with("path = ")).collect();
        let foo = format!("path = \"~ (?i)^{}\"", path);
        assert!(paths.contains(&foo.as_str()), "{paths:#?}");
        for (path, service) in [("^/admin/", "admin"), ("^/admin", "one"), ("^/x", "x")] {
            let route = format!("path = \"~ (?i){path}\"\nupstream = \"{service}.default-80\"");
            assert!(found.contains(&route), "{route}\n{found}");
        }
        let at = |text: &str| paths.iter().position(|line| line.ends_with(text)).unwrap();
        assert!(at("^/admin/\"") < at("^/admin\""), "{paths:#?}");
        if annotations[0].0 == "rewrite-target" {
            assert!(found.contains("rewrite = { strip_prefix = \"/foo\" }"), "{found}");
        }
    }
    // A target that equals the path rewrites nothing.
    let (found, code) = imported(&ingress(&[("rewrite-target", "/")], &[("/", "Prefix", "app")]));
    assert!(!found.contains("(?i)") && found.contains("\nupstream = ") && code == 0, "{found}");
}

#[test]
fn services_with_long_names_stay_apart() {
    let long = "a".repeat(60);
    let manifest =
        ingress(&[], &[("/a", "Prefix", &long), ("/b", "Prefix", &long)]).replacen("number: 80", "number: 81", 1);
    let (found, code) = imported(&manifest);
    for (path, port) in [("/a", 81), ("/b", 80)] {
        let route = found.split(&format!("path = \"{path}\"\nupstream = \"")).nth(1).unwrap();
        let section =
            format!("[upstream.{}]\nservers = \"http://{long}.default.svc:{port}\"", route.split('"').next().unwrap());
        assert!(found.contains(&section), "{section}\n{found}");
    }
    assert_eq!(code, 0);
}

#[test]
fn requests_without_tls_are_not_served_in_silence() {
    for (value, code) in [("true", 3), ("false", 0)] {
        let (found, exit) = imported(&ingress(&[("force-ssl-redirect", value)], &[("/", "Prefix", "app")]));
        assert_eq!(exit, code, "{found}");
    }
}

#[test]
fn targets_have_the_groups_of_their_path() {
    for (path, target, expected, code) in [
        ("/v([0-9]+)/(.*)", "/api/$2/$1", Some("rewrite = { path = \"/api/{2}/{1}\" }"), 0),
        ("/api(/|$)(.*)", "/$2", Some("rewrite = { strip_prefix = \"/api\" }"), 3),
        ("/old", "/", Some("rewrite = { path = \"/\" }"), 0),
        ("/(.*)", "/$2", None, 3),
        ("/(?!x)(.*)", "/$1", None, 3),
        ("/(.*)", "https://b.test/$1", None, 3),
    ] {
        let (found, exit) = imported(&ingress(
            &[("use-regex", "true"), ("rewrite-target", target)],
            &[(path, "ImplementationSpecific", "app")],
        ));
        let route = found.split("[[route]]").skip(1).find(|route| route.contains("app.default-80")).unwrap_or("");
        match expected {
            Some(line) => assert!(route.contains(line) && !route.contains("501"), "{path} {target}\n{found}"),
            None => assert!(route.contains("status = 501"), "{path} {target}\n{found}"),
        }
        assert_eq!(exit, code, "{path} {target}\n{found}");
    }
}

#[test]
fn cors_is_that_of_the_routes() {
    let annotations = [
        ("enable-cors", "true"),
        ("cors-allow-origin", "https://a.test"),
        ("cors-allow-methods", "PUT, GET"),
        ("cors-max-age", "600"),
    ];
    let (found, code) = imported(&ingress(&annotations, &[("/", "Prefix", "app")]));
    assert!(found.contains("origins = [\"https://a.test\"], methods = [\"PUT\", \"GET\"]"), "{found}");
    assert!(found.contains("credentials = true, max_age = \"600s\""), "{found}");
    assert_eq!(code, 0, "{found}");
    // A `*` is one label.
    let annotations = [("enable-cors", "true"), ("cors-allow-origin", "https://*.a.test")];
    let (found, code) = imported(&ingress(&annotations, &[("/", "Prefix", "app")]));
    assert!(found.contains("~ https://[a-z0-9-]+") && code == 0, "{found}");
    let (found, code) =
        imported(&ingress(&[("enable-cors", "true"), ("cors-allow-origin", "a")], &[("/", "Prefix", "app")]));
    assert!(!found.contains("\ncors") && code == 3, "{found}");
    let (found, code) = imported(&ingress(&[("cors-allow-origin", "https://a.test")], &[("/", "Prefix", "app")]));
    assert!(!found.contains("\ncors") && code == 0, "{found}");
}

/// Header, then cookie, then weight, as ingress-nginx asks them; the main Ingress gives all other settings.
#[test]
fn canaries_share_the_routes_of_their_paths() {
    let main = ingress(&[("limit-rps", "5")], &[("/", "Prefix", "app"), ("/api", "Prefix", "api")]);
    let canary = |annotations: &[(&str, &str)], paths: &[(&str, &str, &str)]| {
        let all = [&[("canary", "true")], annotations].concat();
        // Also before the Ingress that it belongs to.
        imported(&format!("{}---\n{main}", ingress(&all, paths)))
    };
    let split =
        "split = [{ upstream = \"app.default-80\", weight = 90 }, { upstream = \"next.default-80\", weight = 10 }]";
    let (found, code) = canary(&[("canary-weight", "10")], &[("/", "Prefix", "next")]);
    assert!(found.contains(split) && found.contains("\nupstream = \"api.default-80\""), "{found}");
    assert_eq!((found.matches("limits = ").count(), code), (2, 0), "{found}");

    let header = [("canary-by-header", "X-Next"), ("canary-weight", "10")];
    let (found, code) = canary(&header, &[("/", "Prefix", "next")]);
    let route = |value: &str| {
        let condition = format!("header = {{ \"x-next\" = \"{value}\" }}");
        found.split("[[route]]").find(|route| route.contains(&condition)).unwrap_or("").to_owned()
    };
    assert!(
        route("always").contains("upstream = \"next.default-80\"") && route("always").contains("limits"),
        "{found}"
    );
    assert!(route("never").contains("upstream = \"app.default-80\"") && found.contains(split), "{found}");
    assert_eq!(code, 0, "{found}");

    let value = [("canary-by-header", "X-Next"), ("canary-by-header-value", "beta")];
    let (found, code) = canary(&value, &[("/", "Prefix", "next")]);
    assert!(found.contains("\"x-next\" = \"beta\"") && !found.contains("never") && !found.contains("split"), "{found}");
    assert_eq!(code, 0, "{found}");
    // A pattern, and a cookie, which comes after the header.
    let pattern = [("canary-by-header", "X-Next"), ("canary-by-header-pattern", "^b"), ("canary-by-cookie", "next")];
    let (found, code) = canary(&pattern, &[("/", "Prefix", "next")]);
    let conditions: Vec<&str> = found.lines().filter(|line| line.starts_with("header = ")).collect();
    let cookie = |value: &str| format!("header = {{ \"cookie\" = \"~ (?:^|; *)(?i:next) *= *{value}(?:;|$)\" }}");
    assert_eq!(conditions, ["header = { \"x-next\" = \"~ ^b\" }", &cookie("always"), &cookie("never")], "{found}");
    assert_eq!(code, 0, "{found}");
    // In a host with regular expressions, too.
    let regex = main.replace("limit-rps: \"5\"", "use-regex: \"true\"");
    let all = [("canary", "true"), ("canary-by-header", "X-Next"), ("canary-weight", "100")];
    let (found, _) = imported(&format!("{regex}---\n{}", ingress(&all, &[("/api", "Prefix", "next")])));
    assert!(found.contains("weight = 0 }, { upstream = \"next.default-80\", weight = 100 }"), "{found}");
    assert_eq!(found.matches("path = \"~ (?i)^/api\"").count(), 3, "{found}");

    for (annotations, path) in [
        (&[("canary-by-header", "X-Next"), ("canary-by-header-pattern", "a(?=b)")][..], "/"),
        (&[("canary-weight", "10"), ("limit-rps", "1")], "/"),
        (&[("canary-by-header", "X-Forwarded-For")], "/"),
        (&[("canary-weight", "10")], "/other"),
    ] {
        let (found, code) = canary(annotations, &[(path, "Prefix", "next")]);
        assert_eq!(code, 3, "{annotations:?} {path}\n{found}");
    }
}

/// The default backend of an Ingress with rules is for the paths of its hosts that no rule has. Without rules, it is for all
/// other hosts.
#[test]
fn default_backends_are_for_what_is_left() {
    let with_default = |text: &str, service: &str| {
        text.replacen(
            "spec: {",
            &format!("spec: {{defaultBackend: {{service: {{name: {service}, port: {{number: 80}}}}}}, "),
            1,
        )
    };
    let rules = |path: &str, service: &str| ingress(&[], &[(path, "Prefix", service)]);
    let route = |found: &str, host: &str, path: &str| {
        let config = config::load_text("imported", found).unwrap_or_else(|report| panic!("{report}\n{found}"));
        let index = config.table.find_route(&config.routes, host, path, &http::Method::GET, &http::HeaderMap::new());
        match index.map(|index| &config.routes[index].action) {
            Some(Action::Upstream(upstream)) => config.upstreams[*upstream].name.clone(),
            _ => "none".to_owned(),
        }
    };
    let alone = "---\nkind: Ingress\nmetadata: {name: all}\nspec: {defaultBackend: {service: {name: rest, port: {number: 80}}}}\n";
    for (text, expected) in [
        (with_default(&rules("/a", "x"), "d"), ["x.default-80", "d.default-80", "none"]),
        (format!("{}{alone}", rules("/a", "x")), ["x.default-80", "none", "rest.default-80"]),
        (
            format!("{}{alone}", with_default(&rules("/a", "x"), "d")),
            ["x.default-80", "d.default-80", "rest.default-80"],
        ),
        // A rule of another Ingress for all paths takes precedence.
        (
            format!("{}---\n{}", with_default(&rules("/a", "x"), "d"), rules("/", "y")),
            ["x.default-80", "y.default-80", "none"],
        ),
        // The host is that of the first Ingress.
        (
            format!("{}---\n{}", rules("/b", "y"), with_default(&rules("/a", "x"), "d")),
            ["x.default-80", "none", "none"],
        ),
    ] {
        let (found, code) = imported(&text);
        let routes =
            [("a.test", "/a"), ("a.test", "/z"), ("other.test", "/a")].map(|(host, path)| route(&found, host, path));
        assert_eq!(routes, expected, "{text}\n{found}");
        assert_eq!(code, 0, "{found}");
    }
}

/// Adds a ConfigMap to a manifest.
fn with_map(manifest: &str, name: &str, data: &str) -> String {
    format!("{manifest}---\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
}

/// Charts and administrators choose the name of the controller's ConfigMap.
#[test]
fn a_config_map_with_settings_of_a_controller_is_one() {
    let app = ingress(&[], &[("/", "Prefix", "app")]);
    for name in ["nginx-ingress-controller", "ingress-nginx-controller", "edge"] {
        let (found, code) = imported(&with_map(&app, name, "whitelist-source-range: 10.0.0.0/8"));
        assert!(found.contains("limits = [\"only-allowed-1\"]") && code == 0, "{name}\n{found}");
        let (found, code) = imported(&with_map(&app, name, "global-auth-url: \"http://auth/\""));
        assert!(!found.contains("\nupstream = ") && code == 3, "{name}\n{found}");
    }
    // Only the name is that of one: settings of another controller, and files of a web server.
    for (name, data, code, is_open) in [
        ("nginx-config", "keepalive: \"32\"", 3, true),
        ("nginx-config", "server-snippets: \"deny all;\"", 3, false),
        ("nginx-config", "nginx.conf: \"deny all;\"", 0, true),
        ("app", "AUTH: \"1\"", 0, true),
        ("ingress-nginx-controller", "annotation-jwt-check: \"true\", use-gzip: \"true\"", 3, false),
    ] {
        let (found, exit) = imported(&with_map(&app, name, data));
        assert_eq!((exit, found.contains("\nupstream = ")), (code, is_open), "{name} {data}\n{found}");
    }
}

/// Each controller has clients and settings of its own.
#[test]
fn ingresses_of_other_controllers_are_closed() {
    let of_class = |host: &str, class: &str| {
        let class = if class.is_empty() { String::new() } else { format!("ingressClassName: {class}, ") };
        ingress(&[], &[("/", "Prefix", "app")]).replace("a.test", host).replace("spec: {", &format!("spec: {{{class}"))
    };
    let both = |first: &str, second: &str| format!("{}---\n{}", of_class("a.test", first), of_class("b.test", second));
    let is_open = |found: &str, host: &str| {
        let route = found.split("[[route]]").find(|route| route.contains(&format!("host = \"{host}\"")));
        route.unwrap_or_else(|| panic!("{host}\n{found}")).contains("\nupstream = ")
    };
    for (first, second, code, expected) in
        [("nginx", "nginx", 0, true), ("nginx", "", 0, true), ("nginx-internal", "nginx-public", 3, false)]
    {
        let (found, exit) = imported(&both(first, second));
        assert_eq!((exit, is_open(&found, "a.test"), is_open(&found, "b.test")), (code, true, expected), "{found}");
    }
    // It may be for either of them.
    let (found, _) = imported(&format!("{}---\n{}", both("nginx-internal", "nginx-public"), of_class("c.test", "")));
    assert!(!is_open(&found, "c.test"), "{found}");
    let (found, _) = imported(&format!("{}---\n{}", of_class("c.test", ""), both("nginx-internal", "nginx-public")));
    assert!(!is_open(&found, "c.test") && is_open(&found, "a.test"), "{found}");
    // The settings of two controllers; the same settings twice are one.
    let app = of_class("a.test", "nginx");
    let first = with_map(&app, "internal", "whitelist-source-range: 10.0.0.0/8");
    let (found, code) = imported(&with_map(&first, "public", "whitelist-source-range: \"0.0.0.0/0,::/0\""));
    assert!(code == 3 && !is_open(&found, "a.test"), "{found}");
    let (found, code) = imported(&with_map(&first, "copy", "whitelist-source-range: 10.0.0.0/8"));
    assert!(code == 0 && is_open(&found, "a.test"), "{found}");
    // An `IngressClass` names the controller.
    let class = |name: &str, controller: &str| {
        format!("---\nkind: IngressClass\nmetadata: {{name: {name}}}\nspec: {{controller: {controller}}}\n")
    };
    let (found, code) = imported(&format!("{}{}", of_class("a.test", "edge"), class("edge", "k8s.io/ingress-nginx")));
    assert!(code == 0 && is_open(&found, "a.test"), "{found}");
    let other = class("nginx", "nginx.org/ingress-controller");
    let (found, code) = imported(&format!("{}---\n{}{other}", of_class("a.test", "nginx"), of_class("b.test", "")));
    assert!(code == 3 && !found.contains("a.test\"") && is_open(&found, "b.test"), "{found}");
}

/// A canary of another controller gets no requests.
#[test]
fn a_canary_of_another_class_is_left_out() {
    let of_class = |text: String, class: &str| text.replace("spec: {", &format!("spec: {{ingressClassName: {class}, "));
    let main = of_class(ingress(&[], &[("/", "Prefix", "app")]), "nginx-a");
    let canary = ingress(&[("canary", "true"), ("canary-weight", "10")], &[("/", "Prefix", "next")]);
    let (found, code) = imported(&format!("{main}---\n{}", of_class(canary, "nginx-b")));
    assert!(code == 3 && !found.contains("next.default"), "{found}");
}

/// Protections of other controllers, or with another prefix, do not get lost.
#[test]
fn annotations_of_other_controllers_are_comments() {
    let app = ingress(&[], &[("/", "Prefix", "app")]);
    for (annotation, code, is_open) in [
        ("nginx.org/basic-auth-secret: s", 3, false),
        ("nginx.com/jwt-key: k", 3, false),
        ("nginx.org/limit-req-rate: 10r/s", 3, false),
        ("appprotect.f5.com/app-protect-enable: \"True\"", 3, false),
        ("appprotect.f5.com/app-protect-enable: \"False\"", 3, true),
        ("custom.nginx.org/rate-limiting: \"on\"", 3, false),
        ("nginx.org/proxy-read-timeout: 5s", 3, true),
        ("ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/8", 3, false),
        ("ingress.kubernetes.io/app-root: /x", 3, false),
        ("edge.example.com/auth-url: \"http://auth/\"", 3, false),
        ("nginx.ingress.kubernetes.io/denylist-countries: XX", 3, false),
        ("nginx.ingress.kubernetes.io/strange: x", 3, true),
        ("cert-manager.io/revision-history-limit: \"1\"", 0, true),
        ("cert-manager.io/cluster-issuer: ca", 0, true),
        ("external-dns.alpha.kubernetes.io/hostname: a.test", 0, true),
    ] {
        let (found, exit) = imported(&app.replace("annotations: {", &format!("annotations: {{{annotation}")));
        assert_eq!((exit, found.contains("\nupstream = ")), (code, is_open), "{annotation}\n{found}");
    }
}

/// Client certificates and snippets of a server are those of a host, whatever Ingress has its other paths.
#[test]
fn protections_of_a_host_close_the_routes_of_other_ingresses() {
    for (annotation, is_of_host) in
        [("auth-tls-secret", true), ("server-snippet", true), ("auth-url", false), ("configuration-snippet", false)]
    {
        let admin = ingress(&[(annotation, "x")], &[("/admin", "Prefix", "admin")]);
        let app = ingress(&[], &[("/", "Prefix", "app")]);
        let other = app.replace("a.test", "b.test").replace("name: app", "name: other");
        for text in [format!("{admin}---\n{app}---\n{other}"), format!("{other}---\n{app}---\n{admin}")] {
            let (found, code) = imported(&text);
            assert_eq!((found.contains("\nupstream = \"app."), code), (!is_of_host, 3), "{annotation}\n{found}");
            assert!(found.contains("\nupstream = \"other.") && !found.contains("\nupstream = \"admin."), "{found}");
        }
    }
}

/// The gateway would wait for another time by default.
#[test]
fn timeouts_are_those_of_the_controller() {
    let app = ingress(&[], &[("/", "Prefix", "app")]);
    let (found, code) = imported(&app);
    assert!(found.contains("\nconnect_timeout = \"5s\"\nbody_timeout = \"60s\"\n") && code == 0, "{found}");
    let data = "proxy-connect-timeout: \"2\", proxy-read-timeout: \"90\", client-body-timeout: \"20\"";
    let (found, code) = imported(&with_map(&app, "ingress-nginx-controller", data));
    let lines = "connect_timeout = \"2s\"\nbody_timeout = \"20s\"\nresponse_timeout = \"90s\"\nstream_timeout = \"90s\"\n\
                 tunnel_timeout = \"90s\"\n";
    assert!(found.contains(lines) && code == 0, "{found}");
    let (found, code) = imported(&ingress(&[("proxy-read-timeout", "604800")], &[("/", "Prefix", "app")]));
    assert!(found.contains("response_timeout = \"86400s\"") && code == 3, "{found}");
}

/// A wrong value concerns one Ingress. The others are imported as if it were not there.
#[test]
fn a_wrong_value_closes_the_routes_of_its_ingress_only() {
    for (annotation, value) in [
        ("limit-rpm", "-1"),
        ("limit-rps", "5.5"),
        ("limit-connections", "abc"),
        ("limit-burst-multiplier", "x"),
        ("limit-whitelist", "garbage"),
        ("whitelist-source-range", "garbage"),
        ("denylist-source-range", "10.0.0.0/99"),
        ("proxy-body-size", "much"),
        ("proxy-read-timeout", "-5"),
    ] {
        let wrong = ingress(&[(annotation, value)], &[("/", "Prefix", "bad")]);
        let right = ingress(&[("limit-rps", "5")], &[("/", "Prefix", "good")]);
        let right = right.replace("{name: i,", "{name: j,").replace("a.test", "b.test");
        let (found, exit) = imported(&format!("{wrong}---\n{right}"));
        assert_eq!(exit, 3, "{annotation}: {value}\n{found}");
        assert!(found.contains(&format!("`{annotation} {value}`: ")) && found.contains("status = 501"), "{found}");
        assert!(!found.contains("\nupstream = \"bad"), "{found}");
        assert!(found.contains("rate = \"5/s\"") && found.contains("http://good."), "{found}");
    }
}
