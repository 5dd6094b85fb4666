//! Fixed little-endian fields in sequence, for the headers of the attach and data sockets.

/// Decodes fields from the front of a slice.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*field))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*field))
    }
}

/// Encodes fields in sequence.
#[derive(Default)]
pub(crate) struct Builder(pub(crate) Vec<u8>);

impl Builder {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// The text, truncated to the limit of an answer.
pub(crate) fn short_reason(reason: &str) -> &str {
    reason.get(..reason.floor_char_boundary(crate::REASON_BYTES_MAX)).unwrap_or_default()
}
