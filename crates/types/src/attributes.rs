//! The attributes that members store with an object's name, so that they survive the master: the number of
//! copies that it should have, its pins, when it expires and, if it is a sample, its consumption state.
//!
//! The bytes in a node's memory are a list of (kind, length, text): one byte, four bytes little-endian,
//! UTF-8.

use crate::{ATTRIBUTES_MAX, OWNER_BYTES_MAX, REPLICAS_MAX, TTL_MS_MAX, message::PutOptions};

const PIN: u8 = 1;
const ONCE: u8 = 2;
const RETAINED: u8 = 3;
const GROUP: u8 = 4;
const ACKED: u8 = 5;
const STREAM: u8 = 6;
const ELSEWHERE: u8 = 7;
const COPIES: u8 = 8;
const EXPIRY: u8 = 9;

/// Hexadecimal digits of a number in the text of an expiry. All have the same length, so that the space for
/// it can be reserved before its end is known.
const DIGITS: usize = 16;

/// Maximum number of bytes of one sample that are stored elsewhere.
const ELSEWHERE_MAX: u64 = 1 << 44;

/// How a sample is consumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Consumption {
    /// By the first group that acknowledges it; then it is removed.
    #[default]
    Once,
    /// By each of these groups once; it is removed after the last.
    Groups(Vec<String>),
    /// By any group, any number of times, until it is deleted.
    Retained,
}

/// The durable part of a sample's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleAttributes {
    /// How it is consumed.
    pub consumption: Consumption,
    /// The groups that have acknowledged it.
    pub acked: Vec<String>,
    /// The stream that it belongs to; empty if none.
    pub stream: String,
    /// See [`PutOptions::elsewhere`].
    pub elsewhere: u64,
}

impl SampleAttributes {
    /// Whether its last consumer has acknowledged it, so that only leases keep it.
    #[must_use]
    pub fn is_consumed(&self) -> bool {
        match &self.consumption {
            Consumption::Once => !self.acked.is_empty(),
            Consumption::Groups(groups) => groups.iter().all(|group| self.acked.contains(group)),
            Consumption::Retained => false,
        }
    }
}

/// When an object with a TTL expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// The TTL of its put, in milliseconds.
    pub ttl_ms: u64,
    /// The end of the TTL: milliseconds since the Unix epoch, on the wall clock of the master that decided
    /// about the put. Zero before that.
    pub ends_ms: u64,
}

impl Expiry {
    fn to_text(self) -> String {
        let Self { ttl_ms, ends_ms } = self;
        format!("{ttl_ms:0DIGITS$x}{ends_ms:0DIGITS$x}")
    }

    fn from_text(text: &str) -> Option<Self> {
        let (ttl_ms, ends_ms) = text.split_at_checked(DIGITS).filter(|it| it.1.len() == DIGITS)?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let ttl_ms = number(ttl_ms).filter(|it| (1..=TTL_MS_MAX).contains(it))?;
        Some(Self { ttl_ms, ends_ms: number(ends_ms)? })
    }
}

/// The attributes of an object; see the module. Most objects have none, and records of objects are moved
/// often, so rare parts are boxed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The owners of its hard pins, each once. The empty name is a valid owner.
    pub pins: Vec<String>,
    /// It is a sample: never evicted before it is consumed.
    pub sample: Option<Box<SampleAttributes>>,
    /// On how many nodes it is to have a copy, if on more than one; else zero.
    pub copies: u32,
    /// When it expires, if it has a TTL.
    pub expiry: Option<Box<Expiry>>,
}

impl Attributes {
    /// The attributes that a put requests.
    #[must_use]
    pub fn of(options: &PutOptions) -> Self {
        let pins = if options.hard_pin { vec![options.owner.clone()] } else { Vec::new() };
        let sample = options.sample.clone().map(|consumption| {
            Box::new(SampleAttributes {
                consumption,
                acked: Vec::new(),
                stream: options.stream.clone(),
                elsewhere: options.elsewhere,
            })
        });
        let copies = if options.replicas > 1 { options.replicas } else { 0 };
        let expiry = options.ttl_ms.map(|ttl_ms| Box::new(Expiry { ttl_ms, ends_ms: 0 }));
        Self { pins, sample, copies, expiry }
    }

