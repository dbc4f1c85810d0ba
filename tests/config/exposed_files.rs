//! Folders with `files` that contain private files of the gateway.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use sluicegate::config;

const KEY: &str = "conf/tls/sample.key";
const CERT: &str = "conf/tls/sample.pem";

/// A directory with a config, a site, and files that the config may name.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        for name in ["dist", "dist/a", "dist/.hidden", "dist/.well-known", "private"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("dist/index.html"), "the page").unwrap();
        Folder(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// Loads a config at `name`. Returns the mistake or the warnings about a file that clients could fetch, and ""
    /// if there is none.
    #[track_caller]
    fn load(&self, name: &str, text: &str) -> String {
        self.write(name, text);
        match config::load_config(&self.path().join(name)) {
            Ok(config) => {
                let warnings = config.warnings.map(|report| report.to_string());
                warnings.filter(|text| text.contains("clients could fetch")).unwrap_or_default()
            }
            Err(report) => {
                let text = report.to_string();
                assert!(text.contains("clients could fetch") && text.contains("a folder of their own"), "{text}");
                text
            }
        }
    }
}

fn site(files: &str) -> String {
    format!("[[route]]\npath = \"/\"\nfiles = \"{files}\"\n")
}

#[test]
fn the_config_itself() {
    let folder = Folder::new();
    for (name, files, is_exposed) in [
        ("a.toml", ".", true),
        ("a.toml", "./dist/..", true),
        ("a.toml", "dist", false),
        ("dist/a/b.toml", "..", true),
        ("dist/a/b.toml", "../../private", false),
        // Names that are not served.
        ("dist/.hidden/c.toml", "..", false),
        ("dist/.well-known/d.toml", "..", true),
        ("dist/.e.toml", ".", false),
    ] {
        let report = folder.load(name, &site(files));
        assert_eq!(!report.is_empty(), is_exposed, "{name} in {files}: {report}");
        if is_exposed {
            let file = name.rsplit('/').next().unwrap();
            assert!(report.contains(file) && report.contains("a file of this configuration"), "{report}");
        }
    }
    folder.write("dist/more.toml", "[limit.a]\nrate = \"1/s\"\n");
    let report = folder.load("a.toml", &format!("include = [\"dist/*.toml\"]\n{}", site("dist")));
    assert!(report.contains("more.toml"), "{report}");
}

#[test]
fn links_are_followed_on_both_sides() {
    let folder = Folder::new();
    let path = folder.path();
    symlink(path.join("dist"), path.join("current")).unwrap();
    symlink(path, path.join("private/all")).unwrap();
    assert!(!folder.load("a.toml", &site("private/all")).is_empty(), "the folder is a link");
    fs::write(path.join("dist/secret"), "s").unwrap();
    symlink(path.join("dist/secret"), path.join("private/secret")).unwrap();
    let token = |file: &str| format!("[admin]\ntoken = \"${{file:{file}}}\"\n{}", site("current"));
    let report = folder.load("a.toml", &token("private/secret"));
    assert!(report.contains("clients could fetch"), "the file is a link into the folder: {report}");
    // A link that leads out of the folder is not served.
    folder.write("private/other", "s");
    symlink(path.join("private/other"), path.join("dist/other")).unwrap();
    assert_eq!(folder.load("a.toml", &token("dist/other")), "");
}

