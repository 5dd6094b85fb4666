//! A node that takes no new objects: because it leaves soon, or because an operator drains it.

use tiffin_types::message::{Drain, DrainJob, Released};

use super::{Effect, Node, mutant::is_mutant};

/// Why the node takes no new objects, if it does not.
#[derive(Debug, Default)]
pub(super) struct Draining {
    /// The node leaves soon.
    pub(super) leaves: bool,
    job: Option<DrainJob>,
}

impl Draining {
    /// The master starts or stops a drain job. Returns whether that changes anything.
    pub(super) fn apply(&mut self, Drain { job, stop }: Drain) -> bool {
        if stop && !self.has(&job) {
            return false;
        }
        self.job = (!stop).then_some(job);
        true
    }

    /// The current job, for the shell.
    pub(super) fn effect(&self) -> Effect {
        Effect::Drain(self.job.clone())
    }

    /// Whether that job is the current one. A report of another job is late.
    pub(super) fn has(&self, job: &DrainJob) -> bool {
        self.job.as_ref().is_some_and(|it| it.id == job.id)
    }

    fn is_on(&self) -> bool {
        self.leaves || self.job.is_some()
    }
}

impl Node {
    /// Recalls all offers, because a client could fill them without a request. Informs the master at once, so
    /// that it uses other nodes.
    pub(super) fn drain(&mut self) {
        let drains = self.draining.is_on();
        self.slots.set_drains(drains && !is_mutant!(self.config.mutant, FillDrained));
        if self.link.is_member() {
            let told = Released {
                usage: self.slots.usage(),
                held: self.slots.held().by_namespace(),
                ..Released::default()
            };
            self.link.notify_of_ends(told, &mut self.effects);
        }
        let offers = self.slots.offers();
        if drains && !offers.is_empty() {
            self.effects.push_back(Effect::Recall(offers));
        }
    }
}
