//! Rejects addresses that are not memory of this process, before any copy.
//!
//! A device pointer, freed memory or a wrong number would crash the process with a signal. The access
//! rights of a registered range are checked at its registration. A call only checks that registered ranges
//! are still mapped, all ranges of one registration together. Other ranges are probed one by one.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_client::probe::{Access, Coverage, is_accessible, is_mapped};

use super::codes;
use super::open::{Open, tell};

/// The hint for a rejected address.
const HINT: &str = "hint: copy device memory to the host first, as in `tensor.cpu()`, and keep host memory \
                    mapped until the call returns";

/// For each key, whether its ranges can be accessed in this way. If some cannot, one line on standard error
/// names them.
pub(super) fn usable(open: &Open, call: &str, ranges: &[Vec<(u64, u64)>], access: Access) -> Vec<bool> {
    let region = |&(start, len): &(u64, u64)| open.registry.region(start, len, access);
    let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for range in ranges.iter().flatten() {
        if let Some(region) = region(range) {
            let span = spans.entry(region).or_insert((range.0, range.0));
            *span = (span.0.min(range.0), span.1.max(range.0 + range.1));
        }
    }
    let is_whole = |(_, (start, end)): &(u64, (u64, u64))| is_mapped(*start as usize, (end - start) as usize);
    let whole: BTreeSet<_> = spans.into_iter().filter(is_whole).map(|(region, _)| region).collect();
    let mut refused = None;
    let mut is_usable = |range: &(u64, u64)| {
        // No memory can be at such a range, which needs no system call.
        if range.0 == 0 || range.0.checked_add(range.1).is_none() {
            return true;
        }
        let is_usable = region(range).is_some_and(|it| whole.contains(&it)) || is_probed(*range, access);
        if !is_usable {
            refused = refused.or(Some(*range));
        }
        is_usable
    };
    let usable: Vec<_> = ranges.iter().map(|ranges| ranges.iter().all(&mut is_usable)).collect();
    if let Some((start, len)) = refused {
        let count = usable.iter().filter(|is_usable| !**is_usable).count();
        let of = if ranges.len() > 1 { format!(" {count} of {} keys,", ranges.len()) } else { String::new() };
        tell_refused(&format!("{call} refused{of}"), start, len, access);
    }
    usable
}

/// The same for one range, without a message.
pub(super) fn is_usable(open: &Open, start: u64, len: u64, access: Access) -> bool {
    match open.registry.region(start, len, access) {
        Some(_) if is_mapped(start as usize, len as usize) => true,
        _ => is_probed((start, len), access),
    }
}

/// Prints one line with the rejected address, and the reason.
pub(super) fn tell_refused(what: &str, start: u64, len: u64, access: Access) {
    let can = match access {
        Access::Read => "read",
        Access::Write => "write",
    };
    let code = codes::INVALID_PARAMS;
    tell(&format!(
        "{what} ({code}): {len} bytes at {start:#x} are not memory that this process can {can}; {HINT}"
    ));
}

fn is_probed((start, len): (u64, u64), access: Access) -> bool {
    let range = (usize::try_from(start), usize::try_from(len));
    matches!(range, (Ok(start), Ok(len)) if is_accessible(start, len, access, Coverage::Ends))
}
