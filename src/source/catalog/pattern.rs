//! Table patterns: which tables the user means.
//!
//! ```text
//! patterns = item { "," item }
//! item     = [ "!" ] [ part "." ] part        without a schema: public
//! part     = { letters, digits, _ $ - | "*" any run | "?" any one | "quoted, taken literally" }
//! ```
//!
//! As in SQL, letters outside double quotes are folded to lower case. `!` excludes.

use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Char(char),
    AnyRun,
    AnyOne,
}

/// One half of a pattern: a schema's or a table's name, perhaps with globs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part(Vec<Piece>);

impl Part {
    fn exactly(name: &str) -> Part {
        Part(name.chars().map(Piece::Char).collect())
    }

    /// The name, if there is no glob in it.
    pub fn literal(&self) -> Option<String> {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Char(c) => Some(*c),
                _ => None,
            })
            .collect()
    }

    /// Whether `name` fits. Linear in the name for each `*`.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut piece) = (0, 0);
        // Where to go on when what follows the last `*` did not fit.
        let mut retry: Option<(usize, usize)> = None;
        while at < name.len() {
            match (self.0.get(piece), name.get(at)) {
                (Some(Piece::AnyRun), _) => {
                    retry = Some((piece + 1, at));
                    piece += 1;
                }
                (Some(Piece::AnyOne), _) => (at, piece) = (at + 1, piece + 1),
                (Some(Piece::Char(want)), Some(have)) if want == have => {
                    (at, piece) = (at + 1, piece + 1);
                }
                _ => match &mut retry {
                    Some((after_star, from)) => {
                        *from += 1;
                        (piece, at) = (*after_star, *from);
                    }
                    None => return false,
                },
            }
        }
        self.0.iter().skip(piece).all(|rest| *rest == Piece::AnyRun)
    }
}

/// One item of the list of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Written with a leading `!`.
    pub exclude: bool,
    /// The schema.
    pub schema: Part,
    /// The table.
    pub table: Part,
    /// As the user wrote it.
    pub text: String,
}

impl Pattern {
    /// Schema and table, if neither has a glob.
    pub fn literal(&self) -> Option<(String, String)> {
        self.schema.literal().zip(self.table.literal())
    }

    /// Whether the table fits.
    pub fn matches(&self, schema: &str, table: &str) -> bool {
        self.schema.matches(schema) && self.table.matches(table)
    }
}

/// Reads patterns; each text may hold several, separated by commas.
///
/// # Errors
/// A mistake in the syntax, or nothing that includes a table: [`crate::error::Kind::Config`].
pub fn parse(texts: &[String]) -> Result<Vec<Pattern>> {
    let mut patterns = Vec::new();
    for text in texts {
        let mut scanner = Scanner { text, rest: text.char_indices().peekable() };
        loop {
            patterns.push(scanner.item()?);
            match scanner.next() {
                None => break,
                Some(_comma) => continue,
            }
        }
    }
    if patterns.iter().all(|p| p.exclude) {
        let message = if patterns.is_empty() {
            "no tables are named".to_owned()
        } else {
            format!("`{}` only excludes", texts.join(","))
        };
        return Err(Error::config(message)
            .next("name the tables to replicate, such as orders, sales.* or *.*,!audit.*"));
    }
    Ok(patterns)
}

/// A pattern that means exactly this table.
pub fn for_table(schema: &str, table: &str) -> String {
    format!("{}.{}", quote_if_needed(schema), quote_if_needed(table))
}

/// The name as SQL would need it: in double quotes only where it has odd characters.
pub fn quote_if_needed(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { super::quote_ident(name) }
}

struct Scanner<'a> {
    text: &'a str,
    rest: std::iter::Peekable<std::str::CharIndices<'a>>,
}

