//! Deletion vectors: which rows of a data file are masked, as Delta stores them.
//!
//! Several vectors of one commit lie packed in one file `<table>/_dv/deletion_vector_<uuid>.bin`
//! (storage type `u` with the prefix `_dv`): foreign vacuums leave that folder alone. They are
//! never stored inline, which Spark's VACUUM can't read. Layout: one version byte, then for each
//! vector its size (big-endian), the magic number and a 64-bit portable roaring bitmap, and a
//! CRC-32 (big-endian) of the two. Source: Delta protocol, "Deletion Vector Format".

use std::fmt::Write as _;

use roaring::{RoaringBitmap, RoaringTreemap};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};

/// Folder prefix of our vectors, below the table.
pub const FOLDER: &str = "_dv";

const MAGIC: u32 = 1_681_511_377;
const VERSION: u8 = 1;

/// Where a vector lies, as it stands in `add` and `remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// `u`: a file relative to the table, named by a uuid; `p`: a path; `i`: inline.
    pub storage_type: String,
    /// Prefix and uuid (z85), a path, or the data itself.
    pub path_or_inline_dv: String,
    /// Where the vector starts in the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offset: Option<i32>,
    /// Bytes of magic number and bitmap.
    pub size_in_bytes: i32,
    /// Number of masked rows.
    pub cardinality: i64,
}

impl Descriptor {
    /// The file's path below the table, for a vector of storage type `u`.
    ///
    /// # Errors
    /// The vector is of another storage type, which Tidegate never writes, or is malformed.
    pub fn path(&self) -> Result<String> {
        let encoded = &self.path_or_inline_dv;
        let split = encoded.len().checked_sub(20).filter(|at| encoded.is_char_boundary(*at));
        let (Some(split), "u") = (split, self.storage_type.as_str()) else {
            return Err(Error::failed(format!(
                "a deletion vector of storage type {:?} ({encoded:?}) can't be followed",
                self.storage_type
            ))
            .next("run REORG TABLE … APPLY (PURGE) on the table, or re-seed it"));
        };
        let (prefix, id) = encoded.split_at(split);
        let uuid = z85_decode_uuid(id).ok_or_else(|| {
            Error::failed(format!("the deletion vector name {encoded:?} is no z85 of a uuid"))
        })?;
        let name = format!("deletion_vector_{uuid}.bin");
        Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
    }

    /// What identifies a vector of a file: a file with another vector is another logical file.
    pub fn unique_id(&self) -> String {
        let mut id = format!("{}{}", self.storage_type, self.path_or_inline_dv);
        if let Some(offset) = self.offset {
            let _ = write!(id, "@{offset}");
        }
        id
    }
}

/// Packs the vectors of one commit into one file.
#[derive(Debug)]
pub struct Packer {
    uuid: Uuid,
    bytes: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Self {
        Self::new(Uuid::new_v4())
    }
}

impl Packer {
    /// An empty pack that will be named by `uuid`.
    pub fn new(uuid: Uuid) -> Self {
        Packer { uuid, bytes: vec![VERSION] }
    }

    /// Adds a vector.
    ///
    /// # Errors
    /// The pack would exceed 2 GiB, the limit of Delta's offsets.
    pub fn add(&mut self, mask: &RoaringBitmap) -> Result<Descriptor> {
        let offset = self.bytes.len();
        let size = 4 + treemap_size(mask);
        let too_large = || {
            Error::failed("the deletion vectors of one commit exceed 2 GiB")
                .next("compact the table")
        };
        let descriptor = Descriptor {
            storage_type: "u".into(),
            path_or_inline_dv: format!("{FOLDER}{}", z85_encode(self.uuid.as_bytes())),
            offset: Some(i32::try_from(offset).map_err(|_| too_large())?),
            size_in_bytes: i32::try_from(size).map_err(|_| too_large())?,
            cardinality: mask.len() as i64,
        };
        self.bytes.reserve(size + 8);
        self.bytes.extend_from_slice(&(size as u32).to_be_bytes());
        let data = self.bytes.len();
        write_data(mask, &mut self.bytes)?;
        let crc = crc32(self.bytes.get(data..).unwrap_or_default());
        self.bytes.extend_from_slice(&crc.to_be_bytes());
        Ok(descriptor)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= 1
    }

