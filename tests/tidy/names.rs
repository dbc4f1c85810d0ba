//! The name of a type has one meaning in each module of the crate's root, such as `limiting`.

use std::collections::BTreeMap;

use super::source::{Source, crate_files};

/// The names of the structs, enums, traits and type aliases of a file. Associated types belong to their trait.
fn declared(file: &Source) -> Vec<&str> {
    let (mut found, mut depth) = (Vec::new(), 0);
    for pair in file.words.windows(2) {
        depth += i32::from(pair[0] == "{") - i32::from(pair[0] == "}");
        let declares = match pair[0].as_str() {
            "struct" | "enum" | "trait" => true,
            "type" => depth == 0,
            _ => false,
        };
        if declares && pair[1].starts_with(char::is_uppercase) {
            found.push(pair[1].as_str());
        }
    }
    found
}

#[test]
fn each_type_name_is_declared_once_in_a_module() {
    let mut places = BTreeMap::<(&str, &str), Vec<&str>>::new();
    for file in crate_files() {
        for name in declared(file) {
            places.entry((file.top(), name)).or_default().push(&file.path);
        }
    }
    assert!(places.len() > 300, "found only {} types", places.len());
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "several types share these names; rename all but one of each: {places:#?}");
}

#[test]
fn aliases_are_found_and_associated_types_are_not() {
    let text = "pub type A<T> = B<T>; struct C; impl D for C { type E = u8; } enum F {} trait G { type H; }";
    assert_eq!(declared(&Source::of("x", text)), ["A", "C", "F", "G"]);
}
