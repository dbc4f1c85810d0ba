//! The country of a client as key, condition, header and log field.

use std::fs;

use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments};
use crate::support::upstream::Upstream;
use crate::support::{wait_until, write_atomically};

const EXAMPLE: &str = "conf/countries.mmdb";

fn from(ip: &str) -> String {
    get("/", &format!("x-forwarded-for: {ip}\r\nx-country: ZZ\r\nX_Country: ZZ\r\n"))
}

fn launch(upstream: &Upstream, limits: &str) -> Gateway {
    Gateway::launch(&[], |dir| {
        fs::copy(EXAMPLE, dir.join("countries.mmdb")).unwrap();
        let config = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\ntrusted_proxies = [\"127.0.0.1\"]\naccess_log = {{ to = \
             \"access.log\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[geo]\nfile = \"countries.mmdb\"\n\
             [[route]]\npath = \"/\"\nupstream = \"{}\"\nrequest_headers.set = {{ x-country = \"{{country}}\" }}\n\
             {limits}",
            upstream.url()
        );
        config_arguments(dir, &config)
    })
}

#[test]
fn a_budget_for_each_country_and_a_condition() {
    let upstream = Upstream::text("in");
    let gateway = launch(
        &upstream,
        "limits = [\"each\", \"abroad\"]\n[limit.each]\nrate = \"3/day\"\nkey = \"country\"\n\
         overrides = [{ key = \"FR\", rate = \"1/day\" }]\n\
         [limit.abroad]\nrate = \"1/day\"\nkey = \"ip\"\nwhen = { country = [\"!DE\", \"!AT\", \"!FR\"] }\n",
    );
    let status = |ip: &str| gateway.fetch(&from(ip)).status();
    // Three addresses of one country share its budget.
    assert_eq!(["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"].map(status), [200, 200, 200, 429]);
    assert_eq!(["192.0.2.200", "198.51.100.1", "198.51.100.2"].map(status), [200, 200, 429]);
    // An unknown country is abroad, and so is an address that is in no country.
    assert_eq!(["2001:db8::1", "2001:db8::1", "10.0.0.1", "203.0.113.200"].map(status), [200, 429, 200, 200]);
    let countries: Vec<String> =
        upstream.requests().iter().map(|request| request.all("x-country").join(",").to_owned()).collect();
    assert_eq!(countries, ["DE", "DE", "DE", "AT", "FR", "JP", "XX", "XX"]);
    let log = gateway.config().with_file_name("access.log");
    let lines = || -> Vec<String> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["country"].to_string();
        text.lines().map(line).collect()
    };
    wait_until("eleven lines of the log", || lines().len() == 11);
    assert_eq!([&lines()[0], &lines()[7], &lines()[9]], ["\"DE\"", "\"JP\"", "\"XX\""]);
}

/// A new database is used at once; one that is damaged changes nothing.
#[test]
fn the_database_is_watched() {
    let upstream = Upstream::text("in");
    let gateway = launch(&upstream, "");
    let country = || {
        assert_eq!(gateway.fetch(&from("192.0.2.1")).status(), 200);
        upstream.requests().pop().unwrap().get("x-country").unwrap().to_owned()
    };
    assert_eq!(country(), "DE");
    let file = gateway.config().with_file_name("countries.mmdb");
    let mut bytes = fs::read(EXAMPLE).unwrap();
    write_atomically(&file, &bytes[..bytes.len() / 2]);
    wait_until("a refused reload", || gateway.log_lines(&["damaged"]) > 0);
    assert_eq!(country(), "DE");
    let at = bytes.windows(2).position(|text| text == b"DE").unwrap();
    bytes[at..at + 2].copy_from_slice(b"NL");
    write_atomically(&file, &bytes);
    wait_until("the new database", || country() == "NL");
}
