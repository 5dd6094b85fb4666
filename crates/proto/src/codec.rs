//! Protobuf's wire format, directly from and to the types of `types`.
//!
//! A message is a sequence of fields; a field is a tag (number and wire type) and a value. Unknown numbers
//! are skipped and missing ones have their default, so that neighbouring minor versions can talk to each
//! other. The macro `message!` and its siblings list the numbers; there are no twin structs.
//!
//! Four traits, from small to large: a `Value` follows one tag; an `Item` is an element of a list; a `Field`
//! is part of a message and may occur any number of times; a `Message` is a sequence of fields.
//!
//! **Invariant:** for any bytes, decoding returns a value or [`Malformed`]. It allocates in proportion to the
//! bytes that were received, never to a length that they claim.

use tiffin_types::{BATCH_ITEMS_MAX, ClientId, ClusterId, KeyError, RequestId, SegmentId, SlotId, Stamp};

use crate::frame::{HEADER_BYTES, PAYLOAD_BYTES_MAX};

/// The largest field number of protobuf.
const NUMBER_MAX: u64 = (1 << 29) - 1;

/// What is wrong with the bytes of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end before the value does.
    #[error("the value is truncated")]
    Truncated,
    /// A number has more bits than its type.
    #[error("the number exceeds its type")]
    Range,
    /// The tag is invalid, or has another wire type than this field.
    #[error("invalid tag {0}")]
    Tag(u64),
    /// A text is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
    /// A required field is missing.
    #[error("the field is missing")]
    Missing,
    /// A case of an enum that this side does not know.
    #[error("unknown case {0}")]
    Choice(u64),
    /// A list is longer than its limit.
    #[error("the list exceeds {0} items")]
    TooMany(usize),
    /// A key is invalid.
    #[error("{0}")]
    Key(#[from] KeyError),
}

/// A payload that cannot be decoded: which field, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {fault}")]
pub struct Malformed {
    /// The innermost field whose name is known.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

impl Malformed {
    /// Names the field, unless an inner field is named.
    pub(crate) fn at(self, field: &'static str) -> Self {
        if self.field.is_empty() { Self { field, ..self } } else { self }
    }
}

impl From<Fault> for Malformed {
    fn from(fault: Fault) -> Self {
        Self { field: "", fault }
    }
}

/// The wire type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Seven bits per byte, least significant first.
    Varint = 0,
    /// Eight bytes.
    Fixed64 = 1,
    /// A length, then that many bytes.
    Bytes = 2,
    /// Four bytes. This version never writes it, but a later minor version may.
    Fixed32 = 5,
}

