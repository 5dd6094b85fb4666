//! What simulations observe of a master's members, beyond its answers.

use super::{Master, members::Standing};
use crate::SegmentId;

/// The members that a request waits for, also one that is not sent yet.
pub fn asked_members(master: &Master) -> impl Iterator<Item = SegmentId> + '_ {
    let cx = &master.objects.cx;
    cx.waits.values().filter_map(|(node, _)| Some(cx.members.get(*node)?.info.segment))
}

/// The members that have been away for too long.
pub fn absent_members(master: &Master) -> impl Iterator<Item = SegmentId> + '_ {
    let members = master.objects.cx.members.iter();
    members.filter(|(_, it)| it.standing == Standing::Absent).map(|(_, it)| it.info.segment)
}
