//! A key that holds no state of its limit: written by hand, cut, or left by another program. The script decides as for
//! a new key, or by the part that it can read; it never fails.

use rand::Rng;
use rand::rngs::StdRng;
use sluicegate::limiting::algorithm::{NAMES, Rule};
use sluicegate::limiting::answer::{Answer, NEVER};
use sluicegate::limiting::decision::{Check, Op};
use sluicegate::limiting::limit::Mode;

use super::twin::NOW;
use crate::support::limiting::fake_redis::{Data, Gate, StoredKey};

fn take(gate: &Gate, rule: &Rule, data: Option<Data>) -> Answer {
    let limit = crate::support::limiting::limit("one", rule.clone(), Mode::Enforce);
    let check = Check { tag: 7, ..crate::support::limiting::check(&limit, "all", 1) };
    let mut keys = gate.keys.borrow_mut();
    keys.held.clear();
    if let Some(data) = data {
        keys.held.insert(check.key.clone(), StoredKey { data, expires: NOW + 60_000 });
    }
    drop(keys);
    gate.decide(&[(Op::Take, vec![check])], NOW)[0].answers[0]
}

#[test]
fn an_invalid_state_counts_as_absent() {
    let gate = Gate::load();
    let mut seeded = crate::support::limiting::seeded();
    for name in NAMES {
        let rule = crate::support::limiting::rules::random_rule(name, &mut seeded.rng);
        let new = take(&gate, &rule, None);
        let ones = |count: usize| vec!["1"; count].join(" ");
        let mut texts: Vec<String> =
            ["", " ", "|", " | ", "x", "1 x", "-1", "1.5", "1e3", "inf"].map(str::to_owned).into();
        // Counts of numbers that no record has, alone and behind one that might be.
        if *name != "sliding_window" {
            texts.extend([1, 2, 6, 8, 10, 14, 16, 17, 19].map(ones));
            texts.extend([3, 4, 5].map(|count| format!("{} | {}", ones(count), ones(1))));
            texts.extend([3, 4, 5].map(|count| format!("{} | {}", ones(count), ones(9))));
        }
        // More records, numbers and digits than a state can have.
        texts.extend([3, 4, 5].map(|count| vec![ones(count + 1); 5].join(" | ")[2..].to_owned()));
        texts.extend([ones(10_000), "9".repeat(20_000), format!("1 2 3 | {}", "9".repeat(20_000))]);
        for text in texts {
            assert_eq!(take(&gate, &rule, Some(Data::Text(text.clone()))), new, "{rule:?} with {text:?}");
        }
    }
}

#[test]
fn nothing_makes_the_gate_fail() {
    let gate = Gate::load();
    let mut seeded = crate::support::limiting::seeded();
    let rng = &mut seeded.rng;
    for name in NAMES {
        for _ in 0..500 {
            let rule = crate::support::limiting::rules::random_rule(name, rng);
            let data = match rng.random_range(0..3) {
                0 => Data::Text(text(&rule, " | ", rng)),
                1 => Data::List((0..rng.random_range(1..5)).map(|_| text(&rule, ":", rng)).collect()),
                _ => {
                    let mut set: Vec<(i64, String)> = (0..rng.random_range(1..5))
                        .map(|_| (rng.random_range(0..i64::MAX) >> rng.random_range(0..63), text(&rule, ":", rng)))
                        .collect();
                    set.push((-(rng.random_range(0..i64::MAX) >> rng.random_range(0..63)), "lease".to_owned()));
                    set.sort();
                    Data::Sorted(set)
                }
            };
            let answer = take(&gate, &rule, Some(data.clone()));
            assert!(answer.retry_ms >= NEVER && answer.reset_ms >= 0, "{rule:?} with {data:?}: {answer:?}");
        }
    }
}

/// Numbers, some near those that a state has, some larger than any.
fn text(rule: &Rule, joint: &str, rng: &mut StdRng) -> String {
    let mut text = String::new();
    for i in 0..rng.random_range(1..10) {
        text += if i == 0 { "" } else { [" ", " ", " ", joint][rng.random_range(0..4)] };
        text += &match rng.random_range(0..6) {
            0 => rng.random_range(0..3).to_string(),
            1 => rng.random_range(0..1_000_000).to_string(),
            2 => (NOW + rng.random_range(-1_000_000..1_000_000)).to_string(),
            3 => rng.random_range(0..1_i64 << 53).to_string(),
            4 => "9".repeat(rng.random_range(1..400)),
            _ => rule.params(NOW)[rng.random_range(0..2)].to_string(),
        };
    }
    text
}
