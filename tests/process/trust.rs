//! `sluicegate trust`: what it prints, and the trust store of Debian, in a mount namespace of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::gateway::program;

/// Runs a script as root of a user namespace, with the program as `$0`, a directory as `$1`, and copies of the
/// directories that `update-ca-certificates` changes.
fn in_copy(script: &str, dir: &Path) -> String {
    const PREPARE: &str = "set -e; for d in /etc/ssl/certs /usr/local/share/ca-certificates; do \
                           c=$1/copy$d; mkdir -p $c; cp -dR $d/. $c/; mount --bind $c $d; done; set +e; ";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &format!("{PREPARE}{script}")]);
    let output = command.arg(program().get_program()).arg(dir).env_remove("SUDO_UID").output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("No such file"), "apt-get install ca-certificates\n{text}");
    text
}

/// Exit code, standard output and standard error of `sluicegate trust`.
fn trust(arguments: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let output = program().arg("trust").args(arguments).envs(env.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn trust_creates_the_ca_and_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let (config, state) = (dir.path().join("sluicegate.toml"), dir.path().join("it's here"));
    let listener = format!(
        "[[listener]]\naddress = \"127.0.0.1:8443\"\ntls = {{ internal = {{ state = \"{}\" }} }}\n[[route]]\nupstream = \"echo:\"\n",
        state.display()
    );
    fs::write(&config, listener).unwrap();
    let config = config.to_str().unwrap();
    let (code, first, log) = trust(&["-c", config], &[]);
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("created a CA"));
    assert_eq!(trust(&["-c", config], &[]), (0, first.clone(), String::new()));
    assert_eq!(trust(&["--state", state.to_str().unwrap()], &[]).1, first);
    let fingerprint = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(state.join("ca.pem"))
        .output()
        .unwrap();
    let fingerprint = String::from_utf8(fingerprint.stdout).unwrap();
    let (_, fingerprint) = fingerprint.trim().split_once('=').unwrap();
    let quoted = format!("{}/it'\\''s here'", dir.path().display());
    for part in [
        fingerprint,
        &quoted,
        "Debian, Ubuntu",
        "macOS",
        "Windows",
        "certutil -d sql:",
        "NODE_EXTRA_CA_CERTS",
        "update-ca-trust",
    ] {
        assert!(first.contains(part), "{part} is missing:\n{first}");
    }
    assert!(!first.contains("PRIVATE"), "{first}");
}

#[test]
fn trust_needs_a_listener_with_development_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("sluicegate.toml");
    fs::write(&config, "[[route]]\nupstream = \"echo:\"\n").unwrap();
    let (code, stdout, stderr) = trust(&["-c", config.to_str().unwrap()], &[]);
    assert!(code == 1 && stdout.is_empty() && stderr.contains("internal = true"), "{stderr}");
    fs::write(&config, "[[listener]]\n").unwrap();
    assert_eq!(trust(&["-c", config.to_str().unwrap()], &[]).0, 2);
    assert_eq!(trust(&["--install", "--uninstall"], &[]).0, 2);
    let (code, stdout, _) = trust(&["--uninstall", "--state", dir.path().to_str().unwrap()], &[]);
    assert!(code == 0 && stdout.contains("There is no CA in"), "{stdout}");
    // Without a home directory, the message names the missing option.
    fs::write(
        &config,
        "[[listener]]\naddress = \"127.0.0.1:1\"\ntls = { internal = true }\n[[route]]\nupstream = \"echo:\"\n",
    )
    .unwrap();
    let none = [("HOME", ""), ("XDG_STATE_HOME", ""), ("STATE_DIRECTORY", "")];
    let (code, _, stderr) = trust(&["-c", config.to_str().unwrap()], &none);
    assert!(code == 2 && stderr.contains("nor HOME is set") && stderr.contains("state = "), "{stderr}");
    let (code, stdout, _) = trust(
        &["-c", config.to_str().unwrap()],
        &[none[0], none[1], ("STATE_DIRECTORY", dir.path().to_str().unwrap())],
    );
    assert!(code == 0 && stdout.contains(&format!("{}/ca/ca.pem", dir.path().display())), "{stdout}");
}

