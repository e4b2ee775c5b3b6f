//! One query at two versions of a table, computed from the lake's files alone.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int32Type;
use tokio::runtime::Handle;

use crate::cli::table::{Side, Table};
use crate::error::{Error, Result};
use crate::handoff::session::blocking;
use crate::lake::{Lake, PastTable};
use crate::observe::human;

/// How many carriers are shown.
const LARGEST: usize = 5;

/// The query, as Spark understands it, at the handoff.
pub const SQL: &str = "SELECT carrier, count(*) AS flights, round(avg(dep_delay), 2) AS delay\n\
                       FROM flights VERSION AS OF 0 GROUP BY carrier\n\
                       ORDER BY flights DESC LIMIT 5";

#[derive(Clone, Copy, Default)]
struct Carrier {
    flights: u64,
    departed: u64,
    delay: i64,
}

impl Carrier {
    fn average(self) -> String {
        match self.departed {
            0 => "-".to_owned(),
            n => format!("{:.2}", self.delay as f64 / n as f64),
        }
    }
}

/// Flights and average delay of the carriers with most flights, at the handoff and now.
///
/// # Errors
/// A table or version can't be read.
pub async fn compare(lake: &Lake, flights: &str, airlines: &str, now: u64) -> Result<String> {
    let then = open(lake, flights, Some(0)).await?;
    let now = open(lake, flights, Some(now)).await?;
    let airlines = open(lake, airlines, Some(0)).await?;
    let runtime = Handle::current();
    blocking(move || {
        let mut names = BTreeMap::new();
        airlines.scan(&runtime, &["carrier", "name"], |batch| {
            let (carriers, texts) = (batch.column(0).as_string_opt::<i32>(), batch.column(1));
            let pairs = carriers.zip(texts.as_string_opt::<i32>()).ok_or_else(other_types)?;
            for (carrier, name) in pairs.0.iter().zip(pairs.1).filter_map(|(c, n)| c.zip(n)) {
                names.insert(carrier.to_owned(), name.to_owned());
            }
            Ok(())
        })?;
        let (before, after) = (by_carrier(&then, &runtime)?, by_carrier(&now, &runtime)?);
        let mut order: Vec<(&String, &Carrier)> = before.iter().collect();
        order.sort_by_key(|(_, carrier)| std::cmp::Reverse(carrier.flights));
        let mut table = Table::new(&[
            ("carrier", Side::Left),
            ("", Side::Left),
            ("flights then", Side::Right),
            ("now", Side::Right),
            ("delay then", Side::Right),
            ("now", Side::Right),
        ]);
        let total = |rows: &PastTable| human::count(rows.live_rows());
        for (code, then) in order.into_iter().take(LARGEST) {
            let now = after.get(code).copied().unwrap_or_default();
            table.row(vec![
                code.as_str().into(),
                names.get(code).map_or("", String::as_str).into(),
                human::count(then.flights).into(),
                human::count(now.flights).into(),
                then.average().into(),
                now.average().into(),
            ]);
        }
        table.row(vec!["all".into(), "".into(), total(&then).into(), total(&now).into()]);
        Ok(table.render())
    })
    .await
}

async fn open(lake: &Lake, folder: &str, version: Option<u64>) -> Result<PastTable> {
    PastTable::open(lake, folder, version)
        .await?
        .ok_or_else(|| Error::failed(format!("there is no table {folder} in the lake")))
}

fn by_carrier(flights: &PastTable, runtime: &Handle) -> Result<BTreeMap<String, Carrier>> {
    let mut found: BTreeMap<String, Carrier> = BTreeMap::new();
    flights.scan(runtime, &["carrier", "dep_delay"], |batch| {
        let carriers = batch.column(0).as_string_opt::<i32>().ok_or_else(other_types)?;
        let delays = batch.column(1).as_primitive_opt::<Int32Type>().ok_or_else(other_types)?;
        for (row, carrier) in carriers.iter().enumerate() {
            let carrier = carrier.unwrap_or("-");
            let entry = match found.get_mut(carrier) {
                Some(entry) => entry,
                None => found.entry(carrier.to_owned()).or_default(),
            };
            entry.flights += 1;
            if delays.is_valid(row) {
                entry.departed += 1;
                entry.delay += i64::from(delays.value(row));
            }
        }
        Ok(())
    })?;
    Ok(found)
}

fn other_types() -> Error {
    Error::failed("the lake's columns have other types than the demo's tables")
}
