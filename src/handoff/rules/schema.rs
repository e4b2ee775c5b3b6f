//! What a table's new columns mean for its lake table: nothing, a change of the schema alone, or that
//! its rows must be read again. Pure.
//!
//! The stream names a table's columns before the first row that has them, not at the ALTER, and says
//! nothing of what became of the rows that were there. The catalog knows more, but it is the catalog
//! of now, and the stream is behind it. So what both agree on is followed in place; where they leave
//! a doubt about one value of one old row, the table is read again, and others go on.
//!
//! ```text
//!  column gone                  the schema loses it; files keep it, unseen
//!  column new, NULL in old rows the schema gains it
//!  column new, old rows have a  read again: the value stands in the catalog or nowhere, and no file
//!  default of the time          has it
//!  the name was there before    read again: files still have what stood under it (there is no column
//!                               mapping), and a new column must not show it
//!  renamed, another type        read again, unless the lake's type stays the same
//!  left out no longer           read again: the source's rows keep the values, no file has them
//!  another key                  read again: rows are found by it
//!  a partition column gone      read again: every file says a value of it
//! ```

/// A column as the lake table has it, from its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// `pg_attribute.attnum` at the root.
    pub attnum: i16,
    /// The name.
    pub name: &'a str,
    /// The type and its modifier.
    pub pg_type: (u32, i32),
    /// The column is part of the key that tells rows apart.
    pub key: bool,
    /// The lake does not have it: it is generated, or left out.
    pub left_out: bool,
    /// The lake's files are partitioned by it.
    pub partition: bool,
}

/// A column as the stream names it now, with what the catalog of now says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// The name.
    pub name: &'a str,
    /// The type and its modifier.
    pub pg_type: (u32, i32),
    /// The column is part of the key that tells rows apart.
    pub key: bool,
    /// The column of this name and type in the catalog; none if it is there no more.
    pub catalog: Option<InCatalog>,
    /// The lake's type for it is that of the known column of this name.
    pub same_kind: bool,
}

/// What the catalog of now says of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InCatalog {
    /// `pg_attribute.attnum` at the root.
    pub attnum: i16,
    /// Rows older than the column have a value (`attmissingval`), in some partition at least.
    pub has_missing: bool,
}

/// What else bears on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// No file of the table at the source was rewritten since the lake table's checkpoint: values of
    /// rows older than a column still stand in the catalog. A rewrite writes them into the rows, and
    /// so does a volatile default, and no row of either is in the stream.
    pub same_files: bool,
    /// Names that files of the lake table have and its schema has no more.
    pub hidden: &'a [String],
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evolution {
    /// The lake's schema stays as it is.
    Same,
    /// Only the schema changes: these columns go, these come and are NULL in all rows of before.
    InPlace {
        /// Names that go.
        dropped: Vec<String>,
        /// Names that come.
        added: Vec<String>,
    },
    /// The rows must be read again.
    ReadAgain(Doubt),
}

/// Why rows must be read again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Another type in the lake.
    #[error("the type of column {0:?} changed")]
    Type(String),
    /// Dropped and made again.
    #[error("column {0:?} was dropped and made again")]
    MadeAgain(String),
    /// The column has another name now.
    #[error("column {from:?} was renamed to {to:?}")]
    Renamed {
        /// The name it had.
        from: String,
        /// The name it has.
        to: String,
    },
    /// The source stored its values all along, and no file has them.
    #[error("column {0:?} was generated or left out and is no longer")]
    LeftOut(String),
    /// Old rows have a value that no file has.
    #[error("column {0:?} came with a value for the rows that were there")]
    Default(String),
    /// The source's rows were rewritten, so that nobody can say what old rows have.
    #[error("column {0:?} is new, and the table was rewritten since")]
    Rewritten(String),
    /// The catalog has no such column any more.
    #[error("column {0:?} came and is gone again or has another type by now")]
    Passed(String),
    /// Files of the lake have other values under the name.
    #[error("a column named {0:?} was there before")]
    NameOfBefore(String),
    /// The lake's files are partitioned by a column that is gone.
    #[error("the lake is partitioned by column {0:?}, which is gone")]
    Partition(String),
    /// Rows are told apart by other columns.
    #[error("the key or replica identity changed")]
    Key,
}

