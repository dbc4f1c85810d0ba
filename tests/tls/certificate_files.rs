//! Certificates and keys in files: renewed in any way while the gateway runs, and wrong ones.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::listeners::{ECHO, config, gateway};
use crate::support::ca::{Ca, Pair};
use crate::support::client::get;
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::tls::Trust;
use crate::support::wait_until;

/// The second name of the certificate that new connections get.
fn version(gateway: &Gateway, ca: &Ca) -> String {
    Trust::in_ca(ca).connect(gateway.addr, "a.test").server_names().swap_remove(1)
}

fn pair(ca: &Ca, version: &str) -> Pair {
    ca.issue(&["a.test", version], "gateway")
}

#[track_caller]
fn until_version(gateway: &Gateway, ca: &Ca, expected: &str) {
    wait_until(&format!("new connections get {expected}"), || version(gateway, ca) == expected);
}

#[test]
fn renewed_files_count_for_new_connections_and_open_ones_live_on() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test,v1"], "", "", ECHO);
    let mut open = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
    assert_eq!(version(&gateway, &ca), "v1");
    // In two steps with a mismatch in between, as renewal programs do.
    let next = pair(&ca, "v2");
    std::fs::write(gateway.dir.path().join("0.pem"), &next.cert).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    std::fs::write(gateway.dir.path().join("0.key"), &next.key).unwrap();
    until_version(&gateway, &ca, "v2");
    // By renaming.
    pair(&ca, "v3").save(gateway.dir.path(), "0");
    until_version(&gateway, &ca, "v3");
    assert_eq!(open.fetch(&get("/", ""), "").status(), 200);
    assert_eq!(open.server_names()[1], "v1");
}