    /// The file's path below the table and its bytes.
    pub fn finish(self) -> (String, Vec<u8>) {
        (format!("{FOLDER}/deletion_vector_{}.bin", self.uuid), self.bytes)
    }
}

fn treemap_size(mask: &RoaringBitmap) -> usize {
    if mask.is_empty() { 8 } else { 8 + 4 + mask.serialized_size() }
}

/// A 32-bit bitmap written as a 64-bit one, without a copy: the high key is always 0.
fn write_data(mask: &RoaringBitmap, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&u64::from(!mask.is_empty()).to_le_bytes());
    if !mask.is_empty() {
        out.extend_from_slice(&0u32.to_le_bytes());
        mask.serialize_into(out)
            .map_err(|e| Error::failed("a deletion vector can't be written").because(e))?;
    }
    Ok(())
}

/// Reads one vector from its file.
///
/// # Errors
/// Size, checksum, magic number or cardinality are not as the descriptor says.
pub fn unpack(file: &[u8], at: &Descriptor) -> Result<RoaringBitmap> {
    let wrong = |what: &str| {
        Error::failed(format!("the deletion vector {} {what}", at.unique_id()))
            .next("the file was damaged or replaced; restore it or re-seed the table")
    };
    let offset =
        usize::try_from(at.offset.unwrap_or(1)).map_err(|_| wrong("has a negative offset"))?;
    let size = usize::try_from(at.size_in_bytes).map_err(|_| wrong("has a negative size"))?;
    let part = |from: usize, len: usize| {
        file.get(from..from.saturating_add(len)).ok_or_else(|| wrong("is cut short"))
    };
    let number = |from: usize| -> Result<u32> {
        let bytes: [u8; 4] = part(from, 4)?.try_into().map_err(|_| wrong("is cut short"))?;
        Ok(u32::from_be_bytes(bytes))
    };
    if number(offset)? as usize != size {
        return Err(wrong("is not of the size its file says"));
    }
    let data = part(offset + 4, size)?;
    if number(offset + 4 + size)? != crc32(data) {
        return Err(wrong("fails its checksum"));
    }
    let Some((magic, bitmap)) = data.split_first_chunk::<4>() else {
        return Err(wrong("is empty"));
    };
    if u32::from_le_bytes(*magic) != MAGIC {
        return Err(wrong("is in an unknown format"));
    }
    let map =
        RoaringTreemap::deserialize_from(bitmap).map_err(|e| wrong("is damaged").because(e))?;
    let mut mask = RoaringBitmap::new();
    for (high, low) in map.bitmaps() {
        if high != 0 {
            return Err(wrong("masks rows beyond the 32 bits of a row number"));
        }
        mask = low.clone();
    }
    if i64::try_from(mask.len()) != Ok(at.cardinality) {
        return Err(wrong("does not mask as many rows as the log says"));
    }
    Ok(mask)
}

const Z85: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

fn z85_encode(bytes: &[u8; 16]) -> String {
    let mut out = String::with_capacity(20);
    for chunk in bytes.chunks_exact(4) {
        let value = chunk.iter().fold(0u32, |v, b| v << 8 | u32::from(*b));
        for power in [85u32.pow(4), 85u32.pow(3), 85 * 85, 85, 1] {
            out.push(char::from(Z85[(value / power % 85) as usize]));
        }
    }
    out
}

fn z85_decode_uuid(text: &str) -> Option<Uuid> {
    let mut bytes = Vec::with_capacity(16);
    for chunk in text.as_bytes().chunks(5) {
        let mut value = 0u64;
        for symbol in chunk {
            value = value * 85 + Z85.iter().position(|s| s == symbol)? as u64;
        }
        bytes.extend_from_slice(&u32::try_from(value).ok()?.to_be_bytes());
    }
    Uuid::from_slice(&bytes).ok()
}

