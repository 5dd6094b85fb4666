//! Attributes that wait for their nodes.

use std::collections::BTreeMap;

use crate::{
    RequestId,
    master::catalog::{NodeIndex, ObjectIndex},
};

/// Attributes that nodes may have written differently from the catalog, with the message that corrects
/// them, if one is in flight. A node that was away is corrected when it returns.
#[derive(Debug, Default)]
pub(in crate::master) struct Unwritten(BTreeMap<(ObjectIndex, NodeIndex), Option<RequestId>>);

impl Unwritten {
    pub(in crate::master) fn note(
        &mut self,
        object: ObjectIndex,
        node: NodeIndex,
        message: Option<RequestId>,
    ) {
        self.0.insert((object, node), message);
    }

    /// The attributes are written, unless a newer message is in flight.
    pub(in crate::master) fn confirmed(
        &mut self,
        object: ObjectIndex,
        node: NodeIndex,
        message: Option<RequestId>,
    ) {
        if self.0.get(&(object, node)) == Some(&message) {
            self.0.remove(&(object, node));
        }
    }

    /// The message may have been lost.
    pub(in crate::master) fn unconfirmed(
        &mut self,
        object: ObjectIndex,
        node: NodeIndex,
        message: RequestId,
    ) {
        if let Some(last) = self.0.get_mut(&(object, node)).filter(|it| **it == Some(message)) {
            *last = None;
        }
    }

    /// The object is gone, and its index may be reused.
    pub(in crate::master) fn forget(&mut self, object: ObjectIndex) {
        let of_it = (object, NodeIndex(0))..=(object, NodeIndex(u16::MAX));
        for place in self.0.range(of_it).map(|(place, _)| *place).collect::<Vec<_>>() {
            self.0.remove(&place);
        }
    }

    pub(in crate::master) fn objects(&self) -> impl Iterator<Item = ObjectIndex> {
        self.0.keys().map(|(object, _)| *object)
    }
}
