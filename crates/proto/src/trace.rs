//! The trace context of a request: one more field, before those of its message.
//!
//! No message has a field of that number, so a receiver that does not know it skips it, and one that does
//! finds it at the beginning of the payload.

use tiffin_types::trace::TraceContext;

use crate::codec::{Wire, Writer};

/// The number of the field.
const NUMBER: u32 = 1000;
/// The field up to its contents: tag and length.
const HEAD: [u8; 3] = [0xc2, 0x3e, TraceContext::BYTES as u8];

/// Writes the field.
pub(crate) fn encode(trace: &TraceContext, out: &mut Writer) {
    out.tag(NUMBER, Wire::Bytes);
    out.slice(&trace.to_bytes());
}

/// The trace context in the payload of a request, if it has one.
#[must_use]
pub fn trace_of(payload: &[u8]) -> Option<TraceContext> {
    let (head, rest) = payload.split_first_chunk()?;
    if *head != HEAD {
        return None;
    }
    TraceContext::from_bytes(rest.first_chunk()?)
}
