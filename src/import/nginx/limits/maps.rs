//! Composes a `map` of a `map` into one `map` of what the inner one reads. Public configs write tiers so: one `map` from
//! keys of clients to tiers, and one from tiers to the key of each limit.

use std::collections::{HashMap, HashSet};

use regex::{Regex, RegexBuilder};

use crate::import::expressions::translate_ascii_regex;
use crate::import::nginx::limits::keys::find_variables;
use crate::import::syntax::Directive;

/// Longest chain of maps.
const DEPTH_MAX: usize = 8;
/// Most entries that composed maps have together, and most comparisons of values with regular expressions.
const WORK_MAX: usize = 200_000;
/// Maximum number of bytes of a compiled regular expression, the same as in a config.
const REGEX_MAX: usize = 1 << 20;

/// Replaces each `map` that reads the variable of another `map` by one that reads what the other reads. All values of the
/// inner `map` must be constants. `changed`: variables that other directives give a value, too.
pub fn compose_maps(http: &mut [Directive], changed: &HashSet<String>) {
    let mut work = WORK_MAX;
    for _ in 0..DEPTH_MAX {
        let composed: Vec<(usize, Directive)> = (0..http.len())
            .filter_map(|at| {
                let outer = http.get(at).filter(|outer| outer.name == "map" && outer.args.len() == 2)?;
                let name = read_variable(outer.arg(0)).filter(|name| !changed.contains(*name))?;
                let is_definition = |other: &&Directive| {
                    let variable = other.args.last().and_then(|arg| arg.strip_prefix('$'));
                    matches!(other.name.as_str(), "map" | "geo") && variable == Some(name)
                };
                // The last definition of a variable counts.
                let inner = http.iter().rfind(is_definition).filter(|inner| inner.name == "map")?;
                (!std::ptr::eq(inner, outer)).then(|| compose(inner, outer, &mut work)).flatten().map(|map| (at, map))
            })
            .collect();
        if composed.is_empty() {
            return;
        }
        for (at, map) in composed {
            http[at] = map;
        }
    }
}

/// Returns the name of the only variable that a text consists of.
fn read_variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    (find_variables(text) == [name]).then_some(name)
}

/// Composes two maps. Returns `None` if the inner one has other values than constants, or either of them anything that
/// is not a plain entry.
fn compose(inner: &Directive, outer: &Directive, work: &mut usize) -> Option<Directive> {
    let values = ValueMap::read(outer)?;
    *work = work.checked_sub(inner.inner().len().saturating_mul(values.expressions.len() + 1))?;
    let mut lines = Vec::with_capacity(inner.inner().len() + 1);
    let mut has_default = false;
    for line in inner.inner() {
        match (line.name.as_str(), line.args.as_slice()) {
            // The value is the same, however often nginx computes it.
            ("volatile", []) => {}
            ("hostnames", []) => lines.push(line.clone()),
            ("include" | "hostnames" | "volatile", _) => return None,
            (name, [value]) => {
                has_default |= name == "default";
                lines.push(Directive { args: vec![values.find(value)?.to_owned()], ..line.clone() });
            }
            _ => return None,
        }
    }
    if !has_default {
        let default = values.find("")?.to_owned();
        lines.push(Directive { name: "default".to_owned(), args: vec![default], block: None, ..outer.clone() });
    }
    Some(Directive {
        args: vec![inner.arg(0).to_owned(), outer.arg(1).to_owned()],
        block: Some(lines),
        ..outer.clone()
    })
}

/// The entries of a `map`, as nginx finds them for a value.
struct ValueMap<'m> {
    /// Texts in lower case: they have no case.
    texts: HashMap<String, &'m str>,
    expressions: Vec<(Regex, &'m str)>,
    default: &'m str,
}

impl<'m> ValueMap<'m> {
    fn read(map: &'m Directive) -> Option<ValueMap<'m>> {
        let mut entries = ValueMap { texts: HashMap::new(), expressions: Vec::new(), default: "" };
        for line in map.inner() {
            match (line.name.as_str(), line.args.as_slice()) {
                ("volatile", []) => {}
                // With `hostnames`, texts may be patterns of names.
                ("include" | "hostnames" | "volatile", _) => return None,
                ("default", [value]) => entries.default = value,
                (text, [value]) => match text.strip_prefix('~') {
                    Some(pattern) => entries.expressions.push((compile(pattern)?, value)),
                    None => {
                        let text = text.strip_prefix('\\').unwrap_or(text).to_ascii_lowercase();
                        entries.texts.entry(text).or_insert(value);
                    }
                },
                _ => return None,
            }
        }
        Some(entries)
    }

    /// Returns what a value is mapped to. `None` if the value is not a constant of plain ASCII.
    fn find(&self, value: &str) -> Option<&'m str> {
        if value.contains('$') || !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return None;
        }
        let by_text = self.texts.get(&value.to_ascii_lowercase()).copied();
        // nginx tries no expression on an empty value.
        let matches = |(regex, _): &&(Regex, &str)| !value.is_empty() && regex.is_match(value);
        let by_expression = || self.expressions.iter().find(matches).map(|(_, mapped)| *mapped);
        Some(by_text.or_else(by_expression).unwrap_or(self.default))
    }
}

