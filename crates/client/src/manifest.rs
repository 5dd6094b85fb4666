//! The manifest of a sample: names, types, shapes and offsets of its tensors, and free-form metadata.
//!
//! `docs/format.md` describes the bytes. The decoder accepts any input. A manifest that it returns is
//! consistent: each tensor is inside the sample, and its length matches its type and shape.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Maximum number of tensors of one sample.
pub const TENSORS_MAX: usize = 4096;
/// Maximum number of dimensions of one tensor.
pub const DIMENSIONS_MAX: usize = 32;
/// Maximum length of a tensor's name, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum length of the metadata of one sample, in bytes.
pub const METADATA_BYTES_MAX: usize = 16 << 20;
/// The offset of every tensor is a multiple of this.
pub const TENSOR_ALIGN: u64 = 64;

/// The first bytes of every sample.
const MAGIC: [u8; 8] = *b"TFSAMPLE";
const VERSION: u32 = 1;
/// The part of the header that every sample has.
pub(crate) const PRELUDE_BYTES: usize = 32;
/// Maximum length of a header: all parts at their maximum.
const HEADER_BYTES_MAX: usize =
    PRELUDE_BYTES + TENSORS_MAX * (TENSOR_BYTES + DIMENSIONS_MAX * 8 + NAME_BYTES_MAX) + METADATA_BYTES_MAX;
/// The fixed part of a tensor's entry.
const TENSOR_BYTES: usize = 24;

/// Declares the types of elements, once: each with its number in the format, its size, its short name, and
/// its name in array libraries.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $case:ident = $code:literal, $bytes:literal, $short:literal, $long:literal;)*) => {
        /// The type of a tensor's elements. Elements smaller than a byte have a byte each, unless their type
        /// says that it packs several.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Dtype {
            $($(#[$doc])* $case,)*
        }

        const DTYPES: &[(Dtype, u8, u64, &str, &str)] =
            &[$((Dtype::$case, $code, $bytes, $short, $long),)*];
    };
}

