//! `known_faults.md` lists the faults that rate limiters are known for, and the tests that show that this one does not
//! have them.

/// Each name in the table is a test in the file that precedes it.
#[test]
fn every_test_of_the_table_exists() {
    let table = include_str!("known_faults.md").lines().filter_map(|line| line.strip_prefix("| "));
    let rows: Vec<&str> = table.filter(|row| !row.starts_with("fault") && !row.starts_with("**")).collect();
    assert!(rows.len() > 60, "only {} faults are read", rows.len());
    for row in rows {
        let tests = row.rsplit(" | ").next().unwrap().trim_end_matches(" |");
        let mut names = tests.split('`').filter(|name| !name.trim().is_empty()).peekable();
        assert!(names.peek().is_some(), "no test: {row}");
        for name in names {
            let (file, function) = name.split_once(':').unwrap_or_else(|| panic!("{name} in {row}"));
            let folder = if file.starts_with("src/") { "" } else { "tests/" };
            let path = format!("{}/{folder}{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let start = text.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{file} has no {function}"));
            let before = text[..start].trim_end().lines().last().unwrap();
            assert_eq!(before.trim(), "#[test]", "{function} of {file} is no test");
        }
    }
}
