//! The decoders of this crate, for `tiffin-smoke` and cargo-fuzz.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;

use crate::control::{ControlReader, ControlWriter, SlotRecord, SlotState};
use crate::layout::Geometry;
use crate::map::{Access, Map};
use crate::tcp::frame::{
    HelloHead, Rejection, ReplyHead, ReplyKind, RequestHead, RequestKind, Status, WelcomeHead,
};
use crate::{Extent, REASON_BYTES_MAX, TOKEN_BYTES_MAX, journal, shm};

/// Name, decoder and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub const TARGETS: [Target; 4] = [
    ("data_socket", data_socket, data_headers),
    ("attach_socket", shm::wire::fuzz::decode, shm::wire::fuzz::seeds),
    ("control_segment", control_segment, control_segments),
    ("journal", journal::fuzz::read, journal::fuzz::rings),
];

const GEOMETRY: Geometry = Geometry { segment: 9, data_bytes: 1 << 16, slot_count: 4, heap_bytes: 4096 };
/// The greatest size of a file that is mapped.
const FILE_BYTES_MAX: u64 = 1 << 20;

fn data_socket(bytes: &[u8]) {
    if let Some(Ok(hello)) = bytes.first_chunk().map(HelloHead::decode) {
        assert!(hello.token_bytes <= TOKEN_BYTES_MAX);
    }
    if let Some(Ok(welcome)) = bytes.first_chunk().map(WelcomeHead::decode) {
        assert!(welcome.reason_bytes <= REASON_BYTES_MAX);
    }
    if let Some(chunk) = bytes.first_chunk()
        && let Ok(request) = RequestHead::decode(chunk)
    {
        assert_eq!(request.encode().first_chunk().map(RequestHead::decode), Some(Ok(request)));
    }
    if let Some(chunk) = bytes.first_chunk()
        && let Ok(reply) = ReplyHead::decode(chunk)
    {
        assert_eq!(reply.encode().first_chunk().map(ReplyHead::decode), Some(Ok(reply)));
    }
}

fn data_headers() -> Vec<Vec<u8>> {
    let (slot, id, stamp, offset, len) = (3, 4, 5, 6, 7);
    let request =
        |kind, cached_epoch| RequestHead { kind, slot, id, stamp, offset, len, cached_epoch }.encode();
    let reply = |kind, status| ReplyHead { kind, status, id, len, checksum: 8 }.encode();
    vec![
        request(RequestKind::Write, None),
        request(RequestKind::Read, Some(9)),
        request(RequestKind::Stage, None),
        request(RequestKind::Release, None),
        reply(ReplyKind::Data, Status::Ok),
        reply(ReplyKind::Trailer, Status::Stale),
        HelloHead::encode(7, 9, "secret"),
        WelcomeHead::encode(6, Ok(()), ""),
        WelcomeHead::encode(6, Err(Rejection::Refused), "no"),
    ]
}

/// A file as a control segment that another process has left, or hands over.
fn control_segment(bytes: &[u8]) {
    let len = bytes.len() as u64;
    let Ok(file) = memfd_create("tiffin-fuzz", MemfdFlags::CLOEXEC) else { return };
    if len == 0 || len > FILE_BYTES_MAX || ftruncate(&file, len).is_err() || pwrite(&file, bytes, 0).is_err()
    {
        return;
    }
    let Ok(map) = Map::new(file.as_fd(), len, Access::ReadOnly) else { return };
    let Some(reader) = ControlReader::open(Arc::new(map)) else { return };
    let geometry = reader.geometry();
    assert!(geometry.control_bytes() <= len);
    if let Ok(found) = reader.scan() {
        let is_inside = |it: &Extent| it.end().is_some_and(|end| end <= geometry.data_bytes);
        assert!(found.iter().all(|it| it.record.extents.iter().all(is_inside)));
        for use_of in found {
            let _may_be_stale = reader.load(use_of.slot, use_of.record.stamp);
            let _state = reader.state_of(use_of.slot, use_of.record.stamp);
        }
    }
}

fn control_segments() -> Vec<Vec<u8>> {
    let bytes = GEOMETRY.control_bytes();
    let file = |bytes: u64| {
        let file = memfd_create("tiffin-fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, bytes).expect("the size of a memory file");
        let map = Map::new(file.as_fd(), bytes, Access::ReadWrite).expect("a mapping");
        Arc::new(map)
    };
    let (control, claims) = (file(bytes), file(GEOMETRY.claims_bytes()));
    let content = || {
        let mut content = vec![0; bytes as usize];
        let source = control.source(Extent { offset: 0, len: bytes }).expect("the whole mapping");
        crate::copy::copy_out(source, &mut content);
        content
    };
    let mut writer = ControlWriter::initialise(Arc::clone(&control), claims, GEOMETRY);
    let empty = content();
    writer.write_heap(0, b"defaultkey");
    let (namespace, key) = (Extent { offset: 0, len: 7 }, Extent { offset: 7, len: 3 });
    let names = SlotRecord { namespace, key, name_bytes: 10, ..SlotRecord::default() };
    for (slot, count) in [(0, 1), (1, 2), (3, 5)] {
        let extents: Vec<_> = (0..count).map(|at| Extent { offset: at * 4096, len: 100 }).collect();
        let (stamp, state, len) = (40 + u64::from(slot), SlotState::Committed, 100 * count);
        let spill_offset = if extents.len() > 2 { 512 } else { 0 };
        writer.write_slot(slot, &SlotRecord { stamp, state, len, extents, spill_offset, ..names.clone() });
    }
    writer.park(1);
    writer.set_stamp_high_water(100);
    vec![empty, content()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_input_harms_no_decoder() {
        tiffin_smoke::run(&super::TARGETS);
    }
}
