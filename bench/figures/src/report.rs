//! The output of a figure: a text, and a plot of the same numbers.

use std::fs;
use std::io;
use std::path::Path;

/// A figure, ready to be kept.
#[derive(Debug)]
pub struct Report {
    /// Stem of its file names.
    pub name: &'static str,
    /// For people, ending with a newline.
    pub text: String,
    /// The plot as SVG.
    pub svg: String,
}

impl Report {
    /// Writes `NAME.txt` and `NAME.svg` into a folder, which is made.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(self.name).with_extension("txt"), &self.text)?;
        fs::write(folder.join(self.name).with_extension("svg"), &self.svg)
    }
}

/// A table as text: the first column to the left, all others to the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    #[must_use]
    pub fn new<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Table {
        Table { rows: vec![headings.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row of as many cells as there are headings.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(row.len(), self.rows[0].len(), "a row of another width: {row:?}");
        self.rows.push(row);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let cell = |column: usize| match column {
                0 => format!("{:<1$}", row[0], widths[0]),
                _ => format!("  {:>1$}", row[column], widths[column]),
            };
            let line: String = (0..columns).map(cell).collect();
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                writeln!(f, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["who", "n"]);
        table.row(["guideway", "12"]);
        table.row(["é", "3"]);
        assert_eq!(table.to_string(), "who        n\n------------\nguideway  12\né          3\n");
    }
}
