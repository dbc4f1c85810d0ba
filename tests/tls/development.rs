//! Development certificates: a CA of the gateway's own, and the certificates that it issues and renews.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::ca::Ca;
use crate::support::faketime::clock_from_file;
use crate::support::gateway::{Gateway, config_arguments, program};
use crate::support::tls::{SecureClient, Trust};
use crate::support::wait_until;

use super::listeners::ECHO;

/// A gateway with a CA in `state`. `options` are further options of `internal`, `rest` everything except the listener,
/// `[server]` and `[admin]`.
fn start(state: &Path, options: &str, rest: &str) -> Gateway {
    Gateway::launch(&[], |dir| config_arguments(dir, &config(state, options, rest)))
}

fn config(state: &Path, options: &str, rest: &str) -> String {
    format!(
        "[server]\nworkers = 1\n\n[admin]\nlisten = \"127.0.0.1:0\"\n\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         tls = {{ internal = {{ state = \"{}\"{options} }} }}\n\n{rest}",
        state.display()
    )
}

/// An empty directory with the path of a CA that does not exist yet.
fn empty() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state/ca");
    (dir, state)
}

/// A client that trusts the CA in `state`.
fn trust(state: &Path) -> Trust {
    Trust::in_pem(&fs::read_to_string(state.join("ca.pem")).unwrap())
}

/// The status of a request for `localhost`.
fn asks(client: &mut SecureClient) -> u16 {
    client.fetch("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", "").status()
}

/// The status of a request for `name` on a new connection.
fn asks_for(gateway: &Gateway, trust: &Trust, name: &str) -> u16 {
    let head = format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n");
    trust.connect(gateway.addr, name).fetch(&head, "").status()
}

/// The certificate that the gateway shows, in DER.
fn shown(gateway: &Gateway, trust: &Trust) -> Vec<u8> {
    trust.connect(gateway.addr, "localhost").stream().conn.peer_certificates().unwrap()[0].to_vec()
}