/// A sequence of fields.
pub(crate) trait Message: Sized {
    /// Writes the fields.
    fn encode(&self, out: &mut Writer);
    /// Reads fields until the input is empty.
    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A value that follows one tag.
pub(crate) trait Value: Sized {
    /// Its wire type.
    const WIRE: Wire;
    /// The greatest number of them in a list.
    const ITEMS_MAX: usize = BATCH_ITEMS_MAX;
    /// Writes it without the tag.
    fn write(&self, out: &mut Writer);
    /// Reads it after the tag.
    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed>;
    /// Whether it equals [`Value::absent`], so that it need not be written.
    fn is_default(&self) -> bool;
    /// The value of a field that was not written.
    fn absent() -> Result<Self, Malformed>;
}

/// An element of a list.
pub(crate) trait Item: Sized {
    /// Its wire type. All but [`Wire::Bytes`] are packed: one tag for the whole list.
    const ITEM_WIRE: Wire;
    /// The greatest number of them in a list.
    const LIST_MAX: usize;
    /// Writes it without a tag.
    fn write_item(&self, out: &mut Writer);
    /// Reads it after the tag.
    fn read_item(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// A part of a message.
pub(crate) trait Field: Sized {
    /// Writes tag and value, as many times as needed.
    fn put(&self, number: u32, out: &mut Writer);
    /// Reads one occurrence after the tag.
    fn merge(slot: &mut Option<Self>, wire: Wire, input: &mut Reader<'_>) -> Result<(), Malformed>;
    /// The value after all occurrences.
    fn finish(slot: Option<Self>) -> Result<Self, Malformed>;
}

/// The contents of a case of an enum. Unlike a field it is always written, and a list is wrapped in a
/// message: an empty list must still say which case it is.
pub(crate) trait Arm: Sized {
    /// Writes tag and value, even if the value is the default.
    fn put_arm(&self, number: u32, out: &mut Writer);
    /// Reads the value after the tag.
    fn take_arm(wire: Wire, input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Bytes to be sent. It never grows far beyond the largest payload: the rest is dropped, and
/// [`Writer::finish`] returns an error.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    // The first list that was too long, and its limit.
    too_many: Option<(usize, usize)>,
}

/// A message that cannot be sent, because every peer would refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// More than [`PAYLOAD_BYTES_MAX`].
    #[error("the message exceeds {PAYLOAD_BYTES_MAX} bytes: send smaller batches")]
    TooLong,
    /// More items in one list than allowed.
    #[error("a list of {items} items exceeds the limit of {max}: send smaller batches")]
    TooMany {
        /// The number of items.
        items: usize,
        /// The limit.
        max: usize,
    },
}

impl Writer {
    /// Appends to these bytes.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, too_many: None }
    }

    /// The bytes, if they are a message that can be sent.
    pub(crate) fn finish(self) -> Result<Vec<u8>, EncodeError> {
        match self.too_many {
            Some((items, max)) => Err(EncodeError::TooMany { items, max }),
            None if self.is_full() => Err(EncodeError::TooLong),
            None => Ok(self.bytes),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() > HEADER_BYTES + PAYLOAD_BYTES_MAX
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn eight(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn tag(&mut self, number: u32, wire: Wire) {
        self.varint(u64::from(number) << 3 | wire as u64);
    }

    #[inline]
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        if !self.is_full() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Writes what `fill` writes, preceded by its length. Nearly all nested messages are shorter than 128
    /// bytes, so one byte is reserved for the length, and only longer contents are moved.
    pub(crate) fn nested(&mut self, fill: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.bytes.push(0);
        fill(self);
        let len = self.bytes.len() - at - 1;
        match self.bytes.get_mut(at) {
            Some(short) if len < 0x80 => *short = len as u8,
            _ => {
                let mut prefix = Self::new(Vec::new());
                prefix.varint(len as u64);
                self.bytes.splice(at..=at, prefix.bytes);
            }
        }
    }

    /// Reserves capacity for that many bytes, but no more than can be sent.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes.min(PAYLOAD_BYTES_MAX));
    }

    /// Whether a list of that length may be written.
    pub(crate) fn takes(&mut self, items: usize, max: usize) -> bool {
        if items > max && self.too_many.is_none() {
            self.too_many = Some((items, max));
        }
        self.too_many.is_none()
    }

    fn list<T: Item>(&mut self, number: u32, items: &[T]) {
        if !self.takes(items.len(), T::LIST_MAX) || items.is_empty() {
            return;
        }
        if T::ITEM_WIRE != Wire::Bytes {
            self.tag(number, Wire::Bytes);
            return self.nested(|out| items.iter().for_each(|item| item.write_item(out)));
        }
        for item in items {
            if self.is_full() {
                return;
            }
            self.tag(number, Wire::Bytes);
            item.write_item(self);
        }
    }
}

/// Bytes that were received.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The next tag; `None` at the end.
    pub(crate) fn tag(&mut self) -> Result<Option<(u32, Wire)>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            5 => Wire::Fixed32,
            _ => return Err(Fault::Tag(tag)),
        };
        match tag >> 3 {
            number @ 1..=NUMBER_MAX => Ok(Some((number as u32, wire))),
            _ => Err(Fault::Tag(tag)),
        }
    }

    /// Skips the value of an unknown field.
    pub(crate) fn skip(&mut self, wire: Wire) -> Result<(), Fault> {
        match wire {
            Wire::Varint => self.varint().map(|_| ()),
            Wire::Fixed64 => self.take(8).map(|_| ()),
            Wire::Bytes => self.slice().map(|_| ()),
            Wire::Fixed32 => self.take(4).map(|_| ()),
        }
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for at in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(Fault::Truncated)?;
            self.rest = rest;
            // The tenth byte holds one bit.
            if at == 9 && *byte > 1 {
                return Err(Fault::Range);
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::Range)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn eight(&mut self) -> Result<u64, Fault> {
        let bytes = self.take(8)?.first_chunk().ok_or(Fault::Truncated)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// The number of bytes that are left.
    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn slice(&mut self) -> Result<&'a [u8], Fault> {
        let len = usize::try_from(self.varint()?).map_err(|_| Fault::Truncated)?;
        self.take(len)
    }

    /// Reads a nested message.
    pub(crate) fn nested<M: Message>(&mut self) -> Result<M, Malformed> {
        M::decode(&mut Reader::new(self.slice()?))
    }
}

/// Rejects a known field of an unexpected wire type.
pub(crate) fn expect(found: Wire, wanted: Wire) -> Result<(), Fault> {
    if found == wanted { Ok(()) } else { Err(Fault::Tag(found as u64)) }
}

impl<T: Value> Field for T {
    fn put(&self, number: u32, out: &mut Writer) {
        if !self.is_default() {
            self.put_arm(number, out);
        }
    }

    fn merge(slot: &mut Option<Self>, wire: Wire, input: &mut Reader<'_>) -> Result<(), Malformed> {
        *slot = Some(Self::take_arm(wire, input)?);
        Ok(())
    }

    fn finish(slot: Option<Self>) -> Result<Self, Malformed> {
        slot.map_or_else(Self::absent, Ok)
    }
}

impl<T: Value> Field for Option<T> {
    fn put(&self, number: u32, out: &mut Writer) {
        if let Some(value) = self {
            value.put_arm(number, out);
        }
    }

    fn merge(slot: &mut Option<Self>, wire: Wire, input: &mut Reader<'_>) -> Result<(), Malformed> {
        *slot = Some(Some(T::take_arm(wire, input)?));
        Ok(())
    }

    fn finish(slot: Option<Self>) -> Result<Self, Malformed> {
        Ok(slot.flatten())
    }
}

impl<T: Item> Field for Vec<T> {
    fn put(&self, number: u32, out: &mut Writer) {
        out.list(number, self);
    }

    fn merge(slot: &mut Option<Self>, wire: Wire, input: &mut Reader<'_>) -> Result<(), Malformed> {
        let items = slot.get_or_insert_default();
        let mut add = |input: &mut Reader<'_>| {
            if items.len() == T::LIST_MAX {
                return Err(Fault::TooMany(T::LIST_MAX).into());
            }
            items.push(T::read_item(input)?);
            Ok(())
        };
        // A list of numbers may be packed or not, as protobuf requires.
        if T::ITEM_WIRE != Wire::Bytes && wire == Wire::Bytes {
            let mut packed = Reader::new(input.slice()?);
            while !packed.rest.is_empty() {
                add(&mut packed)?;
            }
            return Ok(());
        }
        expect(wire, T::ITEM_WIRE)?;
        add(input)
    }

    fn finish(slot: Option<Self>) -> Result<Self, Malformed> {
        Ok(slot.unwrap_or_default())
    }
}

impl<T: Value> Item for T {
    const ITEM_WIRE: Wire = T::WIRE;
    const LIST_MAX: usize = T::ITEMS_MAX;

