//! The file of a redirect map: one line per path, as `FROM TO [STATUS]`. Called by `redirect`.

use std::collections::HashMap;

use crate::canonical::repair_path;
use crate::config::compile::matcher::check_canonical_path;
use crate::config::compile::named_set::strip_comment;
use crate::config::compile::routes::redirect_target::{
    check_start, check_target_bytes, local_path, parse_redirect_status,
};
use crate::config::diagnostics::report::{Diagnostic, Place};
use crate::config::reader::Section;
use crate::config::schema::route;
use crate::config::tree::Node;
use crate::config::values::{TextFault, invalid_text};
use crate::route::matcher::Matcher;
use crate::route::redirect::RedirectMap;

/// Maximum number of entries of a map.
const ENTRIES_MAX: usize = 100_000;
/// Maximum number of mistakes that are reported of one file.
const MISTAKES_MAX: usize = 20;
const LINE_HELP: &str = "write one redirect per line: /old /new, or /old https://example.com/new 301";

const TO_HELP: &str = "write a URL like https://example.com/new, or a path like /new";

/// A word of a file and its offset.
type WordAt<'t> = (usize, &'t str);

/// Reads the map that `node` names. Returns `None` if it has mistakes.
pub fn read_redirect_map(section: &Section, node: &Node, matcher: Option<&Matcher>) -> Option<RedirectMap> {
    let path = section.read_string(&route::redirect::MAP)?;
    let path = section.sources.resolve_path(node.place.file, &path);
    let text = match section.sources.read_file(&path) {
        Ok(text) => text,
        Err(error) => {
            let what = format!("`{}` cannot be read: {error}", path.display());
            return section.report_fault(route::redirect::MAP.name, node, &what, error.help());
        }
    };
    let dir = path.parent().map(ToOwned::to_owned).unwrap_or_default();
    let file = section.sources.add_source(path.display().to_string(), dir, text.clone());
    let place = |(start, word): WordAt| Place { file, start, end: start + word.len() };
    let (mut map, mut first_at) = (RedirectMap::new(), HashMap::<&str, usize>::new());
    let mut mistakes = 0;
    for words in lines(&text) {
        let read = read_line(&words).and_then(|(from, entry)| match first_at.get(from) {
            None => {
                first_at.insert(from, words[0].0);
                Ok((from, entry))
            }
            Some(_) => Err((
                words[0],
                TextFault { what: format!("`{from}` occurs twice"), help: "remove one line".to_owned() },
            )),
        });
        match read {
            Ok((from, entry)) => {
                map.insert(from.into(), entry);
            }
            Err((word, TextFault { what, help })) if mistakes < MISTAKES_MAX => {
                mistakes += 1;
                let mut mistake = Diagnostic::new(place(word), what).with_help(help);
                if let Some(at) = first_at.get(word.1).filter(|at| **at < word.0) {
                    mistake = mistake.with_related(place((*at, word.1)), "first listed here");
                }
                section.add_mistake(mistake);
            }
            Err(_) => break,
        }
        if map.len() > ENTRIES_MAX {
            let what = format!("`{}` has more than {ENTRIES_MAX} entries", path.display());
            return section.report_fault(
                route::redirect::MAP.name,
                node,
                &what,
                "use a pattern with `to`, or several routes",
            );
        }
    }
    if mistakes > 0 {
        return None;
    }
    if let Some(cycle) = find_loop(&map, matcher) {
        let place = place((first_at.get(cycle[0]).copied().unwrap_or_default(), cycle[0]));
        let steps = cycle.iter().take(5).copied().chain([if cycle.len() > 5 { "..." } else { cycle[0] }]);
        let what = format!("these redirects form a loop: {}", steps.collect::<Vec<_>>().join(" -> "));
        section.add_mistake(Diagnostic::new(place, what).with_help("remove one of them, or give it another target"));
        return None;
    }
    Some(map)
}

/// Returns the words of each line that is not empty.
fn lines(text: &str) -> impl Iterator<Item = Vec<WordAt<'_>>> {
    let offset = |part: &str| (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let words = move |line| strip_comment(line).split_whitespace().map(|word| (offset(word), word)).collect::<Vec<_>>();
    text.lines().map(words).filter(|words| !words.is_empty())
}

