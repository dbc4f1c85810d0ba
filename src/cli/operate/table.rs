//! Prints lists as tables: columns as wide as their widest cell, and no spaces at the end of a line.

use std::fmt::Write;

/// A table with a line of titles.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(titles: &[&str]) -> Table {
        Table { rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()] }
    }

    pub fn add_row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns whether there is nothing below the titles.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Returns the lines of the table.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a string does not fail.
                let _ = write!(line, "{cell:<width$}  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["A", "B"]);
        assert!(table.is_empty());
        table.add_row(vec!["long".to_owned(), String::new()]);
        table.add_row(vec!["x".to_owned(), "y".to_owned()]);
        assert_eq!(table.render(), "A     B\nlong\nx     y\n");
    }
}
