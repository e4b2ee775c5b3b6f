//! Reads network-order values from a field, never past its end.

/// The bytes are not a value of the type; says why in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

pub(super) type Decode<T> = Result<T, Malformed>;

const SHORT: Malformed = Malformed("the value ends too early");

/// What is left of a field.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor(bytes)
    }

    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn take(&mut self, count: usize) -> Decode<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = tail;
        Ok(head)
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Decode<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = tail;
        Ok(*head)
    }

    #[inline]
    pub fn i16(&mut self) -> Decode<i16> {
        Ok(i16::from_be_bytes(self.chunk()?))
    }

    #[inline]
    pub fn u16(&mut self) -> Decode<u16> {
        Ok(u16::from_be_bytes(self.chunk()?))
    }

    #[inline]
    pub fn i32(&mut self) -> Decode<i32> {
        Ok(i32::from_be_bytes(self.chunk()?))
    }

    #[inline]
    pub fn u32(&mut self) -> Decode<u32> {
        Ok(u32::from_be_bytes(self.chunk()?))
    }

    #[inline]
    pub fn i64(&mut self) -> Decode<i64> {
        Ok(i64::from_be_bytes(self.chunk()?))
    }

    /// A length word and that many bytes; -1 is NULL.
    #[inline]
    pub fn field(&mut self) -> Decode<Option<&'a [u8]>> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length =
                    usize::try_from(length).map_err(|_| Malformed("a length is negative"))?;
                self.take(length).map(Some)
            }
        }
    }

    pub fn end(self) -> Decode<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed("bytes are left over after the value"))
        }
    }
}

/// The whole field as exactly `N` bytes.
#[inline]
pub(super) fn exactly<const N: usize>(bytes: &[u8]) -> Decode<[u8; N]> {
    bytes.try_into().map_err(|_| Malformed("the value has the wrong length"))
}
