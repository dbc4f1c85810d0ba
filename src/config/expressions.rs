//! Regular expressions of a config: compiled with bounded memory, and judged by what a long value costs. Called by
//! `values` and `source`.
//!
//! An expression is run as a machine that is made of its states while it reads values, and kept in a cache. As long as
//! all states that values can reach fit into the cache, each byte costs a look-up. Otherwise each byte costs time in
//! proportion to the positions of the expression: `[a-z]{2000}` has 2000.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use regex::{Regex, RegexBuilder};
use regex_automata::Anchored;
use regex_automata::hybrid::dfa::DFA;
use regex_automata::nfa::thompson;
use regex_automata::util::{start, syntax};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use crate::names::{TextFault, invalid_text};

/// Memory limit of a compiled regular expression, in bytes.
const REGEX_MAX: usize = 1024 * 1024;
/// An expression with as many positions takes about 1 µs for each byte of a value at worst.
const SMALL_MAX: usize = 250;
/// Memory limit of the cache of a larger expression, in bytes, for each worker. It grows only as values need it.
const CACHE_MAX: usize = 32 * 1024 * 1024;
/// Steps after which a larger expression is taken for one whose states do not fit.
const STEPS_MAX: usize = 100_000;
/// Larger expressions that are remembered, so that each is judged once when a config is loaded.
const JUDGED_MAX: usize = 100;

thread_local! {
    static JUDGED: RefCell<HashMap<(String, ExpressionFlags), bool>> = RefCell::default();
}

/// How the letters and the `.` of an expression are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExpressionFlags {
    pub ignore_case: bool,
    /// `.` matches line ends, too.
    pub any_dot: bool,
}

/// Compiles a regular expression with bounded memory.
///
/// # Errors
/// It is none, or too large.
pub fn build_regex(pattern: &str, flags: ExpressionFlags) -> Result<Regex, TextFault> {
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(flags.ignore_case).dot_matches_new_line(flags.any_dot);
    let cache = if is_large(pattern) && !is_slow(pattern, flags) { CACHE_MAX } else { REGEX_MAX };
    match builder.size_limit(REGEX_MAX).dfa_size_limit(cache).build() {
        Ok(regex) => Ok(regex),
        Err(regex::Error::CompiledTooBig(_)) => {
            invalid_text("the regular expression is too large", "use smaller repetitions")
        }
        Err(error) => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            invalid_text(format!("not a regular expression: {reason}"), "the syntax is that of the Rust crate regex")
        }
    }
}

/// Returns a warning about an expression for which a client can choose values that cost much time.
pub fn find_slowness(pattern: &str, flags: ExpressionFlags) -> Option<TextFault> {
    is_slow(pattern, flags).then(|| TextFault {
        what: format!(
            "this regular expression has {} positions and too many states, so each byte of a value can take microseconds",
            count_positions_of(pattern)
        ),
        help: "use smaller repetitions, or begin it with `^`; a repetition needs the most time if what precedes it can \
               match inside of it"
            .to_owned(),
    })
}

fn is_slow(pattern: &str, flags: ExpressionFlags) -> bool {
    is_large(pattern) && !has_few_states(pattern, flags)
}

fn is_large(pattern: &str) -> bool {
    count_positions_of(pattern) > SMALL_MAX
}

fn count_positions_of(pattern: &str) -> usize {
    ParserBuilder::new().build().parse(pattern).map_or(0, |tree| count_positions(&tree))
}

/// Returns how many characters an expression names, each repetition written out.
fn count_positions(tree: &Hir) -> usize {
    let sum = |parts: &[Hir]| parts.iter().map(count_positions).fold(0, usize::saturating_add);
    match tree.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Class(_) => 1,
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.max(1));
            count_positions(&repetition.sub).saturating_mul(usize::try_from(times).unwrap_or(usize::MAX))
        }
        HirKind::Capture(capture) => count_positions(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => sum(parts),
    }
}

/// Returns whether all states that values can reach are known to fit into the cache.
fn has_few_states(pattern: &str, flags: ExpressionFlags) -> bool {
    let key = (pattern.to_owned(), flags);
    if let Some(known) = JUDGED.with_borrow(|judged| judged.get(&key).copied()) {
        return known;
    }
    let has_few = count_states(pattern, flags).is_some();
    JUDGED.with_borrow_mut(|judged| {
        if judged.len() >= JUDGED_MAX {
            judged.clear();
        }
        judged.insert(key, has_few);
    });
    has_few
}

/// Returns the number of states that values can reach. `None` if they do not fit into the cache, or if that takes too
/// long to find out.
fn count_states(pattern: &str, flags: ExpressionFlags) -> Option<usize> {
    let syntax = syntax::Config::new().case_insensitive(flags.ignore_case).dot_matches_new_line(flags.any_dot);
    // States of the matcher take more place.
    let config = DFA::config()
        .cache_capacity(CACHE_MAX / 2)
        .minimum_cache_clear_count(Some(0))
        .skip_cache_capacity_check(false)
        .unicode_word_boundary(true);
    let machine = thompson::Config::new().nfa_size_limit(Some(REGEX_MAX));
    let dfa = DFA::builder().syntax(syntax).thompson(machine).configure(config).build(pattern).ok()?;
    let mut cache = dfa.create_cache();
    let beginning = start::Config::new().anchored(Anchored::No);
    let first = dfa.start_state(&mut cache, &beginning).ok()?;
    let mut classes = HashSet::new();
    let bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| classes.insert(dfa.byte_classes().get(*byte))).collect();
    let (mut visited, mut waiting, mut steps) = (HashSet::from([first]), vec![first], 0);
    while let Some(state) = waiting.pop() {
        for byte in &bytes {
            steps += 1;
            let next = dfa.next_state(&mut cache, state, *byte).ok()?;
            // A match ends the search, and a byte that is not ASCII next to a word boundary ends the use of the cache.
            if !next.is_dead() && !next.is_match() && !next.is_quit() && visited.insert(next) {
                waiting.push(next);
            }
        }
        if steps > STEPS_MAX {
            return None;
        }
    }
    Some(visited.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_expressions_with_few_states_get_a_large_cache_and_others_a_warning() {
        for (pattern, is_slow) in [
            ("^/api/[a-z]{1,64}$", false),
            ("([a-z0-9]{2000})", false),
            ("^(?:[^%]|%..)*(?:[0-9A-Za-z]{2000})", false),
            (&format!("({})", ["Googlebot", "bingbot", "AhrefsBot", "SemrushBot"].repeat(20).join("|")), false),
            ("a[ab]{300}", true),
            ("x.{500}y", true),
        ] {
            let flags = ExpressionFlags { any_dot: true, ..ExpressionFlags::default() };
            assert_eq!(super::is_slow(pattern, flags), is_slow, "{pattern}");
            assert!(build_regex(pattern, flags).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn positions_are_counted_with_repetitions() {
        for (pattern, count) in
            [("", 0), ("^abc$", 3), ("[a-z]{2,5}", 5), ("(ab|c)+", 3), ("(a{10}){10}", 100), (r"\w*", 1)]
        {
            assert_eq!(count_positions_of(pattern), count, "{pattern}");
        }
    }
}
