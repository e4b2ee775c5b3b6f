//! Reads the primitives of a message, never past its end.

use super::Tuple;
use crate::position::Lsn;

/// What is wrong with a message; small, because every read can return it.
#[derive(Debug)]
pub(super) struct Malformed(pub &'static str);

const SHORT: Malformed = Malformed("ends too early");

/// What is left of a message.
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Cursor(data)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = tail;
        Ok(*head)
    }

    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = tail;
        Ok(head)
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    #[inline]
    pub fn lsn(&mut self) -> Result<Lsn, Malformed> {
        let bytes = self.array().map(u64::from_be_bytes)?;
        if bytes > Lsn::MAX.bytes() {
            return Err(Malformed("has an impossible LSN"));
        }
        Ok(Lsn::new(bytes))
    }

    /// A byte that must be `wanted`.
    #[inline]
    pub fn expect(&mut self, wanted: u8, otherwise: &'static str) -> Result<(), Malformed> {
        if self.u8()? == wanted { Ok(()) } else { Err(Malformed(otherwise)) }
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("has unknown flags")),
        }
    }

    /// Text that ends with a zero byte.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(SHORT)?;
        let text = self.bytes(end)?;
        self.u8()?;
        std::str::from_utf8(text).map_err(|_| Malformed("has a name that is not UTF-8"))
    }

    /// A schema; the server abbreviates `pg_catalog` to nothing.
    pub fn namespace(&mut self) -> Result<&'a str, Malformed> {
        Ok(match self.text()? {
            "" => "pg_catalog",
            name => name,
        })
    }

    /// A TupleData, every length checked.
    #[inline]
    pub fn tuple(&mut self) -> Result<Tuple<'a>, Malformed> {
        let whole = self.0;
        let columns = self.u16()?;
        for _ in 0..columns {
            match self.u8()? {
                b't' | b'b' => {
                    let length = self.u32()?;
                    self.bytes(length as usize)?;
                }
                b'n' | b'u' => {}
                _ => return Err(Malformed("has a column of an unknown kind")),
            }
        }
        let raw = whole.get(..whole.len() - self.0.len()).ok_or(SHORT)?;
        Ok(Tuple { raw, columns })
    }
}
