//! A row as the message has it: checked once, then read without copying.

use super::cursor::{Cursor, Malformed};
use crate::error::{Error, Result};

/// A row's TupleData, whole and well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a> {
    pub(super) raw: &'a [u8],
    pub(super) columns: u16,
}

/// One column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datum<'a> {
    /// NULL.
    Null,
    /// A TOAST value that did not change and is not sent.
    Unchanged,
    /// As the type's output function prints it.
    Text(&'a [u8]),
    /// As the type's send function writes it.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// Reads a tuple that [`Tuple::raw`] gave.
    ///
    /// # Errors
    /// The bytes are not one whole TupleData.
    pub fn parse(raw: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(raw);
        match cursor.tuple() {
            Ok(tuple) if cursor.is_empty() => Ok(tuple),
            Ok(_) => Err(malformed("has bytes after its end")),
            Err(Malformed(what)) => Err(malformed(what)),
        }
    }

    /// The TupleData itself, to be kept and read again by [`Tuple::parse`].
    #[inline]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Number of columns.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// Whether there are no columns at all.
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The columns in order.
    #[inline]
    pub fn iter(&self) -> TupleIter<'a> {
        let mut cursor = Cursor::new(self.raw);
        let left = cursor.u16().unwrap_or(0);
        TupleIter { cursor, left }
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Result<Datum<'a>>;
    type IntoIter = TupleIter<'a>;

    fn into_iter(self) -> TupleIter<'a> {
        self.iter()
    }
}

/// The columns of a [`Tuple`]. No error can occur in a tuple that was decoded; the type says
/// `Result` so that no reader needs a panic.
pub struct TupleIter<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> TupleIter<'a> {
    #[inline]
    fn datum(&mut self) -> std::result::Result<Datum<'a>, Malformed> {
        Ok(match self.cursor.u8()? {
            b'n' => Datum::Null,
            b'u' => Datum::Unchanged,
            kind => {
                let length = self.cursor.u32()?;
                let bytes = self.cursor.bytes(length as usize)?;
                if kind == b't' { Datum::Text(bytes) } else { Datum::Binary(bytes) }
            }
        })
    }
}

impl<'a> Iterator for TupleIter<'a> {
    type Item = Result<Datum<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.datum().map_err(|Malformed(what)| malformed(what)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for TupleIter<'_> {}

#[cold]
fn malformed(what: &str) -> Error {
    Error::failed(format!("a row in pgoutput's format {what}"))
}
