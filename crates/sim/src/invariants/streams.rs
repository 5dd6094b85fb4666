//! Streams: a sample is with one client of a group at a time, comes in the order in which it was put, and not
//! to a group that has acknowledged it. What is dropped with its stream is gone as if it were deleted.

use tiffin_core::{
    ConnId, RequestId, Tick,
    message::{LeaseOutcome, Pulled},
};

use crate::{
    coverage::{Coverage, Point},
    invariants::p2::Victim,
    names::Name,
    oracle::{Deleting, Oracle},
};

impl Oracle {
    /// All that is in a stream is to be taken away. What was replaced is no longer in it.
    pub(crate) fn hears_drop(&mut self, to: (ConnId, RequestId), namespace: u8, complete: bool) {
        let mut victims = Vec::new();
        for (generation, life) in &mut self.lives {
            if life.name.namespace != namespace || !life.in_stream {
                continue;
            }
            if !life.is_gone() && self.newest.get(&life.name) == Some(generation) {
                let victim = Victim { generation: *generation, returns: life.returns, gone: false };
                victims.push((life.name, vec![victim]));
            }
            life.deletes += 1;
            self.cause.names.insert(life.name);
        }
        // Which samples the master had given up before, with their node away, nobody has seen.
        let complete = complete && !self.impatient;
        self.deleting.insert(to, Deleting { victims, complete, force: true });
    }

    /// Samples are given to who pulled.
    pub(crate) fn pulled(
        &mut self,
        now: Tick,
        to: (ConnId, RequestId),
        pulled: &Pulled,
        coverage: &mut Coverage,
    ) {
        let Some(group) = self.pulls.remove(&to) else { return };
        let mut last = None;
        for (key, outcome) in pulled.keys.iter().zip(&pulled.leased.items) {
            let LeaseOutcome::Leased(granted) = outcome else { continue };
            let generation = granted.found.generation;
            let Some(life) = self.lives.get(&generation) else {
                // Its node has not written it yet.
                if granted.lease != 0 {
                    self.leased(now, to.0, granted, &group, coverage);
                    self.pulled.insert(granted.lease, group.clone());
                }
                continue;
            };
            let name = life.name;
            // What is still being decided has not been told of.
            if Name::of(name.namespace, key) != Some(name) || (life.marked && !life.in_stream) {
                self.fail("streams", || format!("{name:?} {generation} is pulled, and not in the stream"));
            }
            if last.replace(generation).is_some_and(|last| last >= generation) {
                self.fail("streams", || format!("{name:?} {generation} comes out of order"));
            }
            self.found(name, &granted.found, coverage);
            if granted.lease == 0 {
                coverage.hit(Point::Tailed);
                continue;
            }
            coverage.hit(Point::CheckedPulled);
            let others = self.leases.iter().filter(|(_, (_, leased))| *leased == generation);
            let mut others = others.filter(|(lease, _)| self.pulled.get(lease) == Some(&group));
            let other = others.find(|(_, (client, _))| self.keeps_leases(*client, now));
            if let Some(client) = other.map(|(_, (client, _))| *client) {
                self.fail("streams", || {
                    format!("{name:?} {generation} is given to {group} while {client:?} of it has that")
                });
            }
            self.leased(now, to.0, granted, &group, coverage);
            self.pulled.insert(granted.lease, group.clone());
        }
    }
}