    fn write_item(&self, out: &mut Writer) {
        self.write(out);
    }

    fn read_item(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(input)
    }
}

/// An item that may be missing keeps its position: a message with the value in field 1, or an empty message.
impl<T: Value> Item for Option<T> {
    const ITEM_WIRE: Wire = Wire::Bytes;
    const LIST_MAX: usize = T::ITEMS_MAX;

    fn write_item(&self, out: &mut Writer) {
        out.nested(|out| self.put(1, out));
    }

    fn read_item(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        only_field(&mut Reader::new(input.slice()?))
    }
}

impl<T: Value> Arm for T {
    fn put_arm(&self, number: u32, out: &mut Writer) {
        out.tag(number, T::WIRE);
        self.write(out);
    }

    fn take_arm(wire: Wire, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        expect(wire, T::WIRE)?;
        T::read(input)
    }
}

impl<T: Item> Arm for Vec<T> {
    fn put_arm(&self, number: u32, out: &mut Writer) {
        out.tag(number, Wire::Bytes);
        out.nested(|out| self.encode(out));
    }

    fn take_arm(wire: Wire, input: &mut Reader<'_>) -> Result<Self, Malformed> {
        expect(wire, Wire::Bytes)?;
        input.nested()
    }
}

/// A list that is a whole message is field 1 of it.
impl<T: Item> Message for Vec<T> {
    fn encode(&self, out: &mut Writer) {
        self.put(1, out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        only_field(input)
    }
}

/// Reads a message whose only known field is 1.
pub(crate) fn only_field<T: Field>(input: &mut Reader<'_>) -> Result<T, Malformed> {
    let mut slot = None;
    while let Some((number, wire)) = input.tag()? {
        match number {
            1 => T::merge(&mut slot, wire, input)?,
            _ => input.skip(wire)?,
        }
    }
    T::finish(slot)
}

impl Value for u64 {
    const WIRE: Wire = Wire::Varint;

