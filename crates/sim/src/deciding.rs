//! What the oracle knows of decisions: which object gets its name, and what that takes the place of.

use tiffin_core::{
    ConnId, Generation, Hold, RequestId, SegmentId,
    marks::Marks,
    message::{CommitOutcome, DecideItem, OnExists, Record, Replacement},
};

use crate::{
    coverage::Coverage,
    oracle::{Memories, Oracle, name_of},
};

/// Decisions that are not answered yet.
#[derive(Debug)]
pub(crate) struct Deciding {
    /// Each with the node that has it.
    pub(crate) items: Vec<(SegmentId, DecideItem)>,
    /// Other things have happened since they were made.
    pub(crate) late: bool,
    /// What each of them takes the place of.
    pub(crate) replaced: Vec<Option<Generation>>,
    /// Every copy that exists was known to the master.
    pub(crate) complete: bool,
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
        // A home asks again because neither it nor its writer has heard an answer: what an earlier life of
        // the master had named may be refused by this one, for something that was brought back meanwhile.
        let keeping = items.iter().filter(|it| it.1.item.options.on_exists == OnExists::Keep);
        let unheard = keeping.filter(|it| !self.published.contains(&(it.0, it.1.item.hold)));
        let others = unheard.flat_map(|it| it.1.item.others.iter().map(|it| (it.segment, it.hold())));
        self.cause.nameless = others.collect();
        let replaced = items.iter().map(|it| name_of(&it.1).and_then(|name| self.standing(name)));
        let replaced = replaced.collect();
        self.deciding.insert(to, Deciding { items, late: false, replaced, complete });
    }

    /// Where the objects lie that are being decided on.
    pub(crate) fn places(&self, to: (ConnId, RequestId)) -> Vec<(SegmentId, Hold)> {
        let deciding = self.deciding.get(&to);
        deciding.into_iter().flat_map(|it| &it.items).map(|(home, it)| (*home, it.item.hold)).collect()
    }

    pub(crate) fn all_decided<'a>(
        &mut self,
        to: (ConnId, RequestId),
        outcomes: impl Iterator<Item = Option<&'a CommitOutcome>> + Clone,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(deciding) = self.deciding.remove(&to) else { return };
        let before = self.newest.clone();
        for ((segment, item), outcome) in deciding.items.iter().zip(outcomes.clone()) {
            let Some(outcome) = outcome else { continue };
            // Asked once more before the first answer, it may be long ago, too.
            let same = |it: &(SegmentId, DecideItem)| it.0 == *segment && it.1.item.hold == item.item.hold;
            let is_late = deciding.late || self.deciding.values().any(|it| it.items.iter().any(same));
            self.decided(*segment, item, outcome, is_late);
            self.supersedes(item, outcome, memories, coverage);
        }
        for (outcome, old) in outcomes.zip(&deciding.replaced) {
            let Some(outcome) = outcome else { continue };
            self.replaced(outcome, *old, deciding.complete, memories, coverage);
        }
        // What was decided long ago may have been taken away, and something older brought back,
        // since.
        if deciding.late {
            self.newest = before;
        }
    }

    fn decided(&mut self, segment: SegmentId, item: &DecideItem, outcome: &CommitOutcome, late: bool) {
        let (CommitOutcome::Stored(generation)
        | CommitOutcome::Replaced(generation)
        | CommitOutcome::Unconfirmed(Replacement { generation, .. })) = outcome
        else {
            return;
        };
        let record = Record {
            hold: item.item.hold,
            namespace: item.namespace.clone(),
            key: item.item.key.clone(),
            generation: *generation,
            len: item.item.len,
            marks: Marks::of(&item.item.options),
        };
        let others = item.item.others.iter().map(|it| (it.segment, it.hold()));
        self.decided_too.extend(others.clone().map(|it| (it, *generation)));
        // A node that was lost meanwhile asks again about what was stored and taken away before.
        if !late {
            others.chain([(segment, item.item.hold)]).for_each(|it| _ = self.retired.remove(&it));
        }
        self.record(segment, &record, late);
    }

    /// A node is told of its copy, perhaps long before the decision is answered; so it is known what the
    /// home has.
    pub(crate) fn settles(&mut self, segment: SegmentId, record: &Record) {
        let is_other = |it: &DecideItem| {
            it.item.others.iter().any(|it| it.segment == segment && it.hold() == record.hold)
        };
        for deciding in self.deciding.values() {
            for (home, item) in deciding.items.iter().filter(|it| is_other(&it.1)) {
                self.generation_of.insert((*home, item.item.hold), record.generation);
            }
        }
        self.record(segment, record, false);
    }

    /// A lookup tells what a copy is that its node asks about once more, before that is answered: a node that
    /// was lost may ask about what was stored and deleted before.
    pub(crate) fn named_anew(&mut self, place: (SegmentId, Hold), generation: Generation) {
        let asked = |it: &Deciding| it.items.iter().any(|it| (it.0, it.1.item.hold) == place);
        if let Some(known) = self.generation_of.get_mut(&place)
            && *known < generation
            && self.deciding.values().any(asked)
        {
            *known = generation;
        }
    }
}
