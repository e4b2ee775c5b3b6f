//! Aligned columns of text for people.

/// Cells in columns; numbers to the right, everything else to the left.
pub struct Table {
    header: Vec<(&'static str, Side)>,
    rows: Vec<Vec<Cell>>,
}

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Text and its colour, an SGR code such as 31; colour does not count for the width.
pub struct Cell(String, Option<u8>);

impl From<String> for Cell {
    fn from(text: String) -> Self {
        // A control character in a name must not move the cursor.
        let text =
            if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text };
        Cell(text, None)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::from(text.to_owned())
    }
}

impl Cell {
    /// The same in a colour.
    pub fn coloured(self, sgr: Option<u8>) -> Self {
        Cell(self.0, sgr)
    }
}

impl Table {
    /// A table with these columns.
    pub fn new(header: &[(&'static str, Side)]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty, extra ones are left out.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The lines, each with its end.
    pub fn render(&self) -> String {
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = self
            .header
            .iter()
            .enumerate()
            .map(|(i, (title, _))| {
                let cells =
                    self.rows.iter().filter_map(|row| row.get(i)).map(|cell| width(&cell.0));
                cells.chain([width(title)]).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = (&str, Option<u8>)>| {
            let start = out.len();
            for ((_, side), columns) in self.header.iter().zip(&widths) {
                let (text, colour) = cells.next().unwrap_or_default();
                let pad = " ".repeat(columns - width(text));
                if out.len() > start {
                    out.push_str("  ");
                }
                if *side == Side::Right {
                    out.push_str(&pad);
                }
                match colour {
                    Some(sgr) => out.push_str(&format!("\x1b[{sgr}m{text}\x1b[0m")),
                    None => out.push_str(text),
                }
                if *side == Side::Left {
                    out.push_str(&pad);
                }
            }
            out.truncate(out.trim_end_matches(' ').len().max(start));
            out.push('\n');
        };
        line(&mut self.header.iter().map(|(title, _)| (*title, None)));
        for row in &self.rows {
            line(&mut row.iter().map(|cell| (cell.0.as_str(), cell.1)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_titles_whatever_the_letters() {
        let mut table =
            Table::new(&[("table", Side::Left), ("rows", Side::Right), ("note", Side::Left)]);
        table.row(vec![
            "öffentlich.töpfe".into(),
            "5".into(),
            Cell::from("fine").coloured(Some(32)),
        ]);
        table.row(vec!["a.b".into(), "12,345".into()]);
        assert_eq!(
            table.render(),
            "table               rows  note\n\
             öffentlich.töpfe       5  \x1b[32mfine\x1b[0m\n\
             a.b               12,345\n"
        );
    }

    #[test]
    fn a_name_can_not_move_the_cursor() {
        let mut table = Table::new(&[("t", Side::Left)]);
        table.row(vec!["a\x1b[2J\nb".into()]);
        assert_eq!(table.render(), "t\na\\u{1b}[2J\\nb\n");
    }
}
