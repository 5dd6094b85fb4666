//! What a request of a client has changed, and how the nodes learn of it: of deletes, pins and
//! acknowledgements.

use std::collections::BTreeMap;

use super::{
    Objects, OpId,
    catalog::{NodeIndex, ObjectIndex},
};
use crate::{RequestId, SlotRef};

/// What a request has changed, by item: copies that are to be retired, and objects whose attributes are to be
/// written.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) gone: Vec<(usize, (NodeIndex, SlotRef))>,
    pub(super) attributes_set: Vec<(usize, ObjectIndex)>,
}

/// Sends the nodes what has changed. Returns which items depend on which node, and the requests.
pub(super) fn send_changes(
    o: &mut Objects,
    op: OpId,
    changed: Changed,
) -> (BTreeMap<NodeIndex, Vec<usize>>, BTreeMap<RequestId, NodeIndex>) {
    let Changed { gone, attributes_set } = changed;
    let mut items: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
    for (item, (node, _)) in &gone {
        items.entry(*node).or_default().push(*item);
    }
    for (item, index) in &attributes_set {
        for (node, _) in o.cx.catalog.get(*index).into_iter().flat_map(|it| o.written_beside(it)) {
            items.entry(node).or_default().push(*item);
        }
    }
    let gone: Vec<_> = gone.into_iter().map(|(_, replica)| replica).collect();
    o.cx.note_removed(&gone);
    let mut asked = o.cx.retire_removed(gone, op);
    asked.extend(o.send_attributes(attributes_set.into_iter().map(|it| it.1).collect(), Some(op)));
    (items, asked)
}
