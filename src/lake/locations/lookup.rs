//! Looking keys up: a sorted batch goes through the runs from the newest to the oldest.

use super::filter::hash;
use super::index::out_of_order;
use super::run::Scratch;
use super::{Location, Locations};
use crate::error::Result;

impl Locations {
    /// Puts the newest location of `keys[i]`, staged ones among them, into `out[i]`. The keys
    /// ascend and each stands once. Whether the row is still live the caller knows.
    ///
    /// # Errors
    /// The keys do not ascend; the index is damaged (transient: drop it and create it again).
    pub fn get_batch(&self, keys: &[&[u8]], out: &mut Vec<Option<Location>>) -> Result<()> {
        self.folder.check()?;
        check_ascending(keys)?;
        out.clear();
        out.resize(keys.len(), None);
        let runs = || self.runs.iter().chain(&self.staged).rev();
        let mut hashes: Vec<u64> = Vec::new();
        if runs().any(|run| run.filter.is_some()) {
            hashes.extend(keys.iter().map(|key| hash(key)));
        }
        let mut scratch = Scratch::default();
        let mut wanted: Vec<u32> = (0..keys.len() as u32).collect();
        let mut likely: Vec<u32> = Vec::new();
        for run in runs() {
            let mut found = 0;
            let tell = |w: u32, location| {
                if let Some(out) = out.get_mut(w as usize) {
                    *out = Some(location);
                    found += 1;
                }
            };
            if let Some(filter) = &run.filter {
                let may = |w: &&u32| hashes.get(**w as usize).is_none_or(|&h| filter.may_hold(h));
                likely.clear();
                likely.extend(wanted.iter().filter(may));
                run.find_sorted(keys, &likely, &mut scratch, tell)?;
            } else {
                run.find_sorted(keys, &wanted, &mut scratch, tell)?;
            }
            if found > 0 {
                wanted.retain(|&w| out.get(w as usize).is_some_and(Option::is_none));
            }
            if wanted.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Puts every location that stands with `key`, live or not, into `out`, in order (multi mode).
    ///
    /// # Errors
    /// The index is damaged (transient: drop it and create it again).
    pub fn get_all(&self, key: &[u8], out: &mut Vec<Location>) -> Result<()> {
        let mut all = Vec::new();
        self.get_all_batch(&[key], |_| true, &mut all)?;
        out.clear();
        out.extend(all.into_iter().map(|(_, location)| location));
        Ok(())
    }

    /// Puts `(i, location)` for every location with `keys[i]` that `is_live` grants into `out`, in
    /// order (multi mode). The keys ascend and each stands once.
    ///
    /// # Errors
    /// As [`Locations::get_batch`].
    pub fn get_all_batch(
        &self,
        keys: &[&[u8]],
        is_live: impl Fn(Location) -> bool,
        out: &mut Vec<(u32, Location)>,
    ) -> Result<()> {
        self.folder.check()?;
        check_ascending(keys)?;
        out.clear();
        let mut buffer = Vec::new();
        let mut runs = 0;
        for run in self.runs.iter().chain(&self.staged) {
            let (before, mut group) = (out.len(), 0);
            for (i, key) in keys.iter().enumerate() {
                if run.filter.as_ref().is_some_and(|filter| !filter.may_hold(hash(key))) {
                    continue;
                }
                run.find_all(key, &mut group, &mut buffer, |location| {
                    if is_live(location) {
                        out.push((i as u32, location));
                    }
                })?;
            }
            runs += usize::from(out.len() > before);
        }
        if runs > 1 {
            out.sort_unstable();
            // A version staged again after a restart is there twice.
            out.dedup();
        }
        Ok(())
    }
}

fn check_ascending(keys: &[&[u8]]) -> Result<()> {
    if keys.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(out_of_order()) }
}