/// Tries to start a gateway that must fail. Returns its exit code and its messages.
fn fails(state: &Path) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = program().args(config_arguments(dir.path(), &config(state, "", ECHO))).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn shell(script: &str) -> String {
    let Output { stdout, stderr, .. } = Command::new("sh").args(["-c", script]).output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(!text.contains("not found"), "apt-get install curl openssl\n{text}");
    text
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn one_option_is_enough_for_https() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
                  tls = { internal = true }\n[[route]]\nhost = [\"app.localhost\", \"*.dev.test\", \"www.shop.io\"]\n\
                  upstream = \"echo:\"\n[[route]]\nupstream = \"echo:\"\n";
    let env = [("HOME", dir.path().to_str().unwrap()), ("XDG_STATE_HOME", ""), ("STATE_DIRECTORY", "")];
    let gateway = Gateway::launch(&env, |dir| config_arguments(dir, config));
    let state = dir.path().join(".local/state/sluicegate/ca");
    let (ca, port) = (state.join("ca.pem").display().to_string(), gateway.addr.port());
    for (name, code) in [
        ("localhost", "200"),
        ("127.0.0.1", "200"),
        ("app.localhost", "200"),
        ("a.dev.test", "200"),
        ("www.shop.io", "000"),
        ("a.test", "000"),
    ] {
        let text = shell(&format!(
            "curl -s --cacert {ca} --resolve {name}:{port}:127.0.0.1 -o /dev/null -w '%{{http_code}}' https://{name}:{port}/"
        ));
        assert_eq!(text, code, "{name}");
    }
    assert!(gateway.log().contains("does not cover `www.shop.io`"), "{}", gateway.log());
    // Clients without SNI, and with a name that no certificate has, get the same one.
    let text = shell(&format!(
        "echo | openssl s_client -connect 127.0.0.1:{port} -servername else.where -CAfile {ca} -verify_return_error"
    ));
    assert!(text.contains("Verification: OK") && text.contains("CN = Sluicegate development"), "{text}");
    let text = shell(&format!(
        "openssl x509 -in {ca} -noout -text -fingerprint -sha256; echo | openssl s_client -connect 127.0.0.1:{port} \
         2>&1 | openssl x509 -noout -text -checkend 3887000; openssl pkey -in {}/ca.key -noout -text",
        state.display()
    ));
    for part in [
        "CA:TRUE, pathlen:0",
        "Name Constraints: critical",
        "DNS:localhost\n",
        "TLS Web Server Authentication",
        "IP Address:127.0.0.1",
        "DNS:app.localhost, DNS:*.dev.test",
        "Certificate will not expire",
        "prime256v1",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(text.matches("prime256v1").count() >= 3 && text.matches("Not After : ").count() == 2, "{text}");
    let modes = [&state, &state.join("ca.key"), &state.join("ca.pem")].map(|path| mode(path));
    assert_eq!(modes, [0o700, 0o600, 0o600]);
    let key = fs::read_to_string(state.join("ca.key")).unwrap();
    let secret = key.lines().rev().nth(1).unwrap();
    assert!(secret.len() > 20 && !gateway.log().contains(secret));
    let expiry = gateway
        .metric("tls_cert_not_after_timestamp_seconds", &[("listener", "127.0.0.1:0"), ("name", "localhost")])
        .unwrap();
    let now_s = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((3_887_800.0..3_888_001.0).contains(&(expiry - now_s)), "{expiry}");
}

#[test]
fn the_ca_outlives_the_gateway_and_certificates_do_not() {
    let (_dir, state) = empty();
    let mut first = start(&state, "", ECHO);
    let (trust, key) = (trust(&state), fs::read(state.join("ca.key")).unwrap());
    let before = shown(&first, &trust);
    first.signal("TERM");
    assert!(first.exit().success());
    let second = start(&state, "", ECHO);
    assert_ne!(shown(&second, &trust), before);
    // A second gateway on the directory, and one for which it is read-only.
    let third = start(&state, "", ECHO);
    fs::set_permissions(&state, Permissions::from_mode(0o500)).unwrap();
    let fourth = start(&state, "", ECHO);
    for gateway in [&third, &fourth] {
        assert_eq!(asks_for(gateway, &trust, "localhost"), 200);
    }
    assert_eq!(fs::read(state.join("ca.key")).unwrap(), key);
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    // The copy for clients is restored.
    fs::write(state.join("ca.pem"), "else").unwrap();
    drop(start(&state, "", ECHO));
    assert!(fs::read_to_string(state.join("ca.pem")).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(asks_for(&third, &self::trust(&state), "localhost"), 200);
}

#[test]
fn names_follow_the_config_without_ending_connections_and_sessions() {
    let (_dir, state) = empty();
    let gateway = start(&state, "", ECHO);
    let trust = trust(&state);
    let mut open = trust.connect(gateway.addr, "localhost");
    assert_eq!(asks(&mut open), 200);
    assert!(trust.try_connect(gateway.addr, "new.test").is_err());
    let text = fs::read_to_string(gateway.config()).unwrap();
    let with_route = text.clone() + "[[route]]\nhost = \"new.test\"\nupstream = \"echo:\"\n";
    let response = gateway.reload(&with_route);
    assert!(!response.text().contains("listener changed"), "{}", response.text());
    assert_eq!(asks_for(&gateway, &trust, "new.test"), 200);
    let mut again = trust.connect(gateway.addr, "localhost");
    assert!(again.was_resumed());
    gateway.reload(&with_route.replace("ca\" }", "ca\", hosts = [\"own.internal\", \"10.1.2.3\"] }"));
    for name in ["own.internal", "new.test", "localhost"] {
        assert_eq!(asks_for(&gateway, &trust, name), 200, "{name}");
    }
    assert_eq!((asks(&mut open), asks(&mut again)), (200, 200));
    // Without the option the config is invalid, and the old one stays.
    gateway.write_config(&text.replace("internal", "intern"));
    assert_ne!(gateway.admin_request("POST", "/-/reload", "", "").status(), 200);
    assert_eq!(asks_for(&gateway, &trust, "own.internal"), 200);
}

#[test]
fn certificates_are_renewed_whenever_the_clock_says_so() {
    let (_dir, state) = empty();
    let clock = tempfile::NamedTempFile::new().unwrap();
    fs::write(&clock, "+0s").unwrap();
    let env = clock_from_file(clock.path());
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    let gateway = Gateway::launch(&env, |dir| config_arguments(dir, &config(&state, "", ECHO)));
    let trust = trust(&state);
    let mut open = trust.connect(gateway.addr, "localhost");
    let expiry = || {
        let labels = [("listener", "127.0.0.1:0"), ("name", "localhost")];
        gateway.metric("tls_cert_not_after_timestamp_seconds", &labels).unwrap()
    };
    let first = expiry();
    fs::write(&clock, "+29d").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!((expiry(), gateway.log().matches("certificate renewed").count()), (first, 0));
    for (round, (offset, days)) in
        [("+30d", 30.0), ("+500d", 500.0), ("-400d", -400.0), ("+0s", 0.0)].iter().enumerate()
    {
        fs::write(&clock, offset).unwrap();
        wait_until("it is renewed", || gateway.log().matches("certificate renewed").count() == round + 1);
        wait_until("the metric follows", || (expiry() - first - days * 86_400.0).abs() < 60.0);
        assert_eq!(asks(&mut open), 200);
    }
    assert_eq!(asks_for(&gateway, &trust, "localhost"), 200);
}

#[test]
fn an_expired_ca_is_used_with_a_warning_and_never_replaced() {
    let (_dir, state) = empty();
    let clock = tempfile::NamedTempFile::new().unwrap();
    let env = clock_from_file(clock.path());
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (&**name, &**value)).collect();
    for (offset, warning) in [("+0s", ""), ("+3651d", "has expired"), ("-3d", "is not valid yet")] {
        fs::write(&clock, offset).unwrap();
        let gateway = Gateway::launch(&env, |dir| config_arguments(dir, &config(&state, "", ECHO)));
        assert!(gateway.log().contains(warning), "{}", gateway.log());
        assert_eq!(gateway.log().contains("created a CA"), warning.is_empty());
        // The clock of this client is right.
        let is_served = trust(&state).try_connect(gateway.addr, "localhost").is_ok();
        assert_eq!(is_served, !offset.starts_with("+3651d"), "{offset}");
    }
}

#[test]
fn processes_that_start_at_once_use_one_ca() {
    for _ in 0..5 {
        let (_dir, state) = empty();
        let run = || program().args(["trust", "--state"]).arg(&state).output().unwrap();
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let texts: Vec<String> = outputs.iter().map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).collect();
        assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
        assert!(texts.iter().all(|text| *text == texts[0] && text.contains("SHA-256:")), "{texts:#?}");
        let created = outputs.iter().filter(|o| String::from_utf8_lossy(&o.stderr).contains("created a CA"));
        assert_eq!(created.count(), 1);
        let mut names: Vec<String> = fs::read_dir(&state)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["ca.key", "ca.pem", "lock"]);
    }
}

