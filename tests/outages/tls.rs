//! Redis over TLS with certificates made for the test: trust, client certificates, error texts, and no byte in the
//! clear.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluicegate::limiting::decision::ErrorKind;
use sluicegate::limiting::limit::Mode;
use sluicegate::limiting::store::redis::RedisStore;
use sluicegate::limiting::store::redis_tls::{RedisTls, TlsFiles};
use sluicegate::limiting::store::settings::StoreSettings;
use sluicegate::telemetry::metrics::Metrics;

use crate::support::gateway::program;
use crate::support::limiting::rules::window;
use crate::support::limiting::tls::{Ca, Pair, TlsServer, files};
use crate::support::limiting::topology::run_command;
use crate::support::limiting::{DEADLINE, RedisServer, kind, limit, run_on_worker, settings, wait_until};

fn with(files: TlsFiles) -> StoreSettings {
    StoreSettings { tls: RedisTls::new(files).unwrap(), ..settings(DEADLINE) }
}

async fn assert_responds(redis: &RedisStore) {
    let one = limit("one", window(1_000_000), Mode::Enforce);
    let since = Instant::now();
    while let Err(error) = kind(redis, &one).await {
        assert!(since.elapsed() < Duration::from_secs(5), "still {error:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What TLS refuses: `check --store` names the cause and the remedy.
#[test]
fn check_names_what_is_wrong_with_tls() {
    let (ours, other) = (Ca::new("ours"), Ca::new("other"));
    let server = TlsServer::start(&ours.issue(&["redis.test"], "server"), &ours, &[]);
    let dir = tempfile::tempdir().unwrap();
    let named = TlsServer::start(&ours.issue(&["127.0.0.1"], "server"), &ours, &[]);
    other.issue(&[], "gateway").save(dir.path(), "other-client");
    std::fs::write(dir.path().join("ours.pem"), ours.pem()).unwrap();
    std::fs::write(dir.path().join("other.pem"), other.pem()).unwrap();
    let check = |url: &str, options: &str| {
        let rest = "[[route]]\nupstream = \"echo:\"\nlimits = [\"x\"]\n[limit.x]\nrate = \"100/s\"\n";
        let text = format!("[store]\nurl = \"{url}\"\n{options}\n{rest}");
        std::fs::write(dir.path().join("c.toml"), text).unwrap();
        let output = program().current_dir(dir.path()).args(["check", "--store", "c.toml"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let tls = server.url("127.0.0.1");
    let with_name = named.url("127.0.0.1");
    let strange = "ca = \"ours.pem\"\nclient_cert = \"other-client.pem\"\nclient_key = \"other-client.key\"";
    let plain_to_tls = tls.replace("rediss://", "redis://");
    let tls_to_plain = server.server.url().replace("redis://", "rediss://");
    for (url, options, words) in [
        (&tls, "ca = \"other.pem\"", "set `ca` to the CA"),
        (&tls, "", "set `ca` to the CA"),
        (&tls, "ca = \"ours.pem\"", "write a name of the certificate"),
        (&with_name, "ca = \"ours.pem\"", "set `client_cert` and `client_key`"),
        (&with_name, strange, "does not trust the CA of `client_cert`"),
        (&plain_to_tls, "", "write `rediss://`"),
        (&tls_to_plain, "ca = \"ours.pem\"", "write `redis://`"),
    ] {
        let (code, text) = check(url, options);
        assert!(code == Some(1) && text.contains(words), "{url} {options}: {code:?} {text}");
    }
}

#[test]
fn a_trusted_server_and_a_known_client_meet() {
    let ca = Ca::new("ours");
    let server = TlsServer::start(&ca.issue(&["localhost", "127.0.0.1"], "server"), &ca, &[]);
    run_on_worker(async {
        let client = ca.issue(&[], "gateway");
        for host in ["localhost", "127.0.0.1"] {
            let metrics = Metrics::new().unwrap();
            let redis =
                RedisStore::connect(&with(files(&ca, Some(&client))), &server.url(host), &metrics, &Default::default());
            assert_responds(&redis).await;
            assert_eq!(metrics.store.up.get(), 1);
        }
    });
}

/// Content of the log, as an operator reads it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_untrusted_server_is_reported_and_gets_no_commands() {
    // Without a subscriber, the first test to reach a log statement would disable it for all tests.
    let listening = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    tracing::subscriber::set_global_default(listening).unwrap();
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let server = TlsServer::start(&ours.issue(&["localhost"], "server"), &ours, &[]);
    let plain = RedisServer::start(&[]);
    let (known, unknown) = (ours.issue(&[], "gateway"), theirs.issue(&[], "gateway"));
    let plain_url = plain.url().replace("redis:", "rediss:");
    for (url, files, reason) in [
        (server.url("localhost"), files(&theirs, Some(&known)), "UnknownIssuer"),
        (server.url("localhost"), TlsFiles::default(), "UnknownIssuer"),
        (server.url("127.0.0.1"), files(&ours, Some(&known)), "not valid for name"),
        (server.url("localhost"), files(&ours, None), "CertificateRequired"),
        (server.url("localhost"), files(&ours, Some(&unknown)), "UnknownCA"),
        (plain_url, files(&ours, Some(&known)), ""),
    ] {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let work = async {
            let metrics = Metrics::new().unwrap();
            let redis = RedisStore::connect(&with(files), &url, &metrics, &Default::default());
            let one = limit("one", window(9), Mode::Enforce);
            wait_until("it is logged", || log.0.lock().unwrap().windows(8).any(|words| words == b"on_error")).await;
            for _ in 0..20 {
                assert_eq!(kind(&redis, &one).await, Err(ErrorKind::Disconnected));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(metrics.store.up.get(), 0);
        };
        tracing::subscriber::with_default(subscriber, || run_on_worker(work));
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains(reason), "{url}: no {reason} in {text}");
        assert!(!text.contains("PRIVATE"), "{text}");
    }
    for server in [&plain, &server.server] {
        assert_eq!(run_command::<Vec<String>>(&mut server.client(), &["KEYS", "*"]), Vec::<String>::new());
    }
}

#[test]
fn new_connections_use_new_certificates() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let (url, mut server) = {
        let server = TlsServer::start(&old.issue(&["localhost"], "server"), &old, &[]);
        (server.url("localhost"), server)
    };
    run_on_worker(async {
        let metrics = Metrics::new().unwrap();
        let client = [old.issue(&[], "gateway"), new.issue(&[], "gateway")];
        let redis =
            Rc::new(RedisStore::connect(&with(files(&old, Some(&client[0]))), &url, &metrics, &Default::default()));
        assert_responds(&redis).await;
        let one = limit("one", window(1_000_000), Mode::Enforce);
        redis.apply_tls(&RedisTls::new(files(&new, Some(&client[1]))).unwrap());
        assert!(kind(&redis, &one).await.unwrap().admitted, "the open connection stays in use");

        let pair = new.issue(&["localhost"], "server");
        let dir = server.dir.path();
        for (name, text) in [("cert", &pair.cert), ("key", &pair.key), ("ca", &new.pem())] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        server.server.kill();
        wait_until("the loss is noticed", || metrics.store.up.get() == 0).await;
        server.server.restart();
        assert_responds(&redis).await;
    });
}

#[test]
fn mistakes_in_files_are_found_before_anything_connects() {
    let ca = Ca::new("ours");
    let (one, other) = (ca.issue(&[], "one"), ca.issue(&[], "other"));
    let with = |change: fn(&mut TlsFiles, &Pair)| {
        let mut files = files(&ca, Some(&one));
        change(&mut files, &other);
        RedisTls::new(files).err().map(|mistake| mistake.option)
    };
    assert_eq!(with(|_, _| ()), None);
    assert_eq!(with(|files, _| files.ca = Some("none".to_owned())), Some("ca"));
    assert_eq!(with(|files, _| files.client_cert = Some(String::new())), Some("client_cert"));
    assert_eq!(with(|files, _| files.client_key = Some("none".to_owned())), Some("client_key"));
    assert_eq!(with(|files, _| files.client_key = None), Some("client_cert"));
    assert_eq!(with(|files, _| files.client_cert = None), Some("client_key"));
    assert_eq!(with(|files, other| files.client_key = Some(other.key.clone())), Some("client_key"));
}

#[test]
fn the_config_reads_the_files() {
    let ca = Ca::new("ours");
    let pair = ca.issue(&["localhost"], "gateway");
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let load = || sluicegate::config::load_config(&dir.path().join("main.toml")).map_err(|report| report.to_string());
    write("ca.pem", &ca.pem());
    write("cert.pem", &pair.cert);
    write("key.pem", &pair.key);
    let config = "[[route]]\nupstream = \"echo:\"\n[store]\nurl = \"rediss://localhost\"\nca = \"ca.pem\"\n\
                  client_cert = \"cert.pem\"\nclient_key = \"key.pem\"\n";
    write("main.toml", config);
    let first = load().unwrap();
    assert!(first.store == load().unwrap().store);
    let watched: Vec<&Path> = first.files.iter().map(|file| Path::new(file.file_name().unwrap())).collect();
    for name in ["ca.pem", "cert.pem", "key.pem"] {
        assert!(watched.contains(&Path::new(name)), "{name} is not watched");
    }
    let next = ca.issue(&["localhost"], "gateway");
    write("cert.pem", &next.cert);
    assert!(load().unwrap_err().contains("`client_key` in [store]"), "a certificate without its key");
    write("key.pem", &next.key);
    let second = load().unwrap();
    assert!(first.store != second.store && first.store.is_same_but_tls(&second.store));
    // A reload compares the settings in this form to report changes.
    let [was, is] = [&first, &second].map(|config| format!("{:?}", config.store));
    assert!(was != is && !is.contains("BEGIN") && !is.contains("localhost"), "{was} {is}");
    write("main.toml", &config.replace("rediss:", "redis:"));
    assert!(load().unwrap_err().contains("the store does not use TLS"));
}
