//! Configs of envoyproxy/ratelimit: whether the imported rules match like the tree of descriptors.

use std::collections::HashSet;
use std::fmt::Write;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sluicegate::config::{self, Config};
use sluicegate::limiting::source::DescriptorEntry;

use super::output::import;

/// A descriptor of the config, as the service reads it.
struct Node {
    key: &'static str,
    value: Option<&'static str>,
    /// A rate by which the test recognizes the node.
    rate: Option<u32>,
    children: Vec<Node>,
}

const KEYS: [&str; 2] = ["k", "l"];
const VALUES: [Option<&str>; 6] = [None, Some("a"), Some("ab"), Some("a*"), Some("*b"), Some("*")];

fn random_level(rng: &mut StdRng, depth: usize, next_rate: &mut u32) -> Vec<Node> {
    let mut seen = HashSet::new();
    let mut level = Vec::new();
    for _ in 0..rng.random_range(1..=4) {
        let (key, value) = (KEYS[rng.random_range(0..2)], VALUES[rng.random_range(0..6)]);
        if !seen.insert((key, value)) {
            continue;
        }
        *next_rate += 1;
        let rate = rng.random_bool(0.7).then_some(*next_rate);
        let has_children = depth < 3 && rng.random_bool(0.5);
        let children = if has_children { random_level(rng, depth + 1, next_rate) } else { Vec::new() };
        level.push(Node { key, value, rate, children });
    }
    level
}

fn write_level(text: &mut String, level: &[Node], indent: usize) {
    let pad = " ".repeat(indent);
    for Node { key, value, rate, children } in level {
        writeln!(text, "{pad}- key: {key}").unwrap();
        value.iter().for_each(|value| writeln!(text, "{pad}  value: \"{value}\"").unwrap());
        rate.iter().for_each(|rate| {
            writeln!(text, "{pad}  rate_limit: {{ unit: hour, requests_per_unit: {rate} }}").unwrap();
        });
        if !children.is_empty() {
            writeln!(text, "{pad}  descriptors:").unwrap();
            write_level(text, children, indent + 4);
        }
    }
}

fn has_stars(pattern: &str, value: &str) -> bool {
    let (start, end) = pattern.split_once('*').unwrap();
    value.len() >= start.len() + end.len() && value.starts_with(start) && value.ends_with(end)
}

