//! The end of objects with a TTL: the master deletes them when their time is over.
//!
//! An expiry is a delete without a client: the name is removed, the copies are retired, and each node frees
//! the memory after the last view or transfer. If the master ends before a node has retired its copy, the
//! next master learns the end of the TTL from that copy, and deletes it again.
//!
//! Many TTLs may end at once. Each event removes a bounded number of objects, and the others follow in
//! [`Master::work`](super::Master::work). Meanwhile no request finds them: an object that a request names
//! is removed before the request is handled.
//!
//! **Invariant:** a pinned object does not expire before its last pin ends.
//!
//! **Invariant:** nothing expires while a member has yet to report: only that member may know of a pin.

use std::collections::BTreeSet;

use super::{
    Notice, Objects,
    catalog::{NamespaceIndex, ObjectIndex},
    departures::remove_departed,
    objects::take_out_last,
};
use crate::{
    Key, Tick,
    attributes::{Attributes, Expiry},
    message::{Cause, ClientToMaster, Evicted, PutOptions},
    mutant::is_mutant,
};

impl Objects {
    /// The attributes of a new object. Its TTL begins now.
    pub(super) fn new_attributes(&self, options: &PutOptions) -> Attributes {
        let mut attributes = Attributes::of(options);
        if let Some(Expiry { ttl_ms, ends_ms }) = attributes.expiry.as_deref_mut() {
            let wall_ms = self.cx.config.wall_ms.saturating_add(self.cx.now.0);
            *ends_ms = wall_ms.saturating_add(*ttl_ms).max(1);
        }
        attributes
    }

    /// Removes objects whose TTL is over, a bounded number of them.
    pub(super) fn expire(&mut self) {
        if self.has_overdue() {
            let due = self.cx.catalog.expiries().due(self.horizon(), self.cx.config.piece_objects_max.max(1));
            self.expire_all(due);
        }
    }

    /// Whether the TTL of an object is over that is still in the catalog.
    pub(super) fn has_overdue(&self) -> bool {
        self.cx.catalog.expiries().next().is_some_and(|at| at <= self.horizon()) && self.may_expire()
    }

    /// When the next TTL ends. Those that are over already are left to [`Self::has_overdue`].
    pub(super) fn next_expiry(&self) -> Option<Tick> {
        self.cx.catalog.expiries().next().filter(|at| *at > self.cx.now)
    }

    /// Removes the objects that a request names, if their TTL is over or their members have departed.
    pub(super) fn remove_named(&mut self, namespace: NamespaceIndex, request: &ClientToMaster) {
        if !self.has_overdue() && self.departures.is_empty() {
            return;
        }
        match request {
            ClientToMaster::Resolve(it) => self.remove_overdue(namespace, it.keys.iter().map(Key::as_bytes)),
            ClientToMaster::Exists(it) => self.remove_overdue(namespace, it.keys.iter()),
            ClientToMaster::Pin(it) => self.remove_overdue(namespace, it.keys.iter().map(Key::as_bytes)),
            ClientToMaster::Prefetch(it) => self.remove_overdue(namespace, it.keys.iter().map(Key::as_bytes)),
            ClientToMaster::Why(it) => self.remove_overdue(namespace, it.keys.iter().map(Key::as_bytes)),
            ClientToMaster::Delete(it) => self.remove_overdue(namespace, it.keys.iter().map(Key::as_bytes)),
            ClientToMaster::Reserve(it) => {
                self.remove_overdue(namespace, it.items.iter().map(|it| it.key.as_bytes()));
            }
            ClientToMaster::Publish(it) => {
                self.remove_overdue(namespace, it.items.iter().map(|it| it.item.key.as_bytes()));
            }
            ClientToMaster::Lease(it) => {
                self.remove_overdue(namespace, it.items.iter().map(|it| it.key.as_bytes()));
            }
            ClientToMaster::Ack(it) => {
                self.remove_overdue(namespace, it.items.iter().map(|it| it.key.as_bytes()));
            }
            // A listing leaves them out. The others name no object, or only samples, which have no TTL.
            _ => (),
        }
    }

    /// Removes these objects, if their TTL is over or their members have departed.
    pub(super) fn remove_overdue<'a>(
        &mut self,
        namespace: NamespaceIndex,
        keys: impl Iterator<Item = &'a [u8]>,
    ) {
        let is_due = self.has_overdue() && !is_mutant!(self.cx.config.mutant, FindOverdue);
        if !is_due && self.departures.is_empty() {
            return;
        }
        // A key may be named twice.
        let found: BTreeSet<_> = keys.filter_map(|key| self.cx.catalog.find_bytes(namespace, key)).collect();
        found.iter().for_each(|index| remove_departed(self, *index));
        if is_due {
            let (catalog, now) = (&self.cx.catalog, self.cx.now);
            let is_over = |it| catalog.get(it).is_some_and(|it| catalog.expiries().is_due(it, now));
            let due = found.into_iter().filter(|index| is_over(*index)).collect();
            self.expire_all(due);
        }
    }

    fn expire_all(&mut self, due: Vec<ObjectIndex>) {
        let mut expired = Evicted::default();
        let mut gone = Vec::new();
        for index in due {
            expired.objects += 1;
            expired.bytes += self.cx.catalog.get(index).map_or(0, |it| it.len());
            gone.extend(take_out_last(self, index, Cause::Expired, ""));
        }
        if expired.objects > 0 {
            let total = &mut self.cx.expired;
            (total.objects, total.bytes) = (total.objects + expired.objects, total.bytes + expired.bytes);
            self.cx.notice(Notice::Expired(expired));
            self.cx.retire(gone, None);
        }
    }

    /// TTLs that end until then are over.
    fn horizon(&self) -> Tick {
        match is_mutant!(self.cx.config.mutant, ExpireEarly) {
            true => self.cx.now.after(20),
            false => self.cx.now,
        }
    }

    fn may_expire(&self) -> bool {
        if is_mutant!(self.cx.config.mutant, ExpireNever) {
            return false;
        }
        self.reports.are_complete() || is_mutant!(self.cx.config.mutant, ExpireUnreported)
    }
}
