//! A node that takes no new objects: because it leaves soon, or because an operator drains it.

use tiffin_types::message::{Drain, DrainReport, MemberToMaster, Released};

use super::{Effect, Node, sabotage::sabotaged};

impl Node {
    /// The master starts or stops a drain job.
    pub(super) fn set_drain_job(&mut self, Drain { job, stop }: Drain) {
        match stop {
            true if self.drain_job.as_ref().is_none_or(|it| it.id != job.id) => return,
            true => self.drain_job = None,
            false => self.drain_job = Some(job),
        }
        self.effects.push_back(Effect::Drain(self.drain_job.clone()));
        self.drain();
    }

    /// A report of another job is late.
    pub(super) fn report_drain(&mut self, report: DrainReport) {
        let is_current = self.drain_job.as_ref().is_some_and(|it| it.id == report.job.id);
        if is_current && self.link.is_member() {
            self.link.tell(MemberToMaster::Drained(Box::new(report)), &mut self.effects);
        }
    }

    /// Recalls all offers, because a client could fill them without a request. Informs the master at once, so
    /// that it uses other nodes.
    pub(super) fn drain(&mut self) {
        let drains = self.leaves || self.drain_job.is_some();
        self.slots.set_drains(drains && !sabotaged!(self.config.sabotage, FillDrained));
        if self.link.is_member() {
            let told = Released {
                usage: self.slots.usage(),
                held: self.slots.held().by_namespace(),
                ..Released::default()
            };
            self.link.tell_of_ends(told, &mut self.effects);
        }
        let offers = self.slots.offers();
        if drains && !offers.is_empty() {
            self.effects.push_back(Effect::Recall(offers));
        }
    }
}
