//! Which entry a key has, and what changes of the entries do.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::limiting::key::state_key::{DIGEST_MARK, StateKeyFrame, write_escaped, write_value};
use crate::limiting::key::{KeyPart, Missing};
use crate::limiting::overrides::table::{OverrideBudget, ParsedBudgets, parse_end};
use crate::limiting::source::{Facts, Repeated, Source};

fn names() -> [HeaderName; 2] {
    [HeaderName::from_static("x-a"), HeaderName::from_static("x-b")]
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn key() -> Key {
    Key(names().map(|name| KeyPart::Source(Source::Header(name))).to_vec())
}

/// Budgets that the test can distinguish.
fn overrides() -> Overrides {
    let template = |value: &str, _: &mut ParsedBudgets| match value {
        "0" => Ok(OverrideEntry::lasting(OverrideBudget::Blocked)),
        "bad" => Err("it is bad".to_owned()),
        "past" => Ok(OverrideEntry { until_ms: Some(1), ..OverrideEntry::lasting(OverrideBudget::Blocked) }),
        _ => Ok(OverrideEntry::lasting(OverrideBudget::Unlimited)),
    };
    let hasher = PartHasher::new(&key(), &KeyHasher::from_secret(SECRET));
    Overrides::new(OverrideTable::default(), None, hasher, Arc::new(template), false)
}

fn raw(entries: &[(&str, &str)]) -> RawOverrides {
    entries.iter().map(|(field, value)| (field.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn find(overrides: &Overrides, a: Option<&[u8]>, b: Option<&[u8]>) -> Option<OverrideBudget> {
    let mut headers = HeaderMap::new();
    for (name, value) in names().into_iter().zip([a, b]) {
        if let Some(value) = value {
            headers.insert(name, HeaderValue::from_bytes(value).unwrap());
        }
    }
    let facts = Facts { client: IpAddr::from([127, 0, 0, 1]), ..Facts::of(&headers) };
    let frame = StateKeyFrame { prefix: "sg", limit: "l", algorithm: "gcra" };
    let names = key().budget_names(frame, &facts, Missing::Shared, Repeated::Refuse, true).unwrap();
    overrides.find(&names.values.unwrap()).map(|entry| entry.budget)
}

/// Replaces the live overrides `known` by others, which have no mistakes.
fn set(overrides: &Overrides, known: &mut RawOverrides, live: &RawOverrides) {
    assert_eq!(overrides.replace_live(&key(), known, live).rejected, RejectedRows::default());
    assert_eq!(known, live);
    assert_eq!(overrides.live.len(), live.len());
}

#[test]
fn the_fewest_stars_count() {
    let overrides = overrides();
    let live = raw(&[("*,*", "1"), ("a,*", "0"), ("*,b", "1"), ("c,d", "0")]);
    let mut known = RawOverrides::new();
    set(&overrides, &mut known, &live);
    for (a, b, budget) in [
        ("a", "x", OverrideBudget::Blocked),
        ("a", "b", OverrideBudget::Blocked),
        ("x", "b", OverrideBudget::Unlimited),
        ("c", "d", OverrideBudget::Blocked),
        ("x", "x", OverrideBudget::Unlimited),
    ] {
        assert_eq!(find(&overrides, Some(a.as_bytes()), Some(b.as_bytes())), Some(budget), "{a} {b}");
    }
    assert_eq!(find(&overrides, None, Some(b"b")), Some(OverrideBudget::Unlimited));
    set(&overrides, &mut known, &RawOverrides::new());
    assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
    assert!(!overrides.has_any());
}

fn field(values: &[&[u8]]) -> String {
    let escaped = values.iter().map(|value| {
        let mut text = String::new();
        write_escaped(&mut text, value);
        text
    });
    escaped.collect::<Vec<_>>().join(",")
}

#[test]
fn an_entry_may_name_a_value_by_the_hash_that_logs_show() {
    let (overrides, mut known_rows) = (overrides(), RawOverrides::new());
    let long = "Bearer ".to_owned() + &"x".repeat(100);
    for value in ["acme", "a b", long.as_str()] {
        let mut state = "header:x-a".to_owned();
        write_value(&mut state, value.as_bytes());
        let hash = format!("{DIGEST_MARK}{}", KeyHasher::from_secret(SECRET).hash(&state));
        let by_hash = raw(&[(&format!("{hash},*"), "0"), ("*,b", "1")]);
        let by_value = raw(&[(&format!("{},*", field(&[value.as_bytes()])), "0"), ("*,b", "1")]);
        set(&overrides, &mut known_rows, &by_hash);
        assert_eq!(find(&overrides, Some(value.as_bytes()), Some(b"x")), Some(OverrideBudget::Blocked), "{value}");
        assert_eq!(find(&overrides, Some(b"other"), Some(b"x")), None);
        assert_eq!(find(&overrides, Some(value.as_bytes()), None), Some(OverrideBudget::Blocked));
        assert_eq!(find(&overrides, None, Some(value.as_bytes())), None, "the second part has other hashes");
        assert_eq!(find(&overrides, Some(b"acmf"), Some(b"b")), Some(OverrideBudget::Unlimited));
        // The facts that replay and the admin API have of a value: its hash, or the digits of its state key.
        let digits = state.split_once('#').map(|(_, digits)| format!("{DIGEST_MARK}{digits}"));
        for entries in [&by_hash, &by_value] {
            set(&overrides, &mut known_rows, entries);
            for known in digits.iter().chain([&hash]) {
                for other in ["x", "b"] {
                    let found = overrides.find(&format!("{known},{other}")).map(|entry| entry.budget);
                    assert_eq!(found, Some(OverrideBudget::Blocked), "{value} {known}");
                }
            }
            assert_eq!(overrides.find(&format!("{DIGEST_MARK}0123456789abcdef,x")), None);
        }
    }
    let hasher = PartHasher::new(&key(), &KeyHasher::of_process());
    let blocked = |_: &str, _: &mut ParsedBudgets| Ok(OverrideEntry::lasting(OverrideBudget::Blocked));
    let passing = Overrides::new(OverrideTable::default(), None, hasher, Arc::new(blocked), false);
    let mut live = raw(&[("%#0123456789abcdef,*", "0")]);
    let refused = passing.set_live(&key(), &mut live).describe().unwrap();
    assert!(refused.contains("keys_secret"), "{refused}");
}

#[test]
fn an_entry_with_a_mistake_keeps_its_value_and_the_others_apply() {
    let overrides = overrides();
    let (mut known, old) = (RawOverrides::new(), raw(&[("a,b", "0"), ("c,d", "0")]));
    set(&overrides, &mut known, &old);
    for (entries, mistake) in [
        (raw(&[("a,b", "bad"), ("c,d", "1")]), "a,b: it is bad"),
        (raw(&[("a", "1"), ("a,b", "0"), ("c,d", "1")]), "a: the key has 2 parts, but the field has 1"),
    ] {
        let rejected = overrides.replace_live(&key(), &mut known, &entries).rejected;
        assert_eq!((rejected.count, rejected.describe().as_deref()), (1, Some(mistake)));
        assert_eq!(known, raw(&[("a,b", "0"), ("c,d", "1")]));
        assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Blocked), "it stays blocked");
        assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), Some(OverrideBudget::Unlimited));
    }
    // Without a known value, the entry does not apply.
    set(&overrides, &mut known, &RawOverrides::new());
    assert_eq!(overrides.replace_live(&key(), &mut known, &raw(&[("a,b", "bad"), ("c,d", "0")])).rejected.count, 1);
    assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), None);
    let rejected = overrides.replace_live(&key(), &mut known, &raw(&[("a,b", "1"), ("%61,b", "1")])).rejected;
    assert!(rejected.describe().unwrap().starts_with("a,b: the same key"), "{rejected:?}");
    // Another table gets the same entries, whatever it has.
    let other =
        Overrides::new(OverrideTable::default(), None, overrides.hasher.clone(), overrides.template.clone(), false);
    set(&other, &mut RawOverrides::new(), &raw(&[("old,*", "0"), ("c,d", "1")]));
    assert_eq!(other.set_live(&key(), &mut raw(&[("c,d", "0"), ("e,f", "bad")])).count, 1);
    assert_eq!(find(&other, Some(b"c"), Some(b"d")), Some(OverrideBudget::Blocked));
    assert_eq!((find(&other, Some(b"old"), Some(b"x")), other.live.len()), (None, 1));
    // The other spelling goes, so this one takes its place.
    set(&overrides, &mut known, &raw(&[("a,b", "0")]));
    assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Blocked));
}

