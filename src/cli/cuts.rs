//! A cut of all tables, as a command names it: by a position, a time, or a version of a table.

use chrono::{DateTime, Utc};

use super::commands::find_table;
use crate::error::{Error, Result};
use crate::handoff::again::GAP_EVENT;
use crate::handoff::cut::{At, Cut, Fences, Gap, TORN_EVENT, Versions, cut};
use crate::lake::{self, Lake, Ledger, VersionInfo, VersionKind};
use crate::position::Lsn;

/// A cut, and the versions it was chosen from.
pub struct Found {
    /// The cut.
    pub cut: Cut,
    /// The versions of each table, in the order of the ledger.
    pub tables: Vec<Versions>,
}

/// The cut that `at` names; the newest one if it names none.
///
/// # Errors
/// Nothing is published, `at` can't be read, there is no such cut; the lake can't be read.
pub async fn find(lake: &Lake, ledger: &Ledger, at: Option<&str>) -> Result<Found> {
    let fence = ledger.fence().cloned().ok_or_else(|| {
        Error::failed("the tables are not published yet")
            .next("wait for `tidegate status` to say live")
    })?;
    let at = match at {
        None => At::Newest,
        Some(at) => parse_at(at, ledger)?,
    };
    let mut torn = Vec::new();
    for event in ledger.read_events(None, Some(TORN_EVENT)).await? {
        let lsn = |key: &str| -> Option<Lsn> { event.detail.get(key)?.as_str()?.parse().ok() };
        torn.extend(lsn("after").zip(lsn("until")));
    }
    let mut gaps = Vec::new();
    for event in ledger.read_events(None, Some(GAP_EVENT)).await? {
        let text = |key: &str| event.detail.get(key)?.as_str();
        let lsn = |key: &str| -> Option<Lsn> { text(key)?.parse().ok() };
        if let (Some(folder), Some(after), Some(until)) =
            (text("folder"), lsn("after"), lsn("until"))
        {
            gaps.push(Gap { folder: folder.to_owned(), after, until: Some(until) });
        }
    }
    let mut tables = Vec::new();
    for recorded in &ledger.state().tables {
        if let Some(after) = recorded.followed_to {
            gaps.push(Gap { folder: recorded.folder.clone(), after, until: None });
        }
        let versions = lake::versions(lake, &recorded.folder).await?;
        tables.push(Versions { folder: recorded.folder.clone(), versions });
    }
    let fences = Fences { last: fence.lsn, generation: fence.generation, torn, gaps };
    let cut = cut(&tables, &fences, &at)?;
    Ok(Found { cut, tables })
}

fn parse_at(text: &str, ledger: &Ledger) -> Result<At> {
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(At::Lsn(lsn));
    }
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(At::Time(time.to_utc()));
    }
    let wrong = |what: &str| {
        Error::config(format!("--at {text:?} {what}"))
            .next("give a position such as 16/B374D848, a time such as 2025-03-07T18:00:00Z, or a version such as public.orders@12")
    };
    let (table, version) = match (text.rsplit_once('@'), ledger.state().tables.as_slice()) {
        (Some((table, version)), _) => (find_table(ledger, table)?, version),
        (None, [only]) => (only.folder.clone(), text),
        (None, _) => return Err(wrong("names no position, time, or version of a table")),
    };
    let version = version.parse().map_err(|_| wrong("names no version"))?;
    Ok(At::Version(table, version))
}

/// An end of a range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// By the position they show.
    Lsn(Lsn),
    /// By the time they were committed to the lake.
    Time(DateTime<Utc>),
}

impl Bound {
    /// # Errors
    /// It is neither a position nor a time.
    pub fn parse(text: &str) -> Result<Bound, String> {
        if let Ok(lsn) = text.parse() {
            return Ok(Bound::Lsn(lsn));
        }
        let time = DateTime::parse_from_rfc3339(text);
        time.map(|time| Bound::Time(time.to_utc())).map_err(|_| {
            "give a position such as 16/B374D848, or a time such as 2025-03-07T18:00:00Z".to_owned()
        })
    }

    /// How the version stands to it; none where the version does not say.
    fn compare(self, version: &VersionInfo) -> Option<std::cmp::Ordering> {
        match self {
            Bound::Lsn(lsn) => Some(version.applied?.cmp(&lsn)),
            Bound::Time(time) => {
                let at: DateTime<Utc> = version.committed_at.as_deref()?.parse().ok()?;
                Some(at.cmp(&time))
            }
        }
    }
}

/// Which versions are wanted; all, by default.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of these kinds; any if none is given.
    pub kinds: Vec<VersionKind>,
    /// Not before it.
    pub since: Option<Bound>,
    /// Not after it.
    pub until: Option<Bound>,
    /// The newest so many.
    pub last: Option<usize>,
}

impl Filter {
    /// Those of the versions, oldest first, that are wanted.
    pub fn apply(&self, versions: impl IntoIterator<Item = VersionInfo>) -> Vec<VersionInfo> {
        let wanted = |version: &VersionInfo| {
            let kind = self.kinds.is_empty() || self.kinds.contains(&version.kind);
            let since = self.since.is_none_or(|b| b.compare(version).is_some_and(|o| o.is_ge()));
            let until = self.until.is_none_or(|b| b.compare(version).is_some_and(|o| o.is_le()));
            kind && since && until
        };
        let mut found: Vec<VersionInfo> = versions.into_iter().filter(wanted).collect();
        let first = self.last.map_or(0, |last| found.len().saturating_sub(last));
        found.drain(..first);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64, kind: VersionKind, applied: Option<u64>) -> VersionInfo {
        VersionInfo {
            version: number,
            kind,
            operation: String::new(),
            generation: applied.map(|_| 1),
            base: None,
            applied: applied.map(Lsn::new),
            source_time: None,
            committed_at: Some(format!("2025-01-01T00:00:{number:02}.000Z")),
            inserted: 0,
            deleted: 0,
        }
    }

    fn numbers(filter: &Filter) -> Vec<u64> {
        use VersionKind::{Changes, Foreign, Handoff};
        let versions = [
            version(0, Handoff, Some(100)),
            version(1, Changes, Some(200)),
            version(2, Foreign, None),
            version(3, Changes, Some(300)),
        ];
        filter.apply(versions).into_iter().map(|v| v.version).collect()
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it() {
        let bound = |text| Some(Bound::parse(text).unwrap());
        let all = Filter::default();
        assert_eq!(numbers(&all), [0, 1, 2, 3]);
        assert_eq!(numbers(&Filter { since: bound("0/C8"), ..all.clone() }), [1, 3]);
        assert_eq!(numbers(&Filter { until: bound("0/C8"), ..all.clone() }), [0, 1]);
        let time = bound("2025-01-01T01:00:02+01:00");
        assert_eq!(numbers(&Filter { since: time, ..all.clone() }), [2, 3]);
        assert_eq!(numbers(&Filter { until: time, last: Some(2), ..all.clone() }), [1, 2]);
        let kinds = vec![VersionKind::Handoff, VersionKind::Foreign];
        assert_eq!(numbers(&Filter { kinds, ..all }), [0, 2]);
        assert!(Bound::parse("yesterday").is_err());
    }
}