/// Reads the words of one line.
///
/// # Errors
/// The word with a mistake.
#[allow(clippy::type_complexity, reason = "a name for the entry of one map would hide more than it shows")]
fn read_line<'t>(
    words: &[WordAt<'t>],
) -> Result<(&'t str, (Box<str>, Option<http::StatusCode>)), (WordAt<'t>, TextFault)> {
    let (from, to, status) = match words {
        [from, to] => (from, to, None),
        [from, to, status] => (from, to, Some(status)),
        [.., last] => return Err((*last, fault("a line has a path, a target and at most a status", LINE_HELP))),
        [] => return Err(((0, ""), fault("the line is empty", LINE_HELP))),
    };
    if let Some((word, rest)) = [from, to].into_iter().find_map(|word| Some((word, word.1.strip_suffix([';', ','])?))) {
        let what = format!("`{}` ends with a mark that is not part of a path", word.1);
        return Err((*word, fault(&what, &format!("write `{rest}`; a line needs no mark at its end"))));
    }
    check_canonical_path(from.1).map_err(|fault| (*from, fault))?;
    let verdict = match to.1.contains(['{', '}']) {
        true => invalid_text("a map has no placeholders", "write the whole target, or use `to` of the route"),
        false => check_target_bytes(to.1)
            .and_then(|()| check_start(to.1).map_err(|fault| TextFault { help: TO_HELP.to_owned(), ..fault })),
    };
    verdict.map_err(|fault| (*to, fault))?;
    let status = status.map(|status| parse_redirect_status(status.1).map_err(|fault| (*status, fault))).transpose()?;
    Ok((from.1, (to.1.into(), status)))
}

fn fault(what: &str, help: &str) -> TextFault {
    TextFault { what: what.to_owned(), help: help.to_owned() }
}

/// Returns the paths of a loop. A path that leads to itself under a full URL is not a loop, because the scheme may
/// differ.
fn find_loop<'m>(map: &'m RedirectMap, matcher: Option<&Matcher>) -> Option<Vec<&'m str>> {
    let next = |from: &str| {
        let (to, _) = map.get(from)?;
        let to_path = local_path(to, matcher)?;
        let (next, _) = map.get_key_value(repair_path(to_path).to_read(to_path))?;
        (**next != *from || to.starts_with('/')).then_some(&**next)
    };
    // The number of the walk that has visited a path first.
    let mut visits: HashMap<&str, usize> = HashMap::with_capacity(map.len());
    let mut starts: Vec<&str> = map.keys().map(|from| &**from).collect();
    starts.sort_unstable();
    for (walk, start) in starts.into_iter().enumerate() {
        let mut at = Some(start);
        while let Some(path) = at {
            match visits.get(path) {
                None => {
                    visits.insert(path, walk);
                    at = next(path);
                }
                Some(earlier) if *earlier < walk => break,
                Some(_) => {
                    let mut cycle = vec![path];
                    let mut at = next(path);
                    while let Some(other) = at.filter(|other| *other != path) {
                        cycle.push(other);
                        at = next(other);
                    }
                    return Some(cycle);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> RedirectMap {
        pairs.iter().map(|(from, to)| ((*from).into(), ((*to).into(), None))).collect()
    }

    #[test]
    fn loops_are_found() {
        for (pairs, cycle) in [
            (&[("/a", "/b"), ("/b", "/a")][..], Some(&["/a", "/b"][..])),
            (&[("/a", "/a")], Some(&["/a"])),
            (&[("/a", "/a?x=1")], Some(&["/a"])),
            (&[("/0", "/b"), ("/b", "/c#top"), ("/c", "/d"), ("/d", "/b")], Some(&["/b", "/c", "/d"])),
            (&[("/a", "/%61")], Some(&["/a"])),
            (&[("/a", "/b/../a")], Some(&["/a"])),
            (&[("/a", "/./%62//%2e%2E/a?x=/")], Some(&["/a"])),
            (&[("/a%2F", "/b"), ("/b", "/a%2f")], Some(&["/a%2F", "/b"])),
            (&[("/@a", "/%40a")], Some(&["/@a"])),
            (&[("/", "/a/.."), ("/a/", "/a/b/..")], Some(&["/"])),
            (&[("/a", "/a/."), ("/b", "/%6"), ("/c", "/%zz"), ("/d", "/%25d")], None),
            (&[("/a", "/b"), ("/b", "/c")], None),
            (&[("/a", "https://other.example/a")], None),
            (&[("/a", "/c"), ("/b", "/c"), ("/c", "/d")], None),
        ] {
            assert_eq!(find_loop(&map(pairs), None).as_deref(), cycle, "{pairs:?}");
        }
        let chain: Vec<(String, String)> = (0..ENTRIES_MAX).map(|i| (format!("/{i}"), format!("/{}", i + 1))).collect();
        let chain: Vec<(&str, &str)> = chain.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        assert_eq!(find_loop(&map(&chain), None), None);
    }
}
