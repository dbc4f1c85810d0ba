//! The manifests for Kubernetes, the Helm chart and the Compose files. Schemas are checked offline with
//! `kubernetes-validate`, which tests/interop/install.sh installs from PyPI.

mod helm;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluicegate::config;

use crate::support::app::venv;

const DIR: &str = "packaging/kubernetes";
/// The oldest and the newest version that the manifests are for.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];
/// Resources that Kubernetes itself has no schema for.
const CUSTOM: [&str; 2] = ["kustomization.yaml", "servicemonitor.yaml"];

fn manifests() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(DIR).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// All documents of a file, as JSON.
fn documents(path: &Path) -> Vec<Value> {
    let program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = Command::new(venv().join("bin/python")).args(["-c", program]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn document(name: &str) -> Value {
    documents(&Path::new(DIR).join(name)).remove(0)
}

/// Whether files fit the schemas of both versions, and what is wrong. All files at once: the start of the validator
/// takes longest.
fn validate(paths: &[PathBuf]) -> (bool, String) {
    let mut command = Command::new(venv().join("bin/kubernetes-validate"));
    let versions = VERSIONS.iter().flat_map(|version| ["-k", version]);
    let output = command.arg("--strict").args(versions).args(paths).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn manifests_are_valid_for_the_oldest_and_the_newest_version() {
    let mut paths = manifests();
    paths.retain(|path| !CUSTOM.iter().any(|name| path.ends_with(name)));
    let (is_valid, text) = validate(&paths);
    assert!(is_valid, "{text}");
    for version in VERSIONS {
        let passed = format!("deployment/sluicegate against version {version}");
        assert!(text.contains(&passed), "{passed}: {text}");
    }
    // A field that is misspelt would pass unseen without --strict.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.yaml");
    let text = std::fs::read_to_string(Path::new(DIR).join("deployment.yaml")).unwrap();
    std::fs::write(&path, text.replace("readinessProbe:", "readynessProbe:")).unwrap();
    assert!(!validate(&[path]).0);
}

#[test]
fn the_kustomization_names_every_manifest() {
    let text = std::fs::read_to_string(Path::new(DIR).join("kustomization.yaml")).unwrap();
    for path in manifests() {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name == "kustomization.yaml" || text.contains(&format!("- {name}\n")), "{name}");
    }
    let listed = document("kustomization.yaml");
    for name in listed["resources"].as_array().unwrap() {
        assert!(Path::new(DIR).join(name.as_str().unwrap()).is_file(), "{name}");
    }
    let tag = listed["images"][0]["newTag"].as_str().unwrap();
    assert_eq!(tag, env!("CARGO_PKG_VERSION"));
}

/// The times and ports of the manifests against those of the config in them.
#[test]
fn the_config_and_the_deployment_agree() {
    let map = document("configmap.yaml");
    let text = map["data"]["sluicegate.toml"].as_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sluicegate.toml");
    std::fs::write(dir.path().join("token"), "token-of-the-test").unwrap();
    std::fs::write(dir.path().join("metrics-token"), "token-of-prometheus").unwrap();
    std::fs::write(&path, text.replace("/run/secrets/sluicegate/", "")).unwrap();
    let config = config::load_config(&path).unwrap_or_else(|report| panic!("{report}"));

    // What Prometheus sends is a token of the config.
    let credentials = &document("servicemonitor.yaml")["spec"]["endpoints"][0]["authorization"]["credentials"];
    let secret = document("secret.yaml");
    assert_eq!(credentials["name"], secret["metadata"]["name"]);
    let file = credentials["key"].as_str().unwrap();
    assert!(secret["stringData"][file].is_string() && text.contains(&format!("/run/secrets/sluicegate/{file}}}")));
    assert!(config.admin.metrics_need_token);

    let deployment = document("deployment.yaml");
    let pod = &deployment["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > (config.server.shutdown_delay + config.server.shutdown_timeout).as_secs());
    let readiness = &pod["containers"][0]["readinessProbe"];
    let noticed = readiness["periodSeconds"].as_u64().unwrap() * readiness["failureThreshold"].as_u64().unwrap();
    assert!(noticed < config.server.shutdown_delay.as_secs(), "endpoints must be gone before the listeners are");

    let ports = pod["containers"][0]["ports"].as_array().unwrap();
    let port = |name: &str| ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string();
    assert!(config.listeners[0].address.to_string().ends_with(&format!(":{}", port("http"))));
    assert!(config.admin.listen.to_string().ends_with(&format!(":{}", port("admin"))));
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    for mount in mounts {
        assert_eq!(mount["subPath"], Value::Null, "a file that is mounted by subPath never changes");
    }
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(*annotations, Value::Null, "a checksum of the config would restart what reloads by itself");
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
}

#[test]
fn every_config_loads() {
    let mut loaded = 0;
    for directory in ["conf", "examples"] {
        // Files of cases for `sluicegate test` and of prices, which other tests read.
        let is_config = |path: &&PathBuf| !path.ends_with("cases.toml") && !path.ends_with("prices.toml");
        for path in files_under(Path::new(directory)).iter().filter(is_config) {
            if path.extension().is_some_and(|extension| extension == "toml") {
                config::load_config(path).unwrap_or_else(|report| panic!("{}: {report}", path.display()));
                loaded += 1;
            }
        }
    }
    assert!(loaded >= 15, "{loaded}");
}

#[test]
fn compose_files_are_complete() {
    let mut files = files_under(Path::new("conf"));
    files.push("compose.yaml".into());
    files.retain(|path| path.ends_with("compose.yaml"));
    assert!(files.len() >= 4, "{files:?}");
    for compose in files {
        let dir = compose.parent().unwrap();
        let services = documents(&compose).remove(0)["services"].clone();
        for (name, service) in services.as_object().unwrap() {
            let is_ours = service["image"] == "sluicegate";
            assert!(!is_ours || service["read_only"] == true && service["cap_drop"][0] == "ALL", "{name}");
            if let Some(context) = service["build"].as_str() {
                assert!(dir.join(context).join("Dockerfile").is_file(), "{}: {name}", compose.display());
            }
            for volume in service["volumes"].as_array().into_iter().flatten() {
                let source = volume.as_str().unwrap().split(':').next().unwrap();
                assert!(!source.starts_with('.') || dir.join(source).exists(), "{name}: {source}");
            }
        }
        assert!(services.get("gateway").or(services.get("gateway-1")).is_some());
    }
}

/// The program contains files from outside `src`, and `docker build` gets only what `.dockerignore` lets through.
#[test]
fn docker_gets_every_file_that_the_program_contains() {
    let ignored = std::fs::read_to_string(".dockerignore").unwrap();
    let kept: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut included = 0;
    for source in files_under(Path::new("src")).iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = std::fs::read_to_string(source).unwrap();
        let names = ["include_str!(\"", "include_bytes!(\""].into_iter().flat_map(|start| text.split(start).skip(1));
        for name in names {
            let Some((name, _)) = name.split_once('"').filter(|(name, _)| name.starts_with("../")) else { continue };
            let file = source.parent().unwrap().join(name).canonicalize().unwrap();
            let file = file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_owned();
            assert!(kept.iter().any(|path| file.starts_with(path)), "add !{} to .dockerignore", file.display());
            included += 1;
        }
    }
    assert!(included >= 30, "{included}");
}

fn files_under(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
}
