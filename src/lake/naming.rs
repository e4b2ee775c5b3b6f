//! How a source table's folder in the lake is named.

use super::store::Lake;

impl Lake {
    /// The folder of a source table: `<schema>/<table>`, of letters, digits, `_` and `-` only.
    ///
    /// Other characters, and `-` itself, become `-` and the hexadecimal digits of each byte: readers
    /// disagree about names that need URL escaping, and object stores escape even `~`. A name that
    /// would start with `_` or be empty is escaped too, as readers skip such folders. Reversible by
    /// [`Lake::table_name`].
    pub fn table_folder(schema: &str, table: &str) -> String {
        format!("{}/{}", escape(schema), escape(table))
    }

    /// The schema and table of a folder made by [`Lake::table_folder`].
    pub fn table_name(folder: &str) -> Option<(String, String)> {
        let (schema, table) = folder.split_once('/')?;
        Some((unescape(schema)?, unescape(table)?))
    }
}

fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for (i, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || (i > 0 && byte == b'_');
        if plain {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("-{byte:02x}"));
        }
    }
    if out.is_empty() { "-".into() } else { out }
}

fn unescape(text: &str) -> Option<String> {
    if text == "-" {
        return Some(String::new());
    }
    let mut parts = text.split('-');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2)?;
        out.push(u8::from_str_radix(hex, 16).ok()?);
        out.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn folders_are_url_safe_and_reversible(schema in ".{0,12}", table in ".{0,12}") {
            let folder = Lake::table_folder(&schema, &table);
            prop_assert!(folder.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-/".contains(&b)), "{}", folder);
            // The store takes the name as it is, or listing by URL and by path would differ.
            prop_assert_eq!(Path::from(folder.as_str()).to_string(), folder.clone());
            prop_assert_eq!(Lake::table_name(&folder), Some((schema, table)));
        }
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        assert_eq!(Lake::table_folder("public", "order_items"), "public/order_items");
        assert_eq!(Lake::table_folder("public", "Größe"), "public/Gr-c3-b6-c3-9fe");
        assert_eq!(Lake::table_folder("_tidegate", "x"), "-5ftidegate/x");
    }
}