/// Finds the rate of a descriptor as the service does: an exact value, then wildcards in file order, then the key
/// alone, without going back; the depth must be the same.
fn find<'t>(mut level: &'t [Node], entries: &[(&str, &str)]) -> Option<u32> {
    for (place, (key, value)) in entries.iter().enumerate() {
        let of_key = |node: &&'t Node| node.key == *key;
        let is_exact = |node: &&'t Node| node.value == Some(*value);
        let is_wild = |node: &&'t Node| node.value.is_some_and(|text| text.contains('*') && has_stars(text, value));
        let find = |test: &dyn Fn(&&'t Node) -> bool| level.iter().find(|node| of_key(node) && test(node));
        let node = find(&is_exact).or_else(|| find(&is_wild)).or_else(|| find(&|node| node.value.is_none()))?;
        if place + 1 == entries.len() {
            return node.rate;
        }
        level = &node.children;
    }
    None
}

/// The quota that the imported config has for a descriptor.
fn imported(config: &Config, domain: &str, entries: &[(&'static str, &'static str)]) -> Option<u32> {
    let rules = config.rls.find(domain.as_bytes())?;
    let entry =
        |(key, value): &(&'static str, &'static str)| DescriptorEntry { key: key.as_bytes(), value: value.as_bytes() };
    let entries: Vec<DescriptorEntry> = entries.iter().map(entry).collect();
    let rule = rules.find_rule(&entries)?;
    let limit = &config.route_at(rules.route).limits[*rule.limits.first()?];
    Some(limit.rule.policy().quota.try_into().unwrap())
}

#[test]
fn imported_rules_match_like_the_tree() {
    let mut rng = StdRng::seed_from_u64(20);
    let mut text = String::new();
    let trees: Vec<Vec<Node>> = (0..60)
        .map(|number| {
            let tree = random_level(&mut rng, 1, &mut 0);
            writeln!(text, "---\ndomain: d{number}\ndescriptors:").unwrap();
            write_level(&mut text, &tree, 2);
            tree
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ratelimit.yaml");
    std::fs::write(&path, &text).unwrap();
    let output = import("ratelimit", &path);
    let written = String::from_utf8(output.stdout).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
    let config = config::load_text("imported", &written).unwrap_or_else(|report| panic!("{report}"));
    let mut limited = 0;
    for (number, tree) in trees.iter().enumerate() {
        let domain = format!("d{number}");
        for _ in 0..300 {
            let count = rng.random_range(1..=3);
            let entry =
                |_| (["k", "l", "m"][rng.random_range(0..3)], ["a", "ab", "b", "cb", "c"][rng.random_range(0..5)]);
            let entries: Vec<(&'static str, &'static str)> = (0..count).map(entry).collect();
            let expected = find(tree, &entries);
            limited += usize::from(expected.is_some());
            assert_eq!(imported(&config, &domain, &entries), expected, "{domain} {entries:?}\n{text}\n{written}");
        }
    }
    assert!(limited > 1000, "{limited}");
}

/// Documents of one domain are joined, also those in ConfigMaps; a descriptor that both have is a mistake.
#[test]
fn several_files_have_one_domain() {
    let dir = tempfile::tempdir().unwrap();
    let domain = |value: &str| {
        format!(
            "domain: edge\ndescriptors:\n- {{key: path, value: {value}, rate_limit: {{unit: hour, requests_per_unit: 7}}}}\n"
        )
    };
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: rl}}\ndata:\n  b.yaml: |\n{}",
        domain("/b").lines().map(|line| format!("    {line}\n")).collect::<String>()
    );
    let path = dir.path().join("all.yaml");
    std::fs::write(&path, format!("{}---\n{map}", domain("/a"))).unwrap();
    let output = import("ratelimit", &path);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{found}");
    config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    assert_eq!(found.matches("domain = \"edge\"").count(), 2, "{found}");
    assert!(found.contains("MERGE_DOMAIN_CONFIG=true"), "{found}");
    std::fs::write(&path, map.replace("domain: edge", "domains: edge")).unwrap();
    let output = import("ratelimit", &path);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("there is no `domain`"), "{stderr}");
    std::fs::write(&path, format!("{}---\n{}", domain("/a"), domain("/a"))).unwrap();
    let output = import("ratelimit", &path);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("occurs twice"), "{stderr}");
}

/// A ConfigMap may have files beside its configs. What the import cannot read gets a comment.
#[test]
fn files_that_are_no_configs_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map.yaml");
    let config = "domain: edge\n    descriptors:\n    - {key: path, rate_limit: {unit: hour, requests_per_unit: 7}}\n";
    for (manifest, code, comment) in [
        (format!("kind: ConfigMap\ndata:\n  a.yaml: |\n    {config}  b.lua: \"- [}}\"\n"), 3, "`b.lua`: "),
        (format!("kind: ConfigMap\ndata:\n  a.yaml: |\n    {config}  b.txt: hello\n"), 0, ""),
        (
            format!("kind: ConfigMap\nbinaryData:\n  c.yaml: ZG9tYWluOiB4\ndata:\n  a.yaml: |\n    {config}"),
            3,
            "`binaryData: c.yaml`: ",
        ),
        (format!("kind: Secret\nstringData:\n  a.yaml: |\n    {config}"), 0, ""),
        (
            format!("kind: Secret\ndata:\n  c.yaml: ZG9tYWluOiB4\nstringData:\n  a.yaml: |\n    {config}"),
            3,
            "`Secret: c.yaml`: ",
        ),
    ] {
        let text = format!("apiVersion: v1\nmetadata: {{name: rl}}\n{manifest}");
        std::fs::write(&path, &text).unwrap();
        let output = import("ratelimit", &path);
        let found = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(found.contains("domain = \"edge\"") && found.contains(comment), "{text}\n{found}");
        config::load_text("imported", &found).unwrap_or_else(|report| panic!("{report}\n{found}"));
    }
}