#[test]
fn a_ca_is_installed_once_and_removed_again() {
    let dir = tempfile::tempdir().unwrap();
    let text = in_copy(
        "s=$1/ca; verify() { openssl verify $s/ca.pem 2>&1 | tail -n 1; }; \
         before=$(cd /etc/ssl/certs; ls; cat ca-certificates.crt | md5sum); \
         $0 trust --uninstall; echo code $?; \
         $0 trust --state $s >/dev/null 2>&1; verify; \
         $0 trust --install --state $s; echo code $?; verify; \
         $0 trust --install --state $s >/dev/null; echo code $?; \
         ls -l /usr/local/share/ca-certificates | grep sluicegate; \
         cat /etc/ssl/certs/ca-certificates.crt | grep -c -F \"$(sed -n 2p $s/ca.pem)\"; \
         $0 trust --uninstall; echo code $?; verify; \
         after=$(cd /etc/ssl/certs; ls; cat ca-certificates.crt | md5sum); \
         [ \"$before\" = \"$after\" ] && echo as before; ls /usr/local/share/ca-certificates | grep -c sluicegate",
        dir.path(),
    );
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[..2] == ["--install has added no CA to this system.", "code 0"], "{text}");
    assert!(lines[2].contains("verification failed"), "{text}");
    assert!(lines[3].starts_with("This system now trusts the CA with the SHA-256 fingerprint "), "{text}");
    assert!(text.contains(&format!("{}/ca/ca.pem: OK\ncode 0\n-rw-r--r-- ", dir.path().display())), "{text}");
    let end: Vec<&str> = lines[lines.len() - 6..].to_vec();
    assert!(end[0] == "1" && end[1].starts_with("Removed /usr/local/share/ca-certificates/sluicegate-"), "{text}");
    assert!(end[2] == "code 0" && end[3].contains("verification failed"), "{text}");
    assert_eq!(end[4..], ["as before", "0"], "{text}");
}

#[test]
fn removing_a_ca_can_be_repeated_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let text = in_copy(
        "s=$1/ca; bundle=/etc/ssl/certs/ca-certificates.crt; local=/usr/local/share/ca-certificates; \
         verify() { openssl verify -CAfile $bundle $s/ca.pem 2>&1 | tail -n 1; }; \
         $0 trust --install --state $s >/dev/null 2>&1; verify; \
         mkdir $bundle.new; $0 trust --uninstall; echo first $?; verify; rmdir $bundle.new; \
         $0 trust --uninstall; echo second $?; verify; \
         $0 trust --install --state $s >/dev/null 2>&1; verify; \
         mkdir $local/sluicegate-0000000000000000.crt; $0 trust --uninstall; echo third $?; verify; ls $local",
        dir.path(),
    );
    let ok = format!("{}/ca/ca.pem: OK", dir.path().display());
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("error:")).collect();
    let at = |code: &str| lines.iter().position(|line| *line == code).unwrap_or_else(|| panic!("{code}: {text}"));
    assert_eq!(lines[0], ok, "{text}");
    assert_eq!(lines[at("first 1") + 1], ok, "{text}");
    assert!(lines[at("second 0") + 1].contains("verification failed"), "{text}");
    assert_eq!(lines[at("second 0") + 2], ok, "{text}");
    assert!(lines[at("third 1") + 1].contains("verification failed"), "{text}");
    assert!(text.contains("update-ca-certificates failed") && text.contains("0000.crt`: Is a directory"), "{text}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("sluicegate-")).count(), 1, "{text}");
}

#[test]
fn a_ca_for_any_name_is_not_installed_and_none_is_created_under_sudo() {
    let dir = tempfile::tempdir().unwrap();
    let text = in_copy(
        "mkdir $1/own; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=mine \
         -keyout $1/own/ca.key -out $1/own/ca.pem 2>/dev/null; $0 trust --install --state $1/own; echo code $?; \
         ln -s $1/own/ca.pem $1/link.pem; mkdir $1/linked; ln -s $1/own/ca.pem $1/linked/ca.pem; \
         $0 trust --install --state $1/linked; echo code $?; \
         SUDO_UID=1000 $0 trust --install --state $1/none; echo code $?; ls $1; \
         ls /usr/local/share/ca-certificates | grep -c sluicegate",
        dir.path(),
    );
    assert!(
        text.contains("may sign any name") && text.contains("symbolic link") && text.contains("under sudo"),
        "{text}"
    );
    assert_eq!(text.matches("code 1").count(), 3, "{text}");
    assert!(!text.contains("\nnone\n") && text.contains("\n0\n"), "{text}");
}

#[test]
fn others_than_root_get_the_command_for_root() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("ca");
    let mut command = Command::new("sh");
    // Root becomes another user, who owns the directory.
    let script = "if [ $(id -u) = 0 ]; then chown 65534 $1; chmod 755 $1; \
                  exec setpriv --reuid=65534 --clear-groups -- \"$0\" trust --install --state $1/ca; fi; \
                  exec \"$0\" trust --install --state $1/ca";
    let output = command.args(["-c", script]).arg(program().get_program()).arg(dir.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let sudo =
        format!("sudo {} trust --install --state {}", program().get_program().to_str().unwrap(), state.display());
    assert!(stderr.contains(&sudo), "{stderr}");
    assert!(state.join("ca.key").exists());
}