/// A change of the files of a CA.
type Damage = (&'static str, fn(&Path), &'static str);

const DAMAGES: &[Damage] = &[
    ("empty", |state| fs::write(state.join("ca.key"), "").unwrap(), "no PEM certificate"),
    (
        "half",
        |state| {
            let key = fs::read(state.join("ca.key")).unwrap();
            fs::write(state.join("ca.key"), &key[..key.len() - 100]).unwrap();
        },
        "is damaged",
    ),
    ("zeros", |state| fs::write(state.join("ca.key"), [0; 1283]).unwrap(), "no PEM certificate"),
    ("huge", |state| fs::write(state.join("ca.key"), vec![b'-'; 10_000_000]).unwrap(), "no PEM certificate"),
    (
        "certificate only",
        |state| assert!(fs::copy(state.join("ca.pem"), state.join("ca.key")).unwrap() > 0),
        "no PEM private key",
    ),
    ("gone", |state| fs::remove_file(state.join("ca.key")).unwrap(), "its key `ca.key` in the same directory is gone"),
    ("readable", |state| set_mode(&state.join("ca.key"), 0o644), "(mode 0644)"),
    ("readable by the group", |state| set_mode(&state.join("ca.key"), 0o640), "chmod 600"),
    ("open directory", |state| set_mode(state, 0o755), "chmod 700"),
    ("open parent", |state| set_mode(state.parent().unwrap(), 0o777), "is writable for all"),
    (
        "link",
        |state| {
            fs::rename(state.join("ca.key"), state.join("other")).unwrap();
            symlink("other", state.join("ca.key")).unwrap();
        },
        "symbolic link",
    ),
    (
        "linked directory",
        |state| {
            fs::rename(state, state.with_file_name("other")).unwrap();
            symlink("other", state).unwrap();
        },
        "is a symbolic link",
    ),
    (
        "directory",
        |state| {
            fs::remove_file(state.join("ca.key")).unwrap();
            fs::create_dir(state.join("ca.key")).unwrap();
        },
        "not a regular file",
    ),
    (
        "pipe",
        |state| {
            fs::remove_file(state.join("ca.key")).unwrap();
            assert!(Command::new("mkfifo").arg(state.join("ca.key")).status().unwrap().success());
        },
        "not a regular file",
    ),
    (
        "file instead of the directory",
        |state| {
            fs::remove_dir_all(state).unwrap();
            fs::write(state, "").unwrap();
        },
        "is not a directory",
    ),
];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_ca_that_cannot_be_trusted_is_an_error_and_stays_as_it_is() {
    for (what, damage, message) in DAMAGES {
        let (_dir, state) = empty();
        assert!(program().args(["trust", "--state"]).arg(&state).output().unwrap().status.success());
        damage(&state);
        let before = fs::symlink_metadata(state.join("ca.key")).map(|m| (m.ino(), m.len())).ok();
        let (code, log) = fails(&state);
        // What `check` can see is an error in the config.
        let named = [("error: the CA of development certificates: ", 1), ("error: `state` in `internal`: ", 2)];
        let expected = named.iter().find(|(start, _)| log.contains(start)).map(|(_, code)| *code);
        assert!(code == expected && code.is_some() && log.contains(message), "{what}: {code:?} {log}");
        let after = fs::symlink_metadata(state.join("ca.key")).map(|m| (m.ino(), m.len())).ok();
        assert_eq!(before, after, "{what}");
    }
}

