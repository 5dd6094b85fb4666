//! Reads the few fields of a certificate that people ask for: its names, and when it ends.
//!
//! It is not used to decide whom to trust. It accepts any bytes.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;

/// Tags of the encoding.
const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// The object id of the extension with the names.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The hosts that it is for: names and addresses.
    pub hosts: Vec<String>,
    /// When it becomes valid, in seconds since the Unix epoch.
    pub begins_s: u64,
    /// When it ends, in seconds since the Unix epoch.
    pub ends_s: u64,
}

impl CertificateInfo {
    /// Reads a certificate; `None` if it does not have the usual form.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let mut outer = Reader(certificate.as_ref());
        let mut whole = Reader(outer.take(SEQUENCE)?);
        let mut fields = Reader(whole.take(SEQUENCE)?);
        if fields.peek()? == VERSION {
            fields.next()?;
        }
        // Its number, how it is signed, and by whom.
        for _ in 0..3 {
            fields.next()?;
        }
        let mut validity = Reader(fields.take(SEQUENCE)?);
        let (begins_s, ends_s) = (time(validity.next()?)?, time(validity.next()?)?);
        let mut hosts = Vec::new();
        while let Some((tag, content)) = fields.next() {
            if tag == EXTENSIONS {
                hosts = names(content).unwrap_or_default();
            }
        }
        Some(Self { hosts, begins_s, ends_s })
    }
}

/// A sequence of tagged values.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next value, with its tag.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut len = usize::from(first & 0x7f);
        if first & 0x80 != 0 {
            let (bytes, behind) = rest.split_at_checked(len).filter(|(bytes, _)| bytes.len() <= 4)?;
            len = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            rest = behind;
        }
        let (content, behind) = rest.split_at_checked(len)?;
        self.0 = behind;
        Some((tag, content))
    }

    /// The next value, if it has this tag.
    fn take(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }
}

fn names(extensions: &[u8]) -> Option<Vec<String>> {
    let mut extensions = Reader(Reader(extensions).take(SEQUENCE)?);
    while let Some(extension) = extensions.take(SEQUENCE) {
        let mut extension = Reader(extension);
        if extension.take(OBJECT)? != ALTERNATIVE_NAMES {
            continue;
        }
        // A flag may come first.
        let mut content = extension.next()?;
        if content.0 != OCTETS {
            content = extension.next()?;
        }
        let mut found = Reader(Reader(content.1).take(SEQUENCE)?);
        let mut names = Vec::new();
        while let Some(name) = found.next() {
            match name {
                (DNS_NAME, text) => names.push(String::from_utf8_lossy(text).into_owned()),
                (IP_ADDRESS, bytes) => names.extend(ip(bytes)),
                _ => {}
            }
        }
        return Some(names);
    }
    None
}

fn ip(bytes: &[u8]) -> Option<String> {
    let address: IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some(address.to_string())
}

/// Seconds since the Unix epoch: `YYMMDDhhmmssZ`, or with four digits for the year.
fn time((tag, text): (u8, &[u8])) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let digits = match tag {
        UTC_TIME => 2,
        GENERAL_TIME => 4,
        _ => return None,
    };
    let (year, rest) = text.split_at_checked(digits)?;
    let mut year: u64 = year.parse().ok()?;
    if tag == UTC_TIME {
        year += if year < 50 { 2000 } else { 1900 };
    }
    let part = |at: usize| rest.get(2 * at..2 * at + 2)?.parse::<u64>().ok();
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Days since the epoch, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_the_epoch() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "240229123456Z", Some(1_709_210_096)),
            (GENERAL_TIME, "20500101000000Z", Some(2_524_608_000)),
            (UTC_TIME, "241329123456Z", None),
            (UTC_TIME, "2402", None),
            (SEQUENCE, "240229123456Z", None),
        ] {
            assert_eq!(time((tag, text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn any_bytes_are_accepted() {
        let whole = crate::ca::Authority::create().unwrap();
        let der = whole.certificate().clone();
        let info = CertificateInfo::of(&der).unwrap();
        assert!(info.begins_s < info.ends_s && info.hosts.is_empty());
        for end in 0..der.len() {
            let cut = CertificateDer::from(der[..end].to_vec());
            assert_eq!(CertificateInfo::of(&cut), None, "{end} bytes");
        }
        for at in 0..der.len() {
            let mut changed = der.to_vec();
            changed[at] ^= 0xff;
            let _any = CertificateInfo::of(&changed.into());
        }
    }
}
