//! The recipes on logins and on CDNs, with a proxy in front of the gateway.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::client::Client;
use crate::support::manual::{Page, Part, app};
use crate::support::nginx::Nginx;
use sluicegate::config::load_config;

/// Returns the statuses of logins through nginx, as a client with this address.
fn log_in(nginx: &Nginx, client: &str, user: &str, count: usize) -> Vec<u16> {
    let body = format!("user={user}&password=wrong");
    let request = format!(
        "POST /login HTTP/1.1\r\nhost: a.test\r\nx-test-client: {client}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = Client::connect(nginx.addr);
    (0..count).map(|_| connection.fetch(&request, "").status()).collect()
}

/// Every config of the page, with the proxy in `trusted_proxies` and without.
#[test]
fn login_limits_count_clients_and_not_their_proxy() {
    let app = app();
    let page = Page::read("docs/guides/login.md");
    for (title, guesses) in [("Limit failed logins", 5), ("Limit guesses at one account", 20)] {
        let part = page.under(title)[0];
        for is_listed in [true, false] {
            let listed = part.behind_proxy();
            let part: &Part = if is_listed { &listed } else { part };
            let gateway = part.start(&app, None);
            let nginx = Nginx::in_front_of(gateway.addr);
            // Another account each time, so that only the limit per address decides.
            for number in 0..guesses {
                assert_eq!(log_in(&nginx, "192.0.2.1", &format!("user-{number}"), 1), [401], "{title}");
            }
            assert_eq!(log_in(&nginx, "192.0.2.1", "user-x", 1), [429], "{title}");
            let other = log_in(&nginx, "192.0.2.2", "user-y", 1);
            assert_eq!(other, [if is_listed { 401 } else { 429 }], "{title}, listed: {is_listed}");
        }
    }
}

/// Runs the script of the page in `dir`, with this program as `curl`.
fn run_script(dir: &Path, curl: &str) -> Output {
    let page = Page::read("docs/guides/behind-a-cdn.md");
    let script = page.blocks.iter().find(|block| block.text.contains("cloudflare.com")).unwrap().text.clone();
    assert!(script.contains("cd /etc/sluicegate\n"));
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("curl"), format!("#!/bin/sh\n{curl}\n")).unwrap();
    fs::set_permissions(bin.join("curl"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let script = script.replace("cd /etc/sluicegate", &format!("cd '{}'", dir.display()));
    Command::new("sh").args(["-c", &script]).env("PATH", path).output().unwrap()
}

#[test]
fn the_script_for_a_cdn_never_empties_the_list() {
    let dir = tempfile::tempdir().unwrap();
    // What Cloudflare sends: the last line does not end.
    let lists = "case \"$2\" in */ips-v4) printf '173.245.48.0/20\\n103.21.244.0/22' ;; \
                 */ips-v6) printf '2400:cb00::/32\\n2606:4700::/32' ;; esac";
    let output = run_script(dir.path(), lists);
    assert!(output.status.success(), "{output:?}");
    let page = Page::read("docs/guides/behind-a-cdn.md");
    let config = &page.blocks.iter().find(|block| block.text.contains("include = [")).unwrap().text;
    fs::write(dir.path().join("sluicegate.toml"), config).unwrap();
    load_config(&dir.path().join("sluicegate.toml")).unwrap_or_else(|report| panic!("{report}"));
    let good = fs::read_to_string(dir.path().join("trusted.toml")).unwrap();
    assert_eq!(good.matches('/').count(), 4, "{good}");

    for (fault, curl) in [
        ("no connection", "exit 6"),
        ("no list of IPv6", "case \"$2\" in */ips-v4) echo 173.245.48.0/20 ;; *) exit 22 ;; esac"),
        ("an empty response", "true"),
        ("a page", "echo '<html>Just a moment...</html>'"),
    ] {
        let output = run_script(dir.path(), curl);
        assert!(!output.status.success(), "{fault}: {output:?}");
        assert_eq!(fs::read_to_string(dir.path().join("trusted.toml")).unwrap(), good, "{fault}");
    }
}