    /// What is wrong with the attributes that a put requests, if anything.
    #[must_use]
    pub fn problem(options: &PutOptions) -> Option<String> {
        let too_long = |name: &String| name.len() > OWNER_BYTES_MAX;
        if too_long(&options.owner) {
            return Some(format!("the owner's name has more than {OWNER_BYTES_MAX} bytes"));
        }
        if too_long(&options.stream) {
            return Some(format!("the stream's name has more than {OWNER_BYTES_MAX} bytes"));
        }
        if !options.stream.is_empty() && matches!(options.sample, None | Some(Consumption::Retained)) {
            return Some(format!(
                "only a sample that is consumed once, or by each of its groups, can be in the stream `{}`",
                options.stream
            ));
        }
        if let Some(ttl_ms) = options.ttl_ms.filter(|it| !(1..=TTL_MS_MAX).contains(it)) {
            return Some(format!(
                "a TTL of {ttl_ms} ms: it must be 1 ms to {} days",
                TTL_MS_MAX / 86_400_000
            ));
        }
        if options.ttl_ms.is_some() && options.sample.is_some() {
            return Some("a sample has no TTL: it exists until it is consumed".to_owned());
        }
        if options.elsewhere > ELSEWHERE_MAX || options.elsewhere > 0 && options.sample.is_none() {
            return Some(format!(
                "{} bytes elsewhere: only a sample may have them, at most {ELSEWHERE_MAX}",
                options.elsewhere
            ));
        }
        let Some(Consumption::Groups(groups)) = &options.sample else { return None };
        if groups.is_empty() || groups.len() > ATTRIBUTES_MAX {
            return Some(format!(
                "{} consumer groups: the number must be 1 to {ATTRIBUTES_MAX}",
                groups.len()
            ));
        }
        let bad = groups
            .iter()
            .enumerate()
            .find(|(at, name)| too_long(name) || groups.iter().take(*at).any(|earlier| earlier == *name));
        bad.map(|(_, name)| format!("the consumer group `{name}` is named twice, or its name is too long"))
    }

    /// Whether the object must not be evicted.
    #[must_use]
    pub fn protect(&self) -> bool {
        !self.pins.is_empty() || self.sample.is_some()
    }

    /// The bytes in memory.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pins.iter().for_each(|owner| push(&mut bytes, PIN, owner));
        if self.copies > 1 {
            push(&mut bytes, COPIES, &self.copies.to_string());
        }
        if let Some(expiry) = &self.expiry {
            push(&mut bytes, EXPIRY, &expiry.to_text());
        }
        let Some(sample) = &self.sample else { return bytes };
        match &sample.consumption {
            Consumption::Once => push(&mut bytes, ONCE, ""),
            Consumption::Retained => push(&mut bytes, RETAINED, ""),
            Consumption::Groups(groups) => groups.iter().for_each(|group| push(&mut bytes, GROUP, group)),
        }
        sample.acked.iter().for_each(|group| push(&mut bytes, ACKED, group));
        if !sample.stream.is_empty() {
            push(&mut bytes, STREAM, &sample.stream);
        }
        if sample.elsewhere > 0 {
            push(&mut bytes, ELSEWHERE, &sample.elsewhere.to_string());
        }
        bytes
    }

    /// Decodes the bytes; `None` if they are invalid.
    #[must_use]
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut attributes = Self::default();
        let sample = |attributes: &mut Self| attributes.sample.take().unwrap_or_default();
        while let Some((&kind, rest)) = bytes.split_first() {
            let (len, rest) = rest.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            let text = std::str::from_utf8(text).ok()?.to_owned();
            bytes = rest;
            if kind == PIN {
                attributes.pins.push(text);
                continue;
            }
            if kind == COPIES {
                attributes.copies = text.parse().ok().filter(|it| (2..=REPLICAS_MAX).contains(it))?;
                continue;
            }
            if kind == EXPIRY {
                attributes.expiry = Some(Box::new(Expiry::from_text(&text)?));
                continue;
            }
            let mut it = sample(&mut attributes);
            match (kind, &mut it.consumption) {
                (ONCE, _) => it.consumption = Consumption::Once,
                (RETAINED, _) => it.consumption = Consumption::Retained,
                (GROUP, Consumption::Groups(groups)) => groups.push(text),
                (GROUP, _) => it.consumption = Consumption::Groups(vec![text]),
                (ACKED, _) => it.acked.push(text),
                (STREAM, _) => it.stream = text,
                (ELSEWHERE, _) => it.elsewhere = text.parse().ok()?,
                _ => return None,
            }
            attributes.sample = Some(it);
        }
        Some(attributes)
    }
}

