//! The texts of extension types: hstore, pgvector's vector; and quoted strings with backslashes.

use super::cursor::{Decode, Malformed};

/// Reads up to the closing quote. The text is a slice of the input if nothing in it is escaped,
/// otherwise it is in `scratch`. Also returns what follows the quote.
pub(super) fn quoted<'a>(
    text: &'a [u8],
    scratch: &mut Vec<u8>,
) -> Decode<(Option<&'a [u8]>, &'a [u8])> {
    const OPEN: Malformed = Malformed("a quote is not closed");
    let special = |text: &[u8]| text.iter().position(|b| matches!(b, b'"' | b'\\'));
    let (plain, mut rest) = text.split_at(special(text).ok_or(OPEN)?);
    if let [b'"', rest @ ..] = rest {
        return Ok((Some(plain), rest));
    }
    scratch.clear();
    scratch.extend_from_slice(plain);
    loop {
        match rest {
            [b'"', rest @ ..] => return Ok((None, rest)),
            [b'\\', escaped, after @ ..] => {
                scratch.push(*escaped);
                let (plain, left) = after.split_at(special(after).ok_or(OPEN)?);
                scratch.extend_from_slice(plain);
                rest = left;
            }
            _ => return Err(OPEN),
        }
    }
}

/// Calls `pair` for each key and value of an hstore's text: `"a"=>"1", "b"=>NULL`.
pub(super) fn each_pair(
    text: &[u8],
    mut pair: impl FnMut(&[u8], Option<&[u8]>) -> Decode<()>,
) -> Decode<()> {
    const ODD: Malformed = Malformed("not an hstore");
    let (mut key_scratch, mut value_scratch) = (Vec::new(), Vec::new());
    let mut left = text;
    while !left.is_empty() {
        let key_text = left.strip_prefix(b"\"").ok_or(ODD)?;
        let (key, rest) = quoted(key_text, &mut key_scratch)?;
        let rest = rest.strip_prefix(b"=>").ok_or(ODD)?;
        let rest = match rest {
            [b'N', b'U', b'L', b'L', rest @ ..] => {
                pair(key.unwrap_or(&key_scratch), None)?;
                rest
            }
            [b'"', value_text @ ..] => {
                let (value, rest) = quoted(value_text, &mut value_scratch)?;
                pair(key.unwrap_or(&key_scratch), Some(value.unwrap_or(&value_scratch)))?;
                rest
            }
            _ => return Err(ODD),
        };
        left = match rest {
            [] => rest,
            [b',', b' ', rest @ ..] if !rest.is_empty() => rest,
            _ => return Err(ODD),
        };
    }
    Ok(())
}

/// The numbers of a vector's text: `[1,2.5]`.
pub(super) fn vector_items(text: &[u8]) -> Decode<impl Iterator<Item = &[u8]>> {
    match text {
        [b'[', inner @ .., b']'] => Ok(inner.split(|b| *b == b',')),
        _ => Err(Malformed("not a vector")),
    }
}
