//! Source and lake at one position, compared by a reader that is not ours; every version audited.

use std::path::Path;

use super::load::{TABLES, Table};
use crate::support::audit;
use crate::support::database::Sql;
use crate::support::judge::{self, Engine};

/// What was compared.
pub struct Compared {
    pub rows: u64,
    /// A table and how it differs, or what does not hold in its log.
    pub differences: Vec<String>,
}

/// Compares all tables. Nobody writes to the source, and the lake stands at its log's end.
pub fn compare(sql: &mut Sql, lake: &Path) -> Compared {
    let mut compared = Compared { rows: 0, differences: Vec::new() };
    for table in &TABLES {
        let columns = columns(sql, table);
        let mut expected = sql.rows(&format!("SELECT {columns} FROM {}", table.name));
        expected.sort();
        compared.rows += expected.len() as u64;
        let found = lake_rows(table, &columns, lake);
        if let Some(difference) = judge::difference(&expected, &found) {
            compared.differences.push(format!("{}: {difference}", table.name));
        }
    }
    compared.differences.extend(audit(lake).err());
    compared
}

fn columns(sql: &mut Sql, table: &Table) -> String {
    match table.columns {
        "*" => sql.one(&format!(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attname) FROM pg_attribute
             WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped",
            table.name
        )),
        columns => columns.to_owned(),
    }
}

fn lake_rows(table: &Table, columns: &str, lake: &Path) -> Vec<Vec<Option<String>>> {
    let path = lake.join("public").join(table.name);
    let scan = format!("delta_scan('{}')", path.display());
    let mut rows = judge::sql(Engine::DuckDb, &format!("SELECT {columns} FROM {scan}")).rows;
    rows.sort();
    rows
}

/// Versions and rows written, over all tables, if every version of each holds.
///
/// # Errors
/// What does not hold.
pub fn audit(lake: &Path) -> Result<(u64, u64), String> {
    audit::ledger(lake)?;
    let (mut versions, mut written) = (0, 0);
    for table in &TABLES {
        let folder = lake.join("public").join(table.name);
        if !folder.join("_delta_log").exists() {
            continue;
        }
        let audited = audit::table(&folder, table.key)?;
        versions += audited.versions;
        written += audited.written;
    }
    Ok((versions, written))
}