/// What keeps the gateway from starting is an error of `check`, too.
#[test]
fn a_directory_that_the_gateway_would_refuse_is_refused_by_check() {
    let (dir, state) = empty();
    let path = dir.path().join("config.toml");
    fs::write(&path, config(&state, "", ECHO)).unwrap();
    let check = || program().arg("check").arg("-c").arg(&path).output().unwrap();
    assert!(check().status.success(), "the gateway creates a directory that is missing");
    fs::create_dir_all(&state).unwrap();
    for (mode, is_closed) in [(0o755, false), (0o710, false), (0o700, true)] {
        set_mode(&state, mode);
        let output = check();
        let text = [output.stdout, output.stderr].concat();
        assert_eq!(output.status.success(), is_closed, "{mode:o} {}", String::from_utf8_lossy(&text));
        assert_eq!(String::from_utf8_lossy(&text).contains("chmod 700"), !is_closed);
    }
}

#[test]
fn links_to_the_directory_and_through_open_directories_are_refused() {
    let (dir, state) = empty();
    assert!(program().args(["trust", "--state"]).arg(&state).output().unwrap().status.success());
    symlink(&state, dir.path().join("link")).unwrap();
    let trust = |path: &str| {
        let output = program().args(["trust", "--state"]).arg(dir.path().join(path)).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for path in ["link", "link/", "link//", "link/.", "link/./"] {
        let (code, log) = trust(path);
        assert!(code == Some(1) && log.contains("is a symbolic link"), "{path}: {log}");
    }
    // Everyone could replace `open/x`, to which `outer` leads through `inner`.
    fs::create_dir_all(dir.path().join("open/x")).unwrap();
    fs::create_dir(dir.path().join("closed")).unwrap();
    symlink("../open/x", dir.path().join("closed/inner")).unwrap();
    symlink("closed/inner", dir.path().join("outer")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    set_mode(&dir.path().join("open"), 0o777);
    for path in ["outer/ca", "closed/inner/ca/", "open/x/ca"] {
        let (code, log) = trust(path);
        assert!(code == Some(1) && log.contains("open` is writable for all"), "{path}: {log}");
    }
    assert!(trust("loop/ca").1.contains("error: the CA of development certificates: "));
    assert_eq!(fs::read_dir(dir.path().join("open/x")).unwrap().count(), 0);
    set_mode(&dir.path().join("open"), 0o1777);
    assert_eq!(trust("outer/ca").0, Some(0));
    assert_eq!(trust("state/ca/").0, Some(0));
}

#[test]
fn a_reload_with_an_unusable_ca_changes_nothing() {
    let (_dir, state) = empty();
    let gateway = start(&state, "", ECHO);
    let trust = trust(&state);
    set_mode(&state.join("ca.key"), 0o644);
    let text = fs::read_to_string(gateway.config()).unwrap();
    let changed = text.clone() + "[[route]]\nhost = \"new.test\"\nupstream = \"echo:\"\n";
    gateway.write_config(&changed);
    let response = gateway.admin_request("POST", "/-/reload", "", "");
    assert!(response.status() != 200 && response.text().contains("open to other users"), "{}", response.text());
    assert_eq!(asks_for(&gateway, &trust, "localhost"), 200);
    assert_eq!(gateway.metric("config_last_reload_successful", &[]), Some(0.0));
    set_mode(&state.join("ca.key"), 0o600);
    gateway.reload(&changed);
    assert_eq!(asks_for(&gateway, &trust, "new.test"), 200);
}

/// Runs a script as root of a user namespace, with the program as `$0` and a directory as `$1`.
fn in_namespace(script: &str, dir: &Path) -> String {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let output = command.arg(program().get_program()).arg(dir).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_disk_that_is_full_or_read_only_is_an_error_and_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let full = in_namespace(
        "mount -t tmpfs -o size=64k none $1 && mkdir -m 700 $1/ca && cat /dev/zero > $1/filler 2>/dev/null; \
         $0 trust --state $1/ca; echo code $?; ls -A $1/ca; rm $1/filler; \
         $0 trust --state $1/ca > /dev/null; echo code $?; ls -A $1/ca",
        dir.path(),
    );
    assert!(full.contains("No space left on device") && full.contains("free some space"), "{full}");
    assert!(full.contains("code 1\nlock\ncode 0\nca.key\nca.pem\nlock\n"), "{full}");
    let read_only = in_namespace("mount -t tmpfs -o ro none $1; $0 trust --state $1/ca; echo code $?", dir.path());
    assert!(read_only.contains("Read-only file system") && read_only.contains("code 1"), "{read_only}");
    assert!(read_only.contains("internal = { state = "), "it says what to do: {read_only}");
}

#[test]
fn a_key_of_another_user_is_refused() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Only root can make files of other users, but some exist.
        let (code, log) = fails(Path::new("/usr"));
        assert!(code == Some(1) && log.contains("belongs to the user with the ID 0"), "{log}");
        return;
    }
    for name in ["ca", "ca/ca.key"] {
        let (_dir, state) = empty();
        assert!(program().args(["trust", "--state"]).arg(&state).output().unwrap().status.success());
        std::os::unix::fs::chown(state.with_file_name(name), Some(65_534), None).unwrap();
        let (code, log) = fails(&state);
        assert!(code == Some(1) && log.contains("belongs to the user with the ID 65534"), "{log}");
    }
}