impl Scanner<'_> {
    fn next(&mut self) -> Option<char> {
        self.rest.next().map(|(_, c)| c)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|(_, c)| *c)
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    fn here(&mut self) -> usize {
        self.rest.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::config(format!("table pattern `{}`: {what}", self.text)).next(
            "write table, schema.table or globs such as sales.* separated by commas; put names \
             with odd characters in double quotes: \"My Schema\".\"a.b\"",
        )
    }

    fn item(&mut self) -> Result<Pattern> {
        self.skip_spaces();
        let start = self.here();
        let exclude = self.peek() == Some('!');
        if exclude {
            self.next();
            self.skip_spaces();
        }
        let mut parts = vec![self.part()?];
        while self.peek() == Some('.') {
            self.next();
            parts.push(self.part()?);
        }
        let text = self.text.get(start..self.here()).unwrap_or_default().to_owned();
        self.skip_spaces();
        match self.peek() {
            None | Some(',') => {}
            Some(c) => return Err(self.wrong(&format!("`{c}` is not expected after `{text}`"))),
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(table), None, None) => {
                Ok(Pattern { exclude, schema: Part::exactly("public"), table, text })
            }
            (Some(schema), Some(table), None) => Ok(Pattern { exclude, schema, table, text }),
            _ => Err(self.wrong(&format!(
                "`{text}` has more than two parts; the database is part of the connection"
            ))),
        }
    }

    fn part(&mut self) -> Result<Part> {
        let mut pieces = Vec::new();
        loop {
            match self.peek() {
                None | Some('.' | ',') => break,
                Some(c) if c.is_whitespace() => break,
                Some('"') => self.quoted(&mut pieces)?,
                Some('*') => pieces.push(Piece::AnyRun),
                Some('?') => pieces.push(Piece::AnyOne),
                Some(c) if c.is_alphanumeric() || matches!(c, '_' | '$' | '-') => {
                    pieces.push(Piece::Char(c.to_ascii_lowercase()));
                }
                Some(c) => return Err(self.wrong(&format!("`{c}` needs double quotes around it"))),
            }
            self.next();
        }
        if pieces.is_empty() {
            return Err(self.wrong("a name is missing"));
        }
        Ok(Part(pieces))
    }

    /// Reads up to the closing quote and leaves it to be taken by the caller.
    fn quoted(&mut self, pieces: &mut Vec<Piece>) -> Result<()> {
        self.next();
        loop {
            match self.peek() {
                None => return Err(self.wrong("a double quote is not closed")),
                Some('"') => {
                    let mut ahead = self.rest.clone();
                    ahead.next();
                    if ahead.peek().map(|(_, c)| *c) != Some('"') {
                        return Ok(());
                    }
                    self.next();
                    pieces.push(Piece::Char('"'));
                }
                Some(c) => pieces.push(Piece::Char(c)),
            }
            self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Pattern {
        let mut all = parse(&[text.to_owned()]).unwrap();
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0)
    }

    #[test]
    fn a_bare_name_means_public_and_folds_as_in_sql() {
        assert_eq!(one("Orders").literal(), Some(("public".into(), "orders".into())));
        assert_eq!(one("Sales.Orders").literal(), Some(("sales".into(), "orders".into())));
    }

    #[test]
    fn quoted_names_keep_dots_commas_stars_and_quotes() {
        let p = one(r#""My Schema"."a.b,*""c""#);
        assert_eq!(p.literal(), Some(("My Schema".into(), "a.b,*\"c".into())));
        let mixed = one(r#"s."A"*"#);
        assert!(mixed.matches("s", "Abc") && !mixed.matches("s", "abc"));
    }

    #[test]
    fn a_star_alone_stays_in_public() {
        assert!(one("*").matches("public", "t"));
        assert!(!one("*").matches("other", "t"));
        assert!(one("*.*").matches("other", "t"));
    }

    #[test]
    fn several_items_and_exclusions_are_split_at_commas() {
        let all = parse(&["sales.*, !sales.tmp_? ,x".into(), "y".into()]).unwrap();
        assert_eq!(all.iter().map(|p| p.exclude).collect::<Vec<_>>(), [false, true, false, false]);
        assert!(all[1].matches("sales", "tmp_1") && !all[1].matches("sales", "tmp_12"));
    }

    #[test]
    fn mistakes_are_said_in_words() {
        for (text, word) in [
            ("", "missing"),
            ("a,", "missing"),
            ("a..b", "missing"),
            ("\"\"", "missing"),
            ("a.b.c", "two parts"),
            ("\"a", "not closed"),
            ("a b", "not expected"),
            ("a;drop", "double quotes"),
            ("!a", "only excludes"),
        ] {
            let error = parse(&[text.to_owned()]).unwrap_err();
            assert_eq!(error.kind(), crate::error::Kind::Config, "{text}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
        assert!(parse(&[]).is_err());
    }

    /// The obvious definition, exponential.
    fn slow(pieces: &[Piece], name: &[char]) -> bool {
        match pieces.split_first() {
            None => name.is_empty(),
            Some((Piece::AnyRun, rest)) => (0..=name.len()).any(|n| slow(rest, &name[n..])),
            Some((Piece::AnyOne, rest)) => !name.is_empty() && slow(rest, &name[1..]),
            Some((Piece::Char(c), rest)) => name.first() == Some(c) && slow(rest, &name[1..]),
        }
    }

    proptest! {
        #[test]
        fn globs_match_as_defined(glob in "[ab?*]{1,8}", name in "[ab]{0,8}") {
            let part = one(&glob).table;
            let chars: Vec<char> = name.chars().collect();
            prop_assert_eq!(part.matches(&name), slow(&part.0, &chars));
        }

        #[test]
        fn any_name_can_be_written_and_means_only_itself(
            schema in "\\PC{1,12}", table in "\\PC{1,12}", other in "\\PC{1,12}",
        ) {
            let p = one(&for_table(&schema, &table));
            prop_assert_eq!(p.literal(), Some((schema.clone(), table.clone())));
            prop_assert!(p.matches(&schema, &table));
            prop_assert_eq!(p.matches(&schema, &other), other == table);
        }

        #[test]
        fn no_text_panics(text in "[ab.,!\"*? ]{0,12}") {
            let _ = parse(&[text]);
        }
    }
}
