//! A consistent cut: of each table the version that shows one position.
//!
//! A position is a fence of the past if some table has a version that ends there, as batches end
//! for all tables at once: a table without a version there had no change in the batch. The one
//! exception is the batch in which a process died after some tables had committed and before the
//! fence: the next start records it, and no position in it is taken. Pure.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::error::{Error, Result};
use crate::lake::{VersionInfo, VersionKind};
use crate::position::Lsn;

/// Kind of the event by which a start records a batch that not all tables have: positions above
/// `after` and up to `until` are no fences.
pub const TORN_EVENT: &str = "torn";

/// Which cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The newest one.
    Newest,
    /// The newest one that is not beyond the position.
    Lsn(Lsn),
    /// The newest one all of which had been committed to the lake by then.
    Time(DateTime<Utc>),
    /// The one that a version of a table shows: its folder and the version.
    Version(String, u64),
}

/// A table with its versions, oldest first.
pub struct Versions {
    /// Its folder.
    pub folder: String,
    /// Its versions.
    pub versions: Vec<VersionInfo>,
}

/// What is known of fences.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    /// The last one.
    pub last: Lsn,
    /// The generation it belongs to.
    pub generation: u64,
    /// Batches that were torn: after one position, up to another.
    pub torn: Vec<(Lsn, Lsn)>,
    /// Where single tables were not followed.
    pub gaps: Vec<Gap>,
}

/// A table that was not followed, while the others were: no version of it shows a cut in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its folder.
    pub folder: String,
    /// The last fence it was followed to.
    pub after: Lsn,
    /// The position at which it was read again; none while it is not followed.
    pub until: Option<Lsn>,
}

impl Gap {
    fn hides(&self, folder: &str, lsn: Lsn) -> bool {
        self.folder == folder && lsn > self.after && self.until.is_none_or(|until| lsn < until)
    }
}

/// A cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The position all tables show.
    pub lsn: Lsn,
    /// The version of each table, by its folder. A table that was published later is not among them.
    pub tables: BTreeMap<String, u64>,
}

/// The cut `at`.
///
/// # Errors
/// There is none: it is before all versions, or that version is no fence.
pub fn cut(tables: &[Versions], fences: &Fences, at: &At) -> Result<Cut> {
    let none = |what: String| {
        Error::failed(format!("no cut of all tables {what} is left"))
            .next("`tidegate versions TABLE` lists the positions that can be chosen")
    };
    let lsn = match at {
        At::Newest => fences.last,
        At::Lsn(lsn) => positions(tables, fences)
            .range(..=*lsn)
            .next_back()
            .copied()
            .ok_or_else(|| none(format!("at {lsn} or before")))?,
        At::Time(time) => {
            let known = positions(tables, fences);
            known
                .into_iter()
                .rev()
                .find(|lsn| committed_by(tables, fences.generation, *lsn, *time))
                .ok_or_else(|| none(format!("of {} or before", time.to_rfc3339())))?
        }
        At::Version(folder, version) => {
            let of_table = tables.iter().find(|table| table.folder == *folder);
            let found = of_table.and_then(|t| t.versions.iter().find(|v| v.version == *version));
            let applied = found.and_then(|v| v.applied).ok_or_else(|| {
                Error::config(format!("{folder} has no version {version} that is its pipeline's"))
                    .next("`tidegate versions TABLE` lists them")
            })?;
            if !positions(tables, fences).contains(&applied) {
                return Err(none(format!("at version {version} of {folder} ({applied})")));
            }
            applied
        }
    };
    let mut cut = Cut { lsn, tables: BTreeMap::new() };
    let hidden = |table: &&Versions| fences.gaps.iter().any(|gap| gap.hides(&table.folder, lsn));
    for table in tables.iter().filter(|table| !hidden(table)) {
        if let Some(version) = shows(table, fences.generation, lsn) {
            cut.tables.insert(table.folder.clone(), version);
        }
    }
    if cut.tables.is_empty() {
        return Err(none(format!("at {lsn}")));
    }
    if let At::Version(folder, version) = at {
        cut.tables.insert(folder.clone(), *version);
    }
    Ok(cut)
}

/// The newest version that shows nothing beyond the position. A version of another program shows
/// the same rows as the one before it.
fn shows(table: &Versions, generation: u64, lsn: Lsn) -> Option<u64> {
    let (mut found, mut shown) = (None, false);
    for version in &table.versions {
        match (version.generation, version.applied) {
            (Some(g), Some(applied)) => shown = g == generation && applied <= lsn,
            _ if version.kind == VersionKind::Foreign => {}
            _ => shown = false,
        }
        if shown {
            found = Some(version.version);
        }
    }
    found
}

/// Positions that are known to be fences.
fn positions(tables: &[Versions], fences: &Fences) -> BTreeSet<Lsn> {
    let of_generation = tables
        .iter()
        .flat_map(|table| &table.versions)
        .filter(|version| version.generation == Some(fences.generation))
        .filter_map(|version| version.applied);
    let torn = |lsn: &Lsn| fences.torn.iter().any(|(after, until)| *after < *lsn && *lsn <= *until);
    let mut known: BTreeSet<Lsn> =
        of_generation.filter(|lsn| *lsn <= fences.last && !torn(lsn)).collect();
    known.insert(fences.last);
    known
}

