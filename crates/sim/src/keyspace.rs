//! The few keys that all clients use.

use tiffin_types::{Key, message::Pattern};

/// The namespaces.
pub(crate) const NAMESPACES: [&str; 2] = ["default", "other"];
/// The keys.
pub(crate) const KEYS: [&str; 12] =
    ["a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "b/0", "b/1", "b/2", "b/3", "b/4", "b/5"];

/// The length of each key.
pub(crate) const KEY_BYTES: usize = 3;

/// A key of a namespace, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) namespace: u8,
    pub(crate) key: u8,
}

impl Name {
    pub(crate) fn key(self) -> Key {
        let text = KEYS.get(self.key as usize).expect("a valid key number");
        Key::new(text.as_bytes()).expect("a valid key")
    }

    pub(crate) fn of(namespace: u8, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<Self> {
        let key = KEYS.iter().position(|it| it.as_bytes() == key.as_ref())? as u8;
        Some(Self { namespace, key })
    }
}

/// The number of a namespace.
pub(crate) fn namespace(name: &[u8]) -> Option<u8> {
    NAMESPACES.iter().position(|it| it.as_bytes() == name).map(|it| it as u8)
}

/// The name of a namespace.
pub(crate) fn namespace_name(namespace: u8) -> &'static str {
    NAMESPACES.get(namespace as usize).expect("a valid namespace number")
}

/// Whether a pattern of the workload matches a name.
pub(crate) fn matches(pattern: &Pattern, name: Name) -> bool {
    let key = name.key();
    match pattern {
        Pattern::All => true,
        Pattern::Prefix(prefix) => key.as_bytes().starts_with(prefix),
        // The workload has one: the keys that end with an even number.
        Pattern::Regex(_) => name.key.is_multiple_of(2),
    }
}

/// The counter of the generations before a start of the master. Generations of two starts differ even if
/// their epochs do not.
pub(crate) fn first_counter(incarnation: u64) -> u64 {
    incarnation << 32
}
