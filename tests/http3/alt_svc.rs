//! `Alt-Svc`: how clients learn that a listener has HTTP/3, and that it has it no more.

use super::{ECHO, Http3Gateway, config};
use crate::support::client::get;
use crate::support::h3::{H3Client, H3Options};
use crate::support::tls::Trust;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

fn alt_svc(gateway: &Http3Gateway, path: &str) -> Vec<String> {
    let response = Trust::in_ca(&gateway.ca).connect(gateway.addr(), "a.test").fetch(&get(path, ""), "");
    response.all("alt-svc").into_iter().map(str::to_owned).collect()
}

#[test]
fn responses_announce_http3_and_the_services_of_servers_are_dropped() {
    let upstream = Upstream::fixed("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nalt-svc: h3=\":1\"\r\n\r\n");
    let rest = format!("{ECHO}[[route]]\npath = \"/app\"\nupstream = \"{}\"\n", upstream.url());
    let gateway = Http3Gateway::start("", "http3 = true", &rest);
    let own = format!("h3=\":{}\"; ma=86400", gateway.addr().port());
    for path in ["/", "/app", "/a%00"] {
        assert_eq!(alt_svc(&gateway, path), [own.as_str()], "{path}");
    }
    assert_eq!(gateway.connect().get("/app").get("alt-svc"), None, "over HTTP/3 there is nothing to announce");
    let plain = Http3Gateway::start("", "http3 = { advertise = 8443, max_age = \"1h\" }", ECHO);
    assert_eq!(alt_svc(&plain, "/"), ["h3=\":8443\"; ma=3600"]);
}

#[test]
fn a_reload_turns_http3_off_and_on() {
    let gateway = Http3Gateway::echo("");
    let port = gateway.addr();
    let client = gateway.connect();
    assert_eq!(client.get("/").status(), 200);
    gateway.gateway.reload(&config("", "", ECHO));
    wait_until("it is withdrawn", || alt_svc(&gateway, "/") == ["clear"]);
    assert_eq!(client.close_code(), 0x100, "the connection ends without an error");
    wait_until("the port is closed", || std::net::UdpSocket::bind(port).is_ok());
    gateway.gateway.reload(&config("", "http3 = true", ECHO));
    wait_until("it is announced again", || alt_svc(&gateway, "/").iter().any(|value| value.starts_with("h3=")));
    assert_eq!(gateway.connect().get("/").status(), 200);
}

#[test]
fn another_process_at_the_port_is_waited_for() {
    let gateway = Http3Gateway::start("", "", ECHO);
    let other = std::net::UdpSocket::bind(gateway.addr()).unwrap();
    gateway.gateway.reload(&config("", "http3 = true", ECHO));
    wait_until("the log says why", || gateway.gateway.log_lines(&["cannot open UDP port"]) == 1);
    assert_eq!(alt_svc(&gateway, "/"), [""; 0], "what is not open is not announced");
    drop(other);
    wait_until("it opens", || !alt_svc(&gateway, "/").is_empty());
    assert!(H3Client::with(gateway.addr(), &H3Options::trusting(&gateway.ca)).is_ok());
}
