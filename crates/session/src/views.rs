//! The views that a client has at one node, so that each of them ends exactly once.
//!
//! The node counts views per object. A message that begins or ends one, or its reply, may be lost with its
//! connection, and the client cannot tell. So the first message on a new connection lists all views of the
//! client ([`KeepViews`](tiffin_types::message::ClientToNode::KeepViews)), and the node ends the others. Once
//! the new connection is open, messages of the old one no longer count.
//!
//! **Invariant:** a view counts only if it was listed on the open connection, or began on it.
//! **Invariant:** a view that was not listed is not ended again: that would end another view of the same
//! object.

use std::collections::BTreeMap;

use tiffin_types::{
    SlotRef,
    mutant::{Mutant, is_mutant},
};

/// The views of one client at one node.
#[derive(Debug, Default)]
pub struct Views {
    /// The number of the connection on which they were listed.
    connection: u64,
    held: BTreeMap<SlotRef, u32>,
    /// Views that ended, and that the node has not been informed of.
    ends: Vec<SlotRef>,
    mutant: Mutant,
}

impl Views {
    /// No views.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    /// A new connection was opened. Returns its number, and the views to list first on it: each object as
    /// often as it is viewed.
    pub fn connected(&mut self) -> (u64, Vec<SlotRef>) {
        self.connection += 1;
        self.ends.clear();
        let held = self.held.iter();
        let held =
            held.flat_map(|(slot_ref, count)| std::iter::repeat_n(*slot_ref, *count as usize)).collect();
        (self.connection, held)
    }

    /// The number of the open connection.
    #[must_use]
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// The node has begun a view that was requested on this connection. `false` if that view does not count,
    /// because the connection was replaced.
    #[must_use]
    pub fn begun(&mut self, connection: u64, slot_ref: SlotRef) -> bool {
        let counts = connection == self.connection || is_mutant!(self.mutant, CountLostViews);
        if counts {
            *self.held.entry(slot_ref).or_default() += 1;
        }
        counts
    }

    /// The client does not use a view any more.
    pub fn end(&mut self, slot_ref: SlotRef) {
        if let Some(count) = self.held.get_mut(&slot_ref) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&slot_ref);
            }
            self.ends.push(slot_ref);
        }
    }

    /// The ends to send on this connection, once. If they are lost, the next connection settles it.
    #[must_use]
    pub fn take_ends(&mut self, connection: u64) -> Vec<SlotRef> {
        if connection == self.connection { std::mem::take(&mut self.ends) } else { Vec::new() }
    }

    /// Whether there are no views.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiffin_types::{SlotId, Stamp};

    const ONE: SlotRef = SlotRef { slot: SlotId(1), stamp: Stamp(7) };
    const TWO: SlotRef = SlotRef { slot: SlotId(2), stamp: Stamp(8) };

    #[test]
    fn views_are_listed_as_often_as_they_are_held() {
        let mut views = Views::default();
        assert!(views.begun(0, ONE) && views.begun(0, ONE) && views.begun(0, TWO));
        views.end(TWO);
        assert_eq!(views.connected(), (1, vec![ONE, ONE]));
        assert_eq!(views.take_ends(1), [], "the list said that it has ended");
    }

    #[test]
    fn view_begun_on_a_replaced_connection_does_not_count() {
        let mut views = Views::default();
        let (connection, _) = views.connected();
        assert!(!views.begun(connection - 1, ONE));
        assert!(views.is_empty());
        assert!(views.begun(connection, ONE));
    }

    #[test]
    fn ends_are_sent_once_on_the_connection_that_knows_the_views() {
        let mut views = Views::default();
        assert!(views.begun(0, ONE) && views.begun(0, TWO));
        views.end(ONE);
        assert_eq!(views.take_ends(1), []);
        assert_eq!(views.take_ends(0), [ONE]);
        assert_eq!(views.take_ends(0), []);
        views.end(ONE);
        assert_eq!(views.take_ends(0), [], "there was no such view any more");
        assert!(!views.is_empty());
    }
}
