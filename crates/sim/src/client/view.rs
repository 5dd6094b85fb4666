//! Views: bytes looked at where they lie, for as long as the client likes.

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

/// What is looked at. A client has at most one view of it.
pub(crate) type ViewKey = (SegmentId, Hold);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The node was asked.
    Beginning,
    /// The node holds the bytes.
    Held,
    /// The node was told that it is over, or must be told.
    Ending,
}

/// One view.
#[derive(Debug)]
pub(crate) struct View {
    /// The call that asked for it.
    asked: RequestId,
    state: State,
    units: Vec<usize>,
    len: u64,
}

impl Client {
    /// The node has confirmed an end. A view that was asked for since stays.
    pub(crate) fn view_is_over(&mut self, key: ViewKey, end: RequestId) {
        if self.views.get(&key).is_some_and(|it| it.state == State::Ending && it.asked < end) {
            self.views.remove(&key);
        }
    }

    /// There is nobody left whom their end could be told.
    pub(crate) fn forget_ending_views(&mut self, target: Target) {
        self.views.retain(|key, it| Target::Node(key.0) != target || it.state != State::Ending);
    }
}

impl World {
    /// Asks the node of the first mapped copy to hold it.
    pub(crate) fn begin_view(&mut self, client: usize, found: &Found) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let mapped = found.replicas.iter().find(|replica| it.attached.contains(&replica.segment));
        let Some(location) = mapped else { return };
        let key = (location.segment, location.hold());
        // The record is loaded first: if the view begins, the stamp stood, and so do the extents.
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
        let (look, end) = (self.chance.delay(10, 200), self.chance.delay(100, 600));
        self.client_at(look, client, ClientEvent::Look(key));
        self.client_at(end, client, ClientEvent::EndView(key));
    }

    /// Looks at every byte.
    pub(crate) fn look(&mut self, client: usize, key: ViewKey) {
        let pause = self.chance.delay(20, 200);
        let Some(view) = self.clients.get(client).and_then(|it| it.views.get(&key)) else { return };
        if view.state != State::Held {
            return;
        }
        let Some(memory) = self.memories.get(&key.0) else { return };
        let tags: Vec<Tag> = view.units.iter().filter_map(|&unit| memory.read_unit(unit)).collect();
        if !memory.stands(key.1) {
            self.coverage.hit(Point::ViewOutlives);
        }
        self.oracle.looks(key.0, key.1, view.len, &tags, &mut self.coverage);
        self.client_at(pause, client, ClientEvent::Look(key));
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
    pub(crate) fn view_in_doubt(&mut self, client: usize, key: ViewKey) {
        let gone = self.node_of(key.0).is_none();
        let Some(it) = self.clients.get_mut(client) else { return };
        if gone {
            it.views.remove(&key);
            return;
        }
        let Some(view) = it.views.get_mut(&key) else { return };
        view.state = State::Ending;
        // On the connection that stands it follows the question; else it waits for the next one.
        if it.links.get(&Target::Node(key.0)).is_some_and(|it| it.up) {
            self.call(
                client,
                Target::Node(key.0),
                ClientToNode::EndViews(vec![key.1]),
                Purpose::EndView(key),
            );
        }
    }

    /// After a new welcome: what was in doubt ends.
    pub(crate) fn end_doubtful_views(&mut self, client: usize, target: Target) {
        let Target::Node(segment) = target else { return };
        let Some(it) = self.clients.get(client) else { return };
        let doubtful = it.views.iter().filter(|(key, it)| key.0 == segment && it.state == State::Ending);
        let keys: Vec<_> = doubtful.map(|(key, _)| *key).collect();
        for key in keys {
            self.call(client, target, ClientToNode::EndViews(vec![key.1]), Purpose::EndView(key));
        }
    }
}
