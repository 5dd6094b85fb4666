//! Nodes that come, fall silent, go away, return, or are lost.
//!
//! **Invariant:** a node that was declared lost in this life of the master comes back empty: names that it
//! still holds may have been deleted meanwhile, and nobody kept a list for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Effect, Master, Notice, Party, Wait,
    catalog::{LabelIndex, NewObject, NodeIndex, ObjectIndex},
    ghosts::Name,
    members::{Member, Standing},
    refuse,
};
use crate::{
    ConnId, Hold, Tick, VIEWERS_MAX,
    message::{Announce, Cause, Heartbeat, Reason, Record, Register, Registered, Released, Reply, Usage},
    sabotage::sabotaged,
};

impl Master {
    pub(super) fn register(&mut self, conn: ConnId, register: Register) -> Reply {
        let known = self.members.find(register.info.segment);
        let same_life = register.epoch == self.config.epoch;
        let was_lost = known.is_none() && same_life && !sabotaged!(self.config.sabotage, BelieveTheLost);
        if was_lost {
            self.effects.push_back(Effect::Notice(Notice::NodeDiscarded(register.info.name.clone())));
        }
        let node = match known {
            Some(node) => self.readmit(node, conn, &register),
            None => self.members.insert(Member {
                free: register.usage.free,
                usage: register.usage,
                info: register.info,
                standing: Standing::Joining,
                conn: Some(conn),
                is_near: self.near.contains(&conn),
                heard: self.now,
                viewers: Vec::new(),
                retiring: BTreeSet::new(),
                owed: BTreeSet::new(),
                unheard: BTreeMap::new(),
                entrusted: 0,
                looks_from: Tick(0),
                discard: was_lost,
                announces: false,
                told: BTreeSet::new(),
                from_earlier_life: !same_life || sabotaged!(self.config.sabotage, BelieveTheLost),
            }),
        };
        let Some(node) = node else {
            return refuse(Reason::Busy, "the master has as many nodes as it can have");
        };
        self.parties.insert(conn, Party::Node(Some(node)));
        // The answer may be lost: it is owed until the node announces, which it does after it has retired.
        let owes = self.members.get(node).map(|it| (it.discard, it.owed.clone()));
        let (discard, owed) = owes.unwrap_or_default();
        let retire = if sabotaged!(self.config.sabotage, ForgetOwedRetires) { BTreeSet::new() } else { owed };
        let retire = retire.into_iter().collect();
        Reply::Registered(Registered {
            epoch: self.config.epoch,
            discard,
            retire,
            commit: self.unheard(node),
        })
    }

    /// A node that is known registers again: its old connection says nothing any more.
    fn readmit(&mut self, node: NodeIndex, conn: ConnId, register: &Register) -> Option<NodeIndex> {
        if let Some(old) = self.members.get(node)?.conn {
            self.fence(old);
            self.node_away(node, old);
        }
        let is_near = self.near.contains(&conn);
        let member = self.members.get_mut(node)?;
        member.is_near = is_near;
        member.info = register.info.clone();
        member.report(self.now, register.usage);
        member.standing = Standing::Joining;
        member.conn = Some(conn);
        member.told.clear();
        member.announces = false;
        self.members.note_kinds();
        Some(node)
    }

    pub(super) fn announce(&mut self, node: NodeIndex, announce: Announce) -> Reply {
        self.hear(node);
        // What it was told when it registered it has done; this answer may be lost too.
        self.has_done_what_it_owed(node);
        let mut retire = Vec::new();
        for record in announce.items {
            let hold = record.hold;
            if let Err(name) = self.take_in(node, record) {
                retire.push(hold);
                self.ghosts.insert(&Arc::new(name), node, hold);
            }
        }
        if announce.last {
            retire.extend(self.end_joining(node));
        }
        if let Some(member) = self.members.get_mut(node) {
            member.owed = retire.iter().copied().collect();
            member.discard = false;
            member.announces = true;
        }
        Reply::Announced(retire)
    }