/// Whether all that shows the position had been committed by then. What a compaction or a
/// takeover committed later shows it too, and does not count.
fn committed_by(tables: &[Versions], generation: u64, lsn: Lsn, time: DateTime<Utc>) -> bool {
    let mut there = false;
    let all = tables.iter().flat_map(|table| &table.versions).all(|version| {
        let other = version.generation != Some(generation)
            || version.applied != Some(lsn)
            || matches!(version.kind, VersionKind::Compaction | VersionKind::Takeover);
        let committed = version.committed_at.as_deref().and_then(|at| at.parse().ok());
        let before = committed.is_some_and(|at: DateTime<Utc>| at <= time);
        there |= !other;
        other || before
    });
    all && there
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64, applied: u64, kind: VersionKind, second: u32) -> VersionInfo {
        VersionInfo {
            version: number,
            kind,
            operation: String::new(),
            generation: (kind != VersionKind::Foreign).then_some(1),
            base: None,
            applied: (kind != VersionKind::Foreign).then(|| Lsn::new(applied)),
            source_time: None,
            committed_at: Some(format!("2025-01-01T00:00:{second:02}.000Z")),
            inserted: 0,
            deleted: 0,
        }
    }

    fn two() -> Vec<Versions> {
        use VersionKind::*;
        vec![
            Versions {
                folder: "a".into(),
                versions: vec![
                    version(0, 100, Handoff, 1),
                    version(1, 200, Changes, 3),
                    version(2, 200, Compaction, 9),
                    version(3, 400, Changes, 10),
                    version(4, 0, Foreign, 11),
                ],
            },
            Versions {
                folder: "b".into(),
                versions: vec![
                    version(0, 100, Handoff, 2),
                    version(1, 300, Changes, 5),
                    version(2, 400, Changes, 12),
                ],
            },
        ]
    }

    fn fences() -> Fences {
        Fences { last: Lsn::new(400), generation: 1, torn: Vec::new(), gaps: Vec::new() }
    }

    fn found(at: At) -> (u64, u64, u64) {
        let cut = cut(&two(), &fences(), &at).unwrap();
        (cut.lsn.bytes(), cut.tables["a"], cut.tables["b"])
    }

    #[test]
    fn every_table_shows_the_position() {
        assert_eq!(found(At::Newest), (400, 4, 2));
        assert_eq!(found(At::Lsn(Lsn::new(399))), (300, 2, 1));
        assert_eq!(found(At::Lsn(Lsn::new(299))), (200, 2, 0));
        assert_eq!(found(At::Lsn(Lsn::new(100))), (100, 0, 0));
        assert_eq!(found(At::Version("a".into(), 1)), (200, 1, 0));
        assert_eq!(found(At::Version("b".into(), 1)), (300, 2, 1));
        assert!(cut(&two(), &fences(), &At::Lsn(Lsn::new(99))).is_err());
        assert!(cut(&two(), &fences(), &At::Version("a".into(), 4)).is_err());
    }

    #[test]
    fn a_time_names_what_the_lake_showed_then() {
        let at =
            |second: u32| At::Time(format!("2025-01-01T00:00:{second:02}.500Z").parse().unwrap());
        assert_eq!(found(at(2)).0, 100);
        assert_eq!(found(at(4)).0, 200);
        // Table b of the fence at 400 came later.
        assert_eq!(found(at(10)).0, 300);
        assert_eq!(found(at(12)).0, 400);
        assert!(cut(&two(), &fences(), &at(1)).is_err());
    }

    #[test]
    fn a_position_that_only_some_tables_reached_is_no_cut() {
        let torn = Fences { torn: vec![(Lsn::new(200), Lsn::new(300))], ..fences() };
        let at = |lsn| cut(&two(), &torn, &At::Lsn(Lsn::new(lsn))).unwrap().lsn.bytes();
        assert_eq!((at(350), at(250), at(400)), (200, 200, 400));
        assert!(cut(&two(), &torn, &At::Version("b".into(), 1)).is_err());
        let behind = Fences { last: Lsn::new(350), ..fences() };
        assert_eq!(cut(&two(), &behind, &At::Newest).unwrap().tables["a"], 2);
    }

    #[test]
    fn a_table_that_was_not_followed_is_in_no_cut_of_that_time() {
        let gap = |until: Option<u64>| Gap {
            folder: "a".into(),
            after: Lsn::new(200),
            until: until.map(Lsn::new),
        };
        let tables = |lsn: u64, until: Option<u64>| {
            let fences = Fences { gaps: vec![gap(until)], ..fences() };
            let cut = cut(&two(), &fences, &At::Lsn(Lsn::new(lsn))).unwrap();
            cut.tables.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(tables(200, Some(400)), ["a", "b"]);
        assert_eq!(tables(300, Some(400)), ["b"]);
        assert_eq!(tables(400, Some(400)), ["a", "b"]);
        assert_eq!(tables(400, None), ["b"]);
    }

    #[test]
    fn another_generation_is_not_mixed_in() {
        let mut tables = two();
        for version in &mut tables[0].versions[..2] {
            version.generation = Some(0);
        }
        let cut = cut(&tables, &fences(), &At::Lsn(Lsn::new(250))).unwrap();
        assert_eq!(cut.tables.get("a"), Some(&2));
        let cut = super::cut(&tables, &fences(), &At::Lsn(Lsn::new(150))).unwrap();
        assert_eq!(cut.tables.get("a"), None);
    }
}