    fn write(&self, out: &mut Writer) {
        out.varint(*self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(input.varint()?)
    }

    fn is_default(&self) -> bool {
        *self == 0
    }

    fn absent() -> Result<Self, Malformed> {
        Ok(0)
    }
}

impl Value for u32 {
    const WIRE: Wire = Wire::Varint;

    fn write(&self, out: &mut Writer) {
        out.varint(u64::from(*self));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(input.varint()?.try_into().map_err(|_| Fault::Range)?)
    }

    fn is_default(&self) -> bool {
        *self == 0
    }

    fn absent() -> Result<Self, Malformed> {
        Ok(0)
    }
}

impl Value for bool {
    const WIRE: Wire = Wire::Varint;

    fn write(&self, out: &mut Writer) {
        out.varint(u64::from(*self));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(input.varint()? != 0)
    }

    fn is_default(&self) -> bool {
        !self
    }

    fn absent() -> Result<Self, Malformed> {
        Ok(false)
    }
}

impl Value for String {
    const WIRE: Wire = Wire::Bytes;

    fn write(&self, out: &mut Writer) {
        out.slice(self.as_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(str::from_utf8(input.slice()?).map_err(|_| Fault::Text)?.to_owned())
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }

    fn absent() -> Result<Self, Malformed> {
        Ok(Self::new())
    }
}

impl Value for Vec<u8> {
    const WIRE: Wire = Wire::Bytes;