#[test]
fn one_change_of_many_entries_touches_that_one_alone() {
    let overrides = overrides();
    let entries: Vec<(String, &str)> = (0..1000).map(|i| (format!("{i},*"), "1")).collect();
    let entries: Vec<(&str, &str)> = entries.iter().map(|(field, value)| (field.as_str(), *value)).collect();
    let mut known = RawOverrides::new();
    set(&overrides, &mut known, &raw(&entries));
    let change = |known: &mut RawOverrides, field: &[u8], value: Option<&[u8]>| {
        overrides.change_live(&key(), known, (field, value))
    };
    let budget_of = |a: &[u8]| find(&overrides, Some(a), Some(b"x"));
    change(&mut known, b"7,*", Some(b"0")).unwrap();
    change(&mut known, b"8,*", None).unwrap();
    assert_eq!((budget_of(b"7"), budget_of(b"8")), (Some(OverrideBudget::Blocked), None));
    assert_eq!((budget_of(b"9"), known.len()), (Some(OverrideBudget::Unlimited), 999));
    // A mistake, and another spelling of a known key, change nothing.
    assert_eq!(change(&mut known, b"7,*", Some(b"bad")), Err("it is bad".to_owned()));
    assert!(change(&mut known, b"%37,*", Some(b"1")).is_err());
    change(&mut known, b"%37,*", None).unwrap();
    assert_eq!((budget_of(b"7"), known.len()), (Some(OverrideBudget::Blocked), 999));
    assert_eq!(overrides.find_spelling("7,*"), None);
}

