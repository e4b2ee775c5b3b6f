//! `tidegate diff`: what became of a table's rows between two of its versions.

use std::path::PathBuf;

use tokio::runtime::Handle;

use super::commands::{find_table, no_pipeline, open_ledger};
use super::cuts;
use super::output::{DiffOutput, print_json};
use crate::config::Config;
use crate::diff::output::{Format, Writer};
use crate::diff::{Counts, Diff};
use crate::error::{Error, Result};
use crate::handoff::session::blocking;
use crate::lake::pins::Pins;
use crate::lake::{Lake, Ledger, PastTable};

/// Which versions, and where the rows go.
pub struct Request {
    /// The table, as schema.table.
    pub table: String,
    /// A version, a pin, a position or a time.
    pub from: String,
    /// Likewise; the newest version if none.
    pub to: Option<String>,
    /// Count, and hand no rows on.
    pub summary: bool,
    /// How rows are written.
    pub format: Format,
    /// Where to; standard output if none.
    pub output: Option<PathBuf>,
}

/// Writes the rows that changed, or how many did.
///
/// # Errors
/// There is no such table or version, its files are gone, or the rows can't be written.
pub async fn diff(config: Config, request: Request) -> Result<()> {
    let (lake, ledger) = open_ledger(&config).await?.ok_or_else(|| no_pipeline(&config))?;
    let folder = find_table(&ledger, &request.table)?;
    let from = resolve(&lake, &ledger, &folder, &request.from).await?;
    let to = match &request.to {
        Some(to) => Some(resolve(&lake, &ledger, &folder, to).await?),
        None => None,
    };
    let (from, to) = (
        open(&lake, &folder, &request.table, Some(from)).await?,
        open(&lake, &folder, &request.table, to).await?,
    );
    let versions = (from.version(), to.version());
    let prefix = config.column_prefix.clone();
    let Request { table, summary, format, output, .. } = request;
    let runtime = Handle::current();
    let counts = blocking(move || {
        let scratch = std::env::temp_dir();
        let diff =
            Diff { from: &from, to: &to, prefix: &prefix, scratch: &scratch, runtime: &runtime };
        if summary { diff.count().map(Some) } else { write(&diff, format, output.as_deref()) }
    })
    .await
    .map_err(|e| e.at(format!("{table}, version {} to {}", versions.0, versions.1)))?;
    // Whoever read the rows has gone away: there is nothing to tell.
    let Some(Counts { inserted, updated, deleted }) = counts else { return Ok(()) };
    let (from, to) = versions;
    if summary {
        return print_json(&DiffOutput { table, from, to, inserted, updated, deleted });
    }
    tracing::info!(table, from, to, inserted, updated, deleted, "compared");
    Ok(())
}

/// The counts; none where standard output was closed before the end.
fn write(
    diff: &Diff<'_>,
    format: Format,
    output: Option<&std::path::Path>,
) -> Result<Option<Counts>> {
    let mut writer = Writer::create(format, output, &diff.schema())?;
    let counts = diff.each(|rows| writer.write(&rows));
    if writer.is_gone() {
        return Ok(None);
    }
    let counts = counts?;
    writer.finish()?;
    Ok(Some(counts))
}

async fn open(lake: &Lake, folder: &str, table: &str, version: Option<u64>) -> Result<PastTable> {
    PastTable::open(lake, folder, version).await?.ok_or_else(|| {
        Error::failed(format!("{table} is not published yet"))
            .next("wait for `tidegate status` to say live")
    })
}

/// The version that `at` names: a number, the name of a pin, a position, or a time.
async fn resolve(lake: &Lake, ledger: &Ledger, folder: &str, at: &str) -> Result<u64> {
    if let Ok(version) = at.parse() {
        return Ok(version);
    }
    let missing = |what: String| {
        Error::failed(format!("{what} has no version of the table"))
            .next("`tidegate versions TABLE` lists what there is of it")
    };
    if let Some(pin) = Pins::read(ledger).await?.pins.get(at) {
        let version = pin.tables.get(folder).copied();
        return version.ok_or_else(|| missing(format!("the pin {at:?}")));
    }
    let found = cuts::find(lake, ledger, Some(at)).await?;
    found.cut.tables.get(folder).copied().ok_or_else(|| missing(format!("{at:?}")))
}
