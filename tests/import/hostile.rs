//! Imports hostile files. Each import ends soon with an error that has the file and the line.

use std::path::Path;

use proptest::prelude::*;

use super::output::import;

/// Imports a file that must be refused with exit code 2, and returns the error.
#[track_caller]
fn refused(from: &str, path: &Path) -> String {
    let output = import(from, path);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    error
}

#[track_caller]
fn assert_refused(text: impl AsRef<[u8]>, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.conf");
    std::fs::write(&path, text).unwrap();
    let error = refused("nginx", &path);
    assert!(error.contains("a.conf") && error.contains(expected), "{error}");
}

#[test]
fn mistakes_name_their_line() {
    assert_refused("http {\n  server {\n", ":3: the block that starts in line 2 is not closed");
    assert_refused("}\n", ":1: unexpected `}`");
    assert_refused("server {\n listen 80\n}\n", ":2: `listen` has no `;`");
    assert_refused("a \"b\n\n", ":1: the string that starts here has no closing \"");
    assert_refused("a 'b'c;", ":1: a space or `;` must follow");
    assert_refused("limit_req_zone $a zone=z:1m rate=ten;\nserver {}", ":1: `ten` is not a rate");
    assert_refused("server { location / { allow nobody; proxy_pass http://a; } }", ":1: `nobody` is not an address");
    assert_refused("server { location / {} location / {} }", "this location appears twice");
    assert_refused("worker_processes 1;", "no `server` block");
}

#[test]
fn nesting_size_and_kind_are_bounded() {
    assert_refused("a {\n".repeat(100_000), ":33: blocks are nested more than 32 deep");
    assert_refused(format!("server {{ x {}; }}", "y".repeat(1 << 20)), "a word is longer than");
    assert_refused("a b;\n".repeat(200_000), ":100001: there are more than 100000 directives");
    assert_refused(b"\x7fELF\x02\x01\x01\0\0\0", ":1: the file has control characters");
    assert_refused(b"server {\n listen \xff\xfe;\n}", ":2: the file is not UTF-8");
    assert_refused("# comment\n".repeat(10_000_000), "larger than 8 MiB");
    let dir = tempfile::tempdir().unwrap();
    assert!(refused("nginx", dir.path()).contains("not a regular file"));
    assert!(refused("nginx", Path::new("/dev/zero")).contains("not a regular file"));
    assert!(refused("nginx", &dir.path().join("missing.conf")).contains("missing.conf: cannot read it"));
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(refused("nginx", &pipe).contains("not a regular file"));
}

#[test]
fn includes_end() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("a.conf", "include b.conf;\n");
    write("b.conf", "\ninclude a*.conf;\n");
    let error = refused("nginx", &dir.path().join("a.conf"));
    assert!(error.contains("b.conf:2: ") && error.contains("a.conf includes itself"), "{error}");
    for i in 0..40 {
        write(&format!("n{i}.conf"), &format!("include n{}.conf;", i + 1));
    }
    assert!(refused("nginx", &dir.path().join("n0.conf")).contains("more than 16 files include one another"));
    // Each file includes all files of the next kind, so the number of includes is 30 to the power of the depth.
    for i in 0..30 {
        for kind in 0..4 {
            write(&format!("{kind}-{i}.inc"), &format!("include {}-*.inc;", kind + 1));
        }
    }
    write("wide.conf", "include 0-*.inc;");
    assert!(refused("nginx", &dir.path().join("wide.conf")).contains("more than 1000 files"));
    write("glob.conf", "include /*/*/*/*/*/*;");
    refused("nginx", &dir.path().join("glob.conf"));
}

/// Every location repeats the directives that it inherits, so a short file could become a huge config.
#[test]
fn multiplied_lists_are_bounded() {
    let headers: String = (0..1000).map(|i| format!("add_header x-{i} {};\n", "v".repeat(100))).collect();
    let locations: String = (0..20_000).map(|i| format!("location = /{i} {{ proxy_pass http://a; }}\n")).collect();
    assert_refused(format!("{headers} server {{ {locations} }}"), "the config would be larger than 16 MiB");
}

#[test]
fn many_large_regular_expressions_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.conf");
    let locations: String = (0..5000).map(|i| format!("location ~ ^/{i}\\w+ {{ proxy_pass http://a; }}\n")).collect();
    std::fs::write(&path, format!("server {{ {locations} }}")).unwrap();
    let output = import("nginx", &path);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("is not available (there are too many)"));
}

#[test]
fn yaml_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let mut bomb = "a0: &a0 [x, x]\n".to_owned();
    for i in 1..30 {
        bomb.push_str(&format!("a{i}: &a{i} [*a{}, *a{}]\n", i - 1, i - 1));
    }
    for (text, expected) in [
        (bomb, "aliases (`*name`) are not supported"),
        ("[".repeat(1 << 20), "recursion limit exceeded|nested more than 40 deep"),
        ("- ".repeat(1 << 20), "recursion limit exceeded|nested more than 40 deep"),
        ("a:\n".to_owned() + &" ".repeat(10) + "b: [\n", "not valid YAML"),
        ("a: 1\na: 2\n".to_owned(), "appears twice"),
        ("kind: Pod\n".to_owned(), "there is no Ingress"),
        ("- a\n".repeat(1_000_000), "there are more than 500000 values"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = refused("ingress-nginx", &path);
        assert!(expected.split('|').any(|expected| error.contains(expected)), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every import ends with a config that loads or with an error.
    #[test]
    fn anything_like_nginx_is_survived(
        text in "(server|location|limit_req|zone=z|burst=5|proxy_pass|http://a|/|= |~ |listen|80|return|301|if|map|geo|\\$a|\\$host|upstream|a|\"|'|[ ;{}\n]|é|#|\\\\|deny|all|include){0,60}",
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conf");
        for text in [text.clone(), format!("limit_req_zone $host zone=z:1m rate=1r/s; server {{ location / {{ {text} }} }}"), format!("server {{ {text} }}")] {
            std::fs::write(&path, &text).unwrap();
            let output = import("nginx", &path);
            prop_assert!(matches!(output.status.code(), Some(0 | 2 | 3)), "{text:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn a_list_of_descriptors_is_bounded_before_they_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits.yaml");
    let descriptor = |number: u32| format!("- {{ key: k, value: same-start-{number} }}\n");
    std::fs::write(&path, format!("domain: d\ndescriptors:\n{}", (0..100_000).map(descriptor).collect::<String>()))
        .unwrap();
    let error = refused("ratelimit", &path);
    assert!(error.contains("limits.yaml:3: there are more than 10000 rules"), "{error}");
}
