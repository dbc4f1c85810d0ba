//! The manual lists every directive and every annotation, as the tables of the import have them.

use std::fs;

const PAGE: &str = "docs/migrating/nginx.md";

/// Regenerate the lists after a change of a table: `GOLDEN=write cargo test --test proxying import::`.
#[test]
fn the_manual_lists_what_the_import_does() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut expected = page.clone();
    for (marker, table) in [
        ("directives", sluicegate::import::write_nginx_directives()),
        ("annotations", sluicegate::import::write_ingress_annotations()),
    ] {
        let (start, end) = (format!("<!-- {marker} -->\n"), format!("<!-- end of {marker} -->"));
        let (before, rest) = expected.split_once(&start).expect("the page has a marker");
        let (_, after) = rest.split_once(&end).expect("the page has an end marker");
        expected = format!("{before}{start}{table}\n{end}{after}");
    }
    if std::env::var_os("GOLDEN").is_some() {
        fs::write(PAGE, expected).unwrap();
    } else {
        assert!(page == expected, "run GOLDEN=write cargo test --test proxying import:: and review {PAGE}");
    }
}
