//! Decisions as the oracle sees them: which object gets its name, and what it replaces.

use tiffin_types::{
    ConnId, Generation, RequestId, SegmentId, SlotRef,
    attributes::Attributes,
    message::{CommitOutcome, DecideItem, OnExists, PutOptions, Record, Replacement},
};

use crate::{
    coverage::Coverage,
    oracle::{Memories, Oracle, name_of},
};

/// A decision without an answer.
#[derive(Debug)]
pub(crate) struct Deciding {
    /// Each with its home node.
    pub(crate) items: Vec<(SegmentId, DecideItem)>,
    /// Other events have occurred since the decision.
    pub(crate) late: bool,
    /// The generation that each of them replaces.
    pub(crate) replaced: Vec<Option<Generation>>,
    /// The master knew every existing copy.
    pub(crate) complete: bool,
}

/// An item with its outcome, the generation that it replaces, and how often that one was restored.
type AnsweredItem = (DecideItem, CommitOutcome, Option<(Generation, u32)>);

/// An answer on its way to the home node of its objects, which passes it on to their writer.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    segment: SegmentId,
    items: Vec<AnsweredItem>,
    complete: bool,
    /// How often the state folder had been lost before.
    losses: u32,
}

impl Oracle {
    pub(crate) fn begin_deciding(
        &mut self,
        to: (ConnId, RequestId),
        items: Vec<(SegmentId, DecideItem)>,
        complete: bool,
    ) {
        let replacing = items.iter().filter(|it| it.1.item.options.on_exists == OnExists::Replace);
        self.cause.names = replacing.filter_map(|it| name_of(&it.1)).collect();
        // A home node asks again because neither it nor its writer has received an answer. This epoch may
        // refuse an object that an earlier epoch had named, in favour of one that was restored meanwhile.
        let keeps = |it: &PutOptions| it.on_exists == OnExists::Keep || it.replaces.is_some();
        let keeping = items.iter().filter(|it| keeps(&it.1.item.options));
        let unheard = keeping.filter(|it| !self.published.contains(&(it.0, it.1.item.slot_ref)));
        let others = unheard.flat_map(|it| it.1.item.others.iter().map(|it| (it.segment, it.slot_ref())));
        self.cause.nameless = others.collect();
        let replaced = items.iter().map(|it| name_of(&it.1).and_then(|name| self.standing(name)));
        let replaced = replaced.collect();
        self.deciding.insert(to, Deciding { items, late: false, replaced, complete });
    }

    /// Locations of the objects that are being decided.
    pub(crate) fn places(&self, to: (ConnId, RequestId)) -> Vec<(SegmentId, SlotRef)> {
        let deciding = self.deciding.get(&to);
        deciding.into_iter().flat_map(|it| &it.items).map(|(home, it)| (*home, it.item.slot_ref)).collect()
    }

