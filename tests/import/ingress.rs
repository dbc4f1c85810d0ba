//! Checks how the import translates Ingresses: trusted proxies, regular expressions of a whole host, names of upstreams.

use sluicegate::config;

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