dtypes! {
    /// Truth values, a byte each.
    Bool = 1, 1, "bool", "bool";
    /// Bytes.
    U8 = 2, 1, "u8", "uint8";
    /// Signed bytes.
    I8 = 3, 1, "i8", "int8";
    /// Unsigned, 16 bits.
    U16 = 4, 2, "u16", "uint16";
    /// Signed, 16 bits.
    I16 = 5, 2, "i16", "int16";
    /// Unsigned, 32 bits.
    U32 = 6, 4, "u32", "uint32";
    /// Signed, 32 bits.
    I32 = 7, 4, "i32", "int32";
    /// Unsigned, 64 bits.
    U64 = 8, 8, "u64", "uint64";
    /// Signed, 64 bits.
    I64 = 9, 8, "i64", "int64";
    /// IEEE half precision.
    F16 = 10, 2, "f16", "float16";
    /// The upper half of an [`Self::F32`].
    Bf16 = 11, 2, "bf16", "bfloat16";
    /// IEEE single precision.
    F32 = 12, 4, "f32", "float32";
    /// IEEE double precision.
    F64 = 13, 8, "f64", "float64";
    /// Eight bits, four of them exponent; finite.
    F8E4m3 = 14, 1, "f8e4m3", "float8_e4m3fn";
    /// Eight bits, five of them exponent.
    F8E5m2 = 15, 1, "f8e5m2", "float8_e5m2";
    /// Complex, two [`Self::F16`].
    C32 = 16, 4, "c32", "complex32";
    /// Complex, two [`Self::F32`].
    C64 = 17, 8, "c64", "complex64";
    /// Complex, two [`Self::F64`].
    C128 = 18, 16, "c128", "complex128";
    /// Eight bits, four of them exponent; finite, one zero.
    F8E4m3fnuz = 19, 1, "f8e4m3fnuz", "float8_e4m3fnuz";
    /// Eight bits, five of them exponent; finite, one zero.
    F8E5m2fnuz = 20, 1, "f8e5m2fnuz", "float8_e5m2fnuz";
    /// Eight bits of exponent, as the scales of blocks are.
    F8E8m0fnu = 21, 1, "f8e8m0fnu", "float8_e8m0fnu";
    /// Eight bits, three of them exponent.
    F8E3m4 = 22, 1, "f8e3m4", "float8_e3m4";
    /// Eight bits, four of them exponent; with infinities.
    F8E4m3Ieee = 23, 1, "f8e4m3ieee", "float8_e4m3";
    /// Eight bits, four of them exponent, with a bias of 11.
    F8E4m3b11fnuz = 24, 1, "f8e4m3b11fnuz", "float8_e4m3b11fnuz";
    /// Six bits, two of them exponent; a byte each.
    F6E2m3 = 25, 1, "f6e2m3", "float6_e2m3fn";
    /// Six bits, three of them exponent; a byte each.
    F6E3m2 = 26, 1, "f6e3m2", "float6_e3m2fn";
    /// Four bits, two of them exponent; a byte each.
    F4E2m1 = 27, 1, "f4e2m1", "float4_e2m1fn";
    /// Two floats of four bits, two of them exponent, in a byte.
    F4E2m1x2 = 28, 1, "f4e2m1x2", "float4_e2m1fn_x2";
    /// Signed, one bit; a byte each.
    I1 = 29, 1, "i1", "int1";
    /// Signed, 2 bits; a byte each.
    I2 = 30, 1, "i2", "int2";
    /// Signed, 3 bits; a byte each.
    I3 = 31, 1, "i3", "int3";
    /// Signed, 4 bits; a byte each.
    I4 = 32, 1, "i4", "int4";
    /// Signed, 5 bits; a byte each.
    I5 = 33, 1, "i5", "int5";
    /// Signed, 6 bits; a byte each.
    I6 = 34, 1, "i6", "int6";
    /// Signed, 7 bits; a byte each.
    I7 = 35, 1, "i7", "int7";
    /// Unsigned, one bit; a byte each.
    U1 = 36, 1, "u1", "uint1";
    /// Unsigned, 2 bits; a byte each.
    U2 = 37, 1, "u2", "uint2";
    /// Unsigned, 3 bits; a byte each.
    U3 = 38, 1, "u3", "uint3";
    /// Unsigned, 4 bits; a byte each.
    U4 = 39, 1, "u4", "uint4";
    /// Unsigned, 5 bits; a byte each.
    U5 = 40, 1, "u5", "uint5";
    /// Unsigned, 6 bits; a byte each.
    U6 = 41, 1, "u6", "uint6";
    /// Unsigned, 7 bits; a byte each.
    U7 = 42, 1, "u7", "uint7";
    /// Eight bits without a meaning.
    B8 = 43, 1, "b8", "bits8";
    /// Sixteen bits without a meaning.
    B16 = 44, 2, "b16", "bits16";
    /// Eight times one bit in a byte.
    B1x8 = 45, 1, "b1x8", "bits1x8";
    /// Four times two bits in a byte.
    B2x4 = 46, 1, "b2x4", "bits2x4";
    /// Two times four bits in a byte.
    B4x2 = 47, 1, "b4x2", "bits4x2";
}

impl Dtype {
    /// The bytes of one element.
    #[must_use]
    pub fn size(self) -> u64 {
        self.row().2
    }

    /// The short name, `f32` for example.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().3
    }

    /// The name that array libraries use, `float32` for example.
    #[must_use]
    pub fn long_name(self) -> &'static str {
        self.row().4
    }

    /// All types.
    pub fn all() -> impl Iterator<Item = Self> {
        DTYPES.iter().map(|row| row.0)
    }

    /// The length of a tensor of that shape; `None` if it overflows.
    #[must_use]
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        // With an empty dimension the tensor is empty, however large the others are.
        if shape.contains(&0) {
            return Some(0);
        }
        shape.iter().try_fold(self.size(), |bytes, &length| bytes.checked_mul(length))
    }

    fn row(self) -> (Self, u8, u64, &'static str, &'static str) {
        let row = DTYPES.iter().find(|row| row.0 == self);
        row.copied().unwrap_or((self, 0, 1, "unknown", "unknown"))
    }

    fn code(self) -> u8 {
        self.row().1
    }

    fn of_code(code: u8) -> Option<Self> {
        DTYPES.iter().find(|row| row.1 == code).map(|row| row.0)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A name that is not the name of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown element type `{name}`; the types are {}", short_names())]
pub struct UnknownDtype {
    /// The name.
    pub name: String,
}

fn short_names() -> String {
    Dtype::all().map(Dtype::name).collect::<Vec<_>>().join(" ")
}

/// Accepts the short and the long names.
impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        let row = DTYPES.iter().find(|row| row.3 == name || row.4 == name);
        row.map(|row| row.0).ok_or_else(|| UnknownDtype { name: name.to_owned() })
    }
}