    /// Decisions are answered, to the writer or to the home node.
    pub(crate) fn all_decided<'a>(
        &mut self,
        to: (ConnId, RequestId),
        home: Option<SegmentId>,
        outcomes: impl Iterator<Item = Option<&'a CommitOutcome>> + Clone,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(deciding) = self.deciding.remove(&to) else { return };
        let before = self.newest.clone();
        for ((segment, item), outcome) in deciding.items.iter().zip(outcomes.clone()) {
            let Some(outcome) = outcome else { continue };
            // A repeated question may be old, too.
            let same =
                |it: &(SegmentId, DecideItem)| it.0 == *segment && it.1.item.slot_ref == item.item.slot_ref;
            let is_late = deciding.late || self.deciding.values().any(|it| it.items.iter().any(same));
            self.decided(*segment, item, outcome, is_late);
            self.put_with_ttl(outcome, item.item.options.ttl_ms);
            let others = memories.iter().filter(|it| Some(*it.0) != home);
            self.supersedes(item, outcome, others, coverage);
        }
        let known = |old: Generation| Some((old, self.objects.get(&old)?.returns));
        let olds: Vec<_> = deciding.replaced.iter().map(|it| it.and_then(known)).collect();
        match home {
            // What the home lets read does not matter until it has the answer.
            Some(segment) => {
                let items = deciding.items.into_iter().zip(outcomes.clone()).zip(olds);
                let item = |(((_, item), outcome), old): ((_, Option<&CommitOutcome>), _)| {
                    Some((item, outcome?.clone(), old))
                };
                let items = items.filter_map(item).collect();
                let (complete, losses) = (deciding.complete, self.losses);
                self.on_their_way.insert(to, OnItsWay { segment, items, complete, losses });
            }
            None => {
                for (outcome, old) in outcomes.zip(olds) {
                    let Some(outcome) = outcome else { continue };
                    self.replaced(outcome, old, deciding.complete, memories, coverage);
                }
            }
        }
        // After an old decision the object may have been removed meanwhile, and an older one restored.
        if deciding.late {
            self.newest = before;
        }
    }

    /// An answer arrives at the home node of its objects.
    pub(crate) fn decision_arrives(
        &mut self,
        to: (ConnId, RequestId),
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(OnItsWay { segment, items, complete, losses }) = self.on_their_way.remove(&to) else {
            return;
        };
        for (item, outcome, old) in items {
            self.supersedes(&item, &outcome, memories.iter().filter(|it| *it.0 == segment), coverage);
            // What other members owe was lost with the state folder: they may be back with the old object.
            let is_lost = losses != self.losses && matches!(outcome, CommitOutcome::Unconfirmed(_));
            self.replaced(&outcome, old, complete && !is_lost, memories, coverage);
        }
    }

    fn decided(&mut self, segment: SegmentId, item: &DecideItem, outcome: &CommitOutcome, late: bool) {
        let (CommitOutcome::Stored(generation)
        | CommitOutcome::Replaced(generation)
        | CommitOutcome::Unconfirmed(Replacement { generation, .. })) = outcome
        else {
            // A copy on a member that was given up before it reported is to be retired.
            let others = item.item.others.iter().map(|it| (it.segment, it.slot_ref()));
            let given_up =
                others.filter(|it| self.absent.contains(&it.0) && *outcome == CommitOutcome::Removed);
            given_up.collect::<Vec<_>>().into_iter().for_each(|it| _ = self.retired.insert(it));
            return;
        };
        let record = Record {
            slot_ref: item.item.slot_ref,
            namespace: item.namespace.clone(),
            key: item.item.key.clone(),
            generation: *generation,
            len: item.item.len,
            attributes: Attributes::of(&item.item.options),
        };
        let others = item.item.others.iter().map(|it| (it.segment, it.slot_ref()));
        self.decided_too.extend(others.clone().map(|it| (it, *generation)));
        // A node that was lost meanwhile asks again about objects that were stored and removed before.
        if !late {
            let used = others.chain([(segment, item.item.slot_ref)]).filter(|it| !self.owed.contains(it));
            used.for_each(|it| _ = self.retired.remove(&it));
        }
        self.record(segment, &record, late);
    }

    /// A node is informed of its copy, possibly long before the decision is answered. So the generation of
    /// the home's copy is known.
    pub(crate) fn on_settle(&mut self, segment: SegmentId, record: &Record) {
        let is_other = |it: &DecideItem| {
            it.item.others.iter().any(|it| it.segment == segment && it.slot_ref() == record.slot_ref)
        };
        for deciding in self.deciding.values() {
            for (home, item) in deciding.items.iter().filter(|it| is_other(&it.1)) {
                self.generation_of.insert((*home, item.item.slot_ref), record.generation);
            }
        }
        self.record(segment, record, false);
    }

    /// A lookup shows the generation of a copy that its node asks about again, before that is answered: a
    /// node that was lost may ask about an object that was stored and deleted before.
    pub(crate) fn learn_generation(&mut self, place: (SegmentId, SlotRef), generation: Generation) {
        let asked = |it: &Deciding| it.items.iter().any(|it| (it.0, it.1.item.slot_ref) == place);
        if let Some(known) = self.generation_of.get_mut(&place)
            && *known < generation
            && self.deciding.values().any(asked)
        {
            *known = generation;
        }
    }
}
