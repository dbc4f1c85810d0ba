//! Calls of grpcio over TLS, with client certificates, and through a Unix socket; and authorization checks that no
//! proxy in between has made harmless.

use crate::support::app::run_script;
use crate::support::ca::Ca;
use crate::support::gateway::Gateway;
use crate::support::token::{SECRET, hs256};

const CLIENT: &str = "rls_client.py";
const RULES: &str = "[[rls]]\ndomain = \"edge\"\ndescriptor = { a = \"*\" }\nlimits = [\"few\"]\n\
                     [limit.few]\nrate = \"3/h\"\nkey = \"descriptor:a\"\n";

#[test]
fn calls_come_over_tls_with_client_certificates_and_through_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, other) = (Ca::new("Clients"), Ca::new("Others"));
    ca.issue(&["localhost"], "gateway").save(dir.path(), "server");
    ca.issue(&["envoy"], "envoy").save(dir.path(), "client");
    other.issue(&["envoy"], "envoy").save(dir.path(), "stranger");
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("ca.pem"), ca.pem()).unwrap();
    let tls = |more: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{}\", key = \"{}\" }}]\n{more}\n",
            path("server.pem"),
            path("server.key")
        )
    };
    let gateway = Gateway::with_config(&format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n{}\
         [[listener]]\naddress = \"unix:{}\"\nserve = \"grpc\"\n{RULES}",
        tls(&format!("client_ca = \"{}\"\nclient_auth = \"required\"", path("ca.pem"))),
        path("grpc.sock")
    ));
    let secure = format!("localhost:{}", gateway.addr.port());
    let fetch = |scenario: &str, own: &str| {
        run_script(
            CLIENT,
            &[scenario, &secure, &path("ca.pem"), &path(&format!("{own}.pem")), &path(&format!("{own}.key"))],
        )
    };
    fetch("secure", "client");
    // Neither a certificate of another authority nor plain text reaches the limits.
    fetch("refused", "stranger");
    run_script(CLIENT, &["unreachable", &gateway.addr.to_string()]);
    gateway.assert_metric("rpc_calls_total", &[("method", "ShouldRateLimit"), ("code", "OK")], 2.0);
    run_script(CLIENT, &["socket", &format!("unix:{}", path("grpc.sock"))]);
}

#[test]
fn checks_obey_deny_allow_tokens_and_strictness() {
    let gateway = Gateway::with_config(&format!(
        "[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.1\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [jwt]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\nserve = \"grpc\"\n\
         [[route]]\nname = \"lists\"\nhost = \"never.test\"\nupstream = \"echo:\"\nlimits = [\"one\"]\n\
         deny = [\"192.0.2.66\"]\nallow = [\"192.0.2.77\"]\n\
         [[route]]\nname = \"lenient\"\nhost = \"lenient.test\"\nupstream = \"echo:\"\nlimits = [\"one\"]\nstrictness = \"monitor\"\n\
         [limit.one]\nrate = \"1/h\"\nkey = [\"ip\", \"route\"]\n\
         [decide.free]\nlimits = [\"free\"]\n[limit.free]\nrate = \"1000000/h\"\nkey = \"all\"\n\
         [decide.claims]\nlimits = [\"claimed\"]\n\
         [limit.claimed]\nrate = \"1/h\"\nkey = \"header:x-user\"\nmissing = \"refuse\"\nrefuse = {{ body = \"no\" }}\n\
         [[route]]\nname = \"known\"\nhost = \"known.test\"\nupstream = \"echo:\"\n\
         auth = {{ jwt = \"staff\", user_header = \"x-user\" }}\n\
         [jwt.staff]\nkey = \"{SECRET}\"\nalgorithms = [\"HS256\"]\n\
         [decide.tokens]\nlimits = [\"per-user\"]\n\
         [limit.per-user]\nrate = \"2/h\"\nkey = \"jwt:sub\"\nmissing = \"refuse\"\n"
    ));
    let tokens =
        [hs256(SECRET, "{\"sub\":\"anna\"}"), hs256("another secret, of enough bytes...", "{\"sub\":\"anna\"}")];
    run_script(CLIENT, &["checks", &gateway.addr.to_string(), &tokens[0], &tokens[1]]);
    for code in ["INTERNAL", "RESOURCE_EXHAUSTED"] {
        assert_eq!(gateway.metric("rpc_calls_total", &[("method", "Check"), ("code", code)]), None);
    }
    gateway.assert_metric("rpc_calls_total", &[("method", "Check"), ("code", "INVALID_ARGUMENT")], 1.0);
    // Refusals count as those of requests over HTTP do.
    gateway.assert_metric("rejections_total", &[("route", "lists"), ("limit", "_none"), ("reason", "denied")], 3.0);
    gateway.assert_metric("http_rejected_total", &[("reason", "path_slash")], 1.0);
}
