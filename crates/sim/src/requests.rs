//! What the oracle learns from requests: of clients and members to the master, and of the master to members.

use tiffin_types::{
    ConnId, RequestId, SegmentId, SlotRef, Tick,
    message::{
        ClientToMaster, DecideItem, MasterToMember, MemberToMaster, PolicyChange, Publish, PublishItem,
        Request,
    },
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::{self, Name},
    oracle::{Cause, Oracle, Sender, record_name},
};

impl Oracle {
    /// The master is about to handle a request.
    pub(crate) fn on_request(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &Request,
        sender: Sender,
        complete: bool,
    ) {
        self.cause = Cause::default();
        match (request, sender) {
            (Request::ClientToMaster(request), Sender::Client(namespace)) => {
                self.cause.is_refusable = self.strict && is_unforced_removal(request);
                self.record_names(conn, id, request, namespace);
                self.on_client_request((conn, id), request, namespace, complete);
            }
            (Request::Goodbye, Sender::Client(_)) => {
                let client = self.conn_clients.get(&conn).copied();
                client.into_iter().for_each(|client| self.client_is_gone(client));
                self.conn_is_gone(conn);
            }
            (Request::MemberToMaster(request), Sender::Node(segment)) => {
                self.on_member_request((conn, id), request, segment, complete);
            }
            // The master refuses it, or ignores the connection.
            (
                Request::Hello(_)
                | Request::Goodbye
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::MasterToMember(_)
                | Request::ClientToNode(_),
                Sender::Client(_) | Sender::Node(_) | Sender::Stale,
            ) => (),
        }
    }

    fn on_client_request(
        &mut self,
        to: (ConnId, RequestId),
        request: &ClientToMaster,
        namespace: u8,
        complete: bool,
    ) {
        match request {
            ClientToMaster::Delete(delete) => {
                let names = delete.keys.iter().filter_map(|key| Name::of(namespace, key)).collect();
                self.begin_deleting(to.0, to.1, names, delete.force, complete);
            }
            ClientToMaster::DeleteMatching(delete) => {
                let all = (0..keyspace::KEYS.len()).map(|key| Name { namespace, key: key as u8 });
                let names = all.filter(|name| keyspace::matches(&delete.pattern, *name)).collect();
                self.begin_deleting(to.0, to.1, names, delete.force, complete);
            }
            ClientToMaster::Resolve(resolve) => {
                let names = resolve.keys.iter().filter_map(|key| Name::of(namespace, key));
                (self.cause.asked, self.cause.lease) = (names.collect(), resolve.lease);
            }
            ClientToMaster::Exists(exists) => {
                let names = exists.keys.iter().filter_map(|key| Name::of(namespace, key));
                self.cause.asked = names.collect();
            }
            ClientToMaster::Publish(publish) => self.on_publish(to, publish, namespace, complete),
            ClientToMaster::Lease(lease) => {
                let names = lease.items.iter().filter_map(|it| Name::of(namespace, &it.key));
                (self.cause.asked, self.cause.group) = (names.collect(), lease.group.clone());
            }
            ClientToMaster::Pin(pin) => self.on_pin(to, pin, namespace, complete),
            ClientToMaster::DropPins(drop) => self.on_drop_pins(drop, namespace),
            ClientToMaster::SetPolicy(change) => self.on_policy(to, change, namespace),
            ClientToMaster::Ack(ack) => self.on_ack(to, ack, complete),
            ClientToMaster::Release(release) => {
                release.leases.iter().for_each(|lease| _ = self.leases.remove(lease));
            }
            ClientToMaster::KeepLeases(known) => {
                let client = self.conn_clients.get(&to.0).copied();
                self.leases.retain(|lease, (of, _)| Some(*of) != client || known.contains(lease));
            }
            ClientToMaster::Pull(pull) => _ = self.pulls.insert(to, pull.group.clone()),
            ClientToMaster::EndStream(end) if end.drop => self.on_stream_drop(to, namespace, complete),
            ClientToMaster::EndStream(_)
            | ClientToMaster::OpenStream(_)
            | ClientToMaster::Reserve(_)
            | ClientToMaster::List(_)
            | ClientToMaster::Stat
            | ClientToMaster::Ping(_)
            | ClientToMaster::Await(_)
            | ClientToMaster::Why(_)
            | ClientToMaster::Cancel(_)
            | ClientToMaster::ForgetNode(_)
            | ClientToMaster::AdmitCluster(_)
            | ClientToMaster::Prefetch(_) => (),
        }
    }