/// Compiles an expression of a `map` for values of ASCII.
fn compile(pattern: &str) -> Option<Regex> {
    let (pattern, ignore_case) = pattern.strip_prefix('*').map_or((pattern, false), |pattern| (pattern, true));
    let written = translate_ascii_regex(pattern, ignore_case).ok()?;
    RegexBuilder::new(&written).size_limit(REGEX_MAX).build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(from: &str, to: &str, entries: &[&[&str]]) -> Directive {
        let line = |entry: &&[&str]| Directive::written(entry[0], &entry[1..]);
        Directive { block: Some(entries.iter().map(line).collect()), ..Directive::written("map", &[from, to]) }
    }

    /// Returns what the last of these maps reads, and its entries.
    fn composed(mut maps: Vec<Directive>) -> (String, Vec<String>) {
        compose_maps(&mut maps, &HashSet::from(["set".to_owned()]));
        let last = maps.pop().unwrap();
        let lines = last.inner().iter().map(|line| format!("{} {}", line.name, line.args.join(" ")));
        (last.arg(0).to_owned(), lines.collect())
    }

    #[test]
    fn a_map_of_a_map_reads_what_the_inner_one_reads() {
        let tiers = map("$http_x_api_key", "$tier", &[&["k1", "Gold"], &["~^p_", "silver"], &["", "none"]]);
        let limits: &[&[&str]] =
            &[&["volatile"], &["gold", "$http_x_api_key"], &["~*^SIL", "s"], &["", "$remote_addr"], &["default", "d"]];
        let (source, entries) = composed(vec![tiers.clone(), map("${tier}", "$limit", limits)]);
        assert_eq!(source, "$http_x_api_key");
        assert_eq!(entries, ["k1 $http_x_api_key", "~^p_ s", " d", "default $remote_addr"]);
        // Through several maps.
        let chain = vec![
            tiers,
            map("$tier", "$one", &[&["gold", "1"], &["default", "0"]]),
            map("$one", "$two", &[&["1", "yes"], &["default", "no"]]),
        ];
        assert_eq!(
            composed(chain),
            ("$http_x_api_key".to_owned(), ["k1 yes", "~^p_ no", " no", "default no"].map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn what_nginx_may_find_otherwise_stays() {
        let inner = map("$http_a", "$x", &[&["a", "1"], &["default", "0"]]);
        for (inner, outer) in [
            (map("$http_a", "$x", &[&["a", "$host"]]), map("$x", "$y", &[&["1", "b"]])),
            (map("$http_a", "$x", &[&["a", "é"]]), map("$x", "$y", &[&["1", "b"]])),
            (map("$http_a", "$x", &[&["include", "file"]]), map("$x", "$y", &[&["1", "b"]])),
            (inner.clone(), map("$x", "$y", &[&["hostnames"], &["1", "b"]])),
            (inner.clone(), map("$x", "$y", &[&["include", "file"]])),
            (inner.clone(), map("$x", "$y", &[&["~(?<=a)1\\K", "b"]])),
            (inner.clone(), map("$x$host", "$y", &[&["1", "b"]])),
            (map("$http_a", "$set", &[&["a", "1"]]), map("$set", "$y", &[&["1", "b"]])),
            (Directive { name: "geo".to_owned(), ..inner }, map("$x", "$y", &[&["1", "b"]])),
        ] {
            let source = outer.arg(0).to_owned();
            assert_eq!(composed(vec![inner, outer]).0, source);
        }
        // nginx stops at a variable that depends on itself.
        let (source, _) = composed(vec![map("$b", "$a", &[&["1", "1"]]), map("$a", "$b", &[&["1", "1"]])]);
        assert!(source == "$a" || source == "$b", "{source}");
        assert_eq!(composed(vec![map("$a", "$a", &[&["1", "1"]])]).0, "$a");
    }
}
