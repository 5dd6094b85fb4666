//! Slots as the core of a node has them, and as the control segment has them.

use tiffin_node::{Adopted, EXTENTS_INLINE, Found, SlotRecord, SlotState, Table, TableRange};
use tiffin_transport::layout::{self, SPILLED_EXTENT_BYTES};
use tiffin_transport::segment::NodeMemory;
use tiffin_transport::{self as transport, control};
use tiffin_types::{ClientId, ClusterId, Extent, Generation, SlotId, Stamp};

/// The extent as `transport` has it.
pub(super) fn extent(extent: Extent) -> transport::Extent {
    transport::Extent { offset: extent.offset, len: extent.len }
}

/// The record in the format of the control segment. In the heap, the spilled extents come first, then the
/// name of the namespace, then the key.
pub(super) fn written(record: &SlotRecord) -> control::SlotRecord {
    let spilled = if record.extents.len() > EXTENTS_INLINE {
        record.extents.len() as u64 * SPILLED_EXTENT_BYTES
    } else {
        0
    };
    let namespace =
        transport::Extent { offset: record.heap.offset.saturating_add(spilled), len: record.namespace_len };
    let key =
        transport::Extent { offset: namespace.offset.saturating_add(namespace.len), len: record.key_len };
    control::SlotRecord {
        stamp: record.stamp.0,
        state: match record.state {
            SlotState::Reserved(_) => control::SlotState::Reserved,
            SlotState::Offered(_) => control::SlotState::Offered,
            SlotState::Ending => control::SlotState::Ending,
            SlotState::Prepared => control::SlotState::Prepared,
            SlotState::Committed => control::SlotState::Committed,
        },
        hard_pin: record.hard_pin,
        soft_pin: false,
        namespace,
        generation_epoch: record.generation.epoch,
        generation_counter: record.generation.counter,
        len: record.len,
        extents: record.extents.iter().copied().map(extent).collect(),
        spill_offset: record.heap.offset,
        key,
        name_bytes: record.heap.len.saturating_sub(spilled),
        writer: record.writer.map_or(0, |client| client.0),
        attributes: extent(record.attributes),
    }
}

/// What the memory of a pool says, for the core of the node that adopts it. `Err` is the problem.
pub(super) fn adopted(memory: &NodeMemory) -> Result<Adopted, String> {
    let reader = memory.reader();
    let scanned = reader.scan().map_err(|slot| format!("slot {slot} is damaged"))?;
    let clients = memory.mapping_clients().map_err(|error| format!("its locks cannot be read: {error}"))?;
    Ok(Adopted {
        epoch: reader.epoch(),
        instance: reader.instance(),
        cluster: ClusterId(reader.cluster()),
        stamp_high_water: reader.stamp_high_water(),
        slots: scanned.into_iter().filter_map(|it| found(it).transpose()).collect::<Result<_, _>>()?,
        clients: clients.into_iter().map(ClientId).collect(),
        ledger: Vec::new(),
    })
}

/// Where a range of a table is in the control segment.
pub(super) fn in_control(memory: &NodeMemory, range: TableRange) -> transport::Extent {
    let base = match range.table {
        Table::Slots => layout::HEADER_BYTES,
        Table::Heap => memory.geometry().heap_at(),
    };
    transport::Extent { offset: base + range.bytes.offset, len: range.bytes.len }
}

/// The reverse of [`written`]. `None` if the slot is free.
fn found(scanned: control::Scanned) -> Result<Option<Found>, String> {
    let control::Scanned { slot, record, namespace, key, attributes } = scanned;
    let is_spilled = record.extents.len() > EXTENTS_INLINE;
    let spilled = if is_spilled { record.extents.len() as u64 * SPILLED_EXTENT_BYTES } else { 0 };
    let writer = ClientId(record.writer);
    let state = match record.state {
        control::SlotState::Free => return Ok(None),
        control::SlotState::Reserved => SlotState::Reserved(writer),
        control::SlotState::Offered => SlotState::Offered(writer),
        // The core does not ask how far a retired use had come.
        control::SlotState::Ending | control::SlotState::Retired => SlotState::Ending,
        control::SlotState::Prepared => SlotState::Prepared,
        control::SlotState::Committed => SlotState::Committed,
    };
    let core = |it: transport::Extent| Extent { offset: it.offset, len: it.len };
    let heap = Extent {
        offset: record.namespace.offset.saturating_sub(spilled),
        len: record.name_bytes.saturating_add(spilled),
    };
    if is_spilled && record.spill_offset != heap.offset {
        return Err(format!("slot {slot} is damaged"));
    }
    Ok(Some(Found {
        slot: SlotId(slot),
        is_retired: record.state == control::SlotState::Retired,
        record: SlotRecord {
            stamp: Stamp(record.stamp),
            state,
            generation: Generation { epoch: record.generation_epoch, counter: record.generation_counter },
            len: record.len,
            extents: record.extents.into_iter().map(core).collect(),
            heap,
            namespace_len: record.namespace.len,
            key_len: record.key.len,
            attributes: core(record.attributes),
            writer: (record.writer != 0).then_some(writer),
            hard_pin: record.hard_pin,
        },
        namespace,
        key,
        attributes,
    }))
}
