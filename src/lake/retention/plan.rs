//! Which versions are kept. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use super::folder::LogFolder;
use crate::lake::VersionKind;

/// What is to be kept of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How long a version stays after a newer one has replaced it.
    pub retain: Duration,
    /// The newest handoff versions that stay whatever their age.
    pub keep_handoffs: usize,
    /// Versions that stay for ever.
    pub pinned: BTreeSet<u64>,
}

/// What is kept of one table, and what goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The oldest version of the unbroken row that ends at the newest one.
    pub oldest: u64,
    /// Older versions that are kept, each by itself.
    pub alone: BTreeSet<u64>,
    /// Versions that go.
    pub expired: BTreeSet<u64>,
}

impl Kept {
    /// What is kept, where everything from `oldest` on is, and of the versions before it what
    /// `kind_of` tells is a handoff.
    pub fn new(
        folder: &LogFolder,
        oldest: u64,
        policy: &Policy,
        kind_of: impl Fn(u64) -> Option<VersionKind>,
    ) -> Kept {
        let mut kept = Kept { oldest, ..Kept::default() };
        let mut handoffs = 0;
        for version in folder.commits.range(..oldest).rev() {
            let handoff =
                handoffs < policy.keep_handoffs && kind_of(*version) == Some(VersionKind::Handoff);
            handoffs += usize::from(handoff);
            if handoff || policy.pinned.contains(version) {
                kept.alone.insert(*version);
            } else {
                kept.expired.insert(*version);
            }
        }
        kept
    }
}

/// Seeks the oldest version that was still the newest one at a moment, in an unbroken row of
/// versions whose times never fall.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Came before the moment, or is the first one.
    low: u64,
    high: u64,
}

impl Search {
    /// From `first` to `newest`, not above `floor`.
    pub fn new(first: u64, newest: u64, floor: u64) -> Search {
        Search { low: first, high: newest.min(floor).max(first) }
    }

    /// A version whose time must be known; none when it is found.
    pub fn asks(&self) -> Option<u64> {
        (self.low < self.high).then(|| self.low + (self.high - self.low).div_ceil(2))
    }

    /// The answer: whether the version came before the moment, or at it.
    pub fn tell(&mut self, version: u64, before: bool) {
        if before {
            self.low = version;
        } else {
            self.high = version.saturating_sub(1).max(self.low);
        }
    }

    /// What was sought, once nothing is asked any more.
    pub fn found(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(commits: impl IntoIterator<Item = u64>) -> LogFolder {
        LogFolder { commits: commits.into_iter().collect(), ..LogFolder::default() }
    }

    #[test]
    fn pins_and_the_newest_handoffs_stay_and_the_rest_goes() {
        let folder = folder((0..20).chain(30..40));
        let policy =
            Policy { keep_handoffs: 2, pinned: BTreeSet::from([4, 35]), ..Policy::default() };
        let handoffs = [0, 3, 9, 34];
        let kind = |v: u64| {
            Some(if handoffs.contains(&v) { VersionKind::Handoff } else { VersionKind::Changes })
        };
        let kept = Kept::new(&folder, 33, &policy, kind);
        assert_eq!(kept.alone, BTreeSet::from([3, 4, 9]));
        assert_eq!(kept.expired.len(), 20 - 3 + 3);
        // A handoff within the retention stays by its age, and does not push out an older one.
        assert!(!kept.expired.contains(&34));
        let none = Policy { keep_handoffs: 0, ..policy };
        assert_eq!(Kept::new(&folder, 33, &none, kind).alone, BTreeSet::from([4]));
    }

    #[test]
    fn the_version_that_was_shown_at_the_cutoff_stays() {
        let time = |version: u64| version * 10 + 7;
        for first in [0u64, 5] {
            for newest in first..first + 12 {
                for cutoff in 0..200 {
                    for floor in [newest, newest.saturating_sub(3)] {
                        let mut search = Search::new(first, newest, floor);
                        while let Some(version) = search.asks() {
                            search.tell(version, time(version) <= cutoff);
                        }
                        let shown = (first..=newest).filter(|v| time(*v) <= cutoff).max();
                        let expected = shown.unwrap_or(first).min(floor).max(first);
                        assert_eq!(search.found(), expected);
                    }
                }
            }
        }
    }
}