    fn on_publish(&mut self, to: (ConnId, RequestId), publish: &Publish, namespace: u8, complete: bool) {
        let client = self.conn_clients.get(&to.0).copied().unwrap_or_default();
        let namespace = keyspace::namespace_name(namespace);
        let item = |it: &PublishItem| {
            let item = it.item.clone();
            (it.home, DecideItem { namespace: namespace.to_owned(), client, item })
        };
        self.begin_deciding(to, publish.items.iter().map(item).collect(), complete);
    }

    fn on_policy(&mut self, to: (ConnId, RequestId), change: &PolicyChange, namespace: u8) {
        self.samples_expire |= change.max_hold_ms.is_some();
        self.waiting_puts.clear();
        self.tier.change_policy(namespace, change);
        self.setting.insert(to, (namespace, self.tier.policy(namespace)));
    }

    fn on_member_request(
        &mut self,
        to: (ConnId, RequestId),
        request: &MemberToMaster,
        segment: SegmentId,
        complete: bool,
    ) {
        match request {
            MemberToMaster::Decide(decide) => {
                let items = decide.items.iter().map(|it| (segment, it.clone())).collect();
                self.begin_deciding(to, items, complete);
            }
            MemberToMaster::Announce(announce) => {
                self.cause.from_new_node = !self.knows(segment);
                self.cause.names = announce.items.iter().filter_map(record_name).collect();
                self.cause.announced = announce.items.clone();
            }
            MemberToMaster::ClientDied(client) => self.client_is_gone(*client),
            MemberToMaster::Dropped(dropped) => self.on_dropped(segment, dropped),
            MemberToMaster::Register(_)
            | MemberToMaster::Heartbeat(_)
            | MemberToMaster::Released(_)
            | MemberToMaster::Drained(_) => (),
        }
    }

    /// The master sends a request to a member, in the course of an eviction or not.
    pub(crate) fn on_member_effect(
        &mut self,
        (conn, id, now): (ConnId, RequestId, Tick),
        request: &MasterToMember,
        segment: Option<SegmentId>,
        evicting: bool,
        coverage: &mut Coverage,
    ) {
        let to = segment.unwrap_or_default();
        match request {
            MasterToMember::Allocate(_) => self.allocations += 1,
            MasterToMember::Retire(retire) => {
                self.on_retires(segment, &retire.slot_refs);
                // What the evicted object has replaced is retired with it, and does not tell which one it is.
                // So is a copy that was retired before it was complete, so that its object is not known.
                let is_unfinished = |it: &(SegmentId, SlotRef)| {
                    self.retired.contains(it) && !self.generation_of.contains_key(it)
                };
                let is_of_older = |it: &(SegmentId, SlotRef)| self.is_of_replaced(it) || is_unfinished(it);
                let is_known = !retire.slot_refs.iter().all(|it| is_of_older(&(to, *it)));
                self.cause.evicting = evicting;
                self.cause.evicted |= evicting && is_known;
                retire.slot_refs.iter().for_each(|slot_ref| self.retires(now, to, *slot_ref, coverage));
            }
            MasterToMember::Settle(settle) => {
                self.on_retires(segment, &settle.abort);
                for record in &settle.commit {
                    self.settles_promotion((conn, id), to, record);
                    self.on_settle(to, record);
                }
                settle.abort.iter().for_each(|slot_ref: &SlotRef| self.gives_back(to, *slot_ref));
                self.on_retires(segment, &settle.retire);
                if !settle.retire.is_empty() {
                    coverage.hit(Point::AnsweredBehind);
                }
                settle.retire.iter().for_each(|slot_ref| self.retires(now, to, *slot_ref, coverage));
            }
            MasterToMember::Demote(items) => self.demotes((conn, id), now, to, items),
            MasterToMember::Promote(items) => items.iter().for_each(|it| self.promotes(to, it.into)),
            MasterToMember::Fetch(items) => items.iter().for_each(|it| self.fetches(to, it.into)),
            MasterToMember::ClientGone(_)
            | MasterToMember::SetAttributes(_)
            | MasterToMember::Inspect(_)
            | MasterToMember::Drain(_) => (),
        }
    }
}

/// Whether a request removes only what is not leased.
fn is_unforced_removal(request: &ClientToMaster) -> bool {
    match request {
        ClientToMaster::Delete(delete) => !delete.force,
        ClientToMaster::DeleteMatching(delete) => !delete.force,
        _ => false,
    }
}
