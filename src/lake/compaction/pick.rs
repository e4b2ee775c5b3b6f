//! Which files are worth to be written again. Pure: from sizes and masks alone.
//!
//! Two reasons, and a bound on what each costs:
//!
//! - A file has more masked rows than the bound allows. With a bound of `s`, a row is written again
//!   at most `(1 - s) / s` times for each row that was masked: twice for a third.
//! - There are [`Bounds::fanout`] files of about the same size (a tier: sizes within a factor of
//!   `fanout`). Merged they belong to the next tier, so a row is written again once for each tier
//!   up to the target size, and fewer than `fanout` files stay in each.
//!
//! A file of at least half the target size with few masked rows is left alone for good.

use crate::lake::FileNo;

/// A live file, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub number: FileNo,
    /// Bytes of it.
    pub bytes: u64,
    /// Rows in it, masked ones too.
    pub rows: u64,
    /// Masked rows.
    pub masked: u64,
    /// Whether another program wrote it; such a file is left to that program unless many of its
    /// rows are masked.
    pub foreign: bool,
}

impl Candidate {
    /// Bytes of its live rows, by their share.
    pub fn live_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.masked_bytes())
    }

    /// Bytes of its masked rows, by their share.
    pub fn masked_bytes(&self) -> u64 {
        let share = u128::from(self.bytes) * u128::from(self.masked) / u128::from(self.rows.max(1));
        u64::try_from(share).unwrap_or(self.bytes).min(self.bytes)
    }
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a data file that is large enough.
    pub target_bytes: u64,
    /// Masked rows of a file, in percent, above which it is written again.
    pub masked_percent: u8,
    /// Files of a tier that are merged.
    pub fanout: usize,
}

impl Bounds {
    /// Masked bytes that are worth a commit of their own.
    fn least_gain(&self) -> u64 {
        self.target_bytes / 512
    }

    fn too_masked(&self, file: &Candidate) -> bool {
        u128::from(file.masked) * 100 > u128::from(file.rows) * u128::from(self.masked_percent)
    }

    /// The tier of a file with so many live bytes, from 0.
    fn tier(&self, live_bytes: u64) -> u32 {
        let base = u64::try_from(self.fanout.max(2)).unwrap_or(2);
        (live_bytes / (16 << 10)).max(1).ilog(base)
    }
}

/// Rows that one file can have: their numbers are 32 bits wide, with room to spare.
const MOST_ROWS: u64 = 1 << 31;

/// The files that should become one, in the order of their numbers; none: all is well.
pub fn pick(files: &[Candidate], bounds: &Bounds) -> Option<Vec<FileNo>> {
    masked(files, bounds).or_else(|| small(files, bounds)).map(|mut picked| {
        picked.sort_unstable();
        picked
    })
}

/// Files with too many masked rows, as many as make one file of the target size.
fn masked(files: &[Candidate], bounds: &Bounds) -> Option<Vec<FileNo>> {
    let mut due: Vec<&Candidate> = files.iter().filter(|file| bounds.too_masked(file)).collect();
    due.sort_by_key(|file| (std::cmp::Reverse(file.masked_bytes()), file.number));
    let picked = up_to_target(due, bounds);
    let gain: u64 = picked.iter().map(|file| file.masked_bytes()).sum();
    (gain > 0 && gain >= bounds.least_gain()).then(|| numbers(&picked))
}

/// A full tier, with all that is smaller: those bytes are few.
fn small(files: &[Candidate], bounds: &Bounds) -> Option<Vec<FileNo>> {
    let is_small = |file: &&Candidate| {
        !file.foreign && file.live_bytes() < bounds.target_bytes / 2 && file.rows < MOST_ROWS
    };
    let mut small: Vec<&Candidate> = files.iter().filter(is_small).collect();
    small.sort_by_key(|file| (file.live_bytes(), file.number));
    let tiers = small.chunk_by(|a, b| bounds.tier(a.live_bytes()) == bounds.tier(b.live_bytes()));
    let mut end = 0;
    for tier in tiers {
        end += tier.len();
        if tier.len() >= bounds.fanout.max(2) {
            let picked = up_to_target(small.iter().take(end).copied().collect(), bounds);
            return (picked.len() >= 2).then(|| numbers(&picked));
        }
    }
    None
}

/// The first of `files` that together have at most the target's live bytes; one at least.
fn up_to_target<'a>(files: Vec<&'a Candidate>, bounds: &Bounds) -> Vec<&'a Candidate> {
    let (mut bytes, mut rows) = (0u64, 0u64);
    let mut picked = Vec::new();
    for file in files {
        bytes = bytes.saturating_add(file.live_bytes());
        rows = rows.saturating_add(file.rows);
        if !picked.is_empty() && (bytes > bounds.target_bytes || rows > MOST_ROWS) {
            break;
        }
        picked.push(file);
    }
    picked
}

