//! Hashes that htpasswd, openssl and argon2 made are read as these programs mean them. Others are refused at load.

use std::fs;
use std::process::Command;

use super::{basic, bcrypt, htpasswd, start};
use crate::support::app;
use crate::support::client::get;
use crate::support::gateway::program;

const ROUTE: &str = "[[route]]\nupstream = \"echo:\"\nauth = { basic = \"users\" }\n";

fn openssl(arguments: &[&str]) -> String {
    app::run("openssl", "openssl", &[&["passwd"], arguments].concat()).trim().to_owned()
}

/// The argon2 program reads the password from its standard input.
fn argon2(password: &str, arguments: &str) -> String {
    app::run("sh", "argon2", &["-c", &format!("printf %s '{password}' | argon2 saltsaltsalt {arguments} -e")])
        .trim()
        .to_owned()
}

#[test]
fn hashes_of_other_programs_match_their_passwords() {
    let long = "long".repeat(18);
    let line = bcrypt("x", "secret");
    let [two_y, two_a, two_b] = ["$2y$", "$2a$", "$2b$"].map(|version| line[2..].trim().replace("$2y$", version));
    let entries = [
        ("y", "secret", two_y),
        ("a", "secret", two_a),
        ("b", "secret", two_b),
        ("long", long.as_str(), bcrypt("x", &long)[2..].trim().to_owned()),
        ("empty", "", bcrypt("x", "")[2..].trim().to_owned()),
        ("unicode", "pässwörd \u{1f511}", bcrypt("x", "pässwörd \u{1f511}")[2..].trim().to_owned()),
        ("sha256", "secret", openssl(&["-5", "-salt", "abcdefgh", "secret"])),
        ("sha512", "s:crèt", openssl(&["-6", "-salt", "0123456789abcdef", "s:crèt"])),
        ("short", "x", openssl(&["-6", "-salt", "a", "x"])),
        ("rounds", "secret", openssl(&["-5", "-salt", "rounds=1234$abcdefgh", "secret"])),
        ("argon", "secret", argon2("secret", "-id -t 2 -k 1024 -p 1")),
        ("lanes", "clé", argon2("clé", "-id -t 1 -k 2048 -p 4 -l 64")),
    ];
    assert!(entries[9].2.starts_with("$5$rounds=1234$"), "{}", entries[9].2);
    let users: String = entries.iter().map(|(user, _, hash)| format!("{user}:{hash}\n")).collect();
    let gateway = start(&format!("\u{feff}# users\r\n\r\n{users}"), ROUTE);
    for (user, password, hash) in &entries {
        let status = |password: &str| gateway.fetch(&get("/", &basic(user, password))).status();
        assert_eq!(status(password), 200, "{user} {hash}");
        for wrong in [format!("{password}x"), format!("x{password}"), password.to_uppercase() + "X", hash.clone()] {
            assert_eq!(status(&wrong), 401, "{user} {wrong}");
        }
    }
}

/// `sluicegate check` of a config whose route uses this file.
fn check(users: &[u8]) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("users"), users).unwrap();
    let path = dir.path().join("sluicegate.toml");
    fs::write(&path, ROUTE).unwrap();
    let output = program().args(["check", "-c"]).arg(path).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn weak_and_costly_hashes_are_refused_with_a_remedy() {
    let bcrypt = bcrypt("eve", "secret");
    let argon = |arguments: &str| format!("eve:{}\n", argon2("secret", arguments));
    for (line, what, remedy) in [
        (htpasswd(&["-nbm", "eve", "secret"]), "it is an MD5 hash", "htpasswd -B"),
        (htpasswd(&["-nbs", "eve", "secret"]), "it is an unsalted SHA-1 hash", "htpasswd -B"),
        (htpasswd(&["-nbd", "eve", "secret"]), "it is a DES crypt hash", "htpasswd -B"),
        (htpasswd(&["-nbp", "eve", "secret"]), "perhaps a plain password", "htpasswd -B"),
        (format!("eve:{}\n", openssl(&["-1", "secret"])), "it is an MD5 hash", "htpasswd -B"),
        (bcrypt.replace("$04$", "$31$"), "its bcrypt cost is 31, at most 15", "cheaper"),
        (bcrypt.replace("$04$", "$03$"), "its bcrypt hash is damaged", "htpasswd -B"),
        (bcrypt.replace("$2y$", "$2x$"), "faulty version", "htpasswd -B"),
        (bcrypt[..40].to_owned() + "\n", "its bcrypt hash is damaged", "htpasswd -B"),
        (argon("-id -t 1 -k 2048 -p 1").replace("m=2048", "m=4194304"), "its argon2id memory is m=4194304", "cheaper"),
        (argon("-id -t 1 -k 2048 -p 1").replace("t=1", "t=4294967295"), "its argon2id work", "cheaper"),
        (argon("-id -t 1 -k 2048 -p 1").replace("p=1", "p=99"), "its argon2id parallelism is p=99", "cheaper"),
        (argon("-i -t 1 -k 2048 -p 1"), "only argon2id is accepted", "htpasswd -B"),
        (openssl_line("rounds=999999999"), "999999999 rounds, at most 1000000", "cheaper"),
        (openssl_line("rounds=10"), "its SHA-crypt hash is damaged", "htpasswd -B"),
        ("eve:\n".to_owned(), "the hash is empty", "htpasswd -B"),
    ] {
        let (ok, shown) = check(format!("# one\r\n{line}").as_bytes());
        assert!(!ok && shown.contains(what) && shown.contains(remedy), "{line}{shown}");
        assert!(shown.contains("/users:2: the user `eve`"), "{shown}");
        // The last letters of a hash are its secret part.
        let secret = line.trim().trim_start_matches("eve:");
        assert!(secret.is_empty() || !shown.contains(&secret[secret.len().saturating_sub(6)..]), "{line}{shown}");
    }
}

/// A line with these rounds; the hash is of other ones, which the check does not compute.
fn openssl_line(rounds: &str) -> String {
    format!("eve:{}\n", openssl(&["-6", "-salt", "abcdefgh", "secret"]).replace("$6$", &format!("$6${rounds}$")))
}

#[test]
fn faulty_files_are_refused() {
    let line = bcrypt("eve", "secret");
    for (file, what) in [
        (format!("{line}{line}"), "/users:2: the user `eve` is in line 1 already"),
        (line.replace("eve:", ""), "/users:1: the line has no colon"),
        (line.replace("eve:", ":"), "/users:1: the name of the user is empty"),
        (line.replace("eve:", " eve:"), "/users:1: the name of the user is empty, too long, or has spaces"),
    ] {
        let (ok, shown) = check(file.as_bytes());
        assert!(!ok && shown.contains(what) && !shown.contains(&line[20..40]), "{file}{shown}");
    }
    let (ok, shown) = check(b"\xff\xfee\0");
    assert!(!ok && shown.contains("UTF-16"), "{shown}");
    let (ok, shown) = check(b"# nobody\n");
    assert!(ok && shown.contains("contains no user, so nobody can use the route"), "{shown}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sluicegate.toml");
    fs::write(&path, ROUTE).unwrap();
    let run = |user: &[&str]| {
        let program = program();
        let mut command = Command::new(user.first().map_or(program.get_program(), |setpriv| setpriv.as_ref()));
        if !user.is_empty() {
            command.args(&user[1..]).arg(program.get_program());
        }
        let output = command.args(["check", "-c"]).arg(&path).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&[]).contains("the file does not exist"));
    fs::create_dir(dir.path().join("users")).unwrap();
    assert!(run(&[]).contains("it is a directory"));
}
