//! Codes of warnings: each is documented and caused by a config, and comments allow them at one place.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sluicegate::config;

/// Configs and the codes of all their warnings.
const CASES: &[(&str, &[&str])] = &[
    ("[limit.idle]\nrate = \"1/s\"", &["SG0201"]),
    ("[limit.a]\nrate = \"1/s\"\n[decide.a]\nlimits = [\"a\"]", &["SG0215"]),
    ("[upstream.idle]\nservers = \"http://127.0.0.1:1\"", &["SG0202"]),
    (
        "[store]\nmax_keys = 1500\n[limit.a]\nrate = \"1/s\"\nmax_keys = 1000\n[limit.b]\nrate = \"2/s\"\nkey = \"host\"\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]",
        &["SG0203"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\nkey = [\"form:a\", \"json:/a\"]\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0204"],
    ),
    (
        "[limit.a]\nrate = \"header:x-rate\"\nrate_within = [\"1/s\", \"9/s\"]\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\n\
         limits = \"a\"",
        &["SG0301"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\noverrides = { file = \"tests/config/rows.txt\" }\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\n\
         limits = \"a\"",
        &["SG0217"],
    ),
    ("[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nrequest_headers.set = { x-user = \"{user}\" }", &["SG0216"]),
    ("[server]\nclient_address = \"x-real-ip\"", &["SG0307"]),
    ("[acme]\nterms_agreed = true\nstate = \"/var/lib/x\"", &["SG0205"]),
    (
        "[acme]\nterms_agreed = true\nstate = \"/var/lib/x\"\ndns_program = [\"/nowhere/acme-dns\"]\n\
         [[listener]]\naddress = \"127.0.0.1:1\"\ntls = { acme = [\"www.example.com\"] }",
        &["SG0241"],
    ),
    (
        "[acme]\nterms_agreed = true\nstate = \"/var/lib/x\"\n[[listener]]\naddress = \"127.0.0.1:1\"\n\
         tls = { acme = [\"printer.local\"] }",
        &["SG0242"],
    ),
    (
        "[acme]\nterms_agreed = true\nstate = \"/var/lib/x\"\nprofile = \"shortlived\"\n\
         [[listener]]\naddress = \"127.0.0.1:1\"\ntls = { acme = [\"100.64.0.1\"] }",
        &["SG0242"],
    ),
    ("[[route]]\nfiles = \"/\"", &["SG0243"]),
    ("[[listener]]\naddress = \"unix:/nowhere/x.sock\"\nowner = \"no-such-user\"", &["SG0251"]),
    ("[[route]]\npath = \"~ x.{500}y\"\nupstream = \"echo:\"", &["SG0252"]),
    ("[server]\nmax_body = 0", &["SG0253"]),
    ("[server]\nmax_tunnels = 0", &["SG0253"]),
    ("[server]\nmax_connections_per_ip = 0", &[]),
    (
        "[[listener]]\naddress = \"127.0.0.1:1\"\nhsts = \"1d\"\ntls = { internal = { state = \"/var/lib/x\" } }",
        &["SG0206"],
    ),
    (
        "[[listener]]\naddress = \"127.0.0.1:1\"\ntls = { internal = { state = \"/var/lib/x\" } }\n\
         [[route]]\nhost = \"www.sluicegate.dev\"\nupstream = \"echo:\"",
        &["SG0208"],
    ),
    (
        "[upstream.a]\nservers = \"https://127.0.0.1:1\"\ntls = { verify = false }\n[[route]]\npath = \"/x\"\nupstream = \"a\"",
        &["SG0209"],
    ),
    ("[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nauth = { basic = \"conf/users.htpasswd\" }", &["SG0210"]),
    (
        "[limit.a]\nrate = \"1/s\"\ncharge_on = [401]\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\n\
         auth = { basic = \"EMPTY\", limits = [\"a\"] }",
        &["SG0211"],
    ),
    (
        "[server]\nlisten = \"127.0.0.1:2\"\n[[listener]]\naddress = \"127.0.0.1:1\"\ntls = { certificates = [{ cert = \"conf/tls/sample.pem\", \
         key = \"conf/tls/sample.key\" }], client_ca = \"conf/tls/sample-ca.pem\" }\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"",
        &["SG0306"],
    ),
    (
        "[server]\nlisten = \"127.0.0.1:2\"\n[[listener]]\naddress = \"127.0.0.1:1\"\ntls = { certificates = [{ cert = \"conf/tls/sample.pem\", \
         key = \"conf/tls/sample.key\" }], client_ca = \"conf/tls/sample-ca.pem\", client_auth = \"optional\" }\n[[route]]\npath = \"/x\"\n\
         upstream = \"echo:\"",
        &[],
    ),
    ("[[route]]\nhost = \"a.test\"\nredirect = \"https://a.test{path}\"", &["SG0212"]),
    (
        "[limit.a]\nrate = \"1/s\"\nkey = \"user\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0213"],
    ),
    (
        "[[admin.tokens]]\nname = \"old\"\ntoken = \"0123456789abcdef\"\nrole = \"read\"\nexpires = \"2020-01-31\"\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"",
        &["SG0214"],
    ),
    ("[server]\nmax_unread = \"63KiB\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"", &["SG0219"]),
    (
        "[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nresponse_headers = { set = { Access-Control-Allow-Origin = \"*\" } }",
        &["SG0231"],
    ),
    (
        "[[route]]\npath = \"/x\"\nupstream = \"echo:\"\ncors = { credentials = true, origins = [\"*.com\", \"null\", \
         \"https://app.example.com\", \"~ https://.*example\\\\.com\"] }",
        &["SG0233", "SG0233", "SG0233"],
    ),
    // Without credentials, every page may read what everybody may read.
    ("[[route]]\npath = \"/x\"\nupstream = \"echo:\"\ncors = { origins = [\"*.com\", \"null\"] }", &[]),
    ("[[route]]\npath = \"/x\"\nfiles = \"conf\"\ntry = [\"{path}\", \"/no-such-page.html\"]", &["SG0232"]),
    ("[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"0.0.0.0/0\", \"::/0\"]", &["SG0301", "SG0301"]),
    (
        "[limit.a]\nrate = \"1/s\"\nkey = [\"header:x-forwarded-for\"]\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0301"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\nwhen = { header = { x-forwarded-proto = \"http\" } }\n[limit.b]\nrate = \"1/s\"\n\
         key = \"header:x-request-id\"\n[[route]]\npath = \"/x\"\nheader = { x-real-ip = \"10.0.0.1\" }\nupstream = \"echo:\"\n\
         limits = [\"a\", \"b\"]",
        &["SG0307", "SG0307", "SG0307"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\nkey = \"query:*\"\n[limit.b]\nrate = \"1/s\"\nwhen = { cookie = { \"x-*\" = \"1\" } }\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]",
        &["SG0321", "SG0321"],
    ),
    (
        "[[route]]\nheader = { x-plan = \"*\" }\nupstream = \"echo:\"\n[[route]]\npath = \"/a\"\nheader = { authorization = \"Basic *\" }\n\
         upstream = \"echo:\"\n[[route]]\npath = \"/b\"\nheader = { accept = \"*/*\" }\nupstream = \"echo:\"",
        &["SG0321", "SG0321"],
    ),
    (
        "[server]\ntrusted_proxies = \"10.0.0.0/8\"\n[limit.a]\nrate = \"1/s\"\nkey = \"header:x-forwarded-for\"\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    (
        "[limit.a]\nrate = \"10/s\"\nburst = 20\n[limit.b]\nrate = \"20/s\"\nburst = 20\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]",
        &["SG0302"],
    ),
    // Equal limits: one of the two is superfluous.
    (
        "[limit.a]\nrate = \"10/s\"\n[limit.b]\nrate = \"10/s\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]",
        &["SG0302"],
    ),
    // The longer period decides for steady clients, the shorter one for bursts.
    (
        "[limit.a]\nrate = \"10/s\"\n[limit.b]\nrate = \"100/min\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]",
        &[],
    ),
    // The wider limit is on another route alone too.
    (
        "[limit.a]\nrate = \"10/s\"\n[limit.b]\nrate = \"20/s\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = [\"a\", \"b\"]\n\
         [[route]]\npath = \"/y\"\nupstream = \"echo:\"\nlimits = [\"b\"]",
        &[],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\non_error = \"open\"\n[[route]]\npath = \"/api/login\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0303"],
    ),
    ("[admin]\nlisten = \"0.0.0.0:9900\"", &["SG0304"]),
    ("[admin]\nlisten = \"0.0.0.0:9900\"\ntoken = \"a-long-random-token\"", &[]),
    (
        "[limit.a]\nrate = \"1/s\"\nwhen = { method = \"GET\" }\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0305"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\nwhen = { method = [\"POST\", \"PUT\"] }\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0305"],
    ),
    // Login forms are sent by POST, so a limit on POST alone is intended.
    (
        "[limit.a]\nrate = \"1/s\"\nwhen = { method = \"POST\" }\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\nwhen = { method = \"GET\" }\n[[route]]\npath = \"/x\"\nmethods = \"GET\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\ncost = 1\nsettle = \"header:x-cost\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0311"],
    ),
    (
        "[limit.a]\nalgorithm = \"leaky_bucket\"\nrate = \"1/s\"\nsettle = \"header:x-cost\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0311"],
    ),
    (
        "[limit.a]\nrate = \"1/s\"\ndebt = 10\nsettle = \"header:x-cost\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    (
        "[limit.a]\nalgorithm = \"fixed_window\"\nrate = \"100/min\"\ncost = { reserve = { default_add = 1000 } }\n\
         settle = \"openai\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0312"],
    ),
    (
        "[limit.a]\nrate = \"5/h\"\ncharge_on = [401]\nclear_on = [200]\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &["SG0313"],
    ),
    (
        "[limit.a]\nrate = \"5/h\"\nkey = [\"ip\", \"header:x-user\"]\ncharge_on = [401]\nclear_on = [200]\n\
         [[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    (
        "[limit.a]\nalgorithm = \"fixed_window\"\nrate = \"1000/min\"\ncost = { reserve = { default_add = 1000 } }\n\
         settle = \"openai\"\n[[route]]\npath = \"/x\"\nupstream = \"echo:\"\nlimits = \"a\"",
        &[],
    ),
    // Comments.
    ("# sluicegate: allow SG0201\n[limit.idle]\nrate = \"1/s\"", &[]),
    ("[limit.idle] # sluicegate: allow SG0201\nrate = \"1/s\"", &[]),
    ("[limit.idle] # sluicegate: allow SG0301, SG0201\nrate = \"1/s\"", &["SG0901"]),
    ("# sluicegate: allow SG0202\n[limit.idle]\nrate = \"1/s\"", &["SG0901", "SG0201"]),
    ("[limit.idle]\n# sluicegate: allow SG0201\nrate = \"1/s\"", &["SG0201", "SG0901"]),
    ("# sluicegate: allow SG0101\n# sluicegate: allow everything", &["SG0902", "SG0902"]),
    ("# sluicegate: allow SG0901\n# sluicegate: allow SG0201", &["SG0902", "SG0901"]),
];

fn codes(report: Option<config::Report>) -> Vec<String> {
    let Some(report) = report else { return Vec::new() };
    report.to_json().as_array().unwrap().iter().map(|entry| entry["code"].as_str().unwrap().to_owned()).collect()
}

/// Warnings of a text with a route at the end.
#[track_caller]
fn warnings(text: &str) -> Vec<String> {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let text = text.replace("EMPTY", &empty.path().display().to_string());
    let text = if text.contains("[[route]]") { text } else { format!("{text}\n[[route]]\nupstream = \"echo:\"\n") };
    codes(config::load_text("test", &text).unwrap_or_else(|report| panic!("{report}\n{text}")).warnings)
}

#[test]
fn each_warning_has_its_code() {
    for (text, expected) in CASES {
        assert_eq!(warnings(text), *expected, "{text}");
    }
}

#[test]
fn every_code_is_documented_and_caused() {
    let page = fs::read_to_string("docs/reference/diagnostics.md").unwrap();
    let all: BTreeSet<String> = config::all_codes().map(str::to_owned).collect();
    let sections = page.lines().filter_map(|line| line.strip_prefix("### "));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<String> = sections.chain(rows).map(str::to_owned).collect();
    assert_eq!(documented, all);
    let mut caused: BTreeSet<String> =
        CASES.iter().flat_map(|(_, codes)| *codes).map(|code| (*code).to_owned()).collect();
    for path in ["undefined_limit", "no_route", "syntax", "words", "includes"] {
        let report = config::load_config(&PathBuf::from(format!("tests/config/bad/{path}.toml"))).unwrap_err();
        caused.extend(codes(Some(report)));
    }
    caused.extend(codes(config::load_config(Path::new("no/such.toml")).err()));
    // Tests of certificates cause this one, with a clock of their own.
    caused.insert("SG0207".to_owned());
    assert_eq!(caused, all, "codes without a config that causes them");
}

/// The shipped configs have only warnings that are intended.
#[test]
fn shipped_configs_are_free_of_false_alarms() {
    let mut files: Vec<PathBuf> = Vec::new();
    for dir in ["conf", "conf/container", "conf/compose", "conf/compose-app", "conf/compose-scaled", "examples"] {
        let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")));
    }
    files.push(PathBuf::from("tests/config/good/main.toml"));
    assert!(files.len() > 5, "{files:?}");
    for path in files {
        let Ok(config) = config::load_config(&path) else { continue };
        let found = codes(config.warnings).into_iter().filter(|code| code.as_str() >= "SG0300").collect::<Vec<_>>();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}
