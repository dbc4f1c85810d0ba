//! The known name that an unknown one probably means. Used by hints, and by lookups of options and limits.

/// Returns the candidate that `word` probably misspells.
pub fn find_closest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    // Comparing a long text with every name would take quadratic time.
    if word.len() > 128 {
        return None;
    }
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.6)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
