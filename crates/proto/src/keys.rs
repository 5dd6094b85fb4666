//! Keys: single ones, and lists in one allocation. The encoding of a list is the same for both.

use tiffin_types::{Key, Keys};

use crate::codec::{Fault, Field, Malformed, Reader, Value, Wire, Writer, expect};

/// There is no default key: a message that lacks one is malformed.
impl Value for Key {
    const WIRE: Wire = Wire::Bytes;

    fn write(&self, out: &mut Writer) {
        out.slice(self.as_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self::new(input.slice()?).map_err(Fault::Key)?)
    }

    fn is_default(&self) -> bool {
        false
    }

    fn absent() -> Result<Self, Malformed> {
        Err(Fault::Missing.into())
    }
}

impl Field for Keys {
    fn put(&self, number: u32, out: &mut Writer) {
        if !out.takes(self.len(), Key::ITEMS_MAX) {
            return;
        }
        // Each key has a tag and, nearly always, one or two bytes of length.
        out.reserve(self.bytes_len() + 3 * self.len());
        for name in self.iter() {
            if out.is_full() {
                return;
            }
            out.tag(number, Wire::Bytes);
            out.slice(name);
        }
    }

    fn merge(slot: &mut Option<Self>, wire: Wire, input: &mut Reader<'_>) -> Result<(), Malformed> {
        expect(wire, Wire::Bytes)?;
        let left = input.len();
        let name = input.slice()?;
        // Most keys of a list are about as long as the first; a tag and a length precede each.
        let likely = Key::ITEMS_MAX.min(1 + left / (name.len() + 2));
        let names = slot.get_or_insert_with(|| Self::with_capacity(likely, left));
        if names.len() == Key::ITEMS_MAX {
            return Err(Fault::TooMany(Key::ITEMS_MAX).into());
        }
        Ok(names.push(name).map_err(Fault::Key)?)
    }

    fn finish(slot: Option<Self>) -> Result<Self, Malformed> {
        Ok(slot.unwrap_or_default())
    }
}
