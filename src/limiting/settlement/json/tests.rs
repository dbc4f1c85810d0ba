//! Tests of the JSON parser.

use super::*;
use crate::limiting::settlement::path_tree::PathStep;
use crate::limiting::settlement::readings::UsageField;

fn tree() -> PathTree {
    let mut tree = PathTree::default();
    let total = Target::Number { field: UsageField::Total, is_final: true };
    tree.add_path([PathStep::Named("usage"), PathStep::Named("total")], total);
    tree.add_path([PathStep::Named("list"), PathStep::Named("1"), PathStep::Named("total")], total);
    tree.add_path([PathStep::AnyItem, PathStep::Named("total")], total);
    tree.add_path([PathStep::Named("model")], Target::Model);
    tree
}

/// Reads a document in pieces of `size` bytes.
fn read(document: &str, size: usize) -> (JsonScanner, UsageReadings) {
    let (tree, mut scanner, mut readings) = (tree(), JsonScanner::default(), UsageReadings::default());
    for piece in document.as_bytes().chunks(size) {
        scanner.push(piece, &tree, &mut readings);
    }
    (scanner, readings)
}

#[test]
fn values_on_paths_are_read_wherever_the_pieces_end() {
    for (document, total) in [
        (r#"{"usage":{"total":7}}"#, 7),
        (r#" { "usage" : { "x" : [ {"total":9} ] , "total" : 7 } } "#, 7),
        (r#"{"us\u0061ge":{"tot\u0061l":7}}"#, 7),
        (r#"{"usage":{"total":3,"total":9,"total":5}}"#, 9),
        (r#"{"usage":null,"usage":{"total":8}}"#, 8),
        (r#"{"usage":{"total":90.0}}"#, 90),
        (r#"{"usage":{"total":0.00}}"#, 0),
        (r#"{"usage":{"total":-0}}"#, 0),
        (r#"{"usage":{"total":1e3}}"#, 1000),
        (r#"{"usage":{"total":1.25E+2}}"#, 125),
        (r#"{"usage":{"total":7000e-3}}"#, 7),
        (r#"{"usage":{"total":9007199254740992.0}}"#, 9_007_199_254_740_992),
        (r#"{"usage":{"total":9007199254740992}}"#, 9_007_199_254_740_992),
        (r#"{"list":[{"total":1},{"total":2},{"total":3}]}"#, 2),
        (r#"[{"total":1},{"total":4},{"total":3}]"#, 4),
        (r#"{"choices":[{"x":"a\"}{[\\"}],"usage":{"total":7},"y":[[],{}]}"#, 7),
        (r#"{"text":"\ud83d\ude00 \u00e9 \n","usage":{"total":0}}"#, 0),
    ] {
        for size in [1, 2, 3, 7, 1000] {
            let (scanner, readings) = read(document, size);
            assert!(scanner.is_done(), "{document} by {size}: {scanner:?}");
            assert_eq!(readings.number(UsageField::Total), total, "{document} by {size}");
            assert_eq!(readings.faults().next(), None, "{document}");
        }
    }
    let (_, readings) = read(r#"{"model":"gpt-\u006c\u00e4rge","usage":{"total":7}}"#, 1);
    assert_eq!(readings.model(), Some("gpt-lärge".as_bytes()));
}

#[test]
fn only_integers_in_range_count() {
    let values = r#"-1 1.5 7.01 7. 7.0.0 7.0e1e1 1e-3 7e 007 9007199254740993 1e999 "7" true [7] {"a":7}"#;
    for value in values.split(' ') {
        let (scanner, readings) = read(&format!("{{\"usage\":{{\"total\":{value}}}}}"), 3);
        assert!(scanner.is_done(), "{value}");
        assert_eq!(readings.number(UsageField::Total), 0, "{value}");
        assert_eq!(readings.faults().collect::<Vec<_>>(), [ScanFault::NotInteger], "{value}");
    }
    let digits = "9".repeat(100_000);
    assert_eq!(read(&format!("{{\"usage\":{{\"total\":{digits}}}}}"), 999).1.number(UsageField::Total), 0);
}

#[test]
fn invalid_json_fails() {
    for document in [
        "{x",
        "{\"a\" 1",
        "{\"a\":1,}",
        "{\"a\":1]",
        "[1}",
        "[1 2",
        "nul!",
        "{\"a\":tru}",
        "\"\\x",
        "\"\\u00g",
        "]",
        "<html>",
    ] {
        let (scanner, _) = read(document, 1);
        assert_eq!(scanner.fault(), Some(ScanFault::Malformed), "{document}");
    }
    assert!(read("{} x", 1).0.is_done() && read("{} x", 4).0.is_done());
    for document in ["", "{", "{\"usage\":{\"total\":7}", "[1,2", "\"abc"] {
        let (scanner, _) = read(document, 2);
        assert!(!scanner.is_done() && scanner.fault().is_none(), "{document}");
    }
}

/// Names, numbers and other members are not content.
#[test]
fn texts_on_content_paths_are_counted() {
    let mut tree = tree();
    tree.add_path(
        [PathStep::Named("choices"), PathStep::AnyItem, PathStep::Named("delta")],
        Target::Content(TextGroup::Piece),
    );
    tree.add_path([PathStep::Named("delta")], Target::Content(TextGroup::Piece));
    let deep = format!("{{\"choices\":[{{\"delta\":{}\"abcd\"{}}}]}}", "[".repeat(300), "]".repeat(300));
    for (document, bytes) in [
        (r#"{"id":"x","choices":[{"delta":{"role":"user","content":"abc"},"x":"y"},{"delta":"de"}]}"#, 9),
        (r#"{"delta":"a\"\u00e9b","x":{"delta":"no"}}"#, 1 + 1 + 1 + 1),
        (r#"{"delta":[{"a":["bc",{"d":"e"}]}],"y":"no","usage":{"total":7}}"#, 3),
        (deep.as_str(), 4),
    ] {
        for size in [1, 3, 1000] {
            let (mut scanner, mut readings) = (JsonScanner::default(), UsageReadings::default());
            let unread: usize =
                document.as_bytes().chunks(size).map(|piece| scanner.push(piece, &tree, &mut readings)).sum();
            assert!(scanner.is_done() && unread == 0, "{document}");
            assert_eq!(readings.delivered().bytes, bytes, "{document} by {size}");
        }
    }
    let (mut scanner, mut readings) = (JsonScanner::default(), UsageReadings::default());
    assert_eq!(scanner.push(b"{} more", &tree, &mut readings) + scanner.push(b" yet", &tree, &mut readings), 9);
}

#[test]
fn depth_and_texts_are_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [128, 129, 130, 5000] {
        assert!(read(&nested(depth), 50).0.is_done(), "{depth}");
        let around = format!("{{\"x\":{},\"usage\":{{\"total\":7}}}}", nested(depth).replace("[]", "[\"]}\\\"[\",{}]"));
        let (scanner, readings) = read(&around, 3);
        assert!(scanner.is_done() && readings.number(UsageField::Total) == 7, "{depth}");
    }
    let long = "x".repeat(1_000_000);
    let (scanner, readings) = read(&format!("{{\"{long}\":1,\"model\":\"{long}\",\"usage\":{{\"total\":2}}}}"), 777);
    assert!(scanner.is_done() && scanner.text.bytes.capacity() <= 4 * TEXT_MAX);
    assert_eq!(readings.model().map(<[u8]>::len), Some(TEXT_MAX + 1));
    assert_eq!(readings.number(UsageField::Total), 2);
}
