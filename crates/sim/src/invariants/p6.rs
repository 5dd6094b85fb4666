//! P6: a sample that everyone has consumed is gone when that is answered, as a deleted object is; and P5: a
//! namespace is given no more than its quota.

use tiffin_core::{
    ConnId, RequestId,
    message::{Ack, AckOutcome, DeleteOutcome, Request},
};

use crate::{
    coverage::{Coverage, Point},
    names::{self, Name},
    oracle::{Memories, Oracle, Victim},
    world::World,
};

impl Oracle {
    /// A client says something about how long objects are to live.
    pub(crate) fn hears_of_lifetimes(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &Request,
        namespace: u8,
        complete: bool,
    ) {
        match request {
            Request::Pin(pin) => self.hears_pin((conn, id), pin, namespace, complete),
            Request::DropPins(drop) => self.hears_drop_pins(drop, namespace),
            Request::SetPolicy(policy) => self.impatient |= policy.max_hold_ms.is_some(),
            Request::Ack(ack) => self.hears_ack((conn, id), ack, namespace, complete),
            _ => (),
        }
    }

    fn hears_ack(&mut self, to: (ConnId, RequestId), ack: &Ack, namespace: u8, complete: bool) {
        for item in &ack.items {
            if let Some(name) = Name::of(namespace, &item.key) {
                self.explain(name);
            }
            if let Some(life) = self.lives.get_mut(&item.generation) {
                life.deletes += 1;
            }
        }
        self.acking.insert(to, (ack.items.iter().map(|it| it.generation).collect(), complete));
    }

    /// Acknowledgements are answered.
    pub(crate) fn acked(
        &mut self,
        to: (ConnId, RequestId),
        outcomes: &[AckOutcome],
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some((generations, complete)) = self.acking.remove(&to) else { return };
        for (generation, outcome) in generations.into_iter().zip(outcomes) {
            let Some(life) = self.lives.get_mut(&generation) else { continue };
            match outcome {
                AckOutcome::Freed => {
                    let (name, fresh) = (life.name, life.deletes == 1 && !life.brought_back);
                    let victims = [Victim { generation, fresh }];
                    self.deleted(name, &victims, &DeleteOutcome::Deleted, complete, memories, coverage);
                }
                AckOutcome::Recorded | AckOutcome::Stale | AckOutcome::WrongGroup => {
                    life.deletes = life.deletes.saturating_sub(1);
                }
                AckOutcome::Unconfirmed(_) => (),
            }
        }
    }
}

impl World {
    /// Room is being asked for: what its namespace then has is within its quota.
    pub(crate) fn check_quota(&mut self, namespace: u8) {
        let Some(master) = &self.master else { return };
        let name = names::namespace_name(namespace);
        let stats = master.stat().namespaces;
        let Some(stat) = stats.into_iter().find(|it| it.name == name) else { return };
        let Some(quota) = stat.quota else { return };
        self.coverage.hit(Point::CheckedQuota);
        if stat.used > quota {
            self.oracle.fail("p5", || format!("a namespace has more than its quota: {stat:?}"));
        }
    }
}