#[test]
fn rows_of_a_file_yield_to_live_entries_and_wrong_lines_are_named() {
    let mut overrides = overrides();
    overrides.file = Some(OverrideFile::new("rows".into()));
    let text = "# customers\na,b 0\n\nc,d\t1\nc,d 0\nlonely\ne,f bad\r\ng 1\n";
    let rejected = overrides.apply_file(&key(), text).unwrap().rejected;
    assert_eq!(rejected.count, 4);
    let mistakes = rejected.describe().unwrap();
    for part in
        ["line 5: the key has a row", "line 6: the line has no value", "line 7: it is bad", "line 8: the key has 2"]
    {
        assert!(mistakes.contains(part), "{mistakes}");
    }
    let of_b = |overrides: &Overrides| find(overrides, Some(b"a"), Some(b"b"));
    assert_eq!(of_b(&overrides), Some(OverrideBudget::Blocked));
    assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), Some(OverrideBudget::Unlimited));
    let mut known = RawOverrides::new();
    set(&overrides, &mut known, &raw(&[("a,b", "1")]));
    assert_eq!(of_b(&overrides), Some(OverrideBudget::Unlimited));
    // One that has ended leaves its key to the row.
    set(&overrides, &mut known, &raw(&[("a,b", "past")]));
    assert_eq!(of_b(&overrides), Some(OverrideBudget::Blocked));
    // A row that becomes wrong keeps what it said; one that is gone is gone.
    assert_eq!(overrides.apply_file(&key(), "a,b bad\n").unwrap().rejected.count, 1);
    assert_eq!(of_b(&overrides), Some(OverrideBudget::Blocked));
    assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), None);
    assert_eq!(overrides.apply_file(&key(), "").unwrap().rejected, RejectedRows::default());
    assert_eq!(of_b(&overrides), None);
}

#[test]
fn a_new_config_keeps_the_rows_that_became_wrong() {
    let with_rows = |text: &str| {
        let mut overrides = overrides();
        overrides.file = Some(OverrideFile::new("rows".into()));
        overrides.apply_file(&key(), text).unwrap();
        overrides
    };
    let old = with_rows("a,b 0\nc,d 0\ne,f 0\ng,h 0\nk,l 0\n");
    // A row counts, although another line has its key without a value.
    let text = "a,b bad\nc,d\ne,f 1\ni,j bad\nk,l 1\nk,l\n";
    let new = with_rows(text);
    let budgets = |overrides: &Overrides| {
        [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i", "j"), ("k", "l")]
            .map(|(a, b)| find(overrides, Some(a.as_bytes()), Some(b.as_bytes())))
    };
    let [blocked, unlimited] = [OverrideBudget::Blocked, OverrideBudget::Unlimited].map(Some);
    assert_eq!(budgets(&new), [None, None, unlimited.clone(), None, None, unlimited.clone()]);
    assert_eq!(new.adopt_rows(&key(), &old), 2);
    let kept = [blocked.clone(), blocked, unlimited.clone(), None, None, unlimited];
    assert_eq!(budgets(&new), kept);
    // Reading the same text again changes nothing, and rows that the text names no longer go.
    assert_eq!(new.apply_file(&key(), text).unwrap().changed, 0);
    assert_eq!(budgets(&new), kept);
    new.apply_file(&key(), "").unwrap();
    assert_eq!(budgets(&new), [const { None }; 6]);
    // A file that has become empty may be about to be written, so a new config does not lift its blocks.
    let emptied = with_rows("# rows\n");
    assert_eq!(emptied.adopt_rows(&key(), &old), 5);
    assert_eq!(budgets(&emptied), budgets(&old));
}

#[test]
fn an_entry_that_has_ended_leaves_its_key_to_the_next_one() {
    let overrides = overrides();
    set(&overrides, &mut RawOverrides::new(), &raw(&[("a,b", "past"), ("a,*", "1"), ("c,d", "past")]));
    assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Unlimited));
    assert_eq!(find(&overrides, Some(b"c"), Some(b"d")), None);
    assert_eq!(overrides.find_at("c,d", || 0).map(|entry| entry.budget), Some(OverrideBudget::Blocked));
    assert_eq!(overrides.find_at("c,d", || 1), None);
}