fn numbers(files: &[&Candidate]) -> Vec<FileNo> {
    files.iter().map(|file| file.number).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { target_bytes: 128 << 20, masked_percent: 30, fanout: 8 };

    fn file(number: u32, bytes: u64, rows: u64, masked: u64) -> Candidate {
        Candidate { number, bytes, rows, masked, foreign: false }
    }

    #[test]
    fn big_clean_files_are_left_alone() {
        let files: Vec<_> = (0..50).map(|n| file(n, 100 << 20, 1_000_000, 290_000)).collect();
        assert_eq!(pick(&files, &BOUNDS), None);
        let files: Vec<_> = (0..7).map(|n| file(n, 1 << 20, 10_000, 0)).collect();
        assert_eq!(pick(&files, &BOUNDS), None);
    }

    #[test]
    fn a_file_above_the_masked_share_is_rewritten_and_its_neighbours_are_not() {
        let mut files: Vec<_> = (0..5).map(|n| file(n, 100 << 20, 1_000_000, 0)).collect();
        files[3].masked = 310_000;
        assert_eq!(pick(&files, &BOUNDS), Some(vec![3]));
        // Also another program's, which is otherwise left to that program.
        files[3].foreign = true;
        assert_eq!(pick(&files, &BOUNDS), Some(vec![3]));
    }

    #[test]
    fn masked_rows_of_a_few_bytes_are_worth_no_commit() {
        assert_eq!(pick(&[file(0, 10_000, 100, 60)], &BOUNDS), None);
    }

    #[test]
    fn small_files_of_another_program_are_left_to_it() {
        let files: Vec<_> =
            (0..20).map(|n| Candidate { foreign: true, ..file(n, 1 << 20, 100, 0) }).collect();
        assert_eq!(pick(&files, &BOUNDS), None);
    }

    #[test]
    fn a_full_tier_takes_the_smaller_ones_along() {
        let mut files = vec![file(0, 100 << 20, 1_000_000, 0), file(1, 1 << 10, 10, 0)];
        files.extend((2..10).map(|n| file(n, 300 << 10, 1_000, 0)));
        assert_eq!(pick(&files, &BOUNDS), Some((1..10).collect()));
    }

    /// A commit every interval, each a file; what is picked is merged at once.
    fn live(commits: u32, bytes: u64, bounds: &Bounds) -> (usize, u64) {
        let mut files: Vec<Candidate> = Vec::new();
        let (mut most, mut written) = (0, 0);
        let mut numbers = 0..;
        let mut next = || numbers.next().unwrap();
        for _ in 0..commits {
            files.push(file(next(), bytes, 100, 0));
            while let Some(picked) = pick(&files, bounds) {
                let (old, kept): (Vec<_>, Vec<_>) =
                    files.into_iter().partition(|f| picked.contains(&f.number));
                let total: u64 = old.iter().map(|f| f.bytes).sum();
                files = kept;
                files.push(file(next(), total, total / bytes * 100, 0));
                written += total;
            }
            most = most.max(files.len());
        }
        assert_eq!(files.iter().map(|f| f.bytes).sum::<u64>(), u64::from(commits) * bytes);
        (most, written)
    }

    #[test]
    fn an_hours_commits_leave_few_files_and_are_written_again_few_times() {
        let (most, written) = live(3600, 300 << 10, &BOUNDS);
        // Three tiers of at most seven, and large ones of at least half the target.
        let large = (3600 * (300 << 10) / (64 << 20)) as usize;
        assert!(most <= 4 * 8 + large, "{most} files");
        assert!(written <= 3 * 3600 * (300 << 10), "{}", written / (3600 * (300 << 10)));
    }

    proptest! {
        #[test]
        fn what_is_picked_is_live_sorted_and_bounded_and_picking_ends(
            sizes in prop::collection::vec((0u64..300 << 20, 1u64..2_000_000, 0u64..100), 0..60),
            fanout in 2usize..12,
        ) {
            let bounds = Bounds { fanout, ..BOUNDS };
            let mut files: Vec<Candidate> = sizes.iter().zip(0..)
                .map(|((bytes, rows, percent), n)| file(n, *bytes, *rows, rows * percent / 100))
                .collect();
            for next in files.len() as u32.. {
                prop_assert!(next < 300, "picking does not end");
                let Some(picked) = pick(&files, &bounds) else { break };
                prop_assert!(picked.is_sorted() && !picked.is_empty());
                let (old, kept): (Vec<_>, Vec<_>) =
                    files.iter().partition(|f| picked.contains(&f.number));
                prop_assert_eq!(old.len(), picked.len());
                let bytes: u64 = old.iter().map(Candidate::live_bytes).sum();
                let largest = old.iter().map(Candidate::live_bytes).max().unwrap_or(0);
                prop_assert!(bytes <= bounds.target_bytes.max(largest));
                let rows = old.iter().map(|f| f.rows - f.masked).sum();
                files = kept;
                if rows > 0 {
                    files.push(file(next, bytes, rows, 0));
                }
            }
            for tier in 0..8 {
                let of_tier = files.iter().filter(|f| {
                    f.live_bytes() < bounds.target_bytes / 2 && bounds.tier(f.live_bytes()) == tier
                });
                // A merge may be cut at the target's size; then what is left is another round's.
                prop_assert!(of_tier.count() < fanout);
            }
        }
    }
}
