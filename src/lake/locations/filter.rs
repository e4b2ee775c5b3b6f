//! Filters: tell, without reading a page, that a run does not hold a key.
//!
//! Most keys that are looked up stand in the oldest run alone; the newer ones would be searched in
//! vain. A filter takes ten bits a key in memory: one cache line a question, wrong yes in one of
//! about eighty, never a wrong no. (Split block Bloom filter, as in Parquet's BloomFilter.md, with
//! multipliers of our own.)

use xxhash_rust::xxh3::xxh3_64;

const BITS_PER_KEY: u64 = 10;
const BLOCK: usize = 32;
const ODD: [u32; 8] = [
    0x9E37_79B1,
    0x85EB_CA77,
    0xC2B2_AE3D,
    0x27D4_EB2F,
    0x1656_67B1,
    0xA2AA_033B,
    0x6298_9ED5,
    0xD35A_2D97,
];

/// The hash by which filters know a key.
#[inline]
pub(super) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// A set of keys that may say yes in vain.
#[derive(Debug)]
pub(super) struct Filter {
    blocks: Vec<[u32; 8]>,
}

impl Filter {
    /// The bytes a filter for `keys` keys takes.
    pub fn size(keys: u64) -> u64 {
        (keys * BITS_PER_KEY).div_ceil(8 * BLOCK as u64).max(1) * BLOCK as u64
    }

    /// An empty filter for `keys` keys.
    pub fn new(keys: u64) -> Filter {
        let blocks = (Filter::size(keys) / BLOCK as u64) as usize;
        Filter { blocks: vec![[0; 8]; blocks] }
    }

    #[inline]
    fn place(&self, hash: u64) -> usize {
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }

    /// Adds the key of this hash.
    #[inline]
    pub fn insert(&mut self, hash: u64) {
        let place = self.place(hash);
        if let Some(block) = self.blocks.get_mut(place) {
            for (word, odd) in block.iter_mut().zip(ODD) {
                *word |= 1 << ((hash as u32).wrapping_mul(odd) >> 27);
            }
        }
    }

    /// Whether the key of this hash may have been added.
    #[inline]
    pub fn may_hold(&self, hash: u64) -> bool {
        let Some(block) = self.blocks.get(self.place(hash)) else { return true };
        let mut missing = 0;
        for (word, odd) in block.iter().zip(ODD) {
            missing |= !word & 1 << ((hash as u32).wrapping_mul(odd) >> 27);
        }
        missing == 0
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.blocks.capacity() * BLOCK
    }

    /// The bytes that [`Filter::decode`] takes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for word in self.blocks.iter().flatten() {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads what [`Filter::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Filter> {
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        if blocks.is_empty() || !rest.is_empty() {
            return None;
        }
        let block = |bytes: &[u8; BLOCK]| {
            let mut block = [0; 8];
            for (word, bytes) in block.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            block
        };
        Some(Filter { blocks: blocks.iter().map(block).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_denied_and_few_are_affirmed_in_vain() {
        let mut filter = Filter::new(100_000);
        for i in 0..100_000u64 {
            filter.insert(hash(&i.to_be_bytes()));
        }
        let mut bytes = Vec::new();
        filter.encode(&mut bytes);
        assert_eq!(bytes.len() as u64, Filter::size(100_000));
        let filter = Filter::decode(&bytes).unwrap();
        assert!((0..100_000u64).all(|i| filter.may_hold(hash(&i.to_be_bytes()))));
        let vain = (100_000..200_000u64).filter(|i| filter.may_hold(hash(&i.to_be_bytes())));
        let vain = vain.count();
        assert!(vain < 3000, "{vain} of 100000");
    }
}