/// A row `a,b` takes the place of `a,*`, and the other way round.
#[test]
fn a_key_has_an_entry_while_the_stars_of_its_rows_change() {
    let overrides = overrides();
    let forms = [raw(&[("a,b", "0")]), raw(&[("a,*", "0")])];
    let mut known = RawOverrides::new();
    set(&overrides, &mut known, &forms[1]);
    for form in [&forms[0], &forms[1]] {
        overrides.live.replace(&mut overrides.reader(&key()), &mut known, form, || {
            overrides.collect_shapes();
            assert_eq!(find(&overrides, Some(b"a"), Some(b"b")), Some(OverrideBudget::Blocked), "{form:?}");
        });
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let searches = scope.spawn(|| {
            let mut missed = 0;
            while !is_over.load(Ordering::Relaxed) {
                missed += usize::from(find(&overrides, Some(b"a"), Some(b"b")).is_none());
            }
            missed
        });
        for i in 0..2000 {
            overrides.replace_live(&key(), &mut known, &forms[i % 2]);
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(searches.join().unwrap(), 0);
    });
}

#[test]
fn the_first_row_of_a_key_counts_in_whatever_spelling() {
    let (overrides, key) = (overrides(), key());
    for (text, first, rejected) in [
        ("x,a 0\nx,%61 1\n", "x,a", 1),
        ("x,%61 0\nx,a 1\n", "x,%61", 1),
        ("x,%61 0\n%78,a 1\nx,a 1\n", "x,%61", 2),
        ("x,%61 0\nx,b 1\n", "x,%61", 0),
    ] {
        let file = OverrideFile::new(PathBuf::new());
        let replaced = file.apply_text(&mut overrides.reader(&key), text, || {}).unwrap();
        assert_eq!(replaced.rejected.count, rejected, "{text}");
        assert_eq!(file.table.find_spelling("x,a"), Some(first.as_bytes().to_vec()), "{text}");
    }
}

#[test]
fn ten_mistakes_are_named_and_all_are_counted() {
    let overrides = overrides();
    let long = "x".repeat(100_000);
    let set = |count: usize| {
        let fields: Vec<String> = (0..count).map(|i| format!("{i},{long}")).collect();
        let entries: Vec<(&str, &str)> = fields.iter().map(|field| (field.as_str(), "bad")).collect();
        overrides.replace_live(&key(), &mut RawOverrides::new(), &raw(&entries)).rejected.describe().unwrap()
    };
    assert!(set(1).starts_with("0,xxx"));
    assert_eq!(set(10).matches("; ").count(), 9);
    let many = set(300);
    assert!(many.starts_with("300 errors, the first 10: 0,xxx"), "{}", &many[..60]);
    assert_eq!(many.matches("; ").count(), 9);
    assert!(many.len() < 3000, "{} bytes", many.len());
}

proptest! {
    #[test]
    fn an_entry_takes_its_own_key_and_no_other(
        own in prop::collection::vec(prop::collection::vec(0x20_u8..0x7f, 0..5), 2),
        other in prop::collection::vec("[a,%*]{0,3}", 2),
    ) {
        let overrides = overrides();
        let trimmed: Vec<&[u8]> = own.iter().map(|value| value.trim_ascii()).collect();
        let field = field(&trimmed);
        let entry = RawOverrides::from([(field.into_bytes(), b"0".to_vec())]);
        set(&overrides, &mut RawOverrides::new(), &entry);
        prop_assert_eq!(find(&overrides, Some(trimmed[0]), Some(trimmed[1])), Some(OverrideBudget::Blocked));
        let same = other[0].as_bytes() == trimmed[0] && other[1].as_bytes() == trimmed[1];
        prop_assert_eq!(find(&overrides, Some(other[0].as_bytes()), Some(other[1].as_bytes())).is_some(), same);
    }
}

#[test]
fn the_end_of_an_entry_may_be_the_end_of_time() {
    let ms = |text: &str| parse_end(text).map(Timestamp::as_millisecond);
    assert_eq!(ms("2026-12-31T00:00:00+01:00"), Some(1_798_671_600_000));
    let last = Some(Timestamp::MAX.as_millisecond());
    for text in ["9999-12-31T23:59:59Z", "9999-12-31T00:00:00Z", "9999-12-31T23:59:59.999z"] {
        assert_eq!(ms(text), last, "{text}");
    }
    for text in ["9999-12-31", "10000-01-01T00:00:00Z", "2026-12-31", "2026-12-31T00:00:00", "9999", "never", ""] {
        assert_eq!(ms(text), None, "{text}");
    }
}