/// What the columns that the stream names make of the lake table.
///
/// Wrong ways: to take a new column's old rows for NULL without a look at `attmissingval`, or with
/// one after a rewrite; to take a dropped and a new column of one name for the same; to follow a
/// rename as a drop and an addition (the values would be lost).
pub fn evolve(known: &[Known<'_>], sent: &[Sent<'_>], table: Table<'_>) -> Evolution {
    match judge(known, sent, table) {
        Ok((dropped, added)) if dropped.is_empty() && added.is_empty() => Evolution::Same,
        Ok((dropped, added)) => Evolution::InPlace { dropped, added },
        Err(doubt) => Evolution::ReadAgain(doubt),
    }
}

fn judge(
    all: &[Known<'_>],
    sent: &[Sent<'_>],
    table: Table<'_>,
) -> Result<(Vec<String>, Vec<String>), Doubt> {
    let keys = |names: &mut Vec<&str>| names.sort_unstable();
    let (left_out, known): (Vec<&Known<'_>>, Vec<&Known<'_>>) =
        all.iter().partition(|known| known.left_out);
    let mut old_key: Vec<&str> = known.iter().filter(|c| c.key).map(|c| c.name).collect();
    let mut new_key: Vec<&str> = sent.iter().filter(|c| c.key).map(|c| c.name).collect();
    keys(&mut old_key);
    keys(&mut new_key);
    let mut added = Vec::new();
    for column in sent {
        let name = || column.name.to_owned();
        let Some(before) = known.iter().find(|known| known.name == column.name) else {
            let Some(found) = column.catalog else { return Err(Doubt::Passed(name())) };
            if left_out.iter().any(|known| known.attnum == found.attnum) {
                return Err(Doubt::LeftOut(name()));
            }
            if let Some(from) = known.iter().find(|known| known.attnum == found.attnum) {
                return Err(Doubt::Renamed { from: from.name.to_owned(), to: name() });
            }
            if !table.same_files {
                return Err(Doubt::Rewritten(name()));
            }
            if found.has_missing {
                return Err(Doubt::Default(name()));
            }
            if table.hidden.iter().any(|hidden| hidden.eq_ignore_ascii_case(column.name)) {
                return Err(Doubt::NameOfBefore(name()));
            }
            added.push(name());
            continue;
        };
        if column.catalog.is_some_and(|found| found.attnum != before.attnum) {
            return Err(Doubt::MadeAgain(name()));
        }
        if column.pg_type != before.pg_type && !column.same_kind {
            return Err(Doubt::Type(name()));
        }
    }
    let dropped: Vec<&Known<'_>> = known
        .into_iter()
        .filter(|known| sent.iter().all(|column| column.name != known.name))
        .collect();
    if old_key != new_key {
        return Err(Doubt::Key);
    }
    if let Some(column) = dropped.iter().find(|known| known.partition) {
        return Err(Doubt::Partition(column.name.to_owned()));
    }
    Ok((dropped.iter().map(|known| known.name.to_owned()).collect(), added))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: (u32, i32) = (23, -1);
    const KNOWN: [Known<'static>; 2] = [
        Known { attnum: 1, name: "id", pg_type: INT, key: true, left_out: false, partition: false },
        Known { attnum: 2, name: "a", pg_type: INT, key: false, left_out: false, partition: false },
    ];
    const NOTHING_ELSE: Table<'static> = Table { same_files: true, hidden: &[] };

    fn sent(name: &'static str, attnum: i16) -> Sent<'static> {
        Sent {
            name,
            pg_type: INT,
            key: name == "id",
            catalog: Some(InCatalog { attnum, has_missing: false }),
            same_kind: true,
        }
    }

    fn doubt(columns: &[Sent<'_>]) -> Doubt {
        match evolve(&KNOWN, columns, NOTHING_ELSE) {
            Evolution::ReadAgain(doubt) => doubt,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_new_column_without_default_and_a_dropped_one_change_the_schema_only() {
        assert_eq!(evolve(&KNOWN, &[sent("id", 1), sent("a", 2)], NOTHING_ELSE), Evolution::Same);
        // The order of columns means nothing.
        assert_eq!(evolve(&KNOWN, &[sent("a", 2), sent("id", 1)], NOTHING_ELSE), Evolution::Same);
        let found = evolve(&KNOWN, &[sent("id", 1), sent("b", 3)], NOTHING_ELSE);
        let (dropped, added) = (vec!["a".to_owned()], vec!["b".to_owned()]);
        assert_eq!(found, Evolution::InPlace { dropped, added });
    }

    #[test]
    fn what_old_rows_have_in_a_new_column_is_never_guessed() {
        let mut column = sent("b", 3);
        column.catalog = Some(InCatalog { attnum: 3, has_missing: true });
        let columns = [sent("id", 1), sent("a", 2), column];
        assert_eq!(doubt(&columns), Doubt::Default("b".into()));
        let columns = [sent("id", 1), sent("a", 2), sent("b", 3)];
        let rewritten = Table { same_files: false, hidden: &[] };
        assert_eq!(
            evolve(&KNOWN, &columns, rewritten),
            Evolution::ReadAgain(Doubt::Rewritten("b".into()))
        );
        let hidden = ["B".to_owned()];
        let before = Table { same_files: true, hidden: &hidden };
        assert_eq!(
            evolve(&KNOWN, &columns, before),
            Evolution::ReadAgain(Doubt::NameOfBefore("b".into()))
        );
        let gone = [sent("id", 1), sent("a", 2), Sent { catalog: None, ..sent("b", 3) }];
        assert_eq!(doubt(&gone), Doubt::Passed("b".into()));
    }

    #[test]
    fn a_column_that_is_generated_no_longer_has_values_in_old_rows() {
        let generated = Known {
            attnum: 3,
            name: "g",
            pg_type: INT,
            key: false,
            left_out: true,
            partition: false,
        };
        let known = [KNOWN[0].clone(), KNOWN[1].clone(), generated];
        let columns = [sent("id", 1), sent("a", 2)];
        assert_eq!(evolve(&known, &columns, NOTHING_ELSE), Evolution::Same);
        let columns = [sent("id", 1), sent("a", 2), sent("g", 3)];
        let doubt = Evolution::ReadAgain(Doubt::LeftOut("g".into()));
        assert_eq!(evolve(&known, &columns, NOTHING_ELSE), doubt);
    }

    #[test]
    fn a_rename_and_a_column_made_again_are_told_from_drop_and_add() {
        let renamed = Doubt::Renamed { from: "a".into(), to: "b".into() };
        assert_eq!(doubt(&[sent("id", 1), sent("b", 2)]), renamed);
        assert_eq!(doubt(&[sent("id", 1), sent("a", 3)]), Doubt::MadeAgain("a".into()));
    }

    #[test]
    fn a_lake_is_not_left_partitioned_by_a_column_that_is_gone() {
        let known = [KNOWN[0].clone(), Known { partition: true, ..KNOWN[1].clone() }];
        assert_eq!(
            evolve(&known, &[sent("id", 1)], NOTHING_ELSE),
            Evolution::ReadAgain(Doubt::Partition("a".into()))
        );
    }

    #[test]
    fn a_type_may_change_only_if_the_lake_does_not_see_it() {
        let wider = Sent { pg_type: (25, -1), ..sent("a", 2) };
        assert_eq!(evolve(&KNOWN, &[sent("id", 1), wider.clone()], NOTHING_ELSE), Evolution::Same);
        let other = Sent { same_kind: false, ..wider };
        assert_eq!(doubt(&[sent("id", 1), other]), Doubt::Type("a".into()));
    }

    #[test]
    fn another_key_reads_again() {
        let key = Sent { key: true, ..sent("a", 2) };
        assert_eq!(doubt(&[sent("id", 1), key]), Doubt::Key);
        assert_eq!(doubt(&[sent("a", 2)]), Doubt::Key);
    }
}