    fn write(&self, out: &mut Writer) {
        out.slice(self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(input.slice()?.to_owned())
    }

    fn is_default(&self) -> bool {
        self.is_empty()
    }

    fn absent() -> Result<Self, Malformed> {
        Ok(Self::new())
    }
}

/// Newtypes of small numbers: varints.
macro_rules! counts {
    ($($name:ident($inner:ty)),* $(,)?) => {$(
        impl Value for $name {
            const WIRE: Wire = Wire::Varint;

            fn write(&self, out: &mut Writer) {
                self.0.write(out);
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                <$inner as Value>::read(input).map(Self)
            }

            fn is_default(&self) -> bool {
                self.0 == 0
            }

            fn absent() -> Result<Self, Malformed> {
                Ok(Self(0))
            }
        }
    )*};
}

/// Newtypes of random numbers: eight bytes are shorter than a varint.
macro_rules! names {
    ($($name:ident),* $(,)?) => {$(
        impl Value for $name {
            const WIRE: Wire = Wire::Fixed64;

            fn write(&self, out: &mut Writer) {
                out.eight(self.0);
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self(input.eight()?))
            }

            fn is_default(&self) -> bool {
                self.0 == 0
            }

            fn absent() -> Result<Self, Malformed> {
                Ok(Self(0))
            }
        }
    )*};
}

counts! { SlotId(u32), RequestId(u64) }
names! { SegmentId, ClientId, ClusterId, Stamp }

/// Enums without contents: a varint. The first case is the default. An unknown number is an error, or the
/// case after `else`.
macro_rules! choices {
    ($($name:ident { $first:ident = 0 $(, $case:ident = $number:literal)* $(; else $other:ident)? })*) => {$(
        impl Value for $name {
            const WIRE: Wire = Wire::Varint;

            fn write(&self, out: &mut Writer) {
                let number: u64 = match self {
                    Self::$first => 0,
                    $(Self::$case => $number,)*
                };
                number.write(out);
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                match u64::read(input)? {
                    0 => Ok(Self::$first),
                    $($number => Ok(Self::$case),)*
                    number => {
                        let fallback: &[Self] = &[$(Self::$other)?];
                        Ok(fallback.first().copied().ok_or(Fault::Choice(number))?)
                    }
                }
            }

            fn is_default(&self) -> bool {
                matches!(self, Self::$first)
            }

            fn absent() -> Result<Self, Malformed> {
                Ok(Self::$first)
            }
        }
    )*};
}

/// Structs: field number => field, and the greatest number of them in a list, if it is not that of a batch.
macro_rules! message {
    ($($name:ident $(($max:expr))? { $($number:literal => $field:ident),* $(,)? })*) => {$(
        impl Message for $name {
            fn encode(&self, out: &mut Writer) {
                $(self.$field.put($number, out);)*
            }

            fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                $(let mut $field = None;)*
                while let Some((number, wire)) = input.tag()? {
                    match number {
                        $($number => Field::merge(&mut $field, wire, input),)*
                        _ => input.skip(wire).map_err(Malformed::from),
                    }
                    .map_err(|error| error.at(match number {
                        $($number => concat!(stringify!($name), ".", stringify!($field)),)*
                        _ => concat!(stringify!($name), ".?"),
                    }))?;
                }
                Ok(Self {
                    $($field: Field::finish($field).map_err(|error| {
                        error.at(concat!(stringify!($name), ".", stringify!($field)))
                    })?,)*
                })
            }
        }

        nested!($name $(, $max)?);
    )*};
}

/// Enums with contents: a message of which exactly one field is set. A case without contents is an empty
/// message, so that a later version can add some.
macro_rules! oneof {
    ($($name:ident {
        $($number:literal => $case:ident),*;
        $($unit_number:literal => $unit:ident),*
    })*) => {$(
        impl Message for $name {
            fn encode(&self, out: &mut Writer) {
                match self {
                    $(Self::$case(inner) => inner.put_arm($number, out),)*
                    $(Self::$unit => ().put_arm($unit_number, out),)*
                }
            }

            fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut found = None;
                while let Some((number, wire)) = input.tag()? {
                    match number {
                        $($number => found = Some(Self::$case(
                            Arm::take_arm(wire, input).map_err(|error| {
                                error.at(concat!(stringify!($name), ".", stringify!($case)))
                            })?,
                        )),)*
                        $($unit_number => {
                            <() as Arm>::take_arm(wire, input)?;
                            found = Some(Self::$unit);
                        })*
                        _ => input.skip(wire)?,
                    }
                }
                found.ok_or(Malformed { field: stringify!($name), fault: Fault::Missing })
            }
        }

        nested!($name);
    )*};
}

/// Nested messages. They are always written: an empty one is short, and differs from a missing one.
macro_rules! nested {
    ($name:ty $(, $max:expr)?) => {
        impl Value for $name {
            const WIRE: Wire = Wire::Bytes;
            $(const ITEMS_MAX: usize = $max;)?

            fn write(&self, out: &mut Writer) {
                out.nested(|out| self.encode(out));
            }

            fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                input.nested()
            }

            fn is_default(&self) -> bool {
                false
            }

            fn absent() -> Result<Self, Malformed> {
                Self::decode(&mut Reader::new(&[]))
            }
        }
    };
}

/// The empty message: the contents of a case without any.
impl Message for () {
    fn encode(&self, _out: &mut Writer) {}

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        while let Some((_, wire)) = input.tag()? {
            input.skip(wire)?;
        }
        Ok(())
    }
}

nested!(());