/// One tensor of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unique in the sample.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, the slowest first; none for a scalar.
    pub shape: Vec<u64>,
    /// The offset of its bytes in the sample.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The manifest of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The producer's metadata.
    pub metadata: Vec<u8>,
    /// The tensors, in the order of their bytes.
    pub tensors: Vec<Tensor>,
    /// The length of the whole sample.
    pub len: u64,
}

/// Why bytes are not a sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The header is longer: this many bytes are needed.
    #[error("its header is truncated: it has {0} bytes")]
    Short(usize),
    #[error("{0}")]
    Bad(&'static str),
}

impl Manifest {
    /// The tensor of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|it| it.name == name)
    }

    /// Reads the manifest of a whole sample, for example of a [`View`](crate::View). The error says why the
    /// bytes are not a sample.
    pub fn of(sample: &[u8]) -> Result<Self, String> {
        Self::decode(sample, sample.len() as u64).map_err(|error| error.to_string())
    }

    /// Assigns the offsets of tensors, in the given order. The error is for people.
    pub(crate) fn lay_out(mut tensors: Vec<Tensor>, metadata: &[u8]) -> Result<Self, String> {
        check_parts(&tensors, metadata)?;
        let too_large = || "the sample is too large".to_owned();
        let mut end = header_bytes(&tensors, metadata) as u64;
        for tensor in &mut tensors {
            tensor.offset = end.checked_next_multiple_of(TENSOR_ALIGN).ok_or_else(too_large)?;
            end = tensor.offset.checked_add(tensor.bytes).ok_or_else(too_large)?;
        }
        Ok(Self { metadata: metadata.to_vec(), tensors, len: end })
    }

    /// The bytes of the header. Between them and the first tensor are zeros.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = header_bytes(&self.tensors, &self.metadata);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend((self.tensors.len() as u32).to_le_bytes());
        bytes.extend((self.metadata.len() as u32).to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        for tensor in &self.tensors {
            bytes.extend(tensor.offset.to_le_bytes());
            bytes.extend(tensor.bytes.to_le_bytes());
            bytes.extend((tensor.name.len() as u16).to_le_bytes());
            bytes.extend([tensor.dtype.code(), tensor.shape.len() as u8]);
            bytes.extend([0; 4]);
            tensor.shape.iter().for_each(|length| bytes.extend(length.to_le_bytes()));
            bytes.extend(tensor.name.as_bytes());
        }
        bytes.extend(&self.metadata);
        bytes
    }

    /// Decodes the header of a sample of `len` bytes. `bytes` are its first bytes, as many as were read.
    pub(crate) fn decode(bytes: &[u8], len: u64) -> Result<Self, DecodeError> {
        let mut reader = Reader(bytes);
        let header = reader.prelude(len)?;
        if bytes.len() < header.bytes {
            return Err(DecodeError::Short(header.bytes));
        }
        let rest = bytes.get(PRELUDE_BYTES..header.bytes).unwrap_or_default();
        let mut reader = Reader(rest);
        let mut tensors = Vec::new();
        for _ in 0..header.tensors {
            tensors.push(reader.tensor()?);
        }
        let metadata = reader.take(header.metadata)?.to_vec();
        if !reader.0.is_empty() {
            return Err(DecodeError::Bad("its header is longer than its content"));
        }
        let mut end = header.bytes as u64;
        let mut names = BTreeSet::new();
        for tensor in &tensors {
            let fits = tensor.offset >= end && tensor.offset.is_multiple_of(TENSOR_ALIGN);
            let behind = tensor.offset.checked_add(tensor.bytes).filter(|&it| fits && it <= len);
            end = behind.ok_or(DecodeError::Bad("the offset of a tensor is invalid"))?;
            if !names.insert(&tensor.name) {
                return Err(DecodeError::Bad("two tensors have the same name"));
            }
        }
        Ok(Self { metadata, tensors, len })
    }
}

