//! Streams: a sample is leased by one client of a group at a time, in the order of the puts, and not by a
//! group that has acknowledged it. Samples dropped with their stream are treated as deleted.

use tiffin_types::{
    ConnId, RequestId, Tick,
    message::{LeaseOutcome, Pulled},
};

use crate::{
    coverage::{Coverage, Point},
    invariants::p2::Victim,
    keyspace::Name,
    oracle::{Deleting, Oracle},
};

impl Oracle {
    /// All samples of a stream are removed. Replaced ones are no longer part of it.
    pub(crate) fn on_stream_drop(&mut self, to: (ConnId, RequestId), namespace: u8, complete: bool) {
        let mut victims = Vec::new();
        for (generation, history) in &mut self.objects {
            if history.name.namespace != namespace || !history.in_stream {
                continue;
            }
            if !history.is_gone() && self.newest.get(&history.name) == Some(generation) {
                let victim = Victim { generation: *generation, returns: history.returns, gone: false };
                victims.push((history.name, vec![victim]));
            }
            history.deletes += 1;
            self.cause.names.insert(history.name);
        }
        // The oracle does not see which samples the master had dropped before, while their node was away.
        let complete = complete && !self.samples_expire;
        self.deleting.insert(to, Deleting { victims, complete, force: true });
    }

    /// Samples are leased to a puller.
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
            let Some(history) = self.objects.get(&generation) else {
                // Its node has not written it yet.
                if granted.lease != 0 {
                    self.leased(now, to.0, granted, &group, coverage);
                    self.pulled.insert(granted.lease, group.clone());
                }
                continue;
            };
            let name = history.name;
            // The attributes of an undecided object are not known yet.
            if Name::of(name.namespace, key) != Some(name) || (history.marked && !history.in_stream) {
                self.fail("streams", || format!("{name:?} {generation} is pulled, but not in the stream"));
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
                    format!("{name:?} {generation} is leased to {group} while {client:?} of the group has it")
                });
            }
            self.leased(now, to.0, granted, &group, coverage);
            self.pulled.insert(granted.lease, group.clone());
        }
    }
}