/// Returns the output of `openssl` for these arguments and this input.
fn openssl(words: &str, input: &str) -> String {
    let mut command = Command::new("openssl");
    let command = command.args(words.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("openssl does not start; install it: apt-get install openssl");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {words}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn keys_of_every_kind_and_form_serve() {
    let ca = Ca::new("test");
    let rsa = openssl("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048", "");
    let curve = openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384", "");
    let keys = [
        ("rsa", &rsa, "PRIVATE KEY", rsa.clone()),
        ("pkcs1", &rsa, "RSA PRIVATE KEY", openssl("rsa -traditional", &rsa)),
        ("p384", &curve, "PRIVATE KEY", curve.clone()),
        ("sec1", &curve, "EC PRIVATE KEY", openssl("ec", &curve)),
        ("ed25519", &openssl("genpkey -algorithm ED25519", ""), "PRIVATE KEY", String::new()),
    ];
    let gateway = Gateway::launch(&[], |dir| {
        for (place, (name, pkcs8, form, key)) in keys.iter().enumerate() {
            let key = if key.is_empty() { (*pkcs8).clone() } else { key.clone() };
            assert!(key.starts_with(&format!("-----BEGIN {form}-----")), "{key}");
            let cert = ca.issue_for(pkcs8, &[&format!("{name}.test")]);
            Pair { cert, key }.save(dir, &place.to_string());
        }
        config_arguments(dir, &config(keys.len(), "", "", ECHO))
    });
    for (name, ..) in &keys {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let host = format!("{name}.test");
            let mut client = Trust::with(&ca, None, &[version]).connect(gateway.addr, &host);
            assert_eq!(client.server_names(), [host.as_str()]);
            assert_eq!(client.fetch(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"), "").status(), 200, "{name}");
        }
    }
}

#[test]
fn files_behind_links_are_followed() {
    let ca = Ca::new("test");
    // Kubernetes swaps a directory, certbot links to the newest of its archive.
    let gateway = Gateway::launch(&[], |dir| {
        for (dir, version) in [(dir.join("..v1"), "v1"), (dir.join("archive"), "v1")] {
            std::fs::create_dir(&dir).unwrap();
            pair(&ca, version).save(&dir, "0");
        }
        symlink("..v1", dir.join("..data")).unwrap();
        let config = config(1, "", "", ECHO);
        for ending in ["pem", "key"] {
            symlink(format!("..data/0.{ending}"), dir.join(format!("0.{ending}"))).unwrap();
        }
        config_arguments(dir, &config)
    });
    assert_eq!(version(&gateway, &ca), "v1");
    let dir = gateway.dir.path();
    std::fs::create_dir(dir.join("..v2")).unwrap();
    pair(&ca, "v2").save(&dir.join("..v2"), "0");
    symlink("..v2", dir.join("..next")).unwrap();
    std::fs::rename(dir.join("..next"), dir.join("..data")).unwrap();
    until_version(&gateway, &ca, "v2");
    pair(&ca, "v3").save(&dir.join("archive"), "new");
    for ending in ["pem", "key"] {
        symlink(format!("archive/new.{ending}"), dir.join("link")).unwrap();
        std::fs::rename(dir.join("link"), dir.join(format!("0.{ending}"))).unwrap();
    }
    until_version(&gateway, &ca, "v3");
}

#[test]
fn a_wrong_key_pair_changes_nothing_and_is_reported() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test,v1"], "", "", ECHO);
    let key = gateway.dir.path().join("0.key");
    let good = std::fs::read_to_string(&key).unwrap();
    for (bad, complaint) in [
        (pair(&ca, "x").key, "it is not the key of the certificate in `cert`"),
        (String::new(), "it contains no PEM private key"),
        (good[..good.len() / 2].to_owned(), "it contains no PEM private key"),
    ] {
        std::fs::write(&key, &bad).unwrap();
        gateway.assert_metric("config_last_reload_successful", &[], 0.0);
        wait_until("the log says what is wrong", || gateway.log().contains(complaint));
        assert!(!gateway.log().contains(good.lines().nth(1).unwrap()), "the log shows a key");
        assert_eq!(version(&gateway, &ca), "v1");
        // The file is removed and restored.
        std::fs::remove_file(&key).unwrap();
        wait_until("the log misses the file", || gateway.log().contains("the file does not exist"));
        std::fs::write(&key, &good).unwrap();
        gateway.assert_metric("config_last_reload_successful", &[], 1.0);
    }
    pair(&ca, "v2").save(gateway.dir.path(), "0");
    until_version(&gateway, &ca, "v2");
}

#[test]
fn certificates_that_expire_soon_are_warned_of_and_listed() {
    let ca = Ca::new("test");
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    let gateway = Gateway::launch(&[], |dir| {
        let terms = [("later.test", 50, 20), ("soon.test", 80, 10), ("short.test", 0, 6), ("old.test", 9, 0)];
        for (place, (name, since, left)) in terms.into_iter().enumerate() {
            ca.issue_with(&[name, "second.test"], "", |params| {
                // In the middle of a day, so that the number of days is the same during the test.
                (params.not_before, params.not_after) =
                    ((now - since * day).into(), (now + left * day - day / 2).into());
            })
            .save(dir, &place.to_string());
        }
        config_arguments(dir, &config(4, "", "", ECHO))
    });
    let check = program().args(["check", "--format", "json", "-c"]).arg(gateway.config()).output().unwrap();
    let check: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    let warnings: Vec<&str> =
        check["warnings"].as_array().unwrap().iter().map(|warning| warning["message"].as_str().unwrap()).collect();
    assert!(warnings.len() == 2, "{warnings:?}");
    assert!(warnings[0].starts_with("the certificate of `soon.test` expires in 9 days, at 20"), "{warnings:?}");
    assert!(warnings[1].starts_with("the certificate of `old.test` has expired, at 20"), "{warnings:?}");
    assert!(check["warnings"][0]["line"].is_number(), "{check}");
    let status = gateway.admin("/-/status").json();
    let listed: Vec<(&str, i64)> = status["certificates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|certificate| {
            assert_eq!((&certificate["listener"], &certificate["source"]), (&"127.0.0.1:0".into(), &"file".into()));
            assert_eq!(certificate["names"][1], "second.test");
            (certificate["names"][0].as_str().unwrap(), certificate["days_left"].as_i64().unwrap())
        })
        .collect();
    assert_eq!(listed, [("old.test", -1), ("short.test", 5), ("soon.test", 9), ("later.test", 19)]);
    assert!(status["certificates"][0]["not_after"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn certificates_out_of_their_term_are_served_and_warned_of() {
    let ca = Ca::new("test");
    let day = Duration::from_secs(86_400);
    let now = SystemTime::now();
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue_with(&["old.test"], "", |params| {
            (params.not_before, params.not_after) = ((now - 9 * day).into(), (now - day).into());
        })
        .save(dir, "0");
        ca.issue_with(&["new.test"], "", |params| {
            (params.not_before, params.not_after) = ((now + day).into(), (now + 9 * day).into());
        })
        .save(dir, "1");
        ca.issue(&["good.test"], "").save(dir, "2");
        config_arguments(dir, &config(3, "", "", ECHO))
    });
    let check = program().arg("check").arg("-c").arg(gateway.config()).output().unwrap();
    let (out, warnings) = [check.stdout, check.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).into();
    assert!(check.status.success() && out.starts_with("ok: "), "{out}{warnings}");
    for said in [gateway.log(), warnings] {
        assert!(said.contains("the certificate of `old.test` has expired, at 20"), "{said}");
        assert!(said.contains("the certificate of `new.test` is valid from 20"), "{said}");
        assert!(!said.contains("good.test"), "{said}");
    }
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().floor();
    let expiry =
        |name| gateway.metric("tls_cert_not_after_timestamp_seconds", &[("listener", "127.0.0.1:0"), ("name", name)]);
    assert_eq!(expiry("old.test"), Some(seconds(now - day)));
    assert_eq!(expiry("new.test"), Some(seconds(now + 9 * day)));
    let trust = Trust::in_ca(&ca);
    let head = "GET / HTTP/1.1\r\nhost: good.test\r\n\r\n";
    assert_eq!(trust.connect(gateway.addr, "good.test").fetch(head, "").status(), 200);
    let refused = trust.try_connect(gateway.addr, "old.test").err().unwrap().to_string();
    assert!(refused.contains("expired"), "{refused}");
}

#[test]
fn series_come_and_go_with_their_listener() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test"], "", "", ECHO);
    assert_eq!(super::listeners::handshakes(&gateway, "bad_client_certificate"), 0.0);
    assert!(gateway.metrics().contains("result=\"bad_client_certificate\""), "not there before the first");
    let with_tls = std::fs::read_to_string(gateway.config()).unwrap();
    let (before, after) = with_tls.split_once("tls = {").unwrap();
    gateway.reload(&format!("{before}{}", after.split_once('\n').unwrap().1));
    wait_until("they have been removed", || !gateway.metrics().contains("sluicegate_tls_"));
}

#[test]
fn no_handshake_fails_while_certificates_change() {
    let ca = Ca::new("test");
    let gateway = gateway(&ca, &["a.test,v0"], "", "", ECHO);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = 0;
                    while !done.load(Ordering::SeqCst) {
                        let mut client = Trust::in_ca(&ca).connect(gateway.addr, "a.test");
                        for _ in 0..3 {
                            assert_eq!(client.fetch(&get("/", ""), "").status(), 200);
                        }
                        served += 1;
                    }
                    served
                })
            })
            .collect();
        for i in 1..=3 {
            pair(&ca, &format!("v{i}")).save(gateway.dir.path(), "0");
            until_version(&gateway, &ca, &format!("v{i}"));
        }
        done.store(true, Ordering::SeqCst);
        for client in clients {
            assert!(client.join().unwrap() > 3);
        }
    });
}