fn push(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    bytes.push(kind);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_know_whether_they_request_attributes() {
        let hard_pin = PutOptions { hard_pin: true, ..PutOptions::default() };
        let sample = PutOptions { sample: Some(Consumption::Once), ..PutOptions::default() };
        let copies = |replicas| PutOptions { replicas, ..PutOptions::default() };
        let soft_pin = PutOptions { soft_pin_ms: Some(1), owner: "run".into(), ..PutOptions::default() };
        let ttl = PutOptions { ttl_ms: Some(1), ..PutOptions::default() };
        for options in [hard_pin, sample, soft_pin, ttl, copies(0), copies(1), copies(2)] {
            let has_none = Attributes::of(&options) == Attributes::default();
            assert_eq!(options.has_no_attributes(), has_none, "{options:?}");
        }
    }

    #[test]
    fn attributes_decode_to_what_was_encoded() {
        let group = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let sample = |consumption, acked: &[&str]| {
            let acked = group(acked);
            Some(Box::new(SampleAttributes { consumption, acked, ..SampleAttributes::default() }))
        };
        let expiry = |ttl_ms, ends_ms| Some(Box::new(Expiry { ttl_ms, ends_ms }));
        let streamed =
            SampleAttributes { stream: "train".into(), elsewhere: 7 << 30, ..SampleAttributes::default() };
        for attributes in [
            Attributes::default(),
            Attributes { pins: group(&["", "run-7"]), ..Attributes::default() },
            Attributes { copies: REPLICAS_MAX, ..Attributes::default() },
            Attributes { sample: sample(Consumption::Once, &[]), copies: 2, ..Attributes::default() },
            Attributes { sample: Some(Box::new(streamed)), ..Attributes::default() },
            Attributes { sample: sample(Consumption::Retained, &["a"]), ..Attributes::default() },
            Attributes {
                pins: group(&["x"]),
                sample: sample(Consumption::Groups(group(&["a", "b"])), &["b"]),
                copies: 3,
                expiry: None,
            },
            Attributes { expiry: expiry(1, 0), ..Attributes::default() },
            Attributes { pins: group(&["x"]), expiry: expiry(TTL_MS_MAX, u64::MAX), ..Attributes::default() },
        ] {
            assert_eq!(Attributes::from_bytes(&attributes.to_bytes()), Some(attributes));
        }
    }

    #[test]
    fn invalid_attributes_are_reported() {
        let groups = |names: &[&str]| PutOptions {
            sample: Some(Consumption::Groups(names.iter().map(|it| (*it).to_owned()).collect())),
            ..PutOptions::default()
        };
        assert_eq!(Attributes::problem(&groups(&["a", "b"])), None);
        assert!(Attributes::problem(&groups(&[])).is_some_and(|it| it.contains("0 consumer groups")));
        assert!(Attributes::problem(&groups(&["a", "b", "a"])).is_some_and(|it| it.contains("`a`")));
        assert!(Attributes::problem(&groups(&vec!["x"; ATTRIBUTES_MAX + 1])).is_some());
        let stream = |sample| PutOptions { sample, stream: "s".into(), ..PutOptions::default() };
        assert_eq!(Attributes::problem(&stream(Some(Consumption::Once))), None);
        for wrong in [stream(None), stream(Some(Consumption::Retained))] {
            assert!(Attributes::problem(&wrong).is_some_and(|it| it.contains("stream `s`")));
        }
        let elsewhere = |sample, elsewhere| {
            Attributes::problem(&PutOptions { sample, elsewhere, ..PutOptions::default() })
        };
        assert_eq!(elsewhere(Some(Consumption::Once), ELSEWHERE_MAX), None);
        for wrong in [elsewhere(None, 1), elsewhere(Some(Consumption::Once), ELSEWHERE_MAX + 1)] {
            assert!(wrong.is_some_and(|it| it.contains("bytes elsewhere")));
        }
        let ttl = |sample, ttl_ms| {
            Attributes::problem(&PutOptions { sample, ttl_ms: Some(ttl_ms), ..PutOptions::default() })
        };
        assert_eq!((ttl(None, 1), ttl(None, TTL_MS_MAX)), (None, None));
        for wrong in [ttl(None, 0), ttl(None, TTL_MS_MAX + 1), ttl(Some(Consumption::Once), 1)] {
            assert!(wrong.is_some_and(|it| it.contains("TTL")));
        }
        let owner = PutOptions { owner: "x".repeat(OWNER_BYTES_MAX + 1), ..PutOptions::default() };
        assert!(Attributes::problem(&owner).is_some_and(|it| it.contains("owner")));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let bad = [&[99, 0, 0, 0, 0][..], &[1, 5, 0, 0, 0, b'a'], &[1, 0], &[1, 1, 0, 0, 0, 0xff]];
        let bad_numbers = [&[7, 1, 0, 0, 0, b'x'][..], &[8, 1, 0, 0, 0, b'1'], &[8, 2, 0, 0, 0, b'9', b'9']];
        for bytes in bad.into_iter().chain(bad_numbers) {
            assert_eq!(Attributes::from_bytes(bytes), None);
        }
        let texts = ["", "1", "00000000000000010000000000000zz0", "00000000000000000000000000000001"];
        for text in texts.into_iter().chain(["ffffffffffffffff0000000000000001", "éééééééééééééééé"])
        {
            let mut bytes = Vec::new();
            push(&mut bytes, EXPIRY, text);
            assert_eq!(Attributes::from_bytes(&bytes), None, "{text}");
        }
    }
}
