//! A type's name means one thing in all of the crate.

use std::collections::BTreeMap;

use super::source::crate_files;

#[test]
fn a_type_name_stands_once() {
    let mut places = BTreeMap::<&str, Vec<&str>>::new();
    for file in crate_files() {
        for pair in file.words.windows(2) {
            if matches!(pair[0].as_str(), "struct" | "enum" | "trait") && pair[1].starts_with(char::is_uppercase) {
                places.entry(&pair[1]).or_default().push(&file.path);
            }
        }
    }
    assert!(places.len() > 300, "only {} types are seen", places.len());
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "give each a name of its own: {places:#?}");
}
