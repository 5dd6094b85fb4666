//! The trace context of a call: which trace it belongs to, and which span it continues.
//!
//! It is that of W3C Trace Context, whose text form is the header `traceparent`. Requests carry it as bytes.

use std::fmt;

/// The length of a `traceparent` of version 0.
const TEXT_BYTES: usize = 55;
/// The bit of the flags that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// A position in a trace. Neither id is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

impl TraceContext {
    /// The number of bytes on the wire.
    pub const BYTES: usize = 25;

    /// Parses a `traceparent`. `None` if it is invalid: the standard wants that it is ignored then.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.as_bytes().split_at_checked(TEXT_BYTES)?;
        let mut parts = head.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let (trace, span) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags] = hex(parts.next()?)?;
        // A later version may append further parts; 255 is no version.
        let is_known = match version {
            0 => rest.is_empty(),
            u8::MAX => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        Self::new(trace, span, flags).filter(|_| is_known && parts.next().is_none())
    }

    /// `None` if one of the ids is zero.
    #[must_use]
    pub fn new(trace: [u8; 16], span: [u8; 8], flags: u8) -> Option<Self> {
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self { trace, span, flags })
    }

    /// The same trace, at another span. `None` if the id is zero.
    #[must_use]
    pub fn at(self, span: [u8; 8]) -> Option<Self> {
        Self::new(self.trace, span, self.flags)
    }

    /// Whether the caller records the trace. Spans of other traces are not exported.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The id of the trace, as text.
    #[must_use]
    pub fn trace_id(&self) -> String {
        text(&self.trace)
    }

    /// The id of the span, as text.
    #[must_use]
    pub fn span_id(&self) -> String {
        text(&self.span)
    }

    /// The bytes on the wire: both ids in the order of their text, then the flags.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let from = self.trace.iter().chain(&self.span).chain([&self.flags]);
        bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// The context in these bytes. `None` if one of the ids is zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (trace, rest) = bytes.split_first_chunk()?;
        let (span, rest) = rest.split_first_chunk()?;
        Self::new(*trace, *span, *rest.first()?)
    }
}

/// The `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{}-{}-{:02x}", self.trace_id(), self.span_id(), self.flags)
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (to, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = *pair;
        *to = value(high)? << 4 | value(low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_survives_text_and_bytes() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id(), "00f067aa0ba902b7");
        assert!(context.is_sampled());
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        assert_eq!(TraceContext::from_bytes(&[0; TraceContext::BYTES]), None);
        let unsampled = TraceContext::parse(&GOOD.replace("-01", "-00")).unwrap();
        assert!(!unsampled.is_sampled());
        assert_eq!(
            context.at([7; 8]).unwrap().to_string(),
            GOOD.replace("00f067aa0ba902b7", "0707070707070707")
        );
        assert_eq!(context.at([0; 8]), None);
    }

    #[test]
    fn later_versions_may_append_parts() {
        for text in [GOOD.replacen("00", "01", 1), GOOD.replacen("00", "cc", 1) + "-more"] {
            assert!(TraceContext::parse(&text).is_some(), "{text}");
        }
    }

    #[test]
    fn invalid_traceparents_are_rejected() {
        for text in [
            String::new(),
            "00".to_owned(),
            GOOD[..54].to_owned(),
            GOOD.to_uppercase(),
            GOOD.replacen("00", "ff", 1),
            GOOD.replace("-01", "-01-more"),
            GOOD.replacen("00", "01", 1) + "more",
            GOOD.replace('-', "_"),
            GOOD.replace("-01", "-0g"),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("4bf9", "4bé"),
            " ".to_owned() + GOOD,
        ] {
            assert_eq!(TraceContext::parse(&text), None, "{text}");
        }
    }
}