fn check_parts(tensors: &[Tensor], metadata: &[u8]) -> Result<(), String> {
    if tensors.is_empty() {
        return Err("it has no tensors".to_owned());
    }
    if tensors.len() > TENSORS_MAX {
        return Err(format!("it has {} tensors, more than the {TENSORS_MAX} allowed", tensors.len()));
    }
    if metadata.len() > METADATA_BYTES_MAX {
        let len = metadata.len();
        return Err(format!("its metadata has {len} bytes, more than the {METADATA_BYTES_MAX} allowed"));
    }
    let mut names = BTreeSet::new();
    for Tensor { name, dtype, shape, bytes, .. } in tensors {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "a tensor's name has {} bytes; it must have 1 to {NAME_BYTES_MAX}",
                name.len()
            ));
        }
        if !names.insert(name) {
            return Err(format!("two tensors have the name `{name}`"));
        }
        if shape.len() > DIMENSIONS_MAX {
            let count = shape.len();
            return Err(format!("tensor `{name}` has {count} dimensions, more than {DIMENSIONS_MAX}"));
        }
        if dtype.bytes(shape) != Some(*bytes) {
            let wanted = dtype.bytes(shape).map_or("too many".to_owned(), |it| it.to_string());
            return Err(format!(
                "tensor `{name}` has {bytes} bytes, but {dtype} of shape {shape:?} is {wanted}"
            ));
        }
    }
    Ok(())
}

fn header_bytes(tensors: &[Tensor], metadata: &[u8]) -> usize {
    let tensors = tensors.iter().map(|it| TENSOR_BYTES + it.shape.len() * 8 + it.name.len());
    PRELUDE_BYTES + tensors.sum::<usize>() + metadata.len()
}

struct Prelude {
    bytes: usize,
    tensors: usize,
    metadata: usize,
}