#[test]
fn keys_passwords_and_state() {
    let folder = Folder::new();
    let path = folder.path();
    for (name, source) in [("key.pem", KEY), ("cert.pem", CERT), ("users", "conf/users.htpasswd")] {
        fs::copy(source, path.join("dist").join(name)).unwrap();
        fs::copy(source, path.join("private").join(name)).unwrap();
    }
    let tls = |cert: &str, key: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\ntls = {{ certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}] }}\n{}",
            site("dist")
        )
    };
    // Everybody may have the certificate.
    assert_eq!(folder.load("a.toml", &tls("dist/cert.pem", "private/key.pem")), "");
    assert!(folder.load("a.toml", &tls("private/cert.pem", "dist/key.pem")).contains("a private key"));
    let auth = |users: &str| format!("{}auth = {{ basic = \"{users}\" }}\n", site("dist"));
    assert!(folder.load("a.toml", &auth("dist/users")).contains("passwords"));
    assert_eq!(folder.load("a.toml", &auth("private/users")), "");
    // State that does not exist yet.
    let acme = |state: &str| {
        format!(
            "[acme]\nterms_agreed = true\nstate = \"{state}\"\n[[listener]]\naddress = \"127.0.0.1:1\"\n\
             tls = {{ acme = [\"www.example.com\"] }}\n{}",
            site("dist")
        )
    };
    assert!(folder.load("a.toml", &acme("dist/state/acme")).contains("stores its state"));
    assert_eq!(folder.load("a.toml", &acme("dist/.acme")), "");
    assert_eq!(folder.load("a.toml", &acme("private/acme")), "");
    fs::create_dir_all(path.join("private/acme/public")).unwrap();
    let within = acme("private/acme").replace("files = \"dist\"", "files = \"private/acme\"");
    assert!(folder.load("a.toml", &within).contains("stores its state"));
    let store = |state: &str| format!("[store]\nstate = \"{}/{state}\"\n{}", path.display(), site("dist"));
    assert!(folder.load("a.toml", &store("dist/store.json")).contains("stores its state"));
    let usage_only = "files = \"private\"\ntry = [\"/store.json.usage\"]";
    let usage = store("private/store.json").replace("files = \"dist\"", usage_only);
    assert!(folder.load("a.toml", &usage).contains("stores its state"));
    assert_eq!(folder.load("a.toml", &store("private/store.json")), "");
}

/// A route with a path of its own reaches only what is below it, and a name without `{path}` is a single file.
#[test]
fn what_the_route_cannot_reach_is_not_exposed() {
    let folder = Folder::new();
    for (route, is_exposed) in [
        ("path = \"/dist/\"", false),
        ("path = \"/dist\"", false),
        ("path = \"/a.toml\"", true),
        ("path = \"= /a.toml\"", true),
        ("path = \"~ ^/dist/\"", true),
        ("path = \"/{name}\"", true),
        ("path = \"/dist/\"\nrewrite = { strip_prefix = \"/dist\" }", true),
        ("path = \"/\"\ntry = [\"/dist/index.html\"]", false),
        ("path = \"/\"\ntry = [\"/dist{path}\", \"/dist/index.html\"]", false),
        ("path = \"/\"\ntry = [\"{path}\", \"/dist/index.html\"]", true),
        ("path = \"/\"\ntry = [\"/a.toml\"]", true),
    ] {
        let report = folder.load("a.toml", &format!("[[route]]\nfiles = \".\"\n{route}\n"));
        assert_eq!(report.contains("a file of this configuration"), is_exposed, "{route}: {report}");
    }
}

/// A public page may be the content of an option, too.
#[test]
fn files_that_the_config_uses_cause_a_warning() {
    let folder = Folder::new();
    let respond = "[[route]]\npath = \"/down\"\nrespond = { status = 503, body = \"${file:dist/index.html}\" }\n";
    let report = folder.load("a.toml", &format!("{respond}{}", site("dist")));
    assert!(report.contains("SG0243") && report.contains("whose content the config uses"), "{report}");
    // A mistake comes first.
    folder.write("dist/more.toml", "[limit.a]\nrate = \"1/s\"\n");
    let report = folder.load("a.toml", &format!("include = [\"dist/*.toml\"]\n{respond}{}", site("dist")));
    assert!(report.contains("more.toml") && report.contains("a file of this configuration"), "{report}");
}

#[test]
fn sets_and_overrides() {
    let folder = Folder::new();
    for dir in ["dist", "private"] {
        folder.write(&format!("{dir}/keys"), "192.0.2.1\n");
        folder.write(&format!("{dir}/rows"), "");
        let is_exposed = dir == "dist";
        let set = format!("[set.blocked]\nfile = \"{dir}/keys\"\n{}deny = [\"set:blocked\"]\n", site("dist"));
        let overrides = format!(
            "[limit.x]\nrate = \"1/s\"\nkey = \"ip\"\noverrides = {{ file = \"{dir}/rows\" }}\n{}limits = [\"x\"]\n",
            site("dist")
        );
        for text in [set, overrides] {
            let report = folder.load("a.toml", &text);
            assert_eq!(report.contains("a file of this configuration"), is_exposed, "{text}\n{report}");
        }
    }
}
