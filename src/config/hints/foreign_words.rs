//! Values of options in other programs: of balancers, algorithms and modes. Called by `reader` for unknown values.

/// Values of options in other programs, as [`fold_name`] returns them, each with ours.
const FOREIGN_WORDS: &[(&str, &str)] = &[
    ("leastconn", "least_requests"),
    ("leastconnections", "least_requests"),
    ("leastrequest", "least_requests"),
    ("random", "p2c"),
    ("ewma", "p2c"),
    ("peakewma", "p2c"),
    ("wrr", "round_robin"),
    ("weightedroundrobin", "round_robin"),
    ("iphash", "consistent_hash"),
    ("sourceip", "consistent_hash"),
    ("source", "consistent_hash"),
    ("hash", "consistent_hash"),
    ("chash", "consistent_hash"),
    ("urihash", "consistent_hash"),
    ("cookiehash", "consistent_hash"),
    ("ringhash", "consistent_hash"),
    ("maglev", "consistent_hash"),
    ("always", "all"),
    ("requireandverify", "required"),
    ("require", "required"),
    ("verifyifgiven", "optional"),
    ("rolling", "sliding_window"),
    ("movingwindow", "sliding_window"),
    ("bucket", "token_bucket"),
    ("leaky", "leaky_bucket"),
    ("fixed", "fixed_window"),
    ("sliding", "sliding_window"),
    ("dryrun", "shadow"),
    ("failopen", "open"),
    ("failclosed", "closed"),
];

/// Returns the word of ours among `words` that a value of another program means.
pub fn find_foreign_word<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let folded = fold_name(text);
    let meant = FOREIGN_WORDS.iter().filter(|(foreign, _)| *foreign == folded);
    meant.into_iter().find_map(|(_, own)| words.iter().find(|word| *word == own).copied())
}

/// Returns a name without what differs between programs: case, separators, and the start of an annotation, as in
/// `nginx.ingress.kubernetes.io/rewrite-target`.
pub fn fold_name(name: &str) -> String {
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    name.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::schema;
    use crate::config::schema::value_type::ValueType;

    #[test]
    fn words_of_other_programs_are_ours_of_the_same_option() {
        let balancers = ["p2c", "round_robin", "least_requests", "consistent_hash"];
        assert_eq!(find_foreign_word("least_conn", &balancers), Some("least_requests"));
        assert_eq!(find_foreign_word("RING_HASH", &balancers), Some("consistent_hash"));
        assert_eq!(find_foreign_word("always", &balancers), None);
        assert_eq!(find_foreign_word("always", &["upstream", "all"]), Some("all"));
        for (foreign, own) in FOREIGN_WORDS {
            assert_eq!(fold_name(foreign), **foreign);
            let is_word = schema::ALL
                .iter()
                .flat_map(|schema| schema.options)
                .any(|option| matches!(option.value_type(), ValueType::Words(words) if words.contains(own)));
            assert!(is_word, "{own} is a word of no option");
        }
    }
}
