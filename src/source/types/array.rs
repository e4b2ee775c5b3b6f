//! Arrays: the send form, and the text of `array_out`.
//!
//! Send form (src/backend/utils/adt/arrayfuncs.c, `array_send`): `ndim i32, flags i32, elemtype u32`,
//! for each dimension `size i32, lower bound i32`, then each element as a length and bytes.

use super::cursor::{Cursor, Decode, Malformed};
use super::kind::Element;
use super::wire_text;

/// PostgreSQL's own limit (MAXDIM).
const MOST_DIMENSIONS: usize = 6;

/// The head of an array in its send form; the cursor stands at the first element.
pub(super) struct Sent<'a> {
    dimensions: [(usize, i32); MOST_DIMENSIONS],
    count: usize,
    pub elements: Cursor<'a>,
}

impl<'a> Sent<'a> {
    pub fn parse(bytes: &'a [u8]) -> Decode<Self> {
        let mut elements = Cursor::new(bytes);
        let count = elements.i32()?;
        let flags = elements.i32()?;
        let _element_type = elements.u32()?;
        let count = usize::try_from(count).ok().filter(|n| *n <= MOST_DIMENSIONS);
        let count = count.ok_or(Malformed("the number of dimensions is out of range"))?;
        if !(0..=1).contains(&flags) {
            return Err(Malformed("the array flags are unknown"));
        }
        let mut dimensions = [(0, 1); MOST_DIMENSIONS];
        for dimension in dimensions.iter_mut().take(count) {
            let size = usize::try_from(elements.i32()?).ok().filter(|n| *n > 0);
            *dimension = (size.ok_or(Malformed("a dimension has no size"))?, elements.i32()?);
        }
        let sent = Sent { dimensions, count, elements };
        // Each element has at least a length word.
        match sent.total() {
            Some(total) if total <= sent.elements.left() / 4 => Ok(sent),
            _ => Err(Malformed("there are fewer elements than the dimensions say")),
        }
    }

    fn dimensions(&self) -> &[(usize, i32)] {
        self.dimensions.get(..self.count).unwrap_or_default()
    }

    fn total(&self) -> Option<usize> {
        if self.count == 0 {
            return Some(0);
        }
        self.dimensions().iter().try_fold(1_usize, |total, (size, _)| total.checked_mul(*size))
    }

    /// The number of elements where a list holds the array's shape: one dimension from 1, or empty.
    pub fn list_length(&self) -> Option<usize> {
        match self.dimensions() {
            [] => Some(0),
            [(size, 1)] => Some(*size),
            _ => None,
        }
    }
}

/// Appends the text of an array in its send form, as `array_out` prints it.
pub(super) fn write_text(element: &Element, bytes: &[u8], out: &mut Vec<u8>) -> Decode<()> {
    let sent = Sent::parse(bytes)?;
    let dimensions = sent.dimensions();
    if dimensions.iter().any(|(_, lower)| *lower != 1) {
        for (size, lower) in dimensions {
            let upper = i64::from(*lower) + *size as i64 - 1;
            out.extend_from_slice(format!("[{lower}:{upper}]").as_bytes());
        }
        out.push(b'=');
    }
    let mut elements = sent.elements;
    match dimensions {
        [] => out.extend_from_slice(b"{}"),
        dimensions => write_dimension(element, dimensions, &mut elements, &mut Vec::new(), out)?,
    }
    elements.end()
}

fn write_dimension(
    element: &Element,
    dimensions: &[(usize, i32)],
    elements: &mut Cursor<'_>,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Decode<()> {
    let Some(((size, _), inner)) = dimensions.split_first() else { return Ok(()) };
    out.push(b'{');
    for index in 0..*size {
        if index > 0 {
            out.push(element.delimiter);
        }
        if !inner.is_empty() {
            write_dimension(element, inner, elements, scratch, out)?;
            continue;
        }
        match elements.field()? {
            None => out.extend_from_slice(b"NULL"),
            Some(value) => {
                scratch.clear();
                wire_text::write(&element.kind, value, scratch)?;
                push_quoted(scratch, element.delimiter, out);
            }
        }
    }
    out.push(b'}');
    Ok(())
}

/// Quotes an element where `array_out` does.
fn push_quoted(text: &[u8], delimiter: u8, out: &mut Vec<u8>) {
    let special =
        |b: &u8| matches!(b, b'"' | b'\\' | b'{' | b'}' | b' ' | b'\t'..=b'\r') || *b == delimiter;
    if !text.is_empty() && !text.eq_ignore_ascii_case(b"NULL") && !text.iter().any(special) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// The elements of an array's text.
pub(super) struct Texts<'a> {
    left: &'a [u8],
    delimiter: u8,
    first: bool,
}

/// An element's text: as it stands, or unescaped into the scratch buffer.
pub(super) enum Text<'a> {
    Null,
    Plain(&'a [u8]),
    Unescaped,
}

impl<'a> Texts<'a> {
    /// None where a list can't hold the array's shape. An element that opens a brace is another dimension.
    pub fn parse(text: &'a [u8], delimiter: u8) -> Decode<Option<Self>> {
        match text {
            [b'[', ..] | [b'{', b'{', ..] if text.ends_with(b"}") => Ok(None),
            [b'{', inner @ .., b'}'] => Ok(Some(Texts { left: inner, delimiter, first: true })),
            _ => Err(Malformed("not an array")),
        }
    }

    /// The next element; escapes are undone in `scratch`.
    pub fn next(&mut self, scratch: &mut Vec<u8>) -> Decode<Option<Text<'a>>> {
        if self.first {
            self.first = false;
            if self.left.is_empty() {
                return Ok(None);
            }
        } else {
            match self.left {
                [] => return Ok(None),
                [delimiter, rest @ ..] if *delimiter == self.delimiter => self.left = rest,
                _ => return Err(Malformed("an array element does not end where it should")),
            }
        }
        match self.left {
            [b'"', rest @ ..] => self.quoted(rest, scratch).map(Some),
            plain => {
                let end = plain.iter().position(|b| *b == self.delimiter).unwrap_or(plain.len());
                let (text, rest) = plain.split_at(end);
                self.left = rest;
                if text.is_empty() || text.iter().any(|b| matches!(b, b'"' | b'\\' | b'{' | b'}')) {
                    return Err(Malformed("an array element is not quoted as it should be"));
                }
                Ok(Some(if text == b"NULL" { Text::Null } else { Text::Plain(text) }))
            }
        }
    }

    fn quoted(&mut self, text: &'a [u8], scratch: &mut Vec<u8>) -> Decode<Text<'a>> {
        let (plain, rest) = super::extension::quoted(text, scratch)?;
        self.left = rest;
        Ok(match plain {
            Some(plain) => Text::Plain(plain),
            None => Text::Unescaped,
        })
    }
}
