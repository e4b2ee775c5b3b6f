//! Columns of which the lake gets a keyed hash: equal values stay equal, and nobody without the key
//! can try values out.

use std::fmt;
use std::sync::Arc;

use ring::hmac;

use super::cursor::{Decode, Malformed};

/// What is hashed to tell keys apart; long and odd enough to be nobody's value.
const NAME: &[u8] = b"tidegate: the name of this key";

/// A key for HMAC-SHA256, or only the name of one: a lake remembers which key its hashes were made
/// with, not the key.
#[derive(Clone)]
pub struct HashKey {
    id: String,
    key: Option<Arc<hmac::Key>>,
}

impl HashKey {
    /// From a secret.
    pub fn new(secret: &[u8]) -> HashKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let name = hmac::sign(&key, NAME);
        let id = name.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        HashKey { id, key: Some(Arc::new(key)) }
    }

    /// A key of which only the name is known.
    pub fn named(id: &str) -> HashKey {
        HashKey { id: id.to_owned(), key: None }
    }

    /// The same for the same secret; tells nothing of it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether values can be hashed with it.
    pub fn is_known(&self) -> bool {
        self.key.is_some()
    }

    /// The hash of a text as the lake has it; none if the key is not known.
    pub fn hex(&self, text: &[u8]) -> Option<String> {
        let hash = self.hash(text).ok()?;
        Some(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The hash of a value's text.
    pub(super) fn hash(&self, text: &[u8]) -> Decode<[u8; 32]> {
        let key = self.key.as_deref().ok_or(Malformed("the key of the hash is not known"))?;
        let hash = hmac::sign(key, text);
        hash.as_ref().try_into().map_err(|_| Malformed("a hash of another length"))
    }
}

impl PartialEq for HashKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for HashKey {}

impl std::hash::Hash for HashKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashKey({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_hmac_sha256_as_other_programs_compute_it() {
        // RFC 4231, test case 2.
        let hash = HashKey::new(b"Jefe").hex(b"what do ya want for nothing?").unwrap();
        assert_eq!(hash, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_key_is_known_by_its_name_and_shown_by_nothing_else() {
        let key = HashKey::new(b"secret");
        assert_eq!(key, HashKey::named(key.id()));
        assert_ne!(key, HashKey::new(b"secret2"));
        assert!(!format!("{key:?}").contains("secret"));
        assert!(HashKey::named("x").hash(b"").is_err());
    }
}
