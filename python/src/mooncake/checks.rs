//! Finds out what is at an address before any copy: memory of this process, of a device, or nothing usable.
//!
//! Freed memory or a wrong number would crash the process with a signal. The access rights of a registered
//! range are checked at its registration. A call only checks that registered ranges are still mapped, all
//! ranges of one registration together. Other ranges are probed one by one.
//!
//! The processor cannot access device memory, so a device pointer always fails the probe. Only then is the
//! CUDA driver asked, if this process has loaded it.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_client::gpu::{DeviceError, Finder, Place};
use tiffin_client::probe::{Access, Coverage, is_accessible, is_mapped};

use super::codes;
use super::log::tell;
use super::open::Open;

/// The hint for a rejected address.
const HINT: &str = "hint: keep the memory allocated until the call returns; device memory needs the CUDA \
                    driver in this process";

/// The ranges of a call that were checked.
#[derive(Default)]
pub(super) struct Checked {
    /// For each key, whether its ranges can be accessed.
    pub(super) usable: Vec<bool>,
    pub(super) devices: Devices,
}

/// The ranges of a call that are on devices: end and place, by their start.
#[derive(Default)]
pub(super) struct Devices {
    ranges: BTreeMap<u64, (u64, &'static Place)>,
    finder: Finder,
}

impl Devices {
    /// The device of these bytes, which were checked before; `None` for host memory.
    pub(super) fn place(&self, start: u64, len: u64) -> Option<&'static Place> {
        let (_, (end, place)) = self.ranges.range(..=start).next_back()?;
        (start.checked_add(len)? <= *end).then_some(*place)
    }

    /// Asks the driver about a range, unless it is a part of the last one.
    fn find(&mut self, start: u64, len: u64) -> Result<(), DeviceError> {
        let device = self.finder.find(start, len)?;
        let place = Place::legacy(device).ok_or(DeviceError::NotDevice { start, len })?;
        let end = start.saturating_add(len);
        let (from, to) = self.finder.last().map_or((start, end), |(from, to)| (from.min(start), to.max(end)));
        let range = self.ranges.entry(from).or_insert((to, place));
        *range = (range.0.max(to), place);
        Ok(())
    }
}

/// Checks the ranges of each key. If some cannot be accessed in this way, one line on standard error names
/// them.
pub(super) fn usable(open: &Open, call: &str, ranges: &[Vec<(u64, u64)>], access: Access) -> Checked {
    let registered = open.registry.view();
    let region = |&(start, len): &(u64, u64)| registered.region(start, len, access);
    let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for range in ranges.iter().flatten() {
        if let Some(region) = region(range) {
            let span = spans.entry(region).or_insert((range.0, range.0));
            *span = (span.0.min(range.0), span.1.max(range.0 + range.1));
        }
    }
    let is_whole = |(_, (start, end)): &(u64, (u64, u64))| is_mapped(*start as usize, (end - start) as usize);
    let whole: BTreeSet<_> = spans.into_iter().filter(is_whole).map(|(region, _)| region).collect();
    let (mut refused, mut devices) = (None, Devices::default());
    let mut is_usable = |range: &(u64, u64)| {
        // No memory can be at such a range, which needs no system call.
        if range.0 == 0 || range.0.checked_add(range.1).is_none() {
            return true;
        }
        if devices.place(range.0, range.1).is_some() || region(range).is_some_and(|it| whole.contains(&it)) {
            return true;
        }
        if !registered.is_on_device(range.0) && is_probed(*range, access) {
            return true;
        }
        let found = devices.find(range.0, range.1);
        if let Err(error) = &found {
            refused = refused.take().or(Some((*range, error.clone())));
        }
        found.is_ok()
    };
    let usable: Vec<_> = ranges.iter().map(|ranges| ranges.iter().all(&mut is_usable)).collect();
    drop(registered);
    if let Some(((start, len), error)) = refused {
        let count = usable.iter().filter(|is_usable| !**is_usable).count();
        let of = if ranges.len() > 1 { format!(" {count} of {} keys,", ranges.len()) } else { String::new() };
        tell_refused(&format!("{call} refused{of}"), (start, len), access, &error);
    }
    Checked { usable, devices }
}

/// The same for one range, without a message: its device, or `None` for host memory.
pub(super) fn find(
    open: &Open,
    start: u64,
    len: u64,
    access: Access,
) -> Result<Option<&'static Place>, DeviceError> {
    let is_host = match open.registry.view().region(start, len, access) {
        Some(_) if is_mapped(start as usize, len as usize) => true,
        _ => is_probed((start, len), access),
    };
    if is_host { Ok(None) } else { tiffin_client::gpu::find(start, len).map(Some) }
}

/// Prints one line with the rejected address, and the reason.
pub(super) fn tell_refused(what: &str, (start, len): (u64, u64), access: Access, error: &DeviceError) {
    let can = match access {
        Access::Read => "read",
        Access::Write => "write",
    };
    let code = codes::INVALID_PARAMS;
    let (why, hint) = match error {
        // Nothing more is known.
        DeviceError::NoDriver | DeviceError::NotDevice { .. } => (String::new(), format!("; {HINT}")),
        error => (format!(": {error}"), String::new()),
    };
    tell(&format!(
        "{what} ({code}): {len} bytes at {start:#x} are not memory that this process can {can}{why}{hint}"
    ));
}

fn is_probed((start, len): (u64, u64), access: Access) -> bool {
    let range = (usize::try_from(start), usize::try_from(len));
    matches!(range, (Ok(start), Ok(len)) if is_accessible(start, len, access, Coverage::Ends))
}