/// The bytes left to decode.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let short = DecodeError::Bad("its header ends in the middle of a part");
        let (taken, rest) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .ok_or(DecodeError::Bad("its header ends in the middle of a number"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<usize, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn prelude(&mut self, len: u64) -> Result<Prelude, DecodeError> {
        if self.array()? != MAGIC {
            return Err(DecodeError::Bad("it does not begin with the magic of a sample"));
        }
        if self.u32()? != VERSION as usize {
            return Err(DecodeError::Bad("its format has another version"));
        }
        let prelude = Prelude { bytes: self.u32()?, tensors: self.u32()?, metadata: self.u32()? };
        if self.u64()? != len {
            return Err(DecodeError::Bad("its length is not the one in its header"));
        }
        let fits = (PRELUDE_BYTES..=HEADER_BYTES_MAX).contains(&prelude.bytes) && prelude.bytes as u64 <= len;
        if !fits || prelude.tensors > TENSORS_MAX || prelude.metadata > METADATA_BYTES_MAX {
            return Err(DecodeError::Bad("its header exceeds the maximum length"));
        }
        Ok(prelude)
    }

    fn tensor(&mut self) -> Result<Tensor, DecodeError> {
        let (offset, bytes) = (self.u64()?, self.u64()?);
        let name = u16::from_le_bytes(self.array()?) as usize;
        let [dtype, dimensions] = self.array()?;
        let _reserved: [u8; 4] = self.array()?;
        let dtype = Dtype::of_code(dtype).ok_or(DecodeError::Bad("the type of a tensor is unknown"))?;
        if dimensions as usize > DIMENSIONS_MAX || name > NAME_BYTES_MAX {
            return Err(DecodeError::Bad("a tensor's name or shape is too long"));
        }
        let shape = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let name = str::from_utf8(self.take(name)?);
        let name = name.map_err(|_| DecodeError::Bad("the name of a tensor is not UTF-8"))?.to_owned();
        if dtype.bytes(&shape) != Some(bytes) {
            return Err(DecodeError::Bad("the length of a tensor does not match its type and shape"));
        }
        Ok(Tensor { name, dtype, shape, offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> Tensor {
        let bytes = dtype.bytes(shape).unwrap();
        Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), offset: 0, bytes }
    }

    fn example() -> Manifest {
        let tensors = vec![
            tensor("hidden", Dtype::Bf16, &[3, 5]),
            tensor("scalar", Dtype::I64, &[]),
            tensor("nothing", Dtype::F32, &[0, u64::MAX]),
            tensor("mask", Dtype::Bool, &[65]),
        ];
        Manifest::lay_out(tensors, b"{\"step\": 7}").unwrap()
    }

    #[test]
    fn header_decodes_to_what_was_encoded() {
        let manifest = example();
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes, manifest.len), Ok(manifest.clone()));
        assert!(manifest.tensors.iter().all(|it| it.offset.is_multiple_of(TENSOR_ALIGN)));
        assert_eq!(manifest.tensor("mask").map(|it| it.offset + it.bytes), Some(manifest.len));
        // The bytes after the header are ignored.
        let more = [bytes, vec![0xff; 100]].concat();
        assert_eq!(Manifest::decode(&more, manifest.len), Ok(manifest));
    }

    #[test]
    fn truncated_header_reports_its_length() {
        let manifest = example();
        let bytes = manifest.encode();
        for cut in PRELUDE_BYTES..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..cut], manifest.len), Err(DecodeError::Short(bytes.len())));
        }
        for cut in 0..PRELUDE_BYTES {
            assert!(Manifest::decode(&bytes[..cut], manifest.len).is_err());
        }
    }

    #[test]
    fn changed_header_is_rejected_or_still_consistent() {
        let manifest = example();
        let bytes = manifest.encode();
        for at in 0..bytes.len() {
            for flip in [1, 0x10, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                let Ok(read) = Manifest::decode(&changed, manifest.len) else { continue };
                let mut end = bytes.len() as u64;
                for tensor in &read.tensors {
                    assert!(
                        tensor.offset >= end && tensor.offset + tensor.bytes <= manifest.len,
                        "byte {at}"
                    );
                    assert_eq!(tensor.dtype.bytes(&tensor.shape), Some(tensor.bytes), "byte {at}");
                    end = tensor.offset + tensor.bytes;
                }
            }
        }
        assert!(Manifest::decode(&bytes, manifest.len + 1).is_err());
    }

    #[test]
    fn invalid_sample_is_rejected_with_the_reason() {
        let short = Tensor { bytes: 3, ..tensor("t", Dtype::F32, &[1]) };
        let deep = tensor("deep", Dtype::U8, &[1; DIMENSIONS_MAX + 1]);
        let huge = Tensor { bytes: 8, ..tensor("huge", Dtype::U8, &[8]) };
        let huge = Tensor { shape: vec![u64::MAX, 2], ..huge };
        let a = || tensor("a", Dtype::U8, &[1]);
        for (tensors, why) in [
            (vec![], "no tensors"),
            (vec![a(), a()], "two tensors have the name `a`"),
            (vec![a(), short], "tensor `t` has 3 bytes, but f32 of shape [1] is 4"),
            (vec![deep], "tensor `deep`"),
            (vec![huge], "too many"),
            (vec![tensor("", Dtype::U8, &[1])], "name has 0 bytes"),
            (vec![a(); TENSORS_MAX + 1], "more than the 4096"),
        ] {
            let problem = Manifest::lay_out(tensors, b"").unwrap_err();
            assert!(problem.contains(why), "{problem}");
        }
    }

    #[test]
    fn types_have_unique_names_and_numbers() {
        for dtype in Dtype::all() {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.long_name().parse(), Ok(dtype));
            assert_eq!(Dtype::of_code(dtype.code()), Some(dtype));
            assert_eq!(DTYPES.iter().filter(|row| row.1 == dtype.code()).count(), 1);
        }
        assert!("f33".parse::<Dtype>().is_err());
        assert_eq!(Dtype::Bf16.bytes(&[2, 3]), Some(12));
    }
}
