//! Django under gunicorn, behind TLS: its absolute URLs, its forms, an upload and a stream.

use std::path::Path;

use crate::support::app::{App, run_script};
use crate::support::ca::Ca;
use crate::support::client::{Client, get};
use crate::support::gateway::Gateway;

#[test]
fn a_form_a_session_an_upload_and_a_stream() {
    let app = App::gunicorn("django_app:app", &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/programs"));
    let gateway = Gateway::launch(&[], |dir| {
        let ca = Ca::new("the tests' own authority");
        ca.issue(&["localhost"], "gateway").save(dir, "0");
        std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
        let config = dir.join("sluicegate.toml");
        let text = format!(
            "[server]\nlisten = [\"127.0.0.2:0\"]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\n\
             address = \"127.0.0.1:0\"\ntls = {{ certificates = [{{ cert = \"0.pem\", key = \"0.key\" }}] }}\n\
             [[route]]\npath = \"/\"\nupstream = \"{}\"\n",
            app.url()
        );
        std::fs::write(&config, text).unwrap();
        vec!["run".to_owned(), "--config".to_owned(), config.display().to_string()]
    });
    let listeners = gateway.listeners();
    let secure = listeners.iter().find(|addr| addr.ip().to_string() == "127.0.0.1").unwrap();
    let plain = listeners.iter().find(|addr| addr.ip().to_string() == "127.0.0.2").unwrap();
    let ca = gateway.dir.path().join("ca.pem");
    run_script("django_client.py", &[&format!("https://localhost:{}", secure.port()), ca.to_str().unwrap()]);
    // Without TLS, Django redirects every client, whatever the client claims about its scheme.
    let response =
        Client::connect(*plain).fetch(&get("/me/", "x-forwarded-proto: https\r\n").replace("a.test", "localhost"), "");
    assert_eq!((response.status(), response.get("location")), (301, Some("https://localhost/me/")));
}