/// CRC-32 (IEEE, as zlib), eight bytes at a time: vectors can be megabytes.
fn crc32(data: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = tables();
    let mut crc = !0u32;
    let mut chunks = data.chunks_exact(8);
    for chunk in &mut chunks {
        let mut next = 0;
        for (i, byte) in chunk.iter().enumerate() {
            let mixed = if i < 4 { *byte ^ (crc >> (8 * i)) as u8 } else { *byte };
            next ^= TABLES[7 - i][mixed as usize];
        }
        crc = next;
    }
    for byte in chunks.remainder() {
        crc = crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize];
    }
    return !crc;

    const fn tables() -> [[u32; 256]; 8] {
        let mut tables = [[0u32; 256]; 8];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
                bit += 1;
            }
            tables[0][i] = crc;
            i += 1;
        }
        let mut t = 1;
        while t < 8 {
            let mut i = 0;
            while i < 256 {
                let crc = tables[t - 1][i];
                tables[t][i] = crc >> 8 ^ tables[0][(crc & 0xFF) as usize];
                i += 1;
            }
            t += 1;
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checksum_and_names_are_the_standard_ones() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
        // Example of the Delta protocol, "Deletion Vectors".
        let uuid = Uuid::parse_str("d2c639aa-8816-431a-aaf6-d3fe2512ff61").unwrap();
        assert_eq!(z85_encode(uuid.as_bytes()), "^-aqEH.-t@S}K{vb[*k^");
        let at = Descriptor {
            storage_type: "u".into(),
            path_or_inline_dv: "ab^-aqEH.-t@S}K{vb[*k^".into(),
            offset: Some(4),
            size_in_bytes: 40,
            cardinality: 6,
        };
        assert_eq!(
            at.path().unwrap(),
            "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
        );
    }

    #[test]
    fn a_file_written_by_the_protocols_example_bytes_is_read() {
        // The bitmap of rows 0 and 9 in the 64-bit portable format.
        let mut mask = RoaringBitmap::new();
        mask.extend([0, 9]);
        let mut treemap = Vec::new();
        RoaringTreemap::from_iter([0u64, 9]).serialize_into(&mut treemap).unwrap();
        let mut ours = Vec::new();
        write_data(&mask, &mut ours).unwrap();
        assert_eq!(&ours[4..], &treemap[..]);
        assert_eq!(&ours[..4], &[0xD1, 0xD3, 0x39, 0x64]);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let mut pack = Packer::default();
        let mask: RoaringBitmap = (3..200).step_by(3).collect();
        let at = pack.add(&mask).unwrap();
        let (_, bytes) = pack.finish();
        assert_eq!(unpack(&bytes, &at).unwrap(), mask);
        for i in 1..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 4;
            assert!(unpack(&damaged, &at).is_err(), "byte {i}");
        }
        assert!(unpack(&bytes[..bytes.len() - 1], &at).is_err());
    }

    proptest! {
        #[test]
        fn packed_vectors_come_back(
            masks in prop::collection::vec(prop::collection::vec(0u32..300_000, 0..400), 1..6),
            range in 0u32..200_000,
        ) {
            let mut masks: Vec<RoaringBitmap> = masks.into_iter().map(RoaringBitmap::from_iter).collect();
            masks.push((0..range).collect());
            let mut pack = Packer::default();
            let at: Vec<Descriptor> = masks.iter().map(|m| pack.add(m).unwrap()).collect();
            let (path, bytes) = pack.finish();
            for (mask, at) in masks.iter().zip(&at) {
                prop_assert_eq!(&at.path().unwrap(), &path);
                prop_assert_eq!(&unpack(&bytes, at).unwrap(), mask);
            }
        }
    }
}
