//! What nodes answer, and who has waited for it.

use super::{Master, Party, Wait, catalog::NodeIndex};
use crate::{
    ConnId, RequestId,
    message::{Moved, Reply},
};

impl Master {
    /// A node answers what it was asked.
    pub(super) fn reply(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        let Some(&Party::Node(Some(node))) = self.parties.get(&conn) else { return };
        self.hear(node);
        if let Reply::Settled(settled) = &reply {
            self.heard_of_all(node, settled);
        }
        let Some((asked, wait)) = self.waits.remove(&id) else {
            return self.late_reply(node, reply);
        };
        if asked != node {
            self.waits.insert(id, (asked, wait));
            return;
        }
        match (wait, reply) {
            (Wait::Allocate(op, items), Reply::Allocated(allocated)) => {
                self.allocated(node, op, &items, allocated);
            }
            (Wait::Allocate(op, items), _) => self.not_allocated(node, op, &items),
            (Wait::Retire(holds, op), Reply::Settled(settled)) => {
                self.report(node, settled.usage);
                self.retired(node, id, &holds, op);
            }
            (Wait::Settle(objects, op), Reply::Settled(settled)) => {
                self.report(node, settled.usage);
                self.settled(node, &objects, &settled.lost);
                self.confirmed(id, op);
            }
            (Wait::Mark(objects, op), Reply::Settled(settled)) => {
                self.report(node, settled.usage);
                self.marked(node, id, &objects);
                self.settled(node, &objects, &settled.lost);
                self.confirmed(id, op);
            }
            (Wait::Mark(objects, op), _) => self.not_marked(node, id, &objects, op),
            (Wait::Demote(leaving), Reply::Moved(moved)) => {
                self.report(node, moved.usage);
                self.demoted(node, &leaving, &moved);
            }
            (Wait::Demote(leaving), _) => self.demoted(node, &leaving, &Moved::default()),
            (Wait::PromoteRoom(id, charged), Reply::Allocated(mut allocated)) => {
                // Without waking anybody, as for a put.
                if let Some(member) = self.members.get_mut(node) {
                    member.report(self.now, allocated.usage);
                }
                self.promotion_has_room(node, id, charged, allocated.items.pop().flatten());
            }
            (Wait::PromoteRoom(id, charged), _) => self.promotion_has_room(node, id, charged, None),
            (Wait::Promote(id), Reply::Moved(moved)) => {
                self.report(node, moved.usage);
                self.promotion_has_bytes(id, moved.items == [true]);
            }
            (Wait::Promote(id), _) => self.promotion_broke(id),
            (Wait::PromoteSettle(id), Reply::Settled(settled)) => {
                self.report(node, settled.usage);
                self.promotion_is_settled(id, &settled.lost);
            }
            (Wait::PromoteSettle(id), _) => self.promotion_broke(id),
            (Wait::Inspect(op, items), Reply::Inspected(views)) => self.inspected(op, &items, &views),
            (Wait::Inspect(op, items), _) => self.inspected(op, &items, &[]),
            // A node that refuses what it must do is not to be trusted with the name.
            (Wait::Retire(holds, op), _) => self.unconfirmed(node, id, &holds, op),
            (Wait::Publish(objects, op), reply) => self.heard_of(node, id, &objects, op, reply),
            (Wait::Settle(replicas, op), _) => {
                let lost: Vec<_> = replicas.iter().map(|it| it.2).collect();
                self.settled(node, &replicas, &lost);
                self.confirmed(id, op);
            }
        }
    }

    /// Nobody waits for this any more; but room that was found too late must be given back.
    fn late_reply(&mut self, node: NodeIndex, reply: Reply) {
        if let Reply::Allocated(allocated) = reply {
            let found = allocated.items.into_iter().flatten();
            self.abort_all(found.map(|it| (node, it.location.hold())).collect());
        }
    }
}
