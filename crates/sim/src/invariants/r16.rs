//! R16: while a member of the roster has not reported, a key that it may hold is neither present nor absent.
//! An answer "absent" or "deleted" is compared with the objects of such members.
//!
//! Exempt: members that a master has declared lost or absent, and all members after the state folder was
//! lost, until they register. A delete is decided for all its keys at once, and answered after nodes have
//! confirmed it: a member that registered in between was not known when it was decided.

use std::collections::BTreeSet;

use tiffin_node::SlotState;
use tiffin_types::{
    ConnId, Generation, RequestId, SegmentId,
    message::{ClientToMaster, DeleteOutcome, Presence, Reply, ResolveOutcome},
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::Name,
    memory::Memory,
    oracle::{Memories, Oracle},
};

/// The names in a client's request.
#[derive(Debug)]
pub(crate) struct NamedRequest {
    names: Vec<Name>,
    /// The roster at the time of the decision, if that is before the answer.
    decided: Option<BTreeSet<SegmentId>>,
}

impl Oracle {
    /// A client's request names objects.
    pub(crate) fn record_names(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &ClientToMaster,
        namespace: u8,
    ) {
        let names: Vec<_> = match request {
            ClientToMaster::Resolve(it) => {
                it.keys.iter().filter_map(|key| Name::of(namespace, key)).collect()
            }
            ClientToMaster::Delete(it) => it.keys.iter().filter_map(|key| Name::of(namespace, key)).collect(),
            ClientToMaster::Exists(it) => {
                let keys = it.keys.iter().filter_map(|key| tiffin_types::Key::new(key).ok());
                keys.filter_map(|key| Name::of(namespace, &key)).collect()
            }
            _ => return,
        };
        // A request that waits for reports is recorded again when it is resumed.
        let decided = matches!(request, ClientToMaster::Delete(_))
            .then(|| self.roster.difference(&self.absent).copied().collect());
        self.asked_names.insert((conn, id), NamedRequest { names, decided });
    }

    /// A member reports an object: it must not be older than one that the master removed while it waited for
    /// that report.
    pub(crate) fn removed_is_not_restored(&mut self, segment: SegmentId, name: Name, generation: Generation) {
        let newest = self.left.as_ref().and_then(|it| it.get(&name)).copied();
        if let Some(newest) = newest.filter(|it| *it > generation) {
            self.fail("r16", || {
                format!("{segment} restores {name:?} {generation}, older than {newest}, which was removed")
            });
        }
    }

    /// An answer says that objects are absent, or deleted.
    pub(crate) fn check_absences(
        &mut self,
        to: (ConnId, RequestId),
        reply: &Reply,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(NamedRequest { names, decided }) = self.asked_names.remove(&to) else { return };
        let absent: Vec<bool> = match reply {
            Reply::Resolved(it) => it.items.iter().map(|it| *it == ResolveOutcome::Absent).collect(),
            Reply::Present(items) => items.iter().map(|it| *it == Presence::Absent).collect(),
            Reply::Deleted(outcomes) => {
                let gone = |it: &DeleteOutcome| matches!(it, DeleteOutcome::Absent | DeleteOutcome::Deleted);
                outcomes.iter().map(gone).collect()
            }
            _ => return,
        };
        for (name, _) in names.into_iter().zip(absent).filter(|it| it.1) {
            let unreported = |segment: &SegmentId| {
                self.roster.contains(segment)
                    && decided.as_ref().is_none_or(|it| it.contains(segment))
                    && !self.joined.contains(segment)
                    && !self.lost.contains_key(segment)
                    && !self.absent.contains(segment)
            };
            let has_it = |memory: &Memory| {
                let committed = memory.slots().filter(|(_, it)| it.state == SlotState::Committed);
                let mut named = committed.filter_map(|(_, it)| self.objects.get(&it.generation));
                named.any(|it| it.name == name && !it.gone)
            };
            let holder = memories.iter().filter(|(_, it)| it.alive).find(|(segment, memory)| {
                unreported(segment) && {
                    coverage.hit(Point::CheckedUnreported);
                    has_it(memory)
                }
            });
            if let Some((segment, _)) = holder {
                let segment = *segment;
                let what =
                    || format!("{name:?} is answered as absent, but {segment} has it and has not reported");
                return self.fail("r16", what);
            }
        }
    }
}
