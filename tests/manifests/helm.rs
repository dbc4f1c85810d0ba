//! The Helm chart, rendered by Helm's own library, which tests/interop/install.sh installs from PyPI.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate::config::{self, Config};

use super::{documents, validate};
use crate::support::app::venv;

const CHART: &str = "packaging/helm/sluicegate";

/// What Helm makes of the chart with these values, or its error.
fn try_render(values: &Value) -> Result<Vec<Value>, String> {
    let mut command = Command::new(venv().join("bin/python"));
    let output = command.args(["tests/manifests/render.py", CHART, &values.to_string()]).output().unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn render(values: &Value) -> Vec<Value> {
    try_render(values).unwrap_or_else(|error| panic!("{values}: {error}"))
}

fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = documents.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The values that the chart is for: as it is, with everything, and as little as possible.
fn values() -> [Value; 3] {
    let all = json!({
        "replicas": 4,
        "image": {"digest": format!("sha256:{}", "0".repeat(64)), "pullSecrets": [{"name": "registry"}]},
        "admin": {"existingSecret": "own"},
        "tls": {"enabled": true, "secret": "site"},
        "serviceMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
        "service": {"annotations": {"a": "b"}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "podAnnotations": {"a": "b"},
        "redis": {"enabled": false, "url": "rediss://redis.example.com:6380"},
    });
    let least = json!({
        "replicas": 1, "redis": {"enabled": false}, "podDisruptionBudget": {"enabled": false},
        "networkPolicy": {"enabled": false}, "service": {"type": "ClusterIP"},
    });
    [json!({}), all, least]
}

fn load(documents: &[Value]) -> Config {
    let text = find(documents, "ConfigMap", "edge")["data"]["sluicegate.toml"].as_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "token-of-the-test").unwrap();
    std::fs::write(dir.path().join("metrics-token"), "token-of-prometheus").unwrap();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tls/sample");
    let sample = sample.to_str().unwrap();
    let text = text
        .replace("/run/secrets/sluicegate/", "")
        .replace("/run/secrets/sluicegate-tls/tls.crt", &format!("{sample}.pem"))
        .replace("/run/secrets/sluicegate-tls/tls.key", &format!("{sample}.key"));
    let path = dir.path().join("sluicegate.toml");
    std::fs::write(&path, &text).unwrap();
    config::load_config(&path).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

#[test]
fn what_the_chart_renders_is_valid_and_its_config_loads() {
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for values in values() {
        let documents = render(&values);
        // The resource of the Prometheus operator, for which Kubernetes has no schema.
        let of_kubernetes: Vec<&Value> = documents.iter().filter(|it| it["kind"] != "ServiceMonitor").collect();
        assert!(of_kubernetes.len() >= 4, "{values}");
        for document in of_kubernetes {
            let path = dir.path().join(format!("{}.yaml", paths.len()));
            std::fs::write(&path, document.to_string()).unwrap();
            paths.push(path);
        }
        load(&documents);
    }
    let (is_valid, text) = validate(&paths);
    assert!(is_valid, "{text}");
}

/// Every selector selects the pods that it is meant for.
#[test]
fn services_and_policies_select_the_gateways_and_not_their_redis() {
    let documents = render(&json!({"serviceMonitor": {"enabled": true}}));
    let labels = |name| &find(&documents, "Deployment", name)["spec"]["template"]["metadata"]["labels"];
    let selects = |selector: &Value, labels: &Value| {
        let selector = selector.as_object().unwrap();
        !selector.is_empty() && selector.iter().all(|(name, value)| labels[name] == *value)
    };
    let mut seen = 0;
    for document in &documents {
        let (kind, name) = (document["kind"].as_str().unwrap(), document["metadata"]["name"].as_str().unwrap());
        let spec = &document["spec"];
        let selector = match kind {
            "Service" => &spec["selector"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            "Deployment" | "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
            "ServiceMonitor" => {
                let admin = &find(&documents, "Service", "edge-admin")["metadata"]["labels"];
                assert!(selects(&spec["selector"]["matchLabels"], admin), "{document}");
                continue;
            }
            _ => continue,
        };
        seen += 1;
        let is_redis = name.ends_with("-redis");
        assert_eq!(selects(selector, labels("edge")), !is_redis, "{kind} {name}");
        assert_eq!(selects(selector, labels("edge-redis")), is_redis, "{kind} {name}");
    }
    assert_eq!(seen, 8);
    let from = &find(&documents, "NetworkPolicy", "edge-redis")["spec"]["ingress"][0]["from"][0]["podSelector"];
    assert!(selects(&from["matchLabels"], labels("edge")) && !selects(&from["matchLabels"], labels("edge-redis")));
}

/// What Prometheus sends is a token of the config, and one that only reads metrics.
#[test]
fn the_service_monitor_sends_a_token_that_the_gateways_know() {
    for secret in ["edge-admin", "own"] {
        let existing = if secret == "own" { secret } else { "" };
        let documents = render(&json!({"serviceMonitor": {"enabled": true}, "admin": {"existingSecret": existing}}));
        let monitor = find(&documents, "ServiceMonitor", "edge");
        let credentials = &monitor["spec"]["endpoints"][0]["authorization"]["credentials"];
        assert_eq!(*credentials, json!({"name": secret, "key": "metrics-token"}));
        if existing.is_empty() {
            let tokens = &find(&documents, "Secret", secret)["stringData"];
            assert!(
                tokens["metrics-token"].as_str().unwrap().len() == 48 && tokens["metrics-token"] != tokens["token"]
            );
        }
        let mount = &find(&documents, "Deployment", "edge")["spec"]["template"]["spec"]["volumes"][1]["secret"];
        assert_eq!(mount["secretName"], secret);
        let text = find(&documents, "ConfigMap", "edge")["data"]["sluicegate.toml"].as_str().unwrap();
        assert!(
            text.contains("role = \"metrics\"\ntoken = \"${file:/run/secrets/sluicegate/metrics-token}\""),
            "{text}"
        );
        assert!(load(&documents).admin.metrics_need_token);
    }
    let text = find(&render(&json!({})), "ConfigMap", "edge")["data"]["sluicegate.toml"].to_string();
    assert!(!text.contains("metrics-token"), "a secret of one's own has that key only for a ServiceMonitor: {text}");
}

#[test]
fn the_config_of_the_chart_agrees_with_its_resources() {
    let documents = render(&json!({"tls": {"enabled": true, "secret": "site"}, "replicas": 3}));
    let config = load(&documents);
    let pod = &find(&documents, "Deployment", "edge")["spec"]["template"]["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > (config.server.shutdown_delay + config.server.shutdown_timeout).as_secs());
    let container = &pod["containers"][0];
    assert_eq!(container["image"], format!("sluicegate:{}", env!("CARGO_PKG_VERSION")));
    for (probe, path) in [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "admin"}), "{probe}");
    }
    let secrets: Vec<&Value> =
        pod["volumes"].as_array().unwrap().iter().map(|it| &it["secret"]["secretName"]).collect();
    assert_eq!(secrets, [&Value::Null, &json!("edge-admin"), &json!("site")]);
    let token = find(&documents, "Secret", "edge-admin")["stringData"]["token"].as_str().unwrap();
    assert!(token.len() >= 32, "{token}");

    let ports = find(&documents, "Service", "edge")["spec"]["ports"].as_array().unwrap();
    let port = |name: &str| ports.iter().find(|port| port["name"] == name).unwrap();
    assert_eq!((&port("https")["port"], &port("http3")["port"]), (&json!(443), &json!(443)));
    assert_eq!(port("http3")["protocol"], "UDP");
    let udp = container["ports"].as_array().unwrap().iter().find(|port| port["protocol"] == "UDP").unwrap();
    assert_eq!((&udp["name"], &udp["containerPort"]), (&json!("http3"), &json!(8443)));
    assert!(config.listeners.iter().any(|it| it.http3.is_some() && it.address.to_string().ends_with(":8443")));

    let text = find(&documents, "ConfigMap", "edge")["data"]["sluicegate.toml"].as_str().unwrap();
    assert!(text.contains("url = \"redis://edge-redis.prod.svc:6379\"\ngateways = 3\n"), "{text}");
    find(&documents, "Service", "edge-redis");
    find(&documents, "PodDisruptionBudget", "edge");
}

/// A token of the operator's own wins, and no secret is written beside one of theirs.
#[test]
fn the_token_of_the_admin_listener_is_the_operators_if_there_is_one() {
    let given = render(&json!({"admin": {"token": "chosen-by-hand-1234"}}));
    assert_eq!(find(&given, "Secret", "edge-admin")["stringData"]["token"], "chosen-by-hand-1234");
    let own = render(&json!({"admin": {"existingSecret": "own"}}));
    assert!(!own.iter().any(|it| it["kind"] == "Secret"));
}

#[test]
fn values_that_cannot_work_are_refused() {
    let both = try_render(&json!({"redis": {"url": "redis://elsewhere:6379"}})).unwrap_err();
    assert!(both.contains("set redis.enabled to false as well"), "{both}");
    let bare = try_render(&json!({"tls": {"enabled": true}})).unwrap_err();
    assert!(bare.contains("tls.enabled needs tls.secret"), "{bare}");
}

/// The values in the manual.
#[test]
fn the_example_of_the_guide_renders() {
    let page = std::fs::read_to_string("docs/guides/kubernetes.md").unwrap();
    let (_, example) = page.split_once("```yaml\n# values.yaml\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("values.yaml");
    std::fs::write(&path, example.split_once("```").unwrap().0).unwrap();
    let documents = render(&documents(&path)[0]);
    load(&documents);
    find(&documents, "ServiceMonitor", "edge");
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let text = std::fs::read_to_string(Path::new(CHART).join("Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(text.contains(&format!("\nversion: {version}\n")) && text.contains(&format!("appVersion: \"{version}\"")));
}