    /// The node knows what it owed: it has done that before it said anything else.
    fn has_done_what_it_owed(&mut self, node: NodeIndex) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.unheard.clear();
        for hold in std::mem::take(&mut member.owed) {
            // What it was asked for since is confirmed by its answer.
            if !member.retiring.contains(&hold) {
                self.ghosts.lay(node, hold);
            }
        }
    }

    /// Takes an announced object into the catalog if it belongs there; else tells what it was called.
    fn take_in(&mut self, node: NodeIndex, record: Record) -> Result<(), Name> {
        let namespace = self.catalog.intern(&record.namespace);
        let refused = |key| Err(Name { namespace, key });
        let Some(member) = self.members.get_mut(node) else { return refused(record.key) };
        if member.retiring.contains(&record.hold) {
            // It was taken away meanwhile, and the node has not heard of that yet.
            return refused(record.key);
        }
        member.told.insert(record.hold);
        let news = member.from_earlier_life;
        let existing = self.catalog.find(namespace, &record.key);
        if let Some((index, object)) = existing.and_then(|it| Some((it, self.catalog.get(it)?))) {
            if object.replicas().any(|replica| replica == (node, record.hold)) {
                // It may have been on its way there when the node was last heard of.
                self.catalog.complete(index, node, record.hold);
                self.correct_marks(index, node, &record.marks);
                return Ok(());
            }
            let older = object.generation() > record.generation;
            let is_same = object.generation() == record.generation;
            // Of two copies that one node tells of, one is enough.
            let is_second = is_same && object.is_on(node);
            if !news || is_second || (older && !sabotaged!(self.config.sabotage, PreferOlder)) {
                return refused(record.key);
            }
            if is_same {
                self.catalog.add_replica(index, node, record.hold);
                self.merge_marks(index, &record.marks);
                return Ok(());
            }
            let old = self.take_out(index, Cause::Replaced, "");
            self.retire(old, None);
        } else if !news {
            return refused(record.key);
        }
        let new = NewObject {
            namespace,
            key: record.key,
            generation: record.generation,
            len: record.len,
            marks: record.marks,
            writer: LabelIndex::default(),
            soft_until: Tick(0),
            replicas: vec![(node, record.hold)],
        };
        let is_sample = new.marks.sample.is_some();
        let index = self.catalog.insert(self.now, new);
        if let Some(index) = index.filter(|_| is_sample) {
            self.leases.arrive(namespace, self.now, index);
            self.enter_stream(index, false);
        }
        Ok(())
    }

    /// The node has told everything: what it did not tell of, it does not have. It may have the bytes, if it
    /// never heard that they became a copy; whoever was told of that copy must not read them any more, so it
    /// is to be taken away.
    fn end_joining(&mut self, node: NodeIndex) -> Vec<Hold> {
        let mut untold = Vec::new();
        let Some(member) = self.members.get_mut(node) else { return untold };
        if member.standing != Standing::Joining {
            return untold;
        }
        member.standing = Standing::Ready;
        member.from_earlier_life = false;
        let told = std::mem::take(&mut member.told);
        let name = member.info.name.clone();
        for index in self.catalog.on_node(node) {
            let Some(object) = self.catalog.get(index) else { continue };
            let hold = object.replicas().find(|(on, _)| *on == node).map(|(_, hold)| hold);
            let Some(hold) = hold.filter(|hold| !told.contains(hold)) else { continue };
            let name = Name { namespace: object.namespace(), key: object.key().clone() };
            self.lose_copy(index, node, Cause::NodeLost);
            self.ghosts.insert(&Arc::new(name), node, hold);
            untold.push(hold);
        }
        self.room.note_change();
        self.tier.stir();
        self.effects.push_back(Effect::Notice(Notice::NodeReady(name)));
        untold
    }

    pub(super) fn heartbeat(&mut self, node: NodeIndex, beat: Heartbeat) -> Reply {
        self.hear(node);
        // It has heard the answer to all that it announced, or it would not beat.
        self.has_done_what_it_owed(node);
        if let Some(usage) = beat.usage {
            self.report(node, usage);
            if let Some(member) = self.members.get_mut(node) {
                member.viewers = beat.viewers;
                member.viewers.truncate(VIEWERS_MAX);
            }
        }
        Reply::Done
    }

    pub(super) fn report(&mut self, node: NodeIndex, usage: Usage) {
        if let Some(member) = self.members.get_mut(node) {
            if member.free < usage.free {
                self.room.note_change();
            }
            member.report(self.now, usage);
        }
    }

    /// Reservations ended without the master.
    pub(super) fn released(&mut self, node: NodeIndex, released: &Released) -> Reply {
        self.hear(node);
        self.report(node, released.usage);
        for &hold in &released.holds {
            self.room.end_grant(node, hold);
        }
        Reply::Done
    }

    /// Forgets the copy on one node, and the object with its last copy. One that is being written to a disk
    /// may be there already, whatever became of the answer: the disk will tell. What is still being brought
    /// back into memory is taken away with the last.
    pub(super) fn lose_copy(&mut self, index: ObjectIndex, node: NodeIndex, cause: Cause) {
        let last = self.catalog.get(index).is_some_and(|it| it.homes().all(|on| on == node));
        if !last {
            return self.catalog.drop_replica(index, node);
        }
        let name = self.members.name(node);
        let Some((object, mut rest)) = self.forget(index, cause, "") else { return };
        self.history.went_with(name);
        rest.retain(|(on, _)| *on != node);
        rest.iter().for_each(|(on, hold)| self.ghosts.insert(&object, *on, *hold));
        self.retire(rest, None);
    }

    /// The node said something, so it is not silent.
    pub(super) fn hear(&mut self, node: NodeIndex) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.heard = self.now;
        if member.standing == Standing::Silent {
            member.standing = Standing::Ready;
            let name = member.info.name.clone();
            self.effects.push_back(Effect::Notice(Notice::NodeReady(name)));
        }
    }

    /// A node's connection is closed: whatever it was asked there, it will not answer.
    pub(super) fn node_away(&mut self, node: NodeIndex, conn: ConnId) {
        let Some(member) = self.members.get_mut(node) else { return };
        if member.conn != Some(conn) {
            return;
        }
        member.conn = None;
        member.standing = Standing::Away(self.now);
        let name = member.info.name.clone();
        self.effects.push_back(Effect::Notice(Notice::NodeAway(name)));
        self.end_promotions_at(node);
        let asked: Vec<_> = self.waits.iter().filter(|(_, (on, _))| *on == node).map(|(id, _)| *id).collect();
        for id in asked {
            match self.waits.remove(&id) {
                Some((_, Wait::Allocate(op, items))) => self.not_allocated(node, op, &items),
                Some((_, Wait::Retire(holds, op))) => self.unconfirmed(node, id, &holds, op),
                // What was to be put in writing is corrected when it comes back.
                Some((_, Wait::Mark(objects, op))) => self.not_marked(node, id, &objects, op),
                Some((_, Wait::Inspect(op, items))) => self.inspected(op, &items, &[]),
                Some((_, Wait::Demote(_))) => self.disk_away(node),
                // The promotion has ended.
                Some((_, Wait::PromoteRoom(id, charged))) => {
                    self.promotion_has_room(node, id, charged, None);
                }
                Some((_, Wait::Promote(_) | Wait::PromoteSettle(_))) => (),
                // It tells what it committed when it comes back.
                Some((_, Wait::Settle(_, op))) => self.confirmed(id, op),
                // It is told again when it comes back.
                Some((_, Wait::Publish(objects, op))) => {
                    if let Some(member) = self.members.get_mut(node) {
                        member.unheard.extend(objects.into_iter().map(|it| (it.2, (it.0, it.1))));
                    }
                    self.not_published(id, op);
                }
                None => (),
            }
        }
    }

    /// A node says that it will not come back: what it held is lost now, and nobody need wait for it.
    pub(super) fn node_left(&mut self, node: NodeIndex, conn: ConnId) {
        self.parties.insert(conn, Party::Node(None));
        self.node_away(node, conn);
        self.lose(node, Notice::NodeLeft);
        self.effects.push_back(Effect::Disconnect(conn));
    }

    pub(super) fn notice_silence(&mut self) {
        if self.next_silence().is_none_or(|at| at > self.now) {
            return;
        }
        let nodes: Vec<_> = self.members.iter().map(|(node, it)| (node, it.standing, it.heard)).collect();
        for (node, standing, heard) in nodes {
            match standing {
                Standing::Ready if heard.after(self.config.silence_ms_max) <= self.now => self.silent(node),
                Standing::Away(since) if since.after(self.away_ms_max(node)) <= self.now => {
                    self.lose(node, Notice::NodeLost)
                }
                _ => (),
            }
        }
    }

    pub(super) fn next_silence(&self) -> Option<Tick> {
        let next = self.members.iter().filter_map(|(node, it)| match it.standing {
            Standing::Ready => Some(it.heard.after(self.config.silence_ms_max)),
            Standing::Away(since) => Some(since.after(self.away_ms_max(node))),
            Standing::Joining | Standing::Silent => None,
        });
        next.min()
    }

    /// How long that one may be away. A disk keeps what it has while its node is started again.
    fn away_ms_max(&self, node: NodeIndex) -> u64 {
        let is_disk = self.members.get(node).is_some_and(Member::is_disk);
        if is_disk { self.tier.config.away_ms_max } else { self.config.away_ms_max }
    }

    fn silent(&mut self, node: NodeIndex) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.standing = Standing::Silent;
        let name = member.info.name.clone();
        self.effects.push_back(Effect::Notice(Notice::NodeSilent(name)));
        // New objects go elsewhere; what the silent node was asked for, others are asked for now.
        let allocations =
            self.waits.iter().filter(|(_, (on, wait))| *on == node && matches!(wait, Wait::Allocate(..)));
        let allocations: Vec<_> = allocations.map(|(id, _)| *id).collect();
        for id in allocations {
            if let Some((_, Wait::Allocate(op, items))) = self.waits.remove(&id) {
                self.not_allocated(node, op, &items);
            }
        }
        // Nor does a put wait for its copy there; what became of that, the node tells when it speaks again.
        let copies = self.waits.iter().filter_map(|(id, (on, wait))| match wait {
            Wait::Settle(_, op) if *on == node => Some((*id, *op)),
            _ => None,
        });
        for (id, op) in copies.collect::<Vec<_>>() {
            self.confirmed(id, op);
        }
        let published = self.waits.iter().filter_map(|(id, (on, wait))| match wait {
            Wait::Publish(_, op) if *on == node => Some((*id, *op)),
            _ => None,
        });
        for (id, op) in published.collect::<Vec<_>>() {
            self.not_published(id, op);
        }
    }

    /// Forgets a node and what only it held.
    fn lose(&mut self, node: NodeIndex, notice: fn(String, u64) -> Notice) {
        let name = self.members.name(node);
        let mut lost = 0;
        for index in self.catalog.on_node(node) {
            self.lose_copy(index, node, Cause::NodeLost);
            lost += u64::from(self.catalog.get(index).is_none());
        }
        self.room.end_grants_on(node);
        self.ghosts.forget(node);
        self.tier.forget(node);
        self.members.remove(node);
        self.effects.push_back(Effect::Notice(notice(name, lost)));
    }
}