#[test]
fn check_creates_nothing() {
    let (dir, state) = empty();
    fs::write(dir.path().join("sluicegate.toml"), config(&state, "", ECHO)).unwrap();
    let output = program().arg("check").arg(dir.path().join("sluicegate.toml")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!state.parent().unwrap().exists());
}

#[test]
fn certificates_of_files_have_priority() {
    let (_dir, state) = empty();
    let ca = Ca::new("test");
    let gateway = Gateway::launch(&[], |dir| {
        ca.issue(&["a.test", "www.shop.io"], "gateway").save(dir, "0");
        let own = ", certificates = [{ cert = \"0.pem\", key = \"0.key\" }] }";
        let route = "[[route]]\nhost = [\"a.test\", \"b.test\", \"www.shop.io\"]\nupstream = \"echo:\"\n";
        config_arguments(dir, &config(&state, "", &(ECHO.to_owned() + route)).replace(" } }\n", &format!(" }}{own}\n")))
    });
    for (trust, name) in [(Trust::in_ca(&ca), "a.test"), (Trust::in_ca(&ca), "www.shop.io"), (trust(&state), "b.test")]
    {
        assert_eq!(asks_for(&gateway, &trust, name), 200, "{name}");
    }
    assert!(!gateway.log().contains("does not cover"), "{}", gateway.log());
}

/// A name that one client calls malformed would make it refuse the certificate for every name.
#[test]
fn unusual_names_do_not_break_the_certificate() {
    let (_dir, state) = empty();
    let gateway = start(
        &state,
        ", hosts = [\"a_b.test\", \"_c.test\", \"1.test\", \"*.x.y.internal\", \"xn--mnchen-3ya.test\", \"10.0.0.1\", \"[fd00::1]\"]",
        &format!(
            "{ECHO}[[route]]\nhost = [\"*.localhost\", \"-a.test\", \"a-.test\", \"127.0.0.9\"]\nupstream = \"echo:\"\n"
        ),
    );
    let trust = trust(&state);
    for name in ["localhost", "a_b.test", "_c.test", "1.test", "z.x.y.internal", "xn--mnchen-3ya.test", "127.0.0.9"] {
        assert_eq!(asks_for(&gateway, &trust, name), 200, "{name}");
    }
    let url = format!("https://localhost:{}/", gateway.addr.port());
    let python = "import ssl, sys, urllib.request; context = ssl.create_default_context(cafile=sys.argv[2]); \
                  print(urllib.request.urlopen(sys.argv[1], context=context).status)";
    let python = shell(&format!("python3 -c '{python}' {url} {}", state.join("ca.pem").display()));
    assert_eq!(python.trim(), "200");
    let node = "require(\"https\").get(process.argv[1], answer => { console.log(answer.statusCode); process.exit() })";
    let node = shell(&format!("NODE_EXTRA_CA_CERTS={} node -e '{node}' {url}", state.join("ca.pem").display()));
    assert_eq!(node.trim(), "200");
    assert!(gateway.log().contains("does not cover `*.localhost`, `-a.test`, `a-.test`"), "{}", gateway.log());
}
