//! Views: bytes that are read in place for any length of time.

use tiffin_core::{
    Hold, RequestId, SegmentId,
    message::{ClientToNode, Found, Reply},
    node::SlotState,
};

use super::{Client, ClientEvent, Purpose, Target};
use crate::{
    coverage::Point,
    memory::{Tag, all_units},
    world::World,
};

/// The viewed copy. A client has at most one view of it.
pub(crate) type ViewKey = (SegmentId, Hold);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requested.
    Beginning,
    /// Confirmed by the node.
    Held,
    /// The end was sent to the node, or must be.
    Ending,
}

/// One view.
#[derive(Debug)]
pub(crate) struct View {
    /// The call that requested it.
    asked: RequestId,
    state: State,
    units: Vec<usize>,
    len: u64,
}

impl Client {
    /// The node has confirmed the end. A view that was requested later stays.
    pub(crate) fn view_ended(&mut self, key: ViewKey, end: RequestId) {
        if self.views.get(&key).is_some_and(|it| it.state == State::Ending && it.asked < end) {
            self.views.remove(&key);
        }
    }

    /// The node is gone, so the ends need not be sent.
    pub(crate) fn forget_ending_views(&mut self, target: Target) {
        self.views.retain(|key, it| Target::Node(key.0) != target || it.state != State::Ending);
    }
}

impl World {
    /// Requests a view of the first mapped copy.
    pub(crate) fn begin_view(&mut self, client: usize, found: &Found) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let mapped = found.replicas.iter().find(|replica| it.attached.contains(&replica.segment));
        let Some(location) = mapped else { return };
        let key = (location.segment, location.hold());
        // The record is loaded first: if the view begins, the stamp was current, and so are the extents.
        let record = self.memories.get(&location.segment).and_then(|memory| memory.load(location.hold()));
        let Some(record) = record else { return };
        if record.state != SlotState::Committed {
            self.coverage.hit(Point::ViewUnheard);
        }
        if it.views.contains_key(&key) {
            return;
        }
        let view = View {
            asked: it.next_request(),
            state: State::Beginning,
            units: all_units(&record.extents),
            len: record.len,
        };
        it.views.insert(key, view);
        let target = Target::Node(key.0);
        self.call(client, target, ClientToNode::BeginViews(vec![key.1]), Purpose::BeginView(key));
    }

    pub(crate) fn view_answered(&mut self, client: usize, key: ViewKey, reply: &Reply) {
        let begun = matches!(reply, Reply::ViewsBegun(begun) if begun.first() == Some(&true));
        let Some(it) = self.clients.get_mut(client) else { return };
        if !begun {
            it.views.remove(&key);
            return self.coverage.hit(Point::ViewRefused);
        }
        let Some(view) = it.views.get_mut(&key) else { return };
        view.state = State::Held;
        self.coverage.hit(Point::ViewBegun);
        let (check_view, end) = (self.rng.delay(10, 200), self.rng.delay(100, 600));
        self.client_at(check_view, client, ClientEvent::CheckView(key));
        self.client_at(end, client, ClientEvent::EndView(key));
    }

    /// Reads every byte of a view.
    pub(crate) fn check_view(&mut self, client: usize, key: ViewKey) {
        let pause = self.rng.delay(20, 200);
        let Some(view) = self.clients.get(client).and_then(|it| it.views.get(&key)) else { return };
        if view.state != State::Held {
            return;
        }
        let Some(memory) = self.memories.get(&key.0) else { return };
        let tags: Vec<Tag> = view.units.iter().filter_map(|&unit| memory.read_unit(unit)).collect();
        if !memory.is_current(key.1) {
            self.coverage.hit(Point::ViewOutlives);
        }
        self.oracle.looks(key.0, key.1, view.len, &tags, &mut self.coverage);
        self.client_at(pause, client, ClientEvent::CheckView(key));
    }

    pub(crate) fn end_view(&mut self, client: usize, key: ViewKey) {
        let Some(view) = self.clients.get_mut(client).and_then(|it| it.views.get_mut(&key)) else { return };
        if view.state == State::Held {
            view.state = State::Ending;
            self.call(
                client,
                Target::Node(key.0),
                ClientToNode::EndViews(vec![key.1]),
                Purpose::EndView(key),
            );
        }
    }

    /// The answer is lost: the view must be ended, whether it began or not.
    pub(crate) fn view_uncertain(&mut self, client: usize, key: ViewKey) {
        let gone = self.node_of(key.0).is_none();
        let Some(it) = self.clients.get_mut(client) else { return };
        if gone {
            it.views.remove(&key);
            return;
        }
        let Some(view) = it.views.get_mut(&key) else { return };
        view.state = State::Ending;
        // On an open connection it follows the lost request; otherwise it waits for the next connection.
        if it.links.get(&Target::Node(key.0)).is_some_and(|it| it.up) {
            self.call(
                client,
                Target::Node(key.0),
                ClientToNode::EndViews(vec![key.1]),
                Purpose::EndView(key),
            );
        }
    }

    /// After a new welcome: ends views with a lost answer.
    pub(crate) fn end_uncertain_views(&mut self, client: usize, target: Target) {
        let Target::Node(segment) = target else { return };
        let Some(it) = self.clients.get(client) else { return };
        let uncertain = it.views.iter().filter(|(key, it)| key.0 == segment && it.state == State::Ending);
        let keys: Vec<_> = uncertain.map(|(key, _)| *key).collect();
        for key in keys {
            self.call(client, target, ClientToNode::EndViews(vec![key.1]), Purpose::EndView(key));
        }
    }
}
