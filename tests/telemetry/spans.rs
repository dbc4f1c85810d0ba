//! Spans: the requests with which the gateway sends spans to a collector, and that no collector delays a request. The
//! content of the spans is tested in `tests/interop`.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::ca::Ca;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::upstream::{Upstream, ok};
use crate::support::{wait_until, write_atomically};

fn gateway(env: &[(&str, &str)], collector: &str, more: &str) -> Gateway {
    let server = format!("spans = {{ to = \"{collector}\"{more} }}\n");
    Gateway::with_env(env, &server, "[[route]]\nrespond = { status = 200, body = \"in\" }\n")
}

#[test]
fn the_config_sets_the_collector_headers_and_nothing_stays_open() {
    let collector = Upstream::fixed(ok(""));
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of-the-environment"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "1")];
    let gateway = gateway(&variables, &collector.url(), ", headers = { x-key = \"mine\", x-name = \"K\u{f6}ln\" }");
    assert_eq!(gateway.get("/").text(), "in");
    let export = collector.request();
    assert_eq!(
        (export.target(), export.all("x-key"), export.all("content-type")),
        ("/v1/traces", vec!["mine"], vec!["application/x-protobuf"])
    );
    assert_eq!(export.all("x-name").len(), 1, "{}", export.head);
    collector.wait_for_close();
}

/// Builds a library to preload, in which resolving a name takes a minute.
fn slow_names(gateway: &std::path::Path) -> String {
    let (source, library) = (gateway.join("slow.c"), gateway.join("slow.so"));
    write_atomically(&source, "#include <unistd.h>\nint getaddrinfo(void) { sleep(60); return -3; }\n");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-fno-builtin", "-o"]).args([&library, &source]).status();
    assert!(built.expect("cc does not start; install it: apt-get install gcc").success());
    library.display().to_string()
}

#[test]
fn a_name_that_nobody_answers_for_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut gateway = gateway(&[("LD_PRELOAD", &slow_names(dir.path()))], "http://collector.test:4318", "");
    assert_eq!(gateway.get("/").text(), "in");
    let start = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.exit().success());
    // The export has a timeout of five seconds.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn over_tls_it_has_to_be_the_collector() {
    let collector = Upstream::fixed(ok(""));
    let (known, other) = (Ca::new("one authority"), Ca::new("another"));
    let terminator = Gateway::launch(&[], |dir| {
        known.issue(&["localhost"], "collector").save(dir, "0");
        let config = "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                      tls = { certificates = [{ cert = \"0.pem\", key = \"0.key\" }] }\n[[route]]\nupstream = ";
        config_arguments(dir, &format!("{config}\"{}\"\n", collector.url()))
    });
    let dir = tempfile::tempdir().unwrap();
    let trusted = dir.path().join("trusted.pem");
    for (name, authority, result) in
        [("localhost", &other, "failed"), ("127.0.0.1", &known, "failed"), ("localhost", &known, "exported")]
    {
        write_atomically(&trusted, &authority.pem());
        let to = format!("https://{name}:{}", terminator.addr.port());
        let gateway = gateway(&[("SSL_CERT_FILE", trusted.to_str().unwrap())], &to, "");
        assert_eq!(gateway.get("/").text(), "in");
        wait_until("the result of the export is known", || {
            gateway.metric("spans_total", &[("result", result)]) == Some(1.0)
        });
        assert_eq!(collector.requests().len(), usize::from(result == "exported"), "{name}");
    }
}
