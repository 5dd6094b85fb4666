//! Explanations: why an object still exists, or why it is gone.

use std::collections::BTreeMap;

use super::{
    Caller, Context, Objects, OpId, Wait,
    catalog::{NodeIndex, ObjectIndex},
};
use crate::{
    ConnId, Key, RequestId, SlotRef, Tick, VIEWERS_MAX, WHY_KEYS_MAX,
    message::{ClientToMaster, Found, Here, MasterToMember, Reply, Views, Why},
    mutant::{Mutant, is_mutant},
};

/// Size of an answer, in bytes, after which it explains no further key.
const WHY_BYTES_MAX: usize = 1 << 20;

/// All explanations that wait for nodes.
#[derive(Debug, Default)]
pub(super) struct Explanations {
    all: BTreeMap<OpId, Explaining>,
}

/// An explanation that waits for the nodes to report which clients have views.
#[derive(Debug)]
struct Explaining {
    conn: ConnId,
    id: RequestId,
    answers: Vec<Why>,
    outstanding: u32,
}

impl Explanations {
    /// The connection of a request is closed: it is not answered.
    pub(super) fn forget(&mut self, cx: &mut Context, op: OpId) {
        if self.all.remove(&op).is_some() {
            cx.waiting.leave(op);
        }
    }

    /// Number of explanations that wait.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Explains the first keys, as many as fit into an answer. The client asks for the others again.
    pub(super) fn why(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        caller: &Caller,
        keys: &[Key],
    ) {
        let namespace = caller.namespace;
        let mut ask: BTreeMap<NodeIndex, Vec<(SlotRef, usize)>> = BTreeMap::new();
        let mut answers = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for (item, key) in keys.iter().enumerate() {
            if bytes >= WHY_BYTES_MAX && !is_mutant!(o.cx.config.mutant, ExplainAll) {
                break;
            }
            let Some(index) = o.cx.catalog.find(namespace, key) else {
                let gone = o.history.why_gone(&o.cx, namespace, key);
                bytes += size(&gone);
                answers.push(gone);
                continue;
            };
            for (node, slot_ref) in o.cx.catalog.get(index).into_iter().flat_map(|it| it.replicas()) {
                ask.entry(node).or_default().push((slot_ref, item));
            }
            let here = o.why_here(index);
            bytes += size(&here);
            answers.push(here);
        }
        let op = o.cx.next_op();
        if let Err(refusal) = o.cx.wait(op, (conn, id), caller, bytes) {
            return o.cx.reply(conn, id, *refusal);
        }
        let mut explaining = Explaining { conn, id, answers, outstanding: 0 };
        for (node, slot_refs) in ask {
            let request = MasterToMember::Inspect(slot_refs.iter().map(|it| it.0).collect());
            let items = slot_refs.into_iter().map(|it| it.1).collect();
            explaining.outstanding += u32::from(o.cx.ask(node, request, Wait::Inspect(op, items)).is_some());
        }
        self.all.insert(op, explaining);
        self.explained(o, op);
    }

    /// A node reported the views, or did not.
    pub(super) fn inspected(&mut self, o: &mut Objects, op: OpId, items: &[usize], views: &[Views]) {
        let name = |it: &Views| {
            it.clients.iter().take(VIEWERS_MAX).map(|it| o.cx.connections.client_name(*it)).collect()
        };
        let names: Vec<Vec<String>> = views.iter().map(name).collect();
        let Some(explaining) = self.all.get_mut(&op) else { return };
        explaining.outstanding -= 1;
        for ((item, views), names) in items.iter().zip(views).zip(names) {
            let Some(Why::Here(here)) = explaining.answers.get_mut(*item) else { continue };
            here.views += views.count;
            here.sends += views.sends;
            here.viewers_more += views.more;
            here.viewers.extend(names);
            here.viewers.sort_unstable();
            here.viewers.dedup();
        }
        self.explained(o, op);
    }

    fn explained(&mut self, o: &mut Objects, op: OpId) {
        if let Some(explaining) = self.all.get(&op)
            && explaining.outstanding == 0
            && let Some(explaining) = self.all.remove(&op)
        {
            o.cx.waiting.leave(op);
            let reply = Reply::Why(explaining.answers);
            o.cx.reply(explaining.conn, explaining.id, reply);
        }
    }
}

/// A question about as many keys as one answer explains: the others must not cost time before the client asks
/// for them again.
pub(super) fn shortened(mut request: ClientToMaster, mutant: Mutant) -> ClientToMaster {
    if let ClientToMaster::Why(explain) = &mut request
        && !is_mutant!(mutant, ExplainAll)
    {
        explain.keys.truncate(WHY_KEYS_MAX);
    }
    request
}

/// The approximate size of an answer, in bytes.
fn size(why: &Why) -> usize {
    let strings = |list: &[String]| list.iter().map(String::len).sum::<usize>();
    match why {
        Why::Unknown => 0,
        Why::Gone(gone) => {
            let for_key = gone.for_key.as_ref().map_or(0, |it| it.as_bytes().len());
            for_key + gone.by.len() + gone.node.len() + gone.reader.len()
        }
        Why::Here(here) => {
            let lists = [&here.nodes, &here.unreachable, &here.pins, &here.acked, &here.leases];
            lists.iter().map(|it| strings(it)).sum::<usize>() + here.writer.len() + here.reader.len()
        }
    }
}

impl Objects {
    fn why_here(&self, index: ObjectIndex) -> Why {
        let Some(object) = self.cx.catalog.get(index) else { return Why::Unknown };
        let attributes = object.attributes().cloned().unwrap_or_default();
        let (acked, sample) = attributes.sample.map(|it| (it.acked, it.consumption)).unzip();
        let ago = |at: Tick| self.cx.now.0.saturating_sub(at.0);
        let name = |node| self.cx.members.name(node);
        let readable = |node| self.cx.members.get(node).is_some_and(|it| it.readable());
        // A copy that is being written does not exist yet.
        let nodes: Vec<_> = object.copies().map(|(node, _)| node).collect();
        let (copies_there, copying_to, copy_wait) = self.tier.explain_copies(&self.cx, object);
        Why::Here(Box::new(Here {
            found: Found {
                generation: object.generation(),
                len: object.len(),
                replicas: Vec::new(),
                hard_pin: object.hard_pin(),
                soft_pin: object.soft_pin(),
                leased: object.leased(self.cx.now),
                sample: object.is_sample(),
                expires_in_ms: self.cx.catalog.expires_in_ms(object, self.cx.now),
            },
            unreachable: nodes.iter().filter(|&&node| !readable(node)).map(|&node| name(node)).collect(),
            nodes: nodes.into_iter().map(name).collect(),
            pins: attributes.pins,
            sample,
            acked: acked.unwrap_or_default(),
            leases: self.leases.holders(index),
            views: 0,
            viewers: Vec::new(),
            viewers_more: 0,
            sends: 0,
            age_ms: ago(object.put()),
            idle_ms: ago(object.touched()),
            lease_ms: object.lease_until().0.saturating_sub(self.cx.now.0),
            writer: self.cx.connections.label(object.writer()),
            reader: self.cx.connections.label(object.reader()),
            disk_bytes_max: self.tier.refused_bytes_max(object.generation()),
            copies_wanted: object.copies_wanted() as u32,
            copies_there: copies_there as u32,
            copying_to: copying_to.map(name).unwrap_or_default(),
            copy_wait,
            ttl_ms: attributes.expiry.as_ref().map(|it| it.ttl_ms),
        }))
    }
}
